"""What the arguments of all verbs share: the parser, and values that are checked as they are read."""

from __future__ import annotations

import argparse
import math
from typing import NoReturn, TypeAlias

from ..visible import visible


class Parser(argparse.ArgumentParser):
    """Escapes control characters of the user's arguments in its messages."""

    def error(self, message: str) -> NoReturn:
        super().error(visible(message))


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
