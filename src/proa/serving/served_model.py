"""The model of an endpoint: its name, its tokenizer and its limits; conversations and texts as tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..rollouts.conversation import WHERE, Conversations
from ..spelling import did_you_mean
from ..tasks.prompts import text_tokens
from ..tasks.task import TaskError
from .refusals import Refusal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..environments.protocol import Message

MAX_NEW_TOKENS = 1024
"""Tokens of a completion where a client does not say how many."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


class ServedModel:
    """What is served."""

    def __init__(
        self,
        name: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        end_ids: Sequence[int],
        context_length: int,
        vocabulary: int,
        max_new_tokens: int = MAX_NEW_TOKENS,
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.vocabulary = vocabulary
        """How many tokens there are."""
        self.max_new_tokens = max_new_tokens
        self.created = int(time.time())
        self._words = Conversations(tokenizer, end_ids)

    def check_name(self, name: str | None) -> None:
        if name is not None and name != self.name:
            near = did_you_mean(name, [self.name]) or f": it is {self.name!r}"
            raise Refusal(404, f"there is no model {name!r} here{near}", "model_not_found", "model")

    @property
    def card(self) -> dict[str, Any]:
        """What a list of models says of it."""
        return {
            "id": self.name, "object": "model", "created": self.created, "owned_by": "proa",
            "max_model_len": self.context_length,
        }  # fmt: skip

    # -- prompts -------------------------------------------------------------------------------------

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """A text to be continued."""
        tokens = text_tokens(text, self.tokenizer)
        if not tokens:
            raise Refusal(400, "the prompt has no tokens: give at least one character", "invalid_value", "prompt")
        return tokens

    def check_tokens(self, tokens: Sequence[int], param: str) -> tuple[int, ...]:
        """Tokens that a client gave."""
        if not tokens:
            raise Refusal(400, f"{param} has no tokens: give at least one", "invalid_value", param)
        if min(tokens) < 0 or max(tokens) >= self.vocabulary:
            raise Refusal(
                400, f"{param} has tokens that the model does not have: they are 0 to {self.vocabulary - 1}",
                "invalid_value", param,
            )  # fmt: skip
        return tuple(tokens)

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """A conversation as the chat template writes it, ready for the model's next message. Where the last one is the
        assistant's, it is continued."""
        self._check_tools(tools)
        with _blaming_the_request():
            return self._words.prompt([template_message(message) for message in messages], tools)

    def after(
        self,
        before: Sequence[Message],
        answer: Message,
        sampled: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[int, ...] | None:
        """What comes between the tokens of an answer and the model's next message, if a conversation goes on from
        exactly these; None where the template writes what was before differently now."""
        with _blaming_the_request():
            shown = [template_message(message) for message in before]
            later = [template_message(message) for message in new]
            return self._words.after(shown, template_message(answer), sampled, later, tools)

    def message(
        self, tokens: Sequence[int], tools: Sequence[Mapping[str, Any]], prompt: Sequence[int]
    ) -> dict[str, Any]:
        """What the model said after a prompt, as a message of the assistant, with the calls of tools in it."""
        return self._words.message(tokens, tools, prompt=prompt)

    @property
    def has_template(self) -> bool:
        """Whether it is known how conversations are written."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def _check_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        if tools and self.has_template and not self._words.writes_tools:
            raise Refusal(
                400,
                "the model's chat template does not write tools, so the model would not know of them: describe them "
                "in a message instead",
                "unsupported_parameter",
                "tools",
            )

    @property
    def writes_own_format(self) -> bool:
        """Whether the tokenizer says how messages are read from the model's tokens."""
        return bool(getattr(self.tokenizer, "response_template", None))

    def token_text(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))


@contextmanager
def _blaming_the_request() -> Iterator[None]:
    """What a template refuses is the client's to change."""
    try:
        yield
    except TaskError as error:
        raise Refusal(400, str(error).removeprefix(f"{WHERE}: "), "invalid_value", "messages") from None


def read_messages(messages: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """The messages of a request, refused where they are none."""
    if not messages:
        raise Refusal(400, "messages is empty: give at least one", "invalid_value", "messages")
    for place, message in enumerate(messages):
        where = f"messages.{place}"
        if not isinstance(message, dict):
            raise Refusal(400, f"{where} is not an object with a role and content", "invalid_value", where)
        role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
        if role not in _ROLES:
            near = did_you_mean(str(role), _ROLES) or f": roles are {', '.join(_ROLES)}"
            raise Refusal(400, f"{where}: there is no role {role!r:.40}{near}", "invalid_value", f"{where}.role")
        if content is None and not (role == "assistant" and calls):
            raise Refusal(400, f"{where} has no content", "invalid_value", f"{where}.content")
        if not isinstance(content, str | None) and not _is_text_in_parts(content):
            raise Refusal(
                400, f"{where}: content is neither text nor a list of parts with text; models read text only",
                "invalid_value", f"{where}.content",
            )  # fmt: skip
        if calls is not None and not (isinstance(calls, list) and all(map(_is_call, calls))):
            raise Refusal(
                400, f'{where}: tool_calls is not a list of {{"function": {{"name": ..., "arguments": ...}}}}',
                "invalid_value", f"{where}.tool_calls",
            )  # fmt: skip
    return tuple(messages)


def _is_text_in_parts(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
        for part in content
    )


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def template_message(message: Message) -> dict[str, Any]:
    """A message of a client as chat templates take it: arguments of calls as values, not as JSON."""
    shown = {key: value for key, value in message.items() if key in ("role", "content") or value not in (None, [])}
    if shown["role"] == "developer":  # a name of OpenAI that templates do not know
        shown["role"] = "system"
    if "tool_calls" in shown:
        shown["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"].get("arguments"))}}
            for call in shown["tool_calls"]
        ]
    return shown


def _arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return {} if given is None else given
    try:
        found = json.loads(given)
    except ValueError:
        return given
    return found if isinstance(found, dict) else given
