"""Trajectories of agents: what rewards and hooks are told of them."""

from contextlib import contextmanager

import httpx
from tests.rollouts.talking import CHATML, END, byte_tokenizer
from tests.serving.parts import ADD, ASKED, WITH_TOOLS, Speaking, served_model, serving

from proa.data.lease import Prompt
from proa.data.sampling import Sampling
from proa.rewards import InlineRewards
from proa.rollouts import Conversations, Limits, Progress, StreamUser
from proa.serving import Sessions
from proa.serving.agents import AgentRollout


class Asks:
    """An agent that asks so often, each time on top of what was answered, with a tool."""

    def __init__(self, turns=1, deterministic=True):
        self.turns, self.deterministic = turns, deterministic

    async def run_agent(self, base_url, api_key, row, *, timeout, alone=False):
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}, timeout=timeout) as client:
            messages = list(ASKED)
            for _ in range(self.turns):
                answer = await client.post(f"{base_url}/chat/completions", json={"messages": messages, "tools": [ADD]})
                answer.raise_for_status()
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "and then?"}]


@contextmanager
def rollout_of(agents, say, scorer=None):
    """Runs a trajectory of an agent, each time it is called."""
    sessions = Sessions()
    with serving(Speaking(say), model=served_model(WITH_TOOLS), callers=sessions) as served:
        rollout = AgentRollout(
            Conversations(byte_tokenizer(CHATML), (END,)), Sampling(1, max_new_tokens=100), agents, sessions,
            served.endpoint, limits=Limits(seconds=180), scorer=scorer,
        )  # fmt: skip
        user = StreamUser(served.stream, "a test", 0, lambda: None)
        yield lambda: rollout.run(user, [Prompt(0, (), ASKED, {})], [(1,)], Progress("a test"))


def test_an_agent_that_does_the_same_again_has_the_same_journal():
    with rollout_of(Asks(turns=2, deterministic=False), "4") as run:
        [first], [second] = run(), run()
    assert first.facts.answers == second.facts.answers
    assert [turn["continues"] for turn in first.facts.answers[:-1]] == ["", "0"]


def test_arguments_of_calls_are_values_for_rewards_and_hooks_as_those_of_tools_are():
    seen = []

    def reward(completions, **_):
        seen.extend(completions)
        return [float(one[-1]["tool_calls"][0]["function"]["arguments"]["a"]) for one in completions]

    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    with rollout_of(Asks(), call, InlineRewards([reward])) as run:
        [sample] = run()
    assert (sample.score.value, sample.facts.ending) == (2.0, "finished")
    [turn] = sample.turn_facts()
    assert turn.message == seen[0][0]
