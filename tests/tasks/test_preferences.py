"""Preference pairs from whatever a user has, as tokens that begin and end where they should."""

import json
import pickle

import pytest

from proa.tasks import TaskError
from proa.tasks.builtin import BUILTIN, builtin_task, builtin_tokenizer
from proa.tasks.builtin.characters import tokenizer as make_tokenizer
from proa.tasks.completions import completion_tokens, conversation_tokens
from proa.tasks.preferences import PreferencePair, TokenisedPair, builtin_pairs, load_preferences, tokenise_pair

ROWS = [
    {"prompt": "1+1=", "chosen": "2", "rejected": "3", "source": "a"},
    {"prompt": "2+2=", "chosen": "4", "rejected": "5", "margin": 1},
]
PAIRS = [PreferencePair("1+1=", "2", "3", None, {"source": "a"}), PreferencePair("2+2=", "4", "5", 1.0)]

CHAT = (
    "{% for m in messages %}{{ '+' if m.role == 'user' else '>' }}{{ m.content }}<end> {% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
"""A user's turn begins with +, the assistant's with >; a turn ends with <end> and a blank, as ChatML's with a line."""


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.fixture
def chat():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT
    return tokenizer


# -- loading


def test_rows_are_pairs_with_their_other_columns():
    assert load_preferences(ROWS) == PAIRS
    assert load_preferences(PAIRS) == PAIRS


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_a_jsonl_file_holds_pairs(tmp_path, form):
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    assert load_preferences(form(file)) == PAIRS


def test_a_hugging_face_dataset_holds_pairs():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = [{"prompt": [user("1")], "chosen": [assistant("2")], "rejected": [assistant("3")], "margin": 0.5}]
    assert load_preferences(datasets.Dataset.from_list(rows)) == [
        PreferencePair([user("1")], [assistant("2")], [assistant("3")], 0.5)
    ]
    with pytest.raises(TaskError, match=r"dataset\['train'\]"):
        load_preferences(
            datasets.DatasetDict(train=datasets.Dataset.from_list(rows), test=datasets.Dataset.from_list(rows))
        )


def make_pairs():
    return ROWS


def test_a_dotted_path_names_pairs_or_what_makes_them(monkeypatch):
    from tests.tasks import task_sources

    monkeypatch.setattr(task_sources, "make_pairs", make_pairs, raising=False)
    assert load_preferences("tests.tasks.task_sources:make_pairs") == PAIRS


IN_MESSAGES = PreferencePair([user("1")], [assistant("2")], [assistant("3")])


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [user("1")], "chosen": "2", "rejected": "3"},
        {"prompt": [user("1")], "chosen": [assistant("2")], "rejected": [assistant("3")]},
        {"prompt": [user("1")], "chosen": [user("1"), assistant("2")], "rejected": [user("1"), assistant("3")]},
        {"chosen": [user("1"), assistant("2")], "rejected": [user("1"), assistant("3")]},
        {"prompt": None, "chosen": [user("1"), assistant("2")], "rejected": [user("1"), assistant("3")]},
        {"prompt": "1", "chosen": [user("1"), assistant("2")], "rejected": [user("1"), assistant("3")]},
    ],
)
def test_every_way_of_writing_a_chat_pair_is_the_same_pair(row):
    assert load_preferences([row]) == [IN_MESSAGES]


def test_of_conversations_all_that_is_shared_is_the_prompt():
    shared = [{"role": "system", "content": "0"}, user("1"), assistant("2"), user("3")]
    row = {"chosen": [*shared, assistant("4")], "rejected": [*shared, assistant("5")]}
    assert load_preferences([row]) == [PreferencePair(shared, [assistant("4")], [assistant("5")])]


GOOD = {"prompt": "p", "chosen": "a", "rejected": "b"}
EQUAL = [{**GOOD, "rejected": "a"}, {**GOOD, "chosen": [assistant("a")], "rejected": [assistant("a")]}]


