"""A planted secret is nowhere in a run's record, and nobody but its owner can read what is in its folder."""

import json
import os
import stat

import pytest
from tests.small import MODEL_WITH_END as TINY

from proa import Callback, Priority
from proa.callbacks.registry import _KINDS, register_callback
from proa.config import load_run_config
from proa.recipes import grpo, reward_model
from proa.record.secrets import redacted_keys

OF_ENVIRONMENT = "planted-in-the-environment"
OF_CONFIGURATION = 'planted in "the" configuration/ü'
OF_URL = "planted-in-a-url"


class Chatty(Callback):
    """Knows a secret, as a logger that reports elsewhere does, and tells everyone."""

    priority = Priority.METRICS  # before the record is written

    def __init__(self, api_key, server, fails_at=None):
        self.api_key = api_key
        self.server = server
        self.fails_at = fails_at
        self.said = f"{server} refused {api_key} and {OF_ENVIRONMENT}"

    def on_step_end(self, state, step_idx, batch, metrics):
        metrics["note"] = self.said
        metrics["password"] = self.api_key
        if step_idx == self.fails_at:
            raise RuntimeError(self.said)
        if step_idx == 1:
            state.stop_training(self.said)


def telling(prompts, completions, **columns):
    """A metric whose error quotes a secret."""
    raise ValueError(f"no score with {OF_ENVIRONMENT} and {OF_CONFIGURATION!r}")


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    monkeypatch.setenv("PLANTED_API_TOKEN", OF_ENVIRONMENT)
    register_callback("chatty", Chatty)
    yield
    _KINDS.registered.pop("chatty")


def settings(tmp_path, **params):
    server = f"https://me:{OF_URL}@localhost/runs"
    return load_run_config(
        name="run",
        total_steps=3,
        train_batch_size=4,
        output_dir=tmp_path / "runs",
        model={"config": TINY},
        sampling={"group_size": 2, "max_new_tokens": 4},
        task={"source": "sort_digits", "count": 8},
        reward={"workers": 0},
        lora={"rank": 2},
        eval=[{"name": "sorting", "count": 2, "metric": f"{__name__}:telling"}],
        callbacks=[
            {"kind": "chatty", "params": {"api_key": OF_CONFIGURATION, "server": server, **params}},
            {"kind": "csv"},
        ],
    )


def planted_in(folder):
    """Every file that holds a secret in any form that it may be written in; but for the state in checkpoints, which
    a callback gets back as it was."""
    forms = [OF_ENVIRONMENT, OF_URL]
    forms += [
        OF_CONFIGURATION,
        json.dumps(OF_CONFIGURATION)[1:-1],
        json.dumps(OF_CONFIGURATION, ensure_ascii=False)[1:-1],
    ]
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "state.json"]
    return [(path.name, form) for path in files for form in forms if form.encode() in path.read_bytes()]


def test_a_run_that_ends_well_holds_no_secret(tmp_path):
    state = grpo(settings(tmp_path))
    folder = tmp_path / "runs" / "run"
    assert OF_CONFIGURATION in state.stop_reason  # whoever runs it may know
    assert planted_in(folder) == []
    header, config = (json.loads((folder / name).read_text()) for name in ("run.json", "config.json"))
    clean = "https://REDACTED@localhost/runs refused REDACTED and REDACTED"
    assert header["stop_reason"] == clean
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "note" in row]
    assert [(row["note"], row["password"]) for row in steps] == [(clean, "REDACTED")] * 2
    assert clean in (folder / "metrics.csv").read_text()
    (first,) = (folder / "evals" / "sorting").glob("step_0.jsonl")
    predictions = [json.loads(line) for line in first.read_text().splitlines()]
    assert len(predictions) == 2
    assert all("ValueError: no score with REDACTED and 'REDACTED'" in row["error"] for row in predictions)
    assert redacted_keys(config) == ["callbacks.0.params.api_key", "callbacks.0.params.server"]


def test_the_error_of_a_run_that_fails_is_recorded_without_the_secrets_that_it_quotes(tmp_path):
    with pytest.raises(RuntimeError, match=OF_ENVIRONMENT):
        grpo(settings(tmp_path, fails_at=0))
    folder = tmp_path / "runs" / "run"
    assert planted_in(folder) == []
    header = json.loads((folder / "run.json").read_text())
    assert header["status"] == "failed"
    assert header["stop_reason"] == "RuntimeError: https://REDACTED@localhost/runs refused REDACTED and REDACTED"


def test_everything_in_a_runs_folder_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        grpo(settings(tmp_path))
        pairs = [{"prompt": f"{n}>", "chosen": "99", "rejected": "11"} for n in range(4)]
        base = str(tmp_path / "runs" / "run" / "base")
        reward_model(
            name="judge", output_dir=tmp_path / "runs", model=base, task=pairs, total_steps=1, train_batch_size=2
        )
    finally:
        os.umask(before)
    for folder in (tmp_path / "runs" / "run", tmp_path / "runs" / "judge"):
        paths = [folder, *folder.rglob("*")]
        assert {"metrics.jsonl", "config.json", "run.json"} <= {path.name for path in paths}
        assert any(path.name.endswith(".safetensors") for path in paths)
        open_to_others = [
            (path, oct(path.stat().st_mode))
            for path in paths
            if stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)
        ]
        assert open_to_others == []
