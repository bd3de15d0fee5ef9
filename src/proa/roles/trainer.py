"""`DetachedTrainer`: the training loop of a run whose experience is made elsewhere."""

from __future__ import annotations

import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..data.experience import BufferItem, Experience, merge
from ..data.lease import sample_seed
from ..data.state import LoopState
from ..errors import ProaError
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.roles import Role
from ..lifecycle.spans import Lifecycle
from ..loop.after_step import AfterStep, Evaluator, Saver
from ..loop.supervised import artifacts_of
from .activity import Activity
from .buffer import DetachedReplayBuffer
from .concurrency import concurrency_group
from .replicas import Alone, Replicas, telling_the_others
from .source import PushedExperience, Source

log = logging.getLogger("proa.trainer")

MAX_EMPTY_STEPS = 3
"""So many steps in a row may have nothing to train on before the run fails."""


class NothingToTrainOnError(ProaError):
    """Step after step, everything was filtered out or without a reward."""


class DetachedTrainer(ABC):
    """Trains on experience that makers push into its buffer, and pushes weights back once per episode.

    Implement `training_step` and `_update_remote_makers`. `fit` fires the documented moments:

        fit(total_steps=4, update_steps=2, train_epochs=2)
          two episodes of two fresh batches, each trained on twice: 8 optimizer steps, 2 pushes
    """

    def __init__(
        self,
        experience_maker_holder_name_list: Sequence[str],
        train_batch_size: int = 8,
        buffer_limit: int = 0,
        dataloader_pin_memory: bool = True,
        callbacks: Callbacks = (),
        debug: bool = False,
        *,
        name: str = "the trainer",
        seed: int = 0,
        wait_timeout: float = 600.0,
        source: Source | None = None,
        evaluators: Sequence[Evaluator] = (),
        saver: Saver | None = None,
        output_dir: Path | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        self.name = name
        self.activity = Activity()
        self.replicas: Replicas = replicas or Alone()
        self.maker_names = list(experience_maker_holder_name_list)  # resolved at the first push, not here
        self.manager = CallbackManager.of(callbacks, role=Role.TRAINER)
        self.state = self._first_state(output_dir)
        self.seed = seed
        self.evaluators = evaluators
        self.saver = saver
        self._pin_memory = dataloader_pin_memory
        self._debug = debug
        self._pushed = PushedExperience(DetachedReplayBuffer(train_batch_size, buffer_limit, wait_timeout=wait_timeout))
        self.source: Source = source or self._pushed
        self._empty_in_a_row = 0
        self._looked = self.activity.look()

    @abstractmethod
    def training_step(self, experience: Experience) -> dict[str, Any]:
        """Take one optimizer step on a batch and return its metrics."""

    @abstractmethod
    def _update_remote_makers(self, fully_update: bool = False, **kwargs: Any) -> None:
        """Push the weights to the makers."""

    @concurrency_group("compute")
    def fit(self, total_steps: int, update_steps: int, train_epochs: int = 1) -> None:
        """Train on `total_steps` fresh batches, pushing weights after every `update_steps` of them.

        The last episode may be shorter; no step is dropped.
        """
        _check_counts(total_steps, update_steps, train_epochs)
        state = self._new_state(total_steps, train_epochs)
        life = Lifecycle(self.manager, state)
        after = AfterStep(life, self.evaluators, self.saver)
        begun = perf_counter()
        with life.training(lambda: artifacts_of(state, self.manager, after.rows, begun)), self._at_work():
            after.before_the_first()
            for episode in range(math.ceil(total_steps / update_steps)):
                if self._stopping:
                    break
                with life.episode(episode):
                    fresh = min(update_steps, total_steps - episode * update_steps)
                    self._run_episode(life, after, episode, fresh, train_epochs)
            after.at_the_end()

    def sync_models_to_remote_makers(self, **kwargs: Any) -> None:
        """Push everything to the makers, outside of training; fires no hooks."""
        self._update_remote_makers(fully_update=True, **kwargs)

    @concurrency_group("buffer_length")
    def buffer_get_length(self) -> int:
        """Whole batches in the buffer."""
        return self._pushed.buffer.get_length()

    @concurrency_group("buffer_append")
    def buffer_append(self, experience: Experience) -> None:
        self._pushed.append(experience)

    @concurrency_group("buffer_append")
    def buffer_extend(self, items: Sequence[BufferItem]) -> None:
        self._pushed.extend(items)

    @concurrency_group("buffer_sample")
    def _buffer_sample(self) -> Experience:
        return self._pushed.buffer.sample(owner=self.name)

    # -- one episode ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        self.activity.rest("training")
        try:
            with telling_the_others(self.replicas):
                yield
        finally:
            self.activity.rest("over")

    def _run_episode(self, life: Lifecycle, after: AfterStep, episode: int, fresh: int, epochs: int) -> None:
        self.source.start_episode(episode)
        batches = self._fresh_epoch(life, after, fresh)
        for epoch in range(1, epochs):
            if not self._stopping:
                with life.epoch(epoch):
                    self._epoch_again(life, after, [batches[i] for i in self._shuffled(len(batches), episode, epoch)])
        if not self._stopping:  # an episode that was cut short publishes nothing
            with life.update(episode + 1), self.activity.doing("publish", f"publishing version {episode + 1}"):
                self._update_remote_makers()

    def _fresh_epoch(self, life: Lifecycle, after: AfterStep, count: int) -> list[Experience]:
        batches: list[Experience] = []
        with life.epoch(0):
            for _ in range(count):
                items = self._next_items(life)
                if items:
                    self._empty_in_a_row = 0
                    batches.append(self._batch(items))
                    self._step(life, after, batches[-1], settling=items)
                else:
                    self._step_without_data(life, after)
                if self._stopping:
                    break
        return batches

    def _epoch_again(self, life: Lifecycle, after: AfterStep, batches: Sequence[Experience]) -> None:
        for experience in batches:
            self._step(life, after, experience)
            if self._stopping:
                break

    def _step(
        self, life: Lifecycle, after: AfterStep, experience: Experience, settling: Sequence[BufferItem] = ()
    ) -> None:
        with life.step() as step:
            step.experience = experience
            step.metrics = self.training_step(experience)
            if isinstance(step.metrics, dict):
                step.metrics = {**step.metrics, **self._where_time_went(), **(self.source.made if settling else {})}
            if settling:
                self.source.settle(settling, dropped="skipped_step" if step.metrics.get("skipped") else None)
        if self._debug:
            log.info("%s: step %d: %s", self.name, step.index, step.metrics)
        after.what_is_due()

    def _where_time_went(self) -> dict[str, float]:
        """Seconds by kind of work since the step before."""
        now, before = self.activity.look(), self._looked
        self._looked = now
        return {f"trainer.{kind}_seconds": seconds for kind, seconds in now.spent_since(before).items()}

    def _step_without_data(self, life: Lifecycle, after: AfterStep) -> None:
        """Filtering left nothing to train on, and no more may be asked for: the step counts, and says so."""
        log.warning("step %d has nothing to train on: every group was filtered out", life.state.global_step)
        with life.step() as step:
            self._empty_in_a_row += 1
            if self._empty_in_a_row > MAX_EMPTY_STEPS:
                raise NothingToTrainOnError(
                    f"{self._empty_in_a_row} steps in a row had nothing to train on{self._why_empty()}"
                )
            step.metrics = {"skipped": 1.0}
        after.what_is_due()

    def _why_empty(self) -> str:
        """What is known of why nothing is left to train on, to be added to a sentence."""
        return ""

    @property
    def _stopping(self) -> bool:
        """Whether to end here. What one trainer was asked, all of them do, at the same step."""
        state = self.state
        if self.replicas.size > 1:
            asked = (state.stop_reason, state.stopped_by) if state.should_stop else None
            for request in filter(None, self.replicas.gather(asked)):
                state.stop_training(request[0], by=request[1])
        return state.should_stop

    def _next_items(self, life: Lifecycle) -> list[BufferItem]:
        if self.source.ready:
            return self.source.take_step(self.name)
        with life.waiting(), self.activity.doing("wait", "waiting for experience"):
            return self.source.take_step(self.name)

    def _batch(self, items: Sequence[BufferItem]) -> Experience:
        experience = merge(items)
        if self._pin_memory and torch.cuda.is_available():
            experience.pin_memory()
        return experience

    def _shuffled(self, count: int, episode: int, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(sample_seed(self.seed, episode, epoch))
        return torch.randperm(count, generator=generator).tolist()

    def _new_state(self, total_steps: int, train_epochs: int) -> LoopState:
        self.state = self._first_state(self.state.output_dir)
        self.state.num_epochs = train_epochs
        self.state.max_steps = self.state.num_steps = total_steps * train_epochs
        return self.state

    def _first_state(self, output_dir: Path | None) -> LoopState:
        return LoopState(output_dir=output_dir, rank=self.replicas.rank, world_size=self.replicas.size)


def _check_counts(total_steps: int, update_steps: int, train_epochs: int) -> None:
    for name, value in (("total_steps", total_steps), ("update_steps", update_steps), ("train_epochs", train_epochs)):
        if value < 1:
            raise ValueError(f"{name}={value}: give 1 or more")
