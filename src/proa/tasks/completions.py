"""Prompts together with what should follow them, as tokens: where the completion begins, and that it ends.

The prompt's tokens are those that generation is given, and the completion's follow them: prompt and completion are
tokenised as one text, since a completion that is tokenised alone may get a space in front. A completion ends with the
end-of-sequence token, once. Chat messages go through the tokenizer's template, and the assistant's tokens are those
that the template writes after the prompt that asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..data.messages import Messages
from .prompts import template_text, template_tokens, text_tokens, tokenise, turn_of
from .task import TaskError, TaskRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tokens: TypeAlias = tuple[int, ...]

_BEFORE = ("", "\n", "a", "0", ".", "=", ")", "Z", "é", "中")
"""Texts after which a completion may have tokens of its own: it seldom merges with all of them."""


def completion_tokens(
    prompt: str | Messages, completion: str | Messages, tokenizer: PreTrainedTokenizerBase, *, where: str
) -> tuple[Tokens, Tokens]:
    """The tokens of a prompt and of its completion, both text or both messages, ended.

    A prompt that ends with a message of the assistant has begun the answer, and the completion is the rest of it.
    """
    prompt_tokens = tokenise(TaskRow(prompt), tokenizer, where=where)
    if isinstance(prompt, str):
        assert isinstance(completion, str), "loading gives both sides one form"
        together = text_tokens(prompt + completion, tokenizer)
        tokens = _after(prompt_tokens, together, prompt, completion, tokenizer, where)
    else:
        assert not isinstance(completion, str), "loading gives both sides one form"
        asked = turn_of(prompt)
        if "continue_final_message" in asked:
            whole = [*prompt[:-1], _joined(prompt[-1], completion, where)]
        else:
            whole = [*prompt, *completion]
        tokens = _answer(prompt, prompt_tokens, whole, tokenizer, where, asked)
    end = _end_token(tokenizer, where)
    tokens = _without_what_follows_the_end(tokens, end, tokenizer)
    return prompt_tokens, tokens if tokens[-1:] == (end,) else (*tokens, end)


def conversation_tokens(
    messages: Messages, tokenizer: PreTrainedTokenizerBase, *, every_answer: bool, given: int | None = None, where: str
) -> tuple[Tokens, list[bool]]:
    """The tokens of a whole conversation, and which of them are learned: the assistant's last message; where the first
    `given` messages are the prompt, all of its messages after them; with `every_answer`, those before as well.

    Where the prompt's last message is the assistant's, it is begun there, and the rest of it is learned.
    """
    if messages[-1].get("role") != "assistant" or len(messages) < 2:
        raise TaskError(
            f"{where}: a conversation to learn from ends with the assistant's message, after at least one other"
        )
    if given is not None and messages[given - 1].get("role") == "assistant":
        prompt, answer = completion_tokens(messages[:given], messages[given:], tokenizer, where=where)
        earlier = messages[: given - 1]
    else:
        prompt, answer = _turn(messages, tokenizer, where, is_last=True)
        earlier = messages[:-1]
    tokens = prompt + answer
    learned = [False] * len(prompt) + [True] * len(answer)
    first = 0 if every_answer else len(earlier) if given is None else given
    for place in range(first, len(earlier)):
        if messages[place].get("role") == "assistant":
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


def _after(
    prompt_tokens: Tokens,
    together: Tokens,
    prompt: str,
    completion: str,
    tokenizer: PreTrainedTokenizerBase,
    where: str,
) -> Tokens:
    """What follows the prompt's tokens, such that all of them are prompt and completion, which `together` are too.

    A token of `together` may reach from one into the other: "Answer: " and "yes" are ▁yes, but a model that is given
    "Answer: " has the blank already. The completion then has the tokens that it has elsewhere within a text.
    """
    if together[: len(prompt_tokens)] == prompt_tokens:
        return together[len(prompt_tokens) :]
    said = _decoded(together, tokenizer)
    for before in _BEFORE:
        begin, tokens = _plain_tokens(before, tokenizer), _plain_tokens(before + completion, tokenizer)
        rest = tokens[len(begin) :]
        found = _decoded(prompt_tokens + rest, tokenizer)
        if tokens[: len(begin)] == begin and (found == said or found.endswith(prompt + completion)):
            return rest
    raise TaskError(
        f"{where}: the text cannot be cut into tokens between prompt and completion ({prompt[-20:]!r} and "
        f"{completion[:20]!r}): this tokenizer has no tokens for the completion alone; cut where a word begins"
    )


def _plain_tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    return tuple(map(int, tokenizer(text, add_special_tokens=False)["input_ids"])) if text else ()


def _decoded(tokens: Tokens, tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


def _joined(begun: Mapping[str, Any], completion: Messages, where: str) -> dict[str, Any]:
    """A message of the assistant that the prompt begins, with the rest of it."""
    texts = [message.get("content") for message in (begun, *completion)]
    if len(completion) != 1 or not all(isinstance(text, str) for text in texts) or completion[0].get("tool_calls"):
        raise TaskError(
            f"{where}: the prompt ends with a begun message of the assistant, so that the completion is the rest of "
            "it: one message of the assistant, with text"
        )
    return {**begun, "content": "".join(map(str, texts))}


def _answer(
    prompt: Messages,
    prompt_tokens: Tokens,
    whole: Messages,
    tokenizer: PreTrainedTokenizerBase,
    where: str,
    asked: Mapping[str, bool],
) -> Tokens:
    """What the template writes after the prompt, in the whole conversation."""
    tokens = template_tokens(whole, tokenizer, {}, where=where, what="answer")
    if tokens[: len(prompt_tokens)] == prompt_tokens:
        return tokens[len(prompt_tokens) :]
    begun, text = template_text(prompt, tokenizer, asked, where=where), template_text(whole, tokenizer, {}, where=where)
    if not text.startswith(begun):
        raise TaskError(
            f"{where}: the tokenizer's chat template writes the prompt differently once the answer follows, so that "
            "what is learned would not be what is asked for: set a tokenizer.chat_template whose generation prompt "
            "is how the assistant's message begins, or give prompt and answer as text"
        )
    return _after(prompt_tokens, tokens, begun, text[len(begun) :], tokenizer, where)


def _turn(
    messages: Messages, tokenizer: PreTrainedTokenizerBase, where: str, *, is_last: bool
) -> tuple[Tokens, Tokens]:
    """The tokens before the last of these messages, which is the assistant's, and its own."""
    asked = {"add_generation_prompt": True}
    prompt = template_tokens(messages[:-1], tokenizer, asked, where=where)
    answer = _answer(messages[:-1], prompt, messages, tokenizer, where, asked)
    end = _end_token(tokenizer, where)
    answer = _without_what_follows_the_end(answer, end, tokenizer)
    return prompt, (*answer, end) if is_last and answer[-1:] != (end,) else answer


def _span(messages: Messages, tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase, where: str) -> tuple[int, int]:
    """From where to where the last of these messages stands in the tokens of the whole conversation."""
    if len(messages) == 1:
        raise TaskError(f"{where}: the conversation begins with the assistant's message: nothing asks for it")
    prompt, answer = _turn(messages, tokenizer, where, is_last=False)
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
