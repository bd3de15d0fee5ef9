"""`/v1/chat/completions`: conversations, with tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from .asked import Asked, Finished, Piece, PromptGiven, Render
from .refusals import Refusal
from .served_model import read_messages
from .texts import cut, visible_text

if TYPE_CHECKING:
    from .served_model import ServedModel

_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ChatAsked(Asked):
    """The body of a request."""

    OBJECT = "chat.completion"
    CHUNK = "chat.completion.chunk"
    ID = "chatcmpl"

    messages: list[Any]
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: Literal["auto", "none"] = "auto"

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def holds_text(self) -> bool:
        return self._reads_calls

    @property
    def _reads_calls(self) -> bool:
        return bool(self.tools) and self.tool_choice == "auto"

    def prompts(self, render: Render, model: ServedModel) -> list[PromptGiven]:
        messages = read_messages(self.messages)
        for place, tool in enumerate(self.tools):
            function = tool.get("function")
            if tool.get("type") != "function" or not isinstance(function, dict) or "name" not in function:
                raise Refusal(
                    400, f'tools.{place} is not {{"type": "function", "function": {{"name": ..., ...}}}}',
                    "invalid_value", f"tools.{place}",
                )  # fmt: skip
        tools = tuple(self.tools)
        return [PromptGiven(render(messages, tools, model), messages, tools)]

    @property
    def shows_tokens(self) -> bool:
        return self.logprobs or self.return_token_ids

    def said(self, finished: Finished, model: ServedModel) -> dict[str, Any]:
        if not self._reads_calls and not model.writes_own_format:
            return {"role": "assistant", "content": visible_text(finished.tokens, model.tokenizer, self.stop)}
        tools = self.tools if self._reads_calls else []
        message = model.message(finished.tokens, tools, finished.prompt.tokens)
        return wire_message(message, finished.seed, self.stop)

    # -- answers -------------------------------------------------------------------------------------

    def choice(self, finished: Finished, model: ServedModel) -> dict[str, Any]:
        message = self.said(finished, model)
        return {
            "index": finished.index,
            "message": {**message, "refusal": None},
            "logprobs": self._log_probs(finished.tokens, finished.log_probs, model),
            "finish_reason": _finish_reason(message, finished),
            "seed": finished.seed,
            **({"token_ids": finished.tokens} if self.return_token_ids else {}),
        }

    def first(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, piece: Piece, model: ServedModel) -> dict[str, Any]:
        return {
            "index": piece.index,
            "delta": {"content": piece.text},
            "logprobs": self._log_probs(piece.tokens, piece.log_probs, model),
            "finish_reason": None,
            **({"token_ids": list(piece.tokens)} if self.return_token_ids else {}),
        }

    def last(self, finished: Finished, rest: Piece, model: ServedModel) -> dict[str, Any]:
        message = self.said(finished, model)
        delta: dict[str, Any] = {"content": rest.text}
        if self.holds_text or model.writes_own_format:
            delta = {key: value for key, value in message.items() if key != "role" and value is not None}
            if calls := delta.get("tool_calls"):
                delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
        last = {"delta": delta, "finish_reason": _finish_reason(message, finished), "seed": finished.seed}
        return self.piece(rest, model) | last

    def envelope(self, answer_id: str, prompts: Sequence[PromptGiven]) -> dict[str, Any]:
        return {"prompt_token_ids": list(prompts[0].tokens)} if self.return_token_ids else {}

    def _log_probs(
        self, tokens: Sequence[int], log_probs: Sequence[float], model: ServedModel
    ) -> dict[str, Any] | None:
        as_ids = self.return_tokens_as_token_ids
        return log_prob_content(tokens, log_probs, model, as_ids=as_ids) if self.logprobs else None


def log_prob_content(
    tokens: Sequence[int], log_probs: Sequence[float], model: ServedModel, *, as_ids: bool
) -> dict[str, Any]:
    """Log-probabilities in the form of chats."""
    content = []
    for token, log_prob in zip(tokens, log_probs, strict=True):
        text = model.token_text(token)
        shown, sent = f"token_id:{token}" if as_ids else text, list(text.encode("utf-8", "replace"))
        content.append({"token": shown, "token_id": token, "logprob": log_prob, "bytes": sent, "top_logprobs": []})
    return {"content": content, "refusal": None}


def _finish_reason(message: Mapping[str, Any], finished: Finished) -> str:
    return "tool_calls" if message.get("tool_calls") else finished.completion.finish_reason


def wire_message(message: Mapping[str, Any], seed: int, stops: Sequence[str]) -> dict[str, Any]:
    """A message as it was read from tokens, in OpenAI's form. A call that cannot be read stays text."""
    content = cut(str(message.get("content") or ""), stops)
    calls = []
    for place, call in enumerate(message.get("tool_calls") or ()):
        if "error" in call:
            content += call["text"] if call["text"] not in content else ""
            continue
        function = call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        sent = {"name": function["name"], "arguments": arguments}
        calls.append({"id": call.get("id") or _call_id(seed, place), "type": "function", "function": sent})
    thinking = message.get("reasoning_content") or message.get("thinking")
    return {
        "role": "assistant",
        "content": content if content or not calls else None,
        **({"reasoning_content": thinking} if thinking else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _call_id(seed: int, place: int) -> str:
    """Nine letters and digits, as some templates want them, which follow from the seed."""
    number = int.from_bytes(hashlib.blake2b(f"{seed}/call/{place}".encode(), digest_size=8).digest(), "big")
    return "".join(_LETTERS[number // 36**digit % 36] for digit in range(9))
