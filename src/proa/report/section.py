"""A part of the page: what stands in it, and what the page's script may look up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .chart import class_of
from .html import Markup, tag
from .reading import Arm


@dataclass(slots=True)
class Section:
    """One heading and what is below it."""

    name: str
    title: str
    body: list[Markup]
    charts: dict[str, Any] = field(default_factory=dict)


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()) -> Markup:
    """A table in a box of its own, so that a wide one does not widen the page. `numbers`: columns to align right."""
    right = set(numbers)

    def cells(kind: str, row: Sequence[object]) -> list[Markup]:
        return [tag(kind, cell, class_="number" if place in right else None) for place, cell in enumerate(row)]

    body = [tag("tr", cells("td", row)) for row in rows]
    inside = tag("table", tag("thead", tag("tr", cells("th", head))), tag("tbody", body))
    return tag("div", inside, class_="scroll", tabindex="0")


def folded(title: str, *inside: object, opened: bool = False) -> Markup:
    """Something that is shown when it is asked for."""
    return tag("details", tag("summary", title), inside, open=opened)


def one_of(choices: Sequence[Markup], what: str) -> Markup:
    """Folded parts, one below the other; the page's script shows one at a time, with a way to the others."""
    return tag("div", choices, class_="one-of", data_what=what)


def arm_legend(arms: Sequence[Arm]) -> Markup | None:
    """Which colour is which arm; the page's script lets arms be hidden here."""
    if len(arms) < 2:
        return None
    keys = [
        tag("span", stroke(place), arm.name, class_="key", data_arm=place) for place, arm in enumerate(arms)
    ]  # fmt: skip
    return tag("p", keys, class_="legend arms")


def stroke(place: int) -> Markup:
    """A piece of an arm's line."""
    line = tag("path", class_="line", d="M1,6L27,6")
    return tag("svg", tag("g", line, class_=class_of(place)), viewBox="0 0 28 12", class_="stroke", aria_hidden="true")
