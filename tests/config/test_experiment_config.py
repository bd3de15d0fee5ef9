"""The configuration of an experiment: which arms there are, what they are called, and mistakes with their lines."""

import itertools

import pytest

from proa.config import ConfigError, ExperimentConfig, arm_config, load_experiment_config

RUN = {
    "total_steps": 10, "train_batch_size": 16, "task": "sort_digits", "model": {"config": {"model_type": "llama"}},
    "eval": [{"name": "held_out"}],
}  # fmt: skip
NO_MODEL = {key: value for key, value in RUN.items() if key != "model"}
NO_TASK = {key: value for key, value in RUN.items() if key != "task"}


def matrix(over, run=RUN, **others):
    return load_experiment_config(None, matrix={"run": run, "over": over}, **others)


@pytest.fixture
def read(tmp_path):
    """Loads text as if it were a file."""

    def load(text, *flags):
        path = tmp_path / "experiment.yaml"
        path.write_text(text)
        return load_experiment_config(path, flags)

    return load


# Names of a matrix's arms.


def models_of(*paths):
    """What each arm's model is, by the arm's name."""
    config = matrix({"model.path": list(paths)}, NO_MODEL)
    return {name: arm_config(config, name).model.path for name in config.arms}


def test_arms_of_a_matrix_are_every_combination_by_last_word_and_value():
    config = matrix({"optimizer.learning_rate": [1e-4, 3e-4], "sampling.group_size": [4, 8]})
    assert {
        name: (run.optimizer.learning_rate, run.sampling.group_size)
        for name in config.arms
        for run in [arm_config(config, name)]
    } == {
        "learning_rate-0.0001.group_size-4": (1e-4, 4), "learning_rate-0.0001.group_size-8": (1e-4, 8),
        "learning_rate-0.0003.group_size-4": (3e-4, 4), "learning_rate-0.0003.group_size-8": (3e-4, 8),
    }  # fmt: skip


def test_values_that_would_be_called_the_same_are_numbered():
    assert models_of("org/m", "org-m", "org m") == {
        "path-org-m": "org/m", "path-org-m-2": "org-m", "path-org-m-3": "org m",
    }  # fmt: skip


def test_a_numbered_name_takes_no_others_place():
    assert models_of("org/m", "org-m", "org-m-2") == {
        "path-org-m": "org/m", "path-org-m-2": "org-m", "path-org-m-2-2": "org-m-2",
    }  # fmt: skip


def test_the_number_stands_with_the_value_that_it_tells_apart():
    config = matrix({"model.path": ["org/m", "org-m"], "optimizer.learning_rate": [0.1]}, NO_MODEL)
    assert list(config.arms) == ["path-org-m.learning_rate-0.1", "path-org-m-2.learning_rate-0.1"]


def test_combinations_that_would_be_called_the_same_are_numbered_too():
    over = {"model.path": ["x", "x.path-y"], "model.tokenizer.path": ["y.path-z", "z"]}
    config = ExperimentConfig(matrix={"run": NO_MODEL, "over": over})
    assert list(config.arms) == ["path-x.path-y.path-z", "path-x.path-z", "path-x.path-y.path-y.path-z",
                                 "path-x.path-y.path-z-2"]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("../m", "path-m"),
        ("/data/m", "path--data-m"),
        ("a__small", "path-a_small"),
        ("a..b", "path-a-b"),
        ("m.", "path-m"),
        ("é", "path"),
        ("x" * 300, "path-" + "x" * 155),
    ],
)
def test_any_value_gives_a_name_that_an_arm_can_have(path, name):
    assert models_of(path) == {name: path}


def test_long_names_that_are_cut_to_the_same_are_numbered():
    long, longer = "x" * 200, "x" * 201
    assert models_of(long, longer) == {"path-" + "x" * 155: long, "path-" + "x" * 155 + "-2": longer}


