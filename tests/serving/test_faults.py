"""What goes wrong: each in the format of OpenAI, with what to do; and nothing is left behind in the engine."""

import asyncio
import json
import threading
import time

import httpx
import pytest
from tests.rollouts.talking import CHATML
from tests.serving.parts import ADD, ASKED, KEY, SECONDS, Speaking, ask_and_leave, client, served_model, serving, until

from proa.errors import SettingError
from proa.serving import Limits
from proa.serving.app import build_app
from proa.serving.endpoint import Endpoint, bind

CHAT, COMPLETE, TOKENS = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


@pytest.fixture(scope="module")
def speaking():
    engine = Speaking()
    with serving(engine, model=served_model(CHATML), limits=Limits(body_bytes=2_000, sequences=8)) as served:
        served.engine = engine
        yield served


@pytest.fixture
def held():
    """An endpoint whose engine takes no step before it is let."""
    engine = Speaking(say="x" * 150, held=True)
    with serving(engine) as served:
        served.engine = engine
        yield served
        engine.let_all()


def in_a_thread(work):
    """What a call gives that is not waited for yet."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()

    def result():
        thread.join(SECONDS)
        return found[0]

    return result


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        (CHAT, {"messages": []}, "messages", "give at least one"),
        (CHAT, {"messages": [{"role": "usr", "content": "a"}]}, "messages.0.role", "did you mean 'user'?"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content", "has no content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content",
            "read text only",
        ),
        (CHAT, {}, "messages", "field required"),
        (CHAT, {"messages": ASKED, "temperature": "hot"}, "temperature", "not 'hot'"),
        (CHAT, {"messages": ASKED, "temperature": -1}, "temperature", "greater than or equal to 0"),
        (CHAT, {"messages": ASKED, "tempratur": 1}, "tempratur", "did you mean 'temperature'?"),
        (CHAT, {"messages": ASKED, "n": 0}, "n", "greater than or equal to 1"),
        (CHAT, {"messages": ASKED, "n": True}, "n", "valid integer"),
        (CHAT, {"messages": ASKED, "frequency_penalty": 0.5}, "frequency_penalty", "use repetition_penalty"),
        (CHAT, {"messages": ASKED, "top_logprobs": 5, "logprobs": True}, "top_logprobs", "were sampled"),
        (CHAT, {"messages": ASKED, "response_format": {"type": "json_object"}}, "response_format", "not constrained"),
        (CHAT, {"messages": ASKED, "tools": [ADD]}, "tools", "does not write tools"),
        (CHAT, {"messages": ASKED, "tools": [{"name": "add"}]}, "tools.0", '"type": "function"'),
        (CHAT, {"messages": ASKED, "tools": [ADD], "tool_choice": "required"}, "tool_choice", "'auto' or 'none'"),
        (CHAT, {"messages": ASKED, "max_tokens": 5000}, "max_tokens", "ask for at most"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 1500}]}, None, "shorten the prompt"),
        (CHAT, {"messages": ASKED, "stop": ""}, "stop", "would end every completion"),
        (CHAT, {"messages": ASKED, "n": 9}, None, "8 are the most at once"),
        (COMPLETE, {"prompt": ""}, "prompt", "no tokens"),
        (COMPLETE, {"prompt": []}, None, "prompt is empty"),
        (COMPLETE, {"prompt": [[]]}, "prompt", "no tokens"),
        (COMPLETE, {"prompt": [7, 100_000]}, "prompt", "they are 0 to 259"),
        (COMPLETE, {"prompt": "a", "max_tokens": 0}, None, "ask for at least 1 token"),
        (COMPLETE, {"prompt": "a", "echo": True, "stream": True}, None, "leave out one"),
        (COMPLETE, {"prompt": "a", "logprobs": 1}, None, "give logprobs: 0"),
        (COMPLETE, {"prompt": "a", "logprobs": 5}, "logprobs", "less than or equal to 1"),
        (TOKENS, {"token_ids": []}, "token_ids", "no tokens"),
        (TOKENS, {"token_ids": [5], "sampling_params": {"max_tokens": 0}}, "max_tokens", "greater than or equal to 1"),
        (TOKENS, {"token_ids": [5], "sampling_params": 3}, "sampling_params", "not an object"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_do(speaking, path, body, param, said):
    status, error = speaking.refused(path, **body)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert said in error["message"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"prompt": "a", "temperature": NaN}', "not a number in JSON"),
        (b'{"prompt": "a", "temperature": 1e999}', "finite"),
        (b'{"prompt": "\\ud800"}', "not JSON"),
        (b'{"prompt": "\xff"}', "not JSON"),
        (b"[" * 1_900, "not JSON"),
    ],
)
def test_a_body_that_is_no_json_is_refused(speaking, raw, said):
    response = speaking.client.post(COMPLETE, content=raw, headers=HEADERS)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


def test_a_body_of_another_type_is_refused(speaking):
    response = speaking.client.post(COMPLETE, content=b"{}", headers=HEADERS | {"content-type": "text/plain"})
    assert (response.status_code, "application/json" in response.text) == (415, True)


def test_a_body_that_is_too_large_is_not_read(speaking):
    def endless():
        while True:
            yield b" " * 1_000

    response = speaking.client.post(COMPLETE, content=endless(), headers=HEADERS)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("path", [CHAT, COMPLETE, TOKENS, "/v1/models"])
@pytest.mark.parametrize("key", ["", "another", f"{KEY}x"])
def test_without_the_key_nothing_is_answered(speaking, path, key):
    method = "GET" if path == "/v1/models" else "POST"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = speaking.client.request(method, path, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.168.0.7", ""])
def test_a_page_whose_name_points_here_is_refused(speaking, host):
    response = speaking.client.get("/v1/models", headers=HEADERS | {"host": host})
    assert response.status_code == 403


def test_pages_of_other_sites_are_not_allowed_to_read_answers(speaking):
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    response = speaking.client.options(CHAT, headers=asked)
    assert response.status_code == 405
    answered = speaking.client.get("/health", headers={"origin": "https://evil.example"})
    assert not [name for name in (*response.headers, *answered.headers) if name.startswith("access-control")]


def test_a_model_that_is_not_served_is_named(speaking):
    status, error = speaking.refused(CHAT, messages=ASKED, model="smal")
    assert (status, error["code"]) == (404, "model_not_found")
    assert "did you mean 'small'?" in error["message"]


def test_a_path_that_does_not_exist_says_which_do(speaking):
    response = speaking.client.get("/v1/embeddings", headers=HEADERS)
    assert (response.status_code, "/v1/chat/completions" in response.text) == (404, True)


def test_a_model_without_a_chat_template_is_not_asked_as_a_chat():
    with serving(Speaking(), model=served_model(None)) as served:
        status, error = served.refused(CHAT, messages=ASKED)
        assert (status, error["code"]) == (400, "no_chat_template")
        assert served.complete()["choices"][0]["text"] == "4"


def test_what_a_template_refuses_is_said_in_its_own_words():
    with serving(Speaking(), model=served_model("{{ raise_exception('speak in turns') }}")) as served:
        status, error = served.refused(CHAT, messages=ASKED)
    assert (status, "speak in turns" in error["message"]) == (400, True)


# -- what happens meanwhile ---------------------------------------------------------------------------


def test_a_client_that_leaves_takes_its_request_along(held):
    ask_and_leave(held.endpoint, CHAT, {"messages": ASKED}, when=lambda: held.engine.submitted)
    until(lambda: held.endpoint.under_way == 0)
    held.engine.let(1)  # it looks at what is wanted between two steps
    assert held.engine.left.wait(SECONDS)


def test_a_client_that_leaves_in_the_middle_of_a_stream_takes_its_request_along(held):
    body = {"prompt": "ab", "stream": True}
    held.engine.let(2)
    with held.client.stream("POST", COMPLETE, json=body, headers=HEADERS) as response:
        assert "x" in next(response.iter_lines())
    until(lambda: held.endpoint.under_way == 0)
    held.engine.let(1)
    assert held.engine.left.wait(SECONDS)


def test_too_many_at_once_are_to_come_again_later():
    engine = Speaking(held=True)
    with serving(engine, limits=Limits(sequences=2)) as served:
        first = in_a_thread(lambda: served.complete(n=2))
        until(lambda: engine.submitted)
        response = served.post(COMPLETE, prompt="ab")
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        engine.let_all()
        assert len(first()["choices"]) == 2
        assert served.complete()["choices"][0]["text"] == "4"


def test_a_request_has_its_time_and_no_more():
    engine = Speaking(held=True)
    with serving(engine, limits=Limits(seconds=0.2)) as served:
        response = served.post(COMPLETE, prompt="ab")
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline")
        assert response.headers["x-should-retry"] == "false"
        engine.let_all()
        if engine.submitted:  # on a busy machine its time may be over before the engine has it
            assert engine.left.wait(SECONDS)


def test_a_slow_reader_holds_nobody_up_and_gets_all_of_it():
    engine = Speaking(say=lambda request: "x" * 150 if request.seed == 1 else "4")
    with serving(engine) as served:
        app = build_app(served.endpoint._desk)
        sent, reads = [], asyncio.Event()

        async def send(message):
            if message["type"] == "http.response.body":
                await reads.wait()
            sent.append(message)

        async def read_late():
            body = {"prompt": "a", "stream": True, "seed": 1, "max_tokens": 150}
            reading = asyncio.create_task(app(*request_to(COMPLETE, body), send))
            await asyncio.to_thread(until, lambda: sent)  # it has begun, and nobody reads
            answer = await asyncio.to_thread(served.complete, seed=2)
            await asyncio.to_thread(until, lambda: not engine._open)
            assert len(sent) == 1
            reads.set()
            await reading
            return answer

        assert asyncio.run(read_late())["choices"][0]["text"] == "4"
    events = b"".join(message["body"] for message in sent[1:]).decode().splitlines()
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in events if line.startswith("data: {")]
    assert "".join(texts) == "x" * 150
    assert len(texts) < 10  # what came meanwhile was sent at once


def request_to(path, body):
    """What an ASGI application is called with, but for how it answers."""
    headers = [(b"host", b"localhost"), *((name.encode(), value.encode()) for name, value in HEADERS.items())]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "asgi": {}}
    messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive():
        return messages.pop() if messages else await asyncio.Event().wait()

    return scope, receive


def test_an_engine_that_fails_is_said_and_seen():
    engine = Speaking()
    engine.failure = FloatingPointError("the weights are damaged")
    with serving(engine) as served:
        for _ in range(2):
            status, error = served.refused(CHAT, messages=ASKED)
            assert (status, error["code"]) == (500, "engine_failed")
            assert "FloatingPointError: the weights are damaged" in error["message"]
        assert served.client.get("/health").status_code == 503
        assert isinstance(served.endpoint.failure, Exception)


def test_an_engine_that_fails_in_the_middle_of_a_stream_ends_it_with_the_error(held):
    body = {"prompt": "ab", "stream": True}
    held.engine.let(2)
    with held.client.stream("POST", COMPLETE, json=body, headers=HEADERS) as response:
        lines = response.iter_lines()
        first = next(lines)
        held.engine.failure = FloatingPointError("damaged")
        held.engine.let(1)
        *_, last = [line for line in lines if line]
    assert "text" in first
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_failed"


def test_a_request_that_the_engine_refuses_is_the_clients(speaking, monkeypatch):
    def refuse(request):
        raise SettingError("there is no room for that")

    monkeypatch.setattr(speaking.engine, "submit", refuse)
    status, error = speaking.refused(COMPLETE, prompt="ab")
    assert (status, error["message"]) == (400, "there is no room for that")
    assert speaking.endpoint.failure is None


def test_at_the_end_requests_get_their_time_and_new_ones_are_refused(held):
    asked = in_a_thread(lambda: held.post(COMPLETE, prompt="ab"))
    until(lambda: held.engine.submitted)
    kept_open = client(held.endpoint)
    kept_open.get("/health")
    closing = in_a_thread(lambda: held.endpoint.close(SECONDS))
    until(lambda: held.endpoint._desk.under_way.over is not None)
    held.engine.let_all()
    assert asked().json()["choices"][0]["text"] == "x" * 150
    closing()
    assert not held.endpoint.is_alive
    with pytest.raises(httpx.TransportError):
        kept_open.get("/health")
    kept_open.close()


def test_what_is_still_under_way_at_the_end_is_told_and_cancelled(held):
    asked = in_a_thread(lambda: held.post(COMPLETE, prompt="ab"))
    until(lambda: held.engine.submitted)
    begun = time.monotonic()
    held.endpoint.close(0.1)
    assert time.monotonic() - begun < 3
    assert (asked().status_code, "shutting down" in asked().text) == (503, True)
    held.engine.let_all()
    assert held.engine.left.wait(SECONDS)


# -- addresses ----------------------------------------------------------------------------------------


def test_a_port_that_somebody_has_is_named(speaking):
    with pytest.raises(SettingError, match=rf"127.0.0.1:{speaking.endpoint.port} cannot be used: .* --port 0"):
        bind("127.0.0.1", speaking.endpoint.port)
    with pytest.raises(SettingError, match="there is no port 70000"):
        bind("127.0.0.1", 70_000)


def test_an_endpoint_on_another_address_answers_by_any_name(speaking):
    with Endpoint(speaking.model, speaking.endpoint._desk.callers, address=bind("0.0.0.0", 0)) as endpoint:
        response = httpx.get(
            f"http://127.0.0.1:{endpoint.port}/v1/models", headers=HEADERS | {"host": "models.example"}, trust_env=False
        )
        assert response.status_code == 200
