"""What the model wrote, as text: samples with their tokens coloured, and the predictions of evals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .html import Markup, join, plain, tag
from .reading import RunData, Subject
from .samples import Predictions, Rollout
from .section import Section, folded, one_of, table
from .text import count, ended, number, squeezed

MISMATCHES = (0.01, 0.1, 0.5)
"""Differences of log-probabilities, in nats, at which the next shade begins."""
SHADES = 3
STATIC_ROWS = 10
"""Predictions that are shown without the page's script."""
MOST_COLUMNS = 12
MOST_FAILURES = 5
"""Evals of which it is said what could not be scored."""
_COLOURINGS = (("advantage", "token advantage"), ("mismatch", "trainer/sampler mismatch"), ("none", "nothing"))
_FIRST_COLUMNS = ("task_id", "sample", "prompt", "completion", "answer", "reward", "correct", "error")
_SCORES = ("reward", "correct", "exact", "score")


def samples(subject: Subject) -> tuple[Section | None, list[dict[str, Any]]]:
    """Samples that were trained on; and the numbers of their tokens, for the page's script."""
    numbers: list[dict[str, Any]] = []
    choices: list[Markup] = []
    for run in _with_texts(subject):
        if run.rollouts:
            largest = max(
                (abs(a) for one in run.rollouts for a in one.advantages if a is not None and math.isfinite(a)),
                default=0.0,
            )
            moments = one_of(list(_moments(run.rollouts, largest, numbers)), "step")
            legends = _legends(largest, any(one.given for one in run.rollouts))
            shown = [legends, _told(run.rollouts, run.rollout_steps), moments]
            choices.append(join(shown) if subject.experiment is None else folded(run.title, *shown, opened=not choices))
    if not choices:
        return None, []
    parts = [one_of(choices, "run")]
    colourings = [
        [
            tag("input", type="radio", name="colour", id=f"by-{key}", checked=key == "advantage"),
            tag("label", words, for_=f"by-{key}"),
        ]
        for key, words in _COLOURINGS
    ]
    left = [run.key for run in _with_texts(subject) if run.rollout_steps and not run.rollouts]
    if left:
        parts.append(tag("p", f"The page has no room for samples of {', '.join(left)}.", class_="note"))
    note = tag("span", "Colour by ", class_="what")
    box = tag("div", note, colourings, tag("div", parts, class_="samples"), class_="colouring")
    return Section("samples", "Samples", [box]), numbers


def predictions(subject: Subject) -> tuple[Section | None, list[dict[str, Any]]]:
    """A table to page through, its first rows in the page itself; and all rows for the page's script."""
    found = [one for run in _with_texts(subject) for one in run.predictions if one.rows]
    if not found:
        return None, []
    sets = [_set(one, several=len(subject.runs) > 1) for one in found]
    first = sets[0]
    rows = [[number(cell) for cell in row] for row in first["rows"][:STATIC_ROWS]]
    note = f"{first['name']}: the first {count(len(rows), 'row')} of {first['of']:,}. The page's script shows the rest."
    body = [tag("div", tag("p", note, class_="note"), table(first["keys"], rows), class_="predictions")]
    failures = [words for one in found if (words := _failures(one, several=len(sets) > 1))]
    body += [tag("p", words, class_="warning") for words in failures[:MOST_FAILURES]]
    left = [f"{one.name} of {one.run}: {len(one.rows):,} of {one.of:,}" for one in found if len(one.rows) < one.of]
    if left:
        body.append(tag("p", f"The page holds only the first rows of {'; '.join(left)}.", class_="note"))
    return Section("predictions", "Predictions", body), sets


def _with_texts(subject: Subject) -> Iterator[RunData]:
    """The runs that texts are shown of: repeats stand with their arm."""
    return (run for run in subject.runs if run.record is not None)


# -- samples -----------------------------------------------------------------------------------------


def _legends(largest: float, has_environment: bool) -> Markup:
    edges = [number(sign * largest) for sign in (-1, 1)]
    advantage = [tag("span", class_=f"swatch t a{shade}") for shade in range(2 * SHADES + 1)]
    mismatch = [tag("span", class_=f"swatch t m{shade}") for shade in range(2 * SHADES + 1)]
    steps = ", ".join(map(str, MISMATCHES))
    return tag(
        "p",
        tag("span", "advantage ", edges[0], " ", advantage, " ", edges[1], class_="for-advantage"),
        tag(
            "span",
            "trainer less likely ",
            mismatch,
            f" trainer more likely; shades begin at ±{steps} nats",
            class_="for-mismatch",
        ),
        tag(
            "span",
            " ",
            tag("span", "in italics", class_="t given"),
            " what the environment wrote, which is not trained",
        )
        if has_environment
        else None,
        class_="legend",
    )


def _told(rollouts: Sequence[Rollout], steps: int) -> Markup:
    found = [abs(one) for rollout in rollouts for one in rollout.mismatches if one is not None and math.isfinite(one)]
    shown = len({one.step for one in rollouts})
    words = f"{count(len(rollouts), 'sample')} from {count(shown, 'step')} of the {steps:,} that have some."
    if found:
        words += (
            " Mismatch (trainer's log-probability before the step, less the sampler's), over the tokens shown: "
            f"{number(sum(found) / len(found))} nats on average whatever its sign, {number(max(found))} at most."
        )
    return tag("p", words, class_="note")


def _moments(rollouts: Sequence[Rollout], largest: float, numbers: list[dict[str, Any]]) -> Iterator[Markup]:
    for step in sorted({one.step for one in rollouts}):
        here = [one for one in rollouts if one.step == step]
        yield folded(
            f"Step {step + 1:,}: {count(len(here), 'sample')}",
            [_sample(one, largest, numbers) for one in here],
            opened=step == max(one.step for one in rollouts),
        )


