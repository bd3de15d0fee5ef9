"""What `proa doctor` tries, in a child process: what crashes or hangs here takes nothing else with it.

A trial is a function of its settings that yields what it finds, bit by bit: what was found before a crash is kept.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ..engines import Engine
    from ..policy.policy import Policy

Found: TypeAlias = dict[str, Any]
DOING = "doing"
"""The key under which a trial says what it is about to do, for those who ask why it went no further."""

ROWS = (1, 16, 64)
"""Sequences at once, of which the speed is measured."""
PROMPT_TOKENS = 32
NEW_TOKENS = 64
ROUND_SECONDS = 2.5
"""After which no further step of a measurement is begun."""
_PROBES = 4


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """What is tried, and on what."""

    model: str
    """A folder, or one of the shapes with random weights."""
    device: str
    dtype: str
    """`auto` is what a run would take."""
    threads: int


def main(descriptor: int) -> None:
    """In the child: the trials that lines over the socket ask for; each thing found is a line back."""
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rw", encoding="utf-8") as lines:
        common = json.loads(lines.readline())
        log = os.open(common["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for printed in (1, 2):  # what libraries print here is not for the terminal
            os.dup2(log, printed)
        while asked := lines.readline():
            trial = json.loads(asked)
            for found in _outcome(trial["trial"], TrialSettings(**common["settings"]), trial["arguments"]):
                lines.write(json.dumps(found) + "\n")
                lines.flush()


def _outcome(trial: str, settings: TrialSettings, arguments: Mapping[str, Any]) -> Iterator[Found]:
    """What a trial finds, with its end: `done`, or an `error`, which is the user's to mend where it is `refused`."""
    try:
        yield {DOING: "importing torch and transformers"}
        import torch

        torch.set_num_threads(settings.threads)
        yield from TRIALS[trial](settings, **arguments)
        yield {"done": True}
    except Exception as error:  # a trial may raise anything: that is what it found
        from ..errors import SettingError

        if isinstance(error, SettingError | ImportError | NotImplementedError):
            yield {"error": str(error), "refused": True}
        else:
            yield {"error": f"{type(error).__name__}: {error}"}


# -- the model and its trainer -----------------------------------------------------------------------


def try_training(settings: TrialSettings) -> Iterator[Found]:
    """What the model is; and how fast a gradient is computed, which is most of a training step."""
    from ..bench.shapes import SHAPES
    from ..engines import ENGINES
    from ..policy.models import outline_model

    device, dtype = _machine(settings)
    yield {"known_engines": list(ENGINES.names())}
    yield {"device": device, "dtype": dtype, DOING: "reading the model's configuration"}
    outline = outline_model(SHAPES.get(settings.model, settings.model))
    config: Any = outline.config
    parameters = sum(parameter.numel() for parameter in outline.parameters())
    yield {"parameters": parameters, "architecture": type(outline).__name__, "model_type": config.model_type}
    need, available = 8 * parameters, _available_memory(device)
    yield {"memory_needed": need, "memory_available": available}
    if available is not None and need > available:
        yield {"error": f"weights and gradients take {_gib(need)}, and {_gib(available)} are free", "refused": True}
        return
    yield {DOING: "loading the model"}
    policy = _policy(settings)
    yield {DOING: "computing a gradient"}
    yield {"tokens_per_second": _training_speed(policy, config.vocab_size)}


