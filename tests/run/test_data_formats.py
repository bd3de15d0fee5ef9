"""Data in the formats that TRL documents, from YAML and from Python, without naming a column: what is trained on is
checked token by token."""

import json
import logging
from types import MappingProxyType

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
    "language modeling, several turns": (
        {"messages": [ASKED, BLUE, {"role": "user", "content": "And at dusk?"}, GREEN]},
        f"{CHAT}It is blue.</s><|user|>And at dusk?</s><|assistant|>",
        "It is green.</s>",
    ),
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
SKY = {"type": "function", "function": {"name": "look_up", "parameters": {"properties": {"where": {"type": "string"}}}}}
CALLS = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "look_up", "arguments": {}}}]}
SAYS = {"role": "tool", "name": "look_up", "content": "blue"}
WITH_TOOLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}</s>{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}(){% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ mood }}{% endif %}"
)
"""A chat template with places for tools, for calls of them, and for a value called mood."""
TOLD = f"{json.dumps(SKY)}</s>{CHAT}"
TOOLED = {
    "tools": ("sft", {"messages": [ASKED, BLUE], "tools": [SKY]}, TOLD, "It is blue.</s>"),
    "tools as JSON": ("sft", {"messages": [ASKED, BLUE], "tools": json.dumps([SKY])}, TOLD, "It is blue.</s>"),
    "a call of a tool": ("sft", {"messages": [ASKED, CALLS], "tools": [SKY]}, TOLD, "look_up()</s>"),
    "tools, prompt-completion": (
        "sft", {"prompt": [ASKED], "completion": [BLUE], "tools": [SKY]}, TOLD, "It is blue.</s>"
    ),
    "a whole call of a tool": (
        "sft", {"messages": [ASKED, CALLS, SAYS, BLUE], "tools": [SKY]},
        f"{TOLD}look_up()</s><|tool|>blue</s><|assistant|>", "It is blue.</s>",
    ),
    "a completion that calls a tool": (
        "sft", {"prompt": [ASKED], "completion": [CALLS], "tools": [SKY]}, TOLD, "look_up()</s>"
    ),
    "tools, prompt-only": ("grpo", {"prompt": [ASKED], "color": "blue", "tools": [SKY]}, TOLD, ""),
    "tools as JSON, prompt-only": ("grpo", {"prompt": [ASKED], "color": "blue", "tools": json.dumps([SKY])}, TOLD, ""),
    "tools that are something else": ("grpo", {"prompt": [ASKED], "color": "blue", "tools": "a hammer"}, CHAT, ""),
    "after a call, prompt-only": (
        "grpo",
        {"prompt": [ASKED, CALLS, SAYS], "color": "blue"},
        f"{CHAT}look_up()</s><|tool|>blue</s><|assistant|>", "",
    ),
    "no tools": ("sft", {"messages": [ASKED, BLUE], "tools": []}, CHAT, "It is blue.</s>"),
    "tools, preference, explicit": (
        "dpo", {"prompt": [ASKED], "chosen": [BLUE], "rejected": [GREEN], "tools": [SKY]}, TOLD, "It is blue.</s>"
    ),
    "tools, preference, implicit": (
        "reward_model", {"chosen": [ASKED, BLUE], "rejected": [ASKED, GREEN], "tools": [SKY]}, TOLD, "It is blue.</s>"
    ),
}  # fmt: skip
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


NOTHING = MappingProxyType({})
GENERATED = {
    "sampling": {"group_size": 2, "max_new_tokens": 4},
    "reward": {"functions": ["tests.run.test_data_formats:colored"], "workers": 0},
}
"""Settings of runs that generate."""


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

    def trained(algorithm, row, task=NOTHING, **settings):
        config = {
            "algorithm": algorithm, "output_dir": str(tmp_path), "total_steps": 1, "train_batch_size": 2,
            "model": {
                "config": {**MODEL, "vocab_size": len(TOKENIZER), "max_position_embeddings": 320},
                "tokenizer": str(tokenizer_folder),
            }, **settings,
        }  # fmt: skip
        seen, rows = Seen(), [row, row]
        if request.param == "Python":
            run(**config, task={"source": rows, **task}, callbacks=[seen])
        else:
            data, file = tmp_path / "rows.jsonl", tmp_path / "run.yaml"
            data.write_text("".join(json.dumps(one) + "\n" for one in rows))
            file.write_text(yaml.safe_dump({**config, "task": {"source": str(data), **task}}))
            run(file, callbacks=[seen])
        (batch,) = seen.batches
        return batch

    return trained


def tokens_of(*texts):
    return [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in texts]


def prompt_tokens(batch):
    """Those of the first sample."""
    prompts = batch.sequences[0][: -batch.action_log_probs.shape[1]]
    return prompts[batch.attention_mask[0][: len(prompts)]].tolist()


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
    assert [prompt_tokens(train("grpo", row, **GENERATED))] == tokens_of(text)


@pytest.mark.parametrize("name", TOOLED)
def test_a_chat_template_is_given_the_tools_of_its_row(name, train):
    algorithm, row, given, learned = TOOLED[name]
    settings = GENERATED if algorithm == "grpo" else {}
    batch = train(algorithm, row, task={"chat_template": WITH_TOOLS}, **settings)
    if algorithm == "grpo":
        assert [prompt_tokens(batch)] == tokens_of(given)
    elif algorithm == "sft":
        assert [batch.sequences[0][batch.attention_mask[0]].tolist()] == tokens_of(given + learned)
        acted = batch.sequences[0][-batch.action_mask.shape[1] :]
        assert [acted[batch.action_mask[0]].tolist()] == tokens_of(learned)
    else:
        assert [list(batch.pairs[0].prompt), list(batch.pairs[0].chosen)] == tokens_of(given, learned)


def test_a_chat_template_is_given_the_values_of_its_row(train):
    """With a value of its own the template writes it, and it belongs to what the model is given."""
    row = {"messages": [ASKED, BLUE], "chat_template_kwargs": {"mood": "calm"}}
    template = WITH_TOOLS.replace("<|{{ m.role }}|>", "<|{{ m.role }}|>{{ mood if m.role == 'assistant' }}")
    batch = train("sft", row, task={"chat_template": template})
    assert [batch.sequences[0][batch.attention_mask[0]].tolist()] == tokens_of(f"{CHAT}calmIt is blue.</s>")
    acted = batch.sequences[0][-batch.action_mask.shape[1] :]
    assert [acted[batch.action_mask[0]].tolist()] == tokens_of("It is blue.</s>")


def test_what_the_chat_template_does_not_use_is_warned_of(train, caplog):
    train("sft", {"messages": [ASKED, BLUE], "tools": [SKY]})
    assert "the chat template does not use 'tools', which the column tools gives it" in caplog.text
    caplog.clear()
    train("grpo", {"prompt": [ASKED], "color": "blue", "tools": [SKY]}, **GENERATED)
    assert "the chat template does not use 'tools', which the column tools gives it" in caplog.text
    train("sft", {"text": "The sky is blue.", "tools": [SKY]})
    assert "the column tools is for chat templates, and the data is text" in caplog.text


@pytest.mark.parametrize("progress", [True, False])
def test_what_was_recognised_is_said_with_the_progress(train, progress, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("proa.tasks"), "level", logging.NOTSET)
    logging.getLogger("proa.tasks").manager._clear_cache()
    train("sft", {"messages": [ASKED, BLUE]}, progress=progress)
    assert ("data: 2 rows of messages (messages), from" in caplog.text) is progress