@pytest.mark.parametrize("equal", EQUAL)
def test_a_pair_of_equal_sides_is_left_out_and_said(equal, caplog):
    with caplog.at_level("INFO", "proa.tasks"):
        [pair] = load_preferences([equal, GOOD])
    assert pair == PreferencePair("p", "a", "b")
    assert "1 of 2 pairs have two equal sides and are left out; the first: the list, row 0" in caplog.text
    with pytest.raises(TaskError, match="row 0: chosen and rejected are the same, from which nothing can be learned"):
        load_preferences([equal])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**GOOD, "rejected": ""}, "row 1: the rejected side is empty"),
        ({**GOOD, "chosen": " \n"}, "row 1: the chosen side is empty"),
        ({**GOOD, "rejected": "\t"}, "row 1: the rejected side is empty"),
        ({**GOOD, "chosen": None}, "row 1: the chosen side is empty"),
        ({**GOOD, "chosen": [], "rejected": [assistant("b")]}, "row 1: the chosen side is empty"),
        (
            {"prompt": [user("p")], "chosen": [assistant("")], "rejected": [assistant("b")]},
            "row 1: the chosen side is empty",
        ),
        ({"prompt": "p", "choosen": "a", "rejected": "b"}, "row 1 has no column 'chosen'; did you mean 'choosen'"),
        ({"prompt": "p", "chosen": "a"}, r"row 1 has no column 'rejected' \(it has: prompt, chosen\)"),
        ({"prompt": "p", "completion": "a", "label": True}, "row 1 is an unpaired preference .* which no algorithm"),
        ({"promt": "p", "chosen": "a", "rejected": "b"}, "row 1 has no column 'prompt'; did you mean 'promt'"),
        ({"chosen": "a", "rejected": "b"}, r"do not begin with the same text, .*e\.g\. columns: {prompt: NAME}"),
        ({**GOOD, "prompt": ""}, "row 1: a prompt is some text, or chat messages"),
        ({**GOOD, "prompt": [user("p")], "chosen": 3}, "row 1: chosen is some text, or a list with the assistant"),
        ({**GOOD, "chosen": [assistant("a")]}, "row 1: one side is text and the other messages"),
        ({**GOOD, "margin": "1.0"}, "row 1: a margin is a number, not '1.0'"),
        ({**GOOD, "margin": float("nan")}, "row 1: a margin is a number, not nan"),
        ({**GOOD, "margin": True}, "row 1: a margin is a number, not True"),
        ("text", "row 1: a row is a dict like"),
        ({"chosen": [assistant("a")], "rejected": [assistant("b")]}, "row 1: .*do not begin with the same messages"),
        (
            {"chosen": [user("p"), assistant("a"), user("q")], "rejected": [user("p"), assistant("b"), user("q")]},
            "row 1: after the prompt, chosen must be one message of the assistant, and is assistant, user",
        ),
        (
            {
                "chosen": [user("p"), assistant("a"), assistant("b")],
                "rejected": [user("p"), assistant("a"), assistant("c")],
            },
            "row 1: both sides begin with the assistant's message and continue with another",
        ),
        (
            {"chosen": [user("p")], "rejected": [user("p"), assistant("b")]},
            "row 1: after the prompt, chosen must be one message of the assistant, and is nothing",
        ),
        (
            {"prompt": "q", "chosen": [user("p"), assistant("a")], "rejected": [user("p"), assistant("b")]},
            "row 1: the prompt, 'q', is not among the messages that both sides begin with",
        ),
    ],
)
def test_what_is_no_pair_is_refused_with_its_row_and_the_remedy(row, words):
    with pytest.raises(TaskError, match=words) as raised:
        load_preferences([GOOD, row])
    pickle.loads(pickle.dumps(raised.value))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([], "the list is empty: give at least one pair"),
        (42, "42 does not hold preferences"),
        ("no_such_file.jsonl", "there is no file 'no_such_file.jsonl'"),
    ],
)
def test_what_holds_no_pairs_is_refused(source, words):
    with pytest.raises(TaskError, match=words):
        load_preferences(source)


# -- as tokens


def text_of(tokenizer, tokens):
    return tokenizer.decode(list(tokens))


def test_a_text_pair_is_prompt_and_two_ended_completions():
    tokenizer = make_tokenizer()
    pair = tokenise_pair(PreferencePair("12>", "1", "23", 0.5), tokenizer, where="pair 0")
    assert pair == TokenisedPair(
        *(tuple(tokenizer(text)["input_ids"]) for text in ("12>", "1<end>", "23<end>")), margin=0.5
    )


def test_a_completion_that_is_ended_already_is_not_ended_twice():
    tokenizer = make_tokenizer()
    _, completion = completion_tokens("1", "2<end>", tokenizer, where="row 0")
    assert text_of(tokenizer, completion) == "2<end>"


def test_chat_goes_through_the_template_and_what_follows_the_end_is_not_learned(chat):
    prompt, completion = completion_tokens([user("1")], [assistant("2")], chat, where="row 0")
    assert (text_of(chat, prompt), text_of(chat, completion)) == ("+1<end> >", "2<end>")


def test_a_template_that_does_not_end_a_turn_gets_the_end(chat):
    chat.chat_template = CHAT.replace("<end> ", "")
    prompt, completion = completion_tokens([user("1")], [assistant("2 ")], chat, where="row 0")
    assert (text_of(chat, prompt), text_of(chat, completion)) == ("+1>", "2 <end>")


def test_an_end_inside_a_completion_does_not_cut_it(chat):
    chat.chat_template = CHAT.replace("<end> ", "<end>3")
    _, completion = completion_tokens([user("1")], [assistant("2")], chat, where="row 0")
    assert text_of(chat, completion) == "2<end>3<end>"


