"""`DetachedTrainer`: the training loop of a run whose experience is made elsewhere."""

from __future__ import annotations

import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from ..actors.activity import Activity
from ..actors.concurrency import concurrency_group
from ..actors.finding import own_name
from ..actors.stop import StopRequest
from ..actors.waiting import StepInterrupted
from ..data.experience import BufferItem, Experience, merge
from ..data.lease import sample_seed
from ..data.loop import ManifestRow, TrainingBatch
from ..data.saved_items import experience_from, experience_tree
from ..data.state import LoopState
from ..errors import NothingToTrainOnError, SettingError
from ..learning.replicas import AgreedInterrupt, Alone, Replicas, leaving_on_error
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.roles import Role
from ..lifecycle.spans import Lifecycle
from ..loop.after_step import AfterStep
from ..loop.artifacts import loop_artifacts
from ..loop.evaluators import ScheduledEval
from ..loop.savers import Resumed, Saver
from ..loop.trained_steps import TrainedSteps
from ..numerics import Numerics
from ..visible import show_details
from .buffer import DetachedReplayBuffer
from .source import GatheredExperience, PushedExperience, Source

if TYPE_CHECKING:
    from ..learning.process_group import EnvInfo

log = logging.getLogger("proa.trainer")

T = TypeVar("T")

MAX_EMPTY_STEPS = 3
"""How many steps in a row may have nothing to train on before the run fails."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run stands between two steps: how many are done of this epoch of this episode."""

    episode: int = 0
    epoch: int = 0
    done: int = 0

    @property
    def within(self) -> bool:
        """Whether its episode has begun and not ended."""
        return self.epoch > 0 or self.done > 0


