"""The page: whole, by itself, honest about what is there and what is not."""

import base64
import hashlib
import json
import os
import re

import pytest
from tests.report import report_records as records
from tests.report.test_text import Parsed

from proa.report import page_of, read_subject, write_report
from proa.report.samples import MOST_CHARACTERS, Budget, read_predictions
from proa.report.text import visible


def page(folder):
    return page_of(read_subject(folder))


def data_in(text):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found)


def titles(text):
    return re.findall(r"<section id=\"\w+\"><h2>(.*?)</h2>", text)


# -- a run -------------------------------------------------------------------------------------------


def test_a_whole_run_has_every_section(tmp_path):
    assert titles(page(records.write_run(tmp_path / "run"))) == [
        "Overview", "Learning curves", "Evals over steps", "Staleness and idle time", "Pipeline timeline",
        "Ledger", "Samples",
        "Predictions", "Configuration", "Checkpoints",
    ]  # fmt: skip


def test_what_evaluators_measured_is_a_table_with_a_row_for_each_actor(tmp_path):
    run = records.write_run(tmp_path / "run")
    header = json.loads((run / "run.json").read_text())
    rates = {"samples_per_second": 22.19, "tokens_per_second": 288.5, "tflops": 5e-06, "seconds": 1.5, "samples": 24}
    header["performance"] = {
        "trainer_0": {**rates, "role": "trainer", "shares": {"training": 0.25, "waiting": 0.75}},
        "<maker_0>": {**rates, "role": "maker", "shares": {"making": 1.0}},
    }
    records.write_json(run / "run.json", header)
    text = page(run)
    assert "Performance" in titles(text)
    (section,) = re.findall(r"<section id=\"performance\">(.*?)</section>", text)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in section.split("<tr>")[1:]]
    assert cells == [
        ["run", "actor", "samples/s", "tokens/s", "TFLOP/s", "seconds", "training, %", "waiting, %", "making, %"],
        ["run", "trainer_0", "22.19", "288.5", "5e−06", "1.5", "25.0", "75.0", ""],
        ["run", "&lt;maker_0&gt;", "22.19", "288.5", "5e−06", "1.5", "", "", "100.0"],
    ]


def test_a_run_that_has_only_begun_has_no_section_without_content(tmp_path):
    records.write_json(
        tmp_path / "run" / "run.json", {"status": "running", "host": "elsewhere", "pid": 1, "started": 1.0}
    )
    text = page(tmp_path / "run")
    assert titles(text) == ["Overview"]
    assert "was going on when this page was made" in text
    assert data_in(text)["charts"] == {}


def test_a_run_that_was_cut_off_is_shown_as_such(tmp_path):
    records.mark_running_here(records.write_run(tmp_path / "run"), records.gone_process())
    text = page(tmp_path / "run")
    assert "The run was cut off" in text
    assert '<span class="badge cut-off">cut off</span>' in text
    assert "was going on" not in text


def test_a_run_that_goes_on_is_shown_as_such(tmp_path):
    records.mark_running_here(records.write_run(tmp_path / "run"), os.getpid())
    text = page(tmp_path / "run")
    assert '<span class="badge running">running</span>' in text
    assert "The run was cut off" not in text


