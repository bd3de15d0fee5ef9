"""Numbers in sentences that claim what the numbers support, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .comparison import Comparison, Mode
    from .intervals import Estimate
    from .ranking import Best

_MOST_NAMES = 12
_HYPOTHESIS = "The hypothesis was “"


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

    `comparison` is that of the best arm with the next; if on their pairs the next is ahead, that is said. `failed` maps
    arms to what became of them or of some of their repeats; arms without a value and repeats without a number are named
    too. A hypothesis is repeated, never called proved.

    >>> from .intervals import estimate
    >>> found = conclusion({"a": estimate([0.5]), "b": estimate([0.7])}, metric="exact", failed={"c": "failed"})
    >>> print(found.replace(". ", ".\\n"))
    By exact (more is better) b scored best of 2 arms: 0.7 in one run; without a value: c (failed).
    One run each: nothing can be said about chance.
    """
    from .ranking import best_of

    best = best_of(dict.fromkeys(failed or ()) | dict(estimates), mode)
    lacking = _lacking(best, estimates) | dict(failed or {})
    sentences = [_best_sentence(best, estimates, metric, mode) + _without_value(best, lacking) + "."]
    if len(best.ranked) > 1:
        sentences.append(_chance_sentence(best, estimates, comparison))
    return " ".join([*sentences, *_asked(hypothesis)])


def without_metric(
    metrics: Sequence[str], *, failed: Mapping[str, str] | None = None, hypothesis: str | None = None
) -> str:
    """The conclusion of an experiment that nobody said how to judge: what there is to judge it by.

    >>> print(without_metric(["loss", "sort.exact"], failed={"b": "failed"}).replace(". ", ".\\n"))
    No success_metric is set, so no arm is called best; not whole: b (failed).
    There are loss and sort.exact.
    """
    lacking = f"; not whole: {_named(sorted(failed), failed)}" if failed else ""
    sentences = [f"No success_metric is set, so no arm is called best{lacking}."]
    sentences.append(f"There are {_listed(metrics)}." if metrics else "No run has a metric.")
    return " ".join([*sentences, *_asked(hypothesis)])


FOUND_BEST = "best"


def finding_in(conclusion: str, best: str | None) -> str:
    """What a conclusion says of the arm that scored best, in a word or two: nothing that the sentence does not say.

    >>> finding_in("By exact (more is better) b scored best of 2 arms: 0.7. b is better than a by 0.2 (…).", "b")
    'best'
    >>> finding_in("By exact (more is better) b scored best of 2 arms: 0.7. No difference seen between b and a …", "b")
    'no difference seen'
    """
    conclusion = conclusion.partition(_HYPOTHESIS)[0]  # which may say anything
    if best is not None and f" {best} is better than " in conclusion:
        return FOUND_BEST
    for words, finding in (
        ("No difference seen", "no difference seen"),
        ("Cannot tell", "cannot tell"),
        ("One run each: nothing", "one run each"),
        ("scored the same", "scored the same"),
        ("is worse than", "cannot tell"),  # on the pairs that both have, the next is ahead
        ("were not compared", "not compared"),
    ):
        if words in conclusion:
            return finding
    return ""


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
    difference = number(comparison.difference)
    if comparison.verdict == "no difference seen":
        return (
            f"No difference seen between {a} and {b}, which is not to say that they are equal: "
            f"they differ by {difference}"
        )
    if comparison.verdict == "cannot tell":
        few = "seeds" if comparison.seeds > 1 else "tasks"
        return (
            f"Cannot tell {a} from {b}: they differ by {difference} in every pair, and so few {few} may agree by chance"
        )
    return f"{a} is {comparison.verdict} than {b} by {number(abs(comparison.difference or 0.0))}"


def _basis(comparison: Comparison, a: str, b: str) -> str:
    paired = count(comparison.seeds, "seed")
    if comparison.tasks is not None:
        own = comparison.own_tasks
        paired += f", {count(comparison.tasks, 'task')}, other ones in each" if own else _times(comparison.tasks)
    if comparison.low is None:
        return f"{a} − {b}: all differences equal, so no interval; {paired}, paired"
    return f"{a} − {b}: {interval(comparison.low, comparison.high, comparison.level)}; {paired}, paired"


def _times(tasks: int) -> str:
    return f" × {count(tasks, 'task')}"


def interval(low: float | None, high: float | None, level: float) -> str:
    return f"{100 * level:.3g} % interval {number(low)} to {number(high)}"


def _limits(comparison: Comparison) -> str:
    said = ""
    if comparison.chance == "tasks":
        said += "; one run each: this tells about tasks, not about training again"
    if comparison.chance == "training" and comparison.tasks is not None:
        said += "; one task: this tells about training again, not about other tasks"
    if comparison.seeds == 2 and comparison.verdict in ("better", "worse"):
        said += "; two seeds that learned or collapsed by chance may look the same"
    return said


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
    """A mean, its interval and the repeats it rests on; those without a number are counted."""
    if estimate is None or estimate.mean is None:
        return "no value"
    lost = f", {estimate.missing} more without a number" if estimate.missing else ""
    if estimate.low is None:
        return f"{number(estimate.mean)} in {'one run' if estimate.n == 1 else f'each of {estimate.n} repeats'}{lost}"
    return (
        f"{number(estimate.mean)} ({interval(estimate.low, estimate.high, estimate.level)}, "
        f"{count(estimate.n, 'repeat')}{lost})"
    )


def _lacking(best: Best, estimates: Mapping[str, Estimate | None]) -> dict[str, str]:
    """Arms with repeats that have no number, save the one best arm, whose words count them already."""
    found = {arm: estimates[arm] for arm in best.ranked if arm != best.arm}
    return {
        arm: f"{one.missing} of {one.n + one.missing} repeats without a number"
        for arm, one in found.items()
        if one is not None and one.missing
    }


def _without_value(best: Best, lacking: Mapping[str, str]) -> str:
    partly = [arm for arm in sorted(lacking) if arm in best.ranked]
    said = f"; without a value: {_named(best.unranked, lacking)}" if best.unranked else ""
    return said + (f"; not whole: {_named(partly, lacking)}" if partly else "")


def _named(arms: Sequence[str], lacking: Mapping[str, str]) -> str:
    return ", ".join(f"{arm} ({lacking[arm]})" if arm in lacking else arm for arm in arms)


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _asked(hypothesis: str | None) -> list[str]:
    if not hypothesis:
        return []
    return [f"{_HYPOTHESIS}{hypothesis.strip().rstrip('.')}”; this alone does not prove it."]


def _chance_sentence(best: Best, estimates: Mapping[str, Estimate | None], comparison: Comparison | None) -> str:
    if comparison is not None:
        return comparison.words.removesuffix(".") + _against_the_means(best, comparison) + "."
    if all((one := estimates.get(arm)) is not None and one.n == 1 for arm in best.ranked):
        return "One run each: nothing can be said about chance."
    return "The arms were not compared pair by pair, so this does not say that the order is more than chance."


def _against_the_means(best: Best, comparison: Comparison) -> str:
    """What the comparison leaves to be said of an arm that was picked by its mean over all its runs."""
    if comparison.verdict == "better" and len(best.ranked) > 2:
        return f"; it was picked among {len(best.ranked)} by these same scores, which flatters it"
    ahead = comparison.difference or 0.0
    if (ahead < 0) if comparison.mode == "max" else (ahead > 0):
        return f"; so on {_what_both_have(comparison)} that both have, {best.ranked[1]} is ahead"
    return ""


def _what_both_have(comparison: Comparison) -> str:
    return "the seeds" if comparison.tasks is None else "the seeds and tasks"
