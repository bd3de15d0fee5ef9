"""What a request's body asks for: read with its types, and refused in words where it cannot be had."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..spelling import did_you_mean
from .refusals import Refusal

if TYPE_CHECKING:
    from ..data.sampling import Completion
    from ..environments.protocol import Message
    from .served_model import ServedModel

A = TypeVar("A", bound="Asked")

IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
     "request_id", "cache_salt", "priority")
)  # fmt: skip
"""Parameters that change nothing here, whatever they are."""

_NOT_SUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "presence_penalty": ((0,), "use repetition_penalty"),
    "frequency_penalty": ((0,), "use repetition_penalty"),
    "logit_bias": (({},), "no token's probability can be changed"),
    "top_logprobs": ((0,), "log-probabilities are those of the tokens that were sampled: leave it out, or give 0"),
    "prompt_logprobs": ((), "log-probabilities of a prompt come from /v1/completions, with echo and logprobs"),
    "best_of": ((1,), "use n, and choose among the completions"),
    "suffix": (("",), "nothing can be inserted before a text"),
    "ignore_eos": ((False,), "completions end at the model's end token"),
    "min_tokens": ((0,), "completions end at the model's end token"),
    "include_stop_str_in_output": ((False,), "a stop text is not part of the text; its tokens are among token_ids"),
    "skip_special_tokens": ((True,), "special tokens are not part of the text; they are among token_ids"),
    "spaces_between_special_tokens": ((True,), "special tokens are not part of the text"),
    "response_format": (({"type": "text"},), "output is not constrained: ask for the format in the prompt"),
    "parallel_tool_calls": ((True,), "output is not constrained: a message may call several tools"),
    "functions": (([],), "use tools"),
    "function_call": (("none",), "use tools"),
    "modalities": ((["text"],), "models read and write text"),
    "use_beam_search": ((False,), "completions are sampled"),
    "length_penalty": ((1,), "completions are sampled"),
    "add_generation_prompt": ((True,), "an answer begins by itself, unless the last message is the assistant's"),
    "chat_template": ((), "set tokenizer.chat_template in the model's folder"),
    "chat_template_kwargs": (({},), "set task.chat_template_kwargs when the model is served"),
}
"""Known parameters that are refused, but for these values, which say what is so anyhow; and what to do instead."""


Render: TypeAlias = "Callable[[Sequence[Message], Sequence[Mapping[str, Any]], ServedModel], tuple[int, ...]]"
"""What gives the tokens of a conversation with tools, for the model to answer."""


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class PromptGiven:
    """One prompt: its tokens, and the conversation that they are, if it is one."""

    tokens: tuple[int, ...]
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """A completion that is over, in its place among those of a request."""

    index: int
    prompt: PromptGiven
    completion: Completion
    seed: int
    echoed: Sequence[EchoedToken] | None = None
    """The prompt's tokens, where they are asked for with their log-probabilities."""
    tokens: list[int] = field(init=False)
    log_probs: list[float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", self.completion.tokens.tolist())
        object.__setattr__(self, "log_probs", self.completion.log_probs.tolist())


@dataclass(frozen=True, slots=True)
class EchoedToken:
    """A token of a prompt, and what the model thinks of it there."""

    token: int
    log_prob: float | None
    """None for the first."""
    likeliest: tuple[int, float] | None = None
    """The token that greedy sampling would have chosen there, and its log-probability, where that was looked at."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of one completion since the last piece."""

    index: int
    text: str
    tokens: Sequence[int]
    log_probs: Sequence[float]


class Asked(BaseModel):
    """What all routes have in common. Each route's own class says how it is answered."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    IGNORED: ClassVar[frozenset[str]] = IGNORED
    OBJECT: ClassVar[str]
    CHUNK: ClassVar[str]
    ID: ClassVar[str]

    model: str | None = None
    n: int = Field(1, ge=1, le=1024)
    max_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    stop: tuple[str, ...] = Field((), max_length=64)
    stop_token_ids: tuple[int, ...] = Field((), max_length=1024)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    @field_validator("stop", mode="before")
    @classmethod
    def _several_stops(cls, value: Any) -> Any:
        stops = (value,) if isinstance(value, str) else value
        if isinstance(stops, list | tuple) and not all(stops):
            raise ValueError("an empty text would end every completion: leave it out")
        return tuple(stops) if isinstance(stops, list) else stops

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _several_tokens(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @property
    def most_tokens(self) -> int | None:
        """Of a completion; None leaves it to the server."""
        return self.max_tokens

    @property
    def count(self) -> int:
        """How many completions are asked for."""
        return self.n

    @property
    def holds_text(self) -> bool:
        """Whether nothing can be said of a completion before it is over."""
        return False

    @property
    def shows_tokens(self) -> bool:
        """Whether an answer says something of each token."""
        return self.return_token_ids

    def given_sampling(self) -> dict[str, Any]:
        """The settings of sampling that the client gave."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return given | ({"top_k": 0} if given.get("top_k") == -1 else {})

    @property
    def scores_prompts(self) -> bool:
        """Whether the log-probabilities of prompts are asked for."""
        return False

    @property
    def names_likeliest(self) -> bool:
        """Whether the likeliest token is asked for at each place, beside the one that is there."""
        return False

    @abstractmethod
    def prompts(self, render: Render, model: ServedModel) -> list[PromptGiven]:
        """The prompts as tokens. This may take a while, and runs in a thread."""

    @abstractmethod
    def choice(self, finished: Finished, model: ServedModel) -> dict[str, Any]:
        """A completion, as one of the choices of an answer."""

    @abstractmethod
    def piece(self, piece: Piece, model: ServedModel) -> dict[str, Any]:
        """A piece of a completion, as the choice of a chunk."""

    @abstractmethod
    def last(self, finished: Finished, rest: Piece, model: ServedModel) -> dict[str, Any]:
        """The last chunk's choice of a completion, with what was not sent yet."""

    def said(self, finished: Finished, model: ServedModel) -> Mapping[str, Any] | None:
        """The message of a conversation that a completion is, as the client gets it."""
        return None

    def first(self, index: int) -> dict[str, Any] | None:
        """A choice that is sent before a completion begins."""
        return None

    def envelope(self, answer_id: str, prompts: Sequence[PromptGiven]) -> dict[str, Any]:
        """What an answer has beside its choices, and beside what those of all routes have."""
        return {}

    @classmethod
    def flat(cls, body: dict[str, Any]) -> dict[str, Any]:
        """A body with all parameters at its top."""
        return body


def read_asked(kind: type[A], raw: bytes) -> A:
    """What the bytes of a body ask for."""
    body = kind.flat(_read_object(raw))
    names = set(kind.model_fields)
    given = {}
    for name, value in body.items():
        if value is None or (name in kind.IGNORED and name not in names):
            continue
        if name not in names:
            _check_neutral(name, value, names)
            continue
        given[name] = value
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        wrong = "" if problem["type"] in ("missing", "value_error") else f", not {problem['input']!r:.80}"
        said = f"{place}: {message[:1].lower()}{message[1:]}{wrong}" if place else message
        raise Refusal(400, said, "invalid_value", place or None) from None


def _read_object(raw: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number in JSON")

    try:
        text = raw.decode("utf-8")
        body = json.loads(text, parse_constant=refuse)
        if "\\ud" in text.lower():
            json.dumps(body, ensure_ascii=False).encode("utf-8")  # half of a surrogate pair has no bytes
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}"[:300], "invalid_json") from None
    if not isinstance(body, dict):
        raise Refusal(400, 'the body is not an object: send {"model": ..., ...}', "invalid_json")
    return body


def _check_neutral(name: str, value: Any, names: set[str]) -> None:
    if name not in _NOT_SUPPORTED:
        near = did_you_mean(name, names) or f": known are {', '.join(sorted(names))}"
        raise Refusal(400, f"unknown parameter {name!r}{near}", "unknown_parameter", name)
    neutral, instead = _NOT_SUPPORTED[name]
    if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
        raise Refusal(400, f"{name} is not supported: {instead}", "unsupported_parameter", name)
