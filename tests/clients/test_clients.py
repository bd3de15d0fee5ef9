"""Real clients of a served model, each in its own process with packages of its own: what they find is what `proa eval`
finds on the same rows.

`python tests/clients/run.py`, a part of `make prove`, makes their environment.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

REPOSITORY = Path(__file__).parents[2]
BIN = REPOSITORY / ".venv-clients" / "bin"
KEY = "a-key-of-the-tests"
SECONDS = 600

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not (BIN / "inspect").exists(), reason="needs .venv-clients: python tests/clients/run.py"),
]


def proa(*arguments):
    """What the command prints."""
    return subprocess.run(
        [sys.executable, "-m", "proa", *map(str, arguments)],
        cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True, timeout=SECONDS,
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model, and rows."""
    folder = tmp_path_factory.mktemp("served")
    subprocess.run([sys.executable, "-m", "tests.clients.made", folder], cwd=REPOSITORY, check=True, timeout=SECONDS)
    return folder


@pytest.fixture(scope="module")
def scored(folder):
    """What `proa eval` finds of each file of rows: the score, and what the model said."""

    def score(name):
        said = folder / f"{name}.said.jsonl"
        printed = proa(
            "eval", folder / "small", "--task", folder / f"{name}.jsonl", "--metric", "tests.clients.made:exact",
            "--temperature", "0", "--max-new-tokens", "8", "--output", said, "--json",
        )  # fmt: skip
        rows = [json.loads(line) for line in said.read_text().splitlines()]
        return json.loads(printed)["metrics"]["exact"], [row["completion"] for row in rows]

    scores = {name: score(name) for name in ("texts", "chats")}
    assert 0 < scores["texts"][0] < 1, "a score at which figures can differ"
    return scores


@pytest.fixture(scope="module")
def url(folder):
    """Where the model is served, by the command."""
    with subprocess.Popen(
        [sys.executable, "-m", "proa", "serve", folder / "small", "--port", "0"],
        cwd=REPOSITORY, env={**os.environ, "PROA_TOKEN": KEY}, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            yield re.search(r"http://\S+/v1", server.stdout.readline())[0]
        finally:
            server.terminate()
            code = server.wait(60)
        assert code == 0


def client(url, *command, **environment):
    """What a client prints, in its own environment."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY, "PROA_BASE_URL": url, "PROA_API_KEY": KEY, "NO_PROXY": "*"}
    done = subprocess.run(
        [BIN / command[0], *map(str, command[1:])],
        cwd=Path(__file__).parent, env={**kept, **own, **environment}, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_package_openai_gets_the_same_words_in_every_way_of_asking(folder, scored, url):
    found = json.loads(client(url, "python", "with_openai.py", folder / "chats.jsonl"))
    said = scored["chats"][1]
    for way in ("whole", "streamed", "async", "async_streamed"):
        assert found[way] == said, way
    assert found["completed"] == scored["texts"][1]
    assert all(tokens == log_probs > 0 for tokens, log_probs in found["lengths"])
    assert found["seeded"][0] == found["seeded"][1]
    assert found["models"] == ["small"]
    words = [
        re.fullmatch(r'<tool_call>\{"name": "look_up", "arguments": \{"key": "(\w*)"\}\}</tool_call>', one)
        for one in said
    ]
    assert any(words)
    for conversation in found["called"]:
        assert conversation["streamed"] == conversation["calls"]
        assert conversation["finish_reason"] == ("tool_calls" if conversation["calls"] else "stop") or (
            not conversation["calls"] and conversation["finish_reason"] == "length"
        )
    calls = [call for conversation in found["called"] for call in conversation["calls"]]
    assert calls
    assert {name for name, _ in calls} == {"look_up"}
    assert all(set(json.loads(arguments)) == {"key"} for _, arguments in calls)
    assert "invalid" in found["wrong key"] or "key" in found["wrong key"]
    assert "did you mean 'small'?" in found["wrong model"]
    assert "top_p" in found["wrong value"]
    print(f"openai: {len(said)} rows, {len(calls)} calls of a tool, the same words in five ways of asking")


def lm_eval(url, folder, task, **settings):
    """The figures of a task of lm-eval over the rows."""
    tasks, out = folder / "tasks", folder / f"lm_eval_{task}"
    tasks.mkdir(exist_ok=True)
    described = {
        "task": task, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "texts.jsonl")}},
        "test_split": "test", "doc_to_text": "{{prompt}}", "target_delimiter": "", **settings,
    }  # fmt: skip
    (tasks / f"{task}.yaml").write_text(json.dumps(described))
    model = f"model=small,base_url={url}/completions,tokenizer={folder / 'small' / 'model'},num_concurrent=8"
    client(
        url, "lm_eval", "--model", "local-completions", "--model_args", model, "--tasks", task, "--include_path", tasks,
        "--output_path", out, HF_HOME=str(folder / "hub"), HF_HUB_OFFLINE="1",
    )  # fmt: skip
    [results] = out.rglob("results_*.json")
    return json.loads(results.read_text())["results"][task]


def test_lm_eval_finds_the_score_of_proa_eval(folder, scored, url):
    found = lm_eval(
        url, folder, "calls", output_type="generate_until", doc_to_target="{{answer}}",
        generation_kwargs={"until": ["<end>"], "max_gen_toks": 8, "temperature": 0, "do_sample": False},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )  # fmt: skip
    print(f"lm-eval: exact_match {found['exact_match,none']}, proa eval {scored['texts'][0]}")
    assert found["exact_match,none"] == pytest.approx(scored["texts"][0], abs=1e-9)


def test_lm_eval_scores_choices_as_the_model_itself_does(folder, url):
    """The oracle is transformers: which of two answers it finds likelier."""
    found = lm_eval(
        url, folder, "choices", output_type="multiple_choice", doc_to_choice="{{[answer, wrong]}}", doc_to_target=0,
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder / "small" / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "small" / "model")

    @torch.no_grad()
    def log_prob(prompt, answer):
        before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (prompt, answer))
        scores = model(torch.tensor([[*before, *after]])).logits[0].log_softmax(-1)
        return sum(float(scores[len(before) + place - 1, token]) for place, token in enumerate(after))

    rows = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    better = [log_prob(row["prompt"], row["answer"]) > log_prob(row["prompt"], row["wrong"]) for row in rows]
    print(f"lm-eval: acc {found['acc,none']}, transformers {sum(better) / len(better)}")
    assert found["acc,none"] == pytest.approx(sum(better) / len(better), abs=1e-9)


def test_inspect_finds_the_score_of_proa_eval(folder, scored, url):
    logs = folder / "inspect"
    client(
        url, "inspect", "eval", "with_inspect.py", "--model", "openai-api/proa/small",
        "--log-dir", logs, "--log-format", "json", "--display", "plain", ROWS=str(folder / "chats.jsonl"),
    )  # fmt: skip
    [log] = logs.glob("*.json")
    found = json.loads(log.read_text())["results"]["scores"][0]["metrics"]["mean"]["value"]
    print(f"inspect-ai: exact {found}, proa eval {scored['chats'][0]}")
    assert found == pytest.approx(scored["chats"][0], abs=1e-9)