def test_the_last_line_of_a_live_run_may_be_half_written(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=4)
    for name in ("metrics.jsonl", "spans.jsonl", "evals/sort/step_4.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"step": 4, "rew')
    assert data_in(page(folder))["charts"]["training/reward"]["lines"][0]["steps"] == [1, 2, 3, 4]


def test_values_that_are_not_finite_are_gaps_that_are_told(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=6)
    rows = [{"step": step, "loss": value} for step, value in enumerate([1.0, "NaN", 3.0, "Infinity", "-Infinity", 2.0])]
    records.write_lines(folder / "metrics.jsonl", rows)
    text = page(folder)
    assert data_in(text)["charts"]["training/loss"]["lines"][0]["values"] == [1, None, 3, None, None, 2]
    assert "3 values not finite (×), the first at step 2." in text
    drawn = re.findall(r'<path class="line" d="(.*?)">', text)[0]
    assert drawn.count("M") == 3  # no line across a gap


def test_steps_are_counted_as_done_so_a_baseline_stands_at_zero(tmp_path):
    line = data_in(page(records.write_run(tmp_path / "run", steps=20)))["charts"]["evals/sort.exact"]["lines"][0]
    assert line["steps"] == [0, 10, 20]


def test_evals_are_drawn_from_their_own_file_where_the_metrics_lack_them(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=20)
    records.write_lines(folder / "metrics.jsonl", [{"step": 0, "loss": 1.0}])
    assert data_in(page(folder))["charts"]["evals/sort.exact"]["lines"][0]["steps"] == [0, 10, 20]


def test_the_score_after_training_of_an_eval_that_was_in_the_loop_too_stands_one_step_after_the_last(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=20)
    with (folder / "evals.jsonl").open("a") as file:
        for name in ("sort", "other"):
            file.write(json.dumps({"name": name, "step": None, "metrics": {"exact": 0.125}}) + "\n")
    (run,) = read_subject(folder).runs
    series = run.metrics.evals["sort.exact"]
    assert (list(series.steps), series.last) == ([0, 10, 20, 21], 0.125)
    assert list(run.metrics.evals["other.exact"].steps) == [20]


def test_the_ledger_says_whether_it_adds_up(tmp_path):
    folder = records.write_run(tmp_path / "run")
    assert "<td>yes</td>" in page(folder)
    header = json.loads((folder / "run.json").read_text())
    header["ledger"]["trained"] -= 5
    records.write_json(folder / "run.json", header)
    assert "<td>no: 5 samples missing</td>" in page(folder)


def test_checkpoints_are_shown_with_their_scores_and_pruned_ones_as_pruned(tmp_path):
    cells = re.findall(
        r"<td[^>]*>([^<]*)</td>", page(records.write_run(tmp_path / "run")).partition('id="checkpoints"')[2]
    )
    assert cells == [
        "step_10",
        "10",
        "10",
        "pruned",
        "1.0",
        "0.5",
        "0.6",
        "final",
        "40",
        "40",
        "final",
        "1.0",
        "0.5",
        "0.6",
    ]


def test_idle_shares_follow_from_the_seconds_of_a_step(tmp_path):
    folder = records.write_run(tmp_path / "run")
    row = {"step": 0, "trainer.wait_seconds": 1.0, "trainer.compute_seconds": 3.0, "maker.generate_seconds": 2.0}
    records.write_lines(folder / "metrics.jsonl", [row])
    charts = data_in(page(folder))["charts"]
    assert charts["training/trainer idle share"]["lines"][0]["values"] == [0.25]
    assert charts["training/makers idle share"]["lines"][0]["values"] == [0]


# -- what the model wrote ----------------------------------------------------------------------------


def test_hostile_text_is_text_everywhere(tmp_path):
    folder = records.write_run(tmp_path / "run", text=records.HOSTILE, config={"name": records.HOSTILE})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 40, records.HOSTILE: 1.0}) + "\n")
    harmless = page(records.write_run(tmp_path / "calm", text="abc"))
    text = page(folder)
    tags = Parsed(text).tags
    assert tags.count("script") == 2
    assert set(tags) == set(Parsed(harmless).tags)  # nothing but what every page has
    assert visible(records.HOSTILE) in Parsed(text).text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]", text)


def test_tokens_are_coloured_by_advantage_and_by_mismatch(tmp_path):
    folder = records.write_run(tmp_path / "run")
    row = {
        "step": 0, "prompt": "p", "completion": "abcd", "reward": 1.0, "tokens": ["a", "b", "c", "d"],
        "advantages": [3.0, -3.0, 0.0, 1.5], "log_probs": [-1.0, -1.0, -1.0, -1.0],
        "trainer_log_probs": [-1.0, -0.8, -2.0, "NaN"],
    }  # fmt: skip
    for path in (folder / "rollouts").glob("*"):
        path.unlink()
    records.write_lines(folder / "rollouts" / "step_1.jsonl", [row])
    text = page(folder)
    spans = re.findall(r'<span class="(t[^"]*)">([abcd])</span>', text)
    assert spans == [("t a6", "a"), ("t a0 m5", "b"), ("t m0", "c"), ("t a5 mx", "d")]
    assert data_in(text)["samples"][0]["mismatch"] == [0, 0.2, -1, None]


def test_a_conversation_is_shown_turn_by_turn_and_as_the_model_was_given_it(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=1)
    messages = [{"role": "system", "content": "Be <b>brief</b>."}, {"role": "user", "content": "2+2?"}]
    row = {"step": 0, "prompt": "2+2?", "completion": "4", "messages": messages, "rendered": "<s>user 2+2?<e>\n<s>"}
    records.write_lines(folder / "rollouts" / "step_1.jsonl", [row])
    text = page(folder)
    roles = [part.split("<")[0] for part in text.split('<span class="role">')[1:]]
    assert roles == ["system", "user", "assistant"]
    assert "Be &lt;b&gt;brief&lt;/b&gt;." in text
    assert "&lt;s&gt;user 2+2?&lt;e&gt;↵\n&lt;s&gt;" in text


