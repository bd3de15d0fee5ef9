"""Replies between actors, and the location of an actor."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

POLL_SECONDS = 2.0
"""How long the trainer holds a request that has to wait, before it is repeated."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A value, nothing yet (`value` None), or the end of the run (`closed`)."""

    value: Any = None
    closed: str = ""
    weights: Any = None
    """With a lease whose weights the maker lacks: a reference to them and their digest, to save a call."""


def this_node() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def this_node_id() -> str:
    """The id of this node, unique even if several nodes run on one machine."""
    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id


@dataclass(frozen=True, slots=True)
class Location:
    """The process of an actor, and the file of its output."""

    pid: int
    node: str
    log: str
    node_id: str = ""

    @classmethod
    def current(cls) -> Location:
        try:
            log = str(Path("/proc/self/fd/2").readlink())  # the file of `keep_output`, or the worker's own of Ray
        except OSError:
            log = ""
        return cls(os.getpid(), this_node(), log, this_node_id())
