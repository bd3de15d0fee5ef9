"""What an actor prints, read from its file: in order, with a limit, complete at the end, and safe to print."""

import subprocess
import sys
from pathlib import Path

import pytest

from proa.runtime import output
from proa.runtime.output import LAST_LINES, WINDOW_LINES, WINDOW_SECONDS, Piece, ShownOutput, write_lines


class Printer:
    """An actor that prints, and the driver that looks at its file when the test says so."""

    def __init__(self, path):
        self.path, self.now = path, 0.0
        path.touch()
        self.output = ShownOutput("maker_1", str(path), f"{path} on node-7", clock=lambda: self.now)

    def print(self, *lines, end="\n"):
        with self.path.open("ab") as file:
            file.write(("\n".join(lines) + end).encode())

    def look(self):
        return self.output.take(self.output.next_piece().read())

    def end(self):
        self.output.end()
        return self.look()


@pytest.fixture
def actor(tmp_path):
    return Printer(tmp_path / "maker_1.log")


def numbers(first, last):
    return [f"line {number}" for number in range(first, last + 1)]


def named(lines):
    return [f"[maker_1] {line}" for line in lines]


def test_lines_come_with_the_name_in_order_and_once(actor):
    actor.print("one", "two")
    assert actor.look() == ["[maker_1] one", "[maker_1] two"]
    assert actor.look() == []
    actor.print("three")
    assert actor.look() == ["[maker_1] three"]


def test_a_line_is_shown_when_it_is_complete_and_the_last_one_at_the_end(actor):
    actor.print("one", "tw", end="")
    assert actor.look() == ["[maker_1] one"]
    actor.print("o", "three", end="")
    assert actor.look() == ["[maker_1] two"]
    assert actor.end() == ["[maker_1] three"]
    assert actor.end() == []


def test_beyond_the_limit_lines_are_counted_and_the_next_window_says_how_many(actor):
    actor.print(*numbers(1, WINDOW_LINES + 1204))
    assert actor.look() == named(numbers(1, WINDOW_LINES))
    actor.print("too many")
    assert actor.look() == []
    actor.now += WINDOW_SECONDS
    actor.print("now it is")
    assert actor.look() == named([f"1,205 lines left out; all are in {actor.path} on node-7", "now it is"])


def test_a_single_line_is_not_said_in_the_plural(actor):
    actor.print(*numbers(1, WINDOW_LINES), "one too many")
    actor.look()
    actor.now += WINDOW_SECONDS
    assert actor.look() == named([f"1 line left out; all are in {actor.path} on node-7"])


def test_nothing_is_lost_when_nobody_looked_for_a_while(actor):
    """What came in ten windows has the room of ten windows, however late it is read."""
    actor.print(*numbers(1, 10 * WINDOW_LINES))
    actor.now += 9 * WINDOW_SECONDS
    assert actor.look() == named(numbers(1, 10 * WINDOW_LINES))
    actor.now += WINDOW_SECONDS
    actor.print(*numbers(1, WINDOW_LINES + 1))
    assert actor.look() == named(numbers(1, WINDOW_LINES)), "the room does not add up for ever"


@pytest.mark.parametrize("looked_at", [False, True], ids=["at once", "when they had been counted"])
def test_the_very_last_lines_are_shown_whatever_came_before(actor, looked_at):
    actor.print(*numbers(1, 5000))
    shown = actor.look() if looked_at else []
    shown += actor.end()
    left_out = 5000 - WINDOW_LINES - LAST_LINES
    assert shown == named(
        [
            *numbers(1, WINDOW_LINES),
            f"{left_out:,} lines left out; all are in {actor.path} on node-7",
            *numbers(5001 - LAST_LINES, 5000),
        ]
    )


def test_of_long_output_only_the_end_is_held_in_memory(actor, monkeypatch):
    monkeypatch.setattr(output, "SHOWN_BYTES", 1000)
    monkeypatch.setattr(output, "LINE_BYTES", 20)
    actor.print(*numbers(1, 5000))
    shown = actor.look()
    assert shown == named(numbers(1, len(shown)))
    assert len(shown) == WINDOW_LINES
    gap, *last = actor.end()
    assert gap.startswith(f"[maker_1] {5000 - WINDOW_LINES - LAST_LINES:,} lines left out")
    assert last == named(numbers(5001 - LAST_LINES, 5000))


def test_a_line_without_end_is_broken(actor, monkeypatch):
    monkeypatch.setattr(output, "LINE_BYTES", 10)
    actor.print("x" * 25)
    assert actor.look() == named(["x" * 10, "x" * 10, "x" * 5])


def test_lines_that_are_for_the_file_alone_are_not_shown(actor):
    actor.print(":proa: Traceback (most recent call last):", ":actor_name:maker_1", "mine", ":proa: ValueError: my bug")
    assert actor.look() == ["[maker_1] mine"]
    actor.print(":proa: ValueError: again", "last", end="")
    assert actor.end() == ["[maker_1] last"]


def test_what_a_terminal_would_obey_is_made_visible_and_colours_are_left_out(actor):
    actor.print("\x1b[31mred\x1b[0m", "\x1b[2Jcleared", "10 %\r100 %", "windows\r")
    assert actor.look() == named(["red", "⟨U+001B⟩[2Jcleared", "100 %", "windows"])


def test_bytes_that_are_no_text_do_no_harm(actor):
    actor.path.write_bytes(b"caf\xe9\n")
    assert actor.look() == ["[maker_1] caf\ufffd"]


def test_secrets_are_removed_also_those_of_several_lines(actor, monkeypatch):
    monkeypatch.setenv("PLANTED_API_KEY", "planted-in-the-environment")
    monkeypatch.setenv("PLANTED_PRIVATE_KEY", "begin of the key\nand its end, too")
    actor.print("with planted-in-the-environment", "begin of the key", "and its end, too", "after")
    assert actor.look() == named(["with REDACTED", "REDACTED", "after"])


def test_a_file_that_is_gone_is_empty(actor):
    actor.path.unlink()
    assert actor.look() == actor.end() == []


def test_both_streams_of_a_process_and_of_those_it_starts_go_to_one_file_in_order(tmp_path):
    code = f"""
import os, subprocess, sys
from pathlib import Path
from proa.runtime.output import print_hidden_traceback, redirect_output
redirect_output(Path({str(tmp_path / "out.log")!r}))
for number in range(3):
    print("out", number, flush=True)
    print("err", number, file=sys.stderr)
subprocess.run([sys.executable, "-c", "print('child')"])
os.write(1, b"from C\\n")
try:
    raise ValueError("my bug")
except ValueError:
    print_hidden_traceback()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    printed = Piece(str(tmp_path / "out.log"), 0, 100).read()
    assert printed.lines == ["out 0", "err 0", "out 1", "err 1", "out 2", "err 2", "child", "from C"]
    assert ":proa: ValueError: my bug" in (tmp_path / "out.log").read_text()
    assert (tmp_path / "out.log").stat().st_mode & 0o077 == 0, "only its owner may read it"


class Ascii:
    """A stream that cannot say everything."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        text.encode("ascii")
        self.text += text

    def flush(self): ...


def test_a_stream_that_cannot_take_it_ends_nothing(monkeypatch):
    stream = Ascii()
    monkeypatch.setattr(sys, "stdout", stream)
    write_lines(["[maker_0] ünïcode"])
    assert stream.text == "[maker_0] \\xfcn\\xefcode\n"
    monkeypatch.setattr(sys, "stdout", None)
    write_lines(["nobody hears it"])
    with Path("/dev/null").open("w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
    write_lines(["nor this"])
