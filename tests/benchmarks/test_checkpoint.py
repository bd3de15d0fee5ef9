"""The benchmark of saving: that it saves the real thing, how it counts, and its verdicts."""

import os

import pytest
import torch
from benchmarks.checkpoint import Background, Bench, Clock, Rounds, TimedDisk, background_saves, model_config, verdicts
from safetensors.torch import load_file

from proa.policy.models import load_model, model_weights
from proa.record.checkpoints import CheckpointManager

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(0.1, tmp_path_factory.mktemp("bench"), steps_between=2)


def test_the_model_has_the_size_that_was_asked_for():
    assert model_config(100)["hidden_size"] == 512
    model = load_model(model_config(4))
    assert sum(weight.nbytes for weight in model_weights(model).values()) == pytest.approx(4e6, rel=0.1)


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoint_is_whole_and_holds_what_is_measured_alone(background, bench, tmp_path):
    clock = bench.fit(2, bench.checkpoints(tmp_path, save_every=1, background=background))
    assert clock.told == [2 if background else 1, 2]
    manager = CheckpointManager(tmp_path)
    assert [row.name for row in manager.rows] == ["step_2"]
    manager.verify(manager.final())
    folder = manager.path(manager.final())
    weights, state = (
        load_file(folder / "model/model.safetensors"),
        load_file(folder / "state/trainer/tensors.safetensors"),
    )
    assert sum(tensor.nbytes for tensor in (*weights.values(), *state.values())) == bench.bytes
    assert all(torch.equal(weights[name], tensor) for name, tensor in model_weights(bench.model).items())
    assert bench.bytes == pytest.approx(3 * sum(tensor.nbytes for tensor in weights.values()), rel=0.01)


def test_both_files_are_synced(bench, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_size), sync(descriptor)))
    bench.alone()
    assert len(synced) == 2
    assert all(size > bench.bytes for size in synced)


def test_a_round_measures_everything_and_leaves_nothing_behind(bench):
    found = bench.run(rounds=1)
    rows = found.rows()
    assert all(seconds > 0 for name, seconds in rows.items() if "slowed" not in name)
    assert rows["safetensors"] < rows["safetensors, fsync"]
    assert rows["torch.save"] < rows["torch.save, fsync"]
    assert len(found.background) == 2
    assert all(saved.steps in (1, 2) for saved in found.background)
    assert len(verdicts(found)) == 3
    assert list(bench.folder.iterdir()) == []


def test_each_save_has_its_own_times(tmp_path):
    disk = TimedDisk()
    with (tmp_path / "file").open("wb") as file:
        disk.sync(file.fileno())
        disk.call(lambda path: disk.sync(file.fileno()), tmp_path)
        disk.call(lambda path: None, tmp_path)
    first, second = disk.saves
    assert 0 < first["synced"] <= first["written"]
    assert second["synced"] == second["read"] == second["pruned"] == 0 < second["written"]


def clock_of(steps, pauses, told):
    clock, now = Clock(), 0.0
    for step, pause in zip(steps, pauses, strict=True):
        clock.begun.append(now)
        clock.ended.append(now + step)
        now += step + pause
    clock.told = told
    return clock


def test_what_steps_take_longer_while_one_is_written_is_counted_against_those_before():
    clock = clock_of(
        steps=[9, 1, 2, 2.5, 4, 1, 3, 1, 1],
        pauses=[0, 0, 0.25, 0, 0, 0.5, 0, 0, 0],
        told=[5, 7, 9],
    )  # fmt: skip
    assert background_saves(clock, 3) == [
        Background(held_up=0.25, step=1, slowed=3.5, steps=2),
        Background(held_up=0.5, step=1, slowed=1.5, steps=1),
    ]


def rounds(*, foreground=1.0, held_up=0.2, copy=0.15):
    """With slow rounds among those that count."""
    return Rounds(
        alone={"memory copy": [9.0, copy], "safetensors, fsync": [0.2, 9.0]},
        foreground=[{"written": 9.0, "read": 0.1}, {"written": foreground / 2, "read": foreground / 2}],
        background=[Background(held_up, 0.4, 0.1, 2), Background(9.0, 0.3, 0.5, 2), Background(9.0, 0.4, 9.0, 2)],
    )


def test_the_fastest_round_counts_and_the_median_of_what_steps_are_slowed_down():
    assert rounds().rows() == {
        "step": 0.3, "memory copy": 0.15, "safetensors, fsync": 0.2, "foreground": 1.0, "  written": 0.5, "  read": 0.5,
        "background": 0.2, "  steps slowed down, in all": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True, True, True]),
        ({"foreground": 1.21}, [False, True, True]),
        ({"foreground": 0.39}, [True, False, True]),
        ({"copy": 0.1}, [True, True, False]),
    ],
)
def test_each_bound_that_is_missed_is_said(changes, expected):
    assert list(verdicts(rounds(**changes)).values()) == expected
