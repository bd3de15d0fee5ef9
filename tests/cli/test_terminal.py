"""What reaches a terminal can be seen, whoever wrote it: no escape sequences, no turned directions, no markup."""

import io
import json
import logging
import re
import sys
import unicodedata
from pathlib import Path

import pytest
import yaml
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from tests.cli.looked_at import make_run, rows, write_lines
from tests.experiments.small_experiment import MODEL

import proa
from proa.callbacks import ConsoleProgress, EventTracer
from proa.cli.exit_codes import exit_code
from proa.cli.main import main
from proa.data.state import LoopState
from proa.terminal import Console
from proa.visible import _LOGGERS

NASTY = "\x1b]0;mine\x07\x1b[2J\x9b1m\u202eabc\u200b\rx [red]y[/red] [link=http://z]z[/link] :smile:"
NASTY_NAME = "r\x1b[31m\u202e\u200b[red]"
"""As a file may be called."""


def unseen(text):
    return {character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Cs")} - {"\n"}


def shown(capsys):
    """All that was printed, after a look for what cannot be seen."""
    told = capsys.readouterr()
    text = told.out + told.err
    assert not unseen(text), unseen(text)
    return text


@pytest.fixture
def record(tmp_path):
    """A run's folder in which every text is nasty."""
    metrics = [{**row, NASTY: 0.5} for row in rows(4)]
    folder = make_run(
        tmp_path, NASTY_NAME, metrics, status="failed", stop_reason=NASTY, stopped_by=NASTY, steps_run=4, host=NASTY,
        pid=1, evals={NASTY: {NASTY: 0.5}}, callback_errors={NASTY: 1}, weights_digest=NASTY,
        ledger={"leased": 8, "trained": 4, "buffered": 0, "in_flight": 0, "dropped": {NASTY: 4}},
    )  # fmt: skip
    return folder.path


def test_a_run_is_shown_visibly(record, capsys):
    for verb in (["show", record], ["show", record, "--follow"], ["runs", record.parent], ["show", record, "--json"]):
        assert main([*map(str, verb)]) == 0
        assert "[red]" in shown(capsys), verb


def test_no_name_in_a_record_is_taken_for_a_line_of_its_own(tmp_path, capsys):
    name = "x\nstatus: completed"
    run = make_run(
        tmp_path, name, [{**row, name: 0.5} for row in rows(4)], status="failed", stop_reason=name, steps_run=4,
        evals={name: {name: 0.5}}, callback_errors={name: 1},
        ledger={"leased": 8, "trained": 4, "buffered": 0, "in_flight": 0, "dropped": {name: 4}},
    )  # fmt: skip
    assert main(["show", str(run.path)]) == 0
    lines = shown(capsys).split("\n")
    assert [line for line in lines if line.startswith("status")] == []
    assert "  status: completed" in lines  # the reason it stopped may be of many lines, and is set in
    assert any(line.startswith("eval x↵status: completed: x↵status") for line in lines)


def test_an_experiment_is_shown_visibly(record, capsys):
    content = {
        "name": NASTY, "status": "completed", "conclusion": NASTY, "best_arm": NASTY, "runs": [{"key": NASTY_NAME}],
        "arms": [{"name": NASTY_NAME, "status": "failed", "eval_metrics": {NASTY: {NASTY: 1.0}}, "error": NASTY}],
    }  # fmt: skip
    (record.parent / "experiment.json").write_text(json.dumps(content))
    for verb in ("show", "runs"):
        assert main([verb, str(record.parent)]) == 0
        assert "[red]" in shown(capsys), verb


def test_what_is_wrong_is_said_visibly(record, capsys, tmp_path):
    (tmp_path / f"{NASTY_NAME}.yaml").write_text(f"nmae: {json.dumps(NASTY)}\n")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text(json.dumps({"status": NASTY})[:-1])
    config = str(tmp_path / f"{NASTY_NAME}.yaml")
    for words in (
        ["train", config], ["train", NASTY_NAME], ["train", config, f"--{NASTY_NAME}", NASTY],
        ["experiment", NASTY_NAME],
        ["show", NASTY_NAME], ["runs", NASTY_NAME], ["resume", NASTY_NAME], ["resume", str(record)],
        ["replay", NASTY_NAME], ["report", NASTY_NAME], ["report", str(record), "--output", f"/no/{NASTY_NAME}"],
        ["export", NASTY_NAME, NASTY_NAME], ["eval", NASTY_NAME, "--task", NASTY], ["show", str(broken)],
        ["runs", str(broken)], ["moments", NASTY],
    ):  # fmt: skip
        main(words)
        assert shown(capsys), words
    for words in (["show", "there", NASTY], ["show"], [NASTY], ["show", "there", f"--{NASTY_NAME}"]):
        with pytest.raises(SystemExit):
            main(words)
        assert shown(capsys), words


def test_a_traceback_is_printed_visibly(capsys):
    def work():
        error = ValueError(NASTY)
        error.add_note(NASTY)
        raise error

    assert exit_code(work) == 1
    assert "ValueError: ⟨U+001B⟩]0;mine" in shown(capsys)


MODULE = """
def nasty(completions, **columns):
    raise ValueError(NASTY)

def half(completions, answer, **columns):
    if answer[0] == NASTY:
        raise ValueError(NASTY)
    return [float(len(text) % 2) for text in completions]
"""


@pytest.fixture
def trained(tmp_path, monkeypatch, capsys):
    """What `proa train` printed of a run whose prompts, answers, rewards and evals are nasty; and its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "nasty_module", raising=False)
    (tmp_path / "nasty_module.py").write_text(f"NASTY = {NASTY!r}\n{MODULE}")
    data = [{"prompt": f"1{NASTY[:6]}\n>", "answer": NASTY, "task_id": NASTY}] + [
        {"prompt": f"{n}>", "answer": str(n), "task_id": "1"} for n in range(3)
    ]
    write_lines(tmp_path / "data.jsonl", data)
    config = {
        "name": "run", "output_dir": str(tmp_path), "algorithm": "grpo", "total_steps": 2, "train_batch_size": 4,
        "model": {"config": MODEL}, "task": "data.jsonl", "reward": {"functions": ["nasty_module:half"]},
        "sampling": {"max_new_tokens": 3, "group_size": 2}, "checkpoint": {"save_every": 1},
        "eval": [{"name": "e", "source": "data.jsonl", "metric": "nasty_module:half", "run_every": 1}],
    }  # fmt: skip
    from proa.tasks.builtin.characters import tokenizer

    tokenizer().save_pretrained(tmp_path / "tokenizer")
    config["model"]["tokenizer"] = str(tmp_path / "tokenizer")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    capsys.readouterr()
    assert main(["train", "run.yaml"]) == 0
    return shown(capsys), tmp_path


def test_what_a_run_prints_of_data_completions_and_rewards_is_visible(trained, capsys):
    told, folder = trained
    assert "⟨U+001B⟩" in told
    assert "e: samples" in told
    assert main(["eval", str(folder / "run"), "--task", "data.jsonl", "--metric", "nasty_module:nasty"]) == 1
    assert "could not be scored; the first" in shown(capsys)
    words = ["--metric", "nasty_module:half", "--breakdown", "task_id"]
    assert main(["eval", str(folder / "run"), "--task", "data.jsonl", *words]) == 0
    assert "⟨U+001B⟩" in shown(capsys)
    for verb in ("show", "report", "replay"):
        assert main([verb, str(folder / "run")]) == 0
        assert shown(capsys)


def test_the_console_shows_names_and_errors_visibly_and_in_one_line():
    for is_terminal in (False, True):
        out = io.StringIO()
        from rich.console import Console as AnyConsole

        console = AnyConsole(file=out, force_terminal=is_terminal, color_system=None, width=300)
        progress = ConsoleProgress(console=console)
        state = LoopState(num_steps=1)
        progress.on_train_start(state)
        progress.on_step_end(state, 0, None, {f"{NASTY}\nstep 9  loss 0": 0.5})
        progress.on_eval(state, 0, f"{NASTY}\neval x", {NASTY: 0.5})
        state.exception = RuntimeError(f"{NASTY}\ndone: 9 steps")
        progress.on_train_end(state, None)
        text = out.getvalue()
        if is_terminal:
            for own in ("\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A", "\r"):  # rich's own: cursor off, on, back
                text = text.replace(own, "")
        assert not unseen(text), (is_terminal, unseen(text))
        assert "[red]y[/red]" in text
        assert ":smile:" in text
        assert not any(line.startswith(("done: 9", "step 9", "eval x")) for line in text.split("\n"))


def test_the_tracer_prints_visibly_and_in_one_line():
    out = io.StringIO()
    tracer = EventTracer(file=out)
    tracer.on_moment("eval_start", {"state": LoopState(), "step_idx": 0, "eval_name": f"{NASTY}\ntrain_end"})
    assert not unseen(out.getvalue())
    assert out.getvalue().count("\n") == 1


def test_a_table_a_panel_and_a_title_hold_any_text_and_keep_their_edges():
    out = io.StringIO()
    console = Console(file=out, width=60)
    table = Table(title=NASTY)
    table.add_column(NASTY)
    for cell in (NASTY, Text(f"{NASTY}\nand\tmore", style="red"), f"a\n{NASTY}"):
        table.add_row(cell)
    console.print(table)
    console.print(Panel(Text(NASTY)))
    console.print(Text.assemble((NASTY, "bold"), "b"), soft_wrap=True)
    text = out.getvalue()
    assert not unseen(text)
    drawn = [line for line in text.split("\n") if line[:1] in "│┃╭╰└┏┡├"]
    assert len({len(line) for line in drawn if line}) <= 2  # of the table, and of the panel
    assert all(line[-1] in "│┃╮╯┘┓┩┤" for line in drawn if line)


def test_a_text_keeps_its_styles_where_characters_are_named():
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="standard").print(Text.assemble(("a\x1bb", "bold"), "c\u202e"))
    assert out.getvalue() == "\x1b[1ma⟨U+001B⟩b\x1b[0mc⟨U+202E⟩\n"


def loggers():
    """The names by which the package logs, as its source has them."""
    root = Path(proa.__file__).parent
    for file in root.rglob("*.py"):
        module = ".".join(("proa", *file.relative_to(root).with_suffix("").parts))
        for name in re.findall(r"^_?log = logging\.getLogger\((.+)\)$", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield module if name == "__name__" else name.strip('"')


def test_every_log_message_is_made_visible_with_its_traceback():
    out = io.StringIO()
    handler, names = logging.StreamHandler(out), sorted(set(loggers()))
    assert "proa.lifecycle" in names
    for name in names:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        try:
            raise ValueError(NASTY)
        except ValueError as error:
            logger.error("%s failed: %s", NASTY, error, exc_info=error)
        finally:
            logger.removeHandler(handler)
    assert out.getvalue().count("Traceback") == len(names)
    assert not unseen(out.getvalue())


def test_every_logger_of_the_package_is_made_visible(repository):
    package = repository / "src" / "proa"
    named = {
        name
        for file in package.rglob("*.py")
        for name in re.findall(r'^_?log = logging\.getLogger\("?([\w.]+)"?\)', file.read_text(), re.MULTILINE)
        for name in [name.replace("__name__", ".".join(file.relative_to(package.parent).with_suffix("").parts))]
    }
    assert named == set(_LOGGERS)