def _training_speed(policy: Policy, vocabulary: int) -> float:
    """Tokens per second of a forward and a backward pass: the best of some."""
    import torch

    from ..bench.rollout import synchronize
    from ..data.experience import BufferItem, merge
    from ..model_shape import context_length

    length = sum(_lengths(context_length(policy.model.config) or sys.maxsize))
    tokens_BS = _texts(vocabulary, 8, length)
    items = [
        BufferItem(tokens_S, torch.zeros(length - 1), attention_mask=torch.ones(length).bool())
        for tokens_S in tokens_BS
    ]  # fmt: skip
    batch = merge(items)
    batch.to_device(policy.model.device)
    best, begun = 0.0, time.perf_counter()
    for _ in range(4):
        synchronize(policy.model.device)
        before = time.perf_counter()
        policy.statistics(batch, temperature=1.0).log_probs_BA.mean().neg().backward()  # type: ignore[no-untyped-call]
        synchronize(policy.model.device)
        best = max(best, tokens_BS.numel() / (time.perf_counter() - before))
        if time.perf_counter() - begun > 2 * ROUND_SECONDS:
            break
    return best


# -- the device --------------------------------------------------------------------------------------


def measure_device(settings: TrialSettings) -> Iterator[Found]:
    """What torch sees of the device, the bandwidth of its memory, and the speed of a product."""
    import torch

    from ..bench.rollout import memory_bandwidth

    device, _ = _machine(settings)
    yield {"name": _device_name(device), "torch_device_support": _support(), DOING: "copying memory"}
    yield {"bandwidth": memory_bandwidth(device), DOING: "multiplying in float32"}
    yield {"products": _product_speed(device, torch.float32)}


def measure_half(settings: TrialSettings) -> Iterator[Found]:
    """The speed of a product in bfloat16, which some processors do not have: there it is slow, or a crash."""
    import torch

    device, _ = _machine(settings)
    yield {DOING: "multiplying in bfloat16"}
    yield {"products": _product_speed(device, torch.bfloat16)}


def _device_name(device: str) -> str:
    import platform

    import torch

    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {_gib(torch.cuda.get_device_properties(device).total_memory)}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{name or platform.processor() or platform.machine()}, {os.cpu_count()} processors"


def _support() -> str:
    """What torch can compute on here."""
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU only"
    cpu = f"CPU with {torch.backends.cpu.get_cpu_capability()}"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return f"built for {build}, {torch.cuda.device_count()} GPUs of capability {major}.{minor}, {cpu}"
    return f"built for {build}, {cpu}" + ("" if build == "CPU only" else ", no usable GPU")


def _product_speed(device: str, dtype: Any) -> float:
    """Operations per second that a large product reaches."""
    import torch

    from ..bench.rollout import synchronize

    size = 8192 if torch.device(device).type == "cuda" else 1024
    square = torch.ones(size, size, dtype=dtype, device=device)
    best, begun = 0.0, time.perf_counter()
    while time.perf_counter() - begun < 0.7 or not best:
        synchronize(device)
        before = time.perf_counter()
        square @ square
        synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - before))
    return best


# -- an engine ---------------------------------------------------------------------------------------


def try_engine(settings: TrialSettings, kind: str) -> Iterator[Found]:
    """Whether an engine works with this model, how far its log-probabilities are from the trainer's, and its speed."""
    from ..engines import build_engine

    yield {DOING: "loading the model"}
    policy = _policy(settings)
    yield {DOING: "building the engine"}
    begun = time.perf_counter()
    engine = build_engine(kind, policy.model, end_ids=())
    yield {"seconds_to_build": time.perf_counter() - begun, "is_independent": engine.is_independent}
    yield {DOING: "sampling"}
    vocabulary = int(policy.model.config.vocab_size)
    sampled = _sampled(engine, vocabulary)
    yield {DOING: "scoring tokens beside the trainer"}
    yield asdict(_parity(engine, policy, sampled))
    yield {DOING: "measuring its speed"}
    for rows in ROWS:
        yield {"tokens_per_second": {str(rows): _sampling_speed(engine, vocabulary, rows)}}


@dataclass(frozen=True, slots=True)
class Parity:
    """How far the log-probabilities of engine and trainer are apart, over some sampled tokens; as the probe has it."""

    gap_mean: float
    gap_largest: float
    gap_allowed: float
    gap_tokens: int


