"""One whole GRPO step, ours beside TRL's, for the same work in one run: generation, reward, loss, optimizer step, push.

The same model of random weights, the same prompts and lengths, groups of 8. Ours is synchronous here, the maker's work
and then the trainer's in one thread, so that the ratio is about the work and not about overlap.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..data.experience import merge
from ..data.lease import Prompt, sample_seed
from ..data.sampling import Sampling
from ..engines import build_engine
from ..learning.learner import StepSettings
from ..numerics import compute_alike
from ..policy.computing import ComputeSettings, set_up_computing
from ..policy.lora import LoraSettings
from ..policy.lora_policy import LoraPolicy
from ..policy.policy import PlainPolicy, Policy
from ..rewards import InlineRewards
from ..roles.maker import ExperienceMakerHolder
from ..roles.policy_trainer import DetachedGRPOTrainer
from ..roles.weights import WeightStore
from ..rollouts import SingleTurn
from .rollout import load_shape
from .shapes import SHAPES


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """What a step is: so many prompts with a group of completions each, all of full length."""

    shape: str
    prompts: int = 8
    group_size: int = 8
    prompt_tokens: int = 32
    new_tokens: int = 64
    learning_rate: float = 1e-6
    lora_rank: int = 0
    """Of the adapter that is trained; 0 trains all weights."""

    @property
    def tokens(self) -> int:
        """That are trained on, with their prompts."""
        return self.prompts * self.group_size * (self.prompt_tokens + self.new_tokens)


@dataclass(frozen=True, slots=True)
class StepFigure:
    """What one library took for a step; seconds are the best of several steps."""

    library: str
    seconds: float
    generating: float
    training: float
    publishing: float
    tokens_per_second: float
    """Completion tokens, over the whole step."""
    peak_memory: int
    """Bytes on the device; 0 on a CPU."""
    share_of_peak: float
    """Of the arithmetic that a product reaches on this device, what the training half reached."""
    first_seconds: float
    """The first step, with all that is compiled and filled then."""


def measure_proa(
    case: StepCase, *, device: str, dtype: str, steps: int, computing: ComputeSettings, settings: StepSettings
) -> StepFigure:
    """Our step."""
    compute_alike(torch.get_num_threads(), device=device, deterministic=True)
    tokenizer = number_tokenizer(SHAPES[case.shape]["vocab_size"])
    model = load_shape(case.shape, device=device, dtype=dtype)
    samples = case.prompts * case.group_size
    longest = case.prompt_tokens + case.new_tokens + 32
    cache_tokens = samples * longest if device != "cpu" else 0  # a run on a GPU has a cache of what it can use, too
    engine = build_engine("native", model, end_ids=[], slots=samples, cache_tokens=cache_tokens)
    policy: Policy = PlainPolicy(model, tokenizer, [])
    if case.lora_rank:
        policy = LoraPolicy(model, tokenizer, [], settings=LoraSettings(rank=case.lora_rank))
        policy.begin(Path())
    set_up_computing(model, computing)
    sampling = Sampling(case.group_size, case.new_tokens)
    store = WeightStore()
    trainer = DetachedGRPOTrainer(
        [], policy, sampling=sampling, learning_rate=case.learning_rate, optimizer_steps=10_000, store=store,
        settings=settings,
    )  # fmt: skip
    maker = ExperienceMakerHolder(
        engine=engine,
        rollout=SingleTurn(tokenizer, sampling, scorer=InlineRewards(varied_reward)),
        receiver=policy.receiver(),
    )
    store.publish(0, policy.published())
    maker.update_experience_maker(store.fetch(0, owner="maker"))
    _reset_peak(device)
    clocks = [_own_step(case, maker, trainer, store, policy, version, device) for version in range(1, steps + 2)]
    first, *rest = clocks
    best = min(rest, key=lambda clock: clock.total)
    return _figure("proa", case, best, first.total, model, device, dtype)


@dataclass(frozen=True, slots=True)
class _Clock:
    generating: float
    training: float
    publishing: float

    @property
    def total(self) -> float:
        return self.generating + self.training + self.publishing


def _own_step(
    case: StepCase,
    maker: ExperienceMakerHolder,
    trainer: DetachedGRPOTrainer,
    store: WeightStore,
    policy: Policy,
    version: int,
    device: str,
) -> _Clock:
    times = [time.perf_counter()]
    ordinals = range(version * case.prompts, (version + 1) * case.prompts)
    prompts = [Prompt(number, tokens, "") for number, tokens in zip(ordinals, _prompts(case, ordinals), strict=True)]
    seeds = [[sample_seed(0, prompt.ordinal, sample) for sample in range(case.group_size)] for prompt in prompts]
    experience = merge(maker.make(prompts, seeds))
    times.append(_now(device))
    trainer.training_step(experience)
    times.append(_now(device))
    store.publish(version, policy.published())
    store.retire(but=set())
    maker.update_experience_maker(store.fetch(version, owner="maker"))
    times.append(_now(device))
    return _Clock(*(after - before for before, after in itertools.pairwise(times)))


def measure_trl(case: StepCase, *, device: str, dtype: str, steps: int, checkpointing: bool = False) -> StepFigure:
    """TRL's `GRPOTrainer`, as its documentation has it."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from transformers import PrinterCallback, TrainerCallback

    trl, datasets = (import_module(name) for name in ("trl", "datasets"))
    torch.use_deterministic_algorithms(False)
    times: list[float] = []
    generating: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(_now(device))

    class Timed(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
        def _generate_and_score_completions(self, *arguments: Any, **settings: Any) -> Any:
            begun = _now(device)
            made = super()._generate_and_score_completions(*arguments, **settings)
            generating.append(_now(device) - begun)
            return made

    tokenizer = number_tokenizer(SHAPES[case.shape]["vocab_size"])
    model = load_shape(case.shape, device=device, dtype=dtype)
    texts = [" ".join(f"t{token}" for token in tokens) for tokens in _prompts(case, range(1000))]
    with tempfile.TemporaryDirectory() as folder, _quiet():
        config = trl.GRPOConfig(
            output_dir=folder, per_device_train_batch_size=case.prompts * case.group_size,
            num_generations=case.group_size, max_completion_length=case.new_tokens, max_steps=steps + 1,
            learning_rate=case.learning_rate, beta=0.0, use_cpu=device == "cpu", report_to=[], logging_steps=10**6,
            save_strategy="no", disable_tqdm=True, bf16=dtype == "bfloat16", gradient_checkpointing=checkpointing,
            loss_type="grpo", generation_kwargs={"min_new_tokens": case.new_tokens},
        )  # fmt: skip
        trainer = Timed(
            model=model, reward_funcs=varied_reward, args=config, processing_class=tokenizer, callbacks=[Clock()],
            train_dataset=datasets.Dataset.from_list([{"prompt": text} for text in texts]),
            peft_config=_peft_settings(case),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        _reset_peak(device)
        begun = time.perf_counter()
        trainer.train()
    seconds = min(after - before for before, after in itertools.pairwise(times))
    made = min(generating[1:])
    clock = _Clock(made, seconds - made, 0.0)
    return _figure("trl", case, clock, times[0] - begun, model, device, dtype)


def _peft_settings(case: StepCase) -> Any:
    if not case.lora_rank:
        return None
    return import_module("peft").LoraConfig(r=case.lora_rank, lora_alpha=32, target_modules="all-linear")


def varied_reward(completions: Sequence[str], **_: Any) -> list[float]:
    """Something cheap that differs from completion to completion."""
    return [float(len(set(completion.split()))) for completion in completions]


def number_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A word `t7` for each token: what a random model says is read as it was sampled."""
    words = {f"t{token}": token for token in range(vocabulary)}
    first, second = "t0", "t1"
    inner = Tokenizer(models.WordLevel(words, unk_token=first))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    make: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = make(
        tokenizer_object=inner, pad_token=first, eos_token=second, padding_side="left"
    )
    return tokenizer


def _prompts(case: StepCase, ordinals: Sequence[int]) -> list[tuple[int, ...]]:
    vocabulary = SHAPES[case.shape]["vocab_size"]
    return [
        tuple((ordinal * 7919 + place * 104_729) % (vocabulary - 2) + 2 for place in range(case.prompt_tokens))
        for ordinal in ordinals
    ]


def _figure(
    library: str, case: StepCase, clock: _Clock, first: float, model: Any, device: str, dtype: str
) -> StepFigure:
    completion_tokens = case.prompts * case.group_size * case.new_tokens
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if not model.config.tie_word_embeddings:
        parameters -= model.get_input_embeddings().weight.numel()  # rows are looked up, not multiplied
    arithmetic = 6 * parameters * case.tokens / clock.training / peak_arithmetic(device, dtype)
    on_gpu = torch.device(device).type == "cuda"
    return StepFigure(
        library, clock.total, clock.generating, clock.training, clock.publishing, completion_tokens / clock.total,
        torch.cuda.max_memory_allocated(device) if on_gpu else 0, arithmetic, first,
    )  # fmt: skip


@cache
def peak_arithmetic(device: str, dtype: str) -> float:
    """Operations per second that a large product reaches here."""
    size = 8192 if torch.device(device).type == "cuda" else 2048
    square = torch.ones(size, size, dtype=getattr(torch, dtype), device=device)
    seconds = []
    for _ in range(5):
        begun = _now(device)
        square @ square
        seconds.append(_now(device) - begun)
    return float(2 * size**3 / min(seconds))


def _now(device: str) -> float:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _reset_peak(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


class _quiet:  # noqa: N801 - used as a function is
    """Inside, nobody warns."""

    def __enter__(self) -> None:
        self._before = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        logging.disable(self._before)
