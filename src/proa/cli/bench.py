"""`proa bench`: what this machine does, beside other libraries, as tables of ratios."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from ..bench.rollout import ENGINES, LENGTHS, Case, Figure, measure
from ..bench.shapes import SHAPES
from ..errors import SettingError
from ..spelling import did_you_mean
from ..terminal import Console

if TYPE_CHECKING:
    from ..bench.quality import Reached
    from ..bench.step import StepFigure

BASE = "generate"
"""What the others are divided by, if it was measured."""


def bench_rollout(
    shape: str,
    *,
    engines: Sequence[str],
    rows: Sequence[int],
    lengths: Sequence[str],
    prompt_tokens: int,
    new_tokens: int,
    device: str,
    dtype: str,
    rounds: int,
    threads: int,
    as_json: bool,
) -> int:
    import torch

    for given, known, what in ((engines, ENGINES, "engine"), (lengths, LENGTHS, "kind of lengths")):
        for name in given:
            if name not in known:
                near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
                raise SettingError(f"there is no {what} {name!r}{near}")
    torch.set_num_threads(threads)
    device, dtype = _machine(device, dtype)
    shape = ("0.6B" if device != "cpu" else "small") if shape == "auto" else shape
    cases = [Case(count, kind, prompt_tokens, new_tokens) for kind in lengths for count in rows]
    figures, missing = measure(shape, engines, cases, device=device, dtype=dtype, rounds=rounds)
    if as_json:
        told = {"model": shape, "device": device, "dtype": dtype, "figures": [asdict(one) for one in figures]}
        print(json.dumps({**told, "not_measured": missing}, indent=2))
        return 0
    _print(figures, missing, f"{shape if shape in SHAPES else 'the model'} in {dtype} on {device}")
    return 0


def _machine(device: str, dtype: str) -> tuple[str, str]:
    """The device and the dtype that are measured."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"there is no CUDA device here for --device {device}: leave it out, or write cpu")
    return device, ("bfloat16" if device != "cpu" else "float32") if dtype == "auto" else dtype


def _print(figures: Sequence[Figure], missing: dict[str, str], what: str) -> None:
    base = {(one.rows, one.lengths): one.tokens_per_second for one in figures if one.engine == BASE}
    table = Table(box=box.SIMPLE_HEAD, title=f"tokens per second: {what}", title_justify="left")
    for title in ("lengths", "rows", "engine", "tokens/s", f"of {BASE}", "limit", "of the limit"):
        table.add_column(title, justify="left" if title in ("lengths", "engine") else "right")
    for one in figures:
        plain = base.get((one.rows, one.lengths))
        table.add_row(
            one.lengths, str(one.rows), one.engine, f"{one.tokens_per_second:,.0f}",
            "" if plain is None else f"{one.tokens_per_second / plain:.2f}", f"{one.limit:,.0f}",
            f"{one.tokens_per_second / one.limit:.0%}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    console.print("limit: a step reads all weights once, and the cache of every row; at the bandwidth of a copy here")
    for name, why in missing.items():
        console.print(f"{name} was not measured: {why}", markup=False)


# -- a whole step ------------------------------------------------------------------------------------


def bench_step(options: argparse.Namespace) -> int:
    """Ours, then TRL's; with `--at-least`, 1 if the ratio is less."""
    import torch

    from ..bench.step import StepCase, measure_proa, measure_trl
    from ..learning.learner import StepSettings
    from ..policy.computing import ComputeSettings

    torch.set_num_threads(options.threads)
    device, dtype = _machine(options.device, options.dtype)
    on_gpu = device != "cpu"
    shape = ("0.6B" if on_gpu else "small") if options.shape == "auto" else options.shape
    if shape not in SHAPES:
        raise SettingError(f"there is no shape {shape!r}; there are {', '.join(SHAPES)}")
    case = StepCase(
        shape=shape, prompts=options.prompts, group_size=options.group_size,
        prompt_tokens=options.prompt_tokens or (128 if on_gpu else 32),
        new_tokens=options.new_tokens or (256 if on_gpu else 64), lora_rank=options.lora,
    )  # fmt: skip
    if options.memory:
        if not on_gpu:
            raise SettingError("--memory is for a GPU: leave it out, or give --device cuda")
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.memory * 2**30 / total))
    computing = ComputeSettings(
        gradient_checkpointing=options.checkpointing, compile=on_gpu and not options.no_compile
    )  # fmt: skip
    settings = StepSettings(token_budget=options.token_budget or (32_768 if on_gpu else 2048), share_prompts=on_gpu)
    machine = {"device": device, "dtype": dtype, "steps": options.steps}
    figures = [measure_proa(case, computing=computing, settings=settings, **machine)]
    missing = {}
    if "trl" not in options.without:
        try:
            figures.append(measure_trl(case, checkpointing=options.checkpointing, **machine))
        except ImportError as error:
            missing["trl"] = str(error)
    ratio = figures[1].seconds / figures[0].seconds if len(figures) > 1 else None
    if options.json:
        told = {"case": asdict(case), "device": device, "dtype": dtype, "figures": [asdict(one) for one in figures]}
        print(json.dumps({**told, "trl_over_proa": ratio, "not_measured": missing}, indent=2))
    else:
        _print_steps(figures, missing, ratio, f"{shape} in {dtype} on {device}, {case.tokens:,} tokens")
    return int(options.at_least is not None and (ratio is None or ratio < options.at_least))