def test_a_rollout_with_lists_of_other_lengths_is_still_shown(tmp_path):
    folder = records.write_run(tmp_path / "run")
    row = {"step": 0, "tokens": ["a", "b"], "advantages": [1.0], "log_probs": None, "completion": "ab"}
    records.write_lines(folder / "rollouts" / "step_1.jsonl", [row])
    assert "no reward" in page(folder)


def test_long_texts_are_clipped_and_say_so(tmp_path):
    records.write_lines(tmp_path / "evals" / "sort" / "final.jsonl", [{"completion": "x" * 5000}])
    (found,) = read_predictions(tmp_path / "evals", "run", Budget())
    assert found.rows[0]["completion"] == "x" * MOST_CHARACTERS + "… (3,000 more characters)"


def test_rows_beyond_what_a_page_holds_are_counted(tmp_path):
    records.write_lines(tmp_path / "evals" / "sort" / "final.jsonl", [{"completion": "x" * 10}] * 50)
    (found,) = read_predictions(tmp_path / "evals", "run", Budget(rows=20))
    assert (len(found.rows), found.of) == (20, 50)
    (found,) = read_predictions(tmp_path / "evals", "run", Budget(characters=55))
    assert (len(found.rows), found.of) == (5, 50)


def test_rows_that_are_left_out_leave_no_hole(tmp_path):
    rows = [{"completion": "x" * size} for size in (10, 10, 90, 10)]
    records.write_lines(tmp_path / "a" / "final.jsonl", rows)
    records.write_lines(tmp_path / "b" / "final.jsonl", rows)
    found = read_predictions(tmp_path, "run", Budget(characters=60))
    assert [len(one.rows) for one in found] == [2, 0]  # the later ones would fit, and seem to be the next


def test_predictions_after_training_come_before_those_of_steps(tmp_path):
    for name in ("step_9", "step_10", "final"):
        records.write_lines(tmp_path / "sort" / f"{name}.jsonl", [{"completion": name}])
    assert read_predictions(tmp_path, "run", Budget())[0].rows == [{"completion": "final"}]
    (tmp_path / "sort" / "final.jsonl").unlink()
    assert read_predictions(tmp_path, "run", Budget())[0].rows == [{"completion": "step_10"}]


# -- by itself ---------------------------------------------------------------------------------------


def test_the_policy_allows_this_style_and_this_script_and_nothing_else(tmp_path):
    text = page(records.write_run(tmp_path / "run"))
    allowed = re.findall(r"(script|style)-src &#x27;sha256-(.*?)&#x27;;", text)
    inside = {
        "script": re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL),
        "style": re.findall(r"<style>(.*?)</style>", text, flags=re.DOTALL),
    }
    assert len(allowed) == 2
    for kind, digest in allowed:
        (content,) = inside[kind]
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() == digest
    assert "default-src &#x27;none&#x27;" in text
    assert "unsafe" not in text.partition("</head>")[0]


def test_the_page_names_no_other_place_and_sets_nothing_but_text(tmp_path):
    text = page(records.write_run(tmp_path / "run"))
    assert not re.search(r"https?:|//\w|@import|url\(|\ssrc=|\sstyle=|\son\w+=", text.replace("// ", ""))
    assert all(link.startswith("#") for link in re.findall(r'href="(.*?)"', text))
    script = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)[0]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|setTimeout|fetch", script
    )


def test_the_page_is_its_owners_alone_and_is_replaced_whole(tmp_path):
    folder = records.write_run(tmp_path / "run")
    (folder / "report.html").write_text("old")
    (folder / "report.html").chmod(0o644)
    path, size = write_report(folder)
    assert path == folder / "report.html"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == size
    assert not list(folder.glob(".*.new"))


# -- an experiment -----------------------------------------------------------------------------------


def test_an_experiment_of_many_repeats_has_bands(tmp_path):
    text = page(records.write_experiment(tmp_path / "sweep", {"slow": 0.3, "fast": 4.0}, seeds=5))
    lines = data_in(text)["charts"]["training/reward"]["lines"]
    assert lines[0]["n"][0] == 5
    assert lines[0]["low"][0] < lines[0]["values"][0] < lines[0]["high"][0]
    assert "Line: mean of 5 repeats; band: 95 % t-interval." in text


