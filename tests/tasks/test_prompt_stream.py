"""The seeded order of prompts: random access, permutations, tokens."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.tasks import PromptStream, Task, TaskError, TaskRow, load_task, prompts
from proa.tasks.builtin import builtin_task
from proa.tasks.builtin.characters import tokenizer as make_tokenizer

CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def task():
    return load_task([{"prompt": str(number), "number": number} for number in range(10)], name="numbers")


def numbers(stream, ordinals):
    return [stream[ordinal].columns["number"] for ordinal in ordinals]


def test_random_access_equals_sequential(task, tokenizer):
    ordinals = list(range(75))
    in_order = dict(zip(ordinals, numbers(PromptStream(task, tokenizer, seed=3), ordinals), strict=True))
    random.Random(0).shuffle(ordinals)
    stream = PromptStream(task, tokenizer, seed=3)
    assert numbers(stream, ordinals) == [in_order[ordinal] for ordinal in ordinals]


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 40), pass_number=st.integers(0, 10**6), seed=st.integers(-(2**70), 2**70))
def test_each_pass_is_a_permutation(tokenizer, count, pass_number, seed):
    rows = [TaskRow("1", {"number": number}) for number in range(count)]
    stream = PromptStream(Task("numbers", rows), tokenizer, seed=seed)
    first = pass_number * count
    assert sorted(numbers(stream, range(first, first + count))) == list(range(count))


def test_passes_and_seeds_differ(task, tokenizer):
    stream, other = PromptStream(task, tokenizer, seed=3), PromptStream(task, tokenizer, seed=4)
    orders = [numbers(stream, range(10)), numbers(stream, range(10, 20)), numbers(other, range(10))]
    assert len(set(map(tuple, orders))) == 3


def test_the_order_is_the_same_in_every_release(task, tokenizer):
    assert numbers(PromptStream(task, tokenizer, seed=0), range(10)) == ORDER_OF_SEED_0


ORDER_OF_SEED_0 = [3, 0, 8, 6, 1, 7, 9, 4, 2, 5]


def test_a_prompt_knows_its_place_text_tokens_and_columns(task, tokenizer):
    prompt = PromptStream(task, tokenizer, seed=3)[17]
    assert (prompt.ordinal, prompt.columns) == (17, {"number": int(prompt.text)})
    assert prompt.tokens == tuple(tokenizer(prompt.text)["input_ids"])


def test_a_row_is_tokenised_once(task, tokenizer):
    calls = []

    def counting(text, **options):
        calls.append(text)
        return tokenizer(text, **options)

    stream = PromptStream(task, counting, seed=3)
    for ordinal in range(50):
        stream[ordinal]
    assert sorted(calls) == sorted(row.prompt for row in task.rows)


def test_threads_see_the_same_stream(tokenizer):
    task = builtin_task("sort_digits", count=500)
    alone = [PromptStream(task, tokenizer, seed=1)[ordinal] for ordinal in range(0, 4000, 7)]
    shared = PromptStream(task, tokenizer, seed=1)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(shared.__getitem__, range(0, 4000, 7))) == alone


def test_memory_stays_flat_over_many_passes(task, tokenizer):
    stream = PromptStream(task, tokenizer, seed=3)
    for ordinal in range(0, 1000, 5):
        stream[ordinal]
    assert len(stream._orders) <= 3


def test_chat_messages_go_through_the_template():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    messages = [{"role": "user", "content": "12"}]
    prompt = PromptStream(load_task([{"prompt": messages}]), tokenizer, seed=0)[0]
    assert (tokenizer.decode(prompt.tokens), prompt.text) == ("12>", messages)


def test_chat_messages_without_a_template_are_refused_with_the_remedy(tokenizer):
    task = load_task([{"prompt": [{"role": "user", "content": "12"}]}])
    with pytest.raises(TaskError, match=r"row 0: .* no chat template: use the tokenizer of a chat model"):
        PromptStream(task, tokenizer, seed=0)[0]


def test_a_template_that_refuses_is_named_with_the_row():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(TaskError, match="row 0: .*refuses the messages: no system role"):
        PromptStream(load_task([{"prompt": [{"role": "system", "content": "1"}]}]), tokenizer, seed=0)[0]


def test_a_prompt_that_is_too_long_is_refused_with_its_row_and_both_lengths(tokenizer):
    stream = PromptStream(load_task([{"prompt": "12345"}]), tokenizer, seed=0, max_prompt_tokens=4)
    for look in (lambda: stream[0], stream.check):
        with pytest.raises(TaskError, match="row 0: the prompt has 5 tokens, more than the 4"):
            look()
    PromptStream(load_task([{"prompt": "1234"}]), tokenizer, seed=0, max_prompt_tokens=4).check()


def test_every_row_is_checked_before_a_run_and_few_are_kept(tokenizer, monkeypatch):
    monkeypatch.setattr(prompts, "KEPT_ROWS", 3)
    rows = [TaskRow("12")] * 5
    stream = PromptStream(Task("fit", [*rows, TaskRow("1234")]), tokenizer, seed=0, max_prompt_tokens=4)
    stream.check()
    assert (stream.longest, len(stream._tokens)) == (4, 3)
    for last, words in ((TaskRow("12345"), "has 5 tokens"), (TaskRow([{"role": "user", "content": "1"}]), "template")):
        with pytest.raises(TaskError, match=f"row 5: .*{words}"):
            PromptStream(Task("long", [*rows, last]), tokenizer, seed=0, max_prompt_tokens=4).check()


def test_an_over_long_prompt_in_row_20_000_is_found_before_the_run(tokenizer):
    rows = [TaskRow("1")] * 20_000
    stream = PromptStream(
        Task("large", [*rows, TaskRow("12345")]), lambda text, **_: ONE[text], seed=0, max_prompt_tokens=4
    )
    with pytest.raises(TaskError, match="row 20000: the prompt has 5 tokens"):
        stream.check()


ONE = {text: {"input_ids": [1] * len(text), "special_tokens_mask": [0] * len(text)} for text in ("1", "12345")}


def test_there_is_nothing_before_the_first_ordinal(task, tokenizer):
    with pytest.raises(IndexError, match="count from 0"):
        PromptStream(task, tokenizer, seed=0)[-1]


def test_a_task_without_rows_is_refused(tokenizer):
    with pytest.raises(TaskError, match="'nothing' has no rows"):
        PromptStream(Task("nothing", []), tokenizer, seed=0)
