"""The table of moments as text, for the command line and the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .hooks import Callback, Hook, MakerCallback, TrainerCallback
from .moments import ITEMS, MOMENTS, Moment, Moments

HOOKED = (TrainerCallback, MakerCallback, Callback)


@dataclass(frozen=True)
class TableRow:
    """A moment and its hooks, by family."""

    moment: Moment
    hooks: dict[str, Hook]

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.moment.name,
            "scope": self.moment.scope.value,
            "payload": list(self.moment.payload),
            "items": dict(self.moment.items),
            "hooks": {family: str(hook) for family, hook in self.hooks.items()},
            "when": self.moment.doc,
        }


def moment_table() -> dict[str, TableRow]:
    """Every moment, in the order of the table."""
    return {
        name: TableRow(
            moment,
            {family.__name__: hook for family in HOOKED for hook in family.hooks.values() if hook.moment is moment},
        )
        for name, moment in MOMENTS.items()
    }


def describe(row: TableRow, *, in_full: bool = False) -> str:
    """A moment as a paragraph for the terminal; in full, with what the items of its payload are."""
    moment = row.moment
    hooks = "".join(f"\n    {family}.{hook}" for family, hook in row.hooks.items())
    items = "".join(f"\n        {item}: {text}" for item, text in moment.items.items()) if in_full else ""
    return f"{moment.name}({', '.join(moment.payload)})\n    {moment.doc}{items}{hooks}"


def markdown() -> str:
    """The tables as Markdown, for `docs/moments.md`: the moments, then the items of their payloads."""
    lines = [
        "| event | payload | hooks | fires when |",
        "| --- | --- | --- | --- |",
        *(_markdown_row(row) for row in moment_table().values()),
        "",
        "What the items of payloads are:",
        "",
        "| item | type | at | what it is |",
        "| --- | --- | --- | --- |",
        *_markdown_items(),
    ]
    return "\n".join(lines)


def _markdown_row(row: TableRow) -> str:
    hooks = "<br>".join(f"`{family}.{hook}`" for family, hook in row.hooks.items())
    doc = row.moment.doc.replace("|", "\\|")
    return f"| `{row.moment.name}` | {', '.join(row.moment.payload)} | {hooks} | {doc} |"


def _markdown_items() -> Iterator[str]:
    """One row for each item, and one for each moment, or family of moments, that says something else of it."""
    texts: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name, moment in MOMENTS.items():
        parameters = inspect.signature(getattr(Moments, moment.method)).parameters
        for item, text in moment.items.items():
            texts.setdefault(item, {}).setdefault((str(parameters[item].annotation), text), []).append(name)
    for item, rows in texts.items():
        for (kind, text), names in rows.items():
            family = f"`{names[0].partition('.')[0]}.*`" if len(names) > 4 else ", ".join(f"`{name}`" for name in names)
            where = "" if text == ITEMS.get(item) else family
            yield f"| `{item}` | `{kind}` | {where} | {text} |".replace(" | None", " \\| None")
