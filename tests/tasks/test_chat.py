"""Chat templates with their settings, and system prompts, as tokens see them."""

import pytest

from proa.tasks import load_task
from proa.tasks.builtin.characters import tokenizer as make_tokenizer
from proa.tasks.chat import check_is_chat, warn_of_unread_columns, with_system_prompt, with_template
from proa.tasks.prompts import template_values, tokenise
from proa.tasks.task import TaskError

CHAT = (
    "{% macro mark(text) %}{% if doubled %}{{ text }}{% endif %}{{ text }}{% endmacro %}"
    "{% for m in messages %}{% if m.role == 'system' %}0{% endif %}{{ mark(m.content) }}+{% endfor %}"
    "{% if doubled is defined and doubled is none %}9{% endif %}{% if add_generation_prompt %}>{% endif %}"
)
MESSAGES = [{"role": "user", "content": "12"}]


def text(tokenizer, row):
    return tokenizer.decode(tokenise(row, tokenizer, where="here"))


def row_of(prompt, system_prompt=None):
    return with_system_prompt(load_task([{"prompt": prompt, "answer": "4"}]), system_prompt).rows[0]


def test_a_template_may_be_text_or_a_file_and_the_tokenizer_that_was_given_stays_as_it_is(tmp_path):
    given, file = make_tokenizer(), tmp_path / "chat.jinja"
    file.write_text(CHAT)
    for template in (CHAT, str(file)):
        assert text(with_template(given, template, {}), row_of(MESSAGES)) == "12+>"
    assert given.chat_template is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "1212+>"), (False, "12+>"), (None, "12+9>"), ("{% x %} \"'é😀\n", "1212+>"), ([1, {"a": None}], "1212+>")],
)
def test_settings_are_values_for_names_in_the_template_in_its_macros_too(value, shown):
    assert text(with_template(make_tokenizer(), CHAT, {"doubled": value}), row_of(MESSAGES)) == shown


@pytest.mark.parametrize("value", ["a \"quoted\" 'é😀' {{ b }}\n\t\\", 0.5, -3, True, None, {"a": [1, None]}, []])
def test_a_value_arrives_as_it_was_written(value):
    own = with_template(make_tokenizer(), "{{ x | tojson }}", {"x": value})
    bare = make_tokenizer()
    bare.chat_template = "{{ x | tojson }}"
    shown = own.apply_chat_template(MESSAGES, tokenize=False)
    assert shown == bare.apply_chat_template(MESSAGES, tokenize=False, x=value)


def test_settings_are_defaults_that_whoever_uses_the_saved_tokenizer_can_change(tmp_path):
    own = with_template(make_tokenizer(), "\n" + CHAT, {"doubled": True})
    own.save_pretrained(tmp_path)
    again = type(own).from_pretrained(tmp_path)
    assert again.apply_chat_template(MESSAGES, tokenize=False) == "\n1212+"
    assert again.apply_chat_template(MESSAGES, tokenize=False, doubled=False) == "\n12+"
    assert with_template(again, None, {"doubled": True}).chat_template == own.chat_template


@pytest.mark.parametrize(
    ("template", "settings", "words"),
    [
        (None, {"thinking": True}, "this tokenizer has no chat template"),
        (CHAT, {"thinking": True}, "does not use 'thinking', so it would change nothing"),
        (CHAT, {"messages": []}, "'messages' is not a name that can be set"),
        ("no/such/file.jinja", {}, "neither a template .* nor a file that can be read: No such file"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(template, settings, words):
    with pytest.raises(TaskError, match=words):
        with_template(make_tokenizer(), template, settings)


def test_a_system_prompt_comes_before_messages_that_have_none_and_text_becomes_the_users():
    chat = with_template(make_tokenizer(), CHAT, {})
    for prompt in (MESSAGES, "12"):
        row = row_of(prompt, "7")
        assert text(chat, row) == "07+12+>"
        assert row.prompt == prompt  # as rewards see it
    own = [{"role": "system", "content": "3"}, *MESSAGES]
    assert text(chat, row_of(own, "7")) == "03+12+>"
    assert text(chat, row_of("12", "")) == "12+>"
    assert text(chat, row_of("12")) == "12"


def test_a_template_for_prompts_that_are_text_is_refused_unless_they_become_messages():
    with pytest.raises(TaskError, match=r"the prompts of the task 'task' are text"):
        check_is_chat(load_task([{"prompt": "12"}]))
    check_is_chat(with_system_prompt(load_task([{"prompt": "12"}]), ""))
    check_is_chat(load_task([{"prompt": MESSAGES}]))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"tools": "add"}, r"row 2: the column tools is text and not JSON \(Expecting value\)"),
        ({"tools": ["add"]}, "row 2: tools is a list of the schemas of functions, or such a list as JSON, not .'add'"),
        ({"tools": '{"name": "add"}'}, "row 2: tools is a list of the schemas"),
        ({"chat_template_kwargs": "calm"}, "row 2: chat_template_kwargs is a mapping of values"),
    ],
)
def test_what_is_no_value_for_a_chat_template_is_refused(columns, words):
    with pytest.raises(TaskError, match=words):
        template_values(columns, "row 2")


def test_a_column_of_text_that_is_called_like_one_for_templates_is_no_mistake_in_data_that_is_text(caplog):
    warn_of_unread_columns("12", {"tools": "hammer"}, make_tokenizer())
    assert "the column tools is for chat templates, and the data is text" in caplog.text
