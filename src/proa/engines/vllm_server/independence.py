"""Whether what a vLLM server gives for a request depends on others: tried with whatever weights it has now."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from .client import Event, Server, Stream

_STEPS = 8
_PARAMS = {"max_tokens": _STEPS, "seed": 5, "logprobs": 0, "ignore_eos": True, "detokenize": False}


def is_independent(server: Server, *, vocabulary: int, context: int, patience: float) -> bool:
    """Whether a request got the same bits alone and among others. Requests arrive at times of their own, so it may
    find none of what there is."""
    prompts = [[(7 * place + 3 * token) % vocabulary for token in range(4 + 9 * place)] for place in range(4)]
    prompts = [prompt[: max(1, context - _STEPS)] for prompt in prompts]
    alone = _sampled(server, prompts[:1], patience)
    orders = prompts, [prompts[0], *prompts[:0:-1]]
    return all(_sampled(server, order, patience)[0] == alone[0] for order in orders)


def _sampled(server: Server, prompts: Sequence[Sequence[int]], patience: float) -> list[list[tuple[int, float]]]:
    """Tokens and log-probabilities of each prompt, sampled at the same time."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    said: dict[Stream, list[tuple[int, float]]] = {}
    for place, prompt in enumerate(prompts):
        content = {"token_ids": list(prompt), "stream": True, "sampling_params": _PARAMS}
        said[Stream(server, f"trial {place}", content, events)] = []
    running = len(said)
    while running:
        event = events.get(timeout=patience)
        if event.error is not None:
            raise event.error
        if event.choice is None:
            running -= 1
            continue
        chosen = (event.choice.get("logprobs") or {}).get("content") or ()
        said[event.stream] += [(int(one["token_id"]), float(one["logprob"])) for one in chosen]
    return list(said.values())
