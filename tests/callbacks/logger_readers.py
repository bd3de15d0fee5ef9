"""What a logger left behind, read back with the logger's own library."""

import importlib.util
import json
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proa.callbacks import TensorBoardLogger, TrackioLogger, WandbLogger

KINDS = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger, "trackio": TrackioLogger}
EXTRA_OF = "its library is not installed: pip install 'proa[{}]'"


def needs(kind):
    missing = importlib.util.find_spec(kind) is None
    return pytest.mark.skipif(missing, reason=EXTRA_OF.format(kind))


ALL_KINDS = [pytest.param(kind, marks=needs(kind)) for kind in KINDS]


@dataclass
class Written:
    """Rows of every run under a folder, as {metric: [(step, value), …]}, and what stands beside them."""

    values: dict = field(default_factory=dict)
    texts: dict = field(default_factory=dict)
    tables: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    ids: set = field(default_factory=set)
    groups: set = field(default_factory=set)
    names: set = field(default_factory=set)
    exit_codes: list = field(default_factory=list)
    levels: list = field(default_factory=list)

    def add(self, name, step, value):
        self.values.setdefault(name, []).append((step, value))


def read(kind, output_dir, project="proa"):
    folder = Path(output_dir) / kind
    return {"tensorboard": read_tensorboard, "wandb": read_wandb, "trackio": read_trackio}[kind](folder, project)


def read_tensorboard(folder, project="proa"):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = Written()
    for place in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        written.names.add(place.name)
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                written.add(name, event.step, event.value)
        for tag in events.Tags()["tensors"]:
            name = tag.removesuffix("/text_summary")
            for event in events.Tensors(tag):
                text = event.tensor_proto.string_val[0].decode()
                written.texts.setdefault(name, []).append((event.step, text))
                if text.startswith("|"):
                    rows = [line[2:-2].split(" | ") for line in text.splitlines()]
                    written.tables[name] = (rows[0], rows[2:])
    if "config" in written.texts:
        written.config = json.loads(written.texts["config"][-1][1])
    written.ids = written.names
    return written


def read_wandb(folder, project="proa"):
    """By the library's own messages; their framing in the file is that of LevelDB's log."""
    written = Written()
    for path in sorted(folder.glob("*run-*/run-*.wandb")):
        for record in _records(path):
            _take(written, record, path.parent / "files")
    return written


def _records(path):
    """All of a run that was finished. The process that writes the file may be a moment behind."""
    from wandb.proto import wandb_internal_pb2

    for _ in range(500):
        records = [wandb_internal_pb2.Record.FromString(message) for message in _messages(path.read_bytes())]
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.02)
    raise AssertionError(f"{path} has no end")


def _messages(content):
    offset, message = 7, b""
    while offset + 7 <= len(content):
        if 32768 - offset % 32768 < 7:  # no header fits into what is left of the block
            offset += 32768 - offset % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, offset)
        message += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield message
            message = b""


def _take(written, record, files):
    kind = record.WhichOneof("record_type")
    if kind == "run":
        written.ids.add(record.run.run_id)
        written.names.add(record.run.display_name)
        written.groups.add(record.run.run_group)
        written.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    elif kind == "history":
        row = {tuple(item.nested_key) or (item.key,): json.loads(item.value_json) for item in record.history.item}
        step = row.pop(("step",))
        for (name, *inner), value in row.items():
            if inner == ["path"]:
                table = json.loads((files / value).read_text())
                written.tables[name] = (table["columns"], table["data"])
            elif not inner and not name.startswith("_"):
                written.add(name, step, value)
    elif kind == "summary":
        for item in record.summary.update:
            name = item.key or ".".join(item.nested_key)
            written.texts.setdefault(name, []).append((0, json.loads(item.value_json)))
    elif kind == "exit":
        written.exit_codes.append(record.exit.exit_code)


def read_trackio(folder, project="proa"):
    """By the library's own storage, wherever it was told to look before."""
    from proa.callbacks.trackio import _FOLDER

    written = Written()
    storage = _FOLDER.enter(Path(folder).resolve()).SQLiteStorage
    try:
        for record in storage.get_run_records(project):
            written.ids.add(record["id"])
            written.names.add(record["name"])
            config = storage.get_run_config(project, record["name"], run_id=record["id"]) or {}
            written.config |= config
            written.groups.add(config.get("_Group"))
            for row in storage.get_logs(project, record["name"], run_id=record["id"]):
                _take_row(written, row)
        for alert in storage.get_alerts(project):
            written.texts.setdefault("error", []).append((alert["step"], alert["text"]))
            written.levels.append(alert["level"])
    finally:
        _FOLDER.leave()
    return written


def _take_row(written, row):
    step = row.pop("step")
    row.pop("timestamp")
    for name, value in row.items():
        if not isinstance(value, dict):
            written.add(name, step, value)
        elif value["_type"] == "trackio.table":
            rows = value["_value"]
            written.tables[name] = (list(rows[0]), [list(line.values()) for line in rows])
        else:
            written.texts.setdefault(name, []).append((step, value["_value"]))


class FailingModule:
    """A library that can be imported and raises in every call; `works` names what does not."""

    def __init__(self, *works):
        self.__spec__ = None
        self.calls = []
        self._works = works

    def __getattr__(self, name):
        if name.startswith("__") and name != "__call__":
            raise AttributeError(name)
        return _Failing(self, name)


class _Failing:
    def __init__(self, module, name):
        self._module, self._name = module, name

    def __getattr__(self, name):
        return _Failing(self._module, f"{self._name}.{name}")

    def __call__(self, *args, **kwargs):
        self._module.calls.append(self._name)
        if self._name in self._module._works:
            return _Failing(self._module, self._name.rpartition(".")[2])
        raise RuntimeError(f"{self._name} is broken")

    def __iter__(self):
        return iter(())


def put_in_place(monkeypatch, kind, module):
    """Have a module stand for a logger's library."""
    for name in [name for name in sys.modules if name.partition(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    for name in {"tensorboard": ["tensorboard", "torch.utils.tensorboard"], "wandb": ["wandb"],
                 "trackio": ["trackio", "trackio.utils", "trackio.run"]}[kind]:  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