def test_a_negative_value_has_a_name_of_its_own():
    over = {"optimizer.learning_rate": [-1, 1]}
    assert list(ExperimentConfig(matrix={"run": RUN, "over": over}).arms) == ["learning_rate--1", "learning_rate-1"]


# What the experiment says of every run.


@pytest.mark.parametrize("others", [{"base_seed": 5}, {"n_repeats": 2}])
def test_a_matrix_over_seeds_that_the_experiment_gives_is_refused(others):
    with pytest.raises(ConfigError, match=r"matrix\.over\.seed: base_seed and n_repeats set the seeds"):
        matrix({"seed": [1, 2]}, **others)


def test_a_matrix_over_seeds_alone_gives_an_arm_for_each():
    config = matrix({"seed": [1, 2]})
    assert [arm_config(config, name).seed for name in config.arms] == [1, 2]


@pytest.mark.parametrize("key", ["task", "task.count"])
def test_a_matrix_over_tasks_that_stages_replace_is_refused(key):
    with pytest.raises(ConfigError, match=rf"matrix\.over\.{key}: continual\.datasets sets the tasks"):
        matrix({key: ["3", "4"]}, continual={"datasets": ["sort_digits"]})


def test_a_matrix_over_tasks_alone_gives_an_arm_for_each():
    config = matrix({"task": ["copy", "sort_digits"]})
    assert [arm_config(config, name).task.source for name in config.arms] == ["copy", "sort_digits"]


def test_a_continual_arm_needs_no_task_of_its_own():
    config = load_experiment_config(None, run=NO_TASK, continual={"datasets": ["copy", "sort_digits"]})
    assert arm_config(config, "experiment").task.source == "copy"
    with pytest.raises(ConfigError, match="'task' is missing"):
        load_experiment_config(None, run=NO_TASK)


def test_a_key_of_a_matrix_that_would_undo_another_is_refused():
    wide, first = [{"path": "a"}, {"path": "b"}], {"model.dtype": ["float32", "float64"]}
    with pytest.raises(ConfigError, match=r"matrix\.over\.model would overwrite model\.dtype, .*: swap them"):
        matrix(first | {"model": wide}, NO_MODEL)
    config = matrix({"model": wide} | first, NO_MODEL)
    models = [arm_config(config, name).model for name in config.arms]
    assert [(model.path, model.dtype) for model in models] == list(
        itertools.product(["a", "b"], ["float32", "float64"])
    )


# Mistakes.

