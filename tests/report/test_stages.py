"""Stages of a continual experiment on the page: all are shown, and arms are compared by their last."""

from tests.experiments.small_experiment import RUN

from proa.experiments import Experiment
from proa.report.comparing import arms_compared
from proa.report.reading import read_subject


def test_arms_are_compared_by_their_last_stage(tmp_path):
    arms = {name: {**RUN, "total_steps": 1, "seed": 0} for name in ("a", "b")}
    stages = {"datasets": [{"source": "sort_digits", "count": 32}] * 2}
    Experiment({"name": "e", "output_dir": str(tmp_path), "runs": arms, "continual": stages,
                "metadata": {"success_metric": "held_out.exact"}}).run()  # fmt: skip
    page = "".join(str(part) for part in arms_compared(read_subject(tmp_path / "e")).body)
    _, _, differences = page.partition("Differences in held_out.exact")
    differences, _, runs = differences.partition("Runs</h3>")
    assert "a_stage1" in differences
    assert "b_stage1" in differences
    assert "stage0" not in differences
    assert all(f"{arm}_stage{stage}" in runs for arm in "ab" for stage in (0, 1))
