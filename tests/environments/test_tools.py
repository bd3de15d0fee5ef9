"""The environment of tools: what a model is told of them, calls that cannot be made, answers in order."""

import asyncio
import functools
import threading
from typing import Literal

import pytest
from tests.environments.helpers import ROW, said
from tests.environments.sources import add

from proa.environments import Step, ToolEnvironment
from proa.environments.schemas import fault_of_arguments, tool_schema
from proa.errors import SettingError


def calling(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}} | more


def step(tools, *calls):
    return asyncio.run(ToolEnvironment(tools).step({"role": "assistant", "content": "", "tool_calls": list(calls)}))


def test_a_tool_is_described_as_transformers_does():
    from transformers.utils import get_json_schema

    assert tool_schema(add) == get_json_schema(add)


class Counter:
    """Counts."""

    def __init__(self):
        self.count = 0

    def more(self, by: int) -> int:
        """Count on.

        Args:
            by: how many
        """
        self.count += by
        return self.count

    async def later(self, by: int) -> int:
        """Count on, later.

        Args:
            by: how many
        """
        await asyncio.sleep(0)
        return self.more(by)

    def __call__(self, by: int) -> int:
        """Count on, when called.

        Args:
            by: how many
        """
        return self.more(by)


def test_methods_objects_partial_and_async_functions_are_tools():
    counter = Counter()
    tools = [counter.more, counter.later, counter, functools.partial(add, b=10)]
    environment = ToolEnvironment(tools)
    start = environment.reset(ROW, seed=1)
    assert [tool["function"]["name"] for tool in start.tools] == ["more", "later", "Counter", "add"]
    assert start.tools[3]["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "the first"}},
        "required": ["a"],
    }
    found = step(tools, calling("more", {"by": 1}), calling("add", {"a": 1}))
    assert [message["content"] for message in found.messages] == ["1", "11"]
    found = step(tools, calling("later", {"by": 1}))
    found = step(tools, calling("Counter", {"by": 1}))
    assert [message["content"] for message in found.messages] == ["3"]


def test_a_message_without_calls_ends_the_trajectory():
    assert asyncio.run(ToolEnvironment([add]).step(said("4"))) == Step(done=True)


def test_calls_that_cannot_be_made_are_answered_in_order_and_counted():
    found = step(
        [add],
        calling("add", {"a": 1, "b": 2}, id="call_1"),
        calling("ad", {"a": 1}),
        calling("multiply", {"a": 1}),
        calling("add", {"a": "1"}),
        calling("add", {}),
        calling("add", {"a": 1, "c": 2}),
        calling("", {}, error="is not valid JSON: Expecting value at character 9"),
    )
    assert [message["content"] for message in found.messages] == [
        "3",
        "Error: there is no tool 'ad'; did you mean 'add'?",
        "Error: there is no tool 'multiply' (there are: add)",
        "Error: add: 'a' must be an integer, not '1'",
        "Error: add: the argument 'a' is missing",
        "Error: add: there is no argument 'c'; did you mean 'a' or 'b'?",
        "Error: the call is not valid JSON: Expecting value at character 9",
    ]
    assert (found.tool_calls, found.tool_errors, found.done) == (7, 6, False)
    assert found.messages[0] == {"role": "tool", "name": "add", "content": "3", "tool_call_id": "call_1"}


def test_the_calls_of_a_message_run_at_the_same_time():
    barrier = threading.Barrier(2)

    def meet(name: str) -> str:
        """Wait for another.

        Args:
            name: whose
        """
        barrier.wait(120)
        return name

    found = step([meet], calling("meet", {"name": "a"}), calling("meet", {"name": "b"}))
    assert [message["content"] for message in found.messages] == ["a", "b"]


def test_types_of_arguments_are_checked_as_json_has_them():
    def tool(
        count: int,
        ratio: float = 0.5,
        names: list[str] | None = None,
        sizes: dict[str, int] | None = None,
        where: int | str = 0,
        is_sure: bool = False,
        color: Literal["red", "green"] = "red",
    ) -> str:
        """Do it.

        Args:
            count: how many
            ratio: of what
            names: whose
            sizes: how large
            where: at
            is_sure: whether
            color: which
        """

    schema = tool_schema(tool)["function"]["parameters"]
    for fine in (
        {"count": 1},
        {"count": 3.0},
        {"count": 1, "ratio": 2, "names": None, "where": "x", "sizes": {"a": 1}},
    ):
        assert fault_of_arguments(fine, schema) == ""
    faults = {
        "'count' must be an integer, not True": {"count": True},
        "'count' must be an integer, not 1.5": {"count": 1.5},
        "'ratio' must be a number, not '0.5'": {"ratio": "0.5"},
        "'names' must be a list or null, not 'a'": {"names": "a"},
        "'names'[1] must be a string, not 2": {"names": ["a", 2]},
        "'sizes'['a'] must be an integer, not 'b'": {"sizes": {"a": "b"}},
        "'where' must be an integer or a string, not []": {"where": []},
        "'is_sure' must be a boolean, not 1": {"is_sure": 1},
        "'color' must be one of 'red', 'green', not 'blue'": {"color": "blue"},
    }
    for fault, arguments in faults.items():
        assert fault_of_arguments({"count": 1} | arguments, schema) == fault


def no_docstring(a: int) -> int: ...


def no_type(a) -> int:
    """Add.

    Args:
        a: the first
    """


def no_description(a: int) -> int:
    """Add."""


def takes_anything(**numbers: int) -> int:
    """Add.

    Args:
        numbers: which
    """


def odd_type(a: "Unheard") -> int:  # noqa: F821
    """Add.

    Args:
        a: the first
    """


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (no_docstring, "tool 'no_docstring' has no docstring"),
        (no_type, "tool 'no_type': parameter 'a' has no type: write 'a: int'"),
        (
            no_description,
            "parameter 'a' is not described in the docstring: write, in a section 'Args:', the line '    a:",
        ),
        (takes_anything, "takes '**numbers', and a model can only give arguments that have a name"),
        (odd_type, "tool 'odd_type' cannot be described to a model: name 'Unheard' is not defined"),
    ],
)
def test_a_tool_that_cannot_be_described_says_what_to_write(tool, words):
    with pytest.raises(SettingError) as refused:
        ToolEnvironment([tool])
    assert words in str(refused.value)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(SettingError, match="two tools have the same name, 'add': rename one of them"):
        ToolEnvironment([add, functools.partial(add)])


def test_a_subclass_gives_rewards_where_the_model_answers():
    class Sums(ToolEnvironment):
        def __init__(self):
            super().__init__([add])

        async def step(self, message):
            step = await super().step(message)
            return Step(reward=float(message["content"] == "4"), done=True) if step.done else step

    assert asyncio.run(Sums().step(said("4"))) == Step(reward=1.0, done=True)
