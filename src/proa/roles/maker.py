"""`ExperienceMakerHolder`: takes leases, loads weights, has samples made, and delivers them as experience."""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from transformers import PreTrainedModel

from ..actors.activity import Activity, Doing
from ..actors.concurrency import concurrency_group
from ..actors.finding import find_actor, own_name
from ..actors.waiting import ClosedError, LeaseFailedError, WaitTimeoutError
from ..data.experience import BufferItem
from ..data.experience_changes import as_delivered, nothing_made, shown_to_hooks
from ..data.lease import Delivery, Lease, Prompt, Span, sample_seed
from ..data.state import LoopState
from ..data.versions import NO_VERSION
from ..engines import Engine, EngineFactory
from ..errors import SettingError
from ..leases.plan import group_by_id
from ..lifecycle.current import with_own_state
from ..lifecycle.failures import note_failure
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.moments import EventName
from ..lifecycle.roles import Role
from ..policy.opening import Lora, ModelSource, TokenizerSource
from ..policy.policy import Receiver
from ..rewards import Scorer
from ..rewards.function import GivenReward
from ..rollouts import EngineStream, Progress, Rollout, Sample, VersionedEngine
from ..tasks import load_task
from ..visible import show_details
from .lease_stream import Book, LeaseStream, Loaded, Made
from .maker_parts import MakerSource
from .maker_weights import MakerWeights, Store
from .prompt_batches import read_batch, task_batches
from .weights import Weights

log = logging.getLogger("proa.maker")

_TRAJECTORY_EVENTS: tuple[EventName, ...] = ("maker.trajectory_start", "maker.turn_end", "maker.trajectory_end")

Spent: TypeAlias = tuple[dict[str, float], tuple[Span, ...]]
"""On a lease: seconds by kind, and the spans of what was done for it elsewhere."""


class TrainerHandle(Protocol):
    """A trainer that a maker pushes to."""

    def buffer_extend(self, items: Sequence[BufferItem]) -> None: ...


