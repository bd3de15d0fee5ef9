"""What was set: differences between arms, the whole configuration, and the checkpoints that came of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..record.secrets import redact
from .html import Markup, tag
from .metrics import number_in
from .reading import RunData, Subject
from .section import Section, folded, table
from .text import count, ended, number

_OF_EACH_RUN = ("name", "seed")
NOT_SET = "not set"
MOST_CHECKPOINTS = 200
MOST_IN_WORDS = 6
"""Settings; a table has all of them."""
MOST_SCORES = 6


def configuration(subject: Subject) -> Section | None:
    """Where arms differ; and all keys."""
    flat = _of_arms(subject)
    if not flat:
        return None
    differing = _differing(flat)
    body: list[Markup] = []
    if len(flat) > 1:
        body += _differences(flat, differing)
    keys = dict.fromkeys(key for config in flat.values() for key in config)
    rest = [key for key in keys if key not in differing and (subject.experiment is None or key not in _OF_EACH_RUN)]
    rows = [(key, next(config[key] for config in flat.values() if key in config)) for key in rest]
    title = f"{count(len(rows), 'key')}{' that all arms share' if len(flat) > 1 else ''}"
    body.append(folded(title, table(("key", "value"), rows)))
    return Section("configuration", "Configuration", body)


def differences_in_words(subject: Subject) -> str:
    """Which settings differ between the arms, with their values; empty where none does, or there is one arm."""
    flat = _of_arms(subject)
    words = []
    for key in _differing(flat):
        values = dict.fromkeys(config.get(key, NOT_SET) for config in flat.values())
        words.append(f"{key} ({', '.join(ended(value, 60) for value in values)})")
    left = len(words) - MOST_IN_WORDS
    return "; ".join([*words[:MOST_IN_WORDS], *([f"and {left:,} more"] if left > 0 else [])])


def changes_in_words(changes: Any) -> list[str]:
    """The settings that a run was resumed with, where they are others than before.

    >>> changes_in_words({"makers": {"before": 2, "now": 1}, "reward.timeout": {"before": None, "now": 5.0}})
    ['makers was 2 and is 1', 'reward.timeout was not set and is 5.0']
    """
    words = []
    for key, change in changes.items() if isinstance(changes, Mapping) else ():
        if not isinstance(change, Mapping) or key in ("name", "output_dir"):  # the folder was moved
            continue
        before, now = (_said(redact({key: change.get(side)})[key]) for side in ("before", "now"))
        if before != now:  # else it is a secret, given again
            words.append(f"{key} was {before} and is {now}")
    return words


def _said(value: Any) -> str:
    return NOT_SET if value is None else ended(value if isinstance(value, str) else json.dumps(value), 200)


def flattened(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys with their values as text.

    >>> dict(flattened({"a": {"b": 1}, "c": ["x"], "d": {}}))
    {'a.b': '1', 'c.0': 'x', 'd': '{}'}
    """
    inner: Any = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    parts = list(inner)
    if not parts:
        yield key, value if isinstance(value, str) else json.dumps(value)
    for name, one in parts:
        yield from flattened(one, f"{key}.{name}" if key else str(name))


def checkpoints(subject: Subject) -> Section | None:
    """What was saved, with the scores it had then."""
    found = [(run, row) for run in subject.runs for row in run.checkpoints]
    if not found:
        return None
    scores = _score_names(subject.runs)
    rows = []
    for run, row in found[-MOST_CHECKPOINTS:]:
        state = "final" if row.final else "kept" if row.name in run.kept else "pruned"
        size = sum(number_in(size) or 0.0 for size in row.sizes.values())
        values = [number(row.metrics.get(name)) for name in scores]
        rows.append(
            [run.key, row.name, number(row.step), number(row.policy_version), state, f"{size / 1e6:,.1f}", *values]
        )
    head = ["run", "checkpoint", "steps done", "version", "files", "size, MB", *scores]
    if subject.experiment is None:
        head, rows = head[1:], [row[1:] for row in rows]
    body = [
        table(head, rows, numbers=[head.index(name) for name in head[head.index("steps done") :] if name != "files"])
    ]
    if len(found) > MOST_CHECKPOINTS:
        body.insert(0, tag("p", f"The last {MOST_CHECKPOINTS} of {len(found):,}.", class_="note"))
    return Section("checkpoints", "Checkpoints", body)


def _of_arms(subject: Subject) -> dict[str, dict[str, str]]:
    """The flat configuration of each arm, once more without secrets: an older version of Proa, or another program, may
    have written them down."""
    return {run.arm: dict(flattened(redact(run.config))) for run in subject.told if run.config}


def _differing(flat: Mapping[str, Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for config in flat.values() for key in config if key not in _OF_EACH_RUN)
    return [key for key in keys if len({config.get(key, NOT_SET) for config in flat.values()}) > 1]


def _differences(flat: Mapping[str, Mapping[str, str]], keys: Sequence[str]) -> list[Markup]:
    if not keys:
        return [tag("p", "The arms' configurations are the same.")]
    rows = [(key, *(config.get(key, NOT_SET) for config in flat.values())) for key in keys]
    return [tag("p", f"Where the arms differ: {count(len(keys), 'key')}."), table(["key", *flat], rows)]


def _score_names(runs: Sequence[RunData]) -> list[str]:
    """Metrics of evals first, then reward and loss."""
    there: dict[str, None] = {}
    for run in runs:
        evals = tuple(f"{name}." for name in (run.record.eval_names if run.record else ()))
        for row in run.checkpoints:
            there |= dict.fromkeys(name for name in row.metrics if evals and name.startswith(evals))
    for name in ("reward", "loss"):
        if any(name in row.metrics for run in runs for row in run.checkpoints):
            there[name] = None
    return [name for name in there if not name.endswith(".completion_tokens")][:MOST_SCORES]
