"""Notifications to a real server on this machine: what is sent, when it is sent again, and what is never shown."""

import json
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.small import MODEL

from proa import CallbackManager, LoopState, ManifestRow
from proa.callbacks import WebhookNotifier, build_callback
from proa.cli.main import main
from proa.errors import CallbackConfigError, SettingError
from proa.recipes import run, sft

DEADLINE = 60.0
HANGS = "hangs"
FIELDS = ["event", "run", "folder", "step", "status", "message", "text", "metrics", "time"]
SETTINGS = {
    "total_steps": 2, "train_batch_size": 4, "model": {"config": MODEL}, "task": {"source": "sort_digits", "count": 8},
    "name": "run", "checkpoint": {"save_every": 1},
}  # fmt: skip


class Server(ThreadingHTTPServer):
    """Answers with the given statuses, one by one, then with 200; keeps what it was sent."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.paths, self.headers, self.bodies = [], [], [], []
        self.let_go = threading.Event()
        self.asked = threading.Event()
        self.location = "/elsewhere"

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/hooks/T0/planted-in-path"

    @property
    def events(self):
        return [body["event"] for body in self.bodies]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = server.answers.pop(0) if server.answers else 200
        server.asked.set()
        if answer == HANGS:
            server.let_go.wait(DEADLINE)
            return
        server.paths.append(self.path)
        server.headers.append(dict(self.headers))
        if answer == 200:
            server.bodies.append(body)
        self.send_response(answer)
        if 300 <= answer < 400:
            self.send_header("Location", server.location)
        if answer == 429:
            self.send_header("Retry-After", "0.01")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.let_go.set()
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(WebhookNotifier, "first_delay", 0.001)


def fired(webhook, *moments, state=None):
    """A run of these moments; the manager, whose `errors` count."""
    manager = CallbackManager([webhook])
    state = state or LoopState(global_step=3, metrics={"loss": 0.5})
    manager.fire("train_start", state)
    for event, *payload in moments:
        manager.fire(event, *(payload or [state]))
    manager.fire("train_end", state)
    return manager


def test_a_run_posts_its_events_in_order_with_documented_fields(server, tmp_path):
    sft(**SETTINGS, output_dir=tmp_path, callbacks=[WebhookNotifier(server.url)])
    assert server.events == ["checkpoint_saved", "checkpoint_saved", "train_end"]
    first, _, last = server.bodies
    assert list(first) == list(last) == FIELDS
    assert (first["run"], first["folder"], first["step"]) == ("run", str(tmp_path / "run"), 1)
    assert (first["status"], first["message"]) == ("running", "checkpoint step_1 was saved after 1 step")
    assert (last["status"], last["message"], last["text"]) == (
        "completed", "completed after 2 steps", "run: completed after 2 steps",
    )  # fmt: skip
    assert last["metrics"]["loss"] == pytest.approx(float(last["metrics"]["loss"]))
    assert last["time"] >= first["time"] > 1.7e9
    assert server.headers[0]["Content-Type"] == "application/json"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["callback_errors"] == {}


def test_errors_and_interrupts_are_told_apart(server, tmp_path):
    def fail(state):
        raise ZeroDivisionError("the task is wrong")

    def interrupt(state):
        raise KeyboardInterrupt

    for name, hook in (("failed", fail), ("left", interrupt)):
        manager = CallbackManager([WebhookNotifier(server.url, events=["error", "train_end"])])
        manager.on("step_end")(hook)
        with pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
            sft(**SETTINGS | {"name": name}, output_dir=tmp_path, callbacks=manager)
    assert [(body["run"], body["event"], body["status"]) for body in server.bodies] == [
        ("failed", "error", "failed"), ("failed", "train_end", "failed"), ("left", "train_end", "cancelled"),
    ]  # fmt: skip
    assert server.bodies[0]["message"] == "failed after 1 step: ZeroDivisionError: the task is wrong"
    assert server.bodies[2]["message"] == "interrupted after 1 step"


def test_a_lost_maker_is_reported(server):
    manager = fired(
        WebhookNotifier(server.url, events=["maker.lost"]), ("maker.lost", "maker_1", "its process is gone")
    )
    assert manager.explain("step_end") == manager.explain("maker.batch_end") == []
    (body,) = server.bodies
    assert (body["event"], body["step"], body["message"]) == ("maker.lost", 3, "maker_1 was lost: its process is gone")


def test_metrics_are_numbers_and_what_json_has_no_number_for_is_text(server):
    metrics = {"loss": float("nan"), "reward": float("inf"), "steps": 2, "note": "fine", "token": 5}
    fired(WebhookNotifier(server.url), state=LoopState(metrics=metrics))
    assert server.bodies[0]["metrics"] == {"loss": "NaN", "reward": "Infinity", "steps": 2, "token": 5}


@pytest.mark.parametrize("answer", [500, 503, 429])
def test_what_fails_for_a_while_is_sent_again_and_the_order_is_kept(server, answer):
    server.answers = [answer, answer]
    row = ManifestRow("step_3", 2, 0, step=3)
    manager = fired(WebhookNotifier(server.url), ("checkpoint_saved", LoopState(), row))
    assert server.events == ["checkpoint_saved", "train_end"]
    assert len(server.paths) == 4
    assert manager.errors == {}


@pytest.mark.parametrize("answer", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(server, answer, caplog):
    server.answers = [answer]
    server.location = "https://elsewhere.example/secret-location"
    manager = fired(WebhookNotifier(server.url))
    assert len(server.paths) == 1
    assert manager.errors == {"WebhookNotifier": 1}
    assert "to elsewhere.example: redirects are not followed; set webhook_url to the final address" in caplog.text
    assert "secret-location" not in caplog.text


def test_what_is_refused_is_not_sent_again(server, caplog):
    server.answers = [404]
    assert fired(WebhookNotifier(server.url)).errors == {"WebhookNotifier": 1}
    assert len(server.paths) == 1
    assert "the notification of train_end at step 3 failed: 127.0.0.1 answered 404 Not Found" in caplog.text


def test_a_server_that_never_answers_is_given_up(server, caplog):
    server.answers = [HANGS] * 9
    manager = fired(WebhookNotifier(server.url, request_timeout=0.1, timeout=0.3))
    assert manager.errors == {"WebhookNotifier": 1}
    assert "127.0.0.1 did not answer within 0.1 s" in caplog.text or "cannot be reached: timed out" in caplog.text


def test_the_end_of_a_run_does_not_wait_for_a_server_that_never_answers(server, caplog):
    server.answers = [HANGS] * 9
    row = ManifestRow("step_3", 2, 0, step=3)
    manager = fired(WebhookNotifier(server.url, drain=0.1), ("checkpoint_saved", LoopState(), row))
    assert server.asked.is_set()
    assert manager.errors == {"WebhookNotifier": 2}
    assert "was not done 0.1 s after the end of training" in caplog.text


def test_where_nobody_listens_the_run_ends_well_and_says_how_often_it_failed(tmp_path, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/hooks/planted-in-path"
        params = {"webhook_url": url, "events": ["checkpoint_saved"], "timeout": 0.2}
        sft(**SETTINGS, output_dir=tmp_path, callbacks=[build_callback({"kind": "webhook", "params": params})])
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (header["status"], header["callback_errors"]) == ("completed", {"WebhookNotifier": 2})
    assert "127.0.0.1 cannot be reached" in caplog.text
    assert "planted-in-path" not in caplog.text


def test_addresses_and_headers_are_in_no_file_and_no_message(server, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_CHAT", "planted-in-environment")
    server.answers = [404]
    headers = {"X-Whatever": "planted-in-header", "Authorization": "Bearer ${MY_CHAT}"}
    spec = {"kind": "webhook", "params": {"webhook_url": server.url, "headers": headers}}
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps({**SETTINGS, "algorithm": "sft", "output_dir": str(tmp_path), "callbacks": [spec]}))
    run(config)
    assert len(server.paths) == 3
    assert server.headers[-1]["X-Whatever"] == "planted-in-header"
    assert server.headers[-1]["Authorization"] == "Bearer planted-in-environment"
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    for text in [caplog.text, *(path.read_bytes().decode("latin-1") for path in files)]:
        assert "planted-in" not in text
    written = json.loads((tmp_path / "run" / "config.json").read_text())["callbacks"][0]["params"]
    assert written["webhook_url"] == written["headers"]["X-Whatever"] == "REDACTED"
    assert written["headers"]["Authorization"] == "Bearer ${MY_CHAT}"  # a resumed run finds it again


def test_a_reference_to_the_environment_is_followed_and_written_down(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PLACE_TO_POST", server.url)
    spec = {"kind": "webhook", "params": {"webhook_url": "${PLACE_TO_POST}", "events": ["train_end"]}}
    config = tmp_path / "run.yaml"
    settings = {**SETTINGS, "algorithm": "sft", "name": "run", "output_dir": str(tmp_path), "callbacks": [spec]}
    config.write_text(json.dumps(settings))
    assert main(["train", str(config)]) == 0
    assert main(["resume", str(tmp_path / "run"), "--checkpoint", "step_1"]) == 0
    assert server.events == ["train_end", "train_end"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["callbacks"] == [spec]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"events": ["trian_end"]}, "unknown event 'trian_end'; did you mean 'train_end'"),
        ({"events": ["step_end"]}, "unknown event 'step_end'.*known: train_end, error, maker.lost, checkpoint_saved"),
        ({"events": []}, "events is empty"),
        ({"webhook_url": "ftp://example.com/planted-in-path"}, "must begin with https:// or http://$"),
        ({"webhook_url": "${NO_SUCH_VARIABLE}"}, "webhook_url refers to the environment variable NO_SUCH_VARIABLE"),
        ({"webhook_url": 5}, "webhook_url must be text, not int"),
        ({"headers": {"X-Two": "a\nb"}}, "the header 'X-Two' cannot be sent"),
        ({"timeout": 0}, "timeout must be above 0 seconds"),
    ],
)
def test_mistakes_are_found_before_the_run_starts(params, words):
    with pytest.raises((CallbackConfigError, SettingError), match=words):
        build_callback({"kind": "webhook", "params": {"webhook_url": "https://example.com", **params}})
