"""The record of a step beside its metrics: decisions, spans of work, and some of its completions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..config import RunConfig
from ..data.experience import Experience
from ..data.facts import SampleFacts, TrajectoryFacts
from ..data.loop import LoopArtifacts
from ..data.masks import attention_mask_of
from ..data.messages import Messages
from ..data.state import LoopState
from ..data.trajectories import Trajectories
from ..data.versions import NO_VERSION
from ..leases.book import LeaseBook
from ..lifecycle.hooks import Callback
from ..lifecycle.policy import Priority
from ..record.run_record import RunRecord, StepRecord
from ..record.spans import Span
from ..resume.checkpoints import Checkpoints
from ..roles.policy_trainer import PolicyTrainer
from ..tasks.prompts import PromptStream

KEPT_STEPS = 50
"""How many steps of a run have their completions kept, by default."""
BETWEEN_STEPS = ("eval", "save", "publish")
"""Kinds of work between one step and the next."""


class TakeStepRecord(Callback):
    """Collects it from the trainer and the lease book for the run's record, once a step."""

    priority = Priority.RECORD + 1  # before the moment goes to the driver, whose callbacks show what was recorded
    uses_asyncio = False

    def __init__(
        self,
        trainer: PolicyTrainer,
        book: LeaseBook,
        record: RunRecord,
        tokenizer: PreTrainedTokenizerBase,
        config: RunConfig,
        prompts: PromptStream | None = None,
    ) -> None:
        self._trainer = trainer
        self._prompts = prompts
        self._book = book
        self._record = record
        self._tokenizer = tokenizer
        self._settings = config.record
        steps = config.total_steps * config.train_epochs
        self._every = config.record.rollouts_every or max(1, steps // KEPT_STEPS)
        trainer.learner.keep_log_probs = self._is_kept(0)

    def on_step_end(self, state: LoopState, step_idx: int, batch: Any, metrics: dict[str, float]) -> None:
        rollouts = self._rollouts(step_idx) if self._is_kept(step_idx) and state.exception is None else []
        self._trainer.learner.keep_log_probs = self._is_kept(step_idx + 1)
        journal = [*self._book.take_journal(), *self._trainer.learner.take_journal()]
        self._write(StepRecord(step_idx, journal, self._spans(step_idx), rollouts))

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        # Written now, so that a checkpoint which follows includes it: a run resumed from there does not score again.
        if state.exception is None:
            self._write(StepRecord(step_idx, [], self._spans(state.global_step, evaluated=step_idx), []))

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        self._write(StepRecord(state.global_step, [], self._spans(state.global_step), []))

    def _write(self, step: StepRecord) -> None:
        if step.journal or step.spans or step.rollouts:
            self._record.write_step(step)

    def _is_kept(self, step_idx: int) -> bool:
        return self._settings.rollouts > 0 and step_idx % self._every == 0

    def _spans(self, step: int, evaluated: int | None = None) -> list[Span]:
        """The work since the last call, for a step; evals, saves and publishes belong to the previous step."""
        steps = dict.fromkeys(BETWEEN_STEPS, step - 1)
        if evaluated is not None:
            steps["eval"] = evaluated
        own = [
            _span(kind, start, seconds, steps.get(kind, step))
            for kind, start, seconds in self._trainer.activity.take_spans()
        ]
        spans = [*own, *self._book.take_spans()]
        return spans if self._settings.spans else []

    def _rollouts(self, step_idx: int) -> list[dict[str, Any]]:
        experience, own_BA = self._trainer.batch_in_step, self._trainer.learner.log_probs
        if experience is None or own_BA is None or experience.advantages is None:
            return []
        samples = Trajectories(experience).rows
        # A different group each time, so that the record shows more than the first prompt.
        first = (step_idx // self._every * self._settings.rollouts) % len(samples)
        chosen = [
            samples[(first + place) % len(samples)] for place in range(min(self._settings.rollouts, len(samples)))
        ]
        return [self._rollout(experience, own_BA, row, step_idx) for rows in chosen for row in rows]

    def _rollout(self, experience: Experience, own_BA: torch.Tensor, row: int, step_idx: int) -> dict[str, Any]:
        actions = experience.action_log_probs.shape[1]
        real_S = attention_mask_of(experience)[row].bool()
        mask_A = real_S[-actions:]  # everything sampled, even what a hook masked out
        prompt = experience.sequences[row, :-actions][real_S[:-actions]].tolist()
        tokens = experience.sequences[row, -actions:][mask_A].tolist()
        decode: Any = self._tokenizer.decode
        facts = experience.facts[row] if experience.facts else SampleFacts()
        uid = experience.uids[row] if experience.uids else ""
        text, rendered = decode(prompt, skip_special_tokens=True), decode(prompt)
        trajectory = facts.trajectory
        messages = self._messages(uid) if trajectory is None else list(trajectory.messages)
        was_sampled = None
        if experience.turn_rewards is not None and experience.versions is not None:
            was_sampled = (experience.versions[row] != NO_VERSION)[mask_A]
        assert experience.advantages is not None
        return {
            "step": step_idx,
            "uid": uid,
            "group_id": experience.group_ids[row] if experience.group_ids else "",
            "prompt": text,
            **({"rendered": rendered} if rendered != text else {}),
            **({"messages": messages} if messages is not None else {}),
            "completion": decode(tokens, skip_special_tokens=True),
            "reward": None if experience.reward is None else float(experience.reward[row]),
            "reward_parts": facts.reward_parts,
            **({"reward_logged": facts.reward_logged} if facts.reward_logged else {}),
            "finish_reason": facts.finish_reason,
            **({} if trajectory is None else {"trajectory": _trajectory(trajectory)}),
            "tokens": _pieces(prompt, tokens, self._tokenizer),
            **({} if was_sampled is None else {"sampled": was_sampled.int().tolist()}),
            "log_probs": _listed(experience.action_log_probs[row], mask_A, was_sampled),
            "trainer_log_probs": _listed(own_BA[row], mask_A, was_sampled),
            "advantages": _listed(experience.advantages[row], mask_A, was_sampled),
            "versions": [] if experience.versions is None else experience.versions[row][mask_A].tolist(),
        }

    def _messages(self, uid: str) -> Messages | None:
        """The conversation of a sample's prompt; None if it was text, or is not a prompt of the run."""
        ordinal, _, index = uid.partition("/")
        if self._prompts is None or not (ordinal.isdecimal() and index.isdecimal()):
            return None
        return self._prompts.messages(int(ordinal))


class TakeLoopSpans(Callback):
    """Records the spans of a supervised loop: its steps, evals and checkpoints."""

    priority = Priority.RECORD
    uses_asyncio = False

    def __init__(self, record: RunRecord, checkpoints: Checkpoints) -> None:
        self._record = record
        self._checkpoints = checkpoints

    def on_step_end(self, state: LoopState, step_idx: int, batch: Any, metrics: dict[str, float]) -> None:
        self._write(step_idx)

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        self._write(state.global_step)

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        self._write(state.global_step)

    def _write(self, step: int) -> None:
        """Write the work since the last call, for a step; evals and saves belong to the previous step."""
        loop = self._checkpoints.loop
        assert loop is not None, "a loop attaches itself before its first step"
        spans = [
            _span(kind, start, seconds, step - 1 if kind in BETWEEN_STEPS else step)
            for kind, start, seconds in loop.activity.take_spans()
        ]
        if spans:
            self._record.write_step(StepRecord(step, [], spans, []))


def _pieces(prompt: Sequence[int], tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The text of each token in its context, as some tokenizers drop the leading space of a token alone."""
    decode: Any = tokenizer.decode
    pieces = []
    for before, token in itertools.pairwise([*prompt[-1:], *tokens]):
        first, both = str(decode([before])), str(decode([before, token]))
        pieces.append(both.removeprefix(first) if both.startswith(first) else str(decode([token])))
    return pieces


def _span(kind: str, start: float, seconds: float, step: int) -> Span:
    return {"actor": "trainer_0", "kind": kind, "start": start, "seconds": seconds, "step": step}


def _listed(
    values_A: torch.Tensor, mask_A: torch.Tensor, was_sampled: torch.Tensor | None = None
) -> list[float | None]:
    """Numbers for JSON: None for a token that another trainer computed, or that was not sampled."""
    values = values_A[mask_A].float()
    if was_sampled is not None:
        values = values.masked_fill(~was_sampled, math.nan)
    return [round(value, 6) if math.isfinite(value) else None for value in values.tolist()]


def _trajectory(facts: TrajectoryFacts) -> dict[str, Any]:
    """The facts of a conversation with an environment, without its messages."""
    return {
        "ending": facts.ending, "turns": facts.turns, "turn_rewards": list(facts.turn_rewards),
        "tool_calls": facts.tool_calls, "tool_errors": facts.tool_errors,
        "environment_tokens": facts.environment_tokens, "environment_seconds": round(facts.environment_seconds, 6),
    }  # fmt: skip
