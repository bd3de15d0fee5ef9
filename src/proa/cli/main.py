"""`proa` with its verbs: arguments and dispatch. Each verb imports what it needs when it runs, so help is instant."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeAlias

from .. import __version__
from ..spelling import did_you_mean
from ..visible import print_visible, visible

BROKEN_PIPE = 141
"""The exit code where the reader of the output left, as `head` does: what a shell reports for SIGPIPE."""

Verbs: TypeAlias = "argparse._SubParsersAction[_Parser]"


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
    parser = _Parser(prog="proa", description="Detached RL post-training of language models.")
    parser.add_argument("--version", action="version", version=f"proa {__version__}")
    parser.set_defaults(takes_flags=False)
    verbs: Verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for add in (
        _add_train, _add_resume, _add_experiment, _add_eval, _add_serve, _add_replay, _add_show, _add_runs, _add_report,
        _add_export, _add_config, _add_doctor, _add_bench, _add_moments, _add_callbacks,
    ):  # fmt: skip
        add(verbs)
    return parser


class _Parser(argparse.ArgumentParser):
    """Escapes control characters of the user's arguments in its messages."""

    def error(self, message: str) -> NoReturn:
        super().error(visible(message))


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


def _add_eval(verbs: Verbs) -> None:
    parser = verbs.add_parser("eval", help="score a model, or a run's weights, on a task")
    parser.add_argument("source", metavar="MODEL_OR_RUN", help="the folder of a run, a model or an adapter")
    parser.add_argument("--task", help="a built-in task, a file, hf:NAME of the Hub, or package.module:name")
    parser.add_argument("--split", help="of a dataset that has several")
    parser.add_argument(
        "--column",
        action="append",
        type=_renamed,
        metavar="WHAT=NAME",
        help="what a column is called there, e.g. prompt=question",
    )
    parser.add_argument("--name", help="an eval of the run, which gives the other settings")
    parser.add_argument("--metric", help="package.module:name of a scoring function; by default the task's own")
    parser.add_argument("--evaluator", help="package.module:name of a function that is called with the policy")
    parser.add_argument("--count", type=int, help="the most prompts to use")
    parser.add_argument("--samples", type=int, help="completions of each prompt; with several, pass@k and mean@k")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--breakdown", action="append", metavar="COLUMN", help="break scores down by its values")
    parser.add_argument("--checkpoint", metavar="NAME", help="a checkpoint of the run; by default its last")
    parser.add_argument("--output", metavar="FILE", help="write the predictions to this file, as JSON lines")
    parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(options: argparse.Namespace) -> int:
        if not Path(options.source).is_dir():  # said before torch is loaded
            print_visible(
                f"there is no folder {options.source}: give the folder of a run, a model or an adapter", file=sys.stderr
            )
            return 2
        from .evaluate import EvalFlags, evaluate

        columns = None if options.column is None else dict(options.column)
        flags = EvalFlags(
            source=options.task, split=options.split, columns=columns, name=options.name, metric=options.metric,
            evaluator=options.evaluator, count=options.count, samples=options.samples, temperature=options.temperature,
            max_new_tokens=options.max_new_tokens, breakdown=options.breakdown,
        )  # fmt: skip
        return evaluate(
            options.source, flags, checkpoint=options.checkpoint, output=options.output, as_json=options.json
        )  # fmt: skip

    parser.set_defaults(run=run)


def _renamed(said: str) -> tuple[str, str]:
    what, _, name = said.partition("=")
    if not (what and name):
        raise argparse.ArgumentTypeError(f"write WHAT=NAME, e.g. prompt=question, not {said!r}")
    return what, name


