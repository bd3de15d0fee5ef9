"""Untrusted text made safe to print: nothing in it hides, moves or overwrites the text around it.

Output of models, data, exceptions and file names may contain terminal escape sequences or characters that change the
direction of text. They are recorded unchanged and printed like this.
"""

from __future__ import annotations

import logging
import re
from typing import TextIO

# Controls, soft hyphens, direction marks, invisible joiners and tags, lone surrogates. The two joiners that scripts and
# emoji need stay between non-ASCII characters.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
_LOGGERS = (
    "proa.actors.finding", "proa.actors.waiting", "proa.callbacks", "proa.engines", "proa.environments",
    "proa.experiments", "proa.learning", "proa.leases", "proa.lifecycle", "proa.loop", "proa.maker", "proa.numerics",
    "proa.policy", "proa.record", "proa.resume", "proa.rewards.long_calls", "proa.rewards.workers", "proa.rollouts",
    "proa.run", "proa.runtime", "proa.serving", "proa.tasks", "proa.trainer", "proa.vllm", "proa.vllm_server",
)  # fmt: skip
"""All loggers of the package: a filter on one does not apply to its children."""


def visible(text: str) -> str:
    """The text with invisible characters replaced by their code points. Line breaks and tabs stay.

    >>> visible("a\\x00b\\x1b[2J\\u202ec\\x85")
    'a⟨U+0000⟩b⟨U+001B⟩[2J⟨U+202E⟩c⟨U+0085⟩'
    """
    return _INVISIBLE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def single_line(text: str) -> str:
    """The text on one line, so that a line break in it cannot imitate another line.

    >>> single_line("lost\\nstatus:\\tcompleted")
    'lost↵status: completed'
    """
    return visible(text).replace("\n", "↵").replace("\t", " ")


def print_visible(text: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print untrusted text; `flush` what something slow follows."""
    print(visible(str(text)), file=file, flush=flush)


def make_logs_visible() -> None:
    """Make everything that this package logs visible, whatever handler prints it."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_make_visible)  # idempotent


def show_details(logger: logging.Logger) -> None:
    """Have what a logger says of single steps shown: by the program's handlers, or else on stderr."""
    logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)


def _make_visible(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if (shown := visible(message)) != message:
        record.msg, record.args = shown, ()
    if record.exc_info and not record.exc_text:
        record.exc_text = visible(logging.Formatter().formatException(record.exc_info))  # formatters reuse it
    return True
