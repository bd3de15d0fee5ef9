"""Whether what comes of a request depends on others in vLLM: tried on the machine that decodes, when it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...data.sampling import Sampling
from ..generating import generate
from ..independence import LENGTHS, STEPS
from ..protocol import Engine, Request

Text: TypeAlias = tuple[int, ...]
Scores: TypeAlias = list[list[float]]


def is_independent(
    engine: Engine,
    score: Callable[[Sequence[tuple[Text, int]]], Scores],
    forget: Callable[[], None],
    *,
    vocabulary: int,
    block: int,
) -> bool:
    """Whether a text has the same bits alone and among others, with its beginning in the cache and without, and with
    tokens in its prompt that were sampled elsewhere.

    `score` says what the tokens of texts get after their first ones; `forget` empties the cache, whose blocks have so
    many tokens.
    """
    room = engine.context_length - 2 * STEPS
    lengths = [min(length, room) for length in (*LENGTHS, block + 2)]
    texts = [(_text(place, length + 2 * STEPS, vocabulary), length) for place, length in enumerate(lengths)]
    alone = [_fresh(forget, score, [one])[0] for one in (texts[0], texts[-1])]
    together = _fresh(forget, score, texts)
    again = score([*texts[1:], texts[0]])  # their beginnings are cached now, where they fill a block
    if not alone == [together[0], together[-1]] == [again[-1], again[-2]]:
        return False
    later = [(tokens, length + STEPS) for tokens, length in (texts[0], texts[-1])]
    as_prompts = [_fresh(forget, score, [one])[0] for one in later]
    return as_prompts == [one[STEPS:] for one in alone] and _samples_alone(engine, texts)


def _samples_alone(engine: Engine, texts: Sequence[tuple[Text, int]]) -> bool:
    sampling = Sampling(max_new_tokens=STEPS, temperature=0.9, top_p=0.95)
    [version] = engine.versions
    requests = [
        Request(f"trial {place}", tokens[:length], place, sampling, version)
        for place, (tokens, length) in enumerate(texts)
    ]
    [alone], together = generate(engine, requests[:1]), generate(engine, [*requests[1:], requests[0]])[-1]
    return (alone.tokens.tolist(), alone.log_probs.tolist()) == (together.tokens.tolist(), together.log_probs.tolist())


def _fresh(
    forget: Callable[[], None], score: Callable[[Sequence[tuple[Text, int]]], Scores], texts: Sequence[tuple[Text, int]]
) -> Scores:
    forget()
    return score(texts)


def _text(place: int, length: int, vocabulary: int) -> Text:
    return tuple((7919 * place + 104729 * token) % vocabulary for token in range(length))
