"""The arguments of `proa eval`, `proa serve` and `proa export`, which use trained weights."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..visible import print_visible
from .parsing import Verbs, count


def add_eval(verbs: Verbs) -> None:
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


def add_serve(verbs: Verbs) -> None:
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
    parser.add_argument("--max-new-tokens", "--max_new_tokens", type=count, default=1024, metavar="N",
                        help="of a completion where a client does not say (1024)")  # fmt: skip
    parser.add_argument("--max-requests", "--max_requests", type=count, default=2048, metavar="N",
                        help="completions decoded or waiting at once (2048)")  # fmt: skip
    parser.add_argument("--deadline", type=float, default=600.0, metavar="SECONDS", help="for one request (600)")
    parser.add_argument("--slots", type=count, metavar="N", help="sequences decoded at once, as --engine.slots")
    parser.add_argument("--dtype", help="what is computed in, as --model.dtype")
    parser.add_argument("--device", help="cpu, cuda or cuda:1, as --model.device")

    def run(options: argparse.Namespace) -> int:
        from .exit_codes import exit_code

        def work() -> int:
            from .serve import serve

            return serve(options)

        return exit_code(work, paths=[options.source])

    parser.set_defaults(run=run, takes_flags=True)


def add_export(verbs: Verbs) -> None:
    parser = verbs.add_parser("export", help="write a model with its adapter merged in, as a plain Hugging Face folder")
    parser.add_argument("source", help="a run's folder, or an adapter folder")
    parser.add_argument("folder", help="where to write; must not exist")
    parser.add_argument("--base", help="the base model's folder, if it is not where the adapter says")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code from the base model's folder")

    def run(options: argparse.Namespace) -> int:
        from .export import export

        return export(options.source, options.folder, options.base, options.trust_remote_code)

    parser.set_defaults(run=run)
