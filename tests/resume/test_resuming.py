"""Going on with a run: from which checkpoint, with which configuration, and what of the record is kept."""

import copy
import json
import logging
import os
import pickle
import shutil
import threading

import pytest
import torch
from peft import PeftModel
from tests.small import MODEL
from transformers import AutoModelForCausalLM

from proa import Callback
from proa.config import ConfigError, load_run_config
from proa.recipes import grpo, sft
from proa.record.checkpoints import CheckpointError, CheckpointManager
from proa.record.run_folder import RunFolderError
from proa.record.run_record import RECORD_FILES
from proa.record.state_files import StateError, read_state
from proa.resume import checkpoints
from proa.resume.configuration import config_changes, log_changes
from proa.resume.resuming import clear_record, clear_run, find_checkpoint, truncate_record

SETTINGS = {
    "name": "run", "total_steps": 4, "train_batch_size": 4, "model": {"config": MODEL},
    "task": {"source": "sort_digits", "count": 32}, "optimizer": {"learning_rate": 3e-3},
    "eval": [{"name": "held_out", "kind": "generate", "count": 2, "run_every": 1, "max_new_tokens": 4}],
    "checkpoint": {"save_every": 1, "keep": None},
}  # fmt: skip
IDS = torch.tensor([[3, 5, 7, 9]])


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    sft(**SETTINGS, output_dir=folder)
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    """The folder of a run of four steps, all of them saved, to do with as one likes."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def again(run, resume="auto", **changes):
    return sft(**SETTINGS | changes, output_dir=run.parent, resume=resume)


def all_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def header(run):
    return json.loads((run / "run.json").read_text())


def steps_in(run):
    """Which steps the record tells of, row by row."""
    files = [(run / name).read_text().splitlines() for name in ("metrics.jsonl", "evals.jsonl")]
    return [[json.loads(line)["step"] for line in lines] for lines in files]


def cut_off(run, **entries):
    """As if it had not come to its end."""
    (run / "run.json").write_text(json.dumps(header(run) | {"status": "running"} | entries))


def lose_checkpoints(run):
    """As if it had not come to its first."""
    (run / "checkpoints.jsonl").unlink()
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "model")


def tear(run, name):
    path = run / "checkpoints" / name / "state" / "trainer" / "state.json"
    path.write_bytes(path.read_bytes()[:-1])


def change_row(run, name, **changes):
    path = run / "checkpoints.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | (changes if row.get("name") == name else {})) + "\n" for row in rows))


# Which checkpoint.


def test_it_is_the_newest_or_the_one_that_is_named(run):
    assert find_checkpoint(run).row.name == "step_4"
    assert find_checkpoint(run, "step_2").row.step == 2


def test_a_torn_one_is_passed_over_with_a_warning(run, caplog):
    tear(run, "step_4")
    assert find_checkpoint(run).row.name == "step_3"
    assert "passed over: checkpoint step_4 does not match its row: state/trainer/state.json has" in caplog.text


def test_a_torn_one_that_is_named_is_refused_and_the_newest_good_one_offered(run):
    tear(run, "step_2")
    with pytest.raises(CheckpointError, match="step_2 does not match its row.*; the newest that is whole is step_4"):
        find_checkpoint(run, "step_2")
    for name in ("step_1", "step_3", "step_4"):
        tear(run, name)
    with pytest.raises(CheckpointError, match="there is no other that is whole"):
        find_checkpoint(run, "step_2")
    with pytest.raises(CheckpointError, match="there is no checkpoint to resume from"):
        find_checkpoint(run)


def test_a_name_that_there_is_not_is_told_with_a_near_one(run):
    with pytest.raises(CheckpointError, match="no checkpoint stp_3; did you mean 'step_3'"):
        find_checkpoint(run, "stp_3")


def test_a_run_without_any_has_none(tmp_path):
    assert find_checkpoint(tmp_path) is None


@pytest.mark.parametrize("name", ["auto", "only_a_model"])
def test_a_checkpoint_without_a_state_is_refused(tmp_path, name):
    from proa import ManifestRow

    def write(into):
        (into / "model").mkdir()
        (into / "model" / "weights").write_bytes(b"abc")

    CheckpointManager(tmp_path).save(ManifestRow("only_a_model", 0, 0, step=1), write)
    with pytest.raises(CheckpointError, match="only_a_model holds a model and no state"):
        find_checkpoint(tmp_path, name)


# What comes from a stranger.


@pytest.mark.parametrize(
    "place", ["../../elsewhere/state", "/etc/state", "checkpoints/../state", "checkpoints/step_3/state"]
)
def test_a_row_that_leads_elsewhere_is_refused(run, place):
    change_row(run, "step_4", state_path=place)
    with pytest.raises(CheckpointError, match="its row names"):
        find_checkpoint(run, "step_4")
    assert find_checkpoint(run).row.name == "step_3"


@pytest.mark.parametrize("part", ["state", "state/trainer", "."])
def test_a_link_in_the_place_of_a_folder_is_refused(run, part):
    folder = run / "checkpoints" / "step_4" / part
    shutil.move(folder, run.parent / "elsewhere")
    folder.symlink_to(run.parent / "elsewhere")
    with pytest.raises(CheckpointError, match="link"):
        find_checkpoint(run, "step_4")


def test_a_pickle_in_the_place_of_a_state_is_not_unpickled(run):
    class Trap:
        def __reduce__(self):
            return (open, (str(run / "sprung"), "w"))

    path = run / "checkpoints" / "step_4" / "state" / "trainer" / "state.json"
    path.write_bytes(pickle.dumps(Trap()))
    row = next(row for row in CheckpointManager(run).rows if row.name == "step_4")
    change_row(  # its sizes and digests are those of the pickle
        run,
        "step_4",
        sizes=row.sizes | {"state/trainer/state.json": path.stat().st_size},
        digests=row.digests | {"state/trainer/state.json": __import__("hashlib").sha256(path.read_bytes()).hexdigest()},
    )
    resumption = find_checkpoint(run, "step_4")
    with pytest.raises(StateError, match="cannot be read"):
        resumption.loop()
    assert not (run / "sprung").exists()


# What of the record is kept.


def test_the_record_is_cut_back_to_the_checkpoint(run):
    resumption = find_checkpoint(run, "step_2")
    lengths = resumption.part("run")["record"]
    before = {name: (run / name).read_bytes() for name in RECORD_FILES if (run / name).exists()}
    assert len(before["metrics.jsonl"]) > lengths["metrics.jsonl"] > 0
    truncate_record(resumption)
    for name, content in before.items():
        assert (run / name).read_bytes() == content[: lengths[name]]
    assert sorted(path.name for path in (run / "evals" / "held_out").iterdir()) == [
        "step_0.jsonl", "step_1.jsonl", "step_2.jsonl",
    ]  # fmt: skip
    assert [row.name for row in CheckpointManager(run).rows] == ["step_1", "step_2"]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_1", "step_2"]
    assert CheckpointManager(run).final() is None


@pytest.mark.parametrize("name", RECORD_FILES)
def test_every_file_that_is_appended_to_is_cut_back(run, name, monkeypatch):
    resumption = find_checkpoint(run, "step_2")
    lengths = {**dict.fromkeys(RECORD_FILES, 0), name: 5}
    for one in RECORD_FILES:
        (run / one).write_bytes(b"12345678")
    monkeypatch.setattr("proa.resume.resuming.EvalRecord", lambda folder: type("None", (), {"read": list})())
    monkeypatch.setattr(type(resumption), "part", lambda self, part: {"record": lengths})
    truncate_record(resumption)
    assert {one: (run / one).read_bytes() for one in RECORD_FILES} == {
        one: b"12345" if one == name else b"" for one in RECORD_FILES
    }


def test_a_record_that_lost_something_is_reported_and_the_run_goes_on_to_the_same_weights(run, finished, caplog):
    digest, losses = header(finished)["weights_digest"], {"metrics.jsonl": 30, "evals.jsonl": None, "spans.jsonl": 0}
    for name, left in losses.items():
        if left is None:
            (run / name).unlink()
        else:
            (run / name).write_bytes((run / name).read_bytes()[:left])
    state = again(run, resume="step_2")
    assert (state.resumed_from, header(run)["weights_digest"]) == ("step_2", digest)
    assert "metrics.jsonl is shorter than it was when checkpoint step_2 was written, 30 bytes and" in caplog.text
    assert "evals.jsonl is missing, and had" in caplog.text
    assert steps_in(run) == [[2, 2, 3, 3], [2, 3]]  # whole lines, though the one before them was torn
    assert (run / "evals" / "held_out" / "step_1.jsonl").exists()  # what is not in the record any more is still there


LINKED = ["metrics.jsonl", "journal.jsonl", "evals.jsonl", "spans.jsonl", "evals", "evals/held_out", "rollouts"]


def test_links_are_refused_before_anything_is_cut(run):
    resumption, outside = find_checkpoint(run, "step_2"), run.parent / "outside"
    for name in LINKED:
        linked, kept = run / name, run.parent / "kept"
        if linked.exists():
            linked.rename(kept)
        outside.mkdir()
        (outside / "step_4.jsonl").write_text("precious")
        linked.symlink_to(outside if "." not in name else outside / "step_4.jsonl")
        before = all_files(run) | all_files(outside)
        with pytest.raises(CheckpointError, match=f"{name} is a link, and links are not followed"):
            truncate_record(resumption)
        assert all_files(run) | all_files(outside) == before
        linked.unlink()
        if kept.exists():
            kept.rename(linked)
        shutil.rmtree(outside)


def test_a_run_that_had_no_checkpoint_begins_without_what_it_left(run):
    (run / "notes.txt").write_text("mine")
    (run / "checkpoints.jsonl").unlink()
    clear_run(run)
    left = {path.name for path in run.iterdir()} - {".lock"}
    assert left == {"run.json", "config.json", "notes.txt"}


def test_a_run_whose_list_of_checkpoints_is_gone_does_not_begin_again(run):
    manifest = run / "checkpoints.jsonl"
    for lose in (lambda: manifest.write_text(""), manifest.unlink):
        cut_off(run)
        lose()
        before = all_files(run)
        with pytest.raises(
            CheckpointError, match=r"checkpoints\.jsonl, which names the checkpoints .* is gone or empty"
        ):
            again(run)
        assert all_files(run) == before


def test_a_crash_in_the_first_save_leaves_a_run_that_begins_again(run):
    cut_off(run)
    lose_checkpoints(run)
    (run / "checkpoints" / "step_1").mkdir(parents=True)
    assert find_checkpoint(run) is None


def test_a_file_of_somebody_else_among_the_rollouts_is_left_alone(run):
    (run / "rollouts").mkdir(exist_ok=True)
    (run / "rollouts" / "step_mine.jsonl").write_text("{}")
    truncate_record(find_checkpoint(run, "step_2"))
    assert (run / "rollouts" / "step_mine.jsonl").exists()


def test_only_a_runs_folder_is_cleared(tmp_path):
    (tmp_path / "evals").mkdir()
    (tmp_path / "metrics.jsonl").write_text("not of a run")
    with pytest.raises(RunFolderError, match="not a run's folder: there is no run.json"):
        clear_run(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_open_loggers_wrote_is_cleared_by_a_new_process_alone(run):
    (run / "tensorboard").mkdir()
    clear_record(run)
    assert (run / "tensorboard").is_dir()
    assert not (run / "metrics.jsonl").exists()
    clear_run(run)
    assert not (run / "tensorboard").exists()


def test_a_link_among_what_is_cleared_is_removed_and_not_followed(run):
    outside = run.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    shutil.rmtree(run / "evals")
    (run / "evals").symlink_to(outside)
    clear_run(run)
    assert not (run / "evals").is_symlink()
    assert (outside / "precious").exists()


# The run as a whole.


def test_a_complete_run_is_left_untouched_and_its_final_state_returned(run):
    before = all_files(run)
    state = again(run)
    assert all_files(run) == before
    assert (state.global_step, state.resumed_from, state.should_stop) == (4, "step_4", False)
    assert state.metrics["held_out.exact"] == header(run)["evals"]["held_out"]["exact"]


def test_a_complete_run_is_not_the_result_of_other_settings(run):
    before = all_files(run)
    with pytest.raises(ConfigError, match="total_steps was 4 and is 3"):
        again(run, total_steps=3)
    assert all_files(run) == before


def test_the_final_state_knows_what_came_after_the_last_checkpoint(tmp_path):
    class StopLate(Callback):
        def on_checkpoint(self, state, row):
            if row.step == 2:
                state.stop_training("late")

    evals = [{**SETTINGS["eval"][0], "run_every": 0, "baseline": False}]
    first = sft(**SETTINGS | {"eval": evals}, output_dir=tmp_path, callbacks=[StopLate()])
    state = sft(**SETTINGS | {"eval": evals}, output_dir=tmp_path, resume="auto")
    assert first.metrics.keys() == state.metrics.keys() >= {"held_out.exact"}
    assert (state.global_step, state.stop_reason, state.stopped_by) == (2, "late", first.stopped_by)


def test_from_a_named_checkpoint_a_complete_run_goes_on(run, finished):
    digest = header(run)["weights_digest"]
    state = again(run, resume="step_2")
    assert (state.resumed_from, state.global_step) == ("step_2", 4)
    assert (header(run)["weights_digest"], header(run)["status"]) == (digest, "completed")
    assert header(run)["resumed"][-1]["checkpoint"] == "step_2"
    assert steps_in(run) == steps_in(finished)


def test_a_run_that_was_cut_off_before_its_first_checkpoint_begins_again(run, finished):
    digest = header(run)["weights_digest"]
    cut_off(run)
    lose_checkpoints(run)
    state = again(run)
    assert (state.resumed_from, header(run)["weights_digest"]) == (None, digest)
    assert header(run)["resumed"][-1]["checkpoint"] == "the beginning"
    assert steps_in(run) == steps_in(finished)


def test_what_was_refused_leaves_the_folder_as_it_was(run):
    cut_off(run)
    before = all_files(run)
    with pytest.raises(ConfigError, match="seed was 0 and is 1"):
        again(run, seed=1)
    with pytest.raises(CheckpointError, match="no checkpoint step_9"):
        again(run, resume="step_9")
    assert all_files(run) == before


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "holiday.jpg").write_bytes(b"...")
    with pytest.raises(RunFolderError, match="was already used"):
        sft(**SETTINGS, output_dir=tmp_path, resume="auto")
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(RunFolderError, match="there is no config.json"):
        sft(**SETTINGS, output_dir=tmp_path, resume="auto")
    assert (tmp_path / "run" / "holiday.jpg").exists()


# The configuration.


def of(**changes):
    return load_run_config(recipe="sft", **copy.deepcopy(SETTINGS | changes))


def saved(**changes):
    return json.loads(json.dumps(of(**changes).model_dump(mode="json")))


def test_the_same_configuration_changes_nothing():
    assert config_changes(saved(), of()) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"}, {"output_dir": "elsewhere"}, {"checkpoint.save_every": 7}, {"eval": []},
        {"callbacks": [{"kind": "csv"}]}, {"model.trust_remote_code": True}, {"checkpoint": {"keep": 9}},
        {"engine.sleep": True},
    ],
    ids=str,
)  # fmt: skip
def test_what_changes_nothing_that_is_learned_is_allowed_and_told(change, caplog):
    changes = config_changes(saved(), of(**change))
    assert len(changes) >= 1
    log_changes(changes)
    assert "last bits" not in caplog.text
    assert ("was" in caplog.text) is (not {"name", "output_dir"} & change.keys())


@pytest.mark.parametrize(
    "change",
    ["call_timeout", "step_timeout", "trajectory_timeout", "workers", "memory_gib"],
)
def test_where_environments_live_and_how_long_they_may_take_may_change(change):
    section = {"path": "my_game:Maze", change: 7}
    settings = {key: value for key, value in SETTINGS.items() if key not in ("algorithm", "total_steps")}
    before, now = (
        load_run_config(
            recipe="grpo", **copy.deepcopy(settings), total_steps=4, sampling={"group_size": 2}, environment=environment
        )
        for environment in ({"path": "my_game:Maze"}, section)
    )
    assert list(config_changes(before.model_dump(mode="json"), now)) == [f"environment.{change}"]


@pytest.mark.parametrize(
    "change", [{"threads": 2}, {"optimizer.token_budget": 100}, {"engine": "hf"}, {"model.device": "cuda"}], ids=str
)
def test_what_computes_in_another_order_is_allowed_with_a_warning(change, caplog):
    changes = config_changes(saved(), of(**change))
    (key,) = change
    log_changes(changes)
    assert [name.startswith(key) for name in changes] == [True]
    assert "results may differ in their last bits" in caplog.text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 3}, "seed was 0 and is 3"),
        ({"total_steps": 3}, "total_steps was 4 and is 3"),
        ({"train_batch_size": 8}, "train_batch_size was 4 and is 8"),
        ({"optimizer.learning_rate": 1e-3}, "optimizer.learning_rate was 0.003 and is 0.001"),
        ({"lora": {"rank": 2}}, "lora was None and is {"),
        ({"task.count": 16}, "task.count was 32 and is 16"),
        ({"algorithm": {"name": "sft", "params": {"packing": True}}}, "algorithm.params.packing was None and is True"),
    ],
    ids=str,
)  # fmt: skip
def test_what_would_change_what_is_learned_is_refused_with_what_to_do(change, told):
    with pytest.raises(ConfigError) as refused:
        config_changes(saved(), of(**change))
    assert told in str(refused.value)
    assert "start a new run whose model.path is one of its checkpoints" in str(refused.value)


def test_all_that_is_refused_is_told_at_once():
    with pytest.raises(ConfigError, match=r"seed was 0 and is 3; total_steps was 4 and is 3\."):
        config_changes(saved(), of(seed=3, total_steps=3, threads=2))


def test_a_key_that_an_older_version_did_not_have_was_at_its_default():
    older = saved()
    del older["optimizer"]["warmup_steps"]
    del older["checkpoint"]["grace"]
    assert config_changes(older, of()) == {}
    with pytest.raises(ConfigError, match=r"optimizer.warmup_steps was 0 and is 5\."):
        config_changes(older, of(**{"optimizer.warmup_steps": 5}))


def test_a_secret_that_is_given_again_is_told_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    before = saved(callbacks=[{"kind": "chat", "params": {"token": "REDACTED", "room": "runs"}}])
    for room in ("runs", "others"):
        now = of(callbacks=[{"kind": "chat", "params": {"token": "t-123456789", "room": room}}])
        log_changes(config_changes(before, now))
        assert ("callbacks was" in caplog.text) is (room == "others")
    with pytest.raises(ConfigError) as refused:
        config_changes(before, of(algorithm={"name": "sft", "params": {"api_key": "t-123456789"}}))
    assert "t-123456789" not in caplog.text + str(refused.value)


# What a checkpoint holds.


class Hold(Callback):
    """Has whoever writes in the background wait until the next step is done."""

    def __init__(self, monkeypatch):
        self.stepped = threading.Event()
        write = checkpoints._write

        def late(*arguments):
            assert self.stepped.wait(120)
            write(*arguments)

        monkeypatch.setattr(checkpoints, "_write", late)

    def on_step_end(self, state, step_idx, batch, metrics):
        self.stepped.clear() if state.global_step % 2 == 0 else self.stepped.set()

    def on_eval(self, state, step_idx, eval_name, metrics):
        if state.global_step == 4:  # the last one
            self.stepped.set()


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4.0}], ids=["whole", "lora"])
def test_what_is_written_beside_the_training_is_what_was_when_it_was_saved(lora, tmp_path, monkeypatch):
    checkpoint = {"save_every": 2, "keep": None}
    sft(**SETTINGS | {"name": "in_place", "checkpoint": checkpoint, "lora": lora}, output_dir=tmp_path)
    behind = SETTINGS | {"name": "behind", "checkpoint": checkpoint | {"background": True}, "lora": lora}
    sft(**behind, output_dir=tmp_path, callbacks=[Hold(monkeypatch)])
    one, other = (tmp_path / name / "checkpoints" / "step_2" for name in ("in_place", "behind"))
    assert {path.name: path.read_bytes() for path in (one / "model").glob("*.safetensors")} == {
        path.name: path.read_bytes() for path in (other / "model").glob("*.safetensors")
    }
    ours, theirs = (read_state(place / "state" / "optimizer") for place in (one, other))
    assert ours["steps"] == theirs["steps"] == 2
    for name, moments in ours["moments"].items():
        assert all(torch.equal(tensor, theirs["moments"][name][key]) for key, tensor in moments.items())


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("save_every", [1, 3])
def test_the_final_weights_are_offered_under_a_name_that_never_changes(background, save_every, tmp_path):
    checkpoint = {"save_every": save_every, "background": background}
    sft(**SETTINGS | {"checkpoint": checkpoint}, output_dir=tmp_path)
    run = tmp_path / "run"
    row = CheckpointManager(run).final()
    assert row.name == ("step_4" if save_every == 1 else "final")
    of_checkpoint, offered = run / row.sampler_path / "model.safetensors", run / "model" / "model.safetensors"
    assert offered.read_bytes() == of_checkpoint.read_bytes()
    assert offered.stat().st_ino == of_checkpoint.stat().st_ino  # not a second copy of it


def test_on_a_disk_without_links_the_final_weights_are_copied(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    sft(**SETTINGS, output_dir=tmp_path)
    weights = [tmp_path / "run" / place / "model.safetensors" for place in ("model", "checkpoints/step_4/model")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


# The weights of a checkpoint, for others.


class Logits(Callback):
    """What the trainer's model says after each step."""

    def __init__(self, model):
        self.model, self.said = model, {}

    def on_step_end(self, state, step_idx, batch, metrics):
        with torch.no_grad():
            self.said[state.global_step] = self.model(IDS).logits


