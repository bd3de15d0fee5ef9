"""Data in the formats that TRL documents, from YAML and from Python, without naming a column: what is trained on is
checked token by token."""

import json

import pytest
import yaml
from tests.small import MODEL
from tests.tasks.tiny_tokenizers import tiny_tokenizer

from proa import Callback
from proa.recipes import run

TOKENIZER = tiny_tokenizer("byte level, both ends")
ASKED = {"role": "user", "content": "What color is the sky?"}
BLUE, GREEN = ({"role": "assistant", "content": f"It is {color}."} for color in ("blue", "green"))
CHAT = "<|user|>What color is the sky?</s><|assistant|>"
EXAMPLES = {
    "language modeling": ({"text": "The sky is blue."}, "<s>", "The sky is blue.</s>"),
    "language modeling, conversational": ({"messages": [ASKED, BLUE]}, CHAT, "It is blue.</s>"),
    "prompt-completion": ({"prompt": "The sky is", "completion": " blue."}, "<s>The sky is", " blue.</s>"),
    "prompt-completion, conversational": ({"prompt": [ASKED], "completion": [BLUE]}, CHAT, "It is blue.</s>"),
    "prompt + answer": ({"prompt": "The sky is", "answer": " blue."}, "<s>The sky is", " blue.</s>"),
    "Alpaca": (
        {"instruction": "What color is this?", "input": "the sky", "output": "It is blue."},
        "<|user|>What color is this?\nthe sky</s><|assistant|>",
        "It is blue.</s>",
    ),
    "Alpaca without an input": (
        {"instruction": "What color is the sky?", "input": "", "output": "It is blue."},
        CHAT,
        "It is blue.</s>",
    ),
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": ASKED["content"]}, {"from": "gpt", "value": BLUE["content"]}]},
        CHAT,
        "It is blue.</s>",
    ),
}
PAIRS = {
    "preference, explicit": (
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        "<s>The sky is", " blue.</s>", " green.</s>",
    ),
    "preference, implicit": (
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        "<s>The sky is", " blue.</s>", " green.</s>",
    ),
    "preference, conversational, explicit": (
        {"prompt": [ASKED], "chosen": [BLUE], "rejected": [GREEN]}, CHAT, "It is blue.</s>", "It is green.</s>",
    ),
    "preference, conversational, implicit": (
        {"chosen": [ASKED, BLUE], "rejected": [ASKED, GREEN]}, CHAT, "It is blue.</s>", "It is green.</s>",
    ),
}  # fmt: skip
PROMPTS = {
    "prompt-only": ({"prompt": "The sky is", "color": "blue"}, "<s>The sky is"),
    "prompt-only, conversational": ({"prompt": [ASKED], "color": "blue"}, CHAT),
}


class Seen(Callback):
    """Keeps the batches that were trained on."""

    def __init__(self):
        self.batches = []

    def on_step_end(self, state, step_idx, batch, metrics):
        self.batches.append(batch.data)


def colored(prompts, completions, color, **columns):
    """Rewards that differ, so that there is something to learn."""
    assert set(color) == {"blue"}
    return [float(index) for index in range(len(completions))]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(params=["YAML", "Python"])
def train(request, tokenizer_folder, tmp_path):
    """Trains for one step on a row, from a file or from objects; returns the batch."""

    def trained(algorithm, row, **settings):
        config = {
            "algorithm": algorithm, "output_dir": str(tmp_path), "total_steps": 1, "train_batch_size": 2,
            "model": {
                "config": {**MODEL, "vocab_size": len(TOKENIZER), "max_position_embeddings": 96},
                "tokenizer": str(tokenizer_folder),
            }, **settings,
        }  # fmt: skip
        seen, rows = Seen(), [row, row]
        if request.param == "Python":
            run(**config, task=rows, callbacks=[seen])
        else:
            data, file = tmp_path / "rows.jsonl", tmp_path / "run.yaml"
            data.write_text("".join(json.dumps(one) + "\n" for one in rows))
            file.write_text(yaml.safe_dump({**config, "task": str(data)}))
            run(file, callbacks=[seen])
        (batch,) = seen.batches
        return batch

    return trained


def tokens_of(*texts):
    return [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in texts]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_learned_as_it_was_written(name, train):
    row, given, learned = EXAMPLES[name]
    batch = train("sft", row)
    before, after = tokens_of(given, learned)
    assert batch.sequences[0][batch.attention_mask[0]].tolist() == before + after
    acted = batch.sequences[0][-batch.action_mask.shape[1] :]
    assert acted[batch.action_mask[0]].tolist() == after


@pytest.mark.parametrize("algorithm", ["dpo", "reward_model"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_compared_as_it_was_written(name, algorithm, train):
    row, *texts = PAIRS[name]
    pair = train(algorithm, row).pairs[0]
    assert [list(pair.prompt), list(pair.chosen), list(pair.rejected)] == tokens_of(*texts)


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_is_completed_as_it_was_written(name, train):
    row, text = PROMPTS[name]
    sampling = {"group_size": 2, "max_new_tokens": 4}
    reward = {"functions": ["tests.run.test_data_formats:colored"], "workers": 0}
    batch = train("grpo", row, sampling=sampling, reward=reward)
    prompts = batch.sequences[0][: -batch.action_log_probs.shape[1]]
    mask = batch.attention_mask[0][: len(prompts)]
    assert [prompts[mask].tolist()] == tokens_of(text)
