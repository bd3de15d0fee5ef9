"""Finds and reads what a user names as data: a file, a folder, a dataset, or an object at a dotted path.

`datasets` and `pyarrow` are imported only for what they alone can read.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.messages import is_conversation
from ..dotted import DottedPathError, resolve
from ..hub_errors import explain_hub_error
from ..spelling import did_you_mean
from .builtin import BUILTIN
from .task import TaskError

HUB = "hf:"
"""The prefix of a dataset of the Hugging Face Hub: `hf:openai/gsm8k?config=main&split=train`."""
FILES = (".jsonl", ".json", ".csv", ".parquet")
_OPTIONS = ("config", "split", "revision")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as they are stored, and where they are from."""

    rows: list[Any]
    origin: str
    """For messages."""
    name: str


def is_named_data(source: str) -> bool:
    """Whether a text names a file, a folder or a dataset of the Hub; otherwise it is a dotted path."""
    path = source.partition("?")[0]
    return source.startswith(HUB) or path.endswith(FILES) or os.sep in path or Path(path).exists()


def check_there(source: str) -> None:
    """Raise for a built-in task, a file or a folder that there is not; nothing is read."""
    path = source.partition("?")[0]
    if is_named_data(source) and not source.startswith(HUB) and not Path(path).exists():
        is_like_hub = not Path(path).suffix and path.count("/") == 1
        hub = f"; a dataset of the Hub is written {HUB}{source}" if is_like_hub else ""
        raise TaskError(f"there is no file {path!r} (looked in {Path.cwd()}){hub}")
    if not is_named_data(source) and source not in BUILTIN and not any(mark in source for mark in ":."):
        raise TaskError(
            f"unknown task {source!r}{did_you_mean(source, BUILTIN)} (built in: {', '.join(BUILTIN)}; your own: "
            f"'package.module:name', or the path of a file: {', '.join(FILES)})"
        )


def find_source(path: str) -> Any:
    """The object at a dotted path; a function is called."""
    check_there(path)
    try:
        found = resolve(path)
    except DottedPathError as error:
        raise TaskError(f"task {error}") from error
    return found() if callable(found) else found


def read_table(source: Any, split: str | None = None) -> Table | None:
    """The rows of a file, a saved dataset, a dataset of the Hub, a dataset object or a list; None of anything else.

    `split` chooses from several datasets; for a single one it is refused.
    """
    if isinstance(source, str) and source.startswith(HUB):
        return _from_hub(source, split)
    if isinstance(source, str | Path):
        return _from_path(str(source), split)
    is_several = isinstance(source, Mapping) and source and all(hasattr(one, "column_names") for one in source.values())
    if hasattr(source, "column_names") or is_several:
        return Table(_dataset_rows(_choose_split(source, split, "the dataset")), "the dataset", "dataset")
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        _refuse_split(split, "the list")
        return Table(list(source), "the list", "task")
    return None


# -- files and folders -------------------------------------------------------------------------------


def _from_path(source: str, split: str | None) -> Table:
    check_there(source)
    path = Path(source)
    if path.is_file():
        _refuse_split(split, source)
        return Table(_read_file(path), source, path.stem)
    folder, options = _options(source)
    if not Path(folder).is_dir():
        raise TaskError(f"{source}: {folder} is one file, of which nothing is to be chosen: leave out what follows it")
    dataset = _read_folder(Path(folder), options)
    chosen = _choose_split(dataset, _one_split(split, options, source), source)
    return Table(_dataset_rows(chosen), source, Path(folder).name)


def _read_file(path: Path) -> list[Any]:
    try:
        if path.suffix == ".csv":
            return _read_csv(path)
        if path.suffix == ".parquet":
            return _read_parquet(path)
        return _read_json(path)
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from None


