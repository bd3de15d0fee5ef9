"""`proa show`: a run's status, scores and metrics; while it is running, also what each actor does and waits for."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..data.state import ROW_KEYS
from ..errors import SettingError
from ..private_files import write_private
from ..record.checkpoints import CheckpointManager
from ..record.live import ActorView, LiveView
from ..record.reading import QUIET_SECONDS, Process, RunSummary, read_run
from ..record.run_folder import BrokenRecordError
from ..record.spans import SpanRecord, chrome_trace
from ..terminal import Console
from ..visible import print_visible, single_line
from .exit_codes import exit_code
from .show_experiment import show_experiment
from .text import (
    STYLES,
    count,
    curve,
    day,
    duration,
    json_text,
    ledger_line,
    metrics_line,
    number,
    percent,
    progress,
    ran,
)

FOLLOW_SECONDS = 0.5


def show(folder: str, *, as_json: bool = False, follow: bool = False, trace: str | None = None) -> int:
    """Exit code: 0 done, 1 a broken record, 2 wrong use."""

    def work() -> int:
        try:
            return _show(Path(folder), as_json, follow, trace)
        except BrokenRecordError as error:
            print_visible(error, file=sys.stderr)
            return 1

    return exit_code(work, paths=[trace, folder])


def _show(folder: Path, as_json: bool, follow: bool, trace: str | None) -> int:
    console = Console(highlight=False)
    if not (folder / "run.json").is_file() and (folder / "experiment.json").is_file():
        for flag, is_given in {"--follow": follow, "--trace": trace is not None}.items():
            if is_given:
                raise SettingError(f"{folder} is an experiment's folder, and {flag} is for one run: name one inside it")
        return show_experiment(folder, console, as_json)
    record = read_run(folder)
    if trace is not None:
        write_private(Path(trace), json.dumps(chrome_trace(SpanRecord(record.folder).read())))
        print_visible(f"open {trace} at https://ui.perfetto.dev", file=sys.stderr)
    elif as_json:
        (last,) = deque(_follow(record) if follow else [record], maxlen=1)
        print(json_text(as_object(last)))
    elif follow:
        with Live(Group(*_parts(record)), console=console, auto_refresh=False) as screen:
            for latest in _follow(record):
                screen.update(Group(*_parts(latest)), refresh=True)
    else:
        for part in _parts(record):
            console.print(part, soft_wrap=isinstance(part, Text))
    return 0


def as_object(record: RunSummary) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "folder": str(record.folder),
        "header": record.header,
        "live": None if record.live is None else record.live.to_dict(),
        "metrics": record.last_metrics,
        "evals": record.evals,
        "steps_per_second": record.steps_per_second,
        "cut_off": record.cut_off,
        "checkpoints": [row.as_dict() for row in CheckpointManager(record.folder).rows],
    }


def _parts(record: RunSummary) -> list[RenderableType]:
    """What is shown of a run, from top to bottom."""
    header, live = record.header, record.live
    parts: list[RenderableType] = [_headline(record), _times(record)]
    parts += [Text(warning, style="bold red") for warning in _warnings(record)]
    ledger = header.get("ledger")
    if record.running and live is not None:
        kept = ", ".join(map(str, live.versions)) or "none"
        age = duration(max(0.0, record.read_at - live.time))
        parts += [
            Text(f"{live.runtime}, episode {live.episode}, version {live.version} (kept: {kept}), as of {age} ago"),
            _actors(live),
            *(Text(single_line(line)) for line in _remarks(live)),
        ]
        ledger = live.ledger
    if ledger:
        parts.append(Text(ledger_line(ledger)))
    parts += [Text(f"eval {single_line(name)}: {metrics_line(scores)}") for name, scores in record.evals.items()]
    parts += [Text(single_line(line)) for line in _performance(header)]
    checkpoints = [row.name + (" (final)" if row.final else "") for row in CheckpointManager(record.folder).rows]
    if checkpoints:
        parts.append(Text(single_line(f"checkpoints: {', '.join(checkpoints)}")))
    if record.cut_off or header["status"] in ("cancelled", "failed"):
        parts.append(Text(single_line(f"resume it with proa resume {record.folder}")))
    if failures := header.get("reward_failures"):
        words = f"{count(failures.get('samples', 0), 'sample')} had no reward; the first: {failures.get('first', '')}"
        parts.append(Text(single_line(words), style="red"))
    if header.get("callback_errors"):
        parts.append(Text(f"callback errors: {metrics_line(header['callback_errors'])}", style="red"))
    for name, said in header.get("first_callback_errors", {}).items():
        parts.append(Text(single_line(f"{name} first said: {said}"), style="red"))
    return [*parts, *_metrics(record)]


def _performance(header: Mapping[str, Any]) -> Iterator[str]:
    """What evaluators measured, a line for each actor."""
    for actor, measured in header.get("performance", {}).items():
        rates = {"samples/s": "samples_per_second", "tokens/s": "tokens_per_second", "TFLOP/s": "tflops"}
        words = [f"{number(measured.get(key, 0.0))} {unit}" for unit, key in rates.items()]
        shares = ", ".join(f"{name} {percent(share)}" for name, share in measured["shares"].items())
        found = (
            f"{', '.join(words)}; time {shares}" if measured.get("samples") else "nothing measured after the warm-up"
        )
        yield f"performance of {actor}: {found}"


def _follow(record: RunSummary) -> Iterator[RunSummary]:
    """Read the run again and again, until it has ended or its process is certainly gone."""
    yield record
    while record.running and not record.cut_off:
        time.sleep(FOLLOW_SECONDS)
        record = read_run(record.folder)
        yield record


def _headline(record: RunSummary) -> Text:
    """`demo: running, 12 of 40 steps, 1.8 steps/s, about 16 s left`."""
    header, rate = record.header, record.steps_per_second
    total = (record.live.of if record.live else 0) or record.total_steps
    status = "cut off" if record.cut_off else header["status"]
    words = [progress(record.steps_done, total, "step")]
    if rate is not None:
        words.append(f"{rate:.3g} steps/s" if rate >= 1 else f"{duration(1 / rate)} a step")
        if record.running and not record.cut_off and total > record.steps_done:
            words.append(f"about {duration((total - record.steps_done) / rate)} left")
    reason = str(header.get("stop_reason") or "").replace("\n", "\n  ")  # an error may have several lines
    by = f" (by {header['stopped_by']})" if header.get("stopped_by") else ""
    return Text.assemble(
        (f"{single_line(record.folder.resolve().name)}: ", "bold"),
        (status, STYLES["failed"] if record.cut_off else STYLES.get(status, "")),
        f", {', '.join(words)}",
        f"\n{reason}{by}" if reason else "",
    )


def _times(record: RunSummary) -> Text:
    header = record.header
    words = []
    if record.running_time is not None:
        begun = day(header["started"], "%Y-%m-%d %H:%M:%S")
        is_over = not record.running or record.cut_off
        words.append(f"started {begun}, {'ran' if is_over else 'running for'} {ran(record.running_time)}")
    if "pid" in header:
        words.append(f"process {header['pid']} on {header.get('host', 'an unknown machine')}")
    if "weights_digest" in header:
        words.append(f"weights {header['weights_digest'][:16]}")
    if "policy_version" in header:
        words.append(f"version {header['policy_version']}")
    return Text(", ".join(words), style="dim")


def _warnings(record: RunSummary) -> Iterator[str]:
    """Signs that a run whose header says `running` may not be."""
    if not record.running:
        return
    quiet = duration(record.quiet_seconds)
    pid = record.header.get("pid")
    if record.cut_off:
        yield f"no sign of life for {quiet}, and its process {pid} is gone: the run was cut off"
    elif record.is_starting:
        yield f"starting up for {quiet}: nothing is written yet"
    elif record.live is not None and record.quiet_seconds > QUIET_SECONDS:
        if record.process is Process.ALIVE:
            yield f"no sign of life for {quiet}, but process {pid} exists: it hangs, is stopped, or cannot write here"
        else:
            yield f"no sign of life for {quiet}: its process is probably gone"


def _actors(live: LiveView) -> Table:
    table = Table(title_justify="left")
    for column in ("actor", "health", "doing"):
        table.add_column(column)
    for column in ("for", "version", "leases", "tokens", "restarts"):
        table.add_column(column, justify="right", no_wrap=True)
    for actor in live.actors:
        table.add_row(
            Text(actor.name),
            Text(actor.health, style=STYLES.get(actor.health, "")),
            Text(actor.doing),
            *(Text(cell) for cell in _counts(actor, live.time)),
        )
    return table


def _counts(actor: ActorView, now: float) -> tuple[str, ...]:
    is_maker = actor.role == "maker"
    return (
        duration(max(0.0, now - actor.since)) if actor.since else "",
        str(actor.version) if actor.version >= 0 else "",
        str(actor.leases) if is_maker else "",
        f"{actor.tokens:,}",
        str(actor.restarts) if is_maker else "",
    )


def _remarks(live: LiveView) -> Iterator[str]:
    """Waits, longest first; lost actors with the reason; where their output is."""
    for wait in sorted(live.waits, key=lambda wait: -wait.seconds):
        yield f"{wait.owner} has waited {duration(wait.seconds)} for {wait.reason}"
    for actor in live.actors:
        if actor.reason:
            which = actor.name if actor.health == "dead" else f"the previous {actor.name}"
            yield f"{which} was lost: {actor.reason}"
        if actor.log:
            yield f"{actor.name} prints to {actor.log}"


def _metrics(record: RunSummary) -> Iterator[RenderableType]:
    last = record.last_metrics
    if last is None:
        return
    prefixes = tuple(f"{name}." for name in record.eval_names)
    shown = [name for name in last if name not in ROW_KEYS and not name.startswith(prefixes)]
    yield Text(f"step {last['step'] + 1}:")
    yield Columns([Text(single_line(f"  {name} {number(last[name])}")) for name in shown], column_first=True)
    name = "reward" if any("reward" in row for row in record.rows) else "loss"
    values = curve(record.rows, name)
    if len(values) > 1:
        span = "the run" if record.all_rows else f"the last {count(last['step'] - record.rows[0]['step'] + 1, 'step')}"
        yield Text(f"{name} over {span}: {values}")