def _print_steps(figures: Sequence[StepFigure], missing: dict[str, str], ratio: float | None, what: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"seconds of a GRPO step: {what}", title_justify="left")
    titles = ("", "step", "make", "train", "push", "tokens/s", "GiB", "of peak", "first")
    for title in titles:
        table.add_column(title, justify="right" if title else "left")
    for one in figures:
        table.add_row(
            one.library, f"{one.seconds:.3f}", f"{one.generating:.3f}", f"{one.training:.3f}", f"{one.publishing:.3f}",
            f"{one.tokens_per_second:,.0f}", f"{one.peak_memory / 2**30:.1f}" if one.peak_memory else "",
            f"{one.share_of_peak:.0%}", f"{one.first_seconds:.1f}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    console.print("of peak: arithmetic of training over that of a large product; first: the first step, and compiling")
    if ratio is not None:
        console.print(f"TRL takes {ratio:.2f} times as long")
    for name, why in missing.items():
        console.print(f"{name} was not measured: {why}", markup=False)


# -- time to quality ---------------------------------------------------------------------------------


def bench_quality(options: argparse.Namespace) -> int:
    """Seed by seed, as they come; with `--at-most`, 1 if ours takes more than that share of TRL's time."""
    import importlib.util

    from ..bench.quality import compare, measure_seed

    libraries = ["proa", *(["trl"] if importlib.util.find_spec("trl") is not None else [])]
    reached: list[Reached] = []
    for seed in range(options.seeds):
        reached += measure_seed(seed, target=options.target, most_steps=options.most_steps, libraries=libraries)
        if not options.json:
            print("  ".join(_said(one) for one in reached[-len(libraries) :]), flush=True)
    ratio = compare(reached)
    if options.json:
        rows = [asdict(one) | {"seconds": one.seconds if math.isfinite(one.seconds) else None} for one in reached]
        print(json.dumps({"target": options.target, "reached": rows, "ratio": asdict(ratio)}, indent=2))
    elif ratio.mean is not None:
        interval = "" if ratio.low is None or ratio.high is None else f"95 %: {ratio.low:.2f} to {ratio.high:.2f}, "
        print(
            f"ours takes {ratio.mean:.2f} of TRL's time to a reward of {options.target:g} ({interval}{ratio.n} seeds)"
        )
    missed = any(not math.isfinite(one.seconds) for one in reached if one.library == "proa")
    return int(missed or (options.at_most is not None and (ratio.mean is None or ratio.mean > options.at_most)))


def _said(one: Reached) -> str:
    when = f"{one.seconds:.0f} s" if math.isfinite(one.seconds) else "not"
    return f"seed {one.seed}, {one.library}: {when} after {one.steps} steps"
