"""Weights on the trainer's GPU: makers of the same process and of others read them there, and find any damage."""

import gc

import pytest
import torch
import torch.multiprocessing as processes

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

from proa.roles.weights import Weights, WeightsError, WeightStore, transport_digest
from proa.runtime.ray.shelf import OnGPU, RayShelf, SharedMemory, gpu_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]


def tensors(value):
    return {
        "a": torch.full((1000, 33), float(value), device="cuda", dtype=torch.bfloat16),
        "b": torch.arange(7, device="cuda") + value,
        "c": torch.full((3,), float(value), device="cuda"),
    }


def test_in_one_process_they_stay_on_the_gpu_and_do_not_change_with_the_trainers():
    store, own = WeightStore(), tensors(1)
    store.publish(0, own)
    own["a"].add_(1)
    weights = store.fetch(0, owner="maker_0")
    assert all(tensor.is_cuda for tensor in weights.tensors.values())
    weights.check()
    assert weights.tensors["a"].unique().tolist() == [1.0]
    assert {name: tensor.device.type for name, tensor in store.recall({0})[0].items()} == dict.fromkeys("abc", "cpu")
    weights.tensors["c"][1] += 1e-6
    with pytest.raises(WeightsError, match="version 0 were damaged"):
        weights.check()


def test_the_memory_of_a_version_that_is_let_go_is_used_again():
    store = WeightStore(shelf=RayShelf())
    memory = []
    for version in range(6):
        kept = store.publish(version, tensors(version)).tensors
        assert isinstance(kept, OnGPU)
        memory.append(kept.memory.data_ptr())
        store.retire(but={version - 1})
    assert len(set(memory)) == 3  # two versions in use, and one that was just let go
    assert store.recall({5})[5]["b"].tolist() == list(range(5, 12))


def reading(offers, answers):
    """Another process, on the same GPU."""
    for offer, digest in iter(offers.get, None):
        assert isinstance(offer, SharedMemory)
        opened = offer.open()
        try:
            Weights(0, opened, digest).check()
            answers.put({name: tensor.float().mean().item() for name, tensor in opened.items()})
        except WeightsError as error:
            answers.put(str(error))
        del opened
        gc.collect()


def test_another_process_reads_them_there_and_finds_another_version_by_its_digest():
    start = processes.get_context("spawn")
    offers, answers = start.Queue(), start.Queue()
    reader = start.Process(target=reading, args=(offers, answers), daemon=True)
    reader.start()
    shelf = RayShelf()
    kept, digest = shelf.put(tensors(1))
    gpu = gpu_of(torch.device("cuda"))
    offers.put(kept.offer(gpu))
    assert answers.get(timeout=120) == {"a": 1.0, "b": 4.0, "c": 1.0}
    offers.put(kept.offer(gpu))  # the same memory, opened again
    assert answers.get(timeout=120) == {"a": 1.0, "b": 4.0, "c": 1.0}
    late = kept.offer(gpu)
    shelf.drop(kept)
    again, other = shelf.put(tensors(2))
    assert again.memory.data_ptr() == kept.memory.data_ptr()
    offers.put(late)
    assert "were damaged" in answers.get(timeout=120)
    offers.put(again.offer(gpu))
    assert answers.get(timeout=120) == {"a": 2.0, "b": 5.0, "c": 2.0}
    assert digest == transport_digest(tensors(1)) != other
    offers.put(None)
    reader.join(60)
    assert reader.exitcode == 0
