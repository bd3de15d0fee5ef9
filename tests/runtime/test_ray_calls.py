"""Calls to actors that do not reply: how long each is waited for, and what is raised."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

import ray

from proa.runtime.ray import calls


def silent_actor(monkeypatch, clock):
    """Its calls time out, each after as long as it is waited for."""
    waits = []

    def get(reference, timeout):
        waits.append(timeout)
        clock.now += timeout
        raise ray.exceptions.GetTimeoutError("no reply")

    monkeypatch.setattr(calls.ray, "get", get)
    monkeypatch.setattr(calls, "monotonic", lambda: clock.now)
    monkeypatch.setattr(calls.time, "sleep", lambda seconds: None)
    return SimpleNamespace(remote=lambda *arguments: None), waits


@pytest.mark.parametrize(("seconds", "expected"), [(10.0, [10.0]), (70.0, [30.0, 30.0, 10.0])])
def test_a_call_is_waited_for_as_long_as_was_said_and_no_longer(monkeypatch, seconds, expected):
    method, waits = silent_actor(monkeypatch, SimpleNamespace(now=100.0))
    with pytest.raises(calls.UnreachableError, match=f"maker_0 has not replied for {seconds:g} s"):
        calls.request(method, who="maker_0", seconds=seconds)
    assert waits == expected
