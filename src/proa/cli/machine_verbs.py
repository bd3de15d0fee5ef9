"""The arguments of `proa doctor` and `proa bench`, which try and measure this machine."""

from __future__ import annotations

import argparse

from .parsing import Verbs, count, count_list, name_list, seconds


def add_doctor(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="what is installed, which engines work here, how fast they are, and what to set",
        epilog="Everything is tried for real, each in a process of its own. Exit code 0 if some engine can be used.",
    )
    parser.add_argument(
        "model", nargs="?", default="small", metavar="MODEL",
        help="a folder, a name of the Hub, or a shape with random weights: small, 0.5B, 0.6B, 4B (default: small)",
    )  # fmt: skip
    parser.add_argument(
        "--engines", type=name_list, metavar="NAMES", help="separated by commas (default: all there are)"
    )
    parser.add_argument("--seconds", type=seconds, default=60.0, metavar="N", help="for everything together (60)")
    _add_machine(parser)

    def run(options: argparse.Namespace) -> int:
        from .doctor import doctor
        from .exit_codes import exit_code

        return exit_code(lambda: doctor(options))

    parser.set_defaults(run=run)


def add_bench(verbs: Verbs) -> None:
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
    parser.add_argument("--engines", type=name_list, default=["native", "hf", "generate"], help="separated by commas")
    parser.add_argument("--rows", type=count_list, default=[1, 64, 256], help="sequences at once, separated by commas")
    parser.add_argument("--lengths", type=name_list, default=["uniform", "tail"], help="uniform, tail (log-normal)")
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
    parser.add_argument("--without", type=name_list, default=[], help="leave out: trl")
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
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="of torch, where a CPU computes (1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
