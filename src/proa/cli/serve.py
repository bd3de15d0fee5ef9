"""`proa serve`: a run's weights, or a model, behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from ..config import ConfigError
from ..run.serving import OpenedModel, check_flags, opened
from ..serving import Guest, Limits, OneKey, Scoring, new_key
from ..serving.endpoint import GRACE, Endpoint, bind, is_loopback
from ..visible import print_visible, show_details
from .text import count

TOKEN_VARIABLE = "PROA_TOKEN"  # noqa: S105 - where it is looked for
_LOOK_SECONDS = 0.1


def serve(options: argparse.Namespace) -> int:
    """Exit code: 0 after SIGTERM, 1 if it failed; Ctrl-C raises `KeyboardInterrupt`."""
    sys.path.insert(0, str(Path.cwd()))  # so that engines there can be named
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    show_details(logging.getLogger("proa.serving"))
    token = _token(options)
    check_flags(options.flags, [name for name in vars(options) if name not in ("run", "takes_flags", "flags")])
    named = {"model.device": options.device, "model.dtype": options.dtype, "engine.slots": options.slots}
    flags = [part for key, value in named.items() if value is not None for part in (f"--{key}", str(value))]
    with (
        bind(options.host, options.port) as address,  # before what takes long
        _opened(options, flags) as served,
    ):
        caller = Guest(served.user, Scoring(served.stream, served.user))
        limits = Limits(sequences=options.max_requests, seconds=options.deadline)
        endpoint = Endpoint(served.model, OneKey(caller, token), address=address, limits=limits)
        with _signals() as received:
            try:
                _announce(served, endpoint, None if options.token else token)
                while not received and endpoint.is_alive and endpoint.failure is None:
                    time.sleep(_LOOK_SECONDS)
                _say_end(endpoint)
            finally:
                endpoint.close(GRACE if endpoint.failure is None else 0.0)
        if signal.SIGINT in received:
            raise KeyboardInterrupt
        return 0 if received else 1


def _opened(options: argparse.Namespace, flags: Sequence[str]) -> AbstractContextManager[OpenedModel]:
    print_visible(f"loading torch and {options.source}", file=sys.stderr)
    return opened(
        options.source,
        name=options.name,
        checkpoint=options.checkpoint,
        flags=[*options.flags, *flags],
        max_new_tokens=options.max_new_tokens,
    )


def _token(options: argparse.Namespace) -> str | None:
    """What clients must send; None if that is nothing."""
    if not options.no_token:
        return options.token or os.environ.get(TOKEN_VARIABLE) or new_key()
    if options.token:
        raise ConfigError("--token and --no-token: give one of them")
    if not is_loopback(options.host):
        raise ConfigError(
            f"--no-token lets in whoever reaches {options.host}: give a --token, or leave --host at 127.0.0.1"
        )
    return None


def _announce(served: OpenedModel, endpoint: Endpoint, shown_token: str | None) -> None:
    weights, model = served.weights, served.model
    what = f"checkpoint {weights.checkpoint}, version {weights.version}" if weights.checkpoint else str(weights.folder)
    print_visible(f"serving {model.name} ({what}, on {served.device}) at {endpoint.base_url}")
    if shown_token is not None and not os.environ.get(TOKEN_VARIABLE):
        print(f"token: {shown_token}")
    if not is_loopback(endpoint.host):
        print(
            "other machines can reach this, and what is sent is not encrypted: use a tunnel, or a proxy with TLS",
            file=sys.stderr,
        )
    sys.stdout.flush()


def _say_end(endpoint: Endpoint) -> None:
    if endpoint.failure is not None:
        print_visible(f"{endpoint.failure}: nothing more can be answered", file=sys.stderr)
    elif endpoint.under_way:
        left = count(endpoint.under_way, "request")
        print(f"ending, with {GRACE:g} s for {left} under way; once more to end at once", file=sys.stderr)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that ask for the end, as they come; a second one raises `KeyboardInterrupt` at once."""
    received: list[int] = []

    def note(number: int, _frame: Any) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
