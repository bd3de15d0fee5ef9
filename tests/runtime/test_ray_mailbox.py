"""Questions to the driver of a run on Ray: each is put once and answered once, however often and late calls come."""

import threading

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")

from proa.runtime.ray.link import Answer, AskDriver, Mailbox, Question


def question(ticket, asker="trainer_0"):
    return Question((asker, ticket), "step_end", {})


def answered(mailbox, ticket, asker="trainer_0"):
    """Put a question and have the driver answer it with its number."""
    assert mailbox.ask(question(ticket, asker), 0.0) is None
    (fetched,) = mailbox.exchange({}, 0.0)
    mailbox.exchange({fetched.key: Answer(value=ticket)}, 0.0)
    return mailbox.ask(question(ticket, asker), 0.0)


def test_a_question_that_is_repeated_is_put_once_and_has_one_answer():
    mailbox = Mailbox()
    assert answered(mailbox, 1).value == 1
    assert mailbox.ask(question(1), 0.0).value == 1
    assert mailbox.exchange({}, 0.0) == []


def test_a_question_that_is_repeated_after_the_next_is_not_put_again():
    mailbox = Mailbox()
    answered(mailbox, 1)
    answered(mailbox, 2)
    assert mailbox.ask(question(1), 60.0) is None  # at once: whoever asked has had the answer
    assert mailbox.exchange({}, 0.0) == []
    assert mailbox.ask(question(2), 0.0).value == 2


def test_an_answer_that_comes_late_does_not_replace_a_newer_one():
    mailbox = Mailbox()
    mailbox.ask(question(1), 0.0)  # the asker gave up waiting, and asks the next
    mailbox.ask(question(2), 0.0)
    mailbox.exchange({("trainer_0", 2): Answer(value=2)}, 0.0)
    mailbox.exchange({("trainer_0", 1): Answer(value=1)}, 0.0)
    assert mailbox.ask(question(2), 0.0).value == 2


def test_of_a_maker_that_is_gone_nothing_is_kept_and_its_late_calls_ask_nothing():
    mailbox = Mailbox()
    answered(mailbox, 1, "maker_0")
    mailbox.ask(question(2, "maker_0"), 0.0)
    mailbox.dismiss("maker_0")
    assert mailbox.ask(question(2, "maker_0"), 60.0) == Answer()
    assert mailbox.exchange({}, 0.0) == []
    assert "maker_0" not in mailbox._answered


def test_a_maker_that_is_dismissed_while_it_asks_is_answered_at_once():
    mailbox, replies = Mailbox(), []
    asking = threading.Thread(target=lambda: replies.append(mailbox.ask(question(1, "maker_0"), 60.0)))
    asking.start()
    assert mailbox.exchange({}, 60.0)
    mailbox.dismiss("maker_0")
    asking.join(60.0)
    assert replies == [Answer()]


def test_two_threads_that_ask_the_driver_both_get_their_answers():
    mailbox, replies, over = Mailbox(), [], threading.Event()
    ask = AskDriver("trainer_0", mailbox.ask, 60.0)

    def drive():
        answers = {}
        while not over.is_set():
            open_questions = mailbox.exchange(answers, 0.05)
            answers = {one.key: Answer(value=one.payload["arguments"][0]) for one in open_questions}

    driver = threading.Thread(target=drive)
    askers = [threading.Thread(target=lambda n=n: replies.append(ask("write_step", n))) for n in range(8)]
    for thread in [*askers, driver]:
        thread.start()
    for thread in askers:
        thread.join(60.0)
    over.set()
    driver.join(60.0)
    assert sorted(replies) == list(range(8))
