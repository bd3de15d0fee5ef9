"""A run's weights, or a model's, in an engine of their own, to be served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ConfigError
from ..numerics import compute_alike
from ..policy.hub import local_folder
from ..rollouts import EngineStream, StreamUser
from ..serving import ServedModel
from ..spelling import did_you_mean
from ..tasks.template_date import pinned_to
from .automatic import resolve_automatic
from .evaluate import load_folder
from .given import Given
from .start import template_start
from .weights import MODEL_NAME, FoundWeights, model_weights, run_of, run_weights

TAKEN = ("engine", "model", "threads", "deterministic", "task.chat_template", "task.chat_template_kwargs")
"""Settings, or sections, that affect serving."""


@dataclass(frozen=True)
class OpenedModel:
    """A model ready to be served, and the stream that generates."""

    model: ServedModel
    weights: FoundWeights
    stream: EngineStream
    user: StreamUser
    device: str


@contextmanager
def opened(
    source: str, *, name: str | None, checkpoint: str | None, flags: Sequence[str], max_new_tokens: int
) -> Iterator[OpenedModel]:
    """A run, a checkpoint, a model or a name of the Hub, ready to generate. `flags` are `--key value`."""
    weights = _find(local_folder(source), checkpoint, flags)
    # Templates write the same date as in the run that trained the model.
    with nullcontext() if weights.trained_by is None else pinned_to(template_start(weights.trained_by)):
        config = resolve_automatic(weights.config, Given())
        compute_alike(config.threads, device=config.model.device, deterministic=config.deterministic)
        policy = load_folder(weights.folder, config)
        engine = config.engine.make(policy.model, policy.end_ids)
        engine.load(policy.whole(), weights.version)
        embeddings: Any = policy.model.get_input_embeddings()
        model = ServedModel(
            name or _default_name(source, weights),
            policy.tokenizer,
            end_ids=policy.end_ids,
            context_length=engine.context_length,
            vocabulary=embeddings.weight.shape[0],
            max_new_tokens=max_new_tokens,
        )
        del policy, embeddings  # the engine has its own copy
        stream = EngineStream(engine, name="served")
        try:
            user = StreamUser(stream, "served", weights.version, lambda: None)
            yield OpenedModel(model, weights, stream, user, config.engine.device or config.model.device)
        finally:
            stream.close("the server is shutting down")


def check_flags(flags: Sequence[str], own: Sequence[str]) -> None:
    """Raise for a flag that is neither the verb's own nor a setting that affects serving."""
    for flag in flags:
        key = flag.removeprefix("--").partition("=")[0].replace("-", "_")
        if flag.startswith("--") and not any(key == one or key.startswith(f"{one}.") for one in TAKEN):
            near = did_you_mean(f"--{key}", [f"--{one}" for one in (*own, *TAKEN)])
            takes = near or f": settings that it takes begin with {', '.join(TAKEN)}"
            raise ConfigError(f"proa serve has no flag {flag.partition('=')[0]}{takes}")


def _find(folder: Path, checkpoint: str | None, flags: Sequence[str]) -> FoundWeights:
    found = run_of(folder, checkpoint)
    if found is None:
        return model_weights(folder, checkpoint, flags)
    run, checkpoint = found
    if checkpoint is None and not (run / "checkpoints.jsonl").exists() and (run / MODEL_NAME).is_dir():
        return model_weights(run / MODEL_NAME, None, flags)
    return run_weights(run, checkpoint, flags)


def _default_name(source: str, weights: FoundWeights) -> str:
    """The name of the run, of the model on the Hub, or of the folder."""
    if weights.trained_by is not None:
        return weights.trained_by.resolve().name
    return Path(source).resolve().name if Path(source).exists() else source
