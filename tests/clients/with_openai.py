"""What the package `openai` gets from a served model: one JSON object, for the test to read."""

import asyncio
import json
import sys
from pathlib import Path

from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, OpenAI

ROWS = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up the number of a word.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
SETTINGS = {"model": "small", "temperature": 0, "max_tokens": 8}
client = OpenAI()


def whole(row):
    answer = client.chat.completions.create(messages=row["prompt"], **SETTINGS)
    return answer.choices[0].message.content


def streamed(row):
    chunks = client.chat.completions.create(messages=row["prompt"], stream=True, **SETTINGS)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def at_once():
    async with AsyncOpenAI() as own:

        async def one(row):
            answer = await own.chat.completions.create(messages=row["prompt"], **SETTINGS)
            return answer.choices[0].message.content

        async def one_streamed(row):
            stream = await own.chat.completions.create(messages=row["prompt"], stream=True, **SETTINGS)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        return await asyncio.gather(*map(one, ROWS)), await asyncio.gather(*map(one_streamed, ROWS))


def called(row):
    """The calls of a conversation with a tool, the tool's answer, and what the model says then."""
    answer = client.chat.completions.create(messages=row["prompt"], tools=[TOOL], **SETTINGS)
    message = answer.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    told = [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in message.tool_calls or ()]
    history = [*row["prompt"], message.model_dump(exclude_none=True), *told]
    then = client.chat.completions.create(messages=history, tools=[TOOL], **SETTINGS)
    chunks = client.chat.completions.create(messages=row["prompt"], tools=[TOOL], stream=True, **SETTINGS)
    pieces = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    return {
        "calls": calls, "finish_reason": answer.choices[0].finish_reason, "then": then.choices[0].finish_reason,
        "streamed": [(piece.function.name, piece.function.arguments) for piece in pieces],
    }  # fmt: skip


def refused(error, make):
    try:
        make()
    except error as raised:
        return raised.message
    return "not refused"


def main():
    together, together_streamed = asyncio.run(at_once())
    completed = client.completions.create(
        model="small", prompt=[f"<user>{row['word']}<end><assistant>" for row in ROWS], temperature=0, max_tokens=8,
        logprobs=0, extra_body={"return_token_ids": True},
    )  # fmt: skip
    seeded = [
        client.chat.completions.create(model="small", messages=ROWS[0]["prompt"], max_tokens=8, seed=3) for _ in "ab"
    ]
    first = ROWS[0]["prompt"]
    print(
        json.dumps(
            {
                "models": [model.id for model in client.models.list()],
                "whole": [whole(row) for row in ROWS],
                "streamed": [streamed(row) for row in ROWS],
                "async": together,
                "async_streamed": together_streamed,
                "completed": [choice.text for choice in completed.choices],
                "lengths": [(len(c.token_ids), len(c.logprobs.token_logprobs)) for c in completed.choices],
                "seeded": [answer.choices[0].message.content for answer in seeded],
                "called": [called(row) for row in ROWS],
                "wrong key": refused(AuthenticationError, lambda: OpenAI(api_key="wrong").models.list()),
                "wrong model": refused(
                    NotFoundError, lambda: client.chat.completions.create(model="smal", messages=first)
                ),
                "wrong value": refused(
                    BadRequestError, lambda: client.chat.completions.create(model="small", messages=first, top_p=2)
                ),
            }
        )
    )


main()
