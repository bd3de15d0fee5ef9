"""Checks of the order in which a trainer's moments fired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .recorder import Fired

# Which spans a moment may fire in: `epoch_start` directly in an episode, or in `train` where there are none.
_INSIDE: dict[str, set[str | None]] = {
    "train": {None},
    "episode": {"train"},
    "epoch": {"episode", "train"},
    "wait": {"epoch"},
    "step": {"epoch"},
    "gradients_ready": {"step"},
    "metrics_logged": {"epoch", "episode", "train", None},
    "eval": {"epoch", "train"},
    "update": {"episode"},
    "checkpoint_saved": {"epoch", "train"},
    "error": {"train"},
}


def problems_in(fired: Sequence[Fired]) -> list[str]:
    """All violations of the rules in one run's moments."""
    return [*_nesting(fired), *_counting(fired), *_order_between_steps(fired)]


def _nesting(fired: Sequence[Fired]) -> Iterator[str]:
    """Each start has its end, and each moment fires in the span it belongs to."""
    open_spans: list[str] = []
    for place, moment in enumerate(fired):
        span, _, edge = moment.event.rpartition("_")
        if edge == "end":
            if not open_spans or open_spans[-1] != span:
                yield f"#{place} {moment}: no span of that name is innermost (open: {open_spans})"
                if span not in open_spans:
                    continue
                del open_spans[open_spans.index(span) + 1 :]
            open_spans.pop()
            continue
        name = span if edge == "start" else moment.event
        around = open_spans[-1] if open_spans else None
        if around not in _INSIDE[name]:
            allowed = " or ".join(sorted(span or "nothing" for span in _INSIDE[name]))
            yield f"#{place} {moment}: fired inside {around or 'nothing'}, belongs inside {allowed}"
        if edge == "start":
            open_spans.append(span)
    for span in open_spans:
        yield f"{span}_start was never followed by its {span}_end"
    for event in ("train_start", "train_end"):
        if (times := sum(moment.event == event for moment in fired)) != 1:
            yield f"{event} fired {times} times, not once"
    events = [moment.event for moment in fired]
    last = events.index("train_end") + 1 if "train_end" in events else len(events)
    # What hooks of `train_end` log is written before its loggers hear of it.
    if after := [str(moment) for moment in fired[last:] if moment.event != "metrics_logged"]:
        yield f"{', '.join(after)} fired after train_end"


def _counting(fired: Sequence[Fired]) -> Iterator[str]:
    """Steps count from 0 without gaps; at `step_end` of a step that was done, `global_step == step_idx + 1`."""
    expected = 0
    previous_episode = -1
    previous_epoch = -1
    for place, moment in enumerate(fired):
        if moment.event == "step_end":
            if moment.step_idx != expected:
                yield f"#{place} {moment}: expected step_idx={expected}"
            if not moment.aborted and moment.global_step != expected + 1:
                yield f"#{place} {moment}: global_step is {moment.global_step}, expected {expected + 1}"
            expected += 1
        elif moment.event == "episode_start":
            if moment.episode != previous_episode + 1:
                yield f"#{place} {moment}: expected episode={previous_episode + 1}"
            previous_episode, previous_epoch = moment.episode or 0, -1
        elif moment.event == "epoch_start":
            if moment.epoch != previous_epoch + 1:
                yield f"#{place} {moment}: expected epoch={previous_epoch + 1}"
            previous_epoch = moment.epoch or 0


def _order_between_steps(fired: Sequence[Fired]) -> Iterator[str]:
    """After a step its evals, then its checkpoint; after the push no further epoch in that episode."""
    previous = ""
    saved = pushed = in_epoch = False
    for place, moment in enumerate(fired):
        if moment.event == "step_end":
            saved = False
        if moment.event in ("epoch_start", "epoch_end"):
            in_epoch = moment.event == "epoch_start"
        if moment.event == "eval_start" and saved and in_epoch:
            yield f"#{place} {moment}: evals come before the checkpoint of their step"
        if moment.event == "checkpoint_saved":
            if saved:
                yield f"#{place} {moment}: two checkpoints after one step"
            saved = True
        if moment.event == "step_start" and previous == "wait_start":
            yield f"#{place} {moment}: the wait was not ended"
        if moment.event == "episode_start":
            pushed = False
        if moment.event == "epoch_start" and pushed:
            yield f"#{place} {moment}: an epoch after the episode's push of weights"
        pushed = pushed or moment.event == "update_start"
        previous = moment.event
