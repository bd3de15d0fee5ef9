"""Trackio: a local database for `trackio show`, or a Space."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from ..data.results import Status
from ..errors import CallbackConfigError
from .destination import Destination, library
from .logged_values import Plain, Table, json_text
from .run_logger import RunLogger

log = logging.getLogger("proa.callbacks")

REMOTES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class TrackioLogger(RunLogger):
    """Writes `<output_dir>/trackio`, or to the environment's TRACKIO_DIR.

    `mode` is `offline` (no account, no network) or `online`, which sends to `space_id` or to the environment's.
    Opening a run takes at most `timeout` seconds. A resumed run keeps its id; steps that were already logged stay.
    """

    kind = "trackio"
    package = "trackio"

    def __init__(
        self,
        *,
        mode: Literal["offline", "online"] = "offline",
        space_id: str | None = None,
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
        if space_id is not None and mode == "offline":
            raise CallbackConfigError(f"space_id={space_id!r} is online: write mode: online with it")
        if timeout <= 0:
            raise CallbackConfigError(f"timeout must be more than 0 seconds, not {timeout}")
        self._mode = mode
        self._space_id = space_id
        self._timeout = timeout

    def _open(self, destination: Destination, run_id: str | None, first_step: int) -> str:
        self._trackio = _FOLDER.enter(_wanted_folder(destination))
        try:
            self._run = _open_within(self._timeout, lambda: self._init(destination, resume=run_id is not None))
        except BaseException:
            _FOLDER.leave()
            raise
        return str(self._run.id)

    def _init(self, destination: Destination, *, resume: bool) -> Any:
        with _offline() if self._mode == "offline" else nullcontext():
            return self._trackio.init(
                project=destination.project,
                name=destination.name,
                group=destination.group,
                space_id=self._space_id,
                config={"job": destination.job, **destination.config},
                resume="allow" if resume else "never",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def _write(self, values: dict[str, Plain], step: int) -> None:
        self._run.log(values, step=step)

    def _write_table(self, name: str, table: Table, step: int) -> None:
        self._run.log({name: self._trackio.Table(columns=table.columns, data=table.rows)}, step=step)

    def _write_checkpoint(self, name: str, facts: Mapping[str, object], step: int) -> None:
        self._markdown(f"checkpoint {name}", facts, step)

    def _write_error(self, text: str, step: int) -> None:
        self._run.alert(title="the run failed", text=text, level=self._trackio.AlertLevel.ERROR, step=step)

    def _close(self, status: Status, summary: Mapping[str, object]) -> None:
        try:
            self._markdown("summary", summary, max(0, self._steps_done - 1))
            self._run.finish()
        finally:
            _FOLDER.leave()

    def _markdown(self, name: str, facts: Mapping[str, object], step: int) -> None:
        text = "\n".join(f"    {line}" for line in json_text(facts).splitlines())
        self._run.log({name: self._trackio.Markdown(text)}, step=step)

    def _earlier_id(self, destination: Destination) -> str | None:
        folder = _wanted_folder(destination)
        if not any(folder.glob("*.db")):
            return None  # without importing the library
        storage = _FOLDER.enter(folder).SQLiteStorage
        try:
            found = storage.get_latest_run_record_by_name(destination.project, destination.name)
        finally:
            _FOLDER.leave()
        return None if found is None else str(found["id"])

    def _logged_before(self, destination: Destination, run_id: str) -> dict[str, int]:
        last: dict[str, int] = {}
        for row in self._trackio.SQLiteStorage.get_logs(destination.project, destination.name, run_id=run_id):
            step = int(row.pop("step"))
            last |= {name: max(step, last.get(name, step)) for name in row if name != "timestamp"}
        return last


class _ProcessFolder:
    """The library's folder, one for the whole process, which it reads from the environment when imported.

    A run that starts while none is open moves it. A run that starts while another writes elsewhere uses that one's
    folder, with a warning.
    """

    ATTRIBUTES = ("TRACKIO_DIR", "MEDIA_DIR", "ARTIFACTS_DIR")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open = 0

    def enter(self, folder: Path) -> Any:
        """The library, which writes there until `leave` was called as often as this."""
        with self._guard:
            if "trackio" not in sys.modules:
                with _environment(TRACKIO_DIR=str(folder)):
                    library("trackio")
            trackio = library("trackio")
            utils = library("trackio.utils")
            if folder != utils.TRACKIO_DIR:
                if self._open:
                    log.warning("trackio has one folder in a process: this run is in %s", utils.TRACKIO_DIR)
                else:
                    self._move(utils.TRACKIO_DIR, folder)
            self._open += 1
            return trackio

    def leave(self) -> None:
        with self._guard:
            self._open -= 1

    def _move(self, before: Path, folder: Path) -> None:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "trackio":
                for attribute in self.ATTRIBUTES:
                    path = getattr(module, attribute, None)
                    if isinstance(path, Path) and path.is_relative_to(before):
                        setattr(module, attribute, folder / path.relative_to(before))


_FOLDER = _ProcessFolder()


def _wanted_folder(destination: Destination) -> Path:
    return Path(os.environ.get("TRACKIO_DIR") or destination.folder).resolve()


@contextmanager
def _offline() -> Iterator[None]:
    """Inside, the library has no remote, and does not ask one for the name of the user."""

    def refuse() -> str:
        raise RuntimeError("offline")

    run = importlib.import_module("trackio.run")
    original = getattr(run, "_get_default_namespace", None)
    with _environment(**dict.fromkeys(REMOTES)):
        if original is not None:
            run._get_default_namespace = refuse  # type: ignore[attr-defined]
        try:
            yield
        finally:
            if original is not None:
                run._get_default_namespace = original  # type: ignore[attr-defined]


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _open_within(seconds: float, open_run: Callable[[], Any]) -> Any:
    """Open a run in a thread, so that one that hangs is abandoned; if it opens too late it is closed.

    The library keeps the current run in a context variable and ends the previous one: a new thread has none.
    """
    opening: Future[Any] = Future()

    def work() -> None:
        try:
            run = open_run()
        except BaseException as error:
            if opening.set_running_or_notify_cancel():
                opening.set_exception(error)
            return
        if opening.set_running_or_notify_cancel():
            opening.set_result(run)
        else:
            run.finish()

    threading.Thread(target=work, name="trackio-opens", daemon=True).start()
    try:
        return opening.result(seconds)
    except TimeoutError:
        if opening.cancel():
            raise TimeoutError(f"trackio did not open the run within {seconds:g} seconds") from None
        return opening.result()  # it opened just now, or the library itself timed out
