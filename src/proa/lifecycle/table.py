"""The table of moments as text, for the command line and the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .hooks import Callback, Hook, MakerCallback, TrainerCallback
from .moments import MOMENTS, Moment

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


def describe(row: TableRow) -> str:
    """A moment as a paragraph for the terminal."""
    moment = row.moment
    hooks = "".join(f"\n    {family}.{hook}" for family, hook in row.hooks.items())
    return f"{moment.name}({', '.join(moment.payload)})\n    {moment.doc}{hooks}"


def markdown() -> str:
    """The table as Markdown; a test compares it with `docs/moments.md`."""
    lines = ["| event | payload | hooks | fires when |", "| --- | --- | --- | --- |"]
    for row in moment_table().values():
        hooks = "<br>".join(f"`{family}.{hook}`" for family, hook in row.hooks.items())
        doc = row.moment.doc.replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{row.moment.name}` | {', '.join(row.moment.payload)} | {hooks} | {doc} |")
    return "\n".join(lines)
