"""`spans.jsonl` and the trace made of it: what is torn is passed over, what is broken is named."""

import pytest

from proa.record.run_folder import BrokenRecordError
from proa.record.spans import SpanRecord, chrome_trace


def span(actor="maker_0", kind="generate", start=5.0, **more):
    return {"actor": actor, "kind": kind, "start": start, "seconds": 0.5, **more}


def test_a_line_that_was_being_written_is_passed_over(tmp_path):
    record = SpanRecord(tmp_path)
    record.append([span(), span(start=6.0)])
    with record.path.open("a") as file:
        file.write('{"actor": "mak')
    assert list(record.read()) == [span(), span(start=6.0)]


def test_a_run_without_spans_has_none(tmp_path):
    assert list(SpanRecord(tmp_path).read()) == []


@pytest.mark.parametrize(
    "line", [b'{"actor": "mak', b"[]", b'{"actor": 3, "kind": "x", "start": 1, "seconds": 1}', b'{"actor": "\xff"}',
             b'{"actor": "a", "kind": "x", "start": NaN, "seconds": 1}', b'{"actor": "a", "kind": "x", "start": 1}',
             b'{"actor": "a", "kind": "x", "start": 1' + b"0" * 400 + b', "seconds": 1}'],
    ids=lambda line: line[:50].decode(errors="replace"),
)  # fmt: skip
def test_a_broken_line_is_named(tmp_path, line):
    record = SpanRecord(tmp_path)
    record.append([span()])
    with record.path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(BrokenRecordError, match=r"spans\.jsonl is broken at line 2"):
        list(record.read())


def test_an_actor_is_named_once_in_a_trace():
    events = chrome_trace([span(), span("trainer_0", "compute", step=3), span(start=6.0), span("trainer_0")])[
        "traceEvents"
    ]
    named = [(event["tid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"]
    assert named == [(1, "maker_0"), (2, "trainer_0")]
    assert [event["tid"] for event in events if event["ph"] == "X"] == [1, 2, 1, 2]
