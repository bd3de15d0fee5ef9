"""Conversations as tokens: what a model is given for its next turn, and whether that goes on exactly where it ended."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..engines.stop_strings import StopStrings
from ..environments.tool_calls import parse_message, special_texts
from ..tasks.prompts import template_options, template_text, text_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..environments import Message

log = logging.getLogger("proa.rollouts")

WHERE = "a conversation with an environment"
_FENCE = "\uffff"
"""No character of any text. Where it stands, tokenising stops and begins again, so that no token spans it."""
_SOME_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up_entry",
        "description": "Looks up.",
        "parameters": {"type": "object", "properties": {}},
    },
}


class Conversations:
    """Renders conversations through a tokenizer's chat template; where it has none, contents follow one another.

    A turn goes on from the tokens before it only where the template leaves all that was said as it was. What the model
    said is never rendered: its tokens stay those that were sampled, and only what comes after them is made of text.

    What tools and environments answer is text, whatever it says: `<|im_end|>` in a page that a tool read is spelt in
    ordinary tokens, and ends nobody's message.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_ids: Sequence[int], *, system_prompt: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._has_template = bool(getattr(tokenizer, "chat_template", None))
        self._ends = {token: self._decode([token]) for token in end_ids}
        self._control = _control_texts(tokenizer)
        self._system_prompt = system_prompt
        self._has_warned = False
        self._lock = threading.Lock()  # fast tokenizers are not thread-safe

    def stop_strings(self, texts: Sequence[str]) -> StopStrings | None:
        return StopStrings(texts, self._tokenizer) if texts else None

    def begin(self, messages: Sequence[Message]) -> list[Message]:
        """The messages of a trajectory, with the run's system prompt before them where they have none."""
        has_one = bool(messages) and messages[0].get("role") in ("system", "developer")
        first = [] if has_one or not self._system_prompt else [{"role": "system", "content": self._system_prompt}]
        return [*first, *messages]

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """All tokens that a model is given for these messages."""
        with self._lock:
            if tools and not self.writes_tools:
                self._warn_of_tools(tools)
            text = self._render(messages, tools)
            if not self._has_template:
                first, *rest = text.split(_FENCE)
                return (*text_tokens(first, self._tokenizer), *self._encode(_FENCE.join(rest)))
            return self._encode(text)

    @cached_property
    def writes_tools(self) -> bool:
        """Whether the model is told of tools: whether the chat template writes them."""
        if not self._has_template:
            return False
        asked = [{"role": "user", "content": "?"}]
        return self._render(asked, [_SOME_TOOL]) != self._render(asked, [])

    def _warn_of_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        why = "the chat template does not write tools" if self._has_template else "the tokenizer has no chat template"
        names = ", ".join(str(tool.get("function", tool).get("name", "")) for tool in tools)
        log.warning(
            "%s, so the model is not told of %s: describe them in the prompt (task.system_prompt), or give a template "
            "that writes them (task.chat_template)",
            why, names,
        )  # fmt: skip

    def message(
        self, tokens: Sequence[int], tools: Sequence[Mapping[str, Any]] = (), *, prompt: Sequence[int] = ()
    ) -> dict[str, Any]:
        """What the model said after a prompt, as the assistant's message."""
        with self._lock:
            return parse_message(tokens, self._tokenizer, tools, prefix=prompt)

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens without special ones, for people and rewards."""
        with self._lock:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def after(
        self,
        before: Sequence[Message],
        answer: Message,
        sampled: Sequence[int],
        new: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...] | None:
        """The tokens that come between what the model sampled and its next turn: the rest of its own message, as the
        template ends one, the new messages, and the beginning of its next.

        None where the template says of what came before something else now, as those do that take out old thoughts:
        then the next turn's prompt is rendered whole, and begins a row of its own.
        """
        with self._lock:
            if not self._has_template:
                return self._encode_after(sampled, self._render(new, tools))
            prompted = self._render(before, tools)
            said = self._render([*before, answer], tools, begins_turn=False)
            whole = self._render([*before, answer, *new], tools)
            if not (said.startswith(prompted) and whole.startswith(said)):
                return None
            rest = self._after_the_words(said[len(prompted) :], sampled[-1])
            return None if rest is None else self._encode_after(sampled, rest + whole[len(said) :])

    def _after_the_words(self, message: str, last: int) -> str | None:
        """What a template writes after the model's last token, in a message of the model's."""
        end = self._ends.get(last)
        if end is not None:  # the model ended the message itself
            _, found, rest = message.rpartition(end)
            return rest if found else None
        places = [place for end in self._ends.values() if (place := message.rfind(end)) >= 0]
        return message[max(places) :] if places else None

    def _encode_after(self, sampled: Sequence[int], text: str) -> tuple[int, ...]:
        """A text that follows a token. Tokenizers that begin every text with a space must not do so here."""
        end = self._ends.get(sampled[-1], "")
        tokens = self._encode(end + text)
        if end and tokens[:1] == (sampled[-1],):
            return tokens[1:]
        return self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(
            token
            for piece in text.split(_FENCE)
            for token in self._tokenizer.encode(piece, add_special_tokens=False)
        )  # fmt: skip

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, begins_turn: bool = True
    ) -> str:
        """The text of messages, with a fence in every control token that somebody else than the template wrote."""
        messages = self._fenced(messages)
        if not self._has_template:
            return "".join(str(message.get("content") or "") for message in messages)
        options = template_options(messages) if begins_turn else {}
        return template_text(messages, self._tokenizer, options, where=WHERE, tools=tools)

    def _fenced(self, messages: Sequence[Message]) -> list[Message]:
        """What was answered to the model: all that follows its first message, but for its own. Without a template only
        what tools said: an environment writes the format then."""
        fenced: list[Message] = []
        has_spoken = False
        for message in messages:
            role = message.get("role")
            has_spoken = has_spoken or (role == "assistant" and self._has_template)
            is_answer = role == "tool" or (has_spoken and role != "assistant")
            fenced.append({**message, "content": self._fence(message.get("content"))} if is_answer else message)
        return fenced

    def _fence(self, content: Any) -> Any:
        if isinstance(content, str):
            return self._control.sub(lambda found: found[0][0] + _FENCE + found[0][1:], content)
        if isinstance(content, list):
            return [
                {**part, "text": self._fence(part["text"])} if isinstance(part, Mapping) and "text" in part else part
                for part in content
            ]
        return content

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _control_texts(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """What is tokenised as one of the model's control tokens. One of a single character cannot be written otherwise."""
    texts = [text for text in special_texts(tokenizer) if len(text) > 1]
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")