def _add_serve(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "serve",
        help="answer clients of OpenAI's API with a run's weights, or a model",
        usage="proa serve RUN_OR_MODEL [--port N] [--token TOKEN] [--checkpoint NAME] [--key value ...]",
        epilog="Settings of a run that matter here are flags too: --engine.kind hf, --engine.cache_tokens 100000, "
        "--threads 4, --model.trust_remote_code true.",
    )
    parser.add_argument(
        "source", metavar="RUN_OR_MODEL", help="the folder of a run, a checkpoint, a model or an adapter; or a name of "
        "the Hub",
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="8000; 0 takes one that is free")
    parser.add_argument("--host", default="127.0.0.1", help="127.0.0.1: only this machine; 0.0.0.0: every other too")
    parser.add_argument("--token", help="what clients send as their API key; by default $PROA_TOKEN, or a new one")
    parser.add_argument("--no-token", "--no_token", action="store_true", help="let in every user of this machine")
    parser.add_argument("--name", help="what the model is called; by default as its run, or its folder")
    parser.add_argument("--checkpoint", metavar="NAME", help="a checkpoint of the run; by default its last")
    parser.add_argument("--max-new-tokens", "--max_new_tokens", type=_count, default=1024, metavar="N",
                        help="of a completion where a client does not say (1024)")  # fmt: skip
    parser.add_argument("--max-requests", "--max_requests", type=_count, default=2048, metavar="N",
                        help="completions decoded or waiting at once (2048)")  # fmt: skip
    parser.add_argument("--deadline", type=float, default=600.0, metavar="SECONDS", help="for one request (600)")
    parser.add_argument("--slots", type=_count, metavar="N", help="sequences decoded at once, as --engine.slots")
    parser.add_argument("--dtype", help="what is computed in, as --model.dtype")
    parser.add_argument("--device", help="cpu, cuda or cuda:1, as --model.device")

    def run(options: argparse.Namespace) -> int:
        from .exit_codes import exit_code

        def work() -> int:
            from .serve import serve

            return serve(options)

        return exit_code(work, paths=[options.source])

    parser.set_defaults(run=run, takes_flags=True)


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


def _add_show(verbs: Verbs) -> None:
    parser = verbs.add_parser("show", help="show a run, also while it is running, or an experiment")
    parser.add_argument("folder", metavar="RUN_DIR", help="a run's folder, <output_dir>/<name>")
    parser.add_argument("--json", action="store_true", help="print one JSON object: header, live view, last metrics")
    parser.add_argument("--follow", action="store_true", help="keep showing until the run ends")
    parser.add_argument("--trace", metavar="FILE", help="write its timeline to this file, for https://ui.perfetto.dev")

    def run(options: argparse.Namespace) -> int:
        from .show import show

        return show(options.folder, as_json=options.json, follow=options.follow, trace=options.trace)

    parser.set_defaults(run=run)


def _add_runs(verbs: Verbs) -> None:
    parser = verbs.add_parser("runs", help="list runs and experiments")
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="where to look (default: runs)")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def run(options: argparse.Namespace) -> int:
        from .runs import runs

        return runs(options.folder, as_json=options.json)

    parser.set_defaults(run=run)


def _add_report(verbs: Verbs) -> None:
    parser = verbs.add_parser("report", help="write a page about a run or an experiment")
    parser.add_argument("folder", metavar="RUN_OR_EXPERIMENT", help="the folder of a run, or of an experiment")
    parser.add_argument("--output", metavar="FILE", help="by default report.html in that folder")

    def run(options: argparse.Namespace) -> int:
        from .report import report

        return report(options.folder, options.output)

    parser.set_defaults(run=run)


def _add_export(verbs: Verbs) -> None:
    parser = verbs.add_parser("export", help="write a model with its adapter merged in, as a plain Hugging Face folder")
    parser.add_argument("source", help="a run's folder, or an adapter folder")
    parser.add_argument("folder", help="where to write; must not exist")
    parser.add_argument("--base", help="the base model's folder, if it is not where the adapter says")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code from the base model's folder")

    def run(options: argparse.Namespace) -> int:
        from .export import export

        return export(options.source, options.folder, options.base, options.trust_remote_code)

    parser.set_defaults(run=run)


def _add_config(verbs: Verbs) -> None:
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


def _add_doctor(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="what is installed, which engines work here, how fast they are, and what to set",
        epilog="Everything is tried for real, each in a process of its own. Exit code 0 if some engine can be used.",
    )
    parser.add_argument(
        "model", nargs="?", default="small", metavar="MODEL",
        help="a folder, a name of the Hub, or a shape with random weights: small, 0.5B, 0.6B, 4B (default: small)",
    )  # fmt: skip
    parser.add_argument("--engines", type=_names, metavar="NAMES", help="separated by commas (default: all there are)")
    parser.add_argument("--seconds", type=_seconds, default=60.0, metavar="N", help="for everything together (60)")
    _add_machine(parser)

    def run(options: argparse.Namespace) -> int:
        from .doctor import doctor
        from .exit_codes import exit_code

        return exit_code(lambda: doctor(options))

    parser.set_defaults(run=run)


def _add_bench(verbs: Verbs) -> None:
    parser = verbs.add_parser("bench", help="measure this machine: sampling, a whole step, time to quality")
    kinds: Verbs = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    _add_bench_rollout(kinds)
    _add_bench_step(kinds)
    _add_bench_quality(kinds)


