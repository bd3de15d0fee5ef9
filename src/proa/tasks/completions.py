"""Prompts and completions as tokens: where the completion begins, and that it ends.

The prompt's tokens are the same as in generation. Prompt and completion are tokenised as one text, since a completion
that is tokenised alone may get a leading space. A completion ends with exactly one end-of-sequence token. Chat messages
go through the tokenizer's template; the assistant's tokens are those that the template writes after the generation
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..data.messages import Messages
from .overlong import OverlongError
from .prompts import NO_VALUES, template_options, template_text, template_tokens, text_tokens, tokenise
from .task import TaskError, TaskRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tokens: TypeAlias = tuple[int, ...]

_CONTEXTS = ("", "\n", "a", "0", ".", "=", ")", "Z", "é", "中")
"""Texts to tokenise a completion after: it rarely merges with all of them."""


def completion_tokens(
    prompt: str | Messages,
    completion: str | Messages,
    tokenizer: PreTrainedTokenizerBase,
    *,
    values: Mapping[str, Any] = NO_VALUES,
    where: str,
) -> tuple[Tokens, Tokens]:
    """The tokens of a prompt and of its completion with the end token; both are text or both messages, whose chat
    template is given `values` besides.

    If a prompt ends with a message of the assistant, the completion continues that message.
    """
    prompt_tokens = tokenise(TaskRow(prompt), tokenizer, values=values, where=where)
    if isinstance(prompt, str):
        assert isinstance(completion, str), "loading gives both sides one form"
        together = text_tokens(prompt + completion, tokenizer)
        tokens = _tokens_after(prompt_tokens, together, prompt, completion, tokenizer, where)
    else:
        assert not isinstance(completion, str), "loading gives both sides one form"
        options = template_options(prompt)
        if "continue_final_message" in options:
            whole = [*prompt[:-1], _continued(prompt[-1], completion, where)]
        else:
            whole = [*prompt, *completion]
        tokens = _answer(prompt, prompt_tokens, whole, tokenizer, where, options, values)
    end = _end_token(tokenizer, where)
    tokens = _trim_end(tokens, end, tokenizer)
    return prompt_tokens, tokens if tokens[-1:] == (end,) else (*tokens, end)


def conversation_tokens(
    messages: Messages,
    tokenizer: PreTrainedTokenizerBase,
    *,
    every_answer: bool,
    given: int | None = None,
    values: Mapping[str, Any] = NO_VALUES,
    where: str,
) -> tuple[Tokens, list[bool]]:
    """The tokens of a whole conversation, and which of them are learned.

    These are the assistant's last message; if the first `given` messages are the prompt, all of its messages after
    them; with `every_answer`, also its earlier messages. If the prompt ends with a message of the assistant, the rest
    of that message is learned.
    """
    if messages[-1].get("role") != "assistant" or len(messages) < 2:
        raise TaskError(
            f"{where}: a conversation to learn from must end with the assistant's message, after at least one other"
        )
    if given is not None and messages[given - 1].get("role") == "assistant":
        prompt, answer = completion_tokens(messages[:given], messages[given:], tokenizer, values=values, where=where)
        earlier = messages[: given - 1]
    else:
        prompt, answer = _turn(messages, tokenizer, where, values, is_last=True)
        earlier = messages[:-1]
    tokens = prompt + answer
    learned = [False] * len(prompt) + [True] * len(answer)
    first = 0 if every_answer else len(earlier) if given is None else given
    for place in range(first, len(earlier)):
        if messages[place].get("role") == "assistant":
            begin, end = _span(messages[: place + 1], tokens, tokenizer, where, values)
            learned[begin:end] = [True] * (end - begin)
    return tokens, learned


def document_tokens(text: str, tokenizer: PreTrainedTokenizerBase, *, where: str) -> tuple[Tokens, list[bool]]:
    """The tokens of a text with the end token, and which of them are learned: all but the first, before which there is
    nothing to predict it from."""
    tokens, end = text_tokens(text, tokenizer), _end_token(tokenizer, where)
    if not tokens:
        raise TaskError(f"{where}: the text {text!r:.40} has no tokens")
    tokens = tokens if tokens[-1] == end else (*tokens, end)
    return tokens, [False] + [True] * (len(tokens) - 1)


def check_fits(prompt: int, completion: int, max_length: int | None, *, where: str, what: str = "completion") -> None:
    """Raise if a row does not fit in `max_length` tokens: nothing is truncated silently."""
    if max_length is None or prompt + completion <= max_length:
        return
    remedy = (
        "shorten it, leave the row out, or raise max_length if the model's context allows (task.overlong: drop leaves "
        "out all such rows, truncate_left cuts the beginnings of their prompts)"
    )
    if prompt >= max_length:
        raise OverlongError(
            f"{where}: the prompt has {prompt} tokens and fills the context of {max_length}, "
            f"with no space for the {what}: {remedy}"
        )
    raise OverlongError(
        f"{where}: the prompt ({prompt} tokens) and its {what} ({completion}) have {prompt + completion} tokens, "
        f"more than the context of {max_length}: {remedy}"
    )


def _tokens_after(
    prompt_tokens: Tokens,
    together: Tokens,
    prompt: str,
    completion: str,
    tokenizer: PreTrainedTokenizerBase,
    where: str,
) -> Tokens:
    """The completion's tokens after the prompt's, given the tokens of both `together`.

    A token of `together` may span both: "Answer: " and "yes" become ▁yes, but a model that is given "Answer: " has
    the blank already. The completion then has the tokens that it has within some other text.
    """
    if together[: len(prompt_tokens)] == prompt_tokens:
        return together[len(prompt_tokens) :]
    text = _decode(together, tokenizer)
    for before in _CONTEXTS:
        begin, tokens = _plain_tokens(before, tokenizer), _plain_tokens(before + completion, tokenizer)
        rest = tokens[len(begin) :]
        found = _decode(prompt_tokens + rest, tokenizer)
        if tokens[: len(begin)] == begin and (found == text or found.endswith(prompt + completion)):
            return rest
    raise TaskError(
        f"{where}: the text cannot be split into tokens between prompt and completion ({prompt[-20:]!r} and "
        f"{completion[:20]!r}): this tokenizer has no tokens for the completion alone; split where a word begins"
    )


def _plain_tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    return tuple(map(int, tokenizer(text, add_special_tokens=False)["input_ids"])) if text else ()


def _decode(tokens: Tokens, tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


def _continued(begun: Mapping[str, Any], completion: Messages, where: str) -> dict[str, Any]:
    """The assistant's message that the prompt begins, with the rest of it."""
    texts = [message.get("content") for message in (begun, *completion)]
    if len(completion) != 1 or not all(isinstance(text, str) for text in texts) or completion[0].get("tool_calls"):
        raise TaskError(
            f"{where}: the prompt ends with a message of the assistant, so the completion must continue it: one "
            "message of the assistant, with text"
        )
    return {**begun, "content": "".join(map(str, texts))}


