"""The assistant's message, and the calls in it, from the tokens that the model sampled."""

import importlib.util

import pytest
from tests.environments.sources import add
from tests.tasks.tiny_tokenizers import tiny_tokenizer
from tokenizers import AddedToken

from proa.environments.schemas import tool_schema
from proa.environments.tool_calls import parse_message, parse_text

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"</s>\s*", "content": "text"},
    },
}


@pytest.fixture(scope="module")
def tools():
    return [tool_schema(add)]


def a_tokenizer(template=None, *, special=False):
    import copy

    tokenizer = copy.deepcopy(tiny_tokenizer("byte level, nothing"))
    marks = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>"]
    tokenizer.add_tokens([AddedToken(mark, special=special) for mark in marks], special_tokens=special)
    tokenizer.response_template = template
    return tokenizer


def parsed(text, tools, tokenizer, prefix=""):
    def tokens(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    return parse_message(tokens(text), tokenizer, tools, prefix=tokens(prefix) if prefix else ())


@pytest.mark.parametrize("special", [False, True], ids=["ordinary marks", "special marks"])
def test_calls_between_tags_are_found(tools, special):
    tokenizer = a_tokenizer(special=special)
    assert parsed(f"Let me add. {ADD}</s>", tools, tokenizer) == {
        "role": "assistant",
        "content": "Let me add.",
        "tool_calls": [CALL],
    }
    assert parsed("4</s>", tools, tokenizer) == {"role": "assistant", "content": "4"}


def test_without_tools_a_message_is_its_text():
    assert parsed(f"{ADD}</s>", [], a_tokenizer()) == {"role": "assistant", "content": ADD}
    assert parse_message([], a_tokenizer(), []) == {"role": "assistant", "content": ""}


def test_llamas_calls_are_found_with_their_tag_or_without(tools):
    call = '{"name": "add", "parameters": {"a": 1}}'
    tokenizer = a_tokenizer(special=True)
    assert parsed(f"<|python_tag|>{call}</s>", tools, tokenizer)["tool_calls"] == [CALL]
    assert parsed(call, tools, tokenizer) == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert parsed(f"{call}; {call}", tools, tokenizer)["tool_calls"] == [CALL, CALL]
    assert "is not valid JSON" in parsed("<|python_tag|>add(1)", tools, tokenizer)["tool_calls"][0]["error"]


def test_a_special_token_that_the_tokenizer_does_not_name_is_no_text(tools):
    tokenizer = a_tokenizer()
    tokenizer.add_tokens([AddedToken("<|eom_id|>", special=True)], special_tokens=True)
    assert "<|eom_id|>" not in tokenizer.all_special_tokens
    call = '{"name": "add", "parameters": {"a": 1}}<|eom_id|>'
    assert parsed(call, tools, tokenizer) == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert parsed("4<|eom_id|>", tools, tokenizer)["content"] == "4"


@pytest.mark.parametrize("answer", ['{"name": "Bob", "age": 3}', '{"sum": 4}', "{4}", "Use add(a, b)."])
def test_an_answer_in_json_is_no_call(answer):
    assert parse_text(answer) == {"role": "assistant", "content": answer}


def test_calls_in_what_the_model_thinks_are_drafts_and_its_words_stay():
    assert parse_text(f"<think>Maybe {ADD}</think>4") == {
        "role": "assistant",
        "content": f"<think>Maybe {ADD}</think>4",
    }
    message = parse_text(f"<think>Add.</think>{ADD}")
    assert (message["content"], message["tool_calls"]) == ("<think>Add.</think>", [CALL])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ('{"name": "add", "arguments": {"a": 1}', "is not valid JSON"),
        ('{"arguments": {"a": 1}}', "has no name"),
        ("[1]", "has no name"),
        ('{"name": "add", "arguments": [1]}', "of 'add' has arguments that are not an object"),
        ('{"name": "add", "arguments": "{"}', "of 'add' has arguments that are not valid JSON"),
    ],
)
def test_a_call_that_is_not_valid_says_why(call, error):
    (found,) = parse_text(f"<tool_call>{call}</tool_call>")["tool_calls"]
    assert error in found["error"]
    assert found["function"] == {"name": "", "arguments": {}}


def test_arguments_may_be_json_in_text_and_calls_may_have_ids():
    (call,) = parse_text('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>')["tool_calls"]
    assert call == CALL


def test_the_tokenizers_own_description_of_its_format_comes_first(tools):
    tokenizer = a_tokenizer(TEMPLATE)
    message = parsed(f"<think>Add them.</think>\nWell. {ADD}</s>", tools, tokenizer, "<|user|>1+1?</s><|assistant|>")
    assert message == {
        "role": "assistant",
        "reasoning_content": "Add them.",
        "content": "Well.",
        "tool_calls": [CALL],
    }
    assert parsed("4</s>", [], tokenizer) == {"role": "assistant", "content": "4"}


def test_what_the_prompt_began_of_a_message_is_part_of_it(tools):
    prompt = "<|user|>1+1?</s><|assistant|><think>"
    message = parsed("Add them.</think>2</s>", tools, a_tokenizer(TEMPLATE), prompt)
    assert message == {"role": "assistant", "reasoning_content": "Add them.", "content": "2"}


def test_what_is_not_in_the_models_own_format_is_an_invalid_call(tools):
    message = parsed("<tool_call>{add}</tool_call></s>", tools, a_tokenizer(TEMPLATE))
    assert message["content"] == "<tool_call>{add}</tool_call>"
    assert message["tool_calls"][0]["error"].startswith("is not in the model's format: ")
    assert "tool_calls" not in parsed("<tool_call>{add}</tool_call></s>", [], a_tokenizer(TEMPLATE))


@pytest.mark.skipif(importlib.util.find_spec("renderers") is None, reason="the package `renderers` is not installed")
def test_the_package_renderers_knows_the_formats_of_models_by_name(tools):
    tokenizer = a_tokenizer()
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_response>", "</tool_response>"])
    tokenizer.name_or_path = "Qwen/Qwen3-0.6B"
    message = parsed(f"<think>Add.</think>Well. {ADD}<|im_end|>", tools, tokenizer)
    assert message == {"role": "assistant", "content": "<think>Add.</think>Well.", "tool_calls": [CALL]}
    assert parsed("4<|im_end|>", tools, tokenizer)["content"].startswith("4")
    (call,) = parsed("<tool_call>{add}</tool_call><|im_end|>", tools, tokenizer)["tool_calls"]
    assert call["error"] == "is not in the model's format: invalid json"