def _add_bench_rollout(kinds: Verbs) -> None:
    parser = kinds.add_parser(
        "rollout",
        help="how fast completions are sampled, beside model.generate",
        epilog="Engines: native, hf, generate (model.generate), continuous (transformers' continuous batching), vllm, "
        "where it is installed. Trust the ratios more than the figures.",
    )
    parser.add_argument(
        "model", nargs="?", default="auto", metavar="MODEL",
        help="a folder, or a shape with random weights: small, 0.6B (default: 0.6B on a GPU, else small)",
    )  # fmt: skip
    parser.add_argument("--engines", type=_names, default=["native", "hf", "generate"], help="separated by commas")
    parser.add_argument("--rows", type=_counts, default=[1, 64, 256], help="sequences at once, separated by commas")
    parser.add_argument("--lengths", type=_names, default=["uniform", "tail"], help="uniform, tail (log-normal)")
    parser.add_argument("--prompt-tokens", "--prompt_tokens", type=int, default=128, metavar="N")
    parser.add_argument("--new-tokens", "--new_tokens", type=int, default=256, metavar="N")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="the best of so many counts")
    _add_machine(parser)

    def run(options: argparse.Namespace) -> int:
        from .bench import bench_rollout
        from .exit_codes import exit_code

        return exit_code(
            lambda: bench_rollout(
                options.model, engines=options.engines, rows=options.rows, lengths=options.lengths,
                prompt_tokens=options.prompt_tokens, new_tokens=options.new_tokens, device=options.device,
                dtype=options.dtype, rounds=options.rounds, threads=options.threads, as_json=options.json,
            )
        )  # fmt: skip

    parser.set_defaults(run=run)


def _add_bench_step(kinds: Verbs) -> None:
    parser = kinds.add_parser(
        "step",
        help="a whole GRPO step, beside TRL's where it is installed",
        epilog="Both have the same model of random weights, prompts, lengths and settings, in one process, one after "
        "the other. Trust the ratio more than the figures.",
    )
    parser.add_argument("--shape", default="auto", help="small, 0.5B, 0.6B or 4B (default: 0.6B on a GPU, else small)")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train an adapter instead of all weights")
    parser.add_argument("--prompts", type=int, default=8, metavar="N")
    parser.add_argument("--group-size", "--group_size", type=int, default=8, metavar="N")
    parser.add_argument("--prompt-tokens", "--prompt_tokens", type=int, metavar="N", help="128 on a GPU, else 32")
    parser.add_argument("--new-tokens", "--new_tokens", type=int, metavar="N", help="256 on a GPU, else 64")
    parser.add_argument("--steps", type=int, default=4, metavar="N", help="after the first; the best counts")
    parser.add_argument(
        "--checkpointing", action="store_true", help="compute activations twice instead of keeping them"
    )
    parser.add_argument("--no-compile", "--no_compile", action="store_true", help="on a GPU: do not compile layers")
    parser.add_argument(
        "--token-budget", "--token_budget", type=int, metavar="N", help="tokens computed at once (32768; 2048 on a CPU)"
    )
    parser.add_argument("--memory", type=float, metavar="GIB", help="on a GPU: allow no more of its memory than this")
    parser.add_argument("--without", type=_names, default=[], help="leave out: trl")
    parser.add_argument("--at-least", "--at_least", type=float, metavar="RATIO", help="fail if it is less")
    _add_machine(parser)

    def run(options: argparse.Namespace) -> int:
        from .bench import bench_step
        from .exit_codes import exit_code

        return exit_code(lambda: bench_step(options))

    parser.set_defaults(run=run)


def _add_bench_quality(kinds: Verbs) -> None:
    parser = kinds.add_parser(
        "quality",
        help="time until a small model sorts digits, beside TRL, over seeds",
        epilog="On the CPU. Both start from the same weights and have the same settings and the whole machine. It "
        "takes minutes for each seed.",
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--target", type=float, default=0.9, help="mean reward of five batches in a row (0.9)")
    parser.add_argument("--most-steps", "--most_steps", type=int, default=600, metavar="N", help="then it gives up")
    parser.add_argument("--at-most", "--at_most", type=float, metavar="RATIO", help="fail if the time is more")
    parser.add_argument("--json", action="store_true", help="print JSON")

    def run(options: argparse.Namespace) -> int:
        from .bench import bench_quality
        from .exit_codes import exit_code

        return exit_code(lambda: bench_quality(options))

    parser.set_defaults(run=run)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=_count, default=1, metavar="N", help="of torch, where a CPU computes (1)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _counts(text: str) -> list[int]:
    names = _names(text)
    if not names or not all(name.isdecimal() and int(name) for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 1,64,256")
    return [int(name) for name in names]


def _add_moments(verbs: Verbs) -> None:
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


def _add_callbacks(verbs: Verbs) -> None:
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
