"""Prompts and completions as tokens: those of the prompt are what generation sees, and together they are the text."""

import copy
import random

import pytest
from tests.tasks.tiny_tokenizers import KINDS, tiny_tokenizer

from proa.tasks import PromptStream, TaskError, TaskRow, load_task
from proa.tasks.completions import completion_tokens, conversation_tokens
from proa.tasks.preferences import load_preferences, tokenise_pair
from proa.tasks.prompts import tokenise


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def text_of(tokenizer, tokens):
    return tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)


def pieces(tokenizer, tokens):
    return tokenizer.convert_ids_to_tokens(list(tokens))


def without_beginning(tokenizer, tokens):
    """What stands after the token that some tokenizers put before every text."""
    return tokens[1:] if tokens[0] == tokenizer.bos_token_id else tokens


# -- text


def test_a_completion_gets_no_space_that_is_not_in_the_text():
    for kind in KINDS:
        tokenizer = tiny_tokenizer(kind)
        _, completion = completion_tokens("2+2=", "4", tokenizer, where="row 0")
        assert pieces(tokenizer, completion) == ["4", "</s>"], kind


def test_a_prompt_is_never_ended_and_begins_once():
    for kind in KINDS:
        tokenizer = tiny_tokenizer(kind)
        tokens = tokenise(TaskRow("2+2="), tokenizer, where="row 0")
        begins = "<s>" in pieces(tokenizer, tokenizer("2+2=")["input_ids"])
        assert pieces(tokenizer, tokens).count("<s>") == begins, kind
        assert "</s>" not in pieces(tokenizer, tokens), kind


def test_an_end_that_stands_in_the_prompt_itself_stays():
    tokenizer = tiny_tokenizer("metaspace first, both ends")
    tokens = tokenise(TaskRow("2+2=</s>"), tokenizer, where="row 0")
    assert pieces(tokenizer, tokens)[-2:] == ["=", "</s>"]


def test_a_beginning_that_stands_in_the_prompt_itself_is_there_once():
    for kind in KINDS:
        tokenizer = tiny_tokenizer(kind)
        tokens = tokenise(TaskRow("<s>2+2="), tokenizer, where="row 0")
        assert pieces(tokenizer, tokens).count("<s>") == 1, kind
        assert completion_tokens("<s>2+2=", "4", tokenizer, where="row 0")[0] == tokens, kind


def some_texts(count, seed):
    """Pairs of texts that begin with a letter or a digit, cut anywhere: within words, before and after blanks."""
    draw = random.Random(seed)
    words = ["hello", "world", "2+2=4", "ab", "abc", "the cat", "\n", " ", "  ", "=", "22", "444", "été", "中文", "."]
    for _ in range(count):
        text = draw.choice("ha2") + "".join(draw.choice(words) for _ in range(draw.randint(1, 6)))
        cut = draw.randint(1, len(text) - 1)
        yield text[:cut], text[cut:]


def test_prompt_and_completion_are_the_text_and_the_prompt_is_what_generation_sees():
    cases = list(some_texts(20, seed=1))
    task = load_task([{"prompt": prompt, "completion": completion} for prompt, completion in cases])
    for kind in KINDS:
        tokenizer = tiny_tokenizer(kind)
        stream = PromptStream(task, tokenizer, seed=0)
        for generated in map(stream.__getitem__, range(len(cases))):
            prompt, completion = generated.text, generated.columns["completion"]
            tokens, more = completion_tokens(prompt, completion, tokenizer, where="row 0")
            case = (kind, prompt, completion)
            assert tokens == generated.tokens, case
            assert more[-1] == tokenizer.eos_token_id, case
            assert tokenizer.eos_token_id not in more[:-1], case
            said = text_of(tokenizer, without_beginning(tokenizer, tokens + more[:-1]))
            assert said.removeprefix(" " if "space in front" in kind else "") == prompt + completion, case


def test_both_sides_of_a_pair_follow_the_same_prompt():
    for kind in KINDS:
        tokenizer = tiny_tokenizer(kind)
        (pair,) = load_preferences([{"prompt": "Answer: ", "chosen": "yes", "rejected": "hello"}])
        made = tokenise_pair(pair, tokenizer, where="pair 0")
        assert made.prompt == tokenise(TaskRow("Answer: "), tokenizer, where="row 0"), kind
        for side, text in ((made.chosen, "yes"), (made.rejected, "hello")):
            said = text_of(tokenizer, without_beginning(tokenizer, made.prompt + side))
            assert said.strip() == f"Answer: {text}</s>", kind


def test_a_text_that_cannot_be_cut_between_two_tokens_is_refused_in_words():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "</s>": 1, "hello": 2, "world": 3}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>")
    assert completion_tokens("hello ", "world", tokenizer, where="row 0") == ((2,), (3, 1))
    with pytest.raises(TaskError, match="row 7: .*cannot be split.* between prompt and completion"):
        completion_tokens("hel", "lo", tokenizer, where="row 7")


# -- conversations


def test_a_begun_answer_is_continued_and_no_new_turn_begins():
    tokenizer = tiny_tokenizer("byte level, both ends")
    tokens = tokenise(TaskRow([user("2+2="), assistant("The sum is ")]), tokenizer, where="row 0")
    assert text_of(tokenizer, tokens) == "<|user|>2+2=</s><|assistant|>The sum is "


