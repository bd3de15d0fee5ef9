"""Text of any origin as something to look at: nothing in it hides, moves or overwrites what stands around it.

What a model wrote, what stands in data, what an exception says, what a file is called: all of it may hold escape
sequences for a terminal, or characters that turn the direction of text. It is recorded as it is, and shown like this.
"""

from __future__ import annotations

import logging
import re
from typing import TextIO

# Controls, soft hyphens, marks that turn the direction of text, invisible joiners and tags, halves of characters.
# The two joiners that scripts and emoji need stay between their characters, and are named beside others.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
_LOGGERS = (
    "proa.callbacks", "proa.engines", "proa.experiments", "proa.lifecycle", "proa.loop.after_step", "proa.maker",
    "proa.numerics", "proa.policy", "proa.recipes", "proa.record", "proa.rewards.long_calls", "proa.rewards.workers",
    "proa.actors.waiting", "proa.runtime", "proa.trainer",
)  # fmt: skip
"""All loggers of the package: a filter on one does not hear those below it."""


def visible(text: str) -> str:
    """The text with everything that is not seen, and could still act, named. Line breaks and tabs stay.

    >>> visible("a\\x00b\\x1b[2J\\u202ec\\x85")
    'a⟨U+0000⟩b⟨U+001B⟩[2J⟨U+202E⟩c⟨U+0085⟩'
    """
    return _UNSEEN.sub(_named, text)


def in_one_line(text: str) -> str:
    """The text as part of a line that others follow: what looks like another line cannot be taken for one.

    >>> in_one_line("lost\\nstatus:\\tcompleted")
    'lost↵status: completed'
    """
    return visible(text).replace("\n", "↵").replace("\t", " ")


def print_visible(text: object, *, file: TextIO | None = None) -> None:
    """Print a text that may hold anything."""
    print(visible(str(text)), file=file)


def make_logs_visible() -> None:
    """Have everything that this package logs made visible, whoever shows it."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_make_visible)  # a second time changes nothing


def _make_visible(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if (shown := visible(message)) != message:
        record.msg, record.args = shown, ()
    if record.exc_info and not record.exc_text:
        record.exc_text = visible(logging.Formatter().formatException(record.exc_info))  # formatters take it as it is
    return True


def _named(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"  # a picture of a control would be smaller, and few fonts have them
