"""Environments of other libraries, with the libraries themselves.

`python tests/adapters/run.py`, a part of `make prove`, makes an environment that has them.
"""

import importlib.util
import socket
import subprocess
import sys
import time

import pytest
from tests.environments.helpers import play

from proa.environments import EnvironmentFailed, EnvironmentSource, Step

missing = [
    name for name in ("skyrl_gym", "gymnasium", "textarena", "openenv") if importlib.util.find_spec(name) is None
]
pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: python tests/adapters/run.py"),
]


def told(text):
    return [{"role": "user", "content": text}]


def test_the_real_skyrl_gym():
    path = "skyrl_gym.envs.gsm8k.multi_turn_env:GSM8kMultiTurnEnv"
    row = {"prompt": "1+1?", "reward_spec": {"ground_truth": "2"}, "extra_info": {"max_turns": 2}}
    _, (first, last) = play(path, "3", "#### 2", row=row)
    assert (first.done, last.reward, last.done) == (False, 1.0, True)
    assert "#### ANSWER" in first.messages[0]["content"]


def test_the_real_gymnasium():
    source = EnvironmentSource.load(environment="gymnasium:make", params={"id": "FrozenLake-v1"})
    assert source.name == "make"
    with pytest.raises(EnvironmentFailed, match=r"its actions are Discrete\(4\)"):
        play("gymnasium:make", "left", params={"id": "FrozenLake-v1"})
    start, steps = play("tests.adapters.real_gymnasium:Letters", "b", "a")
    assert start == told("Begin.\n\nType a.")
    assert steps == [Step(told("No."), reward=0.0), Step(told("Yes."), reward=1.0, done=True)]


def test_the_real_textarena():
    start, steps = play("textarena:make", "[50]", params={"env_id": "GuessTheNumber-v0"}, row={})
    assert "guess" in start[0]["content"].lower()
    assert not steps[0].done
    assert steps[0].messages


@pytest.fixture
def echo_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n"
         f"from tests.adapters.real_openenv import serve; serve({port})"],
    )  # fmt: skip
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert time.monotonic() < until
            assert server.poll() is None
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait(20)


def test_the_real_openenv(echo_server):
    params = {"base_url": echo_server}
    start, steps = play("tests.adapters.real_openenv:EchoClient", "hello", "bye", params=params)
    assert start == told("Begin.\n\nready 1")
    assert steps == [Step(told("hello"), reward=0.5), Step(told("bye"), reward=0.5, done=True)]
    _, steps = play("tests.adapters.real_openenv:sync_client", "bye", params=params)
    assert steps == [Step(told("bye"), reward=0.5, done=True)]
    generic = params | {"action": "message", "observation": "echoed"}
    _, steps = play("openenv.core:GenericEnvClient", "hello", params=generic)
    assert steps == [Step(told("hello"), reward=0.5)]
