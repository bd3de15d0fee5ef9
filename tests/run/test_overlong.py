"""Rows that are too long: refused, left out, or with their prompts cut at the beginning; counted and said."""

import logging

import pytest
from tests.small import MODEL_WITH_END
from tests.tasks.tiny_tokenizers import tiny_tokenizer

from proa import Callback
from proa.config.supervised_settings import SFTSettings
from proa.errors import ProaError
from proa.policy.models import load_model
from proa.recipes import run
from proa.supervised.sft import Examples
from proa.supervised.training import tokenise_pairs
from proa.tasks import PromptStream, TaskError, load_examples, load_task
from proa.tasks.builtin.characters import tokenizer as make_tokenizer
from proa.tasks.preferences import load_preferences

TOKENIZER = make_tokenizer()
LONG, SHORT = "1234567890" * 3 + ">", "12>"


def stream(overlong, most=8, tokenizer=TOKENIZER):
    task = load_task([{"prompt": SHORT}, {"prompt": LONG}, {"prompt": SHORT}])
    return PromptStream(task, tokenizer, seed=0, max_prompt_tokens=most, overlong=overlong)


def test_a_long_prompt_is_refused_with_what_could_be_written():
    with pytest.raises(TaskError, match=r"row 1: the prompt has 31 tokens.*task.overlong: drop .*truncate_left"):
        stream("error").check()


def test_a_long_prompt_is_left_out_and_counted(caplog):
    prompts = stream("drop")
    prompts.check()
    assert [row.prompt for row in prompts.task.rows] == [SHORT, SHORT]
    assert {prompts[ordinal].text for ordinal in range(4)} == {SHORT}
    assert [one for one in caplog.messages if one.startswith("task")] == [
        "task 'task': 1 of 3 rows are too long and left out"
    ]
    with pytest.raises(TaskError, match="all 3 rows are too long"):
        stream("drop", most=1)


def test_a_long_prompt_keeps_its_end_and_is_counted(caplog):
    prompts = stream("truncate_left")
    prompts.check()
    assert TOKENIZER.decode(prompts.row_tokens(1)) == LONG[-8:]
    assert TOKENIZER.decode(prompts.row_tokens(0)) == SHORT
    assert prompts.longest == 8
    assert [one for one in caplog.messages if one.startswith("task")] == [
        "task 'task': 1 of 3 prompts are too long and lose their first tokens"
    ]


def test_the_token_that_begins_a_text_is_kept():
    tokenizer = tiny_tokenizer("byte level, a beginning")
    whole = stream("error", most=None, tokenizer=tokenizer).row_tokens(1)
    cut = stream("truncate_left", tokenizer=tokenizer).row_tokens(1)
    assert cut == (tokenizer.bos_token_id, *whole[-7:])


def test_an_example_loses_tokens_of_its_prompt_and_none_of_its_answer():
    task = load_examples([{"prompt": LONG, "answer": "456"}, {"prompt": SHORT, "answer": "456"}])
    examples = Examples(task, TOKENIZER, SFTSettings(max_length=10), "truncate_left")
    assert TOKENIZER.decode(examples[0].sequences) == LONG[-6:] + "456<end>"
    assert TOKENIZER.decode(examples[0].sequences[-4:][examples[0].action_mask]) == "456<end>"
    assert TOKENIZER.decode(examples[1].sequences) == SHORT + "456<end>"
    assert examples.cut == 1
    for row in ({"prompt": SHORT, "answer": LONG}, {"text": LONG}):  # nothing but the answer could be cut
        with pytest.raises(TaskError, match="more than the context of 10"):
            Examples(load_examples([row]), TOKENIZER, SFTSettings(max_length=10), "truncate_left")[0]


def test_both_sides_of_a_pair_keep_the_same_prompt():
    pairs = load_preferences([{"prompt": LONG, "chosen": "4", "rejected": "567"}])
    pair = tokenise_pairs(pairs, [0], TOKENIZER, 10, "truncate_left")[0]
    assert [TOKENIZER.decode(part) for part in (pair.prompt, pair.chosen, pair.rejected)] == [
        LONG[-6:], "4<end>", "567<end>",
    ]  # fmt: skip


ROWS = {
    "sft": [{"prompt": prompt, "answer": "4"} for prompt in (SHORT, LONG, SHORT)],
    "dpo": [{"prompt": prompt, "chosen": "4", "rejected": "5"} for prompt in (SHORT, LONG, SHORT)],
    "reward_model": [{"prompt": prompt, "chosen": "4", "rejected": "5"} for prompt in (SHORT, LONG, SHORT)],
    "grpo": [{"prompt": prompt} for prompt in (SHORT, LONG, SHORT)],
}


class Lengths(Callback):
    """Keeps the longest sequence that was trained on."""

    longest = 0

    def on_step_end(self, state, step_idx, batch, metrics):
        pairs = getattr(batch.data, "pairs", None)
        lengths = [len(pair.prompt) for pair in pairs] if pairs else batch.data.attention_mask.sum(-1).tolist()
        self.longest = max(self.longest, *lengths)


def count_digits(prompts, completions, **columns):
    return [float(len(completion)) for completion in completions]


@pytest.mark.parametrize("algorithm", ROWS)
def test_every_kind_of_run_does_what_is_written(algorithm, tmp_path, caplog):
    detached = {
        "reward": {"functions": [count_digits], "workers": 0},
        "sampling": {"group_size": 2, "max_new_tokens": 3},
    }

    def train(overlong):
        lengths = Lengths()
        run(
            algorithm=algorithm, output_dir=str(tmp_path), name=overlong, model=load_model(MODEL_WITH_END),
            tokenizer=TOKENIZER, total_steps=3, train_batch_size=2, callbacks=[lengths],
            task={"source": ROWS[algorithm], "overlong": overlong}, **(detached if algorithm == "grpo" else {}),
        )  # fmt: skip
        return lengths.longest

    with pytest.raises(ProaError, match="31 tokens|prompt .31"):
        train("error")
    with caplog.at_level(logging.WARNING, "proa.tasks"):
        assert train("drop") < 10
        assert 20 <= train("truncate_left") <= 24
    assert any("1 of 3 rows are too long and left out" in message for message in caplog.messages)
    assert any("1 of 3 prompts are too long and lose" in message for message in caplog.messages)
