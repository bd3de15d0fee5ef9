"""`proa` with its verbs: arguments and dispatch. Each verb imports what it needs when it runs, so help is instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .. import __version__
from ..visible import print_visible
from .list_verbs import add_callbacks, add_config, add_moments
from .machine_verbs import add_bench, add_doctor
from .parsing import Parser, Verbs
from .record_verbs import add_report, add_runs, add_show
from .weights_verbs import add_eval, add_export, add_serve

BROKEN_PIPE = 141
"""The exit code where the reader of the output left, as `head` does: what a shell reports for SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted, 141 broken pipe."""
    try:
        return _flush(_run(arguments))
    except SystemExit:  # raised by argparse, after its message
        if _flush(0):
            return BROKEN_PIPE
        raise
    except KeyboardInterrupt:
        with suppress(OSError):  # Ctrl-C also ends the reader of a pipeline
            print("interrupted", file=sys.stderr)
        return _flush(130)
    except BrokenPipeError:
        from .exit_codes import silence_closed_streams

        if not silence_closed_streams():
            raise
        return BROKEN_PIPE


def _flush(code: int) -> int:
    """Write out all output; return `code`, or `BROKEN_PIPE` if the reader is gone, as in `proa runs | head -1`."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # the shell may have closed it
                stream.flush()
    except OSError:
        from .exit_codes import silence_closed_streams

        if not silence_closed_streams():
            raise
        return code or BROKEN_PIPE
    return code


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    if rest and not options.takes_flags:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.flags = rest
    return int(options.run(options))


def make_parser() -> argparse.ArgumentParser:
    """All verbs. Where one `takes_flags`, what the parser does not know are settings of a run."""
    parser = Parser(prog="proa", description="Detached RL post-training of language models.")
    parser.add_argument("--version", action="version", version=f"proa {__version__}")
    parser.set_defaults(takes_flags=False)
    verbs: Verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for add in (
        _add_train, _add_resume, _add_experiment, add_eval, add_serve, _add_replay, add_show, add_runs, add_report,
        add_export, add_config, add_doctor, add_bench, add_moments, add_callbacks,
    ):  # fmt: skip
        add(verbs)
    return parser


def _add_train(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "train",
        help="run one configuration",
        usage="proa train FILE [--overwrite] [--key value ...]",
        epilog="Every key of the configuration is a flag, e.g. --total_steps 100 --sampling.group_size 16. Sections: "
        "model, task, algorithm, sampling, reward, environment, optimizer, engine, lora, critic, warm_start, eval, "
        "checkpoint, record, callbacks, ray. proa config lists every key, and proa config --template grpo writes a "
        "file to begin with.",
    )
    parser.add_argument("file", help="a YAML file")
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is in the folder")

    def run(options: argparse.Namespace) -> int:
        from ..config import load_run_config, outline_run_config
        from ..errors import ProaError
        from ..run.foreseen import foresee

        if _file_kind(options.file) == "experiment":
            print_visible(f"{options.file} is an experiment: proa experiment {options.file}", file=sys.stderr)
            return 2
        sys.path.insert(0, str(Path.cwd()))  # so that algorithms, rewards, tasks and callbacks there can be named
        try:
            outline, announced = foresee(
                outline_run_config(options.file, options.flags), overwrite=options.overwrite
            )  # what follows imports torch and transformers, and that takes seconds
            config = load_run_config(options.file, options.flags, name=outline.name)
        except ProaError as error:
            print_visible(error, file=sys.stderr)
            return 2
        from .train import run_to_end

        return run_to_end(config, overwrite=options.overwrite, announced=announced)

    parser.set_defaults(run=run, takes_flags=True)


def _add_resume(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "resume",
        help="resume a run from its newest checkpoint",
        usage="proa resume RUN_DIR_OR_ADDRESS [--output_dir DIR] [--checkpoint NAME] [--allow-changes] "
        "[--key value ...]",
        epilog="Flags may change what does not affect the result, e.g. --makers 4 --runtime ray; and --total_steps 800 "
        "trains longer, also a run that is complete.",
    )
    parser.add_argument(
        "folder",
        metavar="RUN_DIR_OR_ADDRESS",
        help="a run's folder, <output_dir>/<name>; or where checkpoints were uploaded to, e.g. s3://bucket/run",
    )
    parser.add_argument(
        "--output_dir",
        "--output-dir",
        metavar="DIR",
        help="copy the run to this folder and continue there; for an address, by default where the run was",
    )
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="resume from this one, e.g. step_40; later steps are dropped"
    )
    parser.add_argument(
        "--allow-changes",
        "--allow_changes",
        action="store_true",
        help="resume even if data, rewards, tokenizer or reward model have changed",
    )

    def run(options: argparse.Namespace) -> int:
        from .resume import resume

        return resume(
            options.folder, options.flags, options.checkpoint, output_dir=options.output_dir,
            allow_changes=options.allow_changes,
        )  # fmt: skip

    parser.set_defaults(run=run, takes_flags=True)


def _add_experiment(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "experiment",
        help="run arms, repeats and stages, and compare them",
        usage="proa experiment FILE [--key value ...]",
        epilog="Running it again skips what is complete and resumes what was cut off.",
    )
    parser.add_argument("file", help="a YAML file")

    def run(options: argparse.Namespace) -> int:
        if _file_kind(options.file) == "run":
            print_visible(f"{options.file} is the configuration of one run: proa train {options.file}", file=sys.stderr)
            return 2
        from .experiment import experiment

        return experiment(options.file, options.flags)

    parser.set_defaults(run=run, takes_flags=True)


def _file_kind(file: str) -> str:
    """`run` or `experiment`, by keys that only one of them has; empty if that is not clear."""
    from ..config import ConfigError, DetachedConfig, ExperimentConfig
    from ..config.yaml_text import load, read_text

    try:
        content, _ = load(read_text(Path(file)))
    except ConfigError:
        return ""  # the verb reports it
    keys = set(content) if isinstance(content, dict) else set()
    run_keys, experiment_keys = set(DetachedConfig.model_fields), set(ExperimentConfig.model_fields)
    has_run, has_experiment = keys & (run_keys - experiment_keys), keys & (experiment_keys - run_keys)
    if has_run and has_experiment:
        return ""
    return "run" if has_run else "experiment" if has_experiment else ""


def _add_replay(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "replay",
        help="repeat a run and compare the weights at each of its checkpoints",
        usage="proa replay RUN_DIR [--until STEP] [--into DIR] [--json] [--key value ...]",
    )
    parser.add_argument("folder", metavar="RUN_DIR", help="a run's folder, <output_dir>/<name>")
    parser.add_argument("--until", type=int, metavar="STEP", help="stop after this many steps")
    parser.add_argument("--into", metavar="DIR", help="the folder of the replay; must not exist")
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON object")

    def run(options: argparse.Namespace) -> int:
        from ..record.reading import RunNotFoundError, check_run_folder

        try:
            check_run_folder(Path(options.folder))  # before torch is loaded
        except RunNotFoundError as error:
            print_visible(error, file=sys.stderr)
            return 2
        from .replay import run_replay

        return run_replay(
            options.folder, until=options.until, into=options.into, as_json=options.json, flags=options.flags
        )  # fmt: skip

    parser.set_defaults(run=run, takes_flags=True)
