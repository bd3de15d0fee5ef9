"""What each logger asks of its library: offline unless told, within its time, and nothing of anybody else's."""

import json
import os
import threading
import time

import pytest
from tests.callbacks.logger_readers import FailingModule, needs, put_in_place, read

from proa import CallbackManager, LoopState
from proa.callbacks import build_callback
from proa.callbacks.trackio import _open_within
from proa.data.loop import ManifestRow
from proa.errors import CallbackConfigError


@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("wandb", {"mode": "on"}, "write 'offline', or 'online'"),
        ("wandb", {"timeout": 0}, "more than 0"),
        ("wandb", {"projekt": "x"}, "did you mean 'project'"),
        ("trackio", {"mode": "local"}, "write 'offline', or 'online'"),
        ("trackio", {"timeout": -1}, "more than 0"),
        ("trackio", {"space_id": "me/space"}, "write mode: online"),
        ("tensorboard", {"predictions": -1}, "at least 0"),
        ("tensorboard", {"project": "x"}, "no parameter 'project'"),
    ],
)
def test_mistakes_are_told_in_the_users_words(monkeypatch, kind, params, words):
    put_in_place(monkeypatch, kind, FailingModule())
    with pytest.raises(CallbackConfigError, match=words):
        build_callback({"kind": kind, "params": params})


def opened(logger, folder):
    manager, state = CallbackManager([logger]), LoopState(output_dir=folder)
    manager.fire("train_start", state)
    return manager, state


def write_one(logger, folder, loss):
    manager, state = opened(logger, folder)
    manager.fire("step_end", state, 0, metrics={"loss": loss})
    manager.fire("train_end", state)
    assert manager.errors == {}


@pytest.mark.prove
@needs("wandb")
def test_wandb_leaves_the_runs_of_others_alone_and_waits_as_long_as_it_was_told(tmp_path):
    import wandb

    theirs = wandb.init(mode="offline", dir=tmp_path, project="theirs", settings=wandb.Settings(silent=True))
    try:
        logger = build_callback({"kind": "wandb", "params": {"timeout": 7, "tags": ["small"], "project": "ours"}})
        manager, state = opened(logger, tmp_path / "run")
        assert wandb.run is theirs
        settings = logger._run.settings
        assert (settings.init_timeout, settings.finish_timeout, settings.mode) == (7, 7, "offline")
        assert (settings.disable_git, settings.save_code, settings.console) == (True, False, "off")
        assert (logger._run.project, logger._run.tags) == ("ours", ("small",))
        manager.fire("train_end", state)
        theirs.log({"x": 1})
    finally:
        theirs.finish()


class Answering:
    """A wandb that takes note of how it is called."""

    class Settings:
        model_fields = ("silent", "init_timeout")

        def __init__(self, **settings):
            self.settings = settings

    def init(self, **asked):
        self.asked = asked
        self.run = FailingModule("define_metric", "finish", "log", "summary.update")
        return self.run


def test_wandb_online_asks_to_go_on_and_passes_only_settings_that_the_version_knows(tmp_path, monkeypatch):
    put_in_place(monkeypatch, "wandb", answering := Answering())
    for mode, resume in (("online", "allow"), ("offline", None)):
        logger = build_callback({"kind": "wandb", "params": {"mode": mode, "timeout": 3}})
        logger.load_state_dict({"run_id": "old"})
        CallbackManager([logger]).fire(
            "train_start", LoopState(output_dir=tmp_path / mode, resumed_from="step_2", global_step=2)
        )
        asked = answering.asked
        assert (asked["mode"], asked["resume"], asked["id"]) == (mode, resume, "old")
        assert asked["settings"].settings == {"silent": True, "init_timeout": 3}


