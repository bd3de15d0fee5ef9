"""Environments of other libraries: recognised by their methods, with stand-ins, and with the libraries themselves where
they are installed."""

import importlib.util
import socket
import subprocess
import sys
import time

import pytest
from tests.environments import others
from tests.environments.helpers import play

from proa.environments import EnvironmentFailed, EnvironmentSource, Step
from proa.environments.adapters import (
    GymnasiumEnvironment,
    OpenEnvEnvironment,
    SkyRLEnvironment,
    TextArenaEnvironment,
    adapter_of,
)

ROW = {"prompt": "Play."}


def installed(name):
    try:
        found = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    return pytest.mark.skipif(not found, reason=f"the package {name!r} is not installed")


def told(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        (others.EchoClient, OpenEnvEnvironment),
        (others.SyncEchoClient, OpenEnvEnvironment),
        (others.GenericClient, OpenEnvEnvironment),
        (others.Sums, SkyRLEnvironment),
        (others.Guess, GymnasiumEnvironment),
        (others.OldGuess, GymnasiumEnvironment),
        (others.Game, TextArenaEnvironment),
        (OpenEnvEnvironment, None),
    ],
)
def test_environments_of_other_libraries_are_recognised(kind, adapter):
    assert adapter_of(kind) is adapter


@pytest.mark.parametrize("client", [others.EchoClient, others.SyncEchoClient])
def test_a_client_of_openenv_takes_the_models_text_as_the_one_field_of_its_action(client):
    start, steps = play(client, "hello", "bye", params={"base_url": "ws://here"})
    assert start == told("Begin.\n\nws://here 1")
    assert steps == [Step(told("hello"), reward=0.5), Step(told("bye"), reward=0.5, done=True)]


def test_actions_and_observations_of_openenv_are_named_where_they_are_not_clear():
    params = {"base_url": "ws://here", "seeded": False}
    start, steps = play(others.GenericClient, "hello", params=params | {"action": "message", "observation": "echoed"})
    assert (start, steps) == (told("Begin.\n\nws://here None"), [Step(told("hello"), reward=0.5)])
    _, steps = play(others.GenericClient, '{"message": "hello"}', params=params)
    assert steps == [Step(told("hello"), reward=0.5)]
    with pytest.raises(EnvironmentFailed, match=r"name the field that takes the text, environment.params: \{action: "):
        play(others.GenericClient, "hello", params=params)


def test_an_environment_of_skyrl_gets_the_row_as_its_extras():
    row = {"prompt": [{"role": "user", "content": "1+1?"}], "reward_spec": {"ground_truth": "2"}}
    start, steps = play(others.Sums, "3", "2", row=row, params={"env_config": None})
    assert start == row["prompt"]
    assert steps == [Step(told("Try again."), reward=0.0), Step([], reward=1.0, done=True)]
    _, steps = play(others.Sums, "3", row=row, params={"extras": {"max_turns": 1}})
    assert steps == [Step([], reward=0.0, done=True)]


def test_a_classic_text_environment_takes_and_gives_text():
    start, steps = play(others.Guess, "3", "7", seed=17)
    assert start == told("Begin.\n\nGuess a digit.")
    assert steps == [Step(told("Wrong."), reward=0.0), Step(told("Right!"), reward=1.0, done=True)]
    _, steps = play(others.Guess, "3", row=ROW | {"number": 3})
    assert steps[0].done
    assert play(others.OldGuess, "7")[1] == [Step(told("Right!"), reward=1.0, done=True)]


def test_an_environment_whose_actions_are_numbers_is_refused():
    with pytest.raises(EnvironmentFailed, match="a model's are texts: write an environment with step"):
        play(others.Lake, "left")


def test_a_game_of_textarena_gives_its_reward_at_the_end():
    start, steps = play(others.Game, "[3]", "[7]", row={})
    assert start == told("[GAME] Seed 1.")
    assert steps == [Step(told("[GAME] You said [3].")), Step([], reward=1.0, done=True)]
    assert not EnvironmentSource.load(environment=others.Game).deterministic


@installed("skyrl_gym")
def test_the_real_skyrl_gym():
    path = "skyrl_gym.envs.gsm8k.multi_turn_env:GSM8kMultiTurnEnv"
    row = {"prompt": "1+1?", "reward_spec": {"ground_truth": "2"}, "extra_info": {"max_turns": 2}}
    _, (first, last) = play(path, "3", "#### 2", row=row)
    assert (first.done, last.reward, last.done) == (False, 1.0, True)
    assert "#### ANSWER" in first.messages[0]["content"]


@installed("gymnasium")
def test_the_real_gymnasium():
    source = EnvironmentSource.load(environment="gymnasium:make", params={"id": "FrozenLake-v1"})
    assert source.name == "make"
    with pytest.raises(EnvironmentFailed, match=r"its actions are Discrete\(4\)"):
        play("gymnasium:make", "left", params={"id": "FrozenLake-v1"})
    start, steps = play("tests.environments.real_gymnasium:Letters", "b", "a")
    assert start == told("Begin.\n\nType a.")
    assert steps == [Step(told("No."), reward=0.0), Step(told("Yes."), reward=1.0, done=True)]


@installed("textarena")
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
         f"from tests.environments.real_openenv import serve; serve({port})"],
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


@installed("openenv")
def test_the_real_openenv(echo_server):
    params = {"base_url": echo_server}
    start, steps = play("tests.environments.real_openenv:EchoClient", "hello", "bye", params=params)
    assert start == told("Begin.\n\nready 1")
    assert steps == [Step(told("hello"), reward=0.5), Step(told("bye"), reward=0.5, done=True)]
    _, steps = play("tests.environments.real_openenv:sync_client", "bye", params=params)
    assert steps == [Step(told("bye"), reward=0.5, done=True)]
    generic = params | {"action": "message", "observation": "echoed"}
    _, steps = play("openenv.core:GenericEnvClient", "hello", params=generic)
    assert steps == [Step(told("hello"), reward=0.5)]
