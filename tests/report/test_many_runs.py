"""Pages of odd and of many runs: long names, whole numbers, texts of every repeat, times without pauses."""

import html
import itertools
import json
import random
import re
import time

import pytest
from tests.report import report_records as records
from tests.report.test_page import data_in, page

from proa.cli.report import report
from proa.report import samples as sampling
from proa.report.chart import Line, line_chart
from proa.report.curves import Curve
from proa.report.html import plain
from proa.report.interval_chart import MOST_LINES, MOST_OF_A_LINE
from proa.report.overview import _warnings
from proa.report.reading import RunData, read_subject
from proa.report.scale import whole_ticks
from proa.report.text import duration, number, shorts, squeezed

HUGE = 10**400
LONG = [
    f"algorithm.name-grpo__optimizer.learning_rate-{rate}__sampling.group_size-{size}__max_staleness-1"
    for rate in ("0.0003", "0.001") for size in (8, 16)
]  # fmt: skip


def change(path, **entries):
    records.write_json(path, json.loads(path.read_text()) | entries)


def with_texts(folder, word="3456"):
    """The texts of a run whose record has none yet."""
    chance = random.Random(1)
    for done in (1, 20, 40):
        records.write_lines(folder / "rollouts" / f"step_{done}.jsonl", records.rollout_rows(done - 1, chance, word))
    records.write_lines(folder / "evals" / "sort" / "step_40.jsonl", records.prediction_rows(5, chance, word))


# -- numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63) - 1, HUGE])
def test_whole_numbers_are_shown_exactly(value):
    assert number(value).replace(",", "").replace("−", "-") == str(value)
    assert plain({"seed": value}) == {"seed": str(value)}


def test_whole_numbers_that_a_script_has_stay_numbers():
    assert plain([2**53, -(2**53), 7]) == [2**53, -(2**53), 7]


def test_huge_numbers_anywhere_do_not_stop_a_page(tmp_path):
    folder = records.write_experiment(tmp_path / "sweep", {"a": 1.0, "b": 2.0}, seeds=2, steps=4)
    run = folder / "a__s0"
    change(run / "config.json", seed=HUGE)
    change(run / "run.json", policy_version=HUGE, ledger=records.ledger(4) | {"leased": HUGE, "trained": HUGE})
    change(
        folder / "experiment.json",
        runs=[one | {"seed": 2**60 + 1} for one in json.loads((folder / "experiment.json").read_text())["runs"]],
    )
    rows = [{"step": 0, "loss": HUGE, "reward": -HUGE}, {"step": 1, "loss": 1.0}]
    records.write_lines(run / "metrics.jsonl", rows)
    records.write_lines(run / "evals" / "sort" / "step_4.jsonl", [{"task_id": "t", "reward": HUGE, "seed": 2**60 + 1}])
    lines = [json.loads(line) for line in (run / "checkpoints.jsonl").read_text().splitlines()]
    records.write_lines(run / "checkpoints.jsonl", [line | {"sizes": {"model": HUGE}, "step": HUGE} for line in lines])
    text = page(folder)
    assert f"{2**60 + 1:,}" in text
    first = data_in(text)["predictions"][0]
    assert first["rows"][0][first["keys"].index("seed")] == str(2**60 + 1)


def test_a_record_from_an_odd_step_is_broken_and_said_to_be(tmp_path, capsys):
    folder = records.write_run(tmp_path / "run", steps=2)
    records.write_lines(folder / "evals.jsonl", [{"name": "sort", "metrics": {}, "step": -2}])
    assert report(str(folder)) == 1
    assert "evals.jsonl is broken at line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(7200, "2 h"), (7260, "2 h 1 min"), (172_800, "2 d"), (float("nan"), "an unknown time"), (119.0, "119 s")],
)
def test_durations_have_no_part_that_is_nothing(seconds, words):
    assert duration(seconds) == words