def test_wandb_does_not_go_on_within_the_second_whose_folder_it_would_overwrite(tmp_path, monkeypatch):
    put_in_place(monkeypatch, "wandb", Answering())
    second = time.strftime("%Y%m%d_%H%M%S")
    (tmp_path / "wandb" / f"offline-run-{second}-old").mkdir(parents=True)
    logger = build_callback({"kind": "wandb"})
    logger.load_state_dict({"run_id": "old"})
    manager = CallbackManager([logger])
    manager.fire("train_start", LoopState(output_dir=tmp_path, resumed_from="step_2", global_step=2))
    assert manager.errors == {}
    assert time.strftime("%Y%m%d_%H%M%S") > second


def test_wandb_is_told_the_configuration_once_and_not_when_a_run_goes_on(tmp_path, monkeypatch):
    put_in_place(monkeypatch, "wandb", answering := Answering())
    (tmp_path / "config.json").write_text('{"seed": 7}')
    for resumed_from, config in ((None, {"seed": 7}), ("step_2", None)):
        logger = build_callback({"kind": "wandb"})
        logger.load_state_dict({"run_id": "old"})
        state = LoopState(output_dir=tmp_path, resumed_from=resumed_from, global_step=2 if resumed_from else 0)
        CallbackManager([logger]).fire("train_start", state)
        assert answering.asked["config"] == config


@pytest.mark.parametrize(("noted", "logged"), [("mine", 1), ("another's", 2)])
def test_wandb_takes_steps_for_logged_only_if_they_are_noted_of_this_run(tmp_path, monkeypatch, noted, logged):
    put_in_place(monkeypatch, "wandb", answering := Answering())
    (tmp_path / "run" / "wandb").mkdir(parents=True)
    note = {"run_id": noted, "last": {"loss": 2}}
    (tmp_path / "run" / "wandb" / "logged-run.json").write_text(json.dumps(note))
    logger = build_callback({"kind": "wandb"})
    logger.load_state_dict({"run_id": "mine"})
    manager = CallbackManager([logger])
    state = LoopState(output_dir=tmp_path / "run", resumed_from="step_2", global_step=2)
    manager.fire("train_start", state)
    for step_idx in (2, 3):
        manager.fire("step_end", state, step_idx, metrics={"loss": 1.0})
    assert manager.errors == {}
    assert answering.run.calls.count("log") == logged


@needs("wandb")
@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (ValueError("x"), 1), (None, 0)])
def test_wandb_knows_how_a_run_ended_by_its_exit_code(tmp_path, error, code):
    manager, state = opened(build_callback({"kind": "wandb"}), tmp_path)
    state.exception = error
    manager.fire("train_end", state)
    assert manager.errors == {}
    assert read("wandb", tmp_path).exit_codes == [code]


@needs("tensorboard")
def test_tensorboard_has_on_the_disk_what_led_to_a_checkpoint(tmp_path, monkeypatch):
    from tensorboard.summary.writer.record_writer import RecordWriter

    write = RecordWriter.write
    monkeypatch.setattr(RecordWriter, "write", lambda *record: (time.sleep(0.05), write(*record)))  # a slow disk
    manager, state = opened(build_callback({"kind": "tensorboard"}), tmp_path)
    manager.fire("step_end", state, 0, metrics={"loss": 1.0})
    manager.fire("checkpoint_saved", state, ManifestRow("step_1", 0, 0, sampler_path="there", step=1))
    written = read("tensorboard", tmp_path)  # as a kill would leave it
    assert written.values["loss"] == [(0, 1.0)]
    assert "there" in written.texts["checkpoint"][0][1]
    manager.fire("train_end", state)


@needs("trackio")
@pytest.mark.parametrize(("steps", "at"), [(0, 0), (1, 0), (3, 2)])
def test_trackio_shows_the_summary_at_the_last_step(tmp_path, monkeypatch, steps, at):
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    manager, state = opened(build_callback({"kind": "trackio"}), tmp_path)
    for step_idx in range(steps):
        state.global_step = step_idx + 1
        manager.fire("step_end", state, step_idx, metrics={"loss": 1.0})
    manager.fire("train_end", state)
    assert manager.errors == {}
    ((step, text),) = read("trackio", tmp_path).texts["summary"]
    assert step == at
    assert f'"steps_run": {steps}' in text


