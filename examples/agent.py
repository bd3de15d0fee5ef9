"""An agent of one's own, written with the `openai` package, whose model is trained while it works.

    python examples/agent.py [--steps 150]

The agent knows nothing of training: it has an address and a key, and talks to a chat model with a tool. Each of its
conversations has a session of its own at the maker's endpoint, where every turn is recorded as it was sampled. The task
is that of tools.yaml, learned from nothing; model and tokenizer are made from configuration.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from proa.tasks.builtin.look_up import Book, reward

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up the number of a word.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
connections: list[DefaultAsyncHttpxClient] = []
"""One for all conversations: to make one takes longer than a turn."""


async def agent(base_url: str, api_key: str, row: Mapping[str, Any]) -> None:
    """Ask, look up what the model wants to know, and ask again; what that was worth, the reward function says."""
    if not connections:
        connections.append(DefaultAsyncHttpxClient())
    book = Book()
    book.reset(row["key"], row["answer"])
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=connections[0])
    messages: Any = list(row["prompt"])
    for _ in range(2):
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            assert call.type == "function"
            key = json.loads(call.function.arguments).get("key", "")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": book.look_up(str(key))})
        if not message.tool_calls:
            return


agent.deterministic = True  # type: ignore[attr-defined]  # the same answers each time: a run gives the same weights twice


def main(steps: int, output_dir: Path | str = "runs", *, seed: int = 0) -> float:
    """The mean reward at the end."""
    from proa.recipes import grpo  # not where agents work: it would be loaded in their processes too

    state = grpo(
        "examples/tools.yaml",
        name="agent",
        output_dir=str(output_dir),
        seed=seed,
        total_steps=steps,
        environment={"path": None, "max_turns": 2, "workers": 1},
        agent="examples.agent:agent",
        reward={"functions": reward, "workers": 0},
        eval=[],
    )
    return float(state.metrics["reward"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An agent whose model is trained while it works.")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    print(f"reward at the end: {main(options.steps):.2f}")