def test_nothing_begun_is_a_new_turn():
    tokenizer = tiny_tokenizer("byte level, both ends")
    asked = tokenise(TaskRow([user("2+2=")]), tokenizer, where="row 0")
    assert tokenise(TaskRow([user("2+2="), assistant("")]), tokenizer, where="row 0") == asked
    assert text_of(tokenizer, asked) == "<|user|>2+2=</s><|assistant|>"


def test_a_completion_continues_what_the_prompt_began():
    for kind in KINDS:
        tokenizer = tiny_tokenizer(kind)
        begun = [user("2+2="), assistant("yes ")]
        prompt, completion = completion_tokens(begun, [assistant("4")], tokenizer, where="row 0")
        assert prompt == tokenise(TaskRow(begun), tokenizer, where="row 0"), kind
        asked, answer = completion_tokens(begun[:-1], [assistant("yes 4")], tokenizer, where="row 0")
        assert text_of(tokenizer, prompt + completion) == text_of(tokenizer, asked + answer), kind
        assert pieces(tokenizer, completion) == ["4", "</s>"], kind


def test_a_begun_answer_that_a_completion_cannot_continue_is_refused():
    tokenizer = tiny_tokenizer("byte level, nothing")
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}
    with pytest.raises(
        TaskError, match="row 3: the prompt ends with a message of the assistant, so the completion must continue it"
    ):
        completion_tokens([user("2"), assistant("a")], [call], tokenizer, where="row 3")


def test_a_template_whose_generation_prompt_merges_with_the_answer_is_cut_where_generation_begins():
    for kind in KINDS:
        tokenizer = tiny_tokenizer(kind)
        prompt, completion = _with_template(tokenizer, CHAT_OF_WORDS, [user("hello")], [assistant("world")])
        said = text_of(tokenizer, prompt + completion).strip()
        assert said == "user: hello\nassistant: world</s>", kind
        assert "assistant" not in text_of(tokenizer, completion), kind


CHAT_OF_WORDS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '\n' if m.role == 'user' else '' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Without special tokens: the blank at its end merges with the answer's first word."""


def _with_template(tokenizer, template, prompt, completion):
    own, tokenizer.chat_template = tokenizer.chat_template, template
    try:
        return completion_tokens(prompt, completion, tokenizer, where="row 0")
    finally:
        tokenizer.chat_template = own


def test_of_several_messages_after_the_prompt_the_assistants_are_learned():
    tokenizer = tiny_tokenizer("byte level, nothing")
    talk = [user("1"), assistant("2"), user("3"), assistant("4"), user("5"), assistant("6")]
    tokens, learned = conversation_tokens(talk, tokenizer, every_answer=False, given=3, where="row 0")
    taken = [token for token, is_learned in zip(tokens, learned, strict=True) if is_learned]
    assert text_of(tokenizer, taken) == "4</s>6</s>"


IN_PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2="}]},
    {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
]
PARTS_TOO = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }};{% endfor %}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_message_in_parts_is_its_text_where_the_template_knows_no_parts():
    """Such a template would write the list as Python does, and the model would learn brackets and quotes."""
    tokenizer = copy.deepcopy(tiny_tokenizer("byte level, nothing"))
    cases = {
        "asked": (IN_PARTS[:1], "<|user|>2+2=</s><|assistant|>"),
        "begun": (IN_PARTS, "<|user|>2+2=</s><|assistant|>4"),
    }
    for name, (messages, text) in cases.items():
        assert tokenizer.decode(tokenise(TaskRow(messages), tokenizer, where="here")) == text, name
    _, completion = completion_tokens(IN_PARTS[:1], IN_PARTS[1:], tokenizer, where="here")
    assert text_of(tokenizer, completion) == "4</s>"
    tokenizer.chat_template = PARTS_TOO  # one that does is given them
    tokens = tokenise(TaskRow(IN_PARTS[:1]), tokenizer, where="here")
    assert tokenizer.decode(tokens) == "<|user|>2+;2=;</s><|assistant|>"


def test_a_picture_in_a_message_is_refused_where_the_template_knows_no_parts():
    tokenizer = tiny_tokenizer("byte level, nothing")
    picture = [{"role": "user", "content": [{"type": "image", "url": "a.png"}, {"type": "text", "text": "What?"}]}]
    with pytest.raises(TaskError, match="row 3: the content of message 0 is a list of parts, which the tokenizer's"):
        tokenise(TaskRow(picture), tokenizer, where="row 3")


WITH_TOOLS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}(){% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_message_without_content_is_not_the_word_none():
    tokenizer = copy.deepcopy(tiny_tokenizer("byte level, nothing"))
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    with pytest.raises(TaskError, match="row 2: message 1 calls the tool 'add', but the tokenizer's chat template"):
        conversation_tokens([user("2+2="), calls], tokenizer, every_answer=False, where="row 2")
    tokenizer.chat_template = WITH_TOOLS
    tokens, learned = conversation_tokens([user("2+2="), calls], tokenizer, every_answer=False, where="row 2")
    assert text_of(tokenizer, [token for token, is_learned in zip(tokens, learned, strict=True) if is_learned]) == (
        "add()</s>"
    )


def test_pairs_of_text_may_have_a_column_of_any_content_called_tools():
    (plain,) = load_preferences([{"prompt": "12", "chosen": "3", "rejected": "4"}])
    (pair,) = load_preferences([{"prompt": "12", "chosen": "3", "rejected": "4", "tools": "hammer"}])
    tokenizer = tiny_tokenizer(next(iter(KINDS)))
    assert pair.columns == {"tools": "hammer"}
    assert tokenise_pair(pair, tokenizer, where="pair 0") == tokenise_pair(plain, tokenizer, where="pair 0")
