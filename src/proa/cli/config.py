"""`proa config`: every setting with its type, default and meaning; a page of them; a file to begin with."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict

from rich import box
from rich.table import Table
from rich.text import Text

from ..config.algorithm_outlines import OUTLINES
from ..config.algorithm_settings import PARAMS
from ..config.foreign_names import name_here
from ..config.reference import NONE, RUN, Setting, as_markdown, params, sections, settings, template
from ..config.supervised_settings import SUPERVISED
from ..spelling import did_you_mean
from ..terminal import Console
from ..visible import print_visible


def show_config(key: str | None, *, as_json: bool) -> int:
    """All settings, those of a section, or one."""
    found = settings(key or "")
    if key in (None, "algorithm", PARAMS):
        found += params()
    found = found or params(key or "")
    if not found:
        print_visible(f"there is no setting or section {key!r}{_hint(key or '')}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return 0
    console = Console()
    for section in dict.fromkeys(one.section for one in found):
        console.print(_table(section, [one for one in found if one.section == section]))
    if len(found) == 1 and "[]" not in found[0].key:
        console.print(Text(_how_to_write(found[0])))
    if key is None:
        console.print("*: only for runs that generate. A file to begin with: proa config --template grpo", markup=False)
    return 0


def _hint(key: str) -> str:
    """What a key is called here that other libraries have, or that is here in a section; or the nearest."""
    if (here := name_here(key)) is not None:
        return f": {here}"
    return did_you_mean(key, {*sections(), *(one.key.replace("[]", "") for one in settings())})


def _how_to_write(one: Setting) -> str:
    """In a file, on the command line and in Python."""
    section, _, name = one.key.rpartition(".")
    in_file = f"{name}: {one.example}"
    for outer in reversed(section.split(".") if section else []):
        in_file = f"{outer}: {{{in_file}}}"
    return f"in a file:  {in_file}\nas a flag:  --{one.key} {shlex.quote(one.example)}"


def _table(section: str, found: list[Setting]) -> Table:
    about = {**sections(), PARAMS: "settings of the algorithm itself"}
    title = f"{section}: {about[section]}" if section != RUN else "at the top"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    table.add_column("key", no_wrap=True)
    table.add_column("default", overflow="fold", max_width=14)
    table.add_column("what it is, and what it may be")
    for one in found:
        name = one.key.removeprefix(f"{section}[].").removeprefix(f"{section}.") if section != RUN else one.key
        mark = "*" if one.kinds == "detached" else ""
        table.add_row(
            name + mark,
            "" if one.default == NONE else one.default,
            Text(f"{one.meaning} ({one.type}; e.g. {one.example})"),
        )
    return table


def print_markdown() -> int:
    print(as_markdown(), end="")
    return 0


def print_template(recipe: str) -> int:
    known = [*OUTLINES, *SUPERVISED]
    if recipe not in known:
        near = did_you_mean(recipe, known) or f"; there are {', '.join(known)}"
        print_visible(f"there is no algorithm {recipe!r}{near}", file=sys.stderr)
        return 2
    print(template(recipe), end="")
    return 0
