"""Weights by version: what is fetched is what was published, or nothing."""

import threading

import pytest
import torch
from tests.engines.made_up import MadeUpEngine
from tests.small import Numbers

from proa.actors.waiting import WaitTimeoutError
from proa.data.sampling import Sampling
from proa.data.versions import BASE_VERSION
from proa.engines.weights import WeightPlaces
from proa.roles.maker import ExperienceMakerHolder
from proa.roles.weights import Weights, WeightsError, WeightStore, transport_digest
from proa.rollouts import SingleTurn


def tensors(value=1.0):
    return {"a": torch.full((2, 3), value), "b": torch.arange(4)}


def test_what_is_published_does_not_change_with_the_trainers_own():
    store, own = WeightStore(), tensors()
    store.publish(0, own)
    own["a"].add_(1)
    fetched = store.fetch(0, owner="maker_0")
    assert fetched.tensors["a"].unique().tolist() == [1.0]
    fetched.check()


def test_damage_on_the_way_is_found():
    published = WeightStore().publish(3, tensors())
    for damage in (lambda t: t["a"].view(-1)[0].add_(1e-7), lambda t: t.pop("b"), lambda t: t.update(c=torch.zeros(1))):
        broken = {name: tensor.clone() for name, tensor in published.tensors.items()}
        damage(broken)
        with pytest.raises(WeightsError, match="version 3 were damaged"):
            Weights(3, broken, published.digest).check()


def test_a_version_never_changes():
    store = WeightStore()
    store.publish(0, tensors())
    with pytest.raises(WeightsError, match="published already"):
        store.publish(0, tensors(2.0))


def test_fetching_waits_for_the_version_with_a_deadline():
    store = WeightStore(wait_timeout=120)
    threading.Timer(0.05, store.publish, (1, tensors())).start()
    assert store.fetch(1, owner="maker_0").version == 1
    with pytest.raises(WaitTimeoutError, match="maker_0 has waited .* for weights of version 7"):
        late = WeightStore(wait_timeout=0.05)
        late.fetch(7, owner="maker_0")


def test_old_versions_are_let_go_and_the_newest_stays():
    store = WeightStore()
    for version in range(4):
        store.publish(version, tensors(float(version)))
    store.retire(but=None)
    assert store.versions == [0, 1, 2, 3]
    store.retire(but={1, 7})
    assert store.versions == [1, 3]
    store.retire(but=set())
    assert store.versions == [3]


def test_the_digest_depends_on_names_shapes_types_and_bytes_alone():
    one = transport_digest({"a": torch.zeros(2, 3), "b": torch.ones(1)})
    assert one == transport_digest({"b": torch.ones(1), "a": torch.zeros(2, 3)})
    assert one != transport_digest({"a": torch.zeros(3, 2), "b": torch.ones(1)})
    assert one != transport_digest({"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(1)})


def test_what_adapters_go_over_is_never_retired():
    store = WeightStore()
    store.publish(BASE_VERSION, {"base": torch.zeros(1)})
    for version in range(3):
        store.publish(version, {"adapter": torch.ones(1)})
    store.retire(but=set())
    assert store.versions == [BASE_VERSION, 2]


# -- in pieces ---------------------------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch):
    """Weights of a few bytes are hashed as large ones are: in pieces, by threads where they are published."""
    monkeypatch.setattr("proa.roles.weights.PIECE_BYTES", 8)
    monkeypatch.setattr("proa.roles.weights.PUBLISHING_THREADS", 3)


def test_a_flipped_bit_anywhere_is_found(small_pieces):
    original = {"a": torch.arange(5.0), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.ones(())}
    published = WeightStore().publish(1, original)
    published.check()
    for name, tensor in original.items():
        for position in range(tensor.nbytes):
            broken = {other: kept.clone() for other, kept in original.items()}
            broken[name].view(-1).view(torch.uint8)[position] ^= 1
            with pytest.raises(WeightsError, match="version 1 were damaged"):
                Weights(1, broken, published.digest).check()


def test_pieces_that_changed_places_are_found(small_pieces):
    one, other = torch.arange(2.0), torch.arange(2.0, 4.0)
    assert transport_digest({"a": torch.cat([one, other])}) != transport_digest({"a": torch.cat([other, one])})
    assert transport_digest({"a": one, "b": other}) != transport_digest({"a": other, "b": one})


def test_the_digest_is_the_same_however_many_threads_there_are(small_pieces):
    weights = {"a": torch.arange(100.0), "empty": torch.zeros(0), "b": torch.ones(3, 3)}
    assert len({transport_digest(weights, threads=threads) for threads in (1, 2, 2, 2, 7, 7, 7)}) == 1


# -- a push that fails -------------------------------------------------------------------------------


class Places(MadeUpEngine):
    """An engine that has weights and nothing else."""

    def __init__(self):
        super().__init__()
        self.own = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
        self._places = WeightPlaces(self.own, {})

    def load(self, weights, version):
        self._places.fill(weights)


def damaged(weights):
    """The last byte of the last tensor, so that whoever copies as he checks has copied nearly all."""
    broken = {name: tensor.clone() for name, tensor in weights.tensors.items()}
    broken["b"].view(torch.uint8)[-1] ^= 1
    return Weights(weights.version, broken, weights.digest)


def with_another_shape(weights):
    return WeightStore().publish(weights.version, {**weights.tensors, "b": torch.arange(5)})


def without_one(weights):
    return WeightStore().publish(weights.version, {"a": weights.tensors["a"]})


@pytest.mark.parametrize("spoil", [damaged, with_another_shape, without_one])
def test_a_push_that_fails_leaves_the_old_version_in_force(spoil, small_pieces):
    engine = Places()
    maker = ExperienceMakerHolder(engine=engine, rollout=SingleTurn(Numbers(), Sampling()))
    maker.update_experience_maker(WeightStore().publish(1, tensors(1.0)))
    with pytest.raises((WeightsError, ValueError)):
        maker.update_experience_maker(spoil(WeightStore().publish(2, tensors(2.0))))
    assert engine.own["a"].unique().tolist() == [1.0]
    assert (maker.loaded_version, maker.state.policy_version) == (1, 1)
    maker.update_experience_maker(WeightStore().publish(2, tensors(2.0)))
    assert (engine.own["a"].unique().tolist(), maker.loaded_version) == ([2.0], 2)