def test_breakdowns_of_nothing_and_keys_of_a_newer_version_are_no_problem(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=2)
    records.write_lines(
        folder / "evals.jsonl", [{"name": "sort", "metrics": {}, "breakdowns": None, "weather": "fine"}]
    )
    assert "Overview" in page(folder)


# -- axes and names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [[1.00001, 1.00002, 1.00003], [20_001.0, 20_002.0], [1e-9, 2e-9], [0.1 + 0.2, 0.3], [1e6, 1_000_001.0]]
)
def test_ticks_that_differ_are_said_differently(values):
    said = shorts(values)
    assert len(set(said)) == len(values)


def test_a_step_stands_at_an_axis_once():
    assert whole_ticks(0.7, 1.2) == [1]
    assert whole_ticks(2.6, 3.4) == [3]
    assert whole_ticks(1.2, 1.4) == [1]


def drawn_names(text):
    return re.findall(r'<text class="name"[^>]*>([^<]*)', text)


def test_the_names_of_a_matrix_are_told_whole_and_apart(tmp_path):
    text = page(records.write_experiment(tmp_path / "sweep", dict.fromkeys(LONG, 1.0), seeds=2, steps=4))
    chart = text.partition('class="chart intervals"')[2].partition("</figure>")[0]
    lines = drawn_names(chart)
    assert all(len(line) <= MOST_OF_A_LINE for line in lines)
    assert "".join(lines) == "".join(LONG)


def test_nothing_stands_beside_a_name(tmp_path):
    text = page(records.write_experiment(tmp_path / "sweep", dict.fromkeys(LONG, 1.0), seeds=2, steps=4))
    chart = text.partition('class="chart intervals"')[2].partition("</figure>")[0]
    heights = [float(y) for y in re.findall(r'<text (?:class="name" )?x="14" y="([\d.]+)"', chart)]
    assert len(heights) == 4 * 3  # two lines of a name, and the value
    assert all(after - before >= 13 for before, after in itertools.pairwise(heights))


def test_a_name_without_end_is_squeezed_and_keeps_both_ends():
    name = "begin" + "x" * 1000 + "end"
    shown = squeezed(name, MOST_OF_A_LINE * MOST_LINES)
    assert len(shown) == MOST_OF_A_LINE * MOST_LINES
    assert shown.startswith("begin")
    assert shown.endswith("end")


def test_bands_that_reach_beyond_the_drawing_are_told():
    def note(low, high):
        curve = Curve([1, 2], [0.5, 0.6], low=[low, low], high=[high, high], repeats=[3, 3], runs=3)
        return "Bands reach beyond the drawing." in line_chart("c", "c", [Line("a", 0, curve)], "u").figure

    assert note(-100.0, 100.0)
    assert not note(0.5, 0.6)


# -- texts of every run ------------------------------------------------------------------------------


@pytest.fixture
def repeated(tmp_path):
    folder = records.write_experiment(tmp_path / "sweep", {"a": 1.0, "b": 2.0}, seeds=3)
    for run in ("a__s1", "a__s2", "b__s1", "b__s2"):
        with_texts(folder / run)
    return folder


def test_samples_of_every_repeat_can_be_looked_at(repeated):
    text = page(repeated)
    section = text.partition('id="samples"')[2].partition("</section>")[0]
    assert re.findall(r"<summary>\w+: run (\w+)</summary>", section) == [
        "a__s0", "a__s1", "a__s2", "b__s0", "b__s1", "b__s2"
    ]  # fmt: skip
    subject = read_subject(repeated)
    assert [len(run.rollouts) for run in subject.runs] == [18, 9, 9, 18, 9, 9]


def test_predictions_of_every_repeat_can_be_looked_at(repeated):
    names = [found["name"].partition(":")[0] for found in data_in(page(repeated))["predictions"]]
    assert names == ["a__s0", "a__s1", "a__s2", "b__s0", "b__s1", "b__s2"]


