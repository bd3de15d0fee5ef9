"""`ExperienceMakerHolder`: takes leases, loads weights, has samples made, and delivers them as experience."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ..actors.activity import Activity, Doing
from ..actors.concurrency import concurrency_group
from ..actors.finding import find_actor
from ..actors.waiting import ClosedError, LeaseFailedError, WaitTimeoutError
from ..data.experience import BufferItem
from ..data.experience_changes import as_delivered, nothing_made, shown_to_hooks
from ..data.lease import Delivery, Lease, Prompt, sample_seed
from ..data.state import LoopState
from ..engines.protocol import Engine
from ..leases.plan import group_by_id
from ..lifecycle.current import with_own_state
from ..lifecycle.failures import note_failure
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.roles import Role
from ..rollouts import Progress, Rollout, Sample, VersionedEngine
from .weights import Weights

log = logging.getLogger("proa.maker")


class Book(Protocol):
    """The lease book as a maker sees it, here or on another machine."""

    def next_lease(self, maker: str) -> Lease: ...
    def deliver(self, delivery: Delivery, maker: str) -> bool: ...
    def release(self, lease_id: int, maker: str) -> None: ...


class Store(Protocol):
    """The weights by version as a maker sees them."""

    def fetch(self, version: int, *, owner: str) -> Weights: ...


class TrainerHandle(Protocol):
    """A trainer that a maker pushes to."""

    def buffer_extend(self, items: Sequence[BufferItem]) -> None: ...


class ExperienceMakerHolder:
    """One maker: an engine with weights of a known version, a rollout, and somebody to send to.

    In a run it works on leases (`work`). `workingloop` feeds it prompts directly and deals what it makes
    round robin over its trainers, whole groups together.
    """

    def __init__(
        self,
        detached_trainer_name_list: Sequence[str] = (),
        *,
        engine: Engine,
        rollout: Rollout,
        whole_weights: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]] | None = None,
        callbacks: Callbacks = (),
        name: str = "maker_0",
        seed: int = 0,
        find_trainer: Callable[[str], TrainerHandle] | None = None,
    ) -> None:
        self.name = name
        self.trainer_names = list(detached_trainer_name_list)
        self.engine = engine
        self.rollout = rollout
        self.manager = CallbackManager.create(callbacks, role=Role.MAKER)
        self.state = LoopState()
        self.activity = Activity()
        self.leases_made = 0
        self.tokens_made = 0
        """Completion tokens."""
        self._versioned_engine = VersionedEngine(engine, guarded_from=f"a callback of {name}")
        self._whole_weights = whole_weights  # with LoRA only the adapter travels, and is put over a base kept here
        self._seed = seed
        self._find_trainer: Callable[[str], Any] = find_trainer or find_actor
        self._doubt = self._answered = object()
        self._turn = 0
        self._has_reported_failure = False

    # -- leased work ---------------------------------------------------------------------------------

    @with_own_state
    def work(self, book: Book, store: Store) -> None:
        """Take leases and deliver them until the book closes; a lease on which this raises goes to another maker."""
        moments, state = self.manager.moments, self.state
        moments.maker_loop_start(state)
        self.activity.rest("working on leases")
        try:
            while True:
                before = self.activity.look()
                lease = self._next_lease(book)
                try:
                    self._make_lease(lease, book, store, before)
                except ClosedError:
                    raise
                except LeaseFailedError:  # an earlier one's delivery
                    book.release(lease.id, self.name)
                    raise
                except BaseException as error:
                    book.release(lease.id, self.name)
                    raise LeaseFailedError(f"{self.name} failed on lease {lease.id}: {error}", lease.id) from error
        finally:
            self.activity.rest("over")
            moments.maker_loop_end(state)

    def _next_lease(self, book: Book) -> Lease:
        with self.activity.doing("wait", "waiting for a lease"):
            while True:
                try:
                    return book.next_lease(self.name)
                except WaitTimeoutError:
                    continue  # an idle maker is not a failure: the trainer's own wait is the one that counts

    def _make_lease(self, lease: Lease, book: Book, store: Store, before: Doing) -> None:
        moments, state, what = self.manager.moments, self.state, f"lease {lease.id}"
        if lease.version != self.loaded_version:
            self._load(lease.version, store)
        moments.maker_batch_start(state)
        try:
            items = self.make(lease.prompts, lease.seeds, what)
            self.leases_made += 1
            spent, spans = self.activity.look().spent_since(before), self.activity.take_spans()
            delivery = Delivery(lease.id, tuple(items), self.name, spent, spans, state.take_logged())
            moments.maker_send_start(state)
            try:
                with self.activity.doing("send", f"delivering {what}"):
                    book.deliver(delivery, self.name)
            finally:
                moments.maker_send_end(state)
        finally:
            moments.maker_batch_end(state)
        state.global_step += 1

    # -- weights -------------------------------------------------------------------------------------

    @property
    def loaded_version(self) -> int:
        """The version of the weights that the engine has; -1 if it has none, or they are not trusted."""
        return self._versioned_engine.version if self._answered is self._doubt else -1

    def distrust_weights(self) -> None:
        """Load weights again before the next lease, even if its version is loaded; may be called from any thread.

        A lease that is being made keeps the version it began with.
        """
        self._doubt = object()  # a new one each time: a load answers the doubt there was when it began, no later one

    def _load(self, version: int, store: Store) -> None:
        doubt = self._doubt
        with self.activity.doing("load", f"loading weights of version {version}"):
            weights = store.fetch(version, owner=self.name)
        self.update_experience_maker(weights)
        self._answered = doubt  # one that came after the fetch is still open

    @concurrency_group("model_io")
    @with_own_state
    def update_experience_maker(self, weights: Weights) -> None:
        """Switch to these weights, all of them or none, after checking them; waits for the batch being generated."""
        doubt, engine = self._doubt, self._versioned_engine
        with engine.in_use, self.activity.doing("load", f"loading weights of version {weights.version}"):
            weights.check()
            whole = self._whole_weights(weights.tensors) if self._whole_weights else weights.tensors
            engine.load(whole, weights.version)
        self.state.policy_version = weights.version
        self._answered = doubt
        self.manager.moments.maker_weights_loaded(self.state, weights.version)

    # -- pushed work ---------------------------------------------------------------------------------

    @concurrency_group("compute")
    @with_own_state
    def workingloop(
        self, dataloader_fn: Callable[[], Iterable[Sequence[Prompt]]], num_epochs: int = 1, num_steps: int = 0
    ) -> None:
        """Make experience from every batch of prompts that `dataloader_fn()` yields, for `num_epochs` passes.

        `num_steps` limits the batches; 0 is no limit. Metrics that hooks log here stay in this maker's `state.metrics`:
        only leases carry them to a trainer.
        """
        moments, state = self.manager.moments, self.state
        batches = itertools.chain.from_iterable(dataloader_fn() for _ in range(num_epochs))
        moments.maker_loop_start(state)
        self.activity.rest("working on batches")
        try:
            for prompts in itertools.islice(batches, num_steps or None):
                moments.maker_batch_start(state)
                try:
                    self._send(self.make(tuple(prompts), self._seeds(prompts)))
                finally:
                    moments.maker_batch_end(state)
                state.global_step += 1
        finally:
            self.activity.rest("over")
            moments.maker_loop_end(state)

    def _send(self, items: Sequence[BufferItem]) -> None:
        moments, state = self.manager.moments, self.state
        moments.maker_send_start(state)
        try:
            with self.activity.doing("send", "delivering a batch"):
                for group in group_by_id(items):
                    trainer = self._find_trainer(self.trainer_names[self._turn % len(self.trainer_names)])
                    self._turn += 1
                    trainer.buffer_extend(list(group))
        finally:
            moments.maker_send_end(state)

    def _seeds(self, prompts: Sequence[Prompt]) -> tuple[tuple[int, ...], ...]:
        samples = range(self.rollout.sampling.group_size)
        return tuple(tuple(sample_seed(self._seed, prompt.ordinal, sample) for sample in samples) for prompt in prompts)

    # -- making --------------------------------------------------------------------------------------

    def make(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], what: str = "a batch"
    ) -> list[BufferItem]:
        """One item per sample, groups together; `what` names the work for whoever looks at this maker.

        What `on_make_experience_end` changes of rewards and masks is in the items.
        """
        moments, state = self.manager.moments, self.state
        moments.maker_make_experience_start(state)
        try:
            samples = self.rollout.run(self._versioned_engine, prompts, seeds, Progress(what, self.activity))
            self._report_failed_reward(samples)
            self.tokens_made += sum(sample.tokens for sample in samples)
            items = [row for sample in samples for row in sample.rows(self.rollout.sampling)]
        except BaseException as error:
            try:
                moments.maker_make_experience_end(state, nothing_made())
            except Exception as late:  # a hook's: never in place of what went wrong
                note_failure(error, "while it was ending the batch", late)
            raise
        if not self.manager.wants("maker.make_experience_end", "experience"):
            moments.maker_make_experience_end(state, None)  # nobody looks at it
            return items
        experience = shown_to_hooks(items)
        moments.maker_make_experience_end(state, experience)
        return as_delivered(experience)

    def _report_failed_reward(self, samples: Sequence[Sample]) -> None:
        """Show the first sample without a reward at once, with the reason."""
        failed = next((sample for sample in samples if sample.score.value is None), None)
        if failed is None or self._has_reported_failure:
            return
        self._has_reported_failure = True
        log.warning(
            "%s: a sample has no reward and is left out: %s. Its prompt: %.200r, its completion: %.200r. More "
            "like it are counted in reward_failed_fraction, and each is in journal.jsonl",
            self.name, failed.score.error, failed.prompt.text, failed.text,
        )  # fmt: skip
