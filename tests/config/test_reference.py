"""`proa config`: every setting, complete and in words; templates that run."""

import json
from dataclasses import fields
from typing import Annotated

import pytest
import yaml
from pydantic import TypeAdapter

from proa.algorithms import ALGORITHMS, build_algorithm
from proa.cli.main import main
from proa.config import load_run_config
from proa.config.algorithm_outlines import OUTLINES
from proa.config.examples import EXAMPLES
from proa.config.reference import _walk, as_markdown, params, sections, settings, template
from proa.config.run_config import DetachedConfig, SupervisedConfig
from proa.config.supervised_settings import SUPERVISED
from proa.recipes import run as run_recipe


def keys_of(schema, content=None, before=""):
    """All keys that the JSON schema of a configuration has, by another way than the reference's own."""
    content = content or schema
    for name, field in content["properties"].items():
        found = json.dumps(field)
        inner = [ref for ref in schema["$defs"] if f'"#/$defs/{ref}"' in found]
        if not inner:
            yield f"{before}{name}"
            continue
        in_list = "[]" if field.get("type") == "array" else ""
        yield from keys_of(schema, schema["$defs"][inner[0]], f"{before}{name}{in_list}.")


def test_the_list_is_the_schema():
    listed = [setting.key for setting in settings()]
    assert len(listed) == len(set(listed)) > 100
    assert set(listed) == set(keys_of(DetachedConfig.model_json_schema()))
    supervised = {setting.key for setting in settings() if setting.kinds == "all"}
    assert supervised == set(keys_of(SupervisedConfig.model_json_schema()))


def test_each_setting_says_what_it_means_what_it_is_and_its_default():
    for setting in settings():
        assert setting.meaning, setting.key
        assert setting.type, setting.key
        assert not setting.type.startswith("<"), setting
    assert all(sections().values())


def test_each_setting_has_an_example_that_is_another_value_of_its_type():
    fields = dict(_walk(DetachedConfig))
    assert set(EXAMPLES) <= set(fields)
    for setting in settings():
        field, value = fields[setting.key], yaml.safe_load(setting.example)
        assert setting.example != setting.default
        kind = field.annotation
        for rule in field.metadata:
            kind = Annotated[kind, rule]
        TypeAdapter(kind).validate_python(value)


def test_the_settings_of_algorithms_are_listed_with_their_examples():
    by_name = {one.key.removeprefix("algorithm.params."): one for one in params()}
    names = {name for outline in OUTLINES.values() for name in outline.settings}
    assert by_name.keys() == names | {one.name for kind in SUPERVISED.values() for one in fields(kind)}
    for name, one in by_name.items():
        example = {name: yaml.safe_load(one.example)}
        if name == "kl_target":
            example["kl_reward_coefficient"] = 0.05
        for algorithm, outline in OUTLINES.items():
            if name in outline.settings:
                assert getattr(build_algorithm(algorithm, **example), name) == example[name]
        for kind in SUPERVISED.values():
            if name in {field.name for field in fields(kind)}:
                assert getattr(kind(**example), name) == example[name] != kind.__dataclass_fields__[name].default


def test_a_setting_of_an_algorithm_is_shown_by_its_own_name_too(capsys):
    for key in ("clip_high", "algorithm.params.clip_high"):
        assert main(["config", key]) == 0
        printed = capsys.readouterr().out
        assert "--algorithm.params.clip_high 0.28" in printed
        assert "dapo 0.28, gspo 0.0004, cispo 4.0" in " ".join(printed.split())


def test_one_setting_is_shown_as_it_is_written(capsys):
    assert main(["config", "reward.model.weight"]) == 0
    printed = capsys.readouterr().out
    assert "in a file:  reward: {model: {weight: 0.5}}" in printed
    assert "as a flag:  --reward.model.weight 0.5" in printed


def test_defaults_are_those_of_a_run():
    config = DetachedConfig(total_steps=1, train_batch_size=8, model={"path": "m"}, task="sort_digits")
    shown = {setting.key: setting.default for setting in settings()}
    for section in ("sampling", "optimizer", "checkpoint", "ray", "record"):
        for name, value in getattr(config, section).model_dump().items():
            if isinstance(value, bool | int | float | str):
                assert yaml.safe_load(shown[f"{section}.{name}"]) in (value, str(value)), (section, name)


def test_the_page_of_the_docs_is_this(repository):
    assert (repository / "docs/settings.md").read_text() == as_markdown(), "proa config --markdown > docs/settings.md"


@pytest.mark.parametrize("recipe", [*ALGORITHMS, *SUPERVISED])
def test_a_template_is_a_configuration_and_sets_what_it_shows(recipe, tmp_path):
    text = template(recipe)
    file = tmp_path / "run.yaml"
    file.write_text(text)
    plain = load_run_config(file)
    assert plain.algorithm.name == recipe
    marked = "\n".join(line.replace("  # ", "  ", 1) if line.startswith("  # ") else line for line in text.splitlines())
    file.write_text(marked)
    assert load_run_config(file) == plain  # what is a comment is at its default


@pytest.mark.parametrize("recipe", ["grpo", "ppo", *SUPERVISED])
def test_a_template_runs_as_it_is(recipe, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(template(recipe))
    state = run_recipe(file, output_dir=str(tmp_path), total_steps=1, **{"eval.0.count": 8})
    assert state.global_step == 1
    assert any(name.startswith("held_out.") for name in state.metrics)


def test_the_command_prints_all_a_section_and_one(capsys):
    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    assert all(section in printed for section in sections())
    assert max(map(len, printed.splitlines())) <= 80
    assert main(["config", "lora", "--json"]) == 0
    assert [one["key"] for one in json.loads(capsys.readouterr().out)] == [one.key for one in settings("lora")]
    assert main(["config", "checkpoint.save_every"]) == 0
    assert "save_every" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["optimzer"], "did you mean 'optimizer'?"),
        (["group_size"], "here it is sampling.group_size"),
        (["lr"], "'lr': here it is optimizer.learning_rate"),
        (["--template", "gropo"], "there is no algorithm 'gropo'; did you mean 'grpo'?"),
    ],
)
def test_mistakes_are_answered(arguments, said, capsys):
    assert main(["config", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_help_of_train_names_the_sections_and_points_here(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert all(f" {section}" in printed for section in sections())
    assert "proa config lists every key" in printed
