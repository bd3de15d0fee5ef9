"""`ExperienceMakerHolder`: generates completions, scores them, and sends them as experience."""

from __future__ import annotations

import copy
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..actors.activity import Activity, Doing
from ..actors.concurrency import concurrency_group
from ..actors.finding import find_actor
from ..actors.waiting import ClosedError, LeaseFailedError, WaitTimeoutError
from ..data.experience import BufferItem, merge
from ..data.experience_changes import apply_changes
from ..data.lease import Delivery, Lease, Prompt, sample_seed
from ..data.reward_limits import fault_of
from ..data.sampling import Completion, Sampling
from ..data.state import LoopState
from ..engines.protocol import Engine, Request
from ..leases.plan import group_by_id
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.roles import Role
from ..numerics import Numerics
from ..rewards.score import Score, add_part
from .weights import Weights

log = logging.getLogger("proa.maker")


class Scorer(Protocol):
    """What a maker needs of rewards."""

    def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[Score]: ...


@dataclass(frozen=True)
class ModelReward:
    """A reward model's part in the reward; it reads the tokens as they were sampled."""

    score: Callable[[Sequence[Sequence[int]]], Sequence[float]]
    """From prompts with their completions, as tokens, to one number each."""
    weight: float = 1.0


class Book(Protocol):
    """What a maker needs of the lease book, here or on another machine."""

    def next_lease(self, maker: str) -> Lease: ...
    def deliver(self, delivery: Delivery, maker: str) -> bool: ...
    def release(self, lease_id: int, maker: str) -> None: ...


class Store(Protocol):
    """What a maker needs of the weights by version."""

    def fetch(self, version: int, *, owner: str) -> Weights: ...


class TrainerHandle(Protocol):
    """What a maker needs of a trainer it pushes to."""

    def buffer_extend(self, items: Sequence[BufferItem]) -> None: ...


