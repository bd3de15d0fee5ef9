"""Every logger, its output read back with its own library; and none of them can hurt a run."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from tests.callbacks.logger_readers import ALL_KINDS, KINDS, FailingModule, needs, put_in_place, read
from tests.integration.small_run import digest, header

from proa import Callback, CallbackManager, EvalResult, LogContext, LoopState, RunResult, TrainingBatch
from proa.callbacks import build_callback
from proa.data.loop import ManifestRow
from proa.data.results import ArmResult, ExperimentResult
from proa.loop import ScoreFunction, SupervisedLoop

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def nobody_is_logged_in(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "TRACKIO_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)


def steps(manager, state, losses):
    for step_idx, loss in losses:
        state.global_step = step_idx + 1
        manager.fire("step_end", state, step_idx, metrics={"loss": loss})


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_steps_and_evals_are_read_back_and_what_is_not_finite_stays_so(tmp_path, kind):
    losses = [3.0, math.nan, math.inf, -math.inf]
    SupervisedLoop(
        lambda batch: {"loss": batch.data, "tensor": torch.tensor(0.25), "note": "text"},
        callbacks=[KINDS[kind]()],
        evaluators=[ScoreFunction("sort", lambda: {"exact": 0.5}, run_every=2, baseline=True)],
        output_dir=tmp_path,
    ).fit(lambda epoch: [TrainingBatch(loss) for loss in losses])
    written = read(kind, tmp_path)
    assert [step for step, _ in written.values["loss"]] == [0, 1, 2, 3]
    assert [str(float(value)) for _, value in written.values["loss"]] == ["3.0", "nan", "inf", "-inf"]
    assert written.values["tensor"] == [(step, 0.25) for step in range(4)]
    assert written.values["sort.exact"] == [(-1, 0.5), (1, 0.5), (3, 0.5)]
    assert ("note" in written.values) == (kind != "tensorboard")
    assert len(written.ids) == 1


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_run_that_goes_on_has_the_same_id_and_no_step_twice(tmp_path, kind):
    first = KINDS[kind]()
    manager = CallbackManager([first])
    state = LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    steps(manager, state, [(0, 5.0), (1, 4.0)])
    saved = manager.state_dict()
    steps(manager, state, [(2, 3.0), (3, 2.0)])
    manager.fire("train_end", state)

    again = CallbackManager([second := KINDS[kind]()])
    again.load_state_dict(json.loads(json.dumps(saved)))
    state = LoopState(output_dir=tmp_path, global_step=2, resumed_from="step_2")
    again.fire("train_start", state)
    assert second.run_id == saved[kind]["run_id"]
    steps(again, state, [(2, 3.0), (3, 2.0), (4, 1.0)])
    again.fire("train_end", state)
    assert (manager.errors, again.errors) == ({}, {})
    written = read(kind, tmp_path)
    assert written.values["loss"] == [(0, 5.0), (1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]
    assert len(written.ids) == 1


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_run_that_begins_anew_in_the_same_folder_is_another_one(tmp_path, kind):
    for loss in (9.0, 1.0):
        manager = CallbackManager([KINDS[kind]()])
        state = LoopState(output_dir=tmp_path)
        manager.fire("train_start", state)
        steps(manager, state, [(0, loss)])
        manager.fire("train_end", state)
    written = read(kind, tmp_path)
    if kind == "tensorboard":  # it knows a run by its folder, and shows the last
        assert written.values["loss"] == [(0, 1.0)]
    else:
        assert (sorted(written.values["loss"]), len(written.ids)) == ([(0, 1.0), (0, 9.0)], 2)


def experiment(tmp_path, manager, *, run_key="arm__s1", resumed=False):
    """One run of an experiment, as far as a logger hears of it."""
    ctx = LogContext(tmp_path, config={"name": "compare"}, run_key=run_key, run_config={"seed": 7}, group_name="arm")
    ctx.ids["experiment_id"] = "e1"
    ctx.extras |= {"resumed_from": "step_1" if resumed else None, "steps_done": 1 if resumed else 0}
    predictions = [{"prompt": f"p{index}", "reward": index / 100, "tags": {"hard": True}} for index in range(101)]
    manager.fire("group_start", ctx, "arm")
    manager.fire("run_start", ctx)
    state = LoopState(output_dir=tmp_path / run_key, ctx=ctx, global_step=1 if resumed else 0)
    state.resumed_from = "step_1" if resumed else None
    manager.fire("train_start", state)
    steps(manager, state, [(1, 1.0)] if resumed else [(0, 2.0), (1, 1.0)])
    manager.fire("eval_end", state, 1, "sort", {"exact": 0.5})
    manager.fire("benchmark_eval", ctx, EvalResult("sort", metrics={"exact": 0.5}), predictions, 1)
    manager.fire("checkpoint_saved", state, ManifestRow("step_2", 1, 0, sampler_path="there", step=2))
    manager.fire("train_end", state)
    manager.fire("benchmark_eval", ctx, EvalResult("sort", metrics={"exact": 0.75}), [], None)
    arm = ArmResult(run_key, status="completed", eval_metrics={"sort": {"exact": 0.75}})
    manager.fire("run_end", ctx, RunResult("r", metrics={"reward": 0.5}), arm)
    return ctx


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_run_of_an_experiment_holds_its_benchmarks_and_belongs_to_its_group(tmp_path, kind):
    manager = CallbackManager([KINDS[kind](predictions=3)])
    ctx = experiment(tmp_path, manager)
    assert manager.errors == {}
    written = read(kind, tmp_path, "compare")
    assert written.values["loss"] == [(0, 2.0), (1, 1.0)]
    assert written.values["sort.exact"] == [(1, 0.5), (2, 0.75)]  # in the loop once, and after training
    columns, rows = written.tables["sort.predictions"]
    assert columns == ["prompt", "reward", "tags"]
    assert [row[0] for row in rows] == ["p0", "p50", "p100"]
    assert written.config["seed"] == 7
    assert written.config["experiment_id"] == "e1"
    assert ctx.ids["group:arm"] == "arm"
    if kind == "tensorboard":  # it knows a run by its folder
        assert "run_id" not in ctx.ids
    else:
        assert (written.ids, written.groups) == ({ctx.ids["run_id"]}, {"arm"})
    assert written.names == {"arm__s1"}
    texts = json.dumps(written.texts)
    assert "completed" in texts
    assert "there" in texts


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_runs_of_an_experiment_are_apart_and_one_that_was_cut_off_goes_on(tmp_path, kind):
    ids = {}
    for run_key in ("arm__s1", "arm__s2"):
        ids[run_key] = experiment(tmp_path, CallbackManager([KINDS[kind]()]), run_key=run_key).ids.get("run_id")
    again = CallbackManager([KINDS[kind]()])
    assert experiment(tmp_path, again, run_key="arm__s2", resumed=True).ids.get("run_id") == ids["arm__s2"]
    assert again.errors == {}
    written = read(kind, tmp_path, "compare")
    assert written.ids == (set(ids) if kind == "tensorboard" else set(ids.values()))
    assert sorted(written.values["loss"]) == [(0, 2.0), (0, 2.0), (1, 1.0), (1, 1.0)]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_result_of_an_experiment_is_a_run_of_its_own(tmp_path, kind):
    manager = CallbackManager([KINDS[kind]()])
    ctx = LogContext(tmp_path, config={"name": "compare"})
    manager.fire("experiment_start", ctx)
    assert ctx.ids["experiment_id"]
    arms = [ArmResult("a", status="completed", eval_metrics={"sort": {"exact": 0.75}}), ArmResult("b", status="failed")]
    manager.fire("experiment_end", ctx, ExperimentResult("compare", "failed", arms, best_arm="a"))
    assert manager.errors == {}
    written = read(kind, tmp_path, "compare")
    columns, rows = written.tables["arms"]
    assert columns == ["arm", "status", "sort.exact"]
    assert [[str(cell) for cell in row] for row in rows] == [["a", "completed", "0.75"], ["b", "failed", ""]]
    assert "best_arm" in json.dumps(written.texts)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_why_a_run_failed_is_told_without_secrets(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", "planted-by-env-7")
    monkeypatch.setenv("WANDB_API_KEY", "planted" + "0" * 33)
    monkeypatch.setattr(sys, "argv", ["proa", "train", "--api_key", "planted-on-the-line-7"])
    (tmp_path / "config.json").write_text(json.dumps({"callbacks": [{"params": {"api_key": "planted-key-7"}}]}))

    def fail(batch):
        raise RuntimeError("401 for planted-by-env-7!")

    with pytest.raises(RuntimeError):
        SupervisedLoop(fail, callbacks=[KINDS[kind]()], output_dir=tmp_path).fit(lambda epoch: [TrainingBatch(0)])
    written = read(kind, tmp_path)
    assert "401 for REDACTED!" in written.texts["error"][0][1]
    assert written.config["callbacks"][0]["params"]["api_key"] == "REDACTED"
    if kind == "wandb":
        assert written.exit_codes == [1]
    for path in (tmp_path / kind).rglob("*"):
        if path.is_file():
            assert b"planted" not in path.read_bytes(), path


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_nobody_else_reads_what_a_logger_writes(tmp_path, kind):
    before = os.umask(0)
    try:
        SupervisedLoop(lambda batch: {"loss": 1.0}, callbacks=[KINDS[kind]()], output_dir=tmp_path).fit(
            lambda epoch: [TrainingBatch(0)]
        )
    finally:
        os.umask(before)
    assert (tmp_path / kind).stat().st_mode & 0o077 == 0


# -- a logger that fails never hurts the run ---------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_digest(tmp_path_factory):
    return digest(tmp_path_factory.mktemp("plain"), "plain")


WORKS = {
    "tensorboard": ["SummaryWriter", "SummaryWriter.add_text"],
    "wandb": ["init", "Settings", "init.define_metric"],
    "trackio": ["init"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opens", [False, True])
def test_a_library_that_raises_in_every_call_changes_no_weight_and_is_counted(
    tmp_path, plain_digest, monkeypatch, kind, opens
):
    broken = FailingModule(*(WORKS[kind] if opens else ()))
    put_in_place(monkeypatch, kind, broken)
    callbacks = [build_callback({"kind": kind})]
    assert digest(tmp_path, "run", callbacks=callbacks, checkpoint={"save_every": 2}) == plain_digest
    counted = header(tmp_path)["callback_errors"][KINDS[kind].__name__]
    # The opening; or each of three steps, after which only the end is heard.
    assert counted >= 3 if opens else counted == 1
    assert broken.calls
    assert header(tmp_path)["status"] == "completed"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_whole_run_with_a_logger_has_the_weights_of_one_without(tmp_path, plain_digest, kind):
    assert digest(tmp_path, "run", callbacks=[build_callback({"kind": kind})]) == plain_digest
    assert header(tmp_path)["callback_errors"] == {}
    written = read(kind, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert written.values["loss"] == [(row["step"], pytest.approx(row["loss"])) for row in rows if "loss" in row]
    assert written.config["total_steps"] == 4


class Accident(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        if step_idx == 2:
            raise RuntimeError("lost the machine")


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_whole_run_that_was_cut_off_and_resumed_is_one_run_with_each_step_once(tmp_path, plain_digest, kind):
    settings = {"checkpoint": {"save_every": 2}}
    with pytest.raises(RuntimeError, match="lost the machine"):
        digest(tmp_path, "run", callbacks=[KINDS[kind](), Accident()], **settings)
    assert digest(tmp_path, "run", callbacks=[KINDS[kind]()], resume="auto", **settings) == plain_digest
    assert header(tmp_path)["callback_errors"] == {}
    written = read(kind, tmp_path / "run")
    assert [step for step, _ in written.values["loss"]] == [0, 1, 2, 3]
    assert len(written.ids) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_that_is_missing_is_told_before_anything_begins(monkeypatch, kind):
    for name in [name for name in sys.modules if name.partition(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"{kind}' needs the package {kind}: pip install 'proa\[{kind}\]'"):
        build_callback({"kind": kind})


def test_no_library_is_imported_before_a_run_begins():
    code = (
        "import sys; from proa.callbacks import build_callback, callback_kinds\n"
        "kinds = {'tensorboard', 'wandb', 'trackio'} & callback_kinds().keys()\n"
        "import importlib.util as u; [build_callback({'kind': k}) for k in kinds if u.find_spec(k)]\n"
        "assert not {'tensorboard', 'wandb', 'trackio', 'torch.utils.tensorboard'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs("wandb")
def test_wandbs_own_command_finds_the_run(tmp_path):
    manager = CallbackManager([logger := KINDS["wandb"]()])
    state = LoopState(output_dir=tmp_path)
    manager.fire("train_start", state)
    run_id = logger.run_id
    steps(manager, state, [(0, 1.0)])
    manager.fire("train_end", state)
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run_id in found.stdout + found.stderr
