"""The built-in tasks: disjoint splits, right answers, honest rewards, a tokenizer of sixteen characters."""

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from proa.tasks import TaskError, load_task
from proa.tasks.builtin import BUILTIN, builtin_task, look_up, reverse_digits, sort_digits
from proa.tasks.builtin.characters import VOCABULARY, tokenizer
from proa.tasks.builtin.places import by_place, exact

SINGLE_TURN = [name for name in BUILTIN if name != "look_up"]
"""Tasks whose prompt and answer are text; that of look_up is a conversation, with tests of its own below."""


@pytest.fixture(params=SINGLE_TURN)
def module(request):
    return importlib.import_module(f"proa.tasks.builtin.{request.param}")


def test_train_and_test_prompts_are_disjoint_whatever_the_seeds(module):
    train = {row.prompt for seed in range(3) for row in module.rows("train", 5000, seed)}
    test = {row.prompt for seed in range(3) for row in module.rows("test", 512, seed)}
    assert not train & test


def test_rows_are_distinct_repeatable_and_differ_by_seed(module):
    rows = module.rows("train", 1000, seed=1)
    assert len({row.prompt for row in rows}) == 1000
    assert rows == module.rows("train", 1000, seed=1) != module.rows("train", 1000, seed=2)
    assert rows[:10] == module.rows("train", 10, seed=1)


def test_the_right_answer_earns_all_and_a_wrong_one_less(module):
    rows = module.rows("test", 50)
    prompts, answers = [row.prompt for row in rows], [row.columns["answer"] for row in rows]
    assert (
        module.reward(prompts, answers, answer=answers) == module.exact(prompts, answers, answer=answers) == [1.0] * 50
    )
    wrong = ["9" + answer for answer in answers]
    assert max(module.reward(prompts, wrong, answer=answers)) < 1.0
    assert module.exact(prompts, wrong, answer=answers) == [0.0] * 50


def test_the_answers_are_right():
    for row in sort_digits.rows("train", 20):
        assert row.columns["answer"] == "".join(sorted(row.prompt[:6]))
    for row in reverse_digits.rows("train", 20):
        assert row.columns["answer"] + row.prompt[6:] == row.prompt[5::-1] + ">"
    for row in builtin_task("add_digits", count=20).rows:
        first, second = row.prompt[:-1].split("+")
        assert (int(row.columns["answer"]), len(row.columns["answer"])) == (int(first) + int(second), 4)


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("123456", 1), ("123465", 4 / 6), ("", 0), ("123", 3 / 6), ("1234567", 6 / 7), ("123456" * 2, 6 / 12), ("x", 0)],
)
def test_each_place_counts_and_so_do_missing_and_superfluous_ones(completion, reward):
    assert by_place(["p"], [completion], ["123456"]) == [pytest.approx(reward)]


@given(st.text("0123456789", max_size=9))
def test_only_the_exact_answer_earns_one(completion):
    (reward,), (whole,) = by_place(["p"], [completion], ["123456"]), exact(["p"], [completion], ["123456"])
    assert 0 <= reward <= 1
    assert (reward == 1) == (whole == 1) == (completion == "123456")


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_a_built_in_task_is_loaded_by_name_with_its_reward(name):
    task = load_task(name)
    assert (task.name, len(task.rows)) == (name, 25_000)
    assert task.reward(
        [task.rows[0].prompt], [task.rows[0].columns["answer"]], answer=[task.rows[0].columns["answer"]]
    ) == [1.0]


def test_the_pairs_of_look_up_are_distinct_and_those_of_its_splits_disjoint():
    pairs = {
        split: [(row.columns["key"], row.columns["answer"]) for row in look_up.rows(split, count, seed=1)]
        for split, count in (("train", 36), ("test", 12))
    }
    assert len(set(pairs["train"]) | set(pairs["test"])) == 48
    assert look_up.rows("train", 36, seed=1) != look_up.rows("train", 36, seed=2)
    with pytest.raises(TaskError, match="1 to 12 for the test split"):
        look_up.rows("test", 13)


def test_a_book_knows_the_word_of_its_row_alone_and_a_shuffled_one_none():
    def said(book, word, number):
        book.reset(word, number)
        return [book.look_up(one) for one in "abc"]

    for number in look_up.DIGITS:
        right, wrong = (said(look_up.Book(shuffled), "b", number) for shuffled in (False, True))
        assert right[1] == number
        assert (
            [right[0], right[2]] == [wrong[0], wrong[2]] == [said(look_up.Book(), "b", "1")[place] for place in (0, 2)]
        )
        assert wrong == said(look_up.Book(shuffled=True), "b", "1"), "it says nothing of the number"


def called(key, answer):
    call = {"function": {"name": "look_up", "arguments": {"key": key}}}
    return [
        {"role": "assistant", "content": "<tool_call>", "tool_calls": [call]},
        {"role": "tool", "content": answer},
        {"role": "assistant", "content": answer},
    ]


def test_each_step_of_a_look_up_earns_more_and_only_the_right_number_all():
    task = load_task("look_up")
    columns = task.rows[0].columns
    key, answer = columns["key"], columns["answer"]
    other = str((int(answer) % 6) + 1)
    conversations = [
        [{"role": "assistant", "content": answer}],  # guessed: right once in ten times, and worth nothing
        [{"role": "assistant", "content": "<tool_call>"}],
        called("zzz", other)[:1],  # its message did not end there
        called("zzz", other)[:2],
        called("z", other)[:2],
        called("z", other),
        called(key, answer)[:2],
        called(key, answer),
    ]
    columns_of_all = {name: [value] * len(conversations) for name, value in columns.items()}
    scores = look_up.reward(conversations, **columns_of_all)
    assert scores == pytest.approx([0.0, 0.05, 0.1, 0.3, 0.4, 0.6, 0.6, 1.0])
    assert look_up.exact(conversations, **columns_of_all) == [1.0, *[0.0] * 6, 1.0]
    assert task.reward is look_up.reward


@pytest.mark.parametrize(("split", "count", "words"), [("valid", 1, "'train' or 'test'"), ("test", 10**6, "1 to 62500"),
                                                       ("train", 0, "1 to 437500")])  # fmt: skip
def test_rows_that_cannot_be_given_are_refused(split, count, words):
    with pytest.raises(TaskError, match=words):
        sort_digits.rows(split, count)


def test_the_vocabulary_has_sixteen_entries_with_an_id_each():
    made = tokenizer()
    assert len(VOCABULARY) == len(made) == 16
    assert made.convert_ids_to_tokens(range(16)) == list(VOCABULARY)


@given(st.text("0123456789>+ ", max_size=20))
def test_text_survives_the_tokenizer(text):
    ids = TOKENIZER(text)["input_ids"]
    assert (TOKENIZER.decode(ids), len(ids)) == (text, len(text))


TOKENIZER = tokenizer()


def test_pad_and_end_are_left_out_of_the_decoded_text():
    ids = [TOKENIZER.pad_token_id, *TOKENIZER("12>")["input_ids"], TOKENIZER.eos_token_id]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "12>"


def test_the_tokenizer_can_be_saved_and_loaded(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "12+ 3>"
    assert loaded(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.pad_token_id, loaded.eos_token_id, loaded.padding_side) == (0, 1, "left")
