"""The arguments of `proa show`, `proa runs` and `proa report`, which read records."""

from __future__ import annotations

import argparse

from .parsing import Verbs


def add_show(verbs: Verbs) -> None:
    parser = verbs.add_parser("show", help="show a run, also while it is running, or an experiment")
    parser.add_argument("folder", metavar="RUN_DIR", help="a run's folder, <output_dir>/<name>")
    parser.add_argument("--json", action="store_true", help="print one JSON object: header, live view, last metrics")
    parser.add_argument("--follow", action="store_true", help="keep showing until the run ends")
    parser.add_argument("--trace", metavar="FILE", help="write its timeline to this file, for https://ui.perfetto.dev")

    def run(options: argparse.Namespace) -> int:
        from .show import show

        return show(options.folder, as_json=options.json, follow=options.follow, trace=options.trace)

    parser.set_defaults(run=run)


def add_runs(verbs: Verbs) -> None:
    parser = verbs.add_parser("runs", help="list runs and experiments")
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="where to look (default: runs)")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def run(options: argparse.Namespace) -> int:
        from .runs import runs

        return runs(options.folder, as_json=options.json)

    parser.set_defaults(run=run)


def add_report(verbs: Verbs) -> None:
    parser = verbs.add_parser("report", help="write a page about a run or an experiment")
    parser.add_argument("folder", metavar="RUN_OR_EXPERIMENT", help="the folder of a run, or of an experiment")
    parser.add_argument("--output", metavar="FILE", help="by default report.html in that folder")

    def run(options: argparse.Namespace) -> int:
        from .report import report

        return report(options.folder, options.output)

    parser.set_defaults(run=run)
