"""What is wrong with an experiment is found before its first run begins."""

import pytest
from tests.experiments.small_experiment import BENCHMARK, RUN, Listener

from proa.config import ConfigError
from proa.experiments import Experiment

RL = {**RUN, "algorithm": "grpo", "sampling": {"group_size": 2, "max_new_tokens": 7}, "reward": {"workers": 0}}


def judged(**section):
    return {"metadata": {"benchmark": [BENCHMARK | section]}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"runs": {"a": RUN, "b": {**RUN, "task": "sort_digit"}}}, "arm b: .*sort_digit"),
        ({"runs": {"a": RUN, "b": {**RL, "reward": {"functions": ["nowhere:f"]}}}}, "arm b: .*nowhere"),
        ({"runs": {"a": RUN, "b": {**RL, "reward": {"functions": ["json:JSONDecoder"]}}}}, "arm b: "),
        ({"run": RUN, "continual": {"datasets": ["sort_digits", "nosuch"]}}, "arm e_stage1: .*nosuch"),
        ({"run": RUN, **judged(source="reasoning_gym:nosuch")}, "arm e: "),
        ({"run": RUN, **judged(metric="nowhere:f")}, "arm e: .*nowhere"),
        ({"run": RUN, "metadata": {"benchmark": [{"name": "own", "evaluator": "math:pi"}]}}, "is not a function"),
        ({"run": RUN, "metadata": {"success_metric": "held_ut.exact"}}, "no eval 'held_ut'.*held_out"),
        ({"run": RUN, "metadata": {"success_metric": "zebra.exact"}}, "no eval .zebra.: it has held_out"),
        ({"run": RUN, "metadata": {"success_metric": "held_out.exct"}}, "has no 'exct'.*exact"),
    ],
)  # fmt: skip
def test_a_mistake_in_any_arm_is_told_before_anything_runs(tmp_path, changes, told):
    listener = Listener()
    with pytest.raises(ConfigError, match=told):
        Experiment({"name": "e", "output_dir": str(tmp_path), **changes}, [listener]).run()
    assert listener.heard == []
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("metric", ["held_out.exact", "held_out.completion_tokens", "loss", "trainer.compute_seconds"])
def test_what_there_may_be_is_let_through(tmp_path, metric):
    run = {**RUN, "total_steps": 1}
    config = {"name": "e", "output_dir": str(tmp_path), "run": run, "metadata": {"success_metric": metric}}
    assert Experiment(config).run().status == "completed"
