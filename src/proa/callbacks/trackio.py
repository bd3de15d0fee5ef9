"""Trackio: a local database that `trackio show` serves, or a Space that it is sent to."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ..data.results import Status
from ..errors import CallbackConfigError
from .logged_values import Table, text_of
from .run_logger import RunLogger
from .run_place import Place, library

log = logging.getLogger("proa.callbacks")

REMOTES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class TrackioLogger(RunLogger):
    """Writes `<output_dir>/trackio`, or where the environment's TRACKIO_DIR says.

    `mode` is `offline` (no account, no network) or `online`, which sends to `space_id`, or to what the environment
    names for it. Opening a run waits no longer than `timeout` seconds. A run that goes on keeps its id; a step that
    was logged before stays as it was.
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
            raise CallbackConfigError(f"timeout={timeout}: the seconds that opening may take, more than 0")
        self._mode = mode
        self._space_id = space_id
        self._timeout = timeout

    def _open(self, place: Place, run_id: str | None, first_step: int) -> str:
        self._trackio = _FOLDER.enter(_wanted_folder(place))
        try:
            self._run = _within(self._timeout, lambda: self._opened(place, goes_on=run_id is not None))
        except BaseException:
            _FOLDER.leave()
            raise
        return str(self._run.id)

    def _opened(self, place: Place, *, goes_on: bool) -> Any:
        with _offline() if self._mode == "offline" else _as_it_is():
            return self._trackio.init(
                project=place.project,
                name=place.name,
                group=place.group,
                space_id=self._space_id,
                config={"job": place.job, **place.config},
                resume="allow" if goes_on else "never",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def _write(self, values: dict[str, Any], step: int) -> None:
        self._run.log(values, step=step)

    def _write_table(self, name: str, table: Table, step: int) -> None:
        self._run.log({name: self._trackio.Table(columns=table.columns, data=table.rows)}, step=step)

    def _write_checkpoint(self, name: str, facts: dict[str, Any], step: int) -> None:
        self._markdown(f"checkpoint {name}", facts, step)

    def _write_error(self, text: str, step: int) -> None:
        self._run.alert(title="the run failed", text=text, level=self._trackio.AlertLevel.ERROR, step=step)

    def _close(self, status: Status, summary: dict[str, Any]) -> None:
        try:
            self._markdown("summary", summary, max(0, self._steps_done - 1))
            self._run.finish()
        finally:
            _FOLDER.leave()

    def _markdown(self, name: str, facts: dict[str, Any], step: int) -> None:
        text = "\n".join(f"    {line}" for line in text_of(facts).splitlines())
        self._run.log({name: self._trackio.Markdown(text)}, step=step)

    def _earlier_id(self, place: Place) -> str | None:
        folder = _wanted_folder(place)
        if not any(folder.glob("*.db")):
            return None  # and the library need not be imported for it
        storage = _FOLDER.enter(folder).SQLiteStorage
        try:
            found = storage.get_latest_run_record_by_name(place.project, place.name)
        finally:
            _FOLDER.leave()
        return None if found is None else str(found["id"])

    def _logged_before(self, place: Place, run_id: str) -> dict[str, int]:
        last: dict[str, int] = {}
        for row in self._trackio.SQLiteStorage.get_logs(place.project, place.name, run_id=run_id):
            step = int(row.pop("step"))
            last |= {name: max(step, last.get(name, step)) for name in row if name != "timestamp"}
        return last


class _OneFolder:
    """The library's folder, which is one for the whole process: it asks the environment when it is imported.

    A run that comes while none is open moves it. One that comes while another run writes elsewhere joins that run's,
    and is told so.
    """

    ATTRIBUTES = ("TRACKIO_DIR", "MEDIA_DIR", "ARTIFACTS_DIR")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open = 0

    def enter(self, folder: Path) -> Any:
        """The library, writing there until it is left as often as it was entered."""
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


_FOLDER = _OneFolder()


def _wanted_folder(place: Place) -> Path:
    return Path(os.environ.get("TRACKIO_DIR") or place.folder).resolve()


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _offline() -> Iterator[None]:
    """Inside, the library is told of no remote, and does not ask one for the name of whoever is logged in."""
    run = importlib.import_module("trackio.run")
    asks = getattr(run, "_get_default_namespace", None)
    with _environment(**dict.fromkeys(REMOTES)):
        if asks is not None:
            run._get_default_namespace = _nobody  # type: ignore[attr-defined]
        try:
            yield
        finally:
            if asks is not None:
                run._get_default_namespace = asks  # type: ignore[attr-defined]


def _nobody() -> str:
    raise RuntimeError("offline")


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


def _within(seconds: float, opened: Callable[[], Any]) -> Any:
    """A run opened in a thread of its own, so that one that hangs is given up; opened too late, it is closed.

    The library keeps the current run in a context variable and ends the one before: in another thread that is nobody's.
    """
    opening: Future[Any] = Future()

    def work() -> None:
        try:
            run = opened()
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
        return opening.result()  # it came just now, or the library itself had waited too long