def test_an_experiment_of_few_repeats_has_a_line_for_each_and_intervals(tmp_path):
    text = page(records.write_experiment(tmp_path / "sweep", {"slow": 0.3, "fast": 4.0}))
    lines = data_in(text)["charts"]["training/reward"]["lines"]
    assert [line["name"] for line in lines] == ["slow", "fast"]
    assert lines[0]["n"][0] == 3
    figure = text.partition('data-chart="training/reward"')[2].partition("</figure>")[0]
    assert figure.count('class="repeat"') == 6
    assert "Thick line: mean of 3 repeats; thin lines: each of them." in text
    assert "fast is better than slow" in text
    assert "more is better: fast has the best mean" in text


def test_less_is_better_where_the_experiment_says_so(tmp_path):
    config = {"metadata": {"success_metric": "sort.exact", "mode": "min"}}
    text = page(records.write_experiment(tmp_path / "sweep", {"slow": 0.3, "fast": 4.0}, config=config))
    assert "less is better: slow has the best mean" in text
    assert "slow is better than fast" in text


def test_one_repeat_each_has_no_interval_and_claims_nothing(tmp_path):
    folder = records.write_experiment(tmp_path / "sweep", {"slow": 0.3, "fast": 4.0}, seeds=1)
    for arm in ("slow", "fast"):
        (folder / arm / "evals" / "sort" / "step_40.jsonl").unlink()
    text = page(folder)
    assert "one run: no interval" in text
    assert "nothing can be said about chance" in text
    assert "t-interval." not in text
    assert "low" not in data_in(text)["charts"]["training/reward"]["lines"][0]


def test_arms_are_compared_task_by_task_where_all_runs_have_the_tasks(tmp_path):
    folder = records.write_experiment(tmp_path / "sweep", {"a": 1.0, "b": 1.0}, seeds=2)
    for place, arm in enumerate("ab"):
        for seed in range(2):
            rows = [{"task_id": f"t{task}", "reward": float(task % 4 == 0) + place} for task in range(20)]
            records.write_lines(folder / f"{arm}__s{seed}" / "evals" / "sort" / "step_40.jsonl", rows)
    text = page(folder)
    assert '<td class="number">2 × 20</td>' in text
    assert "2 seeds × 20 tasks, paired" in text
    (folder / "a__s1" / "evals" / "sort" / "step_40.jsonl").unlink()
    assert '<td class="number">2</td>' in page(folder)


def test_differences_between_arms_are_found_and_seeds_are_none(tmp_path):
    text = page(records.write_experiment(tmp_path / "sweep", {"slow": 0.5, "fast": 4.0}))
    assert "Where the arms differ: 1 key." in text
    assert re.search(r"<td>optimizer\.learning_rate</td><td>5e-05</td><td>0\.0004</td>", text)


def broken_experiment(folder):
    """Arms of which one failed, one was never begun, one cannot be read and one lacks the metric."""
    records.write_experiment(folder, {"good": 2.0, "other": 1.0})
    content = json.loads((folder / "experiment.json").read_text())
    content["runs"] += [
        {"key": name, "arm": name, "group": None, "seed": 0} for name in ("failed", "late", "garbled", "bare", "../x")
    ]
    content["arms"].append(
        {
            "name": "failed",
            "status": "failed",
            "error": "ValueError: <b>",
            "metrics": {"reward": 0.9},
            "eval_metrics": {"sort": {"exact": 1.0}},
        }
    )
    content["status"] = "failed"
    records.write_json(folder / "experiment.json", content)
    records.write_run(folder / "failed", steps=3, status="failed")
    records.write_run(folder / "garbled")
    (folder / "garbled" / "metrics.jsonl").write_text("no JSON\n")
    records.write_json(folder / "bare" / "run.json", {"status": "completed"})
    return folder


def test_what_is_missing_of_an_experiment_is_said_and_the_rest_is_shown(tmp_path):
    text = page(broken_experiment(tmp_path / "sweep"))
    assert "failed: 1 of 1 runs without a score." in text  # though it has scored before it failed
    assert "ValueError: &lt;b&gt;" in text
    assert '<span class="badge not-begun">not begun</span>' in text
    assert '<span class="badge cannot-be-read">cannot be read</span>' in text
    assert "is broken" in text
    assert "does not name a folder of the experiment" in text
    assert "good has the best mean" in text
    assert [line["name"] for line in data_in(text)["charts"]["training/reward"]["lines"]] == ["good", "other", "failed"]


