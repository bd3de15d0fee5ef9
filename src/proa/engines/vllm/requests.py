"""Requests as vLLM takes them, and its outputs as progress."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...data.sampling import FinishReason, Sampling
from ..protocol import Progress, Request

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..sequences import SamplingRule

ASKED = "proa"
"""Under which name vLLM carries what is asked to where tokens are chosen."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What chooses the tokens of a request."""

    seed: int
    sampling: Sampling
    forced: tuple[int, ...] = ()
    """Tokens that are not sampled but given, to be scored."""

    @property
    def settings(self) -> SamplingRule:
        """What decides how a token is chosen from logits."""
        one = self.sampling
        return one.temperature, one.top_p, one.top_k, one.min_p, one.repetition_penalty


def sampling_params(request: Request, end_ids: Collection[int]) -> Any:
    """Of vLLM's own settings only those that end a request: tokens are chosen by Proa's rule."""
    asked = Asked(request.seed, replace(request.sampling, stop=()))
    return _params(asked, request.sampling.max_new_tokens, sorted({*end_ids, *request.stops}))


def scoring_params(tokens: Sequence[int]) -> Any:
    """To score these tokens, which come after what is given as the prompt."""
    forced = tuple(tokens)
    return _params(Asked(0, Sampling(), forced), len(forced), [])


def _params(asked: Asked, most: int, stops: list[int]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=most, stop_token_ids=stops, ignore_eos=True, detokenize=False, logprobs=0, seed=None,
        output_kind=RequestOutputKind.DELTA, extra_args={ASKED: asked},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step of vLLM added to a request."""

    id: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason | None

    @property
    def is_finite(self) -> bool:
        """Whether its log-probabilities are numbers."""
        return all(map(math.isfinite, self.log_probs))

    def progress(self, version: int) -> Progress:
        """The same as an engine of Proa says it."""
        if not self.is_finite:
            raise FloatingPointError("the engine's logits are not finite: the weights it was given are damaged")
        return Progress(self.id, self.tokens, self.log_probs, version, self.finish_reason)


def step_output(output: Any) -> StepOutput:
    """One of vLLM's outputs."""
    [completion] = output.outputs
    tokens = tuple(completion.token_ids)
    log_probs = tuple(
        of_token[token].logprob for token, of_token in zip(tokens, completion.logprobs or (), strict=True)
    )
    return StepOutput(output.request_id, tokens, log_probs, _reason(completion.finish_reason))


def _reason(reason: str | None) -> FinishReason | None:
    if reason is None:
        return None
    if reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a request for a reason of its own: {reason}")
    return "stop" if reason == "stop" else "length"
