"""Configuration: files, flags, and mistakes told with the line and the right name."""

import os
import time

import pytest

from proa.config import ConfigError, load_experiment_config, load_run_config

GOOD = """\
name: first
total_steps: 10
train_batch_size: 16
sampling:
  group_size: 4
model:
  config: {model_type: llama}
task: sort_digits
algorithm: grpo
optimizer:
  learning_rate: 3e-5
eval:
  - name: sort_digits
    run_every: 5
"""


@pytest.fixture
def file(tmp_path):
    def write(text=GOOD):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write


def test_a_file_is_read_with_its_short_forms(file):
    config = load_run_config(file())
    assert (config.task.source, config.algorithm.name) == ("sort_digits", "grpo")
    assert config.optimizer.learning_rate == 3e-5
    assert (config.prompts_per_step, config.prompts_per_lease) == (4, 1)
    assert str(config.folder) == "runs/first"


def test_flags_come_after_the_file_dotted_and_with_either_dash(file):
    flags = [
        "--total-steps",
        "20",
        "--sampling.group_size=8",
        "--optimizer.learning-rate",
        "1e-3",
        "--algorithm.params.clip_low",
        "0.1",
    ]
    config = load_run_config(file(), flags)
    assert (config.total_steps, config.sampling.group_size, config.optimizer.learning_rate) == (20, 8, 1e-3)
    assert (config.algorithm.name, config.algorithm.params) == ("grpo", {"clip_low": 0.1})


def test_keywords_change_it_too(file):
    assert load_run_config(file(), makers=3, name="other").makers == 3


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("total_steps: 10", "total_step: 10", r"line 2: unknown key 'total_step'; did you mean 'total_steps'\?"),
        (
            "  group_size: 4",
            "  groupsize: 4",
            "line 5: unknown key 'sampling.groupsize'; did you mean 'group_size'",
        ),
        (
            "    run_every: 5",
            "    run_evry: 5",
            "line 14: unknown key 'eval.0.run_evry'; did you mean 'run_every'",
        ),
        ("total_steps: 10", "total_steps: many", "line 2: total_steps must be a whole number, not 'many'"),
        ("total_steps: 10", "", "'total_steps' is missing"),
        ("  group_size: 4", "  group_size: 1", "sampling.group_size must be at least 2"),
        ("train_batch_size: 16", "train_batch_size: 18", "is not a multiple of sampling.group_size=4"),
        ("name: first", "name: ../escape", "line 1: name: "),
        ("model:", "model: [", "is not YAML"),
    ],
)
def test_mistakes_in_the_file_are_told_with_line_and_remedy(file, old, new, words):
    assert old in GOOD
    with pytest.raises(ConfigError, match=words):
        load_run_config(file(GOOD.replace(old, new)))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--total_stepz", "3"], "did you mean 'total_steps'"),
        (["total_steps", "3"], "'total_steps' is not a flag"),
        (["--total_steps"], "--total_steps needs a value"),
        (["--lease_prompts", "3"], "lease_prompts=3 does not divide the 4 prompts"),
    ],
)
def test_mistakes_in_flags_are_told(file, flags, words):
    with pytest.raises(ConfigError, match=words):
        load_run_config(file(), flags)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_run_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(("prompts", "lease"), [(64, 16), (6, 1), (7, 1), (10, 2), (1, 1), (4, 1), (36, 9)])
def test_a_lease_is_about_a_quarter_of_a_batch_and_divides_it(file, prompts, lease):
    assert load_run_config(file(), train_batch_size=4 * prompts).prompts_per_lease == lease


@pytest.mark.parametrize(
    "name", ["..", "../out", "/tmp/out", "a/b", "", ".hidden", "-x", "a b", "é", "a\\0", "a" * 201]
)
@pytest.mark.parametrize("key", ["name", "eval"])
def test_a_name_that_is_no_plain_folder_name_is_refused_in_words(file, key, name):
    changes = {"name": name} if key == "name" else {"eval": [{"name": name}]}
    with pytest.raises(ConfigError) as refused:
        load_run_config(file(), **changes)
    words = "this is the name of a folder: use at most 200 letters, digits, dots, dashes and underscores"
    assert f"{'name' if key == 'name' else 'eval.0.name'}: {words}" in str(refused.value)
    assert str(refused.value).endswith(f", not {name!r}")


