"""A sample on the console: a conversation turn by turn, and what a wrong template would show."""

import pytest

from proa.callbacks.sample_lines import MOST_TURNS, sample_lines

MESSAGES = [{"role": "system", "content": "Answer in digits."}, {"role": "user", "content": "2+2?"}]
CHAT = {
    "step": 0, "prompt": "Answer in digits. 2+2?", "messages": MESSAGES, "reward": 0.25, "finish_reason": "stop",
    "rendered": "<s>system Answer in digits.<e>\n<s>user 2+2?<e>\n<s>assistant\n", "tokens": ["4", "<e>"],
}  # fmt: skip


def test_a_conversation_is_shown_turn_by_turn_with_the_end_of_what_the_template_made_of_it():
    assert sample_lines(CHAT, 50) == [
        "a sample of step 1: reward 0.25",
        "  system     Answer in digits.",
        "  user       2+2?",
        "  template   …ts.<e>↵<s>user 2+2?<e>↵<s>assistant↵",
        "  assistant  4<e>",
    ]


def test_a_truncated_completion_without_a_reward_says_so():
    lines = sample_lines({"step": 4, "prompt": "2+2=", "tokens": ["5"], "reward": None, "finish_reason": "length"}, 80)
    assert lines == ["a sample of step 5: no reward, truncated", "  prompt      2+2=", "  completion  5"]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_line_is_wider_than_the_console_and_both_ends_are_shown(columns):
    long = {
        **CHAT,
        "messages": [{"role": "user", "content": "begin " + "x" * 500 + " end"}],
        "tokens": ["y"] * 500 + ["<e>"],
    }
    lines = sample_lines(long, columns)
    assert max(map(len, lines)) <= columns
    assert lines[1].startswith("  user       begin x")
    assert lines[1].endswith("x end")
    assert lines[-1].endswith("y<e>")


def test_what_models_write_cannot_break_the_lines():
    lines = sample_lines({**CHAT, "tokens": ["\x1b[2J", "a\nb"]}, 80)
    assert lines[-1] == "  assistant  ⟨U+001B⟩[2Ja↵b"


def test_of_a_long_conversation_the_last_turns_are_shown():
    messages = [{"role": "user", "content": str(turn)} for turn in range(20)]
    lines = sample_lines({**CHAT, "messages": messages}, 80)
    assert [line.split()[-1] for line in lines if line.startswith("  user")] == [
        str(n) for n in range(20 - MOST_TURNS, 20)
    ]
