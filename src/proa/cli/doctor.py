"""`proa doctor`: what is installed, which engines work here, how fast they are, and what to set."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from .. import __version__
from ..bench.shapes import SHAPES
from ..doctor.advice import advise, agrees, is_unknown, works
from ..doctor.packages import PACKAGES, how_to_get, missing_for_engine
from ..doctor.patient import Patient
from ..doctor.trials import ROWS, Found, TrialSettings
from ..errors import SettingError
from ..run.foreseen import may_have_gpu
from ..spelling import did_you_mean
from ..terminal import Console

_OWN = ("native", "hf")
"""Engines that leave nothing behind in their process."""


def doctor(options: argparse.Namespace) -> int:
    """Print all that is found, as it is found; 0 where some engine can be used."""
    console = Console(quiet=options.json)
    console.print(f"Proa {__version__}, Python {platform.python_version()}: {options.seconds:g} s at most")
    _check_model(options.model)
    sys.path.insert(0, str(Path.cwd()))  # so that an engine there can be named
    packages = [{**asdict(package), "version": package.version} for package in PACKAGES]
    _print_packages(console)
    settings = TrialSettings(_local(options.model), options.device, options.dtype, options.threads)
    with Patient(settings, options.seconds) as patient:
        with _status(console, "the trainer"):
            training = patient.try_("training")
        if training.get("refused") and "parameters" not in training:
            raise SettingError(training["error"])
        kinds = _engines(options.engines, training.pop("known_engines", list(_OWN)))
        _print_training(console, training)
        with _status(console, "the device"):
            device, half = patient.try_("device"), patient.try_("half")
        _print_device(console, device, half)
        engines: dict[str, Found] = {}
        for kind in kinds:
            if missing := missing_for_engine(kind, has_gpu=may_have_gpu()):
                engines[kind] = {"error": missing}
                continue
            with _status(console, f"the engine {kind}"):
                engines[kind] = patient.try_("engine", kind=kind, alone=kind not in _OWN)
    _print_engines(console, engines)
    advice = advise(training, device, half, engines, os.cpu_count() or 1)
    console.print("Advice", style="bold")
    points = Table.grid(padding=(0, 1))
    for line in advice:
        points.add_row("-", line)
    console.print(points)
    is_usable = any(map(works, engines.values()))
    if options.json:
        told = {
            "proa": __version__, "python": platform.python_version(), "packages": packages, "model": options.model,
            "training": training, "device": device, "bfloat16": half, "engines": engines, "advice": advice,
            "usable": is_usable,
        }  # fmt: skip
        print(json.dumps(told, indent=2))
    return 0 if is_usable else 1


def _status(console: Console, what: str) -> Any:
    return console.status(f"trying {what} …")


def _check_model(model: str) -> None:
    """Refuse at once what is no model: a slip need not wait for torch."""
    from ..policy.hub import is_hub_name, no_folder

    if model in SHAPES or Path(model).exists() or is_hub_name(model):
        return
    near = did_you_mean(model, SHAPES)
    raise SettingError(f"{no_folder(model)}; or one of the shapes {', '.join(SHAPES)}{near}")


def _local(model: str) -> str:
    """The folder of a name of the Hub, so that it is only looked for once."""
    from ..policy.hub import local_folder

    return model if model in SHAPES else str(local_folder(model))


def _engines(wanted: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    """Those that are tried: all that are known by name, or those that the user names."""
    for name in wanted or ():
        if name not in known and not any(mark in name for mark in ":."):
            near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise SettingError(f"there is no engine {name!r}{near}")
    return wanted or known


# -- what is printed ---------------------------------------------------------------------------------


def _print_packages(console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="Installed", title_justify="left", title_style="bold")
    for title in ("package", "version", "for"):
        table.add_column(title, overflow="fold")
    for package in PACKAGES:
        missing = f"{package.needed_for}: {how_to_get(package, has_gpu=may_have_gpu())}"
        table.add_row(package.names[0], package.version or "–", package.needed_for if package.version else missing)
    console.print(table)


def _print_training(console: Console, found: Found) -> None:
    if "parameters" in found:
        console.print(
            f"Model: {found['architecture']}, {found['parameters'] / 1e6:,.1f}M parameters, in {found['dtype']} on "
            f"{found['device']}"
        )
    speed = found.get("tokens_per_second")
    said = f"not measured: {found.get('error')}" if speed is None else f"{speed:,.0f} tokens/s, forward and backward"
    console.print(f"Trainer: {said}")


def _print_device(console: Console, device: Found, half: Found) -> None:
    console.print(f"Device: {device.get('name', 'unknown')}")
    if "torch_device_support" in device:
        console.print(f"Torch: {device['torch_device_support']}")
    if "bandwidth" in device:
        console.print(f"Memory bandwidth: {device['bandwidth'] / 1e9:,.1f} GB/s, measured by a copy")
    speeds = [
        f"{found['products'] / 1e9:,.0f} GFLOP/s in {name}" if "products" in found else f"{name}: {found.get('error')}"
        for name, found in (("float32", device), ("bfloat16", half))
    ]
    console.print(f"Matrix products: {', '.join(speeds)}")


def _print_engines(console: Console, engines: dict[str, Found]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="Engines", title_justify="left", title_style="bold")
    for title in ("engine", "works"):
        table.add_column(title)
    for title in ("gap: mean", "largest", "ready in", *(f"{rows} row{'s' * (rows > 1)}" for rows in ROWS)):
        table.add_column(title, justify="right")
    for kind, found in engines.items():
        speeds = found.get("tokens_per_second", {})
        answer = "yes" if works(found) else "?" if is_unknown(found) else "no"
        table.add_row(
            kind, answer, _gap(found, "gap_mean"), _gap(found, "gap_largest"),
            f"{found['seconds_to_build']:.1f} s" if "seconds_to_build" in found else "–",
            *(f"{speeds[str(rows)]:,.0f}" if str(rows) in speeds else "–" for rows in ROWS),
        )  # fmt: skip
    console.print(table)
    console.print("gap: of log-probabilities to the trainer's; rows: tokens/s with so many rows")
    for kind, found in engines.items():
        if "error" in found:
            console.print(f"{kind}: {found['error']}")
        elif not agrees(found):
            console.print(f"{kind}: it computes another policy than the trainer")


def _gap(found: Found, key: str) -> str:
    return f"{found[key]:.1e}" if key in found else "–"
