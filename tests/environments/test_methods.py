"""Classes as TRL's `environment_factory` takes them: methods are tools, `reset(**row)`, `get_reward()` at the end."""

import asyncio

import pytest
from tests.environments.helpers import called, pool_of, said
from tests.environments.sources import Silent, Wordle

from proa.environments import EnvironmentFailed, EnvironmentSource, Step
from proa.environments.methods import MethodTools, method_names

WORDLE = "tests.environments.sources:Wordle"
ROW = {"prompt": [{"role": "user", "content": "Play."}], "word": "ocean", "hint": " It is wet."}


def test_the_tools_are_those_that_trl_finds():
    import inspect

    found = [
        name
        for name, _ in inspect.getmembers(Wordle, predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    ]
    assert method_names(Wordle) == found == ["guess", "look"]


def test_a_class_for_trl_works_as_it_is():
    async def trajectory(pool):
        surroundings = await pool.begin(ROW, seed=1)
        assert surroundings.start.messages == [{"role": "user", "content": "Play. It is wet."}]
        assert [tool["function"]["name"] for tool in surroundings.start.tools] == ["guess", "look"]
        first = await surroundings.step(called(None, tool="guess", word="ocelo"))
        assert [message["content"] for message in first.messages] == ["1: ===.."]
        wrong = await surroundings.step(called(None, tool="guess", word="sea"))
        assert wrong.messages[0]["content"].startswith("Error: ValueError: five letters")
        assert (wrong.tool_calls, wrong.tool_errors, wrong.done, wrong.reward) == (1, 1, False, None)
        await surroundings.step(called(None, tool="guess", word="ocean"))
        assert await surroundings.step(said("It is ocean.")) == Step([], reward=1.0, done=True)
        assert await surroundings.final_reward() is None  # it is asked once
        await surroundings.close()

    with pool_of(WORDLE, params={"most": 5}) as pool:
        asyncio.run(trajectory(pool))


def test_the_reward_of_a_trajectory_that_ends_otherwise_is_asked_for():
    async def trajectory(pool):
        surroundings = await pool.begin(ROW, seed=1)
        await surroundings.step(called(None, tool="guess", word="ocean"))
        return await surroundings.final_reward()

    with pool_of(WORDLE) as pool:
        assert asyncio.run(trajectory(pool)) == 1.0
    with pool_of("tests.environments.sources:Obedient") as pool:

        async def rewards_steps():
            return await (await pool.begin(ROW, seed=1)).final_reward()

        assert asyncio.run(rewards_steps()) is None


def test_calls_of_sync_methods_are_made_in_order_and_of_async_ones_after_them():
    calls = [("look", {"place": 0}), ("guess", {"word": "aaaaa"}), ("guess", {"word": "bbbbb"}), ("look", {"place": 1})]
    message = said("") | {"tool_calls": [{"function": {"name": name, "arguments": given}} for name, given in calls]}

    async def trajectory():
        wordle = Wordle()
        environment = MethodTools(wordle)
        await environment.reset(ROW, seed=1)
        return await environment.step(message)

    step = asyncio.run(trajectory())
    assert [one["content"] for one in step.messages] == ["2 guesses, o", "1: ...=.", "2: .....", "2 guesses, c"]


def test_reset_gets_the_columns_that_it_names_or_all():
    async def columns(instance):
        await MethodTools(instance).reset(ROW, seed=1)
        return instance

    assert asyncio.run(columns(Wordle())).columns == ["hint", "prompt", "word"]
    assert asyncio.run(columns(Silent())).prompt == ROW["prompt"]


def test_without_a_reward_of_its_own_a_class_gives_none():
    async def trajectory():
        environment = MethodTools(Silent())
        await environment.reset(ROW, seed=1)
        return await environment.step(said("done"))

    assert asyncio.run(trajectory()) == Step(done=True)


def test_a_row_without_a_prompt_begins_with_what_reset_says():
    async def trajectory():
        return await MethodTools(Wordle()).reset({"hint": "Guess a word."}, seed=1)

    assert asyncio.run(trajectory()).messages == [{"role": "user", "content": "Guess a word."}]


class BadReward(Wordle):
    def get_reward(self):
        return "high"


class BrokenGrader(Wordle):
    def get_reward(self):
        raise KeyError("answer")


@pytest.mark.parametrize(
    ("kind", "words"),
    [(BadReward, "get_reward returned the reward 'high'"), (BrokenGrader, "get_reward raised KeyError: 'answer'")],
)
@pytest.mark.parametrize("is_done", [True, False])
def test_a_reward_that_is_not_to_be_had_is_a_graders_failure_in_words(kind, words, is_done):
    async def trajectory(pool):
        surroundings = await pool.begin(ROW, seed=1)
        await (surroundings.step(said("done")) if is_done else surroundings.final_reward())

    with pool_of(kind) as pool, pytest.raises(EnvironmentFailed, match=words) as caught:
        asyncio.run(trajectory(pool))
    assert caught.value.ending == "grader_failed"


def test_its_methods_are_described_once_where_it_is_given():
    source = EnvironmentSource.load(environment=Wordle)
    assert [schema["function"]["name"] for schema in source.recipe.schemas] == ["guess", "look"]
