"""`proa replay`: repeats a run and says whether the same weights came out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ..callbacks import ConsoleProgress
from ..recipes.replaying import Replay, replay
from .endings import ending


def run_replay(folder: str, *, until: int | None, into: str | None, as_json: bool, flags: Sequence[str]) -> int:
    """Exit code: 0 the same, 1 not the same or failed, 2 wrong use."""
    console = Console(stderr=as_json)

    def work() -> int:
        outcome = replay(folder, until=until, into=into, flags=flags, show=[ConsoleProgress(every=20, console=console)])
        if as_json:
            print(json.dumps(outcome.as_dict(), indent=2))
        else:
            _show(console, outcome)
        return 0 if outcome.same else 1

    return ending(work)


def _show(console: Console, outcome: Replay) -> None:
    table = Table(title=f"weights after {outcome.state.global_step} steps, recorded and replayed", title_justify="left")
    for column in ("step", "checkpoint", "recorded", "replayed", ""):
        table.add_column(column)
    for one in outcome.compared:
        told = "the same" if one.same else "[red]not the same[/red]"
        table.add_row(str(one.step), one.name, one.recorded[:16], one.replayed[:16], told)
    console.print(table)
    for name in outcome.missing:
        console.print(f"{name} is not compared: the replay saved nothing at that step", highlight=False)
    if not outcome.compared:
        console.print("there was no checkpoint to compare with", highlight=False)
    where = f"the replay is in {outcome.folder}, its weights in {outcome.folder / 'model'}"
    console.print(where, highlight=False, soft_wrap=True)
