"""The interface of engines: requests, progress, and checks of requests. All requests share every step."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..data.sampling import FinishReason, Sampling
from ..errors import ProaError, SettingError

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

    from .stop_strings import StopStrings


class EngineBusyError(ProaError):
    """An engine cannot load weights while it decodes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate: its prompt, and how to sample."""

    id: str
    """Identifies it in progress, for `cancel`, and for a request that continues it."""
    tokens: tuple[int, ...]
    """The prompt; for a request that continues another, the tokens after that one's last sampled token."""
    seed: int
    sampling: Sampling
    version: int = 0
    """The version of the weights that sample it."""
    group: str = ""
    """Requests of one group have the same prompt, which is computed once for all that wait at the same time."""
    stops: frozenset[int] = frozenset()
    """Tokens that end it besides the engine's own."""
    stop_strings: StopStrings | None = None
    """Strings that end it, those of its sampling. Engines need not look for them: the code that collects progress does,
    and cancels the request."""
    continues: str = ""
    """The id of a kept request of the same version that this one continues."""
    keep: bool = False
    """Whether another request may continue this one. It is kept, with its weights, until that request comes or it is
    cancelled."""


class Progress(NamedTuple):
    """The tokens that one step added to a request."""

    id: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Log-probabilities of these tokens, in float32 at the sampling temperature (at 1 if greedy), over the whole
    vocabulary, without the repetition penalty."""
    version: int
    """The version of the weights that sampled them."""
    finish_reason: FinishReason | None
    """None while the request continues."""


class Engine(Protocol):
    """Decodes a stream of requests over its own copy of a model's weights.

    The result of a request is determined by the weights, its tokens, its seed, its sampling, the chain of requests that
    it continues, and the settings of the engine. If `is_independent`, no bit depends on anything else: not on what else
    is decoded, on the order of requests, or on when it got a row. Otherwise this holds up to rounding, for requests
    that are submitted together.
    """

    @property
    def context_length(self) -> int:
        """The most tokens that a sequence may have."""
        ...

    @property
    def free(self) -> int:
        """How many more sequences can be submitted without waiting for a row."""
        ...

    @property
    def is_independent(self) -> bool:
        """Whether the bits of a request depend on no other, as found by trials when the engine was built."""
        ...

    @property
    def versions(self) -> Collection[int]:
        """The versions of the weights that it has now."""
        ...

    def submit(self, request: Request) -> None:
        """Add a request. Raises SettingError for one that can never be decoded."""
        ...

    def step(self) -> list[Progress]:
        """Decode one more token of every sequence; empty if there is none."""
        ...

    def cancel(self, request_id: str) -> None:
        """Drop a request that waits, runs or is kept; does nothing if there is none."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The log-probabilities of each sequence's tokens but the first, at temperature 1, computed as in decoding."""
        ...

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Load all of these weights, or none: ValueError names those that are missing, unexpected or of another shape.

        The names are those of the Hugging Face model; a tied tensor may be given under any of its names. The only cast
        is to the engine's own dtype. Raises EngineBusyError if there is no room beside other weights whose sequences
        are decoded or kept.
        """
        ...

    def sleep(self) -> None:
        """Free memory until the next request, if nothing is decoded."""
        ...


def is_engine(thing: object) -> TypeIs[Engine]:
    """Whether it is an engine, and not a factory or a name."""
    return not isinstance(thing, str) and not callable(thing)


def refuse_second(request: Request, under_way: Collection[str]) -> None:
    """Raise if a request with this id is under way."""
    if request.id in under_way:
        raise SettingError(f"there is a request {request.id!r} already: give each request that is under way its own id")


def check_request(request: Request, *, context_length: int, vocabulary: int, continued: int = 0) -> None:
    """Raise if a request cannot be generated; `continued` is the length of the request that it continues."""
    sampling, length = request.sampling, len(request.tokens) + continued
    if sampling.max_new_tokens < 1:
        raise SettingError(f"sampling.max_new_tokens is {sampling.max_new_tokens}: at least 1 token is sampled")
    if not sampling.temperature >= 0:
        raise SettingError(f"sampling.temperature is {sampling.temperature}: write 0 for greedy, or a positive number")
    if not 0 < sampling.top_p <= 1:
        raise SettingError(
            f"sampling.top_p is {sampling.top_p}: write 1 to keep all tokens, or a number between 0 and 1"
        )
    if sampling.top_k < 0:
        raise SettingError(f"sampling.top_k is {sampling.top_k}: write 0 to keep all tokens, or a positive number")
    if not 0 <= sampling.min_p <= 1:
        raise SettingError(
            f"sampling.min_p is {sampling.min_p}: write 0 to keep all tokens, or a number between 0 and 1"
        )
    if not 0 < sampling.repetition_penalty < math.inf:
        raise SettingError(
            f"sampling.repetition_penalty is {sampling.repetition_penalty}: write 1 for none, or a positive number"
        )
    if sampling.stop and request.stop_strings is None:
        raise SettingError(
            f"request {request.id} has sampling.stop and no tokenizer to find these texts with: give it "
            "stop_strings=StopStrings(sampling.stop, tokenizer)"
        )
    if length == 0:
        raise SettingError(f"request {request.id} has an empty prompt: there is nothing to continue")
    if length + sampling.max_new_tokens > context_length:
        raise SettingError(
            f"request {request.id} has a prompt of {length} tokens; with max_new_tokens={sampling.max_new_tokens} "
            f"that is {length + sampling.max_new_tokens}, and the model's context is {context_length}: "
            "shorten the prompt or lower sampling.max_new_tokens"
        )
    if request.tokens and (min(request.tokens) < 0 or max(request.tokens) >= vocabulary):
        raise SettingError(f"request {request.id} has tokens outside the model's vocabulary of {vocabulary}")
