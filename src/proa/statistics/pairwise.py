"""Two arms compared, pair by pair: how much they differ, and how much of the difference may be chance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import SettingError
from .comparison import Chance, Comparison, Mode, Verdict, check_mode
from .intervals import NOISE, check_level, student_t
from .pairing import Pairs, Scores, pair

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def compare(
    a: Scores,
    b: Scores,
    *,
    mode: Mode = "max",
    level: float = 0.95,
    seed: int = 0,
    resamples: int = 2000,
    names: tuple[str, str] = ("a", "b"),
) -> Comparison:
    """Is arm a better than arm b? Scores are `{seed: {task_id: score}}`, or `{seed: score}`.

    Differences d_st are taken within the same seed and the same task. Their model is an effect of the seed (training
    again), one of the task (other tasks of this kind), and noise, all independent and roughly normal:
    d_st = μ + α_s + τ_t + ε_st. With the mean squares of the two-way table, A of seeds, B of tasks, E of the rest,

        half-width² = ( t²(S−1) · A + t²(T−1) · max(B − E, 0) ) / (S·T)

    Each part has the t of its own degrees of freedom; such a sum covers at least as often as it says (Banerjee,
    Sankhyā 22, 1960; exact where seeds dominate). A is at least what the grid of scores would hide: the means of two
    seeds over ten right-or-wrong tasks are often equal by luck. Two seeds give very wide intervals. That is the truth
    about two seeds.

    One seed tells about the tasks and not about training again: the interval is that of these two trained models on
    more tasks of this kind. `{seed: score}` tells about training again, on these very tasks. One score each tells
    nothing. Where each seed drew tasks of its own, its mean difference varies with both, and the interval is Student's
    t over seeds. Where all differences are equal there is no spread to judge by, and no interval: then only as many
    agreeing seeds (of one seed: tasks) as a sign test asks for, 6 at 95 %, make a verdict. Tasks of one trained model
    learn or collapse together, so they do not count as repeats of training.

    A bootstrap over few seeds covers far too little, so it gives only `share`, drawn from `seed`.

    >>> found = compare({0: 0.7, 1: 0.8, 2: 0.9}, {0: 0.5, 1: 0.5, 2: 0.5})
    >>> round(found.difference, 3), round(found.low, 3), round(found.high, 3), found.verdict
    (0.3, 0.052, 0.548, 'better')
    """
    check_mode(mode)
    check_level(level)
    if resamples < 1:
        raise SettingError(f"resamples must be at least 1, not {resamples}")
    pairs = pair(a, b)
    seeds, tasks = pairs.a.shape
    differences_ST = pairs.a - pairs.b
    difference = float(differences_ST.mean()) if differences_ST.size else None
    noise = NOISE * max(abs(pairs.a).max(), abs(pairs.b).max()) if differences_ST.size else 0.0
    spread = bool(differences_ST.size) and float(differences_ST.max() - differences_ST.min()) > noise
    half = _half_width(differences_ST, level, noise) if spread else None
    comparison = Comparison(
        a=float(pairs.a.mean()) if differences_ST.size else None,
        b=float(pairs.b.mean()) if differences_ST.size else None,
        difference=difference,
        low=None if half is None or difference is None else difference - half,
        high=None if half is None or difference is None else difference + half,
        level=level,
        mode=mode,
        seeds=seeds,
        tasks=pairs.tasks,
        own_tasks=pairs.own_tasks,
        pairs=pairs.count,
        missing=pairs.missing,
        chance=_chance(pairs),
        method=_method(pairs, spread),
        share=_share_better(differences_ST, mode, seed, resamples, noise) if spread else None,
        verdict=_verdict(difference, half, seeds if seeds > 1 else tasks, mode, level, noise),
    )
    return replace(comparison, words=comparison.describe(*names))


def _half_width(differences_ST: NDArray[np.float64], level: float, noise: float) -> float:
    """Half of the interval, as `compare` says. The table has at least two cells, and they differ."""
    seeds, tasks = differences_ST.shape
    mean = differences_ST.mean()
    means_S, means_T = differences_ST.mean(axis=1), differences_ST.mean(axis=0)
    squares = 0.0
    if seeds > 1:
        mean_square_seeds = tasks * float(means_S.var(ddof=1))
        if tasks > 1:
            # Means of T scores with gaps of g lie on a grid of g/T: rounding to it hides a variance of (g/T)²/12.
            mean_square_seeds = max(mean_square_seeds, _smallest_gap(differences_ST, noise) ** 2 / (12 * tasks))
        squares += student_t(seeds - 1, level) ** 2 * mean_square_seeds
    if tasks > 1:
        mean_square_tasks = seeds * float(means_T.var(ddof=1))
        mean_square_rest = 0.0
        if seeds > 1:
            rest_ST = differences_ST - means_S[:, None] - means_T[None, :] + mean
            mean_square_rest = float((rest_ST**2).sum()) / ((seeds - 1) * (tasks - 1))
        squares += student_t(tasks - 1, level) ** 2 * max(mean_square_tasks - mean_square_rest, 0.0)
    return math.sqrt(squares / (seeds * tasks))


def _smallest_gap(differences_ST: NDArray[np.float64], noise: float) -> float:
    """The smallest step between two different differences: 1 for right-or-wrong scores, next to 0 for real ones."""
    import numpy as np

    steps = np.diff(np.sort(differences_ST, axis=None))
    return float(steps[steps > noise].min())


def _share_better(differences_ST: NDArray[np.float64], mode: Mode, seed: int, resamples: int, noise: float) -> float:
    """Seeds and tasks are both drawn again with replacement, the pairs kept together."""
    import numpy as np

    generator = np.random.default_rng(seed)
    seeds, tasks = differences_ST.shape
    better = 0.0
    block = max(1, 2_000_000 // tasks)  # resamples at a time: the memory is bounded, whatever the number of tasks
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        weights_RS = generator.multinomial(seeds, [1 / seeds] * seeds, size=count) / seeds
        means_RT = weights_RS @ differences_ST
        chosen_RT = generator.integers(tasks, size=(count, tasks))
        means_R = np.take_along_axis(means_RT, chosen_RT, axis=1).mean(axis=1)
        ahead_R = means_R if mode == "max" else -means_R
        better += float((ahead_R > noise).sum()) + 0.5 * float((abs(ahead_R) <= noise).sum())
    return better / resamples


def _verdict(
    difference: float | None, half: float | None, units: int, mode: Mode, level: float, noise: float
) -> Verdict:
    if difference is None or units < 2:
        return "cannot tell"
    if abs(difference) <= (noise if half is None else half):
        return "no difference seen"
    if half is None and 2.0 ** (1 - units) > 1 - level:  # a sign test, all of one sign
        return "cannot tell"
    return "better" if (difference > 0) == (mode == "max") else "worse"


def _chance(pairs: Pairs) -> Chance:
    seeds, tasks = pairs.a.shape
    if seeds > 1:
        return "training and tasks" if tasks > 1 or pairs.own_tasks else "training"
    return "tasks" if tasks > 1 else "nothing"


def _method(pairs: Pairs, spread: bool) -> str:
    if not spread:
        return "sign test: all differences are equal" if pairs.a.size > 1 else "none"
    if pairs.own_tasks:
        return "paired t-interval over seeds, each with its own tasks"
    return {
        "training and tasks": "two-way t-interval over paired seeds and tasks",
        "training": "paired t-interval over seeds",
        "tasks": "paired t-interval over tasks, one seed",
    }[_chance(pairs)]
