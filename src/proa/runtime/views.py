"""Views of a running run: its trainers, its makers, and the whole; the same for threads and actors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from ..leases.book import LeaseBook
from ..record.live import ActorView, LiveView, WaitView
from ..roles.maker import ExperienceMakerHolder
from ..roles.trainer import DetachedTrainer
from ..roles.weights import WeightStore


def view_trainer(name: str, trainer: DetachedTrainer, *, has_ended: bool) -> ActorView:
    """The view of a trainer."""
    doing = trainer.activity.look()
    return ActorView(
        name,
        "trainer",
        doing="ended" if has_ended else doing.what,
        since=doing.since,
        version=trainer.state.policy_version,
        spent=doing.spent,
    )


def view_maker(name: str, maker: ExperienceMakerHolder, *, has_ended: bool) -> ActorView:
    """The view of a maker; the supervisor adds its health."""
    doing = maker.activity.look()
    return ActorView(
        name,
        "maker",
        doing="ended" if has_ended else doing.what,
        since=doing.since,
        version=maker.loaded_version,
        leases=maker.leases_made,
        tokens=maker.tokens_made,
        spent=doing.spent,
        callback_errors=maker.manager.errors,
    )


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run in the process of its first trainer, with the lease book and the weights."""

    trainer: ActorView
    step: int
    total_steps: int
    episode: int
    version: int
    versions: list[int]
    ledger: dict[str, Any]
    waits: list[WaitView]

    @classmethod
    def take(
        cls, name: str, trainer: DetachedTrainer, book: LeaseBook, store: WeightStore, *, has_ended: bool
    ) -> RunSnapshot:
        state = trainer.state
        with book.room:  # so that the ledger closes
            ledger = book.ledger.as_dict()
        waits = [*book.room.waits(), *store.room.waits()]
        seen = [WaitView(wait.owner, wait.reason(), monotonic() - wait.since) for wait in waits]
        view = view_trainer(name, trainer, has_ended=has_ended)
        doing, since = view.doing, view.since
        for wait in seen:
            if wait.owner == trainer.name and not has_ended:
                doing, since = f"waiting for {wait.reason}", time.time() - wait.seconds
        return cls(
            trainer=replace(view, doing=doing, since=since, tokens=ledger["tokens"]["trained"]),
            step=state.global_step,
            total_steps=max(0, state.max_steps),
            episode=state.episode,
            version=state.policy_version,
            versions=store.versions,
            ledger=ledger,
            waits=seen,
        )

    def live_view(self, runtime: str, trainers: Sequence[ActorView], makers: Sequence[ActorView]) -> LiveView:
        """The whole run, with all of its trainers and makers."""
        return LiveView(
            time=time.time(),
            runtime=runtime,
            step=self.step,
            of=self.total_steps,
            episode=self.episode,
            version=self.version,
            versions=self.versions,
            ledger=self.ledger,
            waits=self.waits,
            actors=[*trainers, *makers],
        )
