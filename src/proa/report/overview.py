"""The top of the page: what this is, how far it has come, what it came to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..record.reading import QUIET_SECONDS, RunSummary
from .html import Markup, tag
from .reading import RunData, Subject
from .section import Section, table
from .settings import changes_in_words, differences_in_words
from .text import count, duration, moment, number, ran

_WORST_FIRST = ("failed", "cut off", "cannot be read", "cancelled", "running", "not begun", "completed")


def overview(subject: Subject) -> Section:
    """Status, the main figures, and whatever went wrong."""
    if subject.experiment is not None:
        return Section("overview", "Overview", list(_of_experiment(subject, subject.experiment)))
    return Section("overview", "Overview", list(_of_run(subject.runs[0])))


def badge(status: str) -> Markup:
    known = status if status in _WORST_FIRST else "other"
    return tag("span", status, class_=f"badge {known.replace(' ', '-')}")


# -- a run -------------------------------------------------------------------------------------------


def _of_run(run: RunData) -> Iterator[Markup]:
    record = run.record
    assert record is not None
    yield tag("p", badge(run.status), " ", _how_far(record), class_="standing")
    for warning in _warnings(record):
        yield tag("p", warning, class_="warning")
    yield tag("div", list(_run_tiles(run, record)), class_="tiles")
    if record.running and record.live is not None:
        yield _actors(record)
    yield tag("dl", list(_facts(record)))


def _how_far(record: RunSummary) -> str:
    total = (record.live.of if record.live else 0) or record.total_steps
    words = [f"{record.steps_done:,}{f' of {total:,}' if total else ''} steps"]
    if record.running_time is not None:
        is_over = not record.running or record.cut_off
        words.append(f"{'ran' if is_over else 'running for'} {ran(record.running_time)}")
    reason = record.header.get("stop_reason")
    if reason and record.header["status"] != "failed":
        by = record.header.get("stopped_by")
        words.append(f"{reason}{f' (by {by})' if by else ''}")
    return ", ".join(words)


def _warnings(record: RunSummary) -> Iterator[str]:
    if record.cut_off:
        yield f"The run was cut off: its process is gone. No sign of life for {duration(record.quiet_seconds)}."
    elif record.running:
        words = (
            f"The run was going on when this page was made, on {moment(record.read_at)}; what follows is as of then."
        )
        if record.quiet_seconds > QUIET_SECONDS:
            words += f" It had given no sign of life for {duration(record.quiet_seconds)}."
        yield words
    yield from _failures(record.header)


def _failures(header: Mapping[str, Any]) -> Iterator[str]:
    """What failed, and what the first failure of each kind said."""
    if header["status"] == "failed":
        yield f"The run failed: {header.get('stop_reason') or 'its record does not say why'}"
    failures = header.get("reward_failures")
    if failures:
        words = f"{number(failures.get('samples', 0))} samples had no reward and were left out"
        yield f"{words}. The first said: {failures.get('first', '')}"
    first = header.get("first_callback_errors", {})
    for name, times in header.get("callback_errors", {}).items():
        said = f" The first time it said: {first[name]}" if first.get(name) else ""
        yield f"Callback {name} failed {'once' if times == 1 else f'{number(times)} times'}.{said}"


def _run_tiles(run: RunData, record: RunSummary) -> Iterator[Markup]:
    for name, series in run.metrics.evals.items():
        if not name.endswith(".completion_tokens") and len(series):
            yield _change_tile(name, series.values[0], series.values[-1])
    name = "reward" if "reward" in run.metrics.training else "loss"
    if name in run.metrics.training:
        series = run.metrics.training[name]
        yield _change_tile(name, series.values[0], series.values[-1])
    ledger = ledger_of(record)
    if ledger.get("trained"):
        yield tile("samples trained on", number(ledger["trained"]))
    rate = record.steps_per_second
    if rate:
        yield tile("pace", f"{rate:.3g} steps/s" if rate >= 1 else f"{duration(1 / rate)} a step")


def tile(name: str, value: object, note: object = "") -> Markup:
    return tag(
        "div", tag("span", name, class_="what"), tag("strong", value), tag("span", note, class_="note"), class_="tile"
    )


def _change_tile(name: str, first: float, last: float) -> Markup:
    moved = last - first
    note = f"from {number(first)}" if math.isfinite(moved) and moved else ""
    return tile(name, number(last), note)


def ledger_of(record: RunSummary) -> Mapping[str, Any]:
    """Of a run that goes on it is the live view that knows."""
    live = record.live.ledger if record.running and record.live is not None else {}
    ledger: Mapping[str, Any] = live or record.header.get("ledger", {})
    return ledger


def _facts(record: RunSummary) -> Iterator[Markup]:
    header = record.header
    facts: dict[str, Any] = {"folder": record.folder}
    if "started" in header:
        facts["started"] = moment(header["started"])
    facts |= {"machine": header.get("host"), "policy version": header.get("policy_version")}
    facts["weights (SHA-256)"] = header.get("weights_digest")
    libraries = header.get("libraries")
    if isinstance(libraries, Mapping):
        facts["made with"] = ", ".join(f"{name} {version}" for name, version in libraries.items())
    resumed = header.get("resumed")
    if isinstance(resumed, list) and resumed:
        facts["resumed"] = [tag("div", _resumed(entry)) for entry in resumed]
    for name, value in facts.items():
        if value is not None:
            yield tag("dt", name)
            yield tag("dd", value if isinstance(value, list) else number(value))


def _resumed(entry: Any) -> str:
    """When and from where a run was resumed, with which settings changed."""
    if not isinstance(entry, Mapping):
        return str(entry)
    when = moment(entry["at"]) if isinstance(entry.get("at"), int | float) else ""
    place = f"from {entry['checkpoint']}" if entry.get("checkpoint") else ""
    why = f"after {entry['reason']}" if entry.get("reason") else ""
    return "; ".join([" ".join(filter(None, [when, place, why])), *changes_in_words(entry.get("changes"))])


def _actors(record: RunSummary) -> Markup:
    assert record.live is not None
    live = record.live
    rows = [
        (actor.name, actor.health, actor.doing, duration(max(0.0, live.time - actor.since)) if actor.since else "",
         number(actor.version) if actor.version >= 0 else "", number(actor.tokens), number(actor.restarts))
        for actor in live.actors
    ]  # fmt: skip
    head = ("actor", "health", "doing", "for", "version", "tokens", "restarts")
    return table(head, rows, numbers=(4, 5, 6))


# -- an experiment -----------------------------------------------------------------------------------


def _of_experiment(subject: Subject, content: Mapping[str, Any]) -> Iterator[Markup]:
    statuses = Counter(run.status for run in subject.runs)
    ordered = sorted(statuses, key=lambda status: _WORST_FIRST.index(status) if status in _WORST_FIRST else -1)
    runs = ", ".join(f"{statuses[status]} {status}" for status in ordered)
    said = str(content.get("status", "unknown"))
    yield tag("p", badge(said), " ", f"{count(len(subject.runs), 'run')}: {runs}", class_="standing")
    if said == "running" and not statuses["running"]:
        yield tag(
            "p", "It says that it is running, and none of its runs is: it was probably cut off.", class_="warning"
        )
    elif said == "running":
        words = f"It was going on when this page was made, on {moment(subject.read_at)}; what follows is as of then."
        yield tag("p", words, class_="warning")
    failed = [run for run in subject.runs if run.error]
    if failed:
        words = f"{len(failed):,} of {count(len(subject.runs), 'run')} went wrong. {failed[0].key}: {failed[0].error}"
        yield tag("p", words, class_="warning")
    if content.get("hypothesis"):
        yield tag("p", tag("b", "Hypothesis: "), str(content["hypothesis"]))
    if content.get("conclusion"):
        yield tag("p", tag("b", "Conclusion: "), str(content["conclusion"]), class_="conclusion")
    repeats = sorted({len(arm.runs) for arm in subject.arms})
    tiles = [
        tile("arms", number(len(subject.arms))),
        tile("repeats of each", " to ".join(map(str, repeats[:1] + repeats[1:][-1:]))),
    ]
    if content.get("best_arm"):
        tiles.append(tile("best mean", str(content["best_arm"]), number(content.get("best_score"))))
    yield tag("div", tiles, class_="tiles")
    description = content.get("config", {}).get("description") if isinstance(content.get("config"), Mapping) else None
    if description:
        yield tag("p", str(description))
    facts = {"arms differ in": differences_in_words(subject), "folder": str(subject.folder)}
    yield tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in facts.items() if value])
