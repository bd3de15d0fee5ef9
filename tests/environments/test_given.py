"""What a user gives: recognised, or refused before anything runs, in the user's words."""

import asyncio
import functools
import threading

import pytest
from tests.environments import sources
from tests.environments.helpers import one_step, play, pool_of, said, text_of

from proa.environments import EnvironmentSource, ToolEnvironment
from proa.errors import SettingError


async def an_agent(base_url, api_key, row):
    return 1.0


class Misspelt:
    def rest(self, row, *, seed): ...

    def step(self, message): ...


class NoSeed:
    def reset(self, row): ...

    def step(self, message): ...


class NoMessage(sources.Obedient):
    def step(self): ...


class NoTools:
    def reset(self, **row): ...


class HasALock(sources.Obedient):
    def __init__(self):
        self.lock = threading.Lock()


OBEDIENT = "tests.environments.sources:Obedient"
REFUSED = {
    "nothing is given: give tools, an environment or an agent": {},
    "tools and agent are given": {"tools": [sources.add], "agent": an_agent},
    "environment.params are given, and no environment: a": {"tools": [sources.add], "params": {"a": 1}},
    "write a list, [<function add": {"tools": sources.add},
    "write a list, ['tests.environments.sources:add']": {"tools": "tests.environments.sources:add"},
    "tool 'tests.environments.sources:ad': tests.environments.sources has no 'ad'; did you mean 'add'?": {
        "tools": ["tests.environments.sources:ad"]
    },
    "3 is not a tool: give a typed function": {"tools": [3]},
    "is not a tool: give a typed function, a method": {"tools": [ToolEnvironment]},
    "environment 'tests.environments.sources:Obedien': tests.environments.sources has no 'Obedien'; did you mean": {
        "environment": "tests.environments.sources:Obedien"
    },
    "Misspelt is not an environment: it has no method 'reset'; did you mean 'rest'?": {"environment": Misspelt},
    "NoSeed.reset takes (self, row): write reset(self, row, *, seed)": {"environment": NoSeed},
    "NoMessage.step takes (self): write step(self, message)": {"environment": NoMessage},
    "NoTools has no tools: write public methods": {"environment": NoTools},
    "environment.params: Obedient has no parameter 'on_stat'; did you mean 'on_start'?": {
        "environment": OBEDIENT,
        "params": {"on_stat": "x"},
    },
    "environment.params on_start are for a class": {
        "environment": sources.Obedient(),
        "params": {"on_start": "nothing"},
    },
    "this HasALock cannot be copied": {"environment": HasALock()},
    "agent 'add' must take (base_url, api_key, row)": {"agent": sources.add},
    "is not an agent: write a function agent(base_url, api_key, row)": {"agent": 3},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_work_is_refused_with_what_to_write(words):
    with pytest.raises(SettingError) as refused:
        EnvironmentSource.load(**REFUSED[words])
    assert words in str(refused.value)


def make_obedient(on_start="nothing"):
    return sources.Obedient(on_start)


@pytest.mark.parametrize(
    "given",
    [
        {"environment": OBEDIENT},
        {"environment": sources.Obedient, "params": {"on_start": "x"}},
        {"environment": sources.Obedient("x")},
        {"environment": make_obedient, "params": {"on_start": "x"}},
        {"environment": functools.partial(make_obedient, on_start="x")},
    ],
    ids=["path", "class", "object", "factory", "partial"],
)
def test_an_environment_is_a_class_an_object_or_a_factory(given):
    _, (step,) = play(given["environment"], "go", params=given.get("params"))
    assert text_of(step) == "did go"


class Notes(list):
    """An object with a state."""

    def reset(self, row, *, seed):
        self.append(row["prompt"])

    def step(self, message):
        self.append(message["content"])
        return ",".join(self)

    def close(self):
        pass


def test_each_trajectory_has_a_copy_of_an_object():
    with pool_of(Notes(["first"])) as pool:
        found = [text_of(asyncio.run(one_step(pool, said(text)))) for text in "ab"]
    assert found == ["first,Begin.,a", "first,Begin.,b"]


def random_tool(a: int) -> int:
    """Guess.

    Args:
        a: at most
    """


random_tool.deterministic = False


def seeded_agent(base_url, api_key, row): ...


seeded_agent.deterministic = True


class Random(sources.Obedient):
    deterministic = False


@pytest.mark.parametrize(
    ("given", "deterministic"),
    [
        ({"tools": [sources.add]}, True),
        ({"tools": [sources.add, random_tool]}, False),
        ({"environment": sources.Obedient}, True),
        ({"environment": Random}, False),
        ({"environment": Random()}, False),
        ({"agent": an_agent}, False),
        ({"agent": seeded_agent}, True),
    ],
)
def test_who_answers_the_same_each_time_says_so(given, deterministic):
    source = EnvironmentSource.load(**given)
    assert source.deterministic is deterministic
    assert pool_of(**given).deterministic is deterministic
