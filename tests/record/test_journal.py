"""The journal: choices that the seed does not determine, read back as they were written."""

import json
import stat

import pytest

from proa.record.journal import Journal
from proa.record.run_folder import BrokenRecordError

LEASE = {"kind": "lease", "step": 3, "lease": 17}
REWARD = {"kind": "reward", "uid": "68/2", "error": "it took 30 s – too long"}


def test_entries_come_back_in_their_order_over_several_writes(tmp_path):
    journal = Journal(tmp_path)
    journal.append([LEASE, REWARD])
    journal.append([])
    journal.append([LEASE | {"lease": 4}])
    assert Journal(tmp_path).read() == [LEASE, REWARD, LEASE | {"lease": 4}]
    assert journal.path == tmp_path / "journal.jsonl"


def test_a_run_without_such_choices_has_none(tmp_path):
    Journal(tmp_path).append([])
    assert Journal(tmp_path).read() == []
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_was_being_written_is_passed_over(tmp_path):
    journal = Journal(tmp_path)
    journal.append([LEASE, REWARD])
    whole = journal.path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):  # also in the middle of a character
        journal.path.write_bytes(whole[:length])
        assert journal.read() == [LEASE]


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", "null", "", '{"lease": 1}', '{"kind": "weather"}', '{"kind": "lease", "lease": "1"}',
        '{"kind": "lease", "lease": true}', '{"kind": "lease"}', '{"kind": "reward"}', '{"kind": "reward", "uid": 1}',
    ],
)  # fmt: skip
def test_a_broken_line_is_told_with_its_number(tmp_path, line):
    (tmp_path / "journal.jsonl").write_text(f"{json.dumps(LEASE)}\n{line}\n")
    with pytest.raises(BrokenRecordError, match=r"journal\.jsonl is broken at line 2"):
        Journal(tmp_path).read()


def test_it_is_its_owners_alone_and_has_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "judge-1234567")
    journal = Journal(tmp_path)
    journal.append([REWARD | {"error": "401 for judge-1234567"}])
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert journal.read()[0]["error"] == "401 for REDACTED"


def test_a_line_that_is_nested_too_deep_is_told(tmp_path):
    journal = Journal(tmp_path)
    journal.path.write_text('{"kind": ' + "[" * 200_000 + "]" * 200_000 + "}\n")
    with pytest.raises(BrokenRecordError, match="line 1"):
        journal.read()
