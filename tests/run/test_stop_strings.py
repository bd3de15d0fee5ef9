"""Runs whose completions end at stop strings."""

import json

import pytest
from tests.small import DETACHED, MODEL_WITH_END

from proa.recipes import grpo

ENDS = ("1", "23")


def of_length(completions):
    return [float(len(text)) for text in completions]


def train(folder, makers):
    sampling = {"group_size": 4, "max_new_tokens": 12, "stop": list(ENDS)}
    settings = DETACHED | {"model": {"config": MODEL_WITH_END}, "sampling": sampling, "total_steps": 3}
    settings |= {"reward": {"functions": of_length, "workers": 0}, "eval": [{"name": "held", "count": 8, "samples": 4}]}
    grpo(**settings, name="small", makers=makers, max_staleness=0, output_dir=folder, record={"rollouts": 32})
    return folder / "small"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one"), makers=1)


def rows(folder):
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_completions_end_there_with_nothing_cut_off_and_the_log_probabilities_of_the_policy(run):
    rollouts = rows(run / "rollouts")
    for one in rollouts:
        text = "".join(one["tokens"])
        assert (one["finish_reason"] == "stop") == text.endswith((*ENDS, "<end>"))
        assert not any(end in text[:-1] for end in ENDS)
        assert one["trainer_log_probs"] == pytest.approx(one["log_probs"], abs=1e-4)  # rounded to six places
    ends = {next((end for end in ENDS if one["completion"].endswith(end)), None) for one in rollouts}
    assert ends >= {"1", None}  # those that end by themselves or are cut off are there as well


def test_evals_end_there_too(run):
    completions = [row["completion"] for row in rows(run / "evals" / "held")]
    assert any(text.endswith(ENDS) for text in completions)
    assert not any(end in text[:-1] for text in completions for end in ENDS)


def test_the_number_of_makers_changes_nothing(run, tmp_path):
    headers = [json.loads((folder / "run.json").read_text()) for folder in (run, train(tmp_path, makers=3))]
    assert headers[0]["weights_digest"] == headers[1]["weights_digest"]