def _answer(
    prompt: Messages,
    prompt_tokens: Tokens,
    whole: Messages,
    tokenizer: PreTrainedTokenizerBase,
    where: str,
    options: Mapping[str, bool],
    values: Mapping[str, Any],
) -> Tokens:
    """The tokens that the template writes after the prompt, in the whole conversation."""
    tokens = template_tokens(whole, tokenizer, values, where=where, what="answer")
    if tokens[: len(prompt_tokens)] == prompt_tokens:
        return tokens[len(prompt_tokens) :]
    begun, text = (
        template_text(prompt, tokenizer, {**options, **values}, where=where),
        template_text(whole, tokenizer, values, where=where),
    )
    if not text.startswith(begun):
        raise TaskError(
            f"{where}: the tokenizer's chat template writes the prompt differently once the answer follows, so that "
            "training would not match generation: set a tokenizer.chat_template whose generation prompt is how the "
            "assistant's message begins, or give prompt and answer as text"
        )
    return _tokens_after(prompt_tokens, tokens, begun, text[len(begun) :], tokenizer, where)


def _turn(
    messages: Messages, tokenizer: PreTrainedTokenizerBase, where: str, values: Mapping[str, Any], *, is_last: bool
) -> tuple[Tokens, Tokens]:
    """The tokens before the last of these messages, which is the assistant's, and those of the message."""
    options = {"add_generation_prompt": True}
    prompt = template_tokens(messages[:-1], tokenizer, {**options, **values}, where=where)
    answer = _answer(messages[:-1], prompt, messages, tokenizer, where, options, values)
    end = _end_token(tokenizer, where)
    answer = _trim_end(answer, end, tokenizer)
    return prompt, (*answer, end) if is_last and answer[-1:] != (end,) else answer


def _span(
    messages: Messages,
    tokens: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    where: str,
    values: Mapping[str, Any],
) -> tuple[int, int]:
    """The place of the last of these messages in the tokens of the whole conversation."""
    if len(messages) == 1:
        raise TaskError(f"{where}: the conversation begins with the assistant's message, without a prompt for it")
    prompt, answer = _turn(messages, tokenizer, where, values, is_last=False)
    until = len(prompt) + len(answer)
    if tuple(tokens[:until]) != prompt + answer:
        raise TaskError(
            f"{where}: the tokenizer's chat template writes message {len(messages) - 1} differently once others "
            "follow (some omit earlier thoughts): learn from the last message only, with one row for each other"
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


def _trim_end(tokens: Tokens, end: int, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Remove blanks after the end token, as some templates write: generation never gets there."""
    if end not in tokens:
        return tokens
    after = len(tokens) - tokens[::-1].index(end)
    return tokens if str(tokenizer.decode(list(tokens[after:]))).strip() else tokens[:after]
