"""One logger class, written from the ancestor's page alone, works in every kind of run. (On Ray:
`tests/integration/test_ray_logger.py`.)"""

import functools

import pytest
from tests.ancestors.service_logger import ServiceLogger, calls_in, check_calls, runs_in
from tests.experiments.small_experiment import BENCHMARK, RUN
from tests.small import DETACHED, MODEL

from proa import Callback, Experiment, recipes
from proa.cli.main import main
from proa.tasks.builtin.characters import tokenizer

SFT = {**RUN, "checkpoint": {"save_every": 1}}
EVAL = {"eval": [{"name": "held_out", "count": 4, "run_every": 1}]}
PAIRS = [{"prompt": f"{digit}>", "chosen": str(digit), "rejected": "0"} for digit in range(1, 5)]
PAIRED = {
    "task": PAIRS, "model": {"config": MODEL}, "tokenizer": tokenizer(), "total_steps": 2, "train_batch_size": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (recipes.sft, {key: value for key, value in SFT.items() if key != "algorithm"}),
        (recipes.dpo, PAIRED),
        (recipes.reward_model, PAIRED),
        (recipes.grpo, {**DETACHED, **EVAL, "total_steps": 2}),
        (recipes.ppo, {**DETACHED, "total_steps": 2, "makers": 2}),
    ],
    ids=["sft", "dpo", "reward_model", "grpo", "ppo"],
)
def test_in_a_plain_run(tmp_path, recipe, settings):
    path = tmp_path / "service.jsonl"
    recipe(name="mine", output_dir=tmp_path, callbacks=[ServiceLogger(path)], **settings)
    calls = calls_in(path)
    check_calls(calls)
    assert (calls[0]["name"], calls[0]["folder"]) == ("mine", str(tmp_path / "mine"))
    assert calls[-1]["arms"] == [["mine", "completed", "run-1"]]
    (run,) = runs_in(calls).values()
    assert [call["step"] for call in run if call["call"] == "step"] == [0, 1]
    assert (run[-1]["status"], run[-1]["steps"], run[-1]["error"]) == ("completed", 2, None)
    assert run[-1]["metrics"]["loss"] == [call["loss"] for call in run if call["call"] == "step"][-1]
    assert run[-1]["evals"] == [[call["name"], call["step"]] for call in run if call["call"] == "benchmark"]


def test_named_by_a_file_in_one_instance_for_training_and_for_resuming(tmp_path, monkeypatch, capfd):
    path = tmp_path / "service.jsonl"
    (tmp_path / "run.yaml").write_text(
        "algorithm: sft\ntask: {source: sort_digits, count: 32}\ntotal_steps: 3\ntrain_batch_size: 4\n"
        f"name: mine\noutput_dir: {tmp_path}\nmodel:\n  config: {MODEL}\ncheckpoint: {{save_every: 1}}\n"
        f"callbacks:\n- kind: tests.ancestors.service_logger.ServiceLogger\n  params: {{path: {path}}}\n"
        "- kind: tests.ancestors.test_one_logger.InterruptOnce\n"
    )
    InterruptOnce.done = False
    assert main(["train", str(tmp_path / "run.yaml")]) == 130
    first = calls_in(path)
    check_calls(first)
    assert (first[-2]["status"], first[-1]["status"]) == ("cancelled", "cancelled")
    assert main(["resume", str(tmp_path / "mine")]) == 0
    second = calls_in(path)[len(first) :]
    check_calls(second)
    assert [call["call"] for call in second][1:4] == [
        "run_start",
        "train_start",
        "checkpoint",
    ]  # the one it starts from
    assert [call["step"] for call in second if call["call"] == "step"] == [2]
    assert second[-1]["status"] == "completed"
    assert main(["resume", str(tmp_path / "mine")]) == 0  # it is complete
    assert len(calls_in(path)) == len(first) + len(second)


class InterruptOnce(Callback):
    """Ctrl-C after the second step, in one of the two processes' runs."""

    done = False

    def on_checkpoint(self, state, row):
        if row.step == 2 and not InterruptOnce.done:
            InterruptOnce.done = True
            raise KeyboardInterrupt


REPEATS = {"n_repeats": 2, "base_seed": 7}
STAGES = {"continual": {"datasets": [{"source": name, "count": 32} for name in ("sort_digits", "reverse_digits")]}}


@pytest.mark.parametrize(
    ("shape", "given", "groups", "runs"),
    [
        (REPEATS, "instance", ["e"], ["e__s7", "e__s8"]),
        (STAGES, "instance", ["e"], ["e_stage0", "e_stage1"]),
        (
            REPEATS | STAGES,
            "factory",
            ["e_stage0", "e_stage1"],
            ["e_stage0__s7", "e_stage1__s7", "e_stage0__s8", "e_stage1__s8"],
        ),
    ],
    ids=["repeats", "stages", "repeats of stages"],
)
def test_in_an_experiment(tmp_path, shape, given, groups, runs):
    path = tmp_path / "service.jsonl"
    config = {"name": "e", "output_dir": str(tmp_path), "run": SFT, "metadata": {"benchmark": [BENCHMARK]}, **shape}
    Experiment(config, [ServiceLogger(path) if given == "instance" else functools.partial(ServiceLogger, path)]).run()
    calls = calls_in(path)
    check_calls(calls)
    assert [call["name"] for call in calls if call["call"] == "group_start"] == groups
    assert list(runs_in(calls)) == runs
    for run in runs_in(calls).values():
        said = [call["call"] for call in run]
        assert (said.count("step"), said.count("checkpoint"), said.count("benchmark_after")) == (2, 2, 1)
        assert run[-1]["evals"] == [["held_out", 0], ["held_out", 1], ["after", None]]


@pytest.mark.prove
def test_in_runs_at_once_each_in_its_own_process(tmp_path):
    path = tmp_path / "service.jsonl"
    config = {"name": "e", "output_dir": str(tmp_path), "run": {**SFT, "eval": []}, **REPEATS}
    at_once = {
        "max_concurrent_arms": 2,
        "callbacks": [{"kind": f"{ServiceLogger.__module__}:ServiceLogger", "params": {"path": str(path)}}],
    }
    Experiment(config | at_once).run()
    calls = calls_in(path)
    (start, group), ended = calls[:2], calls[-1]
    for run in runs_in(calls).values():  # the two are interleaved
        end = {**ended, "arms": [[run[-1]["name"], run[-1]["status"], run[-1]["run"]]]}
        check_calls([start, group, *run, end])
    assert sorted(runs_in(calls)) == ["e__s7", "e__s8"]
