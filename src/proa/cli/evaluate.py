"""`proa eval`: scores a model, or a run's weights, on a task."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers.utils import logging as transformers_logging

from ..config import ConfigError, RunConfig, load_run_config
from ..config.run_config import EvalSection
from ..private_files import make_private_folder
from ..recipes.benchmark import Scored
from ..recipes.model_eval import evaluate_folder
from ..recipes.resuming import config_in
from ..record.checkpoints import CheckpointManager
from ..record.evals import AFTER_TRAINING, write_predictions
from .endings import ending


def evaluate(
    source: str, settings: dict[str, Any], *, checkpoint: str | None, output: str | None, as_json: bool
) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong use."""
    sys.path.insert(0, str(Path.cwd()))  # so that tasks and metrics beside it can be named
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def work() -> int:
        folder, config = _find(Path(source), settings, checkpoint)
        section = _section(config, settings)
        scored = evaluate_folder(folder, section, config, any_length=not (Path(source) / "run.json").exists())
        if output is not None:
            make_private_folder(Path(output).resolve().parent)
            write_predictions(Path(output), scored.predictions)
        _show(scored, folder, as_json)
        return 0

    return ending(work)


def _find(source: Path, settings: dict[str, Any], checkpoint: str | None) -> tuple[Path, RunConfig]:
    """The folder of the weights, and a configuration that says how they are used."""
    if (source / "run.json").is_file():
        config = config_in(source)
        manager = CheckpointManager(source)
        row = manager.row(checkpoint) if checkpoint else manager.final() or manager.latest()
        if row is None or row.sampler_path is None:
            raise ConfigError(f"{source} has no checkpoint yet: there are no weights to score")
        manager.verify(row)
        return source / row.sampler_path, config
    if not source.is_dir():
        raise ConfigError(f"there is no folder {source}: give a run's folder, or one with a model or an adapter")
    if checkpoint is not None:
        raise ConfigError(f"{source} is no run's folder: it has no checkpoints")
    if settings.get("source") is None:
        raise ConfigError("say what it is to be scored on: --task NAME, a JSONL file, or package.module:name")
    # The rest of a run is not asked for; it only must fit together.
    rest: dict[str, Any] = {"total_steps": 1, "train_batch_size": 2, "sampling": {"group_size": 2}}
    return source, load_run_config(None, (), model=str(source), task=settings["source"], **rest)


def _section(config: RunConfig, settings: dict[str, Any]) -> EvalSection:
    given = {key: value for key, value in settings.items() if value is not None}
    named = next((one for one in config.eval if one.name == given.get("name")), None)
    base = {} if named is None else named.model_dump()
    base.setdefault("name", AFTER_TRAINING)
    try:
        return EvalSection(**{**base, **given})
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _show(scored: Scored, folder: Path, as_json: bool) -> None:
    result = scored.result
    if as_json:
        content = {"model": str(folder), "metrics": result.metrics, "breakdowns": result.breakdowns}
        print(json.dumps(content | {"rows": len(scored.predictions), "seconds": result.eval_seconds}, indent=2))
        return
    console = Console()
    table = Table(title=f"{folder}: {len(scored.predictions)} completions", title_justify="left")
    for column in ("metric", "value"):
        table.add_column(column)
    for name, value in result.metrics.items():
        table.add_row(Text(name), f"{value:.4g}")
    console.print(table)
    for key, values in result.breakdowns.items():
        parts = Table(title=Text(f"by {key}"), title_justify="left")
        for column in (key, "n", "mean reward", "pass rate"):
            parts.add_column(Text(column))
        for part, row in values.items():
            parts.add_row(Text(part), str(int(row["n"])), f"{row['mean_reward']:.4g}", f"{row['pass_rate']:.4g}")
        console.print(parts)
