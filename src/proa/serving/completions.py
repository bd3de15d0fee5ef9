"""`/v1/completions`: texts and tokens to be continued, or scored with `echo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from .asked import Asked, EchoedToken, Finished, Piece, PromptGiven, Render
from .texts import visible_text

if TYPE_CHECKING:
    from .served_model import ServedModel


class CompletionAsked(Asked):
    """The body of a request."""

    OBJECT = "text_completion"
    CHUNK = "text_completion"
    ID = "cmpl"

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=1)
    echo: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.echo and self.stream:
            raise ValueError("echo cannot be streamed: leave out one of echo and stream")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0: ask for at least 1 token, or for echo, the prompt itself")
        if self.logprobs and self.temperature != 0:
            raise ValueError(
                "logprobs is 1, which asks for the likeliest token at each place beside the one that was sampled: only "
                "at temperature 0 are they known, and the same; give logprobs: 0"
            )
        if not self.prompt and not isinstance(self.prompt, str):
            raise ValueError("prompt is empty: give at least one text, or the tokens of one")
        return self

    @property
    def count(self) -> int:
        return self.n * len(self._each)

    @property
    def shows_tokens(self) -> bool:
        return self.logprobs is not None or self.return_token_ids

    @property
    def _each(self) -> list[str] | list[list[int]]:
        """The prompts, however they were given."""
        several: Any = self.prompt
        return several if isinstance(several, list) and not isinstance(several[0], int) else [several]

    def prompts(self, render: Render, model: ServedModel) -> list[PromptGiven]:
        return [
            PromptGiven(model.text_tokens(one) if isinstance(one, str) else model.check_tokens(one, "prompt"))
            for one in self._each
        ]

    @property
    def scores_prompts(self) -> bool:
        return self.echo and self.logprobs is not None

    @property
    def names_likeliest(self) -> bool:
        return bool(self.logprobs)

    # -- answers -------------------------------------------------------------------------------------

    def choice(self, finished: Finished, model: ServedModel) -> dict[str, Any]:
        text = visible_text(finished.tokens, model.tokenizer, self.stop)
        if self.echo:
            given = self._each[finished.index // self.n]
            prompt = given if isinstance(given, str) else visible_text(given, model.tokenizer)
            text = prompt + text
        sampled = [
            EchoedToken(token, log_prob, (token, log_prob))
            for token, log_prob in zip(finished.tokens, finished.log_probs, strict=True)
        ]
        return {
            "index": finished.index,
            "text": text,
            "logprobs": self._log_probs([*(finished.echoed or ()), *sampled], model),
            "finish_reason": finished.completion.finish_reason,
            "seed": finished.seed,
            **self._token_ids(finished.tokens),
            **({"prompt_token_ids": list(finished.prompt.tokens)} if self.return_token_ids else {}),
        }

    def piece(self, piece: Piece, model: ServedModel) -> dict[str, Any]:
        sampled = [
            EchoedToken(token, log_prob, (token, log_prob))
            for token, log_prob in zip(piece.tokens, piece.log_probs, strict=True)
        ]
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": self._log_probs(sampled, model),
            "finish_reason": None,
            **self._token_ids(piece.tokens),
        }

    def last(self, finished: Finished, rest: Piece, model: ServedModel) -> dict[str, Any]:
        return self.piece(rest, model) | {
            "finish_reason": finished.completion.finish_reason,
            "seed": finished.seed,
            **({"prompt_token_ids": list(finished.prompt.tokens)} if self.return_token_ids else {}),
        }

    def _token_ids(self, tokens: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(tokens)} if self.return_token_ids else {}

    def _log_probs(self, tokens: Sequence[EchoedToken], model: ServedModel) -> dict[str, Any] | None:
        """The tokens that are shown, each with its log-probability, and with `logprobs: 1` beside the likeliest."""
        if self.logprobs is None:
            return None
        texts = [self._token_text(one.token, model) for one in tokens]
        offsets = [0]
        for text in texts:
            offsets.append(offsets[-1] + len(text))
        return {
            "tokens": texts,
            "token_logprobs": [one.log_prob for one in tokens],
            "top_logprobs": [self._top(one, model) for one in tokens] if self.logprobs else None,
            "text_offset": offsets[:-1],
        }

    def _token_text(self, token: int, model: ServedModel) -> str:
        return f"token_id:{token}" if self.return_tokens_as_token_ids else model.token_text(token)

    def _top(self, one: EchoedToken, model: ServedModel) -> dict[str, float] | None:
        """The token's own log-probability and that of the likeliest; None where that was not looked at."""
        if one.log_prob is None or one.likeliest is None:
            return None
        own, (best, log_prob) = self._token_text(one.token, model), one.likeliest
        if best == one.token:
            return {own: one.log_prob}
        other = self._token_text(best, model)
        return {own: one.log_prob, other if other != own else f"token_id:{best}": log_prob}