RECIPES = {
    "sft": (sft, {}),
    "grpo": (grpo, {"sampling": {"group_size": 2, "max_new_tokens": 4}, "reward": {"workers": 0}, "eval": []}),
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoints_model_is_the_trainers_for_transformers(recipe, background, tmp_path):
    from proa.policy.models import load_model
    from proa.tasks.builtin.characters import tokenizer

    run_recipe, more = RECIPES[recipe]
    model = load_model(MODEL, seed=0)
    logits = Logits(model)
    checkpoint = SETTINGS["checkpoint"] | {"background": background}
    settings = SETTINGS | more | {"model": model, "tokenizer": tokenizer(), "checkpoint": checkpoint, "total_steps": 2}
    run_recipe(**settings, output_dir=tmp_path, callbacks=[logits])
    for step, expected in logits.said.items():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoints" / f"step_{step}" / "model")
        with torch.no_grad():
            assert torch.equal(loaded(IDS).logits, expected)
    assert not torch.equal(logits.said[1], logits.said[2])


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoints_adapter_is_the_trainers_for_peft(background, tmp_path):
    from proa.policy.models import load_model
    from proa.tasks.builtin.characters import tokenizer

    model = load_model(MODEL, seed=0)
    logits = Logits(model)
    checkpoint = SETTINGS["checkpoint"] | {"background": background}
    settings = SETTINGS | {"model": model, "tokenizer": tokenizer(), "checkpoint": checkpoint, "total_steps": 2}
    sft(**settings, lora={"rank": 2, "alpha": 4.0}, output_dir=tmp_path, callbacks=[logits])
    for step, expected in logits.said.items():
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "base")
        loaded = PeftModel.from_pretrained(base, tmp_path / "run" / "checkpoints" / f"step_{step}" / "model")
        with torch.no_grad():
            assert torch.allclose(loaded(IDS).logits, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(logits.said[1], logits.said[2], rtol=1e-5, atol=1e-6)
