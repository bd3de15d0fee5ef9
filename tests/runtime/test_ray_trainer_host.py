"""The first trainer's actor, without its actor: calls that are repeated, late, or of makers that are gone."""

from types import SimpleNamespace

import pytest
import torch
from tests.leases.honest_makers import plan, prompt

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

from proa import CallbackManager
from proa.data.versions import NO_VERSION
from proa.leases.book import LeaseBook
from proa.roles.weights import InProcess, WeightStore
from proa.runtime.ray.link import Interests
from proa.runtime.ray.replies import Reply
from proa.runtime.ray.trainer_host import RankHost, TrainerHost, TrainerParts


class NearShelf(InProcess):
    """Offers tensors as they are: there is no other process here."""

    def put(self, tensors):
        copies, digest = super().put(tensors)
        return SimpleNamespace(offer=lambda gpu: (copies, digest)), digest


def host(**changes):
    """With leases to hand out, and weights for them."""
    book, store = LeaseBook(plan(**changes), prompt, wait_timeout=60.0), WeightStore(shelf=NearShelf())
    store.publish(0, {"weight": torch.zeros(3)})
    book.start_episode(0)
    made = TrainerHost(
        lambda ties: TrainerParts(SimpleNamespace(), book, store, dict),
        Interests(frozenset(), frozenset()), size=1, backend="gloo", patience=60.0,
    )  # fmt: skip
    made.prepare(None)
    return made


def failing_host(error, summary=dict):
    """Whose training ends with that."""

    def fit(*_):
        raise error

    trainer = SimpleNamespace(fit=fit, state=SimpleNamespace(to_dict=dict), manager=CallbackManager())
    made = RankHost(lambda ties: TrainerParts(trainer, None, None, summary), 0, 1, "gloo", 60.0)
    made.prepare(None)
    return made


def lease_ids(replies):
    return [reply.value and reply.value.id for reply in replies]


def test_a_repeated_request_gets_the_same_lease_and_one_that_comes_late_gets_none():
    trainer = host()
    replies = [trainer.next_lease("maker_0", ticket, NO_VERSION) for ticket in (1, 1, 2)]
    assert lease_ids(replies) == [0, 0, 1]
    assert trainer.next_lease("maker_0", 1, NO_VERSION) == Reply()
    assert trainer._book.held_by("maker_0") == [0, 1]
    assert lease_ids([trainer.next_lease("maker_0", 2, NO_VERSION)]) == [1]


def test_what_a_lost_maker_was_given_is_dropped_with_its_weights():
    trainer = host()
    assert trainer.next_lease("maker_0", 1, NO_VERSION).weights is not None
    assert trainer.dismiss("maker_0") == [0]
    assert trainer.next_lease("maker_0", 1, NO_VERSION).closed == "maker_0 was replaced"
    assert "maker_0" not in trainer._given
    assert trainer.dismiss("maker_0") == []
    assert not trainer._asking


def test_idle_makers_cannot_hold_deliveries_up():
    waiting, delivering = (method.__ray_concurrency_group__ for method in (TrainerHost.next_lease, TrainerHost.deliver))
    assert waiting != delivering
    assert {waiting, delivering} <= TrainerHost.GROUPS.keys()


def test_a_trainer_that_cannot_be_built_says_so_to_the_others():
    said = []

    def fails(ties):
        raise ValueError("no such model")

    trainer = RankHost(fails, rank=1, size=2, backend="gloo", patience=60.0)
    trainer._replicas = SimpleNamespace(leave=said.append)
    with pytest.raises(ValueError, match="no such model"):
        trainer.prepare(None)
    assert [str(error) for error in said] == ["no such model"]


def test_how_training_ended_is_known_though_it_cannot_be_summed_up(capsys):
    def summary():
        raise RuntimeError("CUDA error in the digest")

    outcome = failing_host(RuntimeError("CUDA error in step 3"), summary).fit(4, 1, 1)
    assert (str(outcome.error), outcome.summary) == ("CUDA error in step 3", {})
    assert "CUDA error in the digest" in capsys.readouterr().err
