"""From what was found on a machine to what to set in a run, in words."""

from __future__ import annotations

from collections.abc import Mapping

from .trials import Found

_NEARLY = 0.9
"""Of the best speed: what fewer rows must reach to be enough."""
_FASTER = 1.5
"""How many times as fast bfloat16 must be on a CPU to be worth its rounding."""


def advise(training: Found, device: Found, half: Found, engines: Mapping[str, Found], processors: int) -> list[str]:
    """What to set, most important first.

    >>> fast = {"tokens_per_second": {"1": 900.0, "16": 5000.0, "64": 5200.0}, "gap_mean": 1e-7, "gap_allowed": 1e-3}
    >>> for line in advise({"tokens_per_second": 8000.0, "device": "cpu"}, {"products": 1e11}, {"products": 4e10},
    ...                    {"native": fast}, 4):
    ...     print(line)
    engine.kind: native is the fastest here that computes the same policy as the trainer.
    engine.slots: 16 sequences at once are nearly as fast as more (5,000 of 5,200 tokens/s).
    makers: the trainer takes 8,000 tokens/s and a maker gives 5,200: with devices of their own, 2 makers to a trainer. On this machine they share the processors: makers: 1, trainers: 1.
    model.dtype: float32. In bfloat16 this processor multiplies only 0.4 times as fast.
    """  # noqa: E501 - one line of advice each
    good = {kind: found for kind, found in engines.items() if works(found)}
    lines = [
        f"{kind}: do not use it here. Its log-probabilities are {found['gap_mean']:.2g} from the trainer's on "
        f"average, and {found['gap_allowed']:g} is allowed: it computes another policy."
        for kind, found in engines.items()
        if "gap_mean" in found and not agrees(found)
    ]
    lines += [
        f"{kind}: it was not measured in the time: proa doctor --engines {kind} --seconds 300."
        for kind, found in engines.items()
        if is_unknown(found)
    ]
    if not good:
        return [*lines, "No engine works with this model here; the error of each says why."]
    best = max(good, key=lambda kind: best_speed(good[kind]))
    lines = [f"engine.kind: {best} is the fastest here that computes the same policy as the trainer.", *lines]
    lines += _slots(good[best]) + _makers(training, best_speed(good[best]), processors) + _dtype(training, device, half)
    return lines


def works(found: Found) -> bool:
    """Whether an engine samples here, and computes what the trainer does."""
    return bool(found.get("tokens_per_second")) and agrees(found)


def is_unknown(found: Found) -> bool:
    """Whether the time was up before it was clear that an engine works or not."""
    return bool(found.get("late")) and not works(found) and ("gap_mean" not in found or agrees(found))


def agrees(found: Found) -> bool:
    """Whether the log-probabilities of engine and trainer are near enough for a run."""
    return bool(found.get("gap_mean", float("inf")) <= found.get("gap_allowed", 0.0))  # NaN is not


def best_speed(found: Found) -> float:
    """Tokens per second at the number of rows where it is fastest."""
    return float(max(found["tokens_per_second"].values()))


def _slots(found: Found) -> list[str]:
    speeds = {int(rows): speed for rows, speed in found["tokens_per_second"].items()}
    best = max(speeds.values())
    enough = min(rows for rows, speed in speeds.items() if speed >= _NEARLY * best)
    if enough == max(speeds):
        return [f"engine.slots: {enough} or more; fewer sequences at once are slower."]
    if speeds[enough] == best:
        return [f"engine.slots: {enough}; more sequences at once are not faster ({best:,.0f} tokens/s)."]
    return [
        f"engine.slots: {enough} sequences at once are nearly as fast as more "
        f"({speeds[enough]:,.0f} of {best:,.0f} tokens/s)."
    ]  # fmt: skip


def _makers(training: Found, sampling: float, processors: int) -> list[str]:
    """How many makers keep a trainer busy: it takes in prompts and completions, of which makers sample the latter."""
    trained = training.get("tokens_per_second")
    if not trained:
        why = training.get("error", "it was not measured")
        return [
            f"makers: how fast this model trains here is not known ({why}); a LoRA adapter needs less memory (lora)."
        ]
    ratio = trained / sampling
    makers, trainers = (round(ratio), 1) if ratio >= 1 else (1, round(1 / ratio))
    between = f"{makers} maker{'s' * (makers > 1)} to {f'{trainers} trainers' if trainers > 1 else 'a trainer'}"
    shared = ""
    if training.get("device") == "cpu":
        shared = (
            " On this machine they share the processors: makers: 1, trainers: 1."
            if processors <= 4
            else f" On this machine they share {processors} processors: threads: {processors // 2}."
        )
    return [
        f"makers: the trainer takes {trained:,.0f} tokens/s and a maker gives {sampling:,.0f}: with devices of their "
        f"own, {between}.{shared}"
    ]


def _dtype(training: Found, device: Found, half: Found) -> list[str]:
    if "products" not in device:
        return []
    if "products" not in half:
        why = half.get("error", "it was not tried")
        return [f"model.dtype: float32. bfloat16 does not work here: {why}."]
    ratio = half["products"] / device["products"]
    if training.get("device") != "cpu":
        return [f"model.dtype: bfloat16 multiplies {ratio:.1f} times as fast as float32."]
    if ratio < _FASTER:
        return [f"model.dtype: float32. In bfloat16 this processor multiplies only {ratio:.1f} times as fast."]
    return [
        f"model.dtype: bfloat16 multiplies {ratio:.1f} times as fast here and takes half the memory; float32 is exact. "
        "Compare both on your own model: proa doctor --dtype bfloat16."
    ]