@pytest.mark.parametrize("name", ["a", "Sort_digits-2.1", "0", "a" * 200])
def test_a_plain_folder_name_is_taken_for_runs_and_evals(file, name):
    config = load_run_config(file(), name=name, eval=[{"name": name}])
    assert (config.name, config.eval[0].name) == (name, name)


def test_the_line_of_an_evals_wrong_name_is_told(file):
    with pytest.raises(ConfigError, match=r"line 13: eval\.0\.name: this is the name of a folder"):
        load_run_config(file(GOOD.replace("  - name: sort_digits", "  - name: ../sort_digits")))


# Places in lists.


def in_a_list(*flags, **changes):
    from proa.config import restore_run_config

    content = {
        "total_steps": 10, "train_batch_size": 16, "model": {"config": {"model_type": "llama"}}, "task": "sort_digits",
        "eval": [{"name": "first"}, {"name": "second", "count": 3}],
        "callbacks": [{"kind": "chat", "params": {"rooms": [{"token": "REDACTED"}]}}],
    }  # fmt: skip
    return restore_run_config(content | changes, flags)


def test_a_flag_may_name_a_place_in_a_list():
    config = in_a_list("--eval.1.run_every", "5", "--callbacks.0.params.rooms.0.token", "t-1")
    assert [(one.name, one.count, one.run_every) for one in config.eval] == [("first", 512, 0), ("second", 3, 5)]
    assert config.callbacks[0].params == {"rooms": [{"token": "t-1"}]}


def test_a_flag_may_replace_what_stands_in_a_list():
    config = in_a_list("--eval.0", "{name: other}", "--sampling.group_size", "4")
    assert [one.name for one in config.eval] == ["other", "second"]
    assert config.sampling.group_size == 4


@pytest.mark.parametrize(
    ("flag", "place"), [("eval.2.count", "2"), ("eval.first.count", "first"), ("eval.-1", "_1"), ("eval.2", "2")]
)
def test_a_place_that_a_list_has_not_is_told(flag, place):
    with pytest.raises(
        ConfigError, match=rf"{place!r} is not an index of the list, which has 2 entries, counted from 0"
    ):
        in_a_list(f"--{flag}", "1")


def test_what_was_written_down_is_not_changed_by_flags():
    from proa.config import restore_run_config

    content = {
        "total_steps": 10, "train_batch_size": 16, "model": {"config": {"model_type": "llama"}}, "task": "sort_digits",
        "eval": [{"name": "first"}],
    }  # fmt: skip
    restore_run_config(content, ["--eval.0.count", "7", "--model.config.vocab_size", "9"])
    assert content["eval"] == [{"name": "first"}]
    assert content["model"] == {"config": {"model_type": "llama"}}


@pytest.mark.parametrize("key", ["total_steps", "sampling.group_size", "eval.0.run_every"])
def test_a_flags_or_keywords_wrong_value_is_not_blamed_on_a_line_of_the_file(file, key):
    for given in ({"flags": [f"--{key}", "many"]}, {key: "many"}):
        with pytest.raises(ConfigError, match=f"^{key} must be a whole number, not 'many'"):
            load_run_config(file(), **given)


