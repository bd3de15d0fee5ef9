"""Trajectories of agents: what rewards and hooks are told of them."""

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
    """An agent that asks once, with a tool."""

    deterministic = True

    async def run_agent(self, base_url, api_key, row, *, timeout, alone=False):
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}, timeout=timeout) as client:
            body = {"messages": ASKED, "tools": [ADD]}
            (await client.post(f"{base_url}/chat/completions", json=body)).raise_for_status()


def test_arguments_of_calls_are_values_for_rewards_and_hooks_as_those_of_tools_are():
    seen = []

    def reward(completions, **_):
        seen.extend(completions)
        return [float(one[-1]["tool_calls"][0]["function"]["arguments"]["a"]) for one in completions]

    sessions = Sessions()
    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    with serving(Speaking(call), model=served_model(WITH_TOOLS), callers=sessions) as served:
        words, sampling = Conversations(byte_tokenizer(CHATML), (END,)), Sampling(1, max_new_tokens=100)
        rollout = AgentRollout(
            words, sampling, Asks(), sessions, served.endpoint,
            limits=Limits(seconds=180), scorer=InlineRewards([reward]),
        )  # fmt: skip
        user = StreamUser(served.stream, "a test", 0, lambda: None)
        [sample] = rollout.run(user, [Prompt(0, (), ASKED, {})], [(1,)], Progress("a test"))
    assert (sample.score.value, sample.facts.ending) == (2.0, "finished")
    [turn] = sample.turn_facts()
    assert turn.message == seen[0][0]