class ExperienceMakerHolder:
    """One maker: an engine with weights of a known version, a rollout, and the trainers it sends to.

    In a run it works on leases (`work`). `workingloop` feeds it prompts directly and deals what it makes
    round robin over its trainers, whole groups together.

    It is built from the folder or the configuration of a `model`, a `tokenizer` (by default the folder's), rewards or
    a `reward_model`, a `task` that brings prompts and rewards, and `generate_kwargs`, the settings of `Sampling`; or
    from parts: `engine` and `rollout`. With `lora`, as its trainers have it, only adapters are pushed. The weights that
    it comes with are version 0; with `sync_models_from_trainers` it waits for the first push.

    As an actor it needs its groups: `ray.remote(concurrency_groups=ExperienceMakerHolder.CONCURRENCY_GROUPS)(...)`.
    """

    CONCURRENCY_GROUPS: ClassVar = {"compute": 1, "model_io": 1}
    """Which methods do not wait for one another: weights arrive while `workingloop` runs."""

    def __init__(
        self,
        detached_trainer_name_list: Sequence[str] = (),
        model: ModelSource | None = None,
        tokenizer: TokenizerSource | None = None,
        *,
        task: Any = None,
        reward: GivenReward | Sequence[GivenReward] | None = None,
        reward_model: str | Path | PreTrainedModel | None = None,
        lora: Lora | None = None,
        engine: Engine | EngineFactory | str = "native",
        rollout: Rollout | None = None,
        scorer: Scorer | None = None,
        receiver: Receiver | None = None,
        callbacks: Callbacks = (),
        debug: bool = False,
        name: str | None = None,
        seed: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
        prompts_per_batch: int = 8,
        sync_models_from_trainers: bool = False,
        wait_timeout: float = 600.0,
        find_trainer: Callable[[str], TrainerHandle] | None = None,
        **generate_kwargs: Any,
    ) -> None:
        self.name = name or own_name() or "maker_0"
        self.trainer_names = list(detached_trainer_name_list)
        self.task = None if task is None else load_task(task)
        parts = MakerSource(
            model=model, tokenizer=tokenizer, task=self.task, reward=reward, reward_model=reward_model, scorer=scorer,
            lora=lora, engine=engine, rollout=rollout, receiver=receiver, dtype=dtype, device=device, seed=seed,
        ).open(generate_kwargs)  # fmt: skip
        self.engine, self.rollout = parts.engine, parts.rollout
        self.engine_sleeps = False
        """Whether the engine gives memory back between leases, whenever it has none to work on."""
        self._tokenizer = parts.tokenizer
        self.manager = CallbackManager.create(callbacks, role=Role.MAKER)
        self.state = LoopState()
        self.activity = Activity()
        self.leases_made = 0
        self.tokens_made = 0
        """Completion tokens."""
        self._versioned_engine = VersionedEngine(self.engine, guarded_from=f"a callback of {self.name}")
        self._weights = MakerWeights(self._versioned_engine, parts.receiver, self.activity, maker=self.name)
        self._seed = seed
        self._wait_timeout = wait_timeout
        self._find_trainer: Callable[[str], Any] = find_trainer or (
            lambda trainer: find_actor(trainer, patience=wait_timeout, call_seconds=wait_timeout)
        )
        self._turn = 0
        self._prompts_per_batch = prompts_per_batch
        self._prompts_taken = 0
        self._waits_for_weights = sync_models_from_trainers
        self._weights_came = threading.Event()
        self._has_reported_failure = False
        self._debug = debug
        if debug:
            show_details(log)

    # -- leased work ---------------------------------------------------------------------------------

    @with_own_state
    def work(self, book: Book, store: Store) -> None:
        """Take leases and deliver them until the book closes; a lease on which this raises goes to another maker.

        Several are under way at once, if the engine decodes every sequence as if it were alone; else one at a time.
        """
        moments, state = self.manager.moments, self.state
        moments.maker_loop_start(state)
        self.activity.rest("working on leases")
        try:
            if self.engine.is_independent:
                self._work_in_parallel(book, store)
            else:
                self._work_in_sequence(book, store)
        finally:
            self.activity.rest("over")
            moments.maker_loop_end(state)

    def _work_in_parallel(self, book: Book, store: Store) -> None:
        """Hand in finished leases one by one, while others are being generated."""
        stream = EngineStream(
            self.engine,
            name=self.name,
            guarded_from=f"a callback or a reward of {self.name}",
            sleeps=self.engine_sleeps,
        )
        weights = self._weights
        leases = LeaseStream(
            book, stream, self.rollout, maker=self.name, doing=self.activity.rest,
            is_trusted=lambda version: weights.is_trusted(version, stream),
            load=lambda version, activity: weights.load_beside(version, store, stream, activity),
        )  # fmt: skip
        with leases:
            for made in leases:
                if isinstance(made, Loaded):
                    self._note_loaded(made.version)
                    continue
                self.state.policy_version = made.lease.version
                self.state.making_seconds = sum(made.seconds.get(kind, 0.0) for kind in ("generate", "score"))
                with self._releasing_on_failure(made.lease, book):
                    self._hand_in(made.lease, leases.deliver, made.take, partial(self._spent_on, made))
                leases.note_handed_in(made)

    def _spent_on(self, made: Made) -> Spent:
        self.activity.count(made.seconds)
        return made.seconds, made.spans

    def _work_in_sequence(self, book: Book, store: Store) -> None:
        while True:
            before = self.activity.look()
            lease = self._next_lease(book)
            with self._releasing_on_failure(lease, book):
                if lease.version != self.loaded_version:
                    self._weights.load(lease.version, store)
                    self._note_loaded(lease.version)
                make = partial(self._generate, lease.prompts, lease.seeds, f"lease {lease.id}")
                self._hand_in(lease, book.deliver, make, partial(self._spent_since, before))

    @contextmanager
    def _releasing_on_failure(self, lease: Lease, book: Book) -> Iterator[None]:
        """Release a lease on which this maker fails, so that another maker gets it."""
        try:
            yield
        except ClosedError:
            raise
        except LeaseFailedError:  # an earlier one's delivery
            book.release(lease.id, self.name)
            raise
        except BaseException as error:
            book.release(lease.id, self.name)
            raise LeaseFailedError(f"{self.name} failed on lease {lease.id}: {error}", lease.id) from error

    def _next_lease(self, book: Book) -> Lease:
        with self.activity.doing("wait", "waiting for a lease"):
            while True:
                try:
                    return book.next_lease(self.name)
                except WaitTimeoutError:
                    continue  # an idle maker is not a failure: the trainer's own wait is the one that counts

    def _spent_since(self, before: Doing) -> Spent:
        return self.activity.look().spent_since(before), ()

    def _hand_in(
        self,
        lease: Lease,
        deliver: Callable[[Delivery, str], bool],
        samples: Callable[[], list[Sample]],
        spent: Callable[[], Spent],
    ) -> None:
        """Turn samples into experience and deliver it with the time spent on it, firing the hooks of a batch."""
        moments, state = self.manager.moments, self.state
        moments.maker_batch_start(state)
        try:
            items = self._experience(samples)
            self.leases_made += 1
            seconds, spans = spent()
            spans += self.activity.take_spans()
            delivery = Delivery(
                lease.id, tuple(items), self.name, seconds, spans, state.take_logged(), self._weights.take_probe_gap()
            )
            moments.maker_send_start(state)
            try:
                with self.activity.doing("send", f"delivering lease {lease.id}"):
                    deliver(delivery, self.name)
            finally:
                moments.maker_send_end(state)
        finally:
            moments.maker_batch_end(state)
        state.global_step += 1
        if state.should_stop:
            log.warning(
                "%s in a maker asked to stop (%s), which ends nothing: a run is stopped by hooks of its trainer or its "
                "driver, such as on_step_end", state.stopped_by, state.stop_reason,
            )  # fmt: skip
            state.should_stop, state.stop_reason, state.stopped_by = False, None, None

    # -- weights -------------------------------------------------------------------------------------

    @property
    def loaded_version(self) -> int:
        """The version of the weights that the engine has; `NO_VERSION` if it has none, or they are not trusted."""
        return self._weights.version

    def distrust_weights(self) -> None:
        """Load weights again before the next lease, even if its version is loaded; may be called from any thread.

        A lease that is being made keeps the version it began with.
        """
        self._weights.distrust()

    @concurrency_group("model_io")
    @with_own_state
    def update_experience_maker(self, weights: Weights, base: Weights | None = None) -> None:
        """Switch to these weights, all of them or none, after checking them; waits for the batch being generated.

        What it has already, because several trainers push the same, is not loaded again. `base` is the base of an
        adapter, where a trainer pushes everything.
        """
        if self._weights.switch(weights, base):
            self._weights_came.set()
            self._note_loaded(weights.version)

    def _note_loaded(self, version: int) -> None:
        self.state.policy_version = version
        self._report("version %d is loaded", version)
        self.manager.moments.maker_weights_loaded(self.state, version)

    @concurrency_group("model_io")
    def get_policy_version(self) -> int:
        """The version of the weights that it samples with."""
        return self._versioned_engine.version

    # -- pushed work ---------------------------------------------------------------------------------

    @concurrency_group("compute")
    @with_own_state
    def workingloop(
        self,
        dataloader_fn: Callable[[], Iterable[Any]] | None = None,
        num_epochs: int = 1,
        num_steps: int = 0,
    ) -> None:
        """Make experience from every batch of prompts that `dataloader_fn()` yields, for `num_epochs` passes.

        Batches are texts, messages, rows, tokens, tensors or `Prompt`s (`read_batch`); without `dataloader_fn` they are
        the task's. `num_steps` limits the batches; 0 is no limit. It ends before that when a trainer's `fit` has ended,
        and its buffer is full. Metrics that hooks log here stay in this maker's `state.metrics`: only leases carry them
        to a trainer.
        """
        moments, state = self.manager.moments, self.state
        if not self.trainer_names:
            raise SettingError(f"{self.name} has nobody to send to: give it the names of trainers")
        batches = itertools.chain.from_iterable(self._passes(dataloader_fn, num_epochs))
        self._await_weights()
        moments.maker_loop_start(state)
        self.activity.rest("working on batches")
        try:
            for batch in itertools.islice(batches, num_steps or None):
                moments.maker_batch_start(state)
                try:
                    prompts = read_batch(batch, self._tokenizer, first=self._prompts_taken)
                    self._prompts_taken += len(prompts)
                    self._send(self.make(prompts, self._seeds(prompts)))
                except ClosedError as over:
                    log.info("%s ends its loop: %s", self.name, over)
                    break
                finally:
                    moments.maker_batch_end(state)
                state.global_step += 1
        finally:
            self.activity.rest("over")
            moments.maker_loop_end(state)

    def _passes(self, dataloader_fn: Callable[[], Iterable[Any]] | None, count: int) -> Iterator[Iterable[Any]]:
        if dataloader_fn is not None:
            return (dataloader_fn() for _ in range(count))
        if self.task is None or self._tokenizer is None:
            raise SettingError(f"{self.name} has no prompts: give workingloop a dataloader_fn, or the maker a task")
        task, tokenizer, size = self.task, self._tokenizer, self._prompts_per_batch
        return (task_batches(task, tokenizer, size=size, seed=self._own_seed(number)) for number in range(count))

    def _await_weights(self) -> None:
        if self._waits_for_weights:
            with self.activity.doing("wait", "waiting for the first weights"):
                if not self._weights_came.wait(self._wait_timeout):
                    raise WaitTimeoutError(f"{self.name} waited {self._wait_timeout:g} s for weights, and none came")

    def _send(self, items: Sequence[BufferItem]) -> None:
        moments, state = self.manager.moments, self.state
        moments.maker_send_start(state)
        try:
            with self.activity.doing("send", "delivering a batch"):
                for group in group_by_id(items):
                    trainer = self.trainer_names[self._turn % len(self.trainer_names)]
                    self._turn += 1
                    # Other makers count their prompts as this one does.
                    named = [
                        replace(item, uid=f"{self.name}/{item.uid}", group_id=f"{self.name}/{item.group_id}")
                        for item in group
                    ]
                    self._find_trainer(trainer).buffer_extend(named)
                    self._report("%d samples of %s are sent to %s", len(named), named[0].group_id, trainer)
        finally:
            moments.maker_send_end(state)

    def _seeds(self, prompts: Sequence[Prompt]) -> tuple[tuple[int, ...], ...]:
        seed, samples = self._own_seed(), range(self.rollout.sampling.group_size)
        return tuple(tuple(sample_seed(seed, prompt.ordinal, sample) for sample in samples) for prompt in prompts)

    def _own_seed(self, number: int = 0) -> int:
        """A seed of this maker's own, so that two makers with the same prompts do not make the same samples."""
        digest = hashlib.blake2b(f"{self._seed}/{self.name}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def _report(self, message: str, *values: object) -> None:
        """Log a message that only `debug` shows."""
        if self._debug:
            log.info(f"%s: {message}", self.name, *values)

    # -- making --------------------------------------------------------------------------------------

    def make(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], what: str = "a batch"
    ) -> list[BufferItem]:
        """One item per sample, groups together; `what` names the work in the live view."""
        if self._versioned_engine.version == NO_VERSION:
            self._versioned_engine.version = 0  # what the engine came with
        return self._experience(partial(self._generate, prompts, seeds, what))

    def _generate(self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], what: str) -> list[Sample]:
        return self.rollout.run(self._versioned_engine, prompts, seeds, Progress(what, self.activity))

    def _experience(self, make: Callable[[], list[Sample]]) -> list[BufferItem]:
        """Samples as items, with the rewards and masks that `on_make_experience_end` changed."""
        moments, state = self.manager.moments, self.state
        moments.maker_make_experience_start(state)
        try:
            samples = make()
            self._report_failed_reward(samples)
            self._fire_trajectories(samples)
            self.tokens_made += sum(sample.tokens for sample in samples)
            items = [row for sample in samples for row in sample.rows(self.rollout.sampling)]
        except BaseException as error:
            try:
                moments.maker_make_experience_end(state, nothing_made())
            except Exception as late:  # a hook's: never in place of what went wrong
                note_failure(error, "while it was ending the batch", late)
            raise
        if not self.manager.wants("maker.make_experience_end", "experience"):
            moments.maker_make_experience_end(state, None)  # no hook wants it
            return items
        experience = shown_to_hooks(items)
        moments.maker_make_experience_end(state, experience)
        return as_delivered(experience)

    def _fire_trajectories(self, samples: Sequence[Sample]) -> None:
        """Fire the hooks of conversations with environments, one conversation after the other."""
        moments, state = self.manager.moments, self.state
        if not any(self.manager.wants(event) for event in _TRAJECTORY_EVENTS):
            return
        for sample in samples:
            if sample.facts is None:
                continue
            ended = None
            moments.maker_trajectory_start(state, sample.uid)
            try:
                for turn in sample.turn_facts():
                    moments.maker_turn_end(state, sample.uid, turn)
                ended = sample.facts
            finally:
                moments.maker_trajectory_end(state, sample.uid, ended)

    def _report_failed_reward(self, samples: Sequence[Sample]) -> None:
        """Show the first sample without a reward at once, with the reason."""
        failed = next((one for one in samples if one.score.value is None and one.failure is not None), None)
        if failed is None or self._has_reported_failure:
            return
        self._has_reported_failure = True
        log.warning(
            "%s: a sample has no reward and is left out: %s. Its prompt: %.200r, its completion: %.200r. More "
            "like it are counted in reward_failed_fraction, and each is in journal.jsonl",
            self.name, failed.failure, failed.prompt.text, failed.text,
        )  # fmt: skip