def test_a_run_that_the_experiment_calls_failed_is_failed_whatever_its_own_header_says(tmp_path):
    folder = records.write_experiment(tmp_path / "sweep", {"a": 1.0}, seeds=1)
    content = json.loads((folder / "experiment.json").read_text())
    content["arms"][0] |= {"status": "failed", "error": "RuntimeError: in a hook"}
    records.write_json(folder / "experiment.json", content)
    assert read_subject(folder).runs[0].status == "failed"


def test_an_experiment_that_says_running_without_a_running_run_was_cut_off(tmp_path):
    folder = records.write_experiment(tmp_path / "sweep", {"a": 1.0}, status="running")
    assert "it was probably cut off" in page(folder)
    records.mark_running_here(folder / "a__s0", os.getpid())
    assert "it was probably cut off" not in page(folder)


def test_an_experiment_that_has_only_begun_has_a_page(tmp_path):
    records.write_json(
        tmp_path / "e" / "experiment.json", {"name": "e", "status": "running", "runs": [{"key": "a", "arm": "a"}]}
    )
    assert titles(page(tmp_path / "e")) == ["Overview", "Arms compared"]


@pytest.mark.parametrize(
    "content", [{}, {"runs": 3, "arms": None, "config": []}, {"runs": [1, {}, {"key": 2}], "arms": [1]}]
)
def test_an_experiment_file_of_another_shape_does_no_harm(tmp_path, content):
    records.write_json(tmp_path / "e" / "experiment.json", content)
    assert titles(page(tmp_path / "e"))[0] == "Overview"


def test_more_arms_than_colours_differ_by_their_strokes(tmp_path):
    text = page(
        records.write_experiment(tmp_path / "sweep", {f"arm{place}": 1.0 for place in range(10)}, seeds=1, steps=3)
    )
    assert 'class="s0 d0 arm0"' in text
    assert 'class="s0 d1 arm8"' in text


def test_a_chart_says_that_it_was_thinned(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=4)
    records.write_lines(folder / "metrics.jsonl", ({"step": step, "loss": float(step % 7)} for step in range(3000)))
    text = page(folder)
    shown = len(data_in(text)["charts"]["training/loss"]["lines"][0]["steps"])
    assert shown < 2000
    assert f"{shown:,} of 3,000 points: the least and the greatest of every stretch of steps." in text


def test_samples_without_a_reward_are_told_with_the_first_reason(tmp_path):
    folder = records.write_run(tmp_path / "run", steps=4)
    header = json.loads((folder / "run.json").read_text())
    failures = {"samples": 7, "first": "reward 'mine' raised ValueError: <b>boom</b>"}
    records.write_json(folder / "run.json", {**header, "reward_failures": failures})
    text = page(folder)
    assert "7 samples had no reward and were left out. The first said: reward" in text
    assert "<b>boom" not in text


def test_norms_of_gradients_are_one_drawing_of_all_layers(tmp_path):
    folder = records.write_run(tmp_path / "run")
    assert "Gradient norms" not in titles(page(folder))
    layers = ["embed_tokens", *(f"layers.{number}" for number in range(30)), "lm_head"]
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for step in range(40, 42):
            norms = {f"grad_norm.{layer}": 10.0**-place for place, layer in enumerate(layers)}
            norms |= {"grad_norm.layers.3": "NaN", "grad_norm.layers.4": 0.0}
            file.write(json.dumps({"step": step, "time": 1.0, **norms}) + "\n")
    text = page(folder)
    assert "Gradient norms" in titles(text)
    assert text.count("<rect ") == page(records.write_run(tmp_path / "other")).count("<rect ") + 2 * (len(layers) - 2)
    assert "training/grad_norm.layers.0" not in data_in(text)["charts"]
    assert "training/grad_norm" in data_in(text)["charts"]
    assert "From 1e−31 (pale) to 1 (dark)" in text
    assert "<td>layers.29</td>" in text


def test_the_loss_of_the_only_loss_eval_is_drawn_once(tmp_path):
    folder = records.write_run(tmp_path / "run", config={**records.CONFIG, "eval": [{"name": "sort"}]})
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for step in range(40, 42):
            file.write(json.dumps({"step": step, "time": 1.0, "sort.eval_loss": 0.5, "eval_loss": 0.5}) + "\n")
    charts = data_in(page(folder))["charts"]
    assert "evals/sort.eval_loss" in charts
    assert "training/eval_loss" not in charts