class ExperienceMakerHolder:
    """One maker: an engine with weights of a known version, a scorer, and somebody to send to.

    In a run it works on leases (`work`). `workingloop` feeds it prompts directly and deals what it makes
    round robin over its trainers, whole groups together.
    """

    def __init__(
        self,
        detached_trainer_name_list: Sequence[str] = (),
        *,
        engine: Engine,
        decode: Callable[[Sequence[int]], str],
        scorer: Scorer | None,
        sampling: Sampling,
        model_reward: ModelReward | None = None,
        whole_weights: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]] | None = None,
        callbacks: Callbacks = (),
        name: str = "maker_0",
        seed: int = 0,
        find_trainer: Callable[[str], TrainerHandle] | None = None,
    ) -> None:
        self.name = name
        self.trainer_names = list(detached_trainer_name_list)
        self.engine = engine
        self.sampling = sampling
        self.manager = CallbackManager.create(callbacks, role=Role.MAKER)
        self.state = LoopState()
        self.activity = Activity()
        self.leases_made = 0
        self.tokens_made = 0
        """Completion tokens."""
        self._decode = decode
        self._scorer = scorer
        self._model_reward = model_reward
        self._whole_weights = whole_weights  # with LoRA only the adapter travels, and is put over a base kept here
        self._seed = seed
        self._find_trainer: Callable[[str], Any] = find_trainer or find_actor
        self._engine_in_use = threading.Lock()  # weights are switched between batches, whoever brings them
        self._version = -1
        self._doubt = self._answered = object()
        self._turn = 0
        self._numerics: Numerics | None = None
        self._told_of_failure = False

    # -- leased work ---------------------------------------------------------------------------------

    def work(self, book: Book, store: Store) -> None:
        """Take leases and deliver them until the book closes; what is raised leaves the lease to another."""
        moments, state = self.manager.moments, self.state
        moments.maker_loop_start(state)
        self.activity.rest("working on leases")
        try:
            while True:
                before = self.activity.look()
                lease = self._next_lease(book)
                try:
                    self._work_on(lease, book, store, before)
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
                    continue  # an idle maker is no failure: the trainer's own wait is the one that counts

    def _work_on(self, lease: Lease, book: Book, store: Store, before: Doing) -> None:
        moments, state, what = self.manager.moments, self.state, f"lease {lease.id}"
        if lease.version != self.loaded_version:
            self._load(lease.version, store)
        moments.maker_batch_start(state)
        try:
            items = self.make(lease.prompts, lease.seeds, what)
            self.leases_made += 1
            spent, spans = self.activity.look().spent_since(before), self.activity.take_spans()
            delivery = Delivery(lease.id, tuple(items), self.name, spent, spans)
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
        """The version of the weights that the engine has; -1 where there is none, or none that is trusted."""
        return self._version if self._answered is self._doubt else -1

    def distrust_weights(self) -> None:
        """Load again before the next lease, even if its version is the one that is there; from any thread.

        A lease that is being made keeps the version it was begun with.
        """
        self._doubt = object()  # a new one each time: a load answers the doubt there was when it began, and no later

    def _load(self, version: int, store: Store) -> None:
        doubt = self._doubt
        with self.activity.doing("load", f"loading weights of version {version}"):
            weights = store.fetch(version, owner=self.name)
        self.update_experience_maker(weights)
        self._answered = doubt  # one that came after the fetch is still open

    @concurrency_group("model_io")
    def update_experience_maker(self, weights: Weights) -> None:
        """Switch to these weights, all of them or none, after checking them; between batches, if one is being made."""
        doubt = self._doubt
        with self._engine_in_use, self.activity.doing("load", f"loading weights of version {weights.version}"):
            weights.check()
            self.engine.load(self._whole_weights(weights.tensors) if self._whole_weights else weights.tensors)
        self._version = self.state.policy_version = weights.version
        self._answered = doubt
        self.manager.moments.maker_weights_loaded(self.state, weights.version)

    # -- pushed work ---------------------------------------------------------------------------------

    @concurrency_group("compute")
    def workingloop(
        self, dataloader_fn: Callable[[], Iterable[Sequence[Prompt]]], num_epochs: int = 1, num_steps: int = 0
    ) -> None:
        """Make experience of every batch of prompts that `dataloader_fn()` yields, for `num_epochs` passes.

        `num_steps` limits the batches; 0 is no limit.
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
        samples = range(self.sampling.group_size)
        return tuple(tuple(sample_seed(self._seed, prompt.ordinal, sample) for sample in samples) for prompt in prompts)

    # -- making --------------------------------------------------------------------------------------

    def make(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], what: str = "a batch"
    ) -> list[BufferItem]:
        """Generate, score and stamp: one item per sample, groups together. Whoever looks is told `what` is made.

        What `on_make_experience_end` changes of rewards and masks is in the items.
        """
        moments, state = self.manager.moments, self.state
        moments.maker_make_experience_start(state)
        experience = None
        try:
            if self._numerics is not None:
                self._numerics.restore(f"a callback of {self.name}")
            requests = [Request(prompt.tokens, tuple(own)) for prompt, own in zip(prompts, seeds, strict=True)]
            with self._engine_in_use, self.activity.doing("generate", f"generating {what}"):
                version = self._version
                groups = self.engine.generate(requests, self.sampling)
                self._numerics = Numerics()
            with self.activity.doing("score", f"scoring {what}"):
                scores = self._score(prompts, groups)
            self.tokens_made += sum(len(completion) for group in groups for completion in group)
            items = self._items(prompts, groups, scores, version)
            if self.manager.wants("maker.make_experience_end", "experience"):
                experience = merge([_with_reward(item) for item in items])
                experience.notes = copy.deepcopy(experience.notes)  # what a hook does to them must not reach the items
        finally:
            moments.maker_make_experience_end(state, experience)
        return items if experience is None else apply_changes(items, experience)

    def _score(self, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> list[Score]:
        pairs = [(prompt, one) for prompt, group in zip(prompts, groups, strict=True) for one in group]
        scores = self._scores_by_functions(pairs)
        if self._model_reward is not None:
            sequences = [(*prompt.tokens, *completion.tokens.tolist()) for prompt, completion in pairs]
            values = self._model_reward.score(sequences)
            scores = add_part(scores, "reward_model", values, self._model_reward.weight)
        scores = [_usable(score) for score in scores]
        for (prompt, completion), score in zip(pairs, scores, strict=True):
            if score.value is None and not self._told_of_failure:
                self._told_of_failure = True
                text = self._decode(completion.tokens.tolist())
                log.warning(
                    "%s: a sample has no reward and is left out: %s. Its prompt: %.200r, its completion: %.200r. More "
                    "like it are counted in reward_failed_fraction, and each is in journal.jsonl",
                    self.name, score.error, prompt.text, text,
                )  # fmt: skip
        return scores

    def _scores_by_functions(self, pairs: Sequence[tuple[Prompt, Completion]]) -> list[Score]:
        if self._scorer is None:
            return [Score(None, applies=False) for _ in pairs]
        prompts = [prompt for prompt, _ in pairs]
        columns = {name: [prompt.columns[name] for prompt in prompts] for name in prompts[0].columns}
        texts = [self._text(prompt, completion) for prompt, completion in pairs]
        return self._scorer.score([prompt.text for prompt in prompts], texts, columns)

    def _text(self, prompt: Prompt, completion: Completion) -> Any:
        text = self._decode(completion.tokens.tolist())
        return text if isinstance(prompt.text, str) else [{"role": "assistant", "content": text}]

    def _items(
        self,
        prompts: Sequence[Prompt],
        groups: Sequence[Sequence[Completion]],
        scores: Sequence[Score],
        version: int,
    ) -> list[BufferItem]:
        score = iter(scores)
        return [
            self._item(prompt, sample, completion, next(score), version)
            for prompt, group in zip(prompts, groups, strict=True)
            for sample, completion in enumerate(group)
        ]

    def _item(self, prompt: Prompt, sample: int, completion: Completion, score: Score, version: int) -> BufferItem:
        notes: dict[str, Any] = {"finish_reason": completion.finish_reason, "reward_parts": score.parts}
        if score.error is not None:
            notes |= {"error": score.error, "reward_failure": "reward_failed"}
        tokens = torch.cat([torch.tensor(prompt.tokens, dtype=torch.long), completion.tokens.long()])
        return BufferItem(
            tokens,
            completion.log_probs,
            reward=None if score.value is None else torch.tensor(score.value, dtype=torch.float32),
            attention_mask=torch.ones(len(tokens), dtype=torch.bool),
            action_mask=torch.ones(len(completion), dtype=torch.bool),
            versions=torch.full((len(completion),), version, dtype=torch.int32),
            uid=f"{prompt.ordinal}/{sample}",
            group_id=str(prompt.ordinal),
            sampling=self.sampling,
            notes=notes,
        )


def _usable(score: Score) -> Score:
    """A scorer of the user's own may give anything."""
    fault = "" if score.value is None else fault_of(score.value)
    return replace(score, value=None, error=f"the reward is {score.value}, {fault}") if fault else score


def _with_reward(item: BufferItem) -> BufferItem:
    """For hooks: a batch needs a reward in every row; NaN stands for one that could not be had."""
    if item.reward is not None:
        return item
    return BufferItem(**{**vars(item), "reward": torch.tensor(float("nan"))})