@needs("trackio")
def test_trackio_alerts_of_a_failure_as_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    manager, state = opened(build_callback({"kind": "trackio"}), tmp_path)
    manager.fire("error", state, ValueError("lost"))
    manager.fire("train_end", state)
    written = read("trackio", tmp_path)
    assert written.texts["error"] == [(0, "ValueError: lost")]
    assert written.levels == ["error"]


@needs("trackio")
def test_trackio_writes_each_run_to_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    for name, loss in (("a", 1.0), ("b", 2.0)):
        write_one(build_callback({"kind": "trackio"}), tmp_path / name, loss)
    assert read("trackio", tmp_path / "a").values["loss"] == [(0, 1.0)]
    assert read("trackio", tmp_path / "b").values["loss"] == [(0, 2.0)]


@needs("trackio")
def test_trackio_runs_at_the_same_time_share_the_folder_of_the_first_and_are_told(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    manager, state = opened(build_callback({"kind": "trackio"}), tmp_path / "a")
    write_one(build_callback({"kind": "trackio"}), tmp_path / "b", 2.0)
    manager.fire("step_end", state, 0, metrics={"loss": 1.0})
    manager.fire("train_end", state)
    assert "one folder in a process" in caplog.text
    assert sorted(read("trackio", tmp_path / "a").values["loss"]) == [(0, 1.0), (0, 2.0)]


@needs("trackio")
def test_trackio_goes_where_the_environment_says_and_leaves_the_environment_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "of_all" / "trackio"))
    monkeypatch.setenv("TRACKIO_SPACE_ID", "nobody/nowhere")  # offline is offline
    write_one(build_callback({"kind": "trackio"}), tmp_path / "run", 1.0)
    assert os.environ["TRACKIO_SPACE_ID"] == "nobody/nowhere"
    assert read("trackio", tmp_path / "of_all").values["loss"] == [(0, 1.0)]


@needs("trackio")
def test_trackio_leaves_a_run_of_others_open_and_asks_nobody_who_they_are(tmp_path, monkeypatch):
    import trackio.run
    from trackio import context_vars

    asked = []
    monkeypatch.setattr("trackio.run._get_default_namespace", lambda: asked.append(1))
    before = trackio.run._get_default_namespace
    theirs = FailingModule()
    token = context_vars.current_run.set(theirs)
    try:
        write_one(build_callback({"kind": "trackio"}), tmp_path, 1.0)
        assert context_vars.current_run.get() is theirs
    finally:
        context_vars.current_run.reset(token)
    assert (theirs.calls, asked) == ([], [])
    assert trackio.run._get_default_namespace is before


@pytest.mark.parametrize("error", [ConnectionError("nobody there"), TimeoutError("the library's own")])
def test_trackio_says_why_it_could_not_open_a_run(error):
    def fails():
        raise error

    with pytest.raises(type(error), match=str(error)):
        _open_within(5.0, fails)


def test_trackio_that_hangs_is_given_up_and_closed_when_it_comes_late(tmp_path, monkeypatch):
    let_go, finished = threading.Event(), threading.Event()

    class Late:
        id = "late"

        def finish(self):
            finished.set()

    class Hanging(FailingModule):
        def init(self, **asked):
            let_go.wait(120)
            return Late()

    put_in_place(monkeypatch, "trackio", Hanging())
    begun = time.monotonic()
    manager, _ = opened(build_callback({"kind": "trackio", "params": {"timeout": 0.05}}), tmp_path)
    assert time.monotonic() - begun < 5
    assert manager.errors == {"TrackioLogger": 1}
    let_go.set()
    assert finished.wait(120)
