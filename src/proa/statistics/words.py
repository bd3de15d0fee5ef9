"""Numbers in sentences that claim what the numbers support, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .comparison import Comparison, Mode
    from .intervals import Estimate
    from .ranking import Best


def conclusion(
    estimates: Mapping[str, Estimate | None],
    *,
    metric: str,
    mode: Mode = "max",
    comparison: Comparison | None = None,
    failed: Mapping[str, str] | None = None,
    hypothesis: str | None = None,
) -> str:
    """What an experiment found, in one to three sentences: who scored best, whether chance may have done it, what was
    asked.

    `comparison` is that of the best arm with the next. `failed` maps arms to their status; arms without a value are
    named too. A hypothesis is repeated, never called proved.

    >>> from .intervals import estimate
    >>> found = conclusion({"a": estimate([0.5]), "b": estimate([0.7])}, metric="exact", failed={"c": "failed"})
    >>> print(found.replace(". ", ".\\n"))
    By exact (more is better) b scored best of 2 arms: 0.7 in one run; without a value: c (failed).
    One run each: nothing can be said about chance.
    """
    from .ranking import best_of

    best = best_of(dict.fromkeys(failed or ()) | dict(estimates), mode)
    sentences = [_best_sentence(best, estimates, metric, mode) + _without_value(best, failed or {}) + "."]
    if len(best.ranked) > 1:
        sentences.append(_chance_sentence(best, estimates, comparison))
    if hypothesis:
        sentences.append(f"The hypothesis was “{hypothesis.strip().rstrip('.')}”; this alone does not prove it.")
    return " ".join(sentences)


def comparison_words(comparison: Comparison, a: str = "a", b: str = "b") -> str:
    """One sentence on a comparison, with what it rests on and what it cannot say."""
    if comparison.difference is None:
        return f"Cannot tell {a} from {b}: no seed and task is scored in both{_left_out(comparison)}."
    if comparison.chance == "nothing":
        return (
            f"Cannot tell: {a} has {number(comparison.a)} and {b} has {number(comparison.b)}, one score each, so "
            f"nothing can be said about chance{_left_out(comparison)}."
        )
    return f"{_finding(comparison, a, b)} ({_basis(comparison, a, b)}){_limits(comparison)}{_left_out(comparison)}."


def number(value: float | None) -> str:
    """Three digits, a true minus sign.

    >>> number(-0.12345), number(1234.5), number(None)
    ('−0.123', '1.23e+03', 'no value')
    """
    return "no value" if value is None else f"{value:.3g}".replace("-", "−")


def count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _finding(comparison: Comparison, a: str, b: str) -> str:
    by = number(abs(comparison.difference or 0.0))
    if comparison.verdict == "no difference seen":
        return f"No difference seen between {a} and {b}, which is not to say that they are equal: they differ by {by}"
    if comparison.verdict == "cannot tell":
        return f"Cannot tell {a} from {b}: they differ by {by} in every pair, and so few pairs may agree by chance"
    return f"{a} is {comparison.verdict} than {b} by {by}"


def _basis(comparison: Comparison, a: str, b: str) -> str:
    paired = count(comparison.seeds, "seed")
    if comparison.tasks is not None:
        paired += f" × {count(comparison.tasks, 'task')}"
    if comparison.low is None:
        return f"all differences equal, so no interval; {paired}, paired"
    return f"{a} − {b}: {interval(comparison.low, comparison.high, comparison.level)}; {paired}, paired"


def interval(low: float | None, high: float | None, level: float) -> str:
    return f"{100 * level:.3g} % interval {number(low)} to {number(high)}"


def _limits(comparison: Comparison) -> str:
    if comparison.chance == "tasks":
        return "; one run each: this tells about tasks, not about training again"
    if comparison.chance == "training" and comparison.tasks is not None:
        return "; one task: this tells about training again, not about other tasks"
    return ""


def _left_out(comparison: Comparison) -> str:
    if not comparison.missing:
        return ""
    return f"; {count(comparison.missing, 'score')} left out, not in both arms on every seed"


def _best_sentence(best: Best, estimates: Mapping[str, Estimate | None], metric: str, mode: Mode) -> str:
    by = f"By {metric} ({'more' if mode == 'max' else 'less'} is better)"
    if not best.arms:
        return f"No arm has a value of {metric}"
    if len(best.arms) > 1:
        return f"{by} {', '.join(best.arms[:-1])} and {best.arms[-1]} scored the same, {number(best.score)}, and best"
    among = f" of {len(best.ranked)} arms" if len(best.ranked) > 1 else ""
    scored = "scored best" if among else "scored"
    return f"{by} {best.arms[0]} {scored}{among}: {estimate_words(estimates[best.arms[0]])}"


def estimate_words(estimate: Estimate | None) -> str:
    """A mean, its interval and the repeats it rests on; those without a number are named."""
    if estimate is None or estimate.mean is None:
        return "no value"
    lost = f", {estimate.missing} more without a number" if estimate.missing else ""
    if estimate.low is None:
        return f"{number(estimate.mean)} in one run{lost}"
    return (
        f"{number(estimate.mean)} ({interval(estimate.low, estimate.high, estimate.level)}, "
        f"{count(estimate.n, 'repeat')}{lost})"
    )


def _without_value(best: Best, failed: Mapping[str, str]) -> str:
    named = [f"{arm} ({failed[arm]})" if arm in failed else arm for arm in best.unranked]
    partly = [f"{arm} ({failed[arm]})" for arm in sorted(failed) if arm in best.ranked]
    said = f"; without a value: {', '.join(named)}" if named else ""
    return said + (f"; not whole: {', '.join(partly)}" if partly else "")


def _chance_sentence(best: Best, estimates: Mapping[str, Estimate | None], comparison: Comparison | None) -> str:
    if comparison is not None:
        flattered = len(best.ranked) > 2 and comparison.verdict in ("better", "worse")
        picked = (
            f"; it was picked among {len(best.ranked)} by these same scores, which flatters it" if flattered else ""
        )
        return comparison.words.removesuffix(".") + picked + "."
    if all((one := estimates.get(arm)) is not None and one.n == 1 for arm in best.ranked):
        return "One run each: nothing can be said about chance."
    return "The arms were not compared pair by pair, so this does not say that the order is more than chance."
