"""Where the time went and where every sample is: shares of time, the timeline, the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .html import Markup, tag
from .learning import pipeline_curves
from .metrics import number_in
from .overview import ledger_of
from .reading import RunData, Subject
from .section import Section, folded, one_of, table
from .spans import KINDS, kinds_in
from .text import count, number, percent
from .timeline_chart import close_up, legend, shares, whole_run


def staleness_and_idle(subject: Subject) -> Section | None:
    """Curves of both, and of a few runs how each actor spent its time."""
    section = pipeline_curves(subject) or Section("pipeline", "Staleness and idle time", [])
    section.body += _of_each_run(subject, {run: list(_shares(run)) for run in subject.told})
    return section if section.body else None


def timeline(subject: Subject) -> Section | None:
    """Who did what when."""
    parts: dict[RunData, list[Markup]] = {}
    for run in subject.told:
        if run.timeline is not None:
            shown = [legend(kinds_in(run.timeline.lanes)), whole_run(run.timeline), close_up(run.timeline)]
            parts[run] = [part for part in shown if part is not None]
    body = _of_each_run(subject, parts)
    return Section("timeline", "Pipeline timeline", body) if body else None


def performance(subject: Subject) -> Section | None:
    """Throughput of each actor, where evaluators measured it."""
    found = [(run, run.record.header.get("performance", {})) for run in subject.runs if run.record is not None]
    measured = [(run, actor, one) for run, actors in found for actor, one in actors.items()]
    if not measured:
        return None
    activities = list(dict.fromkeys(name for _, _, one in measured for name in one["shares"]))
    head = ["run", "actor", *_RATES, "seconds", *(f"{name}, %" for name in activities)]
    rows = [
        (
            run.key, actor, *(number(one.get(key)) for key in _RATES.values()), number(one.get("seconds")),
            *(percent(one["shares"].get(name, "")).removesuffix(" %") for name in activities),
        )
        for run, actor, one in measured
    ]  # fmt: skip
    note = "As the evaluators trainer_performance and maker_performance measured it, after their warm-up."
    body = [tag("p", note, class_="note"), table(head, rows, numbers=range(2, len(head)))]
    return Section("performance", "Performance", body)


_RATES = {"samples/s": "samples_per_second", "tokens/s": "tokens_per_second", "TFLOP/s": "tflops"}


def ledger(subject: Subject) -> Section | None:
    """Where every sample and every token is."""
    found = [(run, ledger_of(run.record)) for run in subject.runs if run.record is not None]
    found = [(run, sums) for run, sums in found if sums]
    if not found:
        return None
    reasons = sorted({str(reason) for _, sums in found for reason in _inner(sums, "dropped")})
    head = [
        "run",
        "leased",
        "trained",
        "buffered",
        "in flight",
        *(f"dropped: {reason}" for reason in reasons),
        "adds up",
    ]
    rows = [(run.key, *_samples(sums, reasons), _closes(sums)) for run, sums in found]
    note = "Where every sample is: leased = trained + buffered + in flight + dropped."
    body = [tag("p", note, class_="note"), table(head, rows, numbers=range(1, len(head) - 1))]
    if any(_inner(sums, "tokens") for _, sums in found):
        tokens = [(run.key, *(number(_inner(sums, "tokens").get(key)) for key in _TOKENS)) for run, sums in found]
        body += [tag("h3", "Tokens"), table(["run", *_TOKENS], tokens, numbers=range(1, len(_TOKENS) + 1))]
    return Section("ledger", "Ledger", body)


_TOKENS = ("made", "trained", "buffered", "dropped")


def _shares(run: RunData) -> Iterator[Markup]:
    spent = _spent(run)
    if not spent:
        return
    kinds = [kind for kind in KINDS if any(kind in seconds for seconds in spent.values())]
    kinds += sorted({kind for seconds in spent.values() for kind in seconds} - set(KINDS))
    yield legend(kinds)
    yield shares(spent, kinds)
    rows = []
    for actor, seconds in spent.items():
        total = sum(seconds.values()) or 1.0
        rows.append(
            (actor, *(f"{100 * seconds.get(kind, 0.0) / total:.1f}" for kind in kinds), number(sum(seconds.values())))
        )
    yield folded(
        "As numbers",
        table(["actor", *(f"{kind}, %" for kind in kinds), "seconds"], rows, numbers=range(1, len(kinds) + 2)),
    )


def _spent(run: RunData) -> dict[str, dict[str, float]]:
    """Seconds by actor and kind: from the spans, or else as the actors counted them themselves."""
    if run.timeline is not None:
        return {lane.actor: lane.seconds() for lane in run.timeline.lanes}
    live = run.record.live if run.record is not None else None
    if live is None:
        return {}
    return {
        actor.name: {kind: number_in(seconds) or 0.0 for kind, seconds in actor.spent.items()}
        for actor in live.actors
        if actor.spent
    }


def _of_each_run(subject: Subject, parts: Mapping[RunData, Sequence[Markup]]) -> list[Markup]:
    """On the page of a run as they are; of an experiment one run at a time."""
    shown = {run: inside for run, inside in parts.items() if inside}
    if subject.experiment is None:
        return [part for inside in shown.values() for part in inside]
    choices = [
        folded(run.title, *inside, opened=place == 0) for place, (run, inside) in enumerate(shown.items())
    ]  # fmt: skip
    return [one_of(choices, "run")] if choices else []


def _samples(sums: Mapping[str, Any], reasons: Sequence[str]) -> Iterator[str]:
    for key in ("leased", "trained", "buffered", "in_flight"):
        yield number(sums.get(key, 0))
    dropped = _inner(sums, "dropped")
    for reason in reasons:
        yield number(dropped.get(reason, 0))


def _closes(sums: Mapping[str, Any]) -> str:
    dropped = [value for value in _inner(sums, "dropped").values() if isinstance(value, int)]
    parts = [value for key in ("trained", "buffered", "in_flight") if isinstance(value := sums.get(key, 0), int)]
    leased = sums.get("leased", 0)
    missing = (leased if isinstance(leased, int) else 0) - sum(parts) - sum(dropped)
    return "yes" if missing == 0 else f"no: {count(abs(missing), 'sample')} {'missing' if missing > 0 else 'too many'}"


def _inner(sums: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = sums.get(key)
    return found if isinstance(found, Mapping) else {}
