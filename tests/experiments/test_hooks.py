"""The documented order of an experiment's hooks, for every shape that one can have."""

import json

import pytest
from tests.experiments.small_experiment import BENCHMARK, JUDGED, RUN, Listener, of_a_run

from proa import Callback
from proa.experiments import Experiment


def heard_in(tmp_path, callbacks=(), **config):
    listener = Listener()
    experiment = Experiment({"name": "e", "output_dir": str(tmp_path), **JUDGED, **config}, [listener, *callbacks])
    return listener, experiment.run()


def test_one_run(tmp_path):
    listener, result = heard_in(tmp_path, run=RUN)
    assert listener.heard == ["experiment_start", *of_a_run("e"), "experiment_end completed"]
    assert [arm.run_id for arm in result.arms] == ["r-e"]
    assert result.experiment_id == "e1"


def test_two_arms_with_three_repeats_each(tmp_path):
    listener, result = heard_in(tmp_path, runs={"a": RUN, "b": RUN}, n_repeats=3, base_seed=7)
    expected = ["experiment_start"]
    for arm in "ab":
        expected.append(f"group_start {arm}")
        for seed in (7, 8, 9):
            expected += of_a_run(f"{arm}__s{seed}")
    assert listener.heard == [*expected, "experiment_end completed"]
    assert [(arm.group_name, arm.group_id) for arm in result.arms] == [("a", "g-a")] * 3 + [("b", "g-b")] * 3
    assert result.groups["a"].metrics["after.by_place"].n == 3


def test_a_matrix(tmp_path):
    over = {"optimizer.learning_rate": [1e-3, 1e-2], "train_batch_size": [4, 2]}
    listener, result = heard_in(tmp_path, matrix={"run": RUN, "over": over})
    names = [
        f"learning_rate-{rate}.train_batch_size-{size}" for rate in ("0.001", "0.01") for size in (4, 2)
    ]  # fmt: skip
    assert listener.heard == [
        "experiment_start",
        *(line for n in names for line in of_a_run(n)),
        "experiment_end completed",
    ]
    rates = [(arm.run_config.optimizer.learning_rate, arm.run_config.train_batch_size) for arm in result.arms]
    assert rates == [(1e-3, 4), (1e-3, 2), (1e-2, 4), (1e-2, 2)]


def test_three_stages_with_two_repeats(tmp_path):
    names = ["sort_digits", "reverse_digits", "sort_digits"]
    stages = {"datasets": [{"source": name, "count": 32} for name in names]}
    listener, result = heard_in(tmp_path, run=RUN, n_repeats=2, base_seed=0, continual=stages)
    expected = ["experiment_start"]
    for seed in (0, 1):
        for stage in range(3):
            expected += [f"group_start e_stage{stage}"] if seed == 0 else []
            expected += of_a_run(f"e_stage{stage}__s{seed}")
    assert listener.heard == [*expected, "experiment_end completed"]
    assert [arm.run_config.task.source for arm in result.arms[:3]] == names
    assert result.best_arm == "e_stage2"
    assert result.conclusion.endswith("judged by its last stage.")
    assert json.loads((tmp_path / "e" / "experiment.json").read_text())["compared"] == ["e_stage2"]


def test_a_stage_begins_with_the_weights_of_the_one_before(tmp_path):
    stages = {"datasets": [{"source": name, "count": 32} for name in ("sort_digits", "reverse_digits")]}
    _, result = heard_in(tmp_path, run={**RUN, "eval": []}, continual=stages)
    _, second = result.arms
    assert second.run_config.model.path == str(tmp_path / "e" / "e_stage0" / "model")
    assert [arm.group_name for arm in result.arms] == ["e", "e"]


def test_a_failed_arm_does_not_stop_the_others(tmp_path):
    wrong = {**RUN, "model": {"path": str(tmp_path / "nowhere")}}
    listener, result = heard_in(tmp_path, runs={"a": wrong, "b": RUN})
    assert listener.heard == [
        "experiment_start", "run_start a", "run_end a failed", *of_a_run("b"), "experiment_end failed",
    ]  # fmt: skip
    assert [arm.status for arm in result.arms] == ["failed", "completed"]
    assert "nowhere" in result.arms[0].error
    assert result.best_arm == "b"
    assert "without a value: a (failed)" in result.conclusion


def test_a_chain_ends_at_its_first_failure(tmp_path):
    (tmp_path / "long.jsonl").write_text('{"prompt": "' + "1" * 40 + '", "answer": "1"}\n')  # for this model
    stages = {"datasets": ["sort_digits", str(tmp_path / "long.jsonl"), "sort_digits"]}
    judged = {"benchmark": [{**BENCHMARK, "source": "sort_digits"}]}
    listener, result = heard_in(tmp_path, run={**RUN, "eval": []}, continual=stages, metadata=judged)
    assert [arm.status for arm in result.arms] == ["completed", "failed", "cancelled"]
    assert "not run: e_stage1 failed" in result.arms[2].error
    assert "run_start e_stage2" not in listener.heard


class Interrupt(Callback):
    def __init__(self, at):
        self.at = at

    def on_step_end(self, state, step_idx, batch, metrics):
        if state.ctx.run_key == self.at:
            raise KeyboardInterrupt


def test_ctrl_c_ends_the_run_and_the_experiment(tmp_path):
    listener = Listener()
    experiment = Experiment(
        {"name": "e", "output_dir": str(tmp_path), "runs": {"a": RUN, "b": RUN, "c": RUN}, **JUDGED},
        [listener, Interrupt("b")],
    )
    with pytest.raises(KeyboardInterrupt):
        experiment.run()
    assert listener.heard == [
        "experiment_start", *of_a_run("a"), "run_start b", "train_start", "train_end", "run_end b cancelled",
        "experiment_end cancelled",
    ]  # fmt: skip


def test_what_the_loop_scored_is_in_the_arm(tmp_path):
    listener, result = heard_in(tmp_path, run=RUN)
    arm = result.arms[0]
    assert [(one.name, one.step) for one in arm.evals] == [("held_out", 0), ("held_out", 1), ("after", None)]
    assert arm.eval("held_out", step=1).metrics.keys() >= {"exact", "completion_tokens"}
    assert arm.score("after.by_place") == arm.eval("after").metrics["by_place"]
    assert listener.arms["e"].evals == arm.evals


def lengths(policy):
    return {"steps": float(policy.step)}


def test_the_loss_of_a_supervised_run_and_a_function_of_ones_own_are_evals_like_others(tmp_path):
    evals = [
        {"name": "loss", "kind": "loss", "count": 4, "run_every": 1, "tags": ["plain"]},
        {"name": "own", "evaluator": f"{__name__}:lengths", "run_every": 2, "baseline": False},
    ]
    listener, result = heard_in(tmp_path, run={**RUN, "eval": evals}, metadata={})
    (arm,) = result.arms
    assert [(one.name, one.step, one.tags) for one in arm.evals] == [
        ("loss", -1, ["plain"]), ("loss", 0, ["plain"]), ("own", 1, []), ("loss", 1, ["plain"]),
    ]  # fmt: skip
    assert arm.eval("loss", 1).metrics.keys() == {"eval_loss", "perplexity"}
    assert arm.eval("loss", 1).benchmark_id == "sort_digits"
    assert arm.score("own.steps") == 2.0
    assert listener.heard.index("eval loss 0") + 1 == listener.heard.index("benchmark_eval loss 0 0")