def _parity(engine: Engine, policy: Policy, sequences: list[tuple[int, ...]]) -> Parity:
    import torch

    from ..roles.probe import Probe, allowed_gap

    probe = Probe.of(policy, sequences)
    theirs = torch.tensor([value for row in probe.log_probs for value in row])
    gaps = (torch.cat(engine.score(probe.sequences)).float() - theirs).abs()
    allowed = allowed_gap(probe.dtype, getattr(engine, "dtype", None))
    return Parity(float(gaps.mean()), float(gaps.max()), allowed, gaps.numel())


def _sampled(engine: Engine, vocabulary: int) -> list[tuple[int, ...]]:
    """Short prompts, with what the engine makes of them."""
    from ..data.sampling import Sampling
    from ..engines import Request, generate

    length, new_tokens = _lengths(engine.context_length, 8, 24)
    sampling = Sampling(max_new_tokens=new_tokens)
    prompts = [tuple(prompt) for prompt in _texts(vocabulary, _PROBES, length).tolist()]
    requests = [Request(f"probe {seed}", one, seed, sampling) for seed, one in enumerate(prompts)]
    completions = generate(engine, requests)
    return [(*prompt, *made.tokens.tolist()) for prompt, made in zip(prompts, completions, strict=True)]


def _sampling_speed(engine: Engine, vocabulary: int, rows: int) -> float:
    """Tokens per second with so many sequences at once, prompts included; what is not sampled in time is dropped."""
    from ..data.sampling import Sampling
    from ..engines import Request

    length, new_tokens = _lengths(engine.context_length)
    sampling = Sampling(max_new_tokens=new_tokens)
    prompts = [tuple(prompt) for prompt in _texts(vocabulary, rows, length).tolist()]
    requests = [Request(f"{rows} {seed}", one, seed, sampling) for seed, one in enumerate(prompts)]
    running, tokens, begun = {request.id for request in requests}, 0, time.perf_counter()
    for request in requests:
        engine.submit(request)
    while running and time.perf_counter() - begun < ROUND_SECONDS:
        for progress in engine.step():
            tokens += len(progress.tokens)
            if progress.finish_reason is not None:
                running.discard(progress.id)
    seconds = time.perf_counter() - begun
    for name in running:
        engine.cancel(name)
    while engine.step():  # what was under way when it was cancelled
        pass
    return tokens / seconds


# -- what several of them need -----------------------------------------------------------------------


def _machine(settings: TrialSettings) -> tuple[str, str]:
    """The device and the dtype that a run would take."""
    import torch

    from ..policy.models import check_dtype
    from ..run.loading import check_device

    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device, "--device")
    if settings.dtype != "auto":
        check_dtype(settings.dtype)
    return device, ("float32" if device == "cpu" else "bfloat16") if settings.dtype == "auto" else settings.dtype


def _policy(settings: TrialSettings) -> Policy:
    from ..bench.rollout import load_shape
    from ..policy.lora_policy import as_policy

    device, dtype = _machine(settings)
    return as_policy(load_shape(settings.model, device=device, dtype=dtype))


def _lengths(context: int, prompt: int = PROMPT_TOKENS, new: int = NEW_TOKENS) -> tuple[int, int]:
    """Of a prompt and of what is sampled after it: shorter where the model's context is."""
    prompt = min(prompt, max(1, context // 3))
    return prompt, min(new, context - prompt)


def _texts(vocabulary: int, count: int, length: int) -> Any:
    """Random tokens, each row its own."""
    from ..model_trials import trial_tokens

    return trial_tokens(vocabulary, count, length)


def _available_memory(device: str) -> int | None:
    """Bytes that can be taken without pushing others out; None where nobody says."""
    import torch

    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with Path("/proc/meminfo").open(encoding="utf-8") as lines:
            return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
    except OSError:
        return None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


TRIALS: dict[str, Callable[..., Iterator[Found]]] = {
    "training": try_training, "device": measure_device, "half": measure_half, "engine": try_engine,
}  # fmt: skip
