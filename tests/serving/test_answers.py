"""What is answered: the engine's tokens and log-probabilities, the same whole and streamed, alone and in company."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from tests.rollouts.talking import ENDS, byte_model
from tests.serving.parts import ADD, ASKED, KEY, SECONDS, WITH_TOOLS, Speaking, served_model, serving, until

from proa.data.sampling import Sampling
from proa.engines import Request, build_engine, generate
from proa.errors import SettingError

CHAT, COMPLETE, TOKENS = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"


def small_engine():
    torch.set_num_threads(1)
    return build_engine("native", byte_model(), end_ids=ENDS)


@pytest.fixture(scope="module")
def small():
    """A model of random weights: what it says are random bytes."""
    engine = small_engine()
    with serving(engine, model=served_model(ends=ENDS, context_length=engine.context_length)) as served:
        yield served


@pytest.fixture(scope="module")
def speaking():
    engine = Speaking()
    with serving(engine, model=served_model(WITH_TOOLS)) as served:
        served.engine = engine
        yield served


def said_by_the_engine(tokens, seed, **sampling):
    [completion] = generate(small_engine(), [Request("a", tuple(tokens), seed, Sampling(**sampling))])
    return completion


# -- the engine's own ---------------------------------------------------------------------------------


def test_tokens_and_log_probabilities_are_those_of_the_engine(small):
    asked = {"seed": 7, "max_tokens": 12, "temperature": 0.8, "top_k": 40}
    answer = small.answer(
        TOKENS, token_ids=[9, 8, 7], sampling_params={**asked, "logprobs": 0}, return_token_ids=True
    )  # fmt: skip
    [choice] = answer["choices"]
    expected = said_by_the_engine([9, 8, 7], 7, max_new_tokens=12, temperature=0.8, top_k=40)
    assert choice["token_ids"] == expected.tokens.tolist()
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == expected.log_probs.tolist()
    assert [one["token"] for one in choice["logprobs"]["content"]] == [f"token_id:{t}" for t in choice["token_ids"]]
    assert choice["finish_reason"] == expected.finish_reason
    assert answer["prompt_token_ids"] == [9, 8, 7]
    assert answer["usage"]["completion_tokens"] == len(expected)


def test_all_routes_say_the_same_of_the_same_tokens(small):
    chat = small.chat(seed=3, max_tokens=9, logprobs=True, return_token_ids=True)
    prompt = chat["prompt_token_ids"]
    text = small.complete([prompt], seed=3, max_tokens=9, logprobs=0, return_token_ids=True)
    tokens = small.answer(TOKENS, token_ids=prompt, sampling_params={"seed": 3, "max_tokens": 9, "logprobs": 1})
    ids = [answer["choices"][0]["token_ids"] for answer in (chat, text, tokens)]
    assert ids[0] == ids[1] == ids[2]
    assert chat["choices"][0]["message"]["content"] == text["choices"][0]["text"]
    log_probs = [one["logprob"] for one in chat["choices"][0]["logprobs"]["content"]]
    assert log_probs == text["choices"][0]["logprobs"]["token_logprobs"]


def test_echo_gives_the_prompt_with_the_scores_of_the_engine(small):
    answer = small.complete("hello", max_tokens=0, echo=True, logprobs=0, return_token_ids=True)
    [choice] = answer["choices"]
    expected = small_engine().score([choice["prompt_token_ids"]])[0].tolist()
    assert choice["text"] == "hello"
    assert choice["logprobs"]["token_logprobs"] == [None, *expected]
    assert (choice["token_ids"], answer["usage"]["completion_tokens"]) == ([], 0)


def test_echo_says_what_greedy_sampling_would_have_said(small):
    prompt = small.complete("hello", max_tokens=1, temperature=0, return_token_ids=True)
    tokens = [*prompt["choices"][0]["prompt_token_ids"], *prompt["choices"][0]["token_ids"]]
    answer = small.complete([tokens], max_tokens=1, temperature=0, echo=True, logprobs=1,
                            return_tokens_as_token_ids=True)  # fmt: skip
    scores = answer["choices"][0]["logprobs"]
    assert scores["top_logprobs"][0] is None
    for place in range(1, len(tokens)):
        greedy = said_by_the_engine(tokens[:place], 0, max_new_tokens=1, temperature=0).tokens.item()
        assert max(scores["top_logprobs"][place], key=scores["top_logprobs"][place].get) == f"token_id:{greedy}"
        assert f"token_id:{tokens[place]}" in scores["top_logprobs"][place]
    last = scores["top_logprobs"][len(tokens) - 1]
    assert list(last) == [f"token_id:{tokens[-1]}"]  # it was greedy itself


def test_prompts_that_are_scored_together_have_the_scores_of_each_alone_and_their_own_errors():
    batches = []

    class Scores(Speaking):
        def score(self, sequences):
            batches.append([*map(len, sequences)])
            if any(len(tokens) == 13 for tokens in sequences):
                raise SettingError("13 tokens are too many")
            return [torch.full((len(tokens) - 1,), -float(len(tokens))) for tokens in sequences]

    engine = Scores()
    with serving(engine, model=served_model(context_length=20_000)) as served:
        asked = {"max_tokens": 0, "echo": True, "logprobs": 0}
        answer = served.complete([[5] * 3, [5] * 9_000, [5], [5] * 4], **asked)
        scores = [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]]
        assert [(len(one), one[-1]) for one in scores] == [(3, -3.0), (9_000, -9_000.0), (1, None), (4, -4.0)]
        assert batches == [[3], [9_000], [4]]  # 9,000 tokens are scored alone
        with ThreadPoolExecutor(2) as pool:
            good = pool.submit(served.complete, [[5] * 4], **asked)
            status, error = served.refused(COMPLETE, prompt=[[5] * 13], **asked)
        assert (status, error["message"]) == (400, "13 tokens are too many")
        assert good.result()["choices"][0]["logprobs"]["token_logprobs"][-1] == -4.0
        status, _ = served.refused(COMPLETE, prompt=[[5] * 13, [5] * 4], **asked)
        until(lambda: batches[-1] == [4])  # the refusal does not wait for the score of the other prompt
        assert (status, batches[-3:]) == (400, [[13, 4], [13], [4]])


def test_prompts_of_one_request_get_what_each_gets_alone(small):
    together = small.complete(["ab", "cde"], seed=5, max_tokens=8, n=2)["choices"]
    alone = [small.complete(text, seed=5, max_tokens=8, n=2)["choices"] for text in ("ab", "cde")]
    assert [one["text"] for one in together] == [one["text"] for choices in alone for one in choices]
    assert [one["index"] for one in together] == [0, 1, 2, 3]


# -- seeds --------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_bits_alone_and_among_others(small):
    bodies = [
        {"prompt": "ab", "seed": seed, "max_tokens": 16, "logprobs": 0, "return_token_ids": True} for seed in range(24)
    ]
    alone = [small.answer(COMPLETE, **body)["choices"] for body in bodies[:4]]

    async def at_once():
        async with httpx.AsyncClient(
            base_url=small.endpoint.base_url, timeout=SECONDS, headers={"authorization": f"Bearer {KEY}"}
        ) as client:
            return await asyncio.gather(*(client.post("/completions", json=body) for body in bodies))

    together = [response.json()["choices"] for response in asyncio.run(at_once())]
    assert together[:4] == alone
    assert len({str(choices) for choices in together}) > 4


def test_without_a_seed_one_is_drawn_and_can_be_used_again(small):
    drawn = small.complete(max_tokens=9, n=3)
    again = small.complete(max_tokens=9, n=3, seed=drawn["seed"])
    assert [one["text"] for one in drawn["choices"]] == [one["text"] for one in again["choices"]]
    assert small.complete(max_tokens=9)["seed"] != drawn["seed"]


def test_each_of_several_choices_can_be_had_alone_by_its_own_seed(small):
    choices = small.complete(max_tokens=9, n=3, seed=4)["choices"]
    assert choices[0]["seed"] == 4
    assert len({one["text"] for one in choices}) == 3
    for one in choices:
        assert small.complete(max_tokens=9, seed=one["seed"])["choices"][0]["text"] == one["text"]


def test_answers_name_the_version_of_the_weights(small):
    for answer in (small.chat(max_tokens=1), small.complete(max_tokens=1)):
        assert answer["policy_version"] == 0
        assert answer["system_fingerprint"] == "proa-version-0"


# -- streams ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [None, ["\ufffd", "e"]])
def test_a_stream_says_what_the_whole_answer_says(small, stop):
    body = {
        "messages": ASKED,
        "seed": 11,
        "max_tokens": 40,
        "n": 2,
        "logprobs": True,
        "return_token_ids": True,
        "stop": stop,
    }
    whole = small.answer(CHAT, **body)
    events = small.events(CHAT, **body, stream_options={"include_usage": True})
    for choice in whole["choices"]:
        own = [one for event in events for one in event["choices"] if one["index"] == choice["index"]]
        assert "".join(one["delta"].get("content", "") for one in own) == choice["message"]["content"]
        assert [token for one in own for token in one.get("token_ids", [])] == choice["token_ids"]
        shown = [token for one in own if one["logprobs"] for token in one["logprobs"]["content"]]
        assert shown == choice["logprobs"]["content"]
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == [choice["finish_reason"]]
    assert events[-1]["usage"] == whole["usage"]
    assert {event["seed"] for event in events} == {11}


def test_texts_are_streamed_as_they_come(small):
    whole = small.complete("hello", seed=2, max_tokens=30)
    events = small.events(COMPLETE, prompt="hello", seed=2, max_tokens=30)
    assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
    tokens = small.answer(TOKENS, token_ids=[9], sampling_params={"seed": 2, "max_tokens": 30})["choices"][0]
    events = small.events(TOKENS, token_ids=[9], sampling_params={"seed": 2, "max_tokens": 30})
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == tokens["token_ids"]


def test_a_stop_text_is_cut_off_and_so_is_what_may_become_one(speaking):
    speaking.engine.say = "one, two; three"
    assert speaking.complete(stop=["; t", "zzz"])["choices"][0] | {"seed": 0} == {
        "index": 0, "text": "one, two", "logprobs": None, "finish_reason": "stop", "seed": 0,
    }  # fmt: skip
    events = speaking.events(COMPLETE, prompt="ab", stop=["; t", "zzz"])
    assert "".join(event["choices"][0]["text"] for event in events) == "one, two"


def test_a_stop_token_ends_a_completion(small):
    asked = {"seed": 2, "max_tokens": 20, "return_token_ids": True}
    tokens = small.complete(**asked)["choices"][0]["token_ids"]
    stopped = small.complete(**asked, stop_token_ids=[tokens[2]])["choices"][0]
    assert (stopped["token_ids"], stopped["finish_reason"]) == (tokens[: tokens.index(tokens[2]) + 1], "stop")


# -- tools --------------------------------------------------------------------------------------------

CALL = 'Let me add. <tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'


def test_a_call_of_a_tool_is_read_sent_and_rendered_again(speaking):
    speaking.engine.say = CALL
    answer = speaking.chat(tools=[ADD])
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me add."
    assert call["function"] == {"name": "add", "arguments": '{"a": 2, "b": 2}'}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "4"}
    speaking.engine.say = "It is 4."
    again = speaking.chat([*ASKED, choice["message"], result], tools=[ADD])
    assert again["choices"][0]["message"]["content"] == "It is 4."
    assert again["choices"][0]["finish_reason"] == "stop"
    prompt = speaking.model.tokenizer.decode(speaking.engine.submitted[-1].tokens)
    assert '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>' in prompt
    assert "<|im_start|>tool\n4<|im_end|>" in prompt
    assert prompt.startswith("<|im_start|>system\nTools: ")


def test_a_streamed_call_is_the_same_call(speaking):
    speaking.engine.say = CALL
    whole = speaking.chat(tools=[ADD], seed=1)["choices"][0]["message"]
    events = speaking.events(CHAT, messages=ASKED, tools=[ADD], seed=1)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content", "") for delta in deltas) == whole["content"]
    [calls] = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert calls == [{"index": 0, **whole["tool_calls"][0]}]


def test_a_call_that_is_not_valid_stays_text(speaking):
    speaking.engine.say = "<tool_call>add 2 and 2</tool_call>"
    [choice] = speaking.chat(tools=[ADD])["choices"]
    assert choice["finish_reason"] == "stop"
    assert "add 2 and 2" in choice["message"]["content"]
    assert "tool_calls" not in choice["message"]


def test_tools_that_are_not_to_be_called_are_not_looked_for(speaking):
    speaking.engine.say = CALL
    [choice] = speaking.chat(tools=[ADD], tool_choice="none")["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


# -- the rest -----------------------------------------------------------------------------------------


def test_the_model_is_listed(small):
    headers = {"authorization": f"Bearer {KEY}"}
    [card] = small.client.get("/v1/models", headers=headers).json()["data"]
    assert (card["id"], card["max_model_len"]) == ("small", 512)
    assert small.client.get("/v1/models/small", headers=headers).json() == card
    assert small.client.get("/v1/models/big", headers=headers).status_code == 404


def test_health_needs_no_key(small):
    assert small.client.get("/health").json() == {"status": "ok"}


def test_a_message_of_the_assistant_at_the_end_is_continued(speaking):
    speaking.engine.say = " is 4"
    speaking.chat([*ASKED, {"role": "assistant", "content": "2+2"}])
    assert speaking.model.tokenizer.decode(speaking.engine.submitted[-1].tokens).endswith("assistant\n2+2")


def test_a_developer_speaks_as_the_system(speaking):
    speaking.chat([{"role": "developer", "content": "Be brief."}, *ASKED])
    assert "<|im_start|>system\nBe brief." in speaking.model.tokenizer.decode(speaking.engine.submitted[-1].tokens)


def test_what_changes_nothing_is_ignored(speaking):
    speaking.engine.say = "4"
    harmless = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "presence_penalty": 0, "logit_bias": {},
        "top_logprobs": None, "response_format": {"type": "text"}, "parallel_tool_calls": True, "service_tier": "auto",
    }  # fmt: skip
    assert speaking.chat(**harmless)["choices"][0]["message"]["content"] == "4"
