"""What an engine is: a stream of requests that share every step. What it is asked, what it answers, what it refuses."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..data.sampling import FinishReason, Sampling
from ..errors import ProaError, SettingError

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

    from .stop_strings import StopStrings


class EngineBusyError(ProaError):
    """Weights that an engine cannot take while it decodes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence that is wanted: what to continue, and how."""

    id: str
    """Its name in progress, for cancelling it, and for a request that continues it."""
    tokens: tuple[int, ...]
    """The prompt; of a request that continues another, what comes after that one's last sampled token."""
    seed: int
    sampling: Sampling
    version: int = 0
    """Of the weights that sample it."""
    group: str = ""
    """Requests of one group have the same prompt, which is computed once for all that wait at the same time."""
    stops: frozenset[int] = frozenset()
    """Tokens that end it besides the engine's own."""
    stop_strings: StopStrings | None = None
    """Texts that end it, those of its sampling. Engines need not look for them: whoever collects progress does, and
    cancels the request."""
    continues: str = ""
    """The id of an ended request of the same version that was kept, and that this one goes on from."""
    keep: bool = False
    """Whether another request may continue this one. It is kept until that comes, or until it is cancelled, and the
    weights that sampled it are kept with it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step added to a request."""

    id: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Of these tokens, in float32 at the sampling temperature (at 1 if greedy), over the whole vocabulary; without the
    repetition penalty."""
    version: int
    """Of the weights that sampled them."""
    finish_reason: FinishReason | None
    """None while it goes on."""


class Engine(Protocol):
    """Decodes a stream of requests over its own copy of a model's weights.

    What comes of a request follows from the weights, its tokens, its seed, its sampling, the chain of requests that it
    continues, and the settings of the engine. Where `is_independent`, not one bit depends on anything else: not on what
    else is decoded, on the order in which it came, or on when it got a row. Where not, that holds for the tokens and
    ends of requests that are submitted together, up to rounding.
    """

    @property
    def context_length(self) -> int:
        """The most tokens that a sequence may have."""
        ...

    @property
    def free(self) -> int:
        """How many more sequences can be taken in without one having to wait."""
        ...

    @property
    def is_independent(self) -> bool:
        """Whether the bits of a request depend on no other; tried when the engine was built."""
        ...

    @property
    def versions(self) -> Collection[int]:
        """Of the weights that it has now."""
        ...

    def submit(self, request: Request) -> None:
        """Take a request in. Refused at once, with a SettingError, is what can never be decoded."""
        ...

    def step(self) -> list[Progress]:
        """One more token of every sequence that is decoded; nothing if there is none."""
        ...

    def cancel(self, request_id: str) -> None:
        """Drop a request, whether it waits, runs or is kept; harmless if there is none."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Of each sequence's tokens but the first: the log-probability at temperature 1, computed as in decoding."""
        ...

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Take these weights, all of them or none: a ValueError says what is missing, unexpected or of another shape.

        The names are those of the Hugging Face model; a tensor that is tied under several names may be given under any
        of them. The only cast is to the engine's own dtype. With an EngineBusyError it refuses what it has no room for
        while it decodes with other weights, or keeps what they sampled.
        """
        ...

    def sleep(self) -> None:
        """Where nothing is decoded: give memory back until the next request."""
        ...


def is_engine(thing: object) -> TypeIs[Engine]:
    """Whether it is an engine, and not what makes one, or a name."""
    return not isinstance(thing, str) and not callable(thing)


def refuse_second(request: Request, under_way: Collection[str]) -> None:
    """Two requests of one name could not be told apart."""
    if request.id in under_way:
        raise SettingError(f"there is a request {request.id!r} already: give each request that is under way its own id")


def check_request(request: Request, *, context_length: int, vocabulary: int, continued: int = 0) -> None:
    """Refuse what cannot be generated as asked; `continued` is the length of what it continues."""
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