def test_the_predictions_of_runs_with_long_names_are_told_apart(tmp_path):
    folder = records.write_experiment(tmp_path / "sweep", {"x" * 150: 1.0}, seeds=2, steps=4)
    for seed in (0, 1):
        rows = records.prediction_rows(5, random.Random(1), "3456")
        records.write_lines(folder / f"{'x' * 150}__s{seed}" / "evals" / "sort" / "step_4.jsonl", rows)
    names = [found["name"] for found in data_in(page(folder))["predictions"]]
    assert len(set(names)) == 2
    assert max(map(len, names)) < 150


def test_the_first_run_of_every_arm_comes_before_repeats_where_there_is_little_room(repeated, monkeypatch):
    monkeypatch.setattr("proa.report.reading.MOST_SAMPLE_TOKENS", 150)
    subject = read_subject(repeated)
    assert [bool(run.rollouts) for run in subject.runs] == [True, False, False, True, False, False]
    assert "no room for samples of a__s1, a__s2, b__s1, b__s2" in page(repeated)


def test_room_for_predictions_is_shared(repeated, monkeypatch):
    monkeypatch.setattr(sampling.Budget.__init__, "__defaults__", (24, 10_000, 1))
    assert [len(run.predictions[0].rows) for run in read_subject(repeated).runs] == [4] * 6


def test_a_broken_text_costs_no_run(repeated):
    (repeated / "a__s1" / "evals" / "sort" / "step_40.jsonl").write_text("garbage\n")
    subject = read_subject(repeated)
    assert [run.record is not None for run in subject.runs] == [True] * 6
    assert "is broken at line 1" in page(repeated)


def test_which_numbers_were_not_finite_is_no_column(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=4)
    row = {"task_id": "t", "reward": "NaN", "not_finite_numbers": [["reward"]]}
    records.write_lines(folder / "evals" / "sort" / "step_4.jsonl", [row])
    assert data_in(page(folder))["predictions"][0]["keys"] == ["task_id", "reward"]


def test_the_folder_of_an_eval_that_is_a_link_is_not_followed(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=4)
    records.write_lines(tmp_path / "elsewhere" / "final.jsonl", [{"completion": "somebody's secret"}])
    (folder / "evals" / "linked").symlink_to(tmp_path / "elsewhere")
    text = page(folder)
    assert "somebody" not in text
    assert [found["name"] for found in data_in(text)["predictions"]] == ["sort, after 4 steps"]


def test_tasks_are_compared_by_the_main_metric_alone(tmp_path):
    run = read_subject(records.write_run(tmp_path / "run", steps=4)).runs[0]
    assert len(run.task_scores("sort.exact")) == 60
    assert run.task_scores("sort.completion_tokens") is None
    assert run.task_scores("other.exact") is None


# -- time --------------------------------------------------------------------------------------------


def test_the_pause_before_a_run_went_on_is_not_time_it_ran(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=4)
    resumed = [{"at": 10_000.0, "left": 1060.0, "cut_off": True, "checkpoint": "step_2"}]
    change(folder / "run.json", started=1000.0, ended=10_030.0, resumed=resumed)
    text = page(folder)
    assert "ran about 90 s" in text
    (entry,) = re.findall(r"<dt>resumed</dt><dd><div>(.*?)</div></dd>", text)
    assert html.unescape(entry).endswith(" from step_2")


def test_a_run_that_is_quiet_is_said_to_be_only_after_a_while(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=4, status="running")
    (folder / "metrics.jsonl").unlink()

    def words(quiet):
        change(folder / "run.json", started=time.time() - quiet)
        return " ".join(_warnings(read_subject(folder).runs[0].record))

    assert "It had given no sign of life for 5 min" in words(300)
    assert "sign of life" not in words(5)


def test_a_score_of_a_benchmark_counts_where_an_eval_was_never_repeated(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=4)
    with (folder / "evals.jsonl").open("a") as file:
        file.write(json.dumps({"name": "bench", "metrics": {"exact": 0.875}, "step": None}) + "\n")
    run = read_subject(folder).runs[0]
    assert isinstance(run, RunData)
    assert run.score("bench.exact") == 0.875
