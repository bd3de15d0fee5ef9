"""Environments of other libraries: recognised by their methods, with stand-ins; tests/adapters has the libraries
themselves."""

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
