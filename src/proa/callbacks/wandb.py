"""Weights & Biases: an offline run for `wandb sync`, or an online one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..data.results import Status
from ..errors import CallbackConfigError
from ..private_files import write_private
from .destination import Destination, library, new_id
from .logged_values import Plain, Table
from .run_logger import RunLogger

STEP = "step"
"""The x axis of every metric. The library's own counts rows, and a step may have several."""
EXIT_CODES: dict[Status, int] = {"completed": 0, "cancelled": 130}


class WandbLogger(RunLogger):
    """Writes `<output_dir>/wandb`. `mode` is `offline` (no account, no network) or `online`.

    Nothing that may hold a secret is collected: no arguments, console, code or git remote. The API key comes from
    `wandb login` or the environment, never from a configuration. Calls take at most `timeout` seconds. A resumed run
    keeps its id; steps that were already logged stay.
    """

    kind = "wandb"
    package = "wandb"

    def __init__(
        self,
        *,
        mode: Literal["offline", "online"] = "offline",
        entity: str | None = None,
        tags: Sequence[str] = (),
        timeout: float = 30.0,
        project: str | None = None,
        group: str | None = None,
        folder: str | Path | None = None,
        predictions: int = 50,
        state_key: str | None = None,
    ) -> None:
        super().__init__(project=project, group=group, folder=folder, predictions=predictions, state_key=state_key)
        if mode not in ("offline", "online"):
            raise CallbackConfigError(f"mode={mode!r}: write 'offline', or 'online' if this machine may upload")
        if timeout <= 0:
            raise CallbackConfigError(f"timeout must be more than 0 seconds, not {timeout}")
        self._mode = mode
        self._entity = entity
        self._tags = list(tags)
        self._timeout = timeout

    def _open(self, destination: Destination, run_id: str | None, first_step: int) -> str:
        wandb = self._wandb = library("wandb")
        run_id, is_resumed = run_id or new_id(), run_id is not None
        # Runs are named by id and second: one resumed within the second would overwrite itself.
        while is_resumed and any(destination.folder.glob(f"*run-{time.strftime('%Y%m%d_%H%M%S')}-{run_id}")):
            time.sleep(0.02)
        self._run = wandb.init(
            id=run_id,
            entity=self._entity,
            project=destination.project,
            name=destination.name,
            group=destination.group,
            job_type=destination.job,
            tags=self._tags,
            config=None if is_resumed else destination.config,
            dir=str(destination.folder.parent),
            mode=self._mode,
            resume="allow" if is_resumed and self._mode == "online" else None,
            reinit="create_new",  # the process may have other runs
            settings=self._settings(wandb),
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)
        self._checkpoints: dict[str, Mapping[str, object]] = {}
        return run_id

    def _settings(self, wandb: Any) -> Any:
        wanted = {
            "console": "off", "silent": True, "disable_git": True, "disable_code": True, "save_code": False,
            "x_disable_meta": True, "x_save_requirements": False,
            "init_timeout": self._timeout, "login_timeout": self._timeout, "finish_timeout": self._timeout,
        }  # fmt: skip
        known = wandb.Settings.model_fields  # older versions lack some
        return wandb.Settings(**{name: value for name, value in wanted.items() if name in known})

    def _write(self, values: dict[str, Plain], step: int) -> None:
        self._run.log({**values, STEP: step})

    def _write_table(self, name: str, table: Table, step: int) -> None:
        shown = self._wandb.Table(columns=table.columns, data=table.rows, allow_mixed_types=True)
        self._run.log({name: shown, STEP: step})

    def _write_checkpoint(self, name: str, facts: Mapping[str, object], step: int) -> None:
        self._checkpoints[name] = facts
        self._run.summary["checkpoints"] = dict(self._checkpoints)

    def _write_error(self, text: str, step: int) -> None:
        self._run.summary["error"] = text

    def _close(self, status: Status, summary: Mapping[str, object]) -> None:
        self._run.summary.update(summary)
        self._run.finish(exit_code=EXIT_CODES.get(status, 1))

    # An offline run cannot be read back, so its state is saved beside it.

    def _earlier_id(self, destination: Destination) -> str | None:
        noted = _read_note(_note_path(destination))
        return None if noted is None else str(noted["run_id"])

    def _logged_before(self, destination: Destination, run_id: str) -> dict[str, int]:
        noted = _read_note(_note_path(destination))
        return dict(noted["last"]) if noted is not None and noted["run_id"] == run_id else {}

    def _remember(self, destination: Destination, run_id: str, last: Mapping[str, int]) -> None:
        path = _note_path(destination)
        temporary = path.with_suffix(".new")
        write_private(temporary, json.dumps({"run_id": run_id, "last": last}))
        temporary.replace(path)


def _note_path(destination: Destination) -> Path:
    return destination.folder / f"logged-{destination.name}.json"


def _read_note(path: Path) -> dict[str, Any] | None:
    try:
        noted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return noted
