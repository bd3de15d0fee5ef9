"""`proa serve`: what it serves, where, to whom; how it ends; what is wrong with how it was called."""

import json
import os
import re
import signal
import sys
import threading

import httpx
import pytest
from tests.serving.parts import SECONDS
from tests.small import DETACHED, MODEL

from proa.cli import serve as cli_serve
from proa.cli.main import main
from proa.policy.models import load_model
from proa.recipes import grpo
from proa.tasks.builtin.characters import tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    grpo(
        **DETACHED | {"total_steps": 2, "checkpoint": {"save_every": 1, "keep": None}}, name="sorted", output_dir=folder
    )
    return folder / "sorted"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "small"
    load_model(MODEL, seed=0).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


class Serving:
    """The verb in this thread, and what another thread does with it meanwhile; at the end that sends a signal."""

    def __init__(self, capfd, monkeypatch):
        self._capfd = capfd
        self.out = ""
        self._announced = threading.Event()
        announce = cli_serve._announce

        def announced(*arguments):
            announce(*arguments)
            self._announced.set()

        monkeypatch.setattr(cli_serve, "_announce", announced)

    def __call__(self, *arguments, meanwhile=lambda url, token: None, ends_by=signal.SIGTERM):
        found, is_over = [], threading.Event()

        def use():
            try:
                found.append(meanwhile(*self._ready()))
            except BaseException as error:
                found.append(error)
            if not is_over.is_set():
                os.kill(os.getpid(), ends_by)

        user = threading.Thread(target=use, daemon=True)
        user.start()
        self.code = main(["serve", *map(str, arguments), "--port", "0"])
        is_over.set()
        user.join(SECONDS)
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def _ready(self):
        assert self._announced.wait(SECONDS)
        self._announced.clear()
        self.out += self._capfd.readouterr().out  # once, after it was written: what is written meanwhile would be lost
        address, token = re.search(r"http://\S+/v1", self.out), re.search(r"token: (\S+)", self.out)
        return address[0], token and token[1]


@pytest.fixture
def serve(capfd, monkeypatch):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    path = [*sys.path]
    yield Serving(capfd, monkeypatch)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    sys.path[:] = path


def complete(url, token, prompt="12>", **body):
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 7, **body}
    response = httpx.post(
        f"{url}/completions", json=body, headers={"authorization": f"Bearer {token}"}, trust_env=False
    )
    return response.json()


def test_a_run_is_served_as_its_eval_scores_it(serve, run, tmp_path, capfd):
    rows = tmp_path / "predictions.jsonl"
    scoring = ["--task", "sort_digits", "--count", "8", "--temperature", "0", "--output", str(rows)]
    assert main(["eval", str(run), *scoring]) == 0
    scored = [json.loads(line) for line in rows.read_text().splitlines()]
    capfd.readouterr()
    prompts = [row["prompt"] for row in scored]
    answer = serve(run, meanwhile=lambda url, token: complete(url, token, prompts))
    assert [one["text"] for one in answer["choices"]] == [row["completion"] for row in scored]
    assert (answer["model"], answer["policy_version"]) == ("sorted", 2)
    assert serve.code == 0
    assert "serving sorted (checkpoint step_2, version 2, on cpu) at http://127.0.0.1:" in serve.out


def test_a_checkpoint_is_served_by_its_name_or_by_its_folder(serve, run):
    by_name = serve(run, "--checkpoint", "step_1", meanwhile=complete)
    serve.out = ""
    by_folder = serve(run / "checkpoints" / "step_1", meanwhile=complete)
    assert by_name["policy_version"] == by_folder["policy_version"] == 1
    assert by_name["choices"][0]["text"] == by_folder["choices"][0]["text"]


def test_a_model_is_served_under_a_name_with_an_engine_of_ones_choice(serve, model):
    answer = serve(model, "--name", "mine", "--engine.kind", "hf", "--max-new-tokens", "2",
                   meanwhile=lambda url, token: complete(url, token, max_tokens=None))  # fmt: skip
    assert (answer["model"], answer["policy_version"]) == ("mine", 0)
    assert answer["usage"]["completion_tokens"] <= 2


def test_ctrl_c_is_an_interruption(serve, model, capfd):
    serve(model, ends_by=signal.SIGINT)
    assert serve.code == 130
    assert "interrupted" in capfd.readouterr().err


def test_the_token_is_the_one_that_was_given_and_is_not_shown(serve, model, monkeypatch):
    monkeypatch.setenv("PROA_TOKEN", "a-secret")

    def ask(url, token):
        assert token is None
        return [complete(url, key) for key in ("a-secret", "another")]

    good, bad = serve(model, meanwhile=ask)
    assert "choices" in good
    assert bad["error"]["code"] == "invalid_api_key"
    assert "a-secret" not in serve.out


def test_an_engine_that_fails_ends_it(model, capfd, tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text(
        "from proa.engines.native import NativeEngine\n"
        "class Failing(NativeEngine):\n"
        "    def step(self):\n"
        "        raise FloatingPointError('damaged')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    serve = Serving(capfd, monkeypatch)

    def ask():
        complete(*serve._ready())

    user = threading.Thread(target=ask, daemon=True)
    user.start()
    assert main(["serve", str(model), "--port", "0", "--engine.kind", "failing:Failing"]) == 1
    user.join(SECONDS)
    assert "the engine failed: FloatingPointError: damaged: nothing more can be answered" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-token", "--host", "0.0.0.0"], "--no-token lets in whoever reaches 0.0.0.0"),
        (["--no-token", "--token", "x"], "give one of them"),
        (["--prot", "8000"], "proa serve has no flag --prot; did you mean '--port'?"),
        (["--optimizer.learning_rate", "1"], "settings that it takes begin with engine"),
        (["--port", "70000"], "there is no port 70000"),
        (["--checkpoint", "step_1"], "is not a run's folder"),
        (["--engine.kind", "natve"], "native"),
        (["--device", "cuda:7"], "model.device is cuda:7"),
    ],
)
def test_wrong_use_is_said_in_a_sentence(model, capfd, arguments, said):
    assert main(["serve", str(model), "--port", "0", *arguments]) == 2
    told = capfd.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err
    assert told.out == ""


def test_what_is_no_model_is_wrong_use(tmp_path, capfd):
    assert main(["serve", str(tmp_path / "nothing")]) == 2
    assert "there is no folder" in capfd.readouterr().err


def test_a_package_that_is_missing_is_named(model, capfd, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("proa.serving.endpoint", "proa.cli.serve"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(model)]) == 2
    assert "serving needs the package uvicorn: pip install 'proa[serve]'" in capfd.readouterr().err
