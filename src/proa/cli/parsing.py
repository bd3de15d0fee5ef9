"""What the arguments of all verbs share: the parser, and values that are checked as they are read."""

from __future__ import annotations

import argparse
import math
from typing import Any, NoReturn, TypeAlias

from ..spelling import did_you_mean
from ..visible import visible


class Parser(argparse.ArgumentParser):
    """Escapes control characters of the user's arguments in its messages, and suggests a verb for a misspelt one."""

    def error(self, message: str) -> NoReturn:
        super().error(visible(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices and action.metavar == "VERB":
            self.error(
                f"there is no verb {value!r}{did_you_mean(value, action.choices)} (verbs: {', '.join(action.choices)})"
            )
        super()._check_value(action, value)


Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"


def name_list(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def count_list(text: str) -> list[int]:
    numbers = name_list(text)
    if not numbers or not all(number.isdecimal() and int(number) for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 1,64,256")
    return [int(number) for number in numbers]
