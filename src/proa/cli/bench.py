"""`proa bench rollout`: how fast completions are sampled on this machine, as one table of ratios."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.table import Table

from ..bench.rollout import ENGINES, LENGTHS, SHAPES, Case, Figure, measure
from ..errors import SettingError
from ..spelling import did_you_mean
from ..terminal import Console

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
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"there is no CUDA device here for --device {device}: leave it out, or write cpu")
    if dtype == "auto":
        dtype = "bfloat16" if device != "cpu" else "float32"
    shape = ("0.6B" if device != "cpu" else "small") if shape == "auto" else shape
    cases = [Case(count, kind, prompt_tokens, new_tokens) for kind in lengths for count in rows]
    figures, missing = measure(shape, engines, cases, device=device, dtype=dtype, rounds=rounds)
    if as_json:
        told = {"model": shape, "device": device, "dtype": dtype, "figures": [asdict(one) for one in figures]}
        print(json.dumps({**told, "not_measured": missing}, indent=2))
        return 0
    _print(figures, missing, f"{shape if shape in SHAPES else 'the model'} in {dtype} on {device}")
    return 0


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
