"""`proa report`: where it writes, what it says, how it ends; light and fast."""

import random
import subprocess
import sys
import time

import pytest
from tests.report import report_records as records

from proa.cli.report import report
from proa.report import page_of, read_subject


def test_it_writes_into_the_folder_and_says_where_and_how_big(tmp_path, capsys):
    folder = records.write_run(tmp_path / "run")
    assert report(str(folder)) == 0
    assert capsys.readouterr().out.startswith(f"{folder / 'report.html'}: ")


def test_it_writes_where_it_is_told(tmp_path):
    folder = records.write_run(tmp_path / "run")
    assert report(str(folder), str(tmp_path / "page.html")) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("output", "said"), [("", "is a folder: give a file"), ("nowhere/page.html", "there is no folder")]
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_wrong_use(tmp_path, capsys, output, said):
    assert report(str(records.write_run(tmp_path / "run")), str(tmp_path / output)) == 2
    assert said in capsys.readouterr().err


def test_a_link_that_it_is_told_to_write_to_is_not_replaced(tmp_path):
    """/dev/stdout is one, and root could replace it."""
    (tmp_path / "there").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert report(str(records.write_run(tmp_path / "run")), str(tmp_path / "link")) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text().startswith("<!doctype html>")


def test_what_is_no_run_is_wrong_use_and_what_is_there_is_named(tmp_path, capsys):
    records.write_run(tmp_path / "runs" / "one", steps=2)
    records.write_experiment(tmp_path / "runs" / "sweep", {"a": 1.0}, seeds=1, steps=2)
    assert report(str(tmp_path / "runs")) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "runs" / "one") in said
    assert f"experiments in it: {tmp_path / 'runs' / 'sweep'}" in said
    assert report(str(tmp_path / "runs" / "onn")) == 2
    assert "did you mean 'one'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "spans.jsonl", "run.json", "evals.jsonl"])
def test_a_broken_record_is_named_and_nothing_is_written(tmp_path, capsys, name):
    folder = records.write_run(tmp_path / "run", steps=2)
    (folder / name).write_text("garbage\n" * 2)
    assert report(str(folder)) == 1
    assert name in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_a_link_in_the_record_is_not_followed(tmp_path, capsys):
    folder = records.write_run(tmp_path / "run", steps=2)
    records.write_lines(tmp_path / "secret", [{"completion": "secret"}])
    path = folder / "evals" / "sort" / "step_2.jsonl"
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    assert report(str(folder)) == 1
    assert "is a link" in capsys.readouterr().err


def test_it_needs_no_torch_and_a_run_needs_no_numpy(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=5)
    experiment = records.write_experiment(tmp_path / "sweep", {"a": 1.0, "b": 2.0}, steps=5)
    code = (
        "import sys; from proa.cli.report import report\n"
        f"assert report({str(folder)!r}) == 0\n"
        "assert not {'torch', 'numpy', 'scipy', 'transformers', 'pydantic'} & set(sys.modules)\n"
        f"assert report({str(experiment)!r}) == 0\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.parametrize(
    ("steps", "rows"), [(5_000, 1_000), pytest.param(50_000, 10_000, marks=pytest.mark.prove)], ids=["small", "million"]
)
def test_a_million_values_and_ten_thousand_predictions_stay_small_and_fast(tmp_path, steps, rows):
    folder = records.write_run(tmp_path / "run", steps=10)
    line = '{"step": %d, "time": 1.0, ' + ", ".join(f'"metric_{place}": %r' for place in range(20)) + "}\n"
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(steps):
            file.write(line % (step, *((step * (place + 7919)) % 10007 / 7.0 for place in range(20))))
    predictions = records.prediction_rows(rows, random.Random(0), "34" * 40)
    records.write_lines(folder / "evals" / "sort" / "step_10.jsonl", predictions)
    began = time.process_time()
    subject = read_subject(folder)
    text = page_of(subject)
    seconds = time.process_time() - began
    values = sum(map(len, subject.runs[0].metrics.training.values()))
    print(f"{values:,} values: {seconds:.1f} s of CPU, {len(text) / 1e6:.1f} MB")
    assert values == 20 * steps
    assert len(subject.runs[0].predictions[0].rows) == rows
    assert seconds < 1 + 10 * steps / 50_000  # 2 s for a million
    assert len(text) < 5_000_000


def seconds_for(folder):
    """Of this process: others on the machine do not count."""
    began = time.process_time()
    assert report(str(folder)) == 0
    return time.process_time() - began


def test_the_time_grows_no_faster_than_the_record(tmp_path):
    short, long = (records.write_run(tmp_path / f"run_{steps}", steps=steps) for steps in (30, 300))
    seconds_for(short)  # imports
    least_long, least_short = (min(seconds_for(folder) for _ in range(3)) for folder in (long, short))
    assert least_long < 20 * least_short  # ten times, were there no fixed part


def test_a_secret_that_a_record_holds_is_not_put_on_the_page(tmp_path):
    store = "https://host/x?token=planted-token&page=2"
    records.write_run(tmp_path, config={"callbacks": [{"params": {"wandb_key": "planted-key", "store": store}}]})
    page = page_of(read_subject(tmp_path))
    assert "planted" not in page
    assert "https://host/x?token=REDACTED&amp;page=2" in page
