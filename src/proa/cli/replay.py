"""`proa replay`: repeats a run and compares the weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as transformers_logging

from ..callbacks import ConsoleProgress
from ..run.replay import Replay, replay
from ..terminal import JobConsole, tolerate_lost_output
from .exit_codes import exit_code
from .text import count


@tolerate_lost_output()
def run_replay(folder: str, *, until: int | None, into: str | None, as_json: bool, flags: Sequence[str]) -> int:
    """Exit code: 0 same weights, or nothing to compare; 1 other weights, or failed; 2 wrong use."""
    sys.path.insert(0, str(Path.cwd()))  # so that rewards and tasks there can be named
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    console = JobConsole(stderr=as_json)

    def work() -> int:
        outcome = replay(folder, until=until, into=into, flags=flags, show=[ConsoleProgress(every=20, console=console)])
        if as_json:
            print(json.dumps(outcome.as_dict(), indent=2))
        else:
            _show(console, outcome)
        return 1 if outcome.same is False else 0

    return exit_code(work, paths=[into or folder])


def _show(console: Console, outcome: Replay) -> None:
    if outcome.compared:
        console.print(_table(outcome))
    lines = [f"{name} was not compared: the replay has no checkpoint of that step" for name in outcome.missing]
    if not outcome.compared:
        steps = count(outcome.state.global_step, "step")
        lines.append(f"nothing was compared: the run has no checkpoint within the {steps} that were replayed")
    lines += [f"{key} was {before!r} and is {now!r}" for key, (before, now) in outcome.changes.items()]
    lines += [*outcome.other_inputs, *outcome.other_libraries]
    if outcome.learns_otherwise or outcome.other_inputs:
        lines.append("this changes what is learned: a difference is to be expected")
    elif outcome.other_libraries:
        lines.append("with these the last bits may differ, and so all digests: that they do shows nothing")
    elif outcome.changes:
        lines.append("this does not change what is learned, except perhaps the last bits")
    lines.append(f"the replay is in {outcome.folder}, its weights in {outcome.folder / 'model'}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _table(outcome: Replay) -> Table:
    steps = count(outcome.state.global_step, "step")
    table = Table(title=f"weights after {steps}, recorded and replayed", title_justify="left")
    for column in ("step", "checkpoint", "recorded", "replayed", ""):
        table.add_column(column)
    for one in outcome.compared:
        verdict = Text("the same") if one.same else Text("not the same", style="red")
        table.add_row(str(one.step), one.name, one.recorded[:16], one.replayed[:16], verdict)
    return table
