"""What the pages show is true: every configuration in them fits the schema, and every `proa …` the argument parser.

Python runs by itself (conftest.py at the root); what needs files beside it runs here, with few steps.
"""

import argparse
import re
import shlex
from dataclasses import dataclass

import pytest
import yaml
from tests.small import DETACHED, MODEL

from proa import Callback
from proa.callbacks.registry import check_callback
from proa.cli.main import make_parser
from proa.config import ConfigError, load_run_config, outline_run_config
from proa.config.run_config import DetachedConfig
from proa.policy.models import load_model
from proa.tasks.builtin.characters import tokenizer

BASE = {**DETACHED, "total_steps": 2}
COMMAND_LINE = ("proa ", "make", "pip ", "export ", "python ")


@dataclass(frozen=True)
class Snippet:
    place: str
    language: str
    text: str


def pages(repository):
    folders = (repository / "docs", repository / "examples", repository)
    return [page for folder in folders for page in sorted(folder.glob("*.md"))]


def blocks(repository):
    for page in pages(repository):
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            line = text[: found.start()].count("\n") + 2
            yield Snippet(f"{page.relative_to(repository)}:{line}", found[1], found[2])


def commands(repository):
    """Whole command lines in blocks, and what the text says between backticks, which may leave out what is plain."""
    for block in blocks(repository):
        for line in block.text.splitlines():
            if line.startswith("proa "):
                yield Snippet(block.place, "whole", line.split(" #")[0])
    for page in pages(repository):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for said in re.findall(r"`(proa [^`]*)`", text):
            yield Snippet(str(page.relative_to(repository)), "mention", said)


class WrongUseError(Exception):
    pass


@pytest.fixture
def parse(monkeypatch):
    """What is left of a command line are settings; whoever leaves out what is required only mentions a command."""

    def error(self, message):
        raise WrongUseError(message)

    monkeypatch.setattr(argparse.ArgumentParser, "error", error)
    for verb in make_parser()._subparsers._group_actions[0].choices.values():
        monkeypatch.setattr(type(verb), "error", error)

    def parsed(snippet):
        said = re.split(r" [|>] | 2>|…", snippet.text)[0]
        words = shlex.split(
            re.sub(r"\b(N|STEP)\b", "1", re.sub(r"[][]", "", said)) if snippet.language == "mention" else said
        )[1:]
        if snippet.language == "mention" and words[1:] and words[1].startswith("--") and words[0] != "config":
            words.insert(1, "RUN")
        try:
            options, rest = make_parser().parse_known_args([word for word in words if word not in ("--key", "value")])
        except WrongUseError as wrong:
            if snippet.language == "mention" and re.search("required|expected one argument", str(wrong)):
                return argparse.Namespace(takes_flags=True), []
            raise
        assert options.takes_flags or not rest, f"{snippet.place}: {snippet.text}: {rest}"
        return options, rest

    return parsed


def test_every_command_line_is_one(repository, parse, tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump(BASE))
    found = list(commands(repository))
    assert len(found) > 60
    for snippet in found:
        try:
            options, flags = parse(snippet)
            file = repository / str(getattr(options, "file", ""))
            if flags:
                outline_run_config(file if file.suffix == ".yaml" and file.exists() else base, flags)
            assert "examples/" not in str(file) or file.exists(), file
        except (WrongUseError, ConfigError, SystemExit) as error:
            pytest.fail(f"{snippet.place}: {snippet.text}: {error}")


def test_every_configuration_fits_the_schema(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("SLACK_WEBHOOK_URL", "https://hooks.invalid/0")
    found = [block for block in blocks(repository) if block.language == "yaml"]
    assert len(found) > 5
    for block in found:
        content = yaml.safe_load(block.text.replace("s3://bucket", str(tmp_path)))  # that needs s3fs
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump({**BASE, **content}))
        is_own = ":" in str(content.get("algorithm", {})) and "my_" in str(content["algorithm"])
        try:
            config = outline_run_config(file) if is_own else load_run_config(file)
            for callback in config.callbacks:
                if not callback.kind.startswith("my_"):
                    check_callback(callback.model_dump())
        except Exception as error:
            pytest.fail(f"{block.place}: {error}")


def test_a_configuration_is_marked_as_one(repository):
    """Then the test above sees it."""
    keys = set(DetachedConfig.model_fields) | {"runs", "matrix", "n_repeats"}
    for block in blocks(repository):
        if block.language or block.text.startswith(COMMAND_LINE):
            continue
        try:
            content = yaml.safe_load(block.text)
        except yaml.YAMLError:
            continue
        assert not isinstance(content, dict) or not keys & content.keys(), block.place


def python_with_files(repository, page):
    """Blocks of Python that are not run as they are, because they need files."""
    found = [block.text for block in blocks(repository) if not block.language and block.place.startswith(page)]
    return [text for text in found if text.startswith("from proa")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model, its data and a configuration, under the names that the pages use."""
    monkeypatch.chdir(tmp_path)
    load_model(MODEL, seed=0).save_pretrained("my/model")
    tokenizer().save_pretrained("my/model")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "12>", "answer": "12"}\n' * 8)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(BASE))
    return tmp_path


def my_reward(prompts, completions, **columns):
    return [float(len(completion)) for completion in completions]


def test_the_page_for_those_who_come_from_trl_runs_from_python(repository, folder):
    (text,) = python_with_files(repository, "docs/from_trl.md")
    for name, short in (("total_steps=", 1), ("train_batch_size=", 8), ('"max_new_tokens": ', 4)):
        text, found = re.subn(rf"{name}\d+", f"{name}{short}", text)
        assert found == 1
    exec(text, {"my_reward": my_reward})
    assert len(list(folder.glob("out/grpo*/model/config.json"))) == 1


def test_the_page_about_running_runs_from_python(repository, folder):
    (text,) = python_with_files(repository, "docs/running.md")
    names = {"MyCallback": Callback}
    exec(text, names)
    assert names["state"].global_step == BASE["total_steps"]
    assert (names["state"].model_dir / "config.json").is_file()
