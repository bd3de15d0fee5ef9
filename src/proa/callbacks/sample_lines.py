"""One sample as lines for the console, a conversation turn by turn, with the special tokens that a model sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..data.messages import is_conversation, turns_of
from ..visible import single_line

MOST_TURNS = 6
"""Of a conversation; the first ones are left out."""


def sample_lines(rollout: Mapping[str, Any], columns: int) -> list[str]:
    """What a row of `rollouts/` says, in lines of at most so many columns.

    A wrong chat template shows here: `template` is the end of what the model was given, and the last line is what it
    wrote, up to the token that ended it. Of a conversation with an environment, `template` is how it began.

    >>> print(*sample_lines({"prompt": "2+2=", "tokens": ["4", "<end>"], "reward": 1.0, "step": 0}, 40), sep="\\n")
    a sample of step 1: reward 1
      prompt      2+2=
      completion  4<end>
    """
    messages: Any = rollout.get("messages")
    prompt = str(rollout.get("rendered") or rollout.get("prompt", ""))
    written = "".join(map(str, rollout.get("tokens", ()))) or str(rollout.get("completion", ""))
    if rollout.get("trajectory") and is_conversation(messages):
        rows = [("template", prompt, _end_of)]
        rows += [(role, text, _around_middle) for role, text in turns_of(messages)[-MOST_TURNS:]]
    elif is_conversation(messages):
        turns = turns_of(messages)[-MOST_TURNS:]
        rows = [*((role, text, _around_middle) for role, text in turns), ("template", prompt, _end_of)]
        rows.append(("assistant", written, _around_middle))
    else:
        rows = [("prompt", prompt, _around_middle), ("completion", written, _around_middle)]
    width = max(len(label) for label, _, _ in rows)
    room = max(8, columns - width - 4)
    shown = [f"  {label:{width}}  {cut(single_line(text), room)}" for label, text, cut in rows]
    return [_heading(rollout), *shown]


def _heading(rollout: Mapping[str, Any]) -> str:
    reward, reason = rollout.get("reward"), rollout.get("finish_reason")
    facts = ["no reward" if reward is None else f"reward {reward:.4g}"]
    facts += ["truncated"] if reason == "length" else []
    trajectory = rollout.get("trajectory")
    if isinstance(trajectory, Mapping):
        turns = trajectory.get("turns", 0)
        facts.append(f"{trajectory.get('ending')} after {turns} turn{'' if turns == 1 else 's'}")
    return f"a sample of step {rollout.get('step', 0) + 1}: {', '.join(facts)}"


def _around_middle(text: str, room: int) -> str:
    """The beginning and the end, where a text is too long."""
    if len(text) <= room:
        return text
    end = (room - 3) // 2
    return f"{text[: room - 3 - end]} … {text[-end:]}"


def _end_of(text: str, room: int) -> str:
    return text if len(text) <= room else f"…{text[1 - room :]}"
