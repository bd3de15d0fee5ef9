"""The live view: it comes back as it was written, and a look that fails costs nothing but a line in the log."""

import errno
import json
import logging
from pathlib import Path

import pytest

from proa.record.live import ActorView, LiveFile, LiveView, WaitView
from proa.record.run_folder import BrokenRecordError

VIEW = LiveView(
    time=1000.5,
    runtime="local",
    step=3,
    of=12,
    episode=2,
    version=2,
    versions=[1, 2],
    ledger={"leased": 8, "trained": 4, "buffered": 2, "in_flight": 1, "dropped": {"stale": 1}},
    waits=[WaitView("the trainer", "lease 5, which maker_0 has", 2.5)],
    actors=[
        ActorView("the trainer", "trainer", doing="waiting for lease 5, which maker_0 has", since=998.0, version=2),
        ActorView(
            "maker_0", "maker", health="dead", doing="generating lease 5", since=990.0, version=1, leases=4, tokens=120,
            restarts=2, reason="it hung", log="maker_0.log", spent={"generate": 1.5},
        ),
    ],
)  # fmt: skip


def test_a_view_comes_back_as_it_was_written(tmp_path):
    LiveFile(tmp_path).look(lambda: VIEW)
    assert LiveFile.read(tmp_path) == VIEW
    assert [path.name for path in tmp_path.iterdir()] == ["live.json"]


def test_where_there_is_no_file_there_is_no_view(tmp_path):
    assert LiveFile.read(tmp_path) is None


def test_what_a_newer_version_added_is_left_out(tmp_path):
    content = VIEW.to_dict() | {"weather": "fine"}
    content["waits"][0]["mood"] = "bad"
    content["actors"][1]["height"] = 180
    (tmp_path / "live.json").write_text(json.dumps(content))
    assert LiveFile.read(tmp_path) == VIEW


def test_what_an_older_version_did_not_know_has_its_default(tmp_path):
    (tmp_path / "live.json").write_text('{"time": 7, "actors": [{"name": "maker_0", "role": "maker"}]}')
    assert LiveFile.read(tmp_path) == LiveView(7, actors=[ActorView("maker_0", "maker")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"time": 10', "live.json is broken: Expecting"),
        ("[1, 2]", "it holds a list, not an object"),
        ("{}", "time"),
        ('{"time": "now"}', "time must be of type float, not 'now'"),
        ('{"time": 1, "waits": [3]}', "expected a WaitView, found 3"),
        ('{"time": 1, "actors": [{"name": "a", "role": 4}]}', "role must be of type Literal, not 4"),
        ('{"time": 1, "waits": [{"owner": "a"}]}', "reason"),
    ],
)
def test_a_broken_file_is_said_to_be_broken(tmp_path, text, words):
    (tmp_path / "live.json").write_text(text)
    with pytest.raises(BrokenRecordError, match="live.json is broken") as raised:
        LiveFile.read(tmp_path)
    assert words in str(raised.value)


def test_it_is_due_at_once_and_then_at_most_every_so_often(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("proa.record.live.monotonic", lambda: now[0])
    live = LiveFile(tmp_path, every=2.0)
    due = []
    for now[0] in (100.0, 100.1, 101.9, 102.0, 103.0, 109.0, 110.9):
        due.append(live.due())
    assert due == [True, False, False, True, False, True, False]


def test_a_full_disk_is_logged_once_and_leaves_the_old_view(tmp_path, monkeypatch, caplog):
    live = LiveFile(tmp_path)
    live.look(lambda: VIEW)

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("proa.record.live.write_private", full)
        for _ in range(3):
            live.look(lambda: LiveView(time=2000.0))
    assert LiveFile.read(tmp_path) == VIEW
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the run continues" in caplog.text
    live.look(lambda: LiveView(time=2000.0))
    assert LiveFile.read(tmp_path) == LiveView(time=2000.0)


def test_a_reader_never_sees_half_a_view(tmp_path, monkeypatch):
    live = LiveFile(tmp_path)
    live.look(lambda: VIEW)
    seen = []
    replace = Path.replace

    def look_then_replace(self, target):
        seen.append(LiveFile.read(tmp_path))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", look_then_replace)
    live.look(lambda: LiveView(time=2000.0))
    assert seen == [VIEW]
