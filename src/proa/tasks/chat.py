"""How prompts become a conversation: a chat template with its settings, and a system prompt."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.messages import Messages
from .prompts import template_text, template_values
from .task import ChatRow, Task, TaskError, TaskRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("proa.tasks")

_TAKEN = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
"""What a template is given anyhow."""


def with_template(
    tokenizer: PreTrainedTokenizerBase, template: str | None, settings: Mapping[str, Any]
) -> PreTrainedTokenizerBase:
    """The tokenizer, or a copy of it with another chat template (text, or a file's), and with values for names in it.

    The values become defaults inside the template. So they hold wherever messages are tokenised, and in the folder
    that the model is saved to; who uses that can still pass others.
    """
    if template is None and not settings:
        return tokenizer
    found: Any = _read_template(template) if template is not None else getattr(tokenizer, "chat_template", None)
    if not found:
        raise TaskError(
            "task.chat_template_kwargs is given, but this tokenizer has no chat template: give task.chat_template too"
        )
    defaults = _defaults(settings, found)
    own = copy.copy(tokenizer)
    if isinstance(found, dict):  # several templates by name
        own.chat_template = {name: _prefixed(text, defaults) for name, text in found.items()}
    else:
        own.chat_template = _prefixed(found, defaults)
    return own


def with_system_prompt(task: Task, system_prompt: str | None) -> Task:
    """The task with a system message before the messages of each row that has none. A prompt that is text becomes the
    user's message; rewards get it as text still."""
    if system_prompt is None:
        return task
    return replace(task, rows=[add_system_prompt(row, system_prompt) for row in task.rows])


def add_system_prompt(row: TaskRow, system_prompt: str | None) -> TaskRow:
    """The same for one row; an empty prompt adds no message.

    >>> add_system_prompt(TaskRow([{'role': 'user', 'content': '2?'}]), 'Add 1.').messages
    [{'role': 'system', 'content': 'Add 1.'}, {'role': 'user', 'content': '2?'}]
    """
    if system_prompt is None:
        return row
    messages = [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else list(row.prompt)
    has_one = messages[0].get("role") in ("system", "developer")
    first = [] if has_one or not system_prompt else [{"role": "system", "content": system_prompt}]
    return ChatRow(row.prompt, row.columns, [*first, *messages])


def check_is_chat(task: Task) -> None:
    """Raise where a template is set for prompts that never get to it, because they are text."""
    if task.rows and not isinstance(task.rows[0], ChatRow) and isinstance(task.rows[0].prompt, str):
        raise TaskError(
            f"task.chat_template and task.chat_template_kwargs are for chat messages, and the prompts of the task "
            f"{task.name!r} are text: give messages, [{{'role': 'user', 'content': ...}}], or leave them out; in runs "
            "that generate, task.system_prompt makes text the user's message, also an empty one"
        )


def warn_of_missing_turn(task: Task, tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn where a template does not begin the assistant's turn: the model would have to write that itself, and what
    it was taught to expect there is missing."""
    first = task.rows[0]
    messages = first.messages if isinstance(first, ChatRow) else first.prompt
    if isinstance(messages, str) or messages[-1].get("role") == "assistant":
        return
    with_turn, without = (
        template_text(messages, tokenizer, {"add_generation_prompt": asked}, where=f"task {task.name!r}, row 0")
        for asked in (True, False)
    )
    if with_turn == without:
        log.warning(
            "the chat template does not begin the assistant's turn (add_generation_prompt changes nothing): prompts "
            "end with %r, and completions begin right there", with_turn[-40:],
        )  # fmt: skip


def warn_of_unread_columns(
    prompt: str | Messages, columns: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Warn where the data has values for its chat template (`tools`, `chat_template_kwargs`) that get nowhere."""
    if isinstance(prompt, str):  # whose columns of these names may be anything
        for column in ("tools", "chat_template_kwargs"):
            if columns.get(column):
                log.warning("the column %s is for chat templates, and the data is text: it changes nothing", column)
        return
    warn_of_unread_values(template_values(columns, "row 0"), tokenizer)


def warn_of_unread_values(values: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn of what a row gives its chat template in these columns, and the template does not use."""
    template = getattr(tokenizer, "chat_template", None)
    for name in values:
        column = "tools" if name == "tools" else "chat_template_kwargs"
        if template and name not in json.dumps(template):
            log.warning(
                "the chat template does not use %r, which the column %s gives it: what is learned does not know of it. "
                "Give a task.chat_template that does", name, column,
            )  # fmt: skip


def _read_template(given: str) -> str:
    if "{{" in given or "{%" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(
            f"task.chat_template is {given!r:.80}, which is neither a template (it has no {{{{ or {{%) nor a file that "
            f"can be read: {error.strerror or error}"
        ) from error


def _defaults(settings: Mapping[str, Any], template: Any) -> str:
    text = json.dumps(template) if isinstance(template, dict) else str(template)
    for name in settings:
        if not name.isidentifier() or name in _TAKEN:
            raise TaskError(f"task.chat_template_kwargs: {name!r} is not a name that can be set for a chat template")
        if name not in text:
            raise TaskError(
                f"task.chat_template_kwargs: the chat template does not use {name!r}, so it would change nothing: "
                "leave it out, or give a task.chat_template that does"
            )
    return "".join(
        f"{{% if {name} is not defined %}}{{% set {name} = {_literal(value)} %}}{{% endif %}}"
        for name, value in settings.items()
    )


def _prefixed(template: str, defaults: str) -> str:
    # The empty text keeps a line break that the template begins with, which tags would swallow.
    prefix = f"{defaults}{{{{ '' }}}}" if defaults else ""
    return template if template.startswith(prefix) else prefix + template


def _literal(value: Any) -> str:
    """A value of a configuration file as templates write it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(str(key))}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