class DetachedTrainer(ABC):
    """Trains on experience that makers push into its buffer, and pushes weights back once per episode.

    Implement `training_step` and `_update_remote_makers`, which pushes the weights under `version_to_push`. `fit` fires
    the documented moments:

        fit(total_steps=4, update_steps=2, train_epochs=2)
          two episodes of two fresh batches, each trained on twice: 8 optimizer steps, 2 pushes

    As an actor it needs its groups: `ray.remote(concurrency_groups=MyTrainer.CONCURRENCY_GROUPS)(MyTrainer)`. With
    `env_info` it is one of several trainers that train one policy: each has a buffer of its own, and a step is on all
    their batches together. `debug` shows steps, waits and pushes as they happen.
    """

    CONCURRENCY_GROUPS: ClassVar = {"buffer_length": 1, "buffer_append": 1, "buffer_sample": 1, "compute": 1}
    """Which methods do not wait for one another: makers append while `fit` runs."""

    def __init__(
        self,
        experience_maker_holder_name_list: Sequence[str],
        train_batch_size: int = 8,
        buffer_limit: int = 0,
        dataloader_pin_memory: bool = True,
        callbacks: Callbacks = (),
        debug: bool = False,
        *,
        name: str | None = None,
        seed: int = 0,
        wait_timeout: float = 600.0,
        source: Source | None = None,
        evaluators: Sequence[ScheduledEval] = (),
        saver: Saver | None = None,
        output_dir: Path | None = None,
        env_info: EnvInfo | None = None,
        replicas: Replicas | None = None,
        stop: StopRequest | None = None,
    ) -> None:
        self.name = name or own_name() or "the trainer"
        self.activity = Activity()
        if env_info is not None:
            from ..learning.process_group import join_group  # torch.distributed, which few need

            replicas = join_group(env_info, patience=wait_timeout)
        self.replicas: Replicas = replicas or Alone()
        self.maker_names = list(experience_maker_holder_name_list)  # resolved at the first push, not here
        self.manager = CallbackManager.create(callbacks, role=Role.TRAINER)
        self.state = self._first_state(output_dir)
        self.seed = seed
        self.evaluators = evaluators
        self.saver = saver
        self.stop = stop or StopRequest()
        self._pin_memory = dataloader_pin_memory
        self._pushed = PushedExperience(DetachedReplayBuffer(train_batch_size, buffer_limit, wait_timeout=wait_timeout))
        several = self.replicas.size > 1
        self.source: Source = source or (
            GatheredExperience(self.replicas, self._pushed) if several else self._pushed
        )  # fmt: skip
        self.version_to_push = 0
        """The version of the weights that `_update_remote_makers` pushes: one more with each episode."""
        self._first_version = 0
        self._is_training = False
        self._debug = debug
        if debug:
            show_details(log)
        self._empty_in_a_row = 0
        self._trained_steps = TrainedSteps()
        self._looked = self.activity.look()
        self._place = Place()
        self._batches: list[Experience] = []  # of the open episode, if it has several epochs
        self._after: AfterStep | None = None
        self._resumed: Resumed | None = None
        self._numerics: Numerics | None = None
        self.batch_in_step: Experience | None = None
        """The batch of the last step."""

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
        resumed, self._resumed = self._resumed, None
        state = self._new_state() if resumed is None else self.state
        state.num_epochs = train_epochs
        state.max_steps = state.num_steps = total_steps * train_epochs  # a resumed run may train longer than it was to
        episodes = math.ceil(total_steps / update_steps)
        life = Lifecycle(self.manager, state)
        self._after = after = AfterStep(life, self.evaluators, self.saver, self)
        self._expect_steps(total_steps * train_epochs)
        begun = perf_counter()
        training = life.training(lambda: loop_artifacts(state, self.manager, after.rows, begun))
        with contextlib.closing(after), training, self._training():
            if resumed is None:
                after.run_baselines()
            else:
                after.resume(resumed)
            for episode in range(self._place.episode, episodes):
                if self._stopping and not self._place.within:
                    break
                with life.episode(episode):
                    fresh = min(update_steps, total_steps - episode * update_steps)
                    self._run_episode(life, after, fresh, train_epochs)
            self._trained_steps.refuse_idle_run(state.global_step, self._explain_idle(), self._explain_unmoved())
            self._place = Place(episodes)
            after.run_final()

    def _expect_steps(self, count: int) -> None:  # noqa: B027 - optional
        """Called by `fit` before its first step, with the number of its optimizer steps."""

    @property
    def within_episode(self) -> bool:
        """Whether an episode has begun, which ends with a push."""
        return self._place.within

    def interrupt(self, reason: str = "interrupted") -> None:
        """End training at the next boundary between steps, with a checkpoint and `KeyboardInterrupt`."""
        self.stop.request(reason)

    # -- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Between two steps, all that a resumed run needs but the weights."""
        assert self._after is not None, "a run has a state while it runs"
        return {
            "loop": self.state.to_dict(),
            "place": asdict(self._place),
            "batches": [experience_tree(batch) for batch in self._batches],
            "empty_in_a_row": self._empty_in_a_row,
            "trained_steps": self._trained_steps.state_dict(),
            "after": self._after.state_dict(),
            "source": self.source.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any], row: ManifestRow | None = None) -> None:
        """Have the next `fit`, with the same numbers of steps, continue from there. `row` is the checkpoint's."""
        self._resumed = Resumed(saved, row)
        self.state = self._first_state(self.state.output_dir)
        self._resumed.restore(self.state)
        self._place = Place(**saved["place"])
        self._first_version = 0  # what is resumed is a run, whose versions are its episodes
        self._batches = [experience_from(tree, self._device) for tree in saved["batches"]]
        self._empty_in_a_row = saved["empty_in_a_row"]
        self.source.load_state_dict(saved["source"])
        self._trained_steps = TrainedSteps.from_saved(saved.get("trained_steps"))

    @property
    def _device(self) -> torch.device | str:
        """The device of the batches."""
        return "cpu"

    def sync_models_to_remote_makers(self, **kwargs: Any) -> None:
        """Push all weights to the makers under their current version, outside of `fit`; fires no hooks."""
        if self._is_training:
            raise SettingError(f"{self.name} is training, and pushes its weights itself: sync before or after fit")
        self.version_to_push = self.state.policy_version
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
    def _training(self) -> Iterator[None]:
        self.activity.rest("training")
        self._is_training = True
        self._pushed.buffer.note_training(is_over=False)
        try:
            with leaving_on_error(self.replicas), self.stop.waking(self.source.interrupt):
                yield
        finally:
            self._is_training = False
            self._pushed.buffer.note_training(is_over=True)
            self.activity.rest("over")

    def _run_episode(self, life: Lifecycle, after: AfterStep, fresh: int, epochs: int) -> None:
        """One episode, from its beginning, or from where the run was resumed."""
        at = self._place
        self.source.start_episode(at.episode)
        if at.epoch == 0:
            self._fresh_epoch(life, after, fresh, keep=epochs > 1)
        for epoch in range(max(1, at.epoch), epochs):
            is_open = epoch == at.epoch and at.done > 0  # then `epoch_end` is still due, even after a stop request
            if is_open or not self._stopping:
                self._place = at if epoch == at.epoch else Place(at.episode, epoch)
                self._epoch_again(life, after)
        if not self._stopping:  # an episode that was cut short publishes nothing
            version = self.version_to_push = self._first_version + at.episode + 1
            with life.update(version), self.activity.doing("publish", f"publishing version {version}"):
                self._update_remote_makers()
            self._report("version %d is published", version)
            self._place, self._batches = Place(at.episode + 1), []

    def _fresh_epoch(self, life: Lifecycle, after: AfterStep, count: int, *, keep: bool) -> None:
        done = self._place.done
        with life.epoch(0, first_step=done):
            after.announce_resumed()
            for _ in range(0 if self._over_before(done) else count - done):
                items = self._next_items(life, after)
                if items:
                    self._empty_in_a_row = 0
                    batch = merge(items)
                    if self._pin_memory and torch.cuda.is_available():
                        batch.pin_memory()
                    self._batches += [batch] if keep else []
                    self._step(life, after, batch, settling=items)
                else:
                    self._step_without_data(life, after)
                if self._stopping:
                    break

    def _epoch_again(self, life: Lifecycle, after: AfterStep) -> None:
        """The episode's batches once more, in another order, without those that were done before a resume."""
        at = self._place
        generator = torch.Generator().manual_seed(sample_seed(self.seed, at.episode, at.epoch))
        order = torch.randperm(len(self._batches), generator=generator).tolist()
        with life.epoch(at.epoch, first_step=at.done):
            after.announce_resumed()
            for index in [] if self._over_before(at.done) else order[at.done :]:
                self._step(life, after, self._batches[index])
                if self._stopping:
                    break

    def _over_before(self, done: int) -> bool:
        """Whether a resumed epoch was ending early: a stop had been requested before its checkpoint."""
        return done > 0 and self.state.should_stop

    def _step(
        self, life: Lifecycle, after: AfterStep, experience: Experience, settling: Sequence[BufferItem] = ()
    ) -> None:
        with life.step() as step:
            if self._numerics is not None:
                self._numerics.restore("a callback or an evaluator")
            self.batch_in_step = step.experience = experience
            step.batch = self._training_batch(experience)
            if settling:
                self.state.add_logged(self.source.logged)
            step.metrics = self.training_step(experience)
            self._numerics = Numerics()  # what was set before the first step, or by the step itself, is meant
            if isinstance(step.metrics, dict):
                before, self._looked = self._looked, self.activity.look()
                spent = {f"trainer.{kind}_seconds": value for kind, value in self._looked.spent_since(before).items()}
                step.metrics = {**step.metrics, **spent, **(self.source.made if settling else {})}
                self._note_step(step.index, step.metrics)
            if settling:
                self.source.settle(settling, dropped="skipped_step" if step.metrics.get("skipped") else None)
        self._report("step %d: %s", step.index, step.metrics)
        self._end_step(after, step.index)

    def _note_step(self, index: int, metrics: Mapping[str, Any]) -> None:
        self._trained_steps.note(index, metrics)

    def _training_batch(self, experience: Experience) -> TrainingBatch:
        """The batch as hooks of `step_end` see it."""
        return TrainingBatch(experience)

    def _end_step(self, after: AfterStep, index: int) -> None:
        """Run what is due after a step, at the boundary where a run can be stopped and resumed."""
        if self.state.global_step > index:  # else a stop was requested in the middle of it
            self._place = replace(self._place, done=self._place.done + 1)
        after.run_due()
        self.stop_if_requested()

    def stop_if_requested(self) -> None:
        """Save and raise `KeyboardInterrupt` if any trainer was interrupted: all stop at the same step, since each has
        a part in the checkpoint."""
        reason = self.stop.reason
        if self.replicas.size > 1:
            reason = next(filter(None, self.replicas.gather(reason)), "")
        if reason:
            assert self._after is not None, "it is called while it trains"
            self._after.save_before_leaving()
            raise AgreedInterrupt(reason)

    def _step_without_data(self, life: Lifecycle, after: AfterStep) -> None:
        """Count a step for which filtering left nothing to train on and no more experience may be requested."""
        log.warning("step %d has nothing to train on%s", life.state.global_step + 1, self._explain_empty())
        with life.step() as step:
            self.batch_in_step = None
            self._empty_in_a_row += 1
            if self._empty_in_a_row > MAX_EMPTY_STEPS:
                raise NothingToTrainOnError(
                    f"{self._empty_in_a_row} steps in a row had nothing to train on{self._explain_empty()}"
                )
            self.state.add_logged(self.source.logged)
            step.metrics = {"skipped": 1.0, **self.source.made}
        self._end_step(after, step.index)

    def _explain_empty(self) -> str:
        """Why nothing is left to train on, if known, as the end of a sentence."""
        return ""

    def _explain_idle(self) -> str:
        """Why no step of the run trained, if known, as the end of a sentence."""
        return ""

    def _explain_unmoved(self) -> str:
        """Why every gradient was 0, if known, as the end of a sentence."""
        return ""

    @property
    def _stopping(self) -> bool:
        """Whether to end here. A stop request to one trainer stops all of them at the same step."""
        state = self.state
        if self.replicas.size > 1:
            asked = (state.stop_reason, state.stopped_by) if state.should_stop else None
            for request in filter(None, self.replicas.gather(asked)):
                state.stop_training(request[0], by=request[1])
        return state.should_stop

    def _next_items(self, life: Lifecycle, after: AfterStep) -> list[BufferItem]:
        try:
            if self.source.ready:
                return self.source.take_step(self.name)
            self._report("waiting for experience")
            with life.waiting(), self.activity.doing("wait", "waiting for experience"):
                return self.source.take_step(self.name)
        except StepInterrupted as interrupted:
            after.save_before_leaving()
            raise AgreedInterrupt(self.stop.reason or str(interrupted)) from None

    def _report(self, message: str, *values: object) -> None:
        """Log a message that only `debug` shows."""
        if self._debug:
            log.info(f"%s: {message}", self.name, *values)

    def _new_state(self) -> LoopState:
        self._first_version = self.state.policy_version  # of an earlier `fit`: versions continue from it
        self.state = self._first_state(self.state.output_dir)
        self.state.policy_version = self._first_version
        self._place, self._batches, self._empty_in_a_row, self._numerics = Place(), [], 0, None
        self._trained_steps = TrainedSteps()
        return self.state

    def _first_state(self, output_dir: Path | None) -> LoopState:
        return LoopState(output_dir=output_dir, rank=self.replicas.rank, world_size=self.replicas.size)


def _check_counts(total_steps: int, update_steps: int, train_epochs: int) -> None:
    for name, value in (("total_steps", total_steps), ("update_steps", update_steps), ("train_epochs", train_epochs)):
        if value < 1:
            raise ValueError(f"{name}={value}: give 1 or more")
