"""What actors say to one another, and where they are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

NO_VERSION = -2
"""Below the base that adapters go over, which is -1."""
POLL_SECONDS = 2.0
"""How long a question stays with the trainer before it is asked again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Something, nothing yet (`value` None), or the end."""

    value: Any = None
    closed: str = ""
    weights: Any = None
    """With a lease whose weights the maker has not: where they are, and their digest. It saves a call for each."""


def this_node() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where an actor runs, and where what it prints goes."""

    pid: int
    node: str
    log: str

    @classmethod
    def here(cls) -> Whereabouts:
        try:
            log = str(Path("/proc/self/fd/2").readlink())  # Ray has it point to the worker's own file
        except OSError:
            log = ""
        return cls(os.getpid(), this_node(), log)
