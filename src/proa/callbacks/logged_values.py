"""Values for a logger's library: plain, without secrets, and limited in size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, TypeAlias

from ..data.messages import in_words, is_conversation
from ..data.state import TrainState
from ..lifecycle.spans import LOSS
from ..record.secrets import redact, redact_metrics, redact_values

Plain: TypeAlias = bool | int | float | str

LONGEST_TEXT = 2000
"""Maximal characters of text in a table."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain values under named columns."""

    columns: list[str]
    rows: list[list[Plain]]

    def as_markdown(self) -> str:
        """For libraries that show only text.

        >>> print(Table(["prompt", "reward"], [["3|1", 0.5]]).as_markdown())
        | prompt | reward |
        | --- | --- |
        | 3\\|1 | 0.5 |
        """
        lines: list[Sequence[Plain]] = [self.columns, ["---"] * len(self.columns), *self.rows]
        cells = ([str(value).replace("|", "\\|").replace("\n", "<br>") for value in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def eval_metrics(state: TrainState, eval_name: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of an eval under the names they have in rows: `<eval_name>.<metric>`, and `eval_loss` as it is where
    one eval reports a loss."""
    row = {f"{eval_name}.{name}": value for name, value in scores.items()}
    return row | ({LOSS: scores[LOSS]} if LOSS in scores and LOSS in state.metrics else {})


def plain_values(metrics: Mapping[str, object]) -> dict[str, Plain]:
    """Metrics as Python numbers (also from torch and numpy) or text, without secrets; NaN and infinity stay."""
    return redact_metrics({name: plain(value) for name, value in metrics.items()})


def plain(value: Any) -> Plain:
    """A value as a Python number, or else as text."""
    if isinstance(value, bool | int | float | str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def plain_config(config: Any) -> dict[str, Any]:
    """A configuration (a model, a dataclass or a mapping) as JSON values, without secrets; empty if None."""
    if hasattr(config, "model_dump"):
        config = config.model_dump(mode="json")
    elif is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
    if not isinstance(config, Mapping):
        return {}
    plain: dict[str, Any] = json.loads(json.dumps(redact(config), default=str))
    return plain


def json_text(facts: object) -> str:
    """Facts as indented JSON, without secrets."""
    return json.dumps(redact(facts), indent=2, default=str)


def error_text(error: BaseException | str) -> str:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    redacted: str = redact_values(text)
    return redacted[:LONGEST_TEXT]


def sample_table(records: Sequence[Mapping[str, object]], most: int) -> Table:
    """A table of at most `most` of the records, evenly spread, including the first and the last.

    >>> [row[0] for row in sample_table([{"id": number} for number in range(9)], most=3).rows]
    [0, 4, 8]
    """
    count = len(records)
    if count <= most:
        indices = list(range(count))
    else:
        indices = [index * (count - 1) // max(most - 1, 1) for index in range(most)]
    chosen = [records[index] for index in indices]
    columns = list(dict.fromkeys(str(name) for record in chosen for name in record))
    rows = [{str(name): value for name, value in record.items()} for record in chosen]
    return Table(columns, [[_cell(row.get(column)) for column in columns] for row in rows])


def _cell(value: object) -> Plain:
    if value is None:
        return ""
    if isinstance(value, Mapping | list | tuple):
        value = in_words(value) if is_conversation(value) else json.dumps(value, default=str, ensure_ascii=False)
    value = plain(value)
    return error_text(value) if isinstance(value, str) else value