GOOD = {"runs": {"a": RUN, "b": RUN}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": RUN}, "exactly one of run, runs and matrix, not run and runs"),
        ({"runs": None}, "exactly one of run, runs and matrix, not none of them"),
        ({"runs": {}}, "runs is empty: an experiment has at least one arm"),
        ({"runs": {"a__s1": RUN}}, "'a__s1' cannot name an arm: .* not __s"),
        ({"runs": {"a/b": RUN}}, "'a/b' cannot name an arm"),
        ({"runs": {"a..b": RUN}}, "'a..b' cannot name an arm"),
        ({"runs": {"a": {**RUN, "output_dir": "x"}}}, "arm a: output_dir is set by the experiment"),
        ({"runs": {"a": {**RUN, "name": "x"}}}, "arm a: name is set by the experiment"),
        ({"runs": [{**RUN, "name": "a"}, {**RUN, "name": "a"}]}, "two runs are called 'a'"),
        ({"runs": [RUN]}, "runs, entry 0: give it a name"),
        ({"runs": [{**RUN, "name": ["a"]}]}, "runs, entry 0: give it a name"),
        ({"runs": None, "matrix": {"run": RUN, "over": {}}}, "matrix.over: .*at least 1"),
        ({"runs": None, "matrix": {"run": RUN, "over": {"seed": []}}}, r"matrix\.over\.seed has no values"),
        (
            {"runs": None, "matrix": {"run": RUN, "over": {"seed": [1, 1]}}},
            r"matrix\.over\.seed has the same value twice",
        ),
        (
            {"runs": None, "matrix": {"run": RUN, "over": {"name": ["x"]}}},
            r"matrix\.over\.name: .* set by the experiment",
        ),
        (
            {"runs": None, "run": RUN, "name": "lr__sweep"},
            "with run, the experiment's name 'lr__sweep' is also the name",
        ),
        ({"arms_on": "ray"}, "arms_on: ray .*: set max_concurrent_arms"),
        ({"ray_address": "auto"}, "ray_address is the cluster .*: write arms_on: ray with it"),
        ({"ray_address": "auto", "max_concurrent_arms": 2}, "ray_address is the cluster"),
        ({"metadata": {"benchmark": [{"name": "x"}, {"name": "x"}]}}, "two of metadata.benchmark are called 'x'"),
        ({"metadata": {"benchmark": [{"name": "x", "apart": False}]}}, "^benchmark x: apart is for evals in the loop"),
        ({"metadata": {"benchmark": [{"name": "x", "kind": "loss"}]}}, "^benchmark x: kind is for evals in the loop"),
        ({"metadata": {"benchmark": [{"name": "x", "tag": []}]}}, "metadata.benchmark.0.tag'; did you mean 'tags'"),
    ],
)
def test_mistakes_in_an_experiment_are_told_in_words(changes, words):
    load_experiment_config(None, **GOOD)
    given = {key: value for key, value in (GOOD | changes).items() if value is not None}
    with pytest.raises(ConfigError, match=words) as refused:
        load_experiment_config(None, **given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{arm}", r"must contain both \{arm\} and \{stage\}"),
        ("stage{stage}", r"must contain both \{arm\} and \{stage\}"),
        ("{arm}_{step}", r"may contain \{arm\} and \{stage\} only: 'step'"),
        ("{arm.x}_{stage}", r"may contain \{arm\} and \{stage\} only: .* no attribute 'x'"),
        ("{arm[x]}_{stage}", r"may contain \{arm\} and \{stage\} only"),
        ("{arm}_{}", r"may contain \{arm\} and \{stage\} only"),
        ("{arm}_{stage", r"may contain \{arm\} and \{stage\} only"),
        ("{arm}/{stage}", "gives names like 'a/0': use letters"),
        ("{arm}__s{stage}", "gives names like 'a__s0': .*not __s"),
    ],
)
def test_a_template_that_names_no_stages_is_refused(template, words):
    with pytest.raises(ConfigError, match=words) as refused:
        load_experiment_config(None, run=RUN, continual={"datasets": ["copy"], "name_template": template})
    assert str(refused.value).startswith(f"continual.name_template {template!r}")


def test_ray_with_several_tasks_at_a_time_is_taken():
    config = load_experiment_config(None, **GOOD, arms_on="ray", ray_address="auto", max_concurrent_arms=2)
    assert (config.arms_on, config.ray_address) == ("ray", "auto")


def test_the_name_of_an_experiment_with_several_arms_may_be_what_no_arms_is():
    assert load_experiment_config(None, **GOOD, name="lr__sweep").name == "lr__sweep"


def test_runs_may_be_a_list_with_names():
    config = load_experiment_config(None, runs=[{**RUN, "name": "a"}, {**RUN, "name": "b", "seed": 3}])
    assert [(name, arm_config(config, name).seed) for name in config.arms] == [("a", 0), ("b", 3)]


# Their lines.

