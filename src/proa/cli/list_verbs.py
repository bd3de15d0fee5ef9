"""`proa config`, `proa moments` and `proa callbacks`: lists of what can be set, heard and named."""

from __future__ import annotations

import argparse
import json
import sys

from ..spelling import did_you_mean
from ..visible import print_visible
from .parsing import Verbs


def add_config(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "config",
        help="list every setting of a run: type, default, meaning; or write a file to begin with",
        epilog="proa config optimizer shows a section, proa config optimizer.learning_rate one setting, proa config "
        "--template grpo > run.yaml writes a file that proa train runs.",
    )
    parser.add_argument("key", nargs="?", metavar="KEY", help="a section or a setting, e.g. sampling.group_size")
    parser.add_argument("--template", metavar="ALGORITHM", help="print a commented YAML file: grpo, ppo, sft, …")
    parser.add_argument("--markdown", action="store_true", help="print the page docs/settings.md")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def run(options: argparse.Namespace) -> int:
        from .config import print_markdown, print_template, show_config

        if options.template is not None:
            return print_template(options.template)
        return print_markdown() if options.markdown else show_config(options.key, as_json=options.json)

    parser.set_defaults(run=run)


def add_moments(verbs: Verbs) -> None:
    parser = verbs.add_parser("moments", help="list the moments of a run: payload, hooks, when each fires")
    parser.add_argument("event", nargs="?", help="show only this one, in full")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def run(options: argparse.Namespace) -> int:
        from ..lifecycle.table import describe, moment_table

        rows = moment_table()
        if options.event is not None:
            if options.event not in rows:
                hint = did_you_mean(options.event, rows)
                print_visible(f"unknown moment {options.event!r}{hint}", file=sys.stderr)
                return 2
            rows = {options.event: rows[options.event]}
        if options.json:
            print(json.dumps([row.as_dict() for row in rows.values()], indent=2))
        else:
            print("\n".join(describe(row, in_full=options.event is not None) for row in rows.values()))
        return 0

    parser.set_defaults(run=run)


def add_callbacks(verbs: Verbs) -> None:
    parser = verbs.add_parser("callbacks", help="list the kinds of callbacks that a configuration can name")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def run(options: argparse.Namespace) -> int:
        from ..callbacks.registry import callback_kinds

        kinds = callback_kinds()
        if options.json:
            print(json.dumps(kinds, indent=2, sort_keys=True))
        else:
            for kind, location in sorted(kinds.items()):
                print(f"{kind:22} {location}")
        return 0

    parser.set_defaults(run=run)
