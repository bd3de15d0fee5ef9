"""The conclusion of an experiment in sentences that claim what the numbers support, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .comparison import Comparison, Mode
from .formatting import count, interval, number
from .intervals import Estimate
from .ranking import Best, rank_arms

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
    """One to three sentences: which arm scored best, whether it may be chance, and the hypothesis.

    `comparison` compares the best arm with the next; the sentence says so if the next is ahead on their pairs. `failed`
    maps arms to their status or that of some repeats; arms without a value and repeats without a number are named too.
    A hypothesis is repeated, never called proved.

    >>> from .intervals import estimate
    >>> found = conclusion({"a": estimate([0.5]), "b": estimate([0.7])}, metric="exact", failed={"c": "failed"})
    >>> print(found.replace(". ", ".\\n"))
    By exact (more is better) b scored best of 2 arms: 0.7 in one run; without a value: c (failed).
    One run each: nothing can be said about chance.
    """
    best = rank_arms(dict.fromkeys(failed or ()) | dict(estimates), mode)
    problems = _missing_repeats(best, estimates) | dict(failed or {})
    first = _best_sentence(best, estimates, metric, mode)
    if best.unranked:
        first += f"; without a value: {_arm_list(best.unranked, problems)}"
    if partial := [arm for arm in sorted(problems) if arm in best.ranked]:
        first += f"; not whole: {_arm_list(partial, problems)}"
    sentences = [first + "."]
    if len(best.ranked) > 1:
        sentences.append(_chance_sentence(best, estimates, comparison))
    return " ".join([*sentences, *_hypothesis_sentence(hypothesis)])


def without_metric(
    metrics: Sequence[str], *, failed: Mapping[str, str] | None = None, hypothesis: str | None = None
) -> str:
    """The conclusion of an experiment that has no success metric: the metrics it could be judged by.

    >>> print(without_metric(["loss", "sort.exact"], failed={"b": "failed"}).replace(". ", ".\\n"))
    No success_metric is set, so no arm is called best; not whole: b (failed).
    There are loss and sort.exact.
    """
    partial = f"; not whole: {_arm_list(sorted(failed), failed)}" if failed else ""
    sentences = [f"No success_metric is set, so no arm is called best{partial}."]
    if len(metrics) > _MOST_NAMES:
        sentences.append(f"There are {', '.join(metrics[:_MOST_NAMES])} and {len(metrics) - _MOST_NAMES} more.")
    elif len(metrics) > 1:
        sentences.append(f"There are {', '.join(metrics[:-1])} and {metrics[-1]}.")
    else:
        sentences.append(f"There is {metrics[0]}." if metrics else "No run has a metric.")
    return " ".join([*sentences, *_hypothesis_sentence(hypothesis)])


FOUND_BEST = "best"


def parse_finding(conclusion: str, best: str | None) -> str:
    """What a conclusion says about the arm that scored best, in a word or two.

    >>> parse_finding("By exact (more is better) b scored best of 2 arms: 0.7. b is better than a by 0.2 (…).", "b")
    'best'
    >>> parse_finding("By exact (more is better) b scored best of 2: 0.7. No difference seen between b and a …", "b")
    'no difference seen'
    """
    conclusion = conclusion.partition(_HYPOTHESIS)[0]  # a hypothesis may contain any words
    if best is not None and f" {best} is better than " in conclusion:
        return FOUND_BEST
    for words, short in (
        ("No difference seen", "no difference seen"),
        ("Cannot tell", "cannot tell"),
        ("One run each: nothing", "one run each"),
        ("scored the same", "scored the same"),
        ("is worse than", "cannot tell"),  # on the pairs that both have, the next is ahead
        ("were not compared", "not compared"),
    ):
        if words in conclusion:
            return short
    return ""


def _best_sentence(best: Best, estimates: Mapping[str, Estimate | None], metric: str, mode: Mode) -> str:
    by = f"By {metric} ({'more' if mode == 'max' else 'less'} is better)"
    if not best.arms:
        return f"No arm has a value of {metric}"
    if len(best.arms) > 1:
        return f"{by} {', '.join(best.arms[:-1])} and {best.arms[-1]} scored the same, {number(best.score)}, and best"
    among = f" of {len(best.ranked)} arms" if len(best.ranked) > 1 else ""
    scored = "scored best" if among else "scored"
    return f"{by} {best.arms[0]} {scored}{among}: {_estimate_words(estimates[best.arms[0]])}"


def _estimate_words(estimate: Estimate | None) -> str:
    """A mean, its interval and the repeats it rests on, with the number of those that have no value."""
    if estimate is None or estimate.mean is None:
        return "no value"
    lost = f", {estimate.missing} more without a number" if estimate.missing else ""
    if estimate.low is None:
        return f"{number(estimate.mean)} in {'one run' if estimate.n == 1 else f'each of {estimate.n} repeats'}{lost}"
    return (
        f"{number(estimate.mean)} ({interval(estimate.low, estimate.high, estimate.level)}, "
        f"{count(estimate.n, 'repeat')}{lost})"
    )


def _missing_repeats(best: Best, estimates: Mapping[str, Estimate | None]) -> dict[str, str]:
    """Arms with repeats that have no number, except a single best arm, whose sentence counts them."""
    found = {arm: estimates[arm] for arm in best.ranked if arm != best.arm}
    return {
        arm: f"{one.missing} of {one.n + one.missing} repeats without a number"
        for arm, one in found.items()
        if one is not None and one.missing
    }


def _arm_list(arms: Sequence[str], problems: Mapping[str, str]) -> str:
    return ", ".join(f"{arm} ({problems[arm]})" if arm in problems else arm for arm in arms)


def _hypothesis_sentence(hypothesis: str | None) -> list[str]:
    if not hypothesis:
        return []
    return [f"{_HYPOTHESIS}{hypothesis.strip().rstrip('.')}”; this alone does not prove it."]


def _chance_sentence(best: Best, estimates: Mapping[str, Estimate | None], comparison: Comparison | None) -> str:
    if comparison is not None:
        return comparison.words.removesuffix(".") + _selection_caveat(best, comparison) + "."
    if all((one := estimates.get(arm)) is not None and one.n == 1 for arm in best.ranked):
        return "One run each: nothing can be said about chance."
    return "The arms were not compared pair by pair, so this does not say that the order is more than chance."


def _selection_caveat(best: Best, comparison: Comparison) -> str:
    """The best arm was chosen by its mean over all its runs, the comparison is over pairs only."""
    if comparison.verdict == "better" and len(best.ranked) > 2:
        return f"; it was picked among {len(best.ranked)} by these same scores, which flatters it"
    ahead = comparison.difference or 0.0
    if (ahead < 0) if comparison.mode == "max" else (ahead > 0):
        pairs = "the seeds" if comparison.tasks is None else "the seeds and tasks"
        return f"; so on {pairs} that both have, {best.ranked[1]} is ahead"
    return ""
