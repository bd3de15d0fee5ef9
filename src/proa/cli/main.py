"""`proa`: one verb for each thing to do. Verbs import what they need when they run, so help is instant."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..spelling import did_you_mean
from ..visible import print_visible, visible

NOBODY_READS = 141
"""The exit code of a verb whose reader left, as `head` does: what a shell says of others that this ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted, 141 whoever read the output left."""
    try:
        return _flushed(_run(arguments))
    except SystemExit as leaving:  # argparse has said what there is to say
        if _flushed(0):
            return NOBODY_READS
        raise leaving
    except KeyboardInterrupt:
        with suppress(OSError):  # Ctrl-C ends the reader of a pipeline as well
            print("interrupted", file=sys.stderr)
        return _flushed(130)
    except BrokenPipeError:
        from .endings import let_go

        if not let_go():
            raise
        return NOBODY_READS


def _flushed(code: int) -> int:
    """The exit code of a verb whose output is written to its end: of `proa runs | head -1` nobody may read that."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # it may be closed
                stream.flush()
    except OSError:
        from .endings import let_go

        if not let_go():
            raise
        return code or NOBODY_READS
    return code


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    if rest and not options.takes_flags:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.flags = rest
    return int(options.run(options))


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the words that it was given, whatever is in them."""

    def error(self, message: str) -> NoReturn:
        super().error(visible(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="proa", description="Detached RL post-training of language models.")
    parser.add_argument("--version", action="version", version=f"proa {__version__}")
    parser.set_defaults(takes_flags=False)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    train = verbs.add_parser(
        "train",
        help="run one configuration",
        usage="proa train FILE [--key value ...]",
        epilog="Any key of the configuration is a flag, e.g. --total_steps 100 --sampling.group_size 16.",
    )
    train.add_argument("file", help="a YAML file")
    train.set_defaults(run=_train, takes_flags=True)
    resume = verbs.add_parser(
        "resume",
        help="go on with a run from its newest checkpoint",
        usage="proa resume RUN_DIR [--checkpoint NAME] [--allow-changes] [--key value ...]",
        epilog="Flags may change what does not change the result, e.g. --makers 4 --runtime ray.",
    )
    resume.add_argument("folder", metavar="RUN_DIR", help="a run's folder, <output_dir>/<name>")
    resume.add_argument("--checkpoint", metavar="NAME", help="that one, e.g. step_40; what came after it is dropped")
    resume.add_argument(
        "--allow-changes",
        "--allow_changes",
        action="store_true",
        help="go on though data, rewards, tokenizer or reward model are not those that the run had",
    )
    resume.set_defaults(run=_resume, takes_flags=True)
    _add_experiment(verbs)
    _add_eval(verbs)
    _add_replay(verbs)
    _add_looking(verbs)
    _add_listing(verbs)
    return parser


def _add_experiment(verbs: Any) -> None:
    experiment = verbs.add_parser(
        "experiment",
        help="run arms, repeats and stages, and compare them",
        usage="proa experiment FILE [--key value ...]",
        epilog="Running it again skips what is complete and goes on with what was cut off.",
    )
    experiment.add_argument("file", help="a YAML file")
    experiment.set_defaults(run=_experiment, takes_flags=True)


def _add_replay(verbs: Any) -> None:
    replay = verbs.add_parser(
        "replay",
        help="repeat a run and compare the weights at each of its checkpoints",
        usage="proa replay RUN_DIR [--until STEP] [--into DIR] [--json] [--key value ...]",
    )
    replay.add_argument("folder", metavar="RUN_DIR", help="a run's folder, <output_dir>/<name>")
    replay.add_argument("--until", type=int, metavar="STEP", help="stop after so many steps, to look at that moment")
    replay.add_argument("--into", metavar="DIR", help="the folder of the repeated run; must not exist")
    replay.add_argument("--json", action="store_true", help="print one JSON object: what was compared")
    replay.set_defaults(run=_replay, takes_flags=True)


def _add_looking(verbs: Any) -> None:
    """Verbs that look at records."""
    show = verbs.add_parser("show", help="show what a run has come to, also while it goes on")
    show.add_argument("folder", metavar="RUN_DIR", help="a run's folder, <output_dir>/<name>")
    show.add_argument("--json", action="store_true", help="print one JSON object: header, live view, last metrics")
    show.add_argument("--follow", action="store_true", help="go on until the run ends")
    show.add_argument("--trace", metavar="FILE", help="write its timeline there, for https://ui.perfetto.dev")
    show.set_defaults(run=_show)
    runs = verbs.add_parser("runs", help="list runs and experiments")
    runs.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="where they lie (default: runs)")
    runs.add_argument("--json", action="store_true", help="print JSON")
    runs.set_defaults(run=_runs)
    report = verbs.add_parser("report", help="write a page about a run or an experiment")
    report.add_argument("folder", metavar="RUN_OR_EXPERIMENT", help="the folder of a run, or of an experiment")
    report.add_argument("--output", metavar="FILE", help="by default report.html in that folder")
    report.set_defaults(run=_report)


def _add_listing(verbs: Any) -> None:
    """What can be exported, and what there is to hook."""
    export = verbs.add_parser("export", help="write a model with its adapter merged in, as a plain Hugging Face folder")
    export.add_argument("source", help="a run's folder, or an adapter folder")
    export.add_argument("folder", help="where to write; must not exist")
    export.add_argument("--base", help="the base model's folder, if it is not where the adapter says")
    export.add_argument("--trust-remote-code", action="store_true", help="run code that the base model's folder brings")
    export.set_defaults(run=_export)
    moments = verbs.add_parser("moments", help="list the moments of a run: payload, hooks, when each fires")
    moments.add_argument("event", nargs="?", help="show this one in full")
    moments.add_argument("--json", action="store_true", help="print JSON")
    moments.set_defaults(run=_moments)
    callbacks = verbs.add_parser("callbacks", help="list the kinds of callbacks that a configuration can name")
    callbacks.add_argument("--json", action="store_true", help="print JSON")
    callbacks.set_defaults(run=_callbacks)


def _add_eval(verbs: Any) -> None:
    evaluate = verbs.add_parser("eval", help="score a model, or a run's weights, on a task")
    evaluate.add_argument("source", metavar="MODEL_OR_RUN", help="a run's folder, or one with a model or an adapter")
    evaluate.add_argument("--task", dest="task", help="a built-in task, a JSONL file, or package.module:name")
    evaluate.add_argument("--name", help="of the run's eval that says the rest")
    evaluate.add_argument("--metric", help="package.module:name of a scoring function; by default the task's own")
    evaluate.add_argument("--evaluator", help="package.module:name of a function that is given the policy")
    evaluate.add_argument("--count", type=int, help="so many prompts at most")
    evaluate.add_argument("--samples", type=int, help="completions of each; with several, pass@k and mean@k")
    evaluate.add_argument("--temperature", type=float)
    evaluate.add_argument("--max-new-tokens", type=int)
    evaluate.add_argument("--breakdown", action="append", metavar="COLUMN", help="break scores down by its values")
    evaluate.add_argument("--checkpoint", metavar="NAME", help="of a run; by default its last")
    evaluate.add_argument("--output", metavar="FILE", help="write the predictions there, as JSON lines")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    evaluate.set_defaults(run=_eval)


def _eval(options: argparse.Namespace) -> int:
    from .evaluate import evaluate

    keys = ("name", "metric", "evaluator", "count", "samples", "temperature", "max_new_tokens", "breakdown")
    settings = {key: getattr(options, key) for key in keys} | {"source": options.task}
    return evaluate(
        options.source, settings, checkpoint=options.checkpoint, output=options.output, as_json=options.json
    )  # fmt: skip


def _experiment(options: argparse.Namespace) -> int:
    if _holds(options.file) == "run":
        print_visible(f"{options.file} is the configuration of one run: proa train {options.file}", file=sys.stderr)
        return 2
    from .experiment import experiment

    return experiment(options.file, options.flags)


def _report(options: argparse.Namespace) -> int:
    from .report import report

    return report(options.folder, options.output)


def _train(options: argparse.Namespace) -> int:
    from ..config import ConfigError, load_run_config

    if _holds(options.file) == "experiment":
        print_visible(f"{options.file} is an experiment: proa experiment {options.file}", file=sys.stderr)
        return 2
    sys.path.insert(0, str(Path.cwd()))  # so that algorithms, rewards, tasks and callbacks there can be named
    try:
        config = load_run_config(options.file, options.flags)
    except ConfigError as error:
        print_visible(error, file=sys.stderr)
        return 2
    from .train import train

    return train(config)


def _holds(file: str) -> str:
    """Whether a file is a `run` or an `experiment`, by keys that only one of them has; empty if it cannot be told."""
    from ..config import ConfigError, DetachedConfig, ExperimentConfig
    from ..config.yaml_text import load, read_text

    try:
        content, _ = load(read_text(Path(file)))
    except ConfigError:
        return ""  # whoever reads it in earnest says what is wrong
    keys = set(content) if isinstance(content, dict) else set()
    of_run, of_experiment = set(DetachedConfig.model_fields), set(ExperimentConfig.model_fields)
    has_run, has_experiment = keys & (of_run - of_experiment), keys & (of_experiment - of_run)
    if has_run and has_experiment:
        return ""
    return "run" if has_run else "experiment" if has_experiment else ""


def _resume(options: argparse.Namespace) -> int:
    from .resume import resume

    return resume(options.folder, options.flags, options.checkpoint, allow_changes=options.allow_changes)


def _replay(options: argparse.Namespace) -> int:
    from .replay import run_replay

    return run_replay(
        options.folder, until=options.until, into=options.into, as_json=options.json, flags=options.flags
    )  # fmt: skip


def _show(options: argparse.Namespace) -> int:
    from .show import show

    return show(options.folder, as_json=options.json, follow=options.follow, trace=options.trace)


def _runs(options: argparse.Namespace) -> int:
    from .runs import runs

    return runs(options.folder, as_json=options.json)


def _export(options: argparse.Namespace) -> int:
    from .export import export

    return export(options.source, options.folder, options.base, options.trust_remote_code)


def _moments(options: argparse.Namespace) -> int:
    from ..lifecycle.table import describe, moment_table

    rows = moment_table()
    if options.event is not None:
        if options.event not in rows:
            print_visible(f"unknown moment {options.event!r}{did_you_mean(options.event, rows)}", file=sys.stderr)
            return 2
        rows = {options.event: rows[options.event]}
    if options.json:
        print(json.dumps([row.as_dict() for row in rows.values()], indent=2))
    else:
        print("\n".join(describe(row) for row in rows.values()))
    return 0


def _callbacks(options: argparse.Namespace) -> int:
    from ..callbacks.registry import callback_kinds

    kinds = callback_kinds()
    if options.json:
        print(json.dumps(kinds, indent=2, sort_keys=True))
    else:
        for kind, home in sorted(kinds.items()):
            print(f"{kind:22} {home}")
    return 0