def test_what_the_file_says_is_told_with_its_line_beside_a_flag(file):
    with pytest.raises(ConfigError, match="line 2: total_steps"):
        load_run_config(file(GOOD.replace("total_steps: 10", "total_steps: none")), ["--sampling.group_size", "4"])


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "an alias bomb": (BOMB.encode(), r"line 5: with aliases expanded this has more than 100,000 values"),
    "a merge bomb": (
        b"a: &a {x: 1, y: 2}\n"
        + b"".join(b"%c: &%c {<<: [%s]}\n" % (n + 1, n + 1, b", ".join([b"*%c" % n] * 10)) for n in b"abcdefgh"),
        r"line \d: with aliases expanded",
    ),
    "an alias inside itself": (b"a: 1\nb: &b [1, *b]\n", r"line 2: \*b is inside the part that it refers to"),
    "a mapping merged into itself": (b"a: &a\n  <<: *a\n", r"line 2: \*a is inside"),
    "deep nesting": (b"\na: " + b"[" * 5000 + b"]" * 5000, "line 2: this is nested more than 64 deep"),
    "deep aliases": (
        b"a0: &a0 [1]\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (n + 1, n + 1, n) for n in range(2000)),
        r"line \d\d: this is nested more than 64 deep",
    ),
    "Latin-1": ("name: x\n# grün\n".encode("latin-1"), "line 2: byte 0xfc is not UTF-8: save the file as UTF-8"),
    "UTF-16 without a mark": ("name: x".encode("utf-16-le"), "line 1: there is a NUL byte"),
    "a NUL byte": (b"name: x\n\0", "line 2: there is a NUL byte"),
    "an escape": (b"name: \x1b[2J", r"line 1: there is the character '\\x1b'"),
    "a huge integer": (
        b"name: x\nseed: " + b"9" * 5000,
        r"line 2: 9{20}… \(5,000 characters\) cannot be read: the number",
    ),
    "an impossible date": (b"name: 2024-13-45", "line 1: '2024-13-45' cannot be read: month must be in 1..12"),
    "a Python object": (
        b"a: !!python/object/apply:os.system [ls]",
        "line 1: the tag !!python/object/apply:os.system is",
    ),
    "a tag of one's own": (b"a: !mine 1", "line 1: the tag !mine is not supported: write plain values"),
    "two documents": (b"seed: 1\n---\nseed: 2\n", "line 2: a second document starts here"),
    "nothing": (b"", "line 1: expected keys and values"),
    "only remarks": (b"# nothing\n", "line 1: expected keys and values"),
    "a list": (b"- 1\n", "line 1: expected keys and values"),
    "a list as a key": (b"seed: 1\n[1, 2]: 3\n", "line 2: this is not YAML: .*unhashable key"),
    "an unknown alias": (b"seed: 1\na: *b\n", "line 2: this is not YAML: .*undefined alias"),
    "an open bracket": (b"seed: 1\nmodel: [\n", r"line \d: this is not YAML"),
    "a tab": (b"model:\n\tpath: x\n", "line 2: this is not YAML"),
    "a megabyte": (b"# " + b"x" * (1 << 20), "it has more than 1 MiB"),
}


def test_hostile_files_are_refused_in_a_sentence_with_their_line(tmp_path):
    path = tmp_path / "run.yaml"
    for what, (data, words) in HOSTILE.items():
        path.write_bytes(data)
        begun = time.process_time()
        for load in (load_run_config, load_experiment_config):
            with pytest.raises(ConfigError, match=words) as refused:
                load(path)
        assert str(path) in str(refused.value), what
        assert "\n" not in str(refused.value), what
        assert time.process_time() - begun < 2, what  # both together; they take a few hundredths


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    closed = tmp_path / "closed.yaml"
    closed.touch(mode=0)
    said = {tmp_path / "pipe": "it is a pipe", tmp_path: "Is a directory", "a\0b": "null", "/dev/zero": "1 MiB"}
    if os.geteuid() != 0:
        said[closed] = "Permission denied"
    for path, words in said.items():
        with pytest.raises(ConfigError, match=f"cannot be read: .*{words}"):
            load_run_config(path)


def test_a_file_may_be_utf_16_or_begin_with_a_mark(tmp_path):
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "run.yaml").write_text(GOOD + "# ü\n", encoding=encoding)
        assert load_run_config(tmp_path / "run.yaml").name == "first"


def test_hostile_flags_are_refused_in_a_sentence(file):
    for value, words in {"9" * 5000: "the number is too long", "[" * 100 + "]" * 100: "more than 64 deep"}.items():
        with pytest.raises(ConfigError, match=f"^--seed: .*{words}"):
            load_run_config(file(), ["--seed", value])


def test_numbers_that_no_machine_can_take_are_refused_in_words(file):
    for flag, value in {
        "--seed": 10**30,
        "--threads": 10**20,
        "--wait_timeout": 1e300,
    }.items():
        with pytest.raises(ConfigError, match=f"^{flag[2:]} must be (less than|at most) "):
            load_run_config(file(), [flag, str(value)])
