"""`/inference/v1/generate`: tokens in, tokens out. What it takes and answers is as in vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from .asked import IGNORED, Asked, Finished, Piece, PromptGiven, Render
from .chat import log_prob_content
from .refusals import Refusal

if TYPE_CHECKING:
    from .served_model import ServedModel


class TokensAsked(Asked):
    """The body of a request; `sampling_params` has what other routes have beside the prompt."""

    IGNORED = IGNORED | {"skip_special_tokens", "spaces_between_special_tokens", "detokenize", "output_kind"}
    OBJECT = "generate"
    CHUNK = "generate.chunk"
    ID = "gen"

    token_ids: list[int]
    max_tokens: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0, le=1)

    @property
    def shows_tokens(self) -> bool:
        return True

    def prompts(self, render: Render, model: ServedModel) -> list[PromptGiven]:
        return [PromptGiven(model.check_tokens(self.token_ids, "token_ids"))]

    def choice(self, finished: Finished, model: ServedModel) -> dict[str, Any]:
        piece = Piece(finished.index, "", finished.tokens, finished.log_probs)
        return self.last(finished, piece, model)

    def piece(self, piece: Piece, model: ServedModel) -> dict[str, Any]:
        log_probs = log_prob_content(piece.tokens, piece.log_probs, model, as_ids=True)
        return {
            "index": piece.index, "token_ids": list(piece.tokens), "finish_reason": None,
            "logprobs": log_probs if self.logprobs is not None else None,
        }  # fmt: skip

    def last(self, finished: Finished, rest: Piece, model: ServedModel) -> dict[str, Any]:
        last = {"finish_reason": finished.completion.finish_reason, "seed": finished.seed}
        return self.piece(rest, model) | last

    def envelope(self, answer_id: str, prompts: Sequence[PromptGiven]) -> dict[str, Any]:
        given = {"prompt_token_ids": list(prompts[0].tokens)} if self.return_token_ids else {}
        return {"request_id": answer_id, **given}

    @classmethod
    def flat(cls, body: dict[str, Any]) -> dict[str, Any]:
        settings = body.get("sampling_params") or {}
        if not isinstance(settings, dict):
            raise Refusal(400, "sampling_params is not an object", "invalid_value", "sampling_params")
        return {name: value for name, value in body.items() if name != "sampling_params"} | settings
