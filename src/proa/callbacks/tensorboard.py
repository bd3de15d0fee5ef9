"""TensorBoard: event files that `tensorboard --logdir` shows, written by torch's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..data.results import LogContext, Status
from .destination import Destination, library
from .logged_values import Plain, Table, json_text
from .run_logger import RunLogger

FLUSH_SECONDS = 10


class TensorBoardLogger(RunLogger):
    """Writes `<output_dir>/tensorboard`: metrics as scalars; configuration, checkpoints and predictions as text.

    A resumed run purges the steps after its checkpoint, so that TensorBoard shows each step once. Metrics that are text
    are left out.
    """

    kind = "tensorboard"
    package = "tensorboard"

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        predictions: int = 50,
        state_key: str | None = None,
    ) -> None:
        super().__init__(folder=folder, predictions=predictions, state_key=state_key)

    def _open(self, destination: Destination, run_id: str | None, first_step: int) -> str:
        self._folder = destination.folder / destination.name if destination.shared else destination.folder
        self._open_writer(first_step)
        if run_id is None and destination.config:
            self._text("config", destination.config, 0)
        return run_id or destination.name

    def _open_writer(self, first_step: int) -> None:
        # TensorBoard purges the folder's events from the first step on when it reads them.
        purge = first_step if any(self._folder.glob("events.out.tfevents.*")) else None
        writer = library("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(str(self._folder), purge_step=purge, flush_secs=FLUSH_SECONDS)

    def _write(self, values: dict[str, Plain], step: int) -> None:
        for name, value in values.items():
            if not isinstance(value, str):
                self._writer.add_scalar(name, value, step)

    def _write_table(self, name: str, table: Table, step: int) -> None:
        self._writer.add_text(name, table.as_markdown(), step)

    def _write_checkpoint(self, name: str, facts: Mapping[str, object], step: int) -> None:
        self._text("checkpoint", {"name": name, **facts}, step)
        self._writer.flush()  # events before a checkpoint must not be lost

    def _write_error(self, text: str, step: int) -> None:
        self._writer.add_text("error", _code(text), step)

    def _close(self, status: Status, summary: Mapping[str, object]) -> None:
        self._text("summary", summary, 0)
        self._writer.close()

    def _earlier_id(self, destination: Destination) -> str | None:
        folder = destination.folder / destination.name if destination.shared else destination.folder
        return destination.name if any(folder.glob("events.out.tfevents.*")) else None

    def _share_ids(self, ctx: LogContext) -> None:
        """TensorBoard has no ids: a run is its folder."""

    def _rewind(self, first_step: int) -> None:
        self._writer.close()
        self._open_writer(first_step)
        self._last = {}

    def _text(self, name: str, facts: Mapping[str, object], step: int) -> None:
        self._writer.add_text(name, _code(json_text(facts)), step)


def _code(text: str) -> str:
    """Text as a Markdown code block."""
    return "\n".join(f"    {line}" for line in text.splitlines())