def test_a_template_that_asks_for_another_beginning_is_refused(chat):
    chat.chat_template = CHAT + "{% if add_generation_prompt %}0{% endif %}"
    with pytest.raises(TaskError, match="row 4: .*writes the prompt differently once the answer follows"):
        completion_tokens([user("1")], [assistant("2")], chat, where="row 4")


def test_a_template_that_refuses_the_answer_is_named_with_the_row(chat):
    chat.chat_template = "{% if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}>"
    with pytest.raises(TaskError, match="row 4: .*refuses the answer: one turn only"):
        completion_tokens([user("1")], [assistant("2")], chat, where="row 4")


def test_a_tokenizer_without_an_end_is_refused_with_the_remedy():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(TaskError, match=r"row 0: .*no end-of-sequence token.*set tokenizer\.eos_token"):
        completion_tokens("1", "2", tokenizer, where="row 0")


@pytest.mark.parametrize(
    ("pair", "max_length", "words"),
    [
        (
            PreferencePair("123", "45", "6"),
            5,
            r"pair 7: the prompt \(3 tokens\) and its chosen completion \(3\) have 6",
        ),
        (PreferencePair("123", "4", "56"), 5, r"and its rejected completion \(3\) have 6 tokens, more than .* 5:"),
        (
            PreferencePair("123", "4", "5"),
            3,
            "pair 7: the prompt has 3 tokens and fills the context of 3, with no space",
        ),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_and_never_cut(pair, max_length, words):
    with pytest.raises(TaskError, match=words):
        tokenise_pair(pair, make_tokenizer(), max_length=max_length, where="pair 7")


def test_a_pair_that_just_fits_is_taken():
    tokenise_pair(PreferencePair("123", "45", "6"), make_tokenizer(), max_length=6, where="pair 0")


# -- whole conversations

TALK = [user("1"), assistant("2"), user("3"), assistant("45")]


def learned(tokenizer, messages, **options):
    tokens, flags = conversation_tokens(messages, tokenizer, where="row 0", **options)
    return text_of(tokenizer, tokens), [
        tokenizer.decode([token]) for token, flag in zip(tokens, flags, strict=True) if flag
    ]


def test_of_a_conversation_the_last_answer_is_learned(chat):
    text, tokens = learned(chat, TALK, every_answer=False)
    assert (text, tokens) == ("+1<end> >2<end> +3<end> >45<end>", ["4", "5", "<end>"])


def test_of_a_conversation_every_answer_can_be_learned_with_its_end(chat):
    text, tokens = learned(chat, TALK, every_answer=True)
    assert (text, tokens) == ("+1<end> >2<end> +3<end> >45<end>", ["2", "<end>", "4", "5", "<end>"])


def test_an_earlier_answer_that_the_template_does_not_end_is_learned_without_an_end(chat):
    chat.chat_template = CHAT.replace("<end> ", "")
    assert learned(chat, TALK, every_answer=True) == ("+1>2+3>45<end>", ["2", "4", "5", "<end>"])


def test_a_template_that_rewrites_earlier_answers_is_refused_for_every_answer_only(chat):
    chat.chat_template = CHAT.replace("m.content", "(m.content if m.role == 'user' or loop.last else '0')")
    assert learned(chat, TALK, every_answer=False)[1] == ["4", "5", "<end>"]
    with pytest.raises(TaskError, match="row 0: .* writes message 1 differently once others follow"):
        learned(chat, TALK, every_answer=True)


@pytest.mark.parametrize("messages", [[user("1")], [user("1"), assistant("2"), user("3")], [assistant("1")]])
def test_a_conversation_without_a_last_answer_is_refused(messages, chat):
    with pytest.raises(TaskError, match="must end with the assistant's message, after at least one other"):
        learned(chat, messages, every_answer=False)


def test_a_greeting_cannot_be_learned(chat):
    with pytest.raises(TaskError, match="begins with the assistant's message"):
        learned(chat, [assistant("0"), user("1"), assistant("2")], every_answer=True)


@pytest.mark.parametrize("name", BUILTIN)
def test_a_built_in_task_has_pairs_of_a_right_and_a_wrong_answer(name):
    rows = builtin_task(name, "test", 12).rows
    pairs = builtin_pairs(name, "test", 12)
    assert [pair.prompt for pair in pairs] == [row.prompt for row in rows]
    for row, pair in zip(rows, pairs, strict=True):
        chosen, rejected = (
            side if isinstance(side, str) else side[0]["content"] for side in (pair.chosen, pair.rejected)
        )
        assert chosen == row.columns["answer"]
        assert rejected != chosen
        tokens = tokenise_pair(pair, builtin_tokenizer(name), where="pair")
        assert len(tokens.chosen) == len(tokens.rejected)
