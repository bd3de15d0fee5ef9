"""What tests serve: a small model of bytes, engines without a model, and an endpoint around either."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time

import httpx
from tests.engines.made_up import MadeUpEngine
from tests.rollouts.talking import CHATML, END, VOCABULARY, byte_tokenizer

from proa.rollouts import EngineStream, StreamUser
from proa.serving import Guest, OneKey, Scoring, ServedModel
from proa.serving.endpoint import Endpoint

KEY = "a-key"
SECONDS = 180.0  # a deadline, never a wait: what is awaited is an event, on a machine that may be busy
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
ASKED = [{"role": "user", "content": "2+2?"}]


class Speaking(MadeUpEngine):
    """Says a text to every request, a token at each step; `held` from the first one until it is let."""

    def __init__(self, say="4", ends=True, held=False):
        super().__init__()
        self.say = say
        self.ends = ends
        self.submitted = []
        self.left = threading.Event()
        self.gone = []
        self.failure = None
        self._steps = threading.Semaphore(0)
        self._is_held = held
        self._words = byte_tokenizer()
        self._said = {}

    def submit(self, request):
        super().submit(request)
        text = self.say(request) if callable(self.say) else self.say
        tokens = self._words.encode(text, add_special_tokens=False) + [END] * self.ends
        self._said[request.id] = tokens[: request.sampling.max_new_tokens]
        self.submitted.append(request)

    def step(self):
        if self._is_held:
            self._steps.acquire(timeout=SECONDS)
        if self.failure is not None:
            raise self.failure
        progress = [self._progress(request) for request in self._open]
        self._open = [request for request in self._open if self._said[request.id]]
        return progress

    def let(self, steps):
        """Take so many more steps."""
        self._steps.release(steps)

    def let_all(self):
        self._is_held = False
        self._steps.release()

    def tokens(self, request):
        said = self._said[request.id]
        token = said.pop(0)
        return (token,), (None if said else "stop" if token == END else "length")

    def cancel(self, request_id):
        if any(request.id == request_id for request in self._open):
            self.gone.append(request_id)
            self.left.set()
        super().cancel(request_id)

    def score(self, sequences):
        raise NotImplementedError


class Served:
    """An endpoint with a client."""

    def __init__(self, endpoint, stream, model):
        self.endpoint, self.stream, self.model = endpoint, stream, model
        self.client = client(endpoint)

    def post(self, path, key=KEY, **body):
        return self.client.post(path, json=body, headers={"authorization": f"Bearer {key}"})

    def answer(self, path, **body):
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path, **body):
        """The status and the error of a request."""
        response = self.post(path, **body)
        return response.status_code, response.json()["error"]

    def chat(self, messages=ASKED, **body):
        return self.answer("/v1/chat/completions", messages=messages, **body)

    def complete(self, prompt="ab", **body):
        return self.answer("/v1/completions", prompt=prompt, **body)

    def events(self, path, key=KEY, **body):
        """What a stream says, without its end."""
        with self.client.stream(
            "POST", path, json={**body, "stream": True}, headers={"authorization": f"Bearer {key}"}
        ) as response:
            assert response.status_code == 200, response.read()
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


def until(condition):
    """Wait for what another thread brings about; there is no event for it."""
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def ask_and_leave(endpoint, path, body, *, key=KEY, when):
    """Send a request, and hang up as soon as `when` holds: no time has to be guessed."""
    address = httpx.URL(endpoint.base_url)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=SECONDS)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection.request("POST", path, json.dumps(body), headers)
    until(when)
    connection.close()


def client(endpoint):
    return httpx.Client(base_url=endpoint.base_url.removesuffix("/v1"), timeout=SECONDS, trust_env=False)


def served_model(template=CHATML, *, tokenizer=None, ends=(END,), context_length=1024, vocabulary=VOCABULARY):
    return ServedModel(
        "small", tokenizer or byte_tokenizer(template), end_ids=ends, context_length=context_length,
        vocabulary=vocabulary, max_new_tokens=200,
    )  # fmt: skip


@contextlib.contextmanager
def serving(engine, *, model=None, callers=None, limits=None):
    """Inside, an engine is served: to whoever has the key, or to these callers."""
    stream = EngineStream(engine, name="served")
    user = StreamUser(stream, "served", max(engine.versions), lambda: None)
    model = model or served_model()
    try:
        callers = callers or OneKey(Guest(user, Scoring(stream, user)), KEY)
        with Endpoint(model, callers, limits=limits) as endpoint:
            served = Served(endpoint, stream, model)
            with served.client:
                yield served
    finally:
        stream.close("the test is over")
