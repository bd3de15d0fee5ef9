"""Weights by version: what is fetched is what was published, or nothing."""

import threading

import pytest
import torch

from proa.roles.waiting import WaitTimeoutError
from proa.roles.weights import Weights, WeightsError, WeightStore, transport_digest


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
    store = WeightStore(wait_timeout=5)
    threading.Timer(0.05, store.publish, (1, tensors())).start()
    assert store.fetch(1, owner="maker_0").version == 1
    with pytest.raises(WaitTimeoutError, match="maker_0 has waited .* for weights of version 7"):
        late = WeightStore(wait_timeout=0.05)
        late.fetch(7, owner="maker_0")


def test_old_versions_are_let_go_and_the_newest_stays():
    store = WeightStore()
    for version in range(4):
        store.publish(version, tensors(float(version)))
    store.retire(older_than=2)
    assert store.versions == [2, 3]
    store.retire(older_than=99)
    assert store.versions == [3]


def test_the_digest_depends_on_names_shapes_types_and_bytes_alone():
    one = transport_digest({"a": torch.zeros(2, 3), "b": torch.ones(1)})
    assert one == transport_digest({"b": torch.ones(1), "a": torch.zeros(2, 3)})
    assert one != transport_digest({"a": torch.zeros(3, 2), "b": torch.ones(1)})
    assert one != transport_digest({"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(1)})


def test_what_adapters_go_over_is_never_retired():
    store = WeightStore()
    store.publish(-1, {"base": torch.zeros(1)})
    for version in range(3):
        store.publish(version, {"adapter": torch.ones(1)})
    store.retire(older_than=2)
    assert store.versions == [-1, 2]
