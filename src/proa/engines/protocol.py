"""What every engine is asked, what it answers, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import SettingError

if TYPE_CHECKING:
    import torch

    from ..data.sampling import Completion, Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, and the seed of each sample that is wanted of it."""

    tokens: tuple[int, ...]
    seeds: tuple[int, ...]


class Engine(Protocol):
    """Samples completions from its own copy of a model's weights.

    A sample follows from the weights, its prompt, its seed and the sampling settings: whatever else is in
    the call changes at most the last bits of its log-probabilities. The same call gives the same bits on
    one CPU thread. Tensors that come out are on the CPU and own their memory.
    """

    @property
    def context_length(self) -> int:
        """The most tokens that a prompt and its completion may have together."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """One list for each request, one completion for each of its seeds, in order."""
        ...

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace all weights, or none: a ValueError says what is missing, unexpected or of another shape.

        The names are those of the Hugging Face model; a tensor that is tied under several names may be
        given under any of them. The only cast is to the engine's own dtype.
        """
        ...


def check_call(requests: Sequence[Request], sampling: Sampling, *, context_length: int, vocabulary: int) -> None:
    """Refuse, before anything is computed, what cannot be generated as asked."""
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
    for index, request in enumerate(requests):
        length = len(request.tokens)
        if length == 0:
            raise SettingError(f"request {index} has an empty prompt: there is nothing to continue")
        if length + sampling.max_new_tokens > context_length:
            raise SettingError(
                f"request {index} has a prompt of {length} tokens; with max_new_tokens={sampling.max_new_tokens} "
                f"that is {length + sampling.max_new_tokens}, and the model's context is {context_length}: "
                "shorten the prompt or lower sampling.max_new_tokens"
            )
        if min(request.tokens) < 0 or max(request.tokens) >= vocabulary:
            raise SettingError(f"request {index} has tokens outside the model's vocabulary of {vocabulary}")
