"""Settings of torch that user code changes in passing: said once, and put back."""

import logging
import threading

import pytest
import torch
from tests.watched_lock import WatchedLock

from proa import numerics
from proa.numerics import Numerics, preserved_settings
from proa.rewards import InlineRewards, RewardWorkers

CHANGES = {
    "torch.set_num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch.set_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch.set_default_device": lambda: torch.set_default_device("meta"),
    "torch.set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "torch.use_deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "torch.set_flush_denormal": lambda: torch.set_flush_denormal(True),
    "torch.set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "torch.autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "torch.backends.cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "torch.backends.cudnn.deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "torch.backends.mkldnn.enabled": lambda: setattr(torch.backends.mkldnn, "enabled", False),
}
CANNOT = set() if torch.set_flush_denormal(False) else {"torch.set_flush_denormal"}
"""What this processor does not know."""


@pytest.fixture(autouse=True)
def nothing_told_yet(monkeypatch):
    monkeypatch.setattr(numerics, "_warned", set())


def read():
    return {name: read() for name, (read, _) in numerics._settings().items()}


def test_every_setting_that_is_watched_is_put_back_and_said_once(caplog):
    assert CHANGES.keys() == numerics._settings().keys()
    before = read()
    changes = {name: change for name, change in CHANGES.items() if name not in CANNOT}
    for name, change in changes.items():
        for _ in range(2):
            with preserved_settings("reward 'meddles'"):
                change()
                assert read()[name] != before[name], name
            assert read() == before, name
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(changes)
    assert all(f"reward 'meddles' called {name} (" in line for name, line in zip(changes, said, strict=True))


def test_what_a_library_changes_for_a_moment_is_neither_taken_for_set_nor_put_back(monkeypatch, caplog):
    before, found, lock = Numerics(), [], WatchedLock()
    monkeypatch.setattr(numerics, "_stable", lock)

    def look():
        before.restore("somebody")
        found.append(Numerics()._values)

    thread = threading.Thread(target=look)
    with numerics.changing_settings():
        torch.set_default_dtype(torch.bfloat16)
        thread.start()
        assert lock.is_wanted.wait(60)
        torch.set_default_dtype(torch.float32)
    thread.join()
    assert found == [before._values]
    assert not caplog.records


def test_a_setting_is_put_back_when_the_code_raises_too():
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="boom"), preserved_settings("somebody"):
        torch.set_num_threads(before + 1)
        raise ValueError("boom")
    assert torch.get_num_threads() == before


def meddles(completions):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return [1.0] * len(completions)


def test_an_inline_reward_that_sets_threads_leaves_them_as_they_were(caplog):
    before = torch.get_num_threads()
    rewards = InlineRewards(meddles)
    for _ in range(2):
        assert [score.value for score in rewards.score(["p"] * 2, ["a", "b"])] == [1.0, 1.0]
        assert torch.get_num_threads() == before
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "reward 'meddles' called torch.set_num_threads" in line


def test_a_reward_in_a_thread_that_sets_threads_changes_them_for_nobody(caplog):
    before = torch.get_num_threads()
    with RewardWorkers(lambda completions: meddles(completions), timeout=120) as rewards:
        assert rewards.score(["p"], ["a"])[0].value == 1.0
    assert torch.get_num_threads() == before
    assert any("called torch.set_num_threads" in record.getMessage() for record in caplog.records)


def test_a_look_from_the_start_finds_what_was_changed_since(caplog):
    at_first = Numerics()
    torch.set_default_dtype(torch.float64)
    at_first.restore("a callback")
    assert torch.get_default_dtype() == torch.float32
    assert "a callback called torch.set_default_dtype (torch.float32 became torch.float64)" in caplog.text
