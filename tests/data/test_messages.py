"""Conversations as people read them, wherever they are shown."""

import io
import json

from proa.callbacks.logged_values import sample_table
from proa.cli.train import show_samples
from proa.data.messages import in_words, is_conversation
from proa.report.samples import Budget, read_predictions
from proa.terminal import Console

TALK = [{"role": "system", "content": "be short"}, {"role": "user", "content": "2+2="}]
SHOWN = "system: be short\nuser: 2+2="
PREDICTION = {"task_id": "0", "prompt": TALK, "completion": "4", "columns": {"answer": "4", "shots": TALK}}


def test_a_conversation_reads_message_by_message():
    assert in_words(TALK) == SHOWN
    parts = [{"type": "text", "text": "what is"}, {"type": "image"}]
    wrong = {"function": {"name": "", "arguments": {}}, "error": "is not valid JSON", "text": '{"name": add'}
    calls = [{"type": "function", "function": {"name": "add", "arguments": "{}"}}, {"name": "stop"}]
    for message, words in (
        ({"role": "user", "content": parts}, "user: what is [image]"),
        ({"role": "assistant", "content": None, "tool_calls": calls}, "assistant: [calls add({})] [calls stop()]"),
        ({"role": "assistant", "tool_calls": [wrong]}, 'assistant: [a call that is not valid JSON: {"name": add]'),
        ({"role": "tool", "content": 4}, "tool: 4"),
    ):
        assert in_words([message]) == words


def test_what_is_no_conversation_is_text_as_it_is():
    for value in ("text", 4, None, [], ["role"], {"role": "user", "content": "x"}, [{"role": "user"}]):
        assert not is_conversation(value)
        assert in_words(value) == str(value)


def test_predictions_of_conversations_are_read_as_such_by_the_report(tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "final.jsonl").write_text(json.dumps(PREDICTION) + "\n")
    (found,) = read_predictions(tmp_path, "run", Budget())
    assert (found.rows[0]["prompt"], found.rows[0]["shots"]) == (SHOWN, SHOWN)


def test_loggers_get_conversations_as_text():
    assert sample_table([PREDICTION], most=1).rows[0][1] == SHOWN


def test_a_run_ends_with_samples_that_read_as_conversations(tmp_path):
    (tmp_path / "evals" / "e").mkdir(parents=True)
    for steps in (0, 1):
        (tmp_path / "evals" / "e" / f"step_{steps}.jsonl").write_text(json.dumps(PREDICTION) + "\n")
    out = io.StringIO()
    show_samples(Console(file=out, width=120), tmp_path, "e")
    assert "│ user: 2+2= " in out.getvalue()
    assert "{'role'" not in out.getvalue()
