"""What functions print in a child process: whole lines, whichever thread prints and flushes."""

import threading

from proa.processes.printed import STDOUT, PrintedText


class Sent:
    def __init__(self):
        self.texts = []

    def send(self, message):
        self.texts.append(message.content.decode())


def in_another_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_flush_sends_what_its_own_thread_has_begun_and_no_line_of_another():
    channel = Sent()
    printed = PrintedText(channel, STDOUT, None)
    printed.write("hel")
    in_another_thread(lambda: print("and again", end="", file=printed, flush=True))
    assert channel.texts == ["and again"]
    printed.write("lo\n")
    assert channel.texts[1:] == ["hello\n"]


def test_at_the_end_everything_is_sent():
    channel = Sent()
    printed = PrintedText(channel, STDOUT, None)
    in_another_thread(lambda: printed.write("begun"))
    printed.write("too")
    printed.flush_all()
    assert sorted(channel.texts) == ["begun", "too"]