ARM = """\
    total_steps: 10
    train_batch_size: 16
    task: sort_digits
    model: {config: {model_type: llama}}
"""
LISTED = f"runs:\n  - name: a\n{ARM}    optimizer:\n      learning_rate: 1e-3\n  - name: b\n{ARM}"
MATRIX = f"matrix:\n  run:\n{ARM}  over:\n    optimizer.learning_rate: [1e-3]\n    sampling:\n      - group_size: 8\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (LISTED, "- name: b", "- seed: 1", "line 9: runs, entry 1: give it a name"),
        (LISTED, "- name: b", "- name: a", "line 9: two runs are called 'a'"),
        (LISTED, "- name: b", "- name: a__s", "line 9: 'a__s' cannot name an arm"),
        (LISTED, "learning_rate", "lerning_rate", "^arm a: .*line 8: unknown key 'optimizer.lerning_rate'"),
        (
            LISTED,
            "    optimizer:",
            "    output_dir: x\n    optimizer:",
            "line 7: arm a: output_dir is set by the experiment",
        ),
        (MATRIX, "learning_rate", "lerning_rate", "^arm .*line 8: unknown key 'optimizer.lerning_rate'"),
        (MATRIX, ".learning_rate: [1e-3]", ".rate:\n      - 1", "^arm .*line 8: unknown key 'optimizer.rate'"),
        (MATRIX, "[1e-3]", "[many]", "^arm .*line 8: optimizer.learning_rate must be a number, not 'many'"),
        (MATRIX, "[1e-3]", "[]", "line 8: matrix.over.optimizer.learning_rate has no values"),
        (MATRIX, "group_size", "groupsize", "line 10: unknown key 'sampling.groupsize'"),
        (MATRIX, "optimizer.learning_rate:", "total_steps.x:", "line 8: total_steps is 10, so total_steps.x cannot"),
        (MATRIX, "optimizer.learning_rate:", "1:", "line 8: matrix.over.1 must be text, not 1"),
        (MATRIX, "matrix:", "ray_address: auto\nmatrix:", "line 1: ray_address is the cluster"),
        (MATRIX, "matrix:", "arms_on: ray\nmatrix:", "line 1: arms_on: ray"),
        (MATRIX, "matrix:", "continual:\n  datasets: [x]\n  name_template: x\nmatrix:", "line 3: continual.name_temp"),
        (
            MATRIX,
            "matrix:",
            "metadata:\n  benchmark:\n    - {name: x}\n    - {name: x}\nmatrix:",
            "line 4: two of metadata.benchmark are called 'x'",
        ),
        (
            MATRIX,
            "matrix:",
            "metadata:\n  benchmark:\n    - name: x\n      run_every: 5\nmatrix:",
            "line 4: benchmark x: run_every is for evals in the loop, .* Leave run_every out, or add an eval",
        ),
        (MATRIX, "    task:", "    total_steps: 11\n    task:", "line 5: matrix.run.total_steps is already in line 3"),
    ],
)
def test_mistakes_in_a_file_are_told_with_their_line(read, text, old, new, words):
    read(text)
    assert old in text
    with pytest.raises(ConfigError, match=words):
        read(text.replace(old, new, 1))


def test_two_arms_of_one_name_in_a_file_are_refused(read):
    with pytest.raises(ConfigError, match=r"experiment\.yaml, line 4: runs\.a is already in line 2"):
        read("runs:\n  a:\n    seed: 1\n  a:\n    seed: 2\n")


def test_keys_may_be_merged_from_several_places(read):
    text = f"runs:\n  a: &a\n{ARM}  b: &b\n    seed: 3\n  c:\n    <<: *a\n    <<: *b\n    total_steps: 11\n"
    config = read(text.replace("  b: &b\n", "  b: &b\n    <<: *a\n"))
    run = arm_config(config, "c")
    assert (run.seed, run.total_steps, run.train_batch_size) == (3, 11, 16)


def test_a_flag_for_one_arm_does_not_change_another_that_is_written_by_an_alias(tmp_path):
    (tmp_path / "x.yaml").write_text(
        "runs:\n"
        "  a: &arm {total_steps: 1, train_batch_size: 8, task: sort_digits, model: m, optimizer: {learning_rate: .1}}\n"
        "  b: {<<: *arm, seed: 1}\n"
    )
    config = load_experiment_config(tmp_path / "x.yaml", ["--runs.b.optimizer.learning_rate", "0.5"])
    assert {name: arm.content["optimizer"] for name, arm in config.arms.items()} == {
        "a": {"learning_rate": 0.1}, "b": {"learning_rate": 0.5},
    }  # fmt: skip