def _sample(one: Rollout, largest: float, numbers: list[dict[str, Any]]) -> Markup:
    facts = [f"reward {number(one.reward)}" if one.reward is not None else "no reward"]
    facts += [f"{name} {number(value)}" for name, value in one.reward_parts.items() if len(one.reward_parts) > 1]
    facts += [
        f"{name} {value if isinstance(value, str) else number(value)}" for name, value in one.reward_logged.items()
    ]
    facts += [
        "truncated" if one.finish_reason == "length" else one.finish_reason,
        *_facts_of_trajectory(one.trajectory),
        f"group {one.group}" if one.group else "",
        count(one.all_tokens, "token") if one.all_tokens else "",
    ]
    place = len(numbers)
    numbers.append(
        {"advantage": one.advantages, "mismatch": one.mismatches, "sampler": one.sampler, "version": one.versions}
    )
    given = one.given + [False] * (len(one.tokens) - len(one.given))
    tokens = [
        tag("span", _shown(token), class_="t given") if is_given else _token(token, a, m, largest)
        for token, a, m, is_given in zip(one.tokens, one.advantages, one.mismatches, given, strict=True)
    ]
    more = f"… {one.all_tokens - len(one.tokens):,} more tokens" if one.all_tokens > len(one.tokens) else None
    return tag(
        "article",
        tag("p", ", ".join(filter(None, facts)), class_="note"),
        _prompt(one),
        tag("span", "tokens" if one.given else "assistant", class_="role") if one.turns else None,
        tag("div", tokens or one.completion, class_="text tokens", dir="auto", data_sample=place, tabindex="0"),
        tag("p", more, class_="note") if more else None,
        tag("output", class_="readout"),
        class_="sample",
    )


def _facts_of_trajectory(trajectory: Mapping[str, Any]) -> Iterator[str]:
    """How a conversation ended, what its turns were given, and what became of its calls."""
    if not trajectory:
        return
    yield str(trajectory.get("ending", ""))
    turns = trajectory.get("turns")
    yield count(turns, "turn") if isinstance(turns, int) else ""
    rewards = trajectory.get("turn_rewards")
    if isinstance(rewards, list) and any(reward is not None for reward in rewards):
        yield f"rewards of turns: {', '.join('–' if reward is None else number(reward) for reward in rewards)}"
    calls, errors = trajectory.get("tool_calls"), trajectory.get("tool_errors")
    if isinstance(calls, int) and calls:
        yield count(calls, "tool call") + (f", {errors:,} with an error" if isinstance(errors, int) and errors else "")


def _prompt(one: Rollout) -> Markup:
    """A conversation turn by turn, or the prompt's text; and folded, what the model was given, with special tokens."""
    turns = [
        (tag("span", role, class_="role"), tag("div", text, class_="text", dir="auto")) for role, text in one.turns
    ]
    shown = tag("div", turns or tag("div", one.prompt, class_="text", dir="auto"), class_="prompt")
    if not one.rendered:
        return shown
    rendered = tag("div", one.rendered.replace("\n", "↵\n"), class_="text rendered", dir="auto")
    return tag("div", shown, folded("The prompt as the model was given it", rendered))


def _shown(token: str) -> str:
    return token.replace("\n", "↵\n")


def _token(token: str, advantage: float | None, mismatch: float | None, largest: float) -> Markup:
    edges = [share * largest for share in (0.05, 1 / 3, 2 / 3)]
    classes = f"t {_shade('a', advantage, edges)}{_shade('m', mismatch, MISMATCHES)}".strip()
    return tag("span", _shown(token), class_=classes)


def _shade(letter: str, value: float | None, edges: Sequence[float]) -> str:
    """A class for how far a value is from zero: 0 to 2 below, 4 to 6 above; none near zero.

    >>> _shade("m", 0.2, MISMATCHES), _shade("m", -9.0, MISMATCHES), _shade("m", 0.001, MISMATCHES)
    ('m5 ', 'm0 ', '')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return f"{letter}x "
    far = sum(abs(value) >= edge and abs(value) > 0 for edge in edges)
    return f"{letter}{SHADES + (far if value > 0 else -far)} " if far else ""


# -- predictions -------------------------------------------------------------------------------------


def _failures(one: Predictions, *, several: bool) -> str:
    """How many rows could not be scored, and why most of them; empty if all could."""
    reasons = Counter(str(row["error"]) for row in one.rows if "error" in row)
    if not reasons:
        return ""
    who = f"{one.run}: {one.name}: " if several else ""
    often, times = reasons.most_common(1)[0]
    most = "all" if len(reasons) == 1 else f"{times:,} of them"
    return f"{who}{reasons.total():,} of {count(len(one.rows), 'row')} could not be scored, {most} with: {often}"


def _set(one: Predictions, *, several: bool) -> dict[str, Any]:
    there = dict.fromkeys(key for row in one.rows for key in row)
    keys = [key for key in _FIRST_COLUMNS if key in there] + [key for key in there if key not in _FIRST_COLUMNS]
    keys = keys[:MOST_COLUMNS]
    score = next((key for key in _SCORES if key in keys), None)
    name = f"{one.run}: {one.name}" if several else one.name
    rows = [[plain(row.get(key)) for key in keys] for row in one.rows]
    return {
        "name": f"{squeezed(name, 120)}, {one.when}", "of": one.of,
        "keys": [ended(key, 40) for key in keys], "rows": rows,
        "score": None if score is None else keys.index(score),
        "error": keys.index("error") if "error" in keys else None,
    }  # fmt: skip
