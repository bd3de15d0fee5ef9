"""`proa experiment`: runs an experiment with a line for every run, then shows the results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import load_experiment_config
from ..data.results import ArmResult, ExperimentResult
from ..terminal import JobConsole, tolerate_lost_output
from ..visible import print_visible
from .exit_codes import exit_code
from .text import count, duration, interval


@tolerate_lost_output()
def experiment(file: str, flags: Sequence[str]) -> int:
    """Exit code: 0 all runs are complete, 1 a run failed, 2 wrong use."""
    sys.path.insert(0, str(Path.cwd()))  # so that rewards, tasks and callbacks there can be named
    console = JobConsole()

    def work() -> int:
        config = load_experiment_config(file, flags)
        from ..experiments import Experiment  # imports torch: a mistake in the file need not wait for it

        planned = Experiment(config, report=lambda arm: _show_arm(console, arm))
        runs = count(sum(len(chain) for chain in planned.plan), "run")
        console.print(f"{config.name}: {runs} in {config.folder}", highlight=False, soft_wrap=True)
        result = planned.run()
        show_result(console, result)
        return 0 if result.status == "completed" else 1

    try:
        return exit_code(work)
    except KeyboardInterrupt:
        print_visible(f"resume with {shlex.join(['proa', 'experiment', file, *flags])}", file=sys.stderr)
        raise


def _show_arm(console: Console, arm: ArmResult) -> None:
    scores = ", ".join(
        f"{name}.{metric} {value:.4g}"
        for name, metrics in arm.eval_metrics.items()
        for metric, value in metrics.items()
        if metric != "completion_tokens"
    )
    words = [f"{arm.name}: {arm.status}", duration(arm.train_seconds) if arm.train_seconds else "", scores]
    line = ", ".join(word for word in words if word)
    console.print(Text(f"{line}: {arm.error}" if arm.error else line), soft_wrap=True)


def show_result(console: Console, result: ExperimentResult) -> None:
    """Arms with their intervals, and the conclusion."""
    if result.success_metric is not None:
        table = Table(title=f"{result.name}: {result.success_metric}", title_justify="left")
        for column in ("arm", "repeats", "mean", "95 % interval"):
            table.add_column(column)
        for name, group in result.groups.items():
            estimate = group.metrics.get(result.success_metric)
            best = " *" if name == result.best_arm else ""
            if estimate is None or estimate.mean is None:
                table.add_row(name + best, "0", "none", "")
            else:
                table.add_row(
                    name + best,
                    str(estimate.n),
                    f"{estimate.mean:.4g}",
                    interval(estimate.low, estimate.high, estimate.n),
                )
        console.print(table)
    if result.conclusion:
        console.print(Text(result.conclusion), soft_wrap=True)
