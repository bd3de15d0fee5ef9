"""What of the engine `vllm` needs no vLLM: what it is told, what it says in its turn, and that it is missing."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.engines.tiny import tiny_model
from tests.small import DETACHED
from tests.watched_lock import WatchedLock

from proa import recipes
from proa.config import load_run_config
from proa.engines import build_engine
from proa.engines.vllm import core
from proa.engines.vllm.requests import step_output
from proa.errors import SettingError
from proa.run.foreseen import check_there
from proa.vllm_arguments import check_options, check_sizes

without_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
KNOWN = ["block_size", "gpu_memory_utilization", "model", "seed", "tensor_parallel_size"]


@without_vllm
def test_that_it_is_missing_is_one_sentence_before_anything_is_written(tmp_path: Any) -> None:
    missing = r"engine vllm needs the package vllm: pip install 'proa\[vllm\]'"
    with pytest.raises(SettingError, match=missing):
        build_engine("vllm", tiny_model(), end_ids=())
    with pytest.raises(SettingError, match=missing):
        recipes.grpo(**DETACHED, name="run", output_dir=tmp_path, engine="vllm")
    assert not list(tmp_path.iterdir())
    with pytest.raises(SettingError, match=missing):
        check_there(load_run_config(**DETACHED, engine="vllm"))  # which comes before torch is imported


def test_that_it_does_not_load_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(SettingError, match=r"vLLM is installed, and does not load: ImportError: libcudart\.so\.13"):
        recipes.grpo(**DETACHED, name="run", output_dir=tmp_path, engine="vllm")
    assert not (tmp_path / "run").exists()


def test_options_are_handed_on_where_they_are_set() -> None:
    section = {"kind": "vllm", "slots": 3, "options": {"tensor_parallel_size": 2}}
    config = load_run_config(**DETACHED, engine=section)
    assert config.engine.settings() == {"slots": 3, "options": {"tensor_parallel_size": 2}}
    assert load_run_config(**DETACHED, engine="vllm").engine.settings() == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tensor_paralel_size": 2}, "vLLM has no argument 'tensor_paralel_size'; did you mean 'tensor_parallel_size'"),
        ({"seed": 2}, "'seed' is not yours to set: each request has its own"),
        ({"max_loras": 1}, "'max_loras' is not yours to set: two adapters are held"),
        ({"model": "x"}, "'model' is not yours to set"),
        ([("block_size", 32)], "are vLLM's arguments by name, not"),
    ],
)
def test_options_that_vllm_has_not_are_refused(options: Any, said: str) -> None:
    check_options({"block_size": 32}, KNOWN)
    with pytest.raises(SettingError, match=said):
        check_options(options, KNOWN)


def test_the_cache_is_sized_once() -> None:
    check_sizes({"gpu_memory_utilization": 0.5}, slots=0, cache_tokens=0)
    with pytest.raises(SettingError, match=r"engine.cache_tokens and engine.options.gpu_memory_utilization both size"):
        check_sizes({"gpu_memory_utilization": 0.5}, slots=0, cache_tokens=10)


def output(tokens: list[int], log_probs: list[float], reason: str | None) -> Any:
    """As vLLM's, as far as it is read."""
    of_tokens = [{token: SimpleNamespace(logprob=one)} for token, one in zip(tokens, log_probs, strict=True)]
    completion = SimpleNamespace(token_ids=tokens, logprobs=of_tokens, finish_reason=reason)
    return SimpleNamespace(request_id="a", outputs=[completion])


def test_what_vllm_says_is_progress() -> None:
    progress = step_output(output([3, 4], [-0.5, -1.0], "stop")).progress(7)
    assert (progress.id, progress.tokens, progress.log_probs) == ("a", (3, 4), (-0.5, -1.0))
    assert (progress.version, progress.finish_reason) == (7, "stop")
    assert step_output(output([3], [-0.5], None)).progress(7).finish_reason is None
    with pytest.raises(FloatingPointError, match="damaged"):
        step_output(output([3], [float("nan")], None)).progress(7)
    with pytest.raises(RuntimeError, match="a reason of its own: abort"):
        step_output(output([3], [-0.5], "abort"))


def test_two_that_start_vllm_at_once_leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits, and must not take what the first has changed for what was there before."""
    turn, unset = WatchedLock(), []

    def start() -> None:
        with core.undisturbed():
            pass

    second = threading.Thread(target=start)
    monkeypatch.setattr(core, "TURN", turn)
    monkeypatch.setattr(os, "unsetenv", lambda name: unset.append(os.fsdecode(name)))
    before = dict(os.environ), torch.get_default_dtype(), torch.set_num_threads
    with core.undisturbed():
        torch.set_default_dtype(torch.bfloat16)  # all this is what vLLM does
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
        os.environ["OF_VLLM"] = "1"
        second.start()
        assert turn.is_wanted.wait(60)
    second.join()
    assert (dict(os.environ), torch.get_default_dtype(), torch.set_num_threads) == before
    assert "PATH" not in unset  # other threads start processes meanwhile
