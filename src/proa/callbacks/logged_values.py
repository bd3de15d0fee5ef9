"""What is sent to a logger's library: plain values without secrets, and no more of them than anybody looks at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from ..data.messages import in_words, is_conversation
from ..record.secrets import redact, redact_metrics, redact_values

LONGEST_TEXT = 2000
"""Characters of a text in a table; a completion may be as long as a book."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain values under named columns."""

    columns: list[str]
    rows: list[list[Any]]

    def as_markdown(self) -> str:
        """As libraries show it that know text only.

        >>> print(Table(["prompt", "reward"], [["3|1", 0.5]]).as_markdown())
        | prompt | reward |
        | --- | --- |
        | 3\\|1 | 0.5 |
        """
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(map(_cell_of_markdown, line))} |" for line in lines)


def plain_values(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as numbers of Python (of torch and numpy too) or texts, without secrets; NaN and infinity stay."""
    return redact_metrics({name: plain(value) for name, value in metrics.items()})


def plain(value: Any) -> bool | int | float | str:
    """A number as Python's; what is no number as text."""
    if isinstance(value, bool | int | float | str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def plain_config(config: Any) -> dict[str, Any]:
    """A configuration (a model, a dataclass or a mapping) as JSON has it, without secrets; empty for none."""
    if hasattr(config, "model_dump"):
        config = config.model_dump(mode="json")
    elif is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
    if not isinstance(config, Mapping):
        return {}
    as_json: dict[str, Any] = json.loads(json.dumps(redact(config), default=str))
    return as_json


def text_of(facts: Any) -> str:
    """Facts as readable text, without secrets."""
    return json.dumps(redact(facts), indent=2, default=str)


def error_text(error: BaseException | str) -> str:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    without: str = redact_values(text)
    return without[:LONGEST_TEXT]


def table_of(records: Sequence[Mapping[str, Any]], most: int) -> Table:
    """At most so many of the records, evenly spread, the first and the last among them.

    >>> [row[0] for row in table_of([{"id": number} for number in range(9)], most=3).rows]
    [0, 4, 8]
    """
    chosen = [records[index] for index in _spread(len(records), most)]
    columns = list(dict.fromkeys(str(name) for record in chosen for name in record))
    rows = [{str(name): value for name, value in record.items()} for record in chosen]
    return Table(columns, [[_cell(row.get(column)) for column in columns] for row in rows])


def _spread(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    if most == 1:
        return [0]
    return [index * (count - 1) // (most - 1) for index in range(most)]


def _cell(value: Any) -> bool | int | float | str:
    if value is None:
        return ""
    if isinstance(value, Mapping | list | tuple):
        value = in_words(value) if is_conversation(value) else json.dumps(value, default=str, ensure_ascii=False)
    value = plain(value)
    return error_text(value) if isinstance(value, str) else value


def _cell_of_markdown(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", "<br>")
