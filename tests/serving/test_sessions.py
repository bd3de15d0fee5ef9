"""Sessions of agents: what was sampled is recorded as it was, with seeds that do not depend on when calls arrive."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from tests.rollouts.stepping_engine import SteppingEngine
from tests.rollouts.talking import END, ENDS, FORGETS_THOUGHTS, PAD, byte_model
from tests.serving.parts import ADD, ASKED, SECONDS, WITH_TOOLS, Speaking, ask_and_leave, served_model, serving, until

from proa.data.sampling import Completion, Sampling
from proa.engines import Request, build_engine
from proa.rollouts import EngineStream, StreamUser
from proa.serving import Limits, Sessions
from proa.serving.app import build_app
from proa.serving.route import Desk
from proa.serving.sessions import KEPT, RecordedTurn, next_prompt

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
SAMPLING = Sampling(1, max_new_tokens=100)


class Agents:
    """An endpoint for sessions, and the sessions that were opened."""

    def __init__(self, served, engine, sessions):
        self.served, self.engine, self.sessions = served, engine, sessions
        self.model = served.model

    def open(self, seed=0, sampling=SAMPLING, **more):
        number = len(self.sessions._open)
        user = StreamUser(self.served.stream, f"session {number} of {seed}", max(self.engine.versions), lambda: None)
        return self.sessions.open(user, seed=seed, sampling=sampling, **more)

    def chat(self, session, messages=ASKED, **body):
        return self.served.chat(messages, key=session.key, **body)

    def refused(self, session, **body):
        return self.served.refused(CHAT, key=session.key, **{"messages": ASKED, **body})


@pytest.fixture
def agents():
    opened = []

    def begin(engine, model=None, **more):
        sessions = Sessions()
        context = serving(engine, model=model, callers=sessions, **more)
        opened.append(context)
        return Agents(context.__enter__(), engine, sessions)

    yield begin
    for context in reversed(opened):
        context.__exit__(None, None, None)


@pytest.fixture
def speaking(agents):
    return agents(Speaking(), served_model(WITH_TOOLS))


def small(agents):
    torch.set_num_threads(1)
    engine = build_engine("native", byte_model(), end_ids=ENDS)
    return agents(engine, served_model(ends=ENDS, context_length=512))


# -- what is recorded ---------------------------------------------------------------------------------


def test_a_turn_is_recorded_as_it_was_sampled(agents):
    there = small(agents)
    session = there.open(seed=5)
    answer = there.chat(session, max_tokens=7, logprobs=True, return_token_ids=True)
    [turn] = session.turns
    [choice] = answer["choices"]
    assert turn.prompt == tuple(answer["prompt_token_ids"])
    assert turn.completion.tokens.tolist() == choice["token_ids"]
    assert turn.completion.log_probs.tolist() == [one["logprob"] for one in choice["logprobs"]["content"]]
    assert turn.completion.finish_reason == choice["finish_reason"]
    assert (turn.version, turn.seed, turn.sampling.max_new_tokens) == (0, choice["seed"], 7)
    assert turn.messages == tuple(ASKED)
    assert turn.answer["content"] == choice["message"]["content"]


def test_a_stream_is_recorded_too_before_its_end_is_known(speaking):
    session = speaking.open()
    events = speaking.served.events(CHAT, messages=ASKED, key=session.key)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    [turn] = session.turns
    assert turn.answer["content"] == "4"


def test_several_choices_are_turns_of_their_own(agents):
    there = small(agents)
    session = there.open()
    answer = there.chat(session, n=3, max_tokens=9)
    assert [turn.choice for turn in session.turns] == [0, 1, 2]
    assert [turn.seed for turn in session.turns] == [one["seed"] for one in answer["choices"]]
    assert len({tuple(turn.completion.tokens.tolist()) for turn in session.turns}) == 3


def test_what_a_client_does_not_get_is_not_recorded(agents):
    engine = Speaking(say="x" * 90, held=True)
    there = agents(engine)
    session = there.open()
    ask_and_leave(there.served.endpoint, CHAT, {"messages": ASKED}, key=session.key, when=lambda: engine.submitted)
    until(lambda: there.served.endpoint.under_way == 0)
    engine.let_all()
    assert engine.left.wait(SECONDS)
    assert session.close() == ()


# -- seeds --------------------------------------------------------------------------------------------


def test_seeds_do_not_depend_on_the_order_of_arrival(agents):
    there = small(agents)
    prompts = [[{"role": "user", "content": f"{number}?"}] for number in range(6)]

    def tokens_of(session, ordered):
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda messages: there.chat(session, messages, max_tokens=8), ordered))
        return {turn.prompt: turn.completion.tokens.tolist() for turn in session.turns}

    assert tokens_of(there.open(seed=1), prompts) == tokens_of(there.open(seed=1), prompts[::-1])
    assert tokens_of(there.open(seed=1), prompts) != tokens_of(there.open(seed=2), prompts)


@pytest.mark.parametrize(
    ("one", "other"),
    [({"seed": 1}, {"seed": 2}), ({"max_tokens": 3}, {}), ({"n": 2}, {}), ({"stop": ["x"]}, {}),
     ({"stop_token_ids": [9]}, {}), ({"temperature": 0.5}, {})],
)  # fmt: skip
def test_nor_of_calls_with_one_prompt_that_ask_for_something_else(speaking, one, other):
    def seeds(*ordered):
        session = speaking.open(seed=1)
        return {str(body): [choice["seed"] for choice in speaking.chat(session, **body)["choices"]] for body in ordered}

    found = seeds(one, other)
    assert found == seeds(other, one)
    assert len({seed for own in found.values() for seed in own}) == sum(map(len, found.values()))


def test_the_same_question_again_gets_another_answer_and_again_the_same_ones(agents):
    there = small(agents)

    def seeds(**body):
        session = there.open(seed=1)
        for _ in range(3):
            there.chat(session, max_tokens=1, **body)
        assert [turn.count for turn in session.turns] == [0, 1, 2]
        return [turn.seed for turn in session.turns]

    first = seeds()
    assert len(set(first)) == 3
    assert seeds() == first
    mixed = seeds(seed=7)
    assert not set(mixed) & {*first, 7}


# -- whose sampling -----------------------------------------------------------------------------------


def test_the_sampling_of_the_run_is_enforced_and_the_answer_says_so(speaking):
    session = speaking.open(sampling=Sampling(1, 50, temperature=0.7))
    answer = speaking.chat(session, temperature=0.0, top_p=0.5, repetition_penalty=1.0, max_tokens=60)
    assert answer["enforced"] == {"temperature": 0.7, "top_p": 1.0}
    [request] = speaking.engine.submitted
    assert (request.sampling.temperature, request.sampling.top_p) == (0.7, 1.0)
    assert request.sampling.max_new_tokens == 50  # no more than the session's
    [turn] = session.turns
    assert turn.is_neutral
    assert turn.asked == {"temperature": 0.0, "top_p": 0.5, "repetition_penalty": 1.0}
    assert "enforced" not in speaking.chat(session, temperature=0.7)


def test_otherwise_it_is_sampled_as_asked_and_recorded_as_such(speaking):
    session = speaking.open(enforce=False)
    assert "enforced" not in speaking.chat(session, temperature=0.5)
    speaking.chat(session)
    assert [turn.is_neutral for turn in session.turns] == [False, True]
    assert [request.sampling.temperature for request in speaking.engine.submitted] == [0.5, 1.0]


# -- going on from what was sampled -------------------------------------------------------------------

TOLD = {"role": "user", "content": "and 3+3?"}


def test_a_conversation_goes_on_from_exactly_the_tokens_that_were_sampled(speaking):
    session = speaking.open()
    speaking.engine.say = '<tool_call>{"name":"add","arguments":{"a":2}}</tool_call>'  # written again it has spaces
    message = speaking.chat(session, tools=[ADD])["choices"][0]["message"]
    speaking.engine.say = "6"
    answer = speaking.chat(session, [*ASKED, message, {"role": "tool", "content": "2"}], tools=[ADD])
    first, second = session.turns
    assert second.prompt[: len(first.tokens)] == first.tokens
    assert second.continues == first.id
    request = speaking.engine.submitted[-1]
    assert request.continues == speaking.engine.submitted[0].id
    assert request.tokens == second.prompt[len(first.tokens) :]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(first.tokens)
    assert answer["usage"]["prompt_tokens"] == len(second.prompt)


def test_a_turn_that_goes_on_from_another_says_what_the_engine_says(agents):
    there = small(agents)
    session = there.open(seed=3)
    message = there.chat(session, max_tokens=100)["choices"][0]["message"]
    there.chat(session, [*ASKED, message, TOLD], max_tokens=9)
    first, second = session.turns
    assert second.continues == first.id
    engine = build_engine("native", byte_model(), end_ids=ENDS)
    engine.submit(Request("a", first.prompt, first.seed, first.sampling, keep=True))
    while engine.step():
        pass
    engine.submit(Request("b", second.prompt[len(first.tokens) :], second.seed, second.sampling, continues="a"))
    steps = iter(engine.step, [])
    assert [token for [progress] in steps for token in progress.tokens] == second.completion.tokens.tolist()


def test_of_two_answers_that_read_alike_a_conversation_goes_on_from_the_same_whichever_came_first():
    model = served_model()
    prompt, answer = model.render(ASKED, ()), {"role": "assistant", "content": "4"}
    [four] = model.text_tokens("4")
    completions = [Completion(torch.tensor(tokens), torch.zeros(len(tokens)), "stop") for tokens in
                   ([four, END], [four, PAD, END])]  # fmt: skip
    turns = [
        RecordedTurn(str(count), prompt, one, 0, count, SAMPLING, {}, True, count, 0, "", tuple(ASKED), (), answer)
        for count, one in enumerate(completions)
    ]
    found = next_prompt(turns, [*ASKED, answer, TOLD], (), model)
    assert found == next_prompt(turns[::-1], [*ASKED, answer, TOLD], (), model)
    assert found[: len(prompt) + 2] == turns[0].tokens


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda messages: [{"role": "user", "content": "5?"}, *messages[1:]], "another question"),
        (lambda messages: [*messages[:1], {**messages[1], "content": "5"}, *messages[2:]], "another answer"),
        (lambda messages: messages[:1], "the same question again"),
    ],
)
def test_a_conversation_that_was_not_had_begins_anew(speaking, change, why):
    session = speaking.open()
    message = speaking.chat(session)["choices"][0]["message"]
    messages = change([*ASKED, message, TOLD])
    speaking.chat(session, messages)
    assert session.turns[-1].continues == ""
    assert speaking.engine.submitted[-1].tokens == speaking.model.render(messages, ())


def test_a_template_that_rewrites_the_past_begins_anew(agents):
    there = agents(Speaking("<think>hm</think>4"), served_model(FORGETS_THOUGHTS))
    session = there.open()
    message = there.chat(session)["choices"][0]["message"]
    there.chat(session, [*ASKED, message, TOLD])
    assert session.turns[-1].continues == ""
    assert "hm" not in there.model.tokenizer.decode(there.engine.submitted[-1].tokens)


def test_what_a_stop_text_cut_off_does_not_come_back(speaking):
    session = speaking.open()
    speaking.engine.say = "4 Observation: 5"
    message = speaking.chat(session, stop=["Observation:"])["choices"][0]["message"]
    assert message["content"] == "4 "
    speaking.chat(session, [*ASKED, message, TOLD])
    assert "Observation" not in speaking.model.tokenizer.decode(speaking.engine.submitted[-1].tokens)


def test_tokens_go_on_from_tokens(speaking):
    session = speaking.open()
    first = speaking.served.answer("/inference/v1/generate", key=session.key, token_ids=[9, 8])["choices"][0]
    speaking.served.answer(
        "/inference/v1/generate", key=session.key, token_ids=[9, 8, *first["token_ids"], 7, 7]
    )  # fmt: skip
    assert speaking.engine.submitted[-1].tokens == (7, 7)
    assert session.turns[1].continues == session.turns[0].id


def test_a_turn_is_gone_on_from_once_and_whoever_comes_second_begins_anew(speaking):
    session = speaking.open()
    message = speaking.chat(session)["choices"][0]["message"]
    for text in ("a", "b"):
        speaking.chat(session, [*ASKED, message, {"role": "user", "content": text}])
    first, *others = session.turns
    assert [turn.continues for turn in others] == [first.id, ""]
    assert all(turn.prompt[: len(first.tokens)] == first.tokens for turn in others)


def test_only_the_newest_turns_are_kept_and_at_the_end_none(speaking):
    session = speaking.open()
    for number in range(KEPT + 3):
        speaking.chat(session, [{"role": "user", "content": str(number)}])
    stream = speaking.served.stream
    names = [request.id for request in speaking.engine.submitted]

    def kept():
        stream.has(0)
        return {name for name in names if name in stream._kept}

    speaking.chat(speaking.open())  # what was forgotten before is forgotten by now
    assert kept() == set(names[-KEPT:])
    session.close()
    speaking.chat(speaking.open())
    assert kept() == set()


def test_a_session_that_keeps_nothing_computes_every_turn_from_its_beginning(speaking):
    session = speaking.open(keeps=False)
    message = speaking.chat(session)["choices"][0]["message"]
    speaking.chat(session, [*ASKED, message, TOLD])
    assert [turn.continues for turn in session.turns] == ["", ""]
    assert not any(request.keep for request in speaking.engine.submitted)


# -- the end of a session -----------------------------------------------------------------------------


def test_after_its_end_a_session_is_over_and_others_are_not(speaking):
    session, other = speaking.open(), speaking.open(seed=1)
    speaking.chat(session)
    assert len(session.close()) == 1
    status, error = speaking.refused(session)
    assert (status, error["code"]) == (410, "session_over")
    assert "this session is over" in error["message"]
    assert speaking.chat(other)["choices"][0]["message"]["content"] == "4"
    assert len(session.close()) == 1


def test_at_its_end_what_a_session_has_under_way_is_cancelled(agents):
    engine = Speaking(say="x" * 90, held=True)
    there = agents(engine)
    session = there.open()
    found = []
    asking = threading.Thread(target=lambda: found.append(there.refused(session)), daemon=True)
    asking.start()
    until(lambda: engine.submitted)
    assert session.close() == ()
    asking.join(SECONDS)
    assert found[0][0] == 410
    engine.let_all()
    assert engine.left.wait(SECONDS)


@pytest.mark.parametrize(
    "key", ["", "session-0", "session-0-00", "session-x-1", "proa-1", "session-²-1", "session-0-é"]
)
def test_a_key_that_was_never_given_out_opens_nothing(speaking, key):
    speaking.open()
    response = speaking.served.client.post(
        CHAT, json={}, headers={"authorization": f"Bearer{key and ' '}{key}".encode()}
    )
    assert response.status_code == 401


def test_a_session_has_so_many_turns_and_no_more(speaking):
    session = speaking.open(most_turns=3)
    speaking.chat(session, n=2)
    status, error = speaking.refused(session, n=2)
    assert (status, error["code"]) == (403, "too_many_turns")
    speaking.chat(session)
    assert len(session.turns) == 3


def test_prompts_are_not_scored_for_agents(speaking):
    session = speaking.open()
    status, _ = speaking.served.refused(COMPLETE, key=session.key, prompt="a", echo=True, logprobs=0)
    assert status == 400


def test_a_turn_without_a_token_is_refused(speaking):
    session = speaking.open()
    status, error = speaking.served.refused(COMPLETE, key=session.key, prompt="a", echo=True, max_tokens=0)
    assert (status, error["param"]) == (400, "max_tokens")
    assert session.turns == ()


# -- many ---------------------------------------------------------------------------------------------


class Gathering(SteppingEngine):
    """Takes no step before so many requests are there."""

    def __init__(self, count):
        super().__init__()
        self.count = count
        self.is_ready = False

    def step(self):
        self.is_ready = self.is_ready or len(self._open) >= self.count
        return super().step() if self.is_ready else []


def many_sessions(count, turns):
    """Agents that all talk at the same time, each in a session of its own; what is left of them afterwards."""
    engine, sessions = Gathering(count), Sessions()
    stream = EngineStream(engine, name="maker_0")
    desk = Desk(served_model(), sessions, Limits(sequences=2 * count))

    async def agent(client, number):
        user = StreamUser(stream, f"session {number}", 0, lambda: None)
        session = sessions.open(user, seed=number, sampling=SAMPLING)
        messages = list(ASKED)
        headers = {"authorization": f"Bearer {session.key}"}
        for _ in range(turns):
            answer = (await client.post(CHAT, json={"messages": messages}, headers=headers)).json()
            messages += [answer["choices"][0]["message"], TOLD]
        return session.close()

    async def all_of_them():
        transport = httpx.ASGITransport(build_app(desk))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=SECONDS) as client:
            return await asyncio.gather(*(agent(client, number) for number in range(count)))

    try:
        recorded = asyncio.run(all_of_them())
    finally:
        stream.close("the test is over")
        desk.tokenising.shutdown()
    assert [len(own) for own in recorded] == [turns] * count
    assert len(engine.together[0]) == count
    assert (len(sessions._open), len(desk.under_way), desk.gate._taken) == (0, 0, 0)
    assert not engine._open
    return recorded


def test_a_hundred_sessions_at_the_same_time():
    recorded = many_sessions(100, 2)
    assert len({turn.seed for own in recorded for turn in own}) == 200


@pytest.mark.prove
def test_a_thousand_sessions_at_the_same_time():
    recorded = many_sessions(1_000, 3)
    assert len({turn.seed for own in recorded for turn in own}) == 3_000
    assert all(turn.completion.tokens[-1] != END for own in recorded for turn in own)
