"""Prompts together with what should follow them, as tokens: where the completion begins, and that it ends.

A completion ends with the end-of-sequence token, once. Chat messages go through the tokenizer's template, and the
assistant's tokens are those that the template writes after the prompt that asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from .prompts import tokenise
from .task import TaskError, TaskRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages: TypeAlias = list[dict[str, Any]]
Tokens: TypeAlias = tuple[int, ...]


def completion_tokens(
    prompt: str | Messages, completion: str | Messages, tokenizer: PreTrainedTokenizerBase, *, where: str
) -> tuple[Tokens, Tokens]:
    """The tokens of a prompt and of its completion, both text or both messages, ended."""
    prompt_tokens = tokenise(TaskRow(prompt), tokenizer, where=where)
    if isinstance(completion, str):
        tokens = tuple(map(int, tokenizer(completion, add_special_tokens=False)["input_ids"]))
    else:
        assert not isinstance(prompt, str), "loading gives both sides one form"
        tokens = _answer(prompt, prompt_tokens, completion, tokenizer, where)
    end = _end_token(tokenizer, where)
    tokens = _without_what_follows_the_end(tokens, end, tokenizer)
    return prompt_tokens, tokens if tokens[-1:] == (end,) else (*tokens, end)


def conversation_tokens(
    messages: Messages, tokenizer: PreTrainedTokenizerBase, *, every_answer: bool, where: str
) -> tuple[Tokens, list[bool]]:
    """The tokens of a whole conversation, and which of them are the assistant's: its last message, or all of them."""
    if messages[-1].get("role") != "assistant" or len(messages) < 2:
        raise TaskError(
            f"{where}: a conversation to learn from ends with the assistant's message, after at least one other"
        )
    prompt, answer = completion_tokens(messages[:-1], messages[-1:], tokenizer, where=where)
    tokens = prompt + answer
    learned = [False] * len(prompt) + [True] * len(answer)
    for place, message in enumerate(messages[:-1] if every_answer else []):
        if message.get("role") == "assistant":
            begin, end = _span(messages[: place + 1], tokens, tokenizer, where)
            learned[begin:end] = [True] * (end - begin)
    return tokens, learned


def check_fits(prompt: int, completion: int, max_length: int | None, *, where: str, what: str = "completion") -> None:
    """Refuse what does not fit in `max_length` tokens: nothing is cut off silently."""
    if max_length is None or prompt + completion <= max_length:
        return
    remedy = "shorten it, leave the row out, or raise max_length if the model's context allows"
    if prompt >= max_length:
        raise TaskError(
            f"{where}: the prompt has {prompt} tokens and fills the context of {max_length}, "
            f"with no room for a {what}: {remedy}"
        )
    raise TaskError(
        f"{where}: the prompt ({prompt} tokens) and its {what} ({completion}) have {prompt + completion} tokens, "
        f"more than the context of {max_length}: {remedy}"
    )


def is_conversation(value: object) -> bool:
    """Whether something is a list of chat messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in value)
    )


def _answer(
    prompt: Messages, prompt_tokens: Tokens, answer: Messages, tokenizer: PreTrainedTokenizerBase, where: str
) -> Tokens:
    """What the template writes for the answer, after the prompt that asks for it."""
    try:
        encoded: Any = tokenizer.apply_chat_template([*prompt, *answer], return_dict=True)
    except Exception as error:  # a template is a program of its own, and refuses with its own errors
        raise TaskError(f"{where}: the tokenizer's chat template refuses the answer: {error}") from error
    tokens = tuple(map(int, encoded["input_ids"]))
    if tokens[: len(prompt_tokens)] != prompt_tokens:
        raise TaskError(
            f"{where}: the tokenizer's chat template writes the prompt differently once the answer follows, so that "
            "what is learned would not be what is asked for: set a tokenizer.chat_template whose generation prompt "
            "is how the assistant's message begins, or give prompt and answer as text"
        )
    return tokens[len(prompt_tokens) :]


def _span(messages: Messages, tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase, where: str) -> tuple[int, int]:
    """From where to where the last of these messages stands in the tokens of the whole conversation."""
    if len(messages) == 1:
        raise TaskError(f"{where}: the conversation begins with the assistant's message: nothing asks for it")
    prompt = tokenise(TaskRow(messages[:-1]), tokenizer, where=where)
    answer = _answer(messages[:-1], prompt, messages[-1:], tokenizer, where)
    answer = _without_what_follows_the_end(answer, _end_token(tokenizer, where), tokenizer)
    until = len(prompt) + len(answer)
    if tuple(tokens[:until]) != prompt + answer:
        raise TaskError(
            f"{where}: the tokenizer's chat template writes message {len(messages) - 1} differently once others "
            "follow (some leave out earlier thoughts): learn from the last message only, and make a row of each other"
        )
    return len(prompt), until


def _end_token(tokenizer: PreTrainedTokenizerBase, where: str) -> int:
    end = tokenizer.eos_token_id
    if end is None:
        raise TaskError(
            f"{where}: this tokenizer has no end-of-sequence token, and without one a model never learns to stop: "
            "set tokenizer.eos_token"
        )
    return int(end)  # type: ignore[call-overload, no-any-return, unused-ignore]


def _without_what_follows_the_end(tokens: Tokens, end: int, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Some templates write a line break after the end; generation stops before it, so it is not learned."""
    if end not in tokens:
        return tokens
    after = len(tokens) - tokens[::-1].index(end)
    return tokens if str(tokenizer.decode(list(tokens[after:]))).strip() else tokens[:after]