def _read_json(path: Path) -> list[Any]:
    """One object per line; or in a `.json` file one list of them."""
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if path.suffix == ".json" and content.lstrip().startswith(b"["):
        rows = _parse(content, str(path))
        assert isinstance(rows, list), "it begins with a bracket"
        return rows
    lines = content.splitlines()
    return [_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _line(line: bytes, where: str) -> dict[str, Any]:
    row = _parse(line, where)
    if not isinstance(row, dict):
        raise TaskError(f"{where}: expected one JSON object per line, not {line.decode().strip():.40}")
    return row


def _parse(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: byte 0x{content[error.start]:02x} is not UTF-8: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise TaskError(f"{where}: this is nested too deep") from None


def _read_csv(path: Path) -> list[dict[str, str]]:
    """Rows whose values are text, as they are in the file: "007" stays "007"."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    raise TaskError(
                        f"{path}, line {reader.line_num}: the row does not have the {len(reader.fieldnames or ())} "
                        "values that the first line names"
                    )
                rows.append(row)
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: byte 0x{error.object[error.start]:02x} is not UTF-8: save it as UTF-8") from None
    except csv.Error as error:
        raise TaskError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    return rows


def _read_parquet(path: Path) -> list[Any]:
    reader = _package("pyarrow.parquet", str(path))
    try:
        rows = [_without_filled(row) for row in reader.ParquetFile(path).read().to_pylist()]
    except OSError:
        raise
    except Exception as error:  # pyarrow has its own kinds
        raise TaskError(f"{path} is not a Parquet file: {_first_line(error)}") from None
    return rows


def _read_folder(folder: Path, options: Mapping[str, str]) -> Any:
    """A dataset saved by `save_to_disk`, or a folder of data files."""
    datasets = _package("datasets", str(folder))
    is_saved = (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file()
    try:
        if is_saved:
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder), options.get("config"))
    except Exception as error:  # a library that reads many formats raises many kinds
        raise TaskError(f"{folder} does not load as a dataset: {_first_line(error)}") from error


# -- datasets ----------------------------------------------------------------------------------------


def _from_hub(source: str, split: str | None) -> Table:
    """A dataset of the Hub, or of its cache where there is no network; a local folder of that name comes first."""
    name, options = _options(source.removeprefix(HUB))
    name, _, revision = name.partition("@")
    chosen = _one_split(split, options, source)
    if Path(name).is_dir():
        dataset = _read_folder(Path(name), options)
    else:
        datasets = _package("datasets", source)
        try:
            dataset = datasets.load_dataset(
                name, options.get("config"), revision=revision or options.get("revision"), split=chosen
            )
        except Exception as error:  # of the network, the Hub, the cache, or the files
            why = explain_hub_error(error, "dataset", name, revision or options.get("revision"))
            raise TaskError(f"{source}: {why}") from error
        chosen = chosen if isinstance(dataset, Mapping) else None
    return Table(_dataset_rows(_choose_split(dataset, chosen, source)), source, name.rpartition("/")[2])


def _options(source: str) -> tuple[str, dict[str, str]]:
    """The name before the question mark, and what is said after it."""
    name, _, query = source.partition("?")
    options = dict(one.partition("=")[::2] for one in query.split("&") if one)
    for key in options:
        if key not in _OPTIONS:
            raise TaskError(f"{source}: unknown {key!r}{did_you_mean(key, _OPTIONS)} (known: {', '.join(_OPTIONS)})")
    return name, options


def _one_split(split: str | None, options: Mapping[str, str], source: str) -> str | None:
    named = options.get("split")
    if None not in (split, named) and split != named:
        raise TaskError(f"{source} names the split {named!r}, and task.split is {split!r}: leave one of them out")
    return split or named


def _choose_split(dataset: Any, split: str | None, origin: str) -> Any:
    """One dataset of perhaps several."""
    if isinstance(dataset, Mapping):
        names = [str(name) for name in dataset]
        if split is None and len(names) > 1:
            several = ", ".join(map(repr, names))
            raise TaskError(
                f"{origin} has several datasets ({several}): choose one with task.split: {names[0]}, in an address "
                f"with ?split={names[0]}, or in Python with dataset[{names[0]!r}]"
            )
        if split is not None and split not in names:
            raise TaskError(f"{origin} has no split {split!r}{did_you_mean(split, names)} (it has: {', '.join(names)})")
        dataset = dataset[names[0] if split is None else split]
    else:
        _refuse_split(split, origin)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TaskError(
            "a streaming dataset has no length, which a seeded order needs: load it without streaming=True, "
            "or take the first rows: list(dataset.take(10_000))"
        )
    return dataset


def _refuse_split(split: str | None, origin: str) -> None:
    if split is not None:
        raise TaskError(f"{origin} is one dataset without splits: leave out task.split ({split})")


def _dataset_rows(dataset: Any) -> list[Any]:
    return [_without_filled(row) for row in dataset]


def _without_filled(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of an Arrow table, in which every mapping of a column has the keys of all: without those that are None
    because another row has them. Chat templates would write them, in messages and in the schemas of tools."""
    return {
        name: _without_none(value) if is_conversation(value) or name in ("tools", "chat_template_kwargs") else value
        for name, value in row.items()
    }


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(one) for key, one in value.items() if one is not None or key == "content"}
    return [_without_none(one) for one in value] if isinstance(value, list) else value


def _package(name: str, source: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise TaskError(f"{source} needs the package {name.partition('.')[0]}: pip install 'proa[data]'") from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.300}"
