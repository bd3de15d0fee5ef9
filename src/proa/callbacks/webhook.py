"""Notifications: JSON by POST when something happens in a run."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from ..data.loop import ManifestRow
from ..data.results import Status
from ..data.state import LoopState
from ..errors import CallbackConfigError
from ..lifecycle.hooks import EveryMoment
from ..lifecycle.moments import EventName
from ..lifecycle.policy import ErrorPolicy, Priority
from ..record.run_folder import encode_numbers
from ..record.secrets import expand_environment, redact_metrics, redact_values, remember
from ..spelling import did_you_mean
from .deliveries import BusyError, Deliveries, Delivery, RefusedError
from .logged_values import error_text, plain

EVENTS: tuple[EventName, ...] = ("train_end", "error", "maker.lost", "checkpoint_saved")
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which trying again may help."""


@dataclass(frozen=True, slots=True)
class Notification:
    """What is sent. Its fields do not change their meaning; later versions may add some."""

    event: EventName
    run: str
    """The run's name."""
    folder: str
    """The run's folder, absolute; empty if it has none."""
    step: int
    """How many steps were done."""
    status: Status
    """`running`, or how training ended: `completed`, `failed`, `cancelled`."""
    message: str
    """What happened, in a sentence."""
    text: str
    """Run and message: the field that Slack and similar services show."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Numbers only. NaN and infinities are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`."""
    time: float = 0.0
    """Seconds since the epoch."""

    def as_json(self) -> bytes:
        return json.dumps(encode_numbers(asdict(self)), allow_nan=False).encode("utf-8")


class WebhookNotifier(EveryMoment):
    """Sends a JSON object to `webhook_url` by POST at each of `events`, in the background and in order.

    An answer that is not a success is tried again, for up to `timeout` seconds in all; one request may take
    `request_timeout`. At the end of training it waits up to `drain` seconds for what is not sent yet. Failures are
    counted in `callback_errors` and never affect the run.

    The URL and the values of `headers` are treated as secrets. They may refer to environment variables:
    `webhook_url="${SLACK_WEBHOOK_URL}"`.
    """

    priority = Priority.LOGGING
    error_policy = ErrorPolicy.DISABLE
    uses_asyncio = False
    first_delay = 1.0

    def __init__(
        self,
        webhook_url: str,
        *,
        events: Sequence[str] = EVENTS,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        request_timeout: float = 10.0,
        drain: float = 20.0,
    ) -> None:
        self._sent_events = _check_events(events)
        self.only_moments = {*self._sent_events, "train_start", "train_end"}
        for name, seconds in (("timeout", timeout), ("request_timeout", request_timeout), ("drain", drain)):
            if not seconds > 0:
                raise CallbackConfigError(f"callback kind 'webhook': {name} must be above 0 seconds, not {seconds!r}")
        self._receiver = _Receiver(
            expand_environment("webhook_url", webhook_url),
            {name: expand_environment(f"headers.{name}", value) for name, value in (headers or {}).items()},
            request_timeout,
        )
        self._timeout = timeout
        self._drain = drain
        self._state: LoopState | None = None
        self._deliveries: Deliveries | None = None

    @property
    def background_failures(self) -> int:
        return self._deliveries.failed if self._deliveries is not None else 0

    @property
    def first_background_failure(self) -> str:
        return self._deliveries.first_failure if self._deliveries is not None else ""

    def on_moment(self, event: EventName, payload: Mapping[str, Any]) -> None:
        if event == "train_start":
            self._begin(payload["state"])
        elif event in self._sent_events and self._deliveries is not None:
            self._deliveries.submit(_Post(self._notification(event, payload), self._receiver))
        if event == "train_end" and self._deliveries is not None:
            self._deliveries.drain(self._drain)

    def _begin(self, state: LoopState) -> None:
        same_run = (
            self._state is not None and state.output_dir is not None and state.output_dir == self._state.output_dir
        )
        self._state = state
        self._deliveries = Deliveries(
            "webhook",
            timeout=self._timeout,
            first_delay=self.first_delay,
            before=self._deliveries if same_run else None,
        )

    def _notification(self, event: EventName, payload: Mapping[str, Any]) -> Notification:
        state = self._state
        assert state is not None, "train_start comes first"
        status, message = _describe(event, payload, state)
        message = redact_values(message)
        folder = state.output_dir
        run = "run" if folder is None else redact_values(folder.resolve().name)
        numbers = {name: plain(value) for name, value in state.metrics.items()}
        return Notification(
            event,
            run,
            "" if folder is None else redact_values(str(Path(folder).resolve())),
            state.global_step,
            status,
            message,
            f"{run}: {message}",
            redact_metrics({name: value for name, value in numbers.items() if isinstance(value, int | float)}),
            round(time.time(), 3),
        )


def _check_events(events: Sequence[str]) -> frozenset[EventName]:
    chosen: Any = [events] if isinstance(events, str) else events
    for event in chosen:
        if event not in EVENTS:
            raise CallbackConfigError(
                f"callback kind 'webhook': unknown event {event!r}{did_you_mean(str(event), EVENTS)} "
                f"(known: {', '.join(EVENTS)})"
            )
    if not chosen:
        raise CallbackConfigError(f"callback kind 'webhook': events is empty; choose from {', '.join(EVENTS)}")
    return frozenset(chosen)


def _describe(event: EventName, payload: Mapping[str, Any], state: LoopState) -> tuple[Status, str]:
    """The status of the run, and a sentence about the event."""
    steps = f"{state.global_step} step{'' if state.global_step == 1 else 's'}"
    if event == "maker.lost":
        return "running", f"{payload['maker']} was lost: {payload['reason']}"
    if event == "checkpoint_saved":
        row: ManifestRow = payload["row"]
        return "running", f"checkpoint {row.name} was saved after {row.step} step{'' if row.step == 1 else 's'}"
    if event == "error":
        return "failed", f"failed after {steps}: {error_text(payload['exception'])}"
    if isinstance(state.exception, Exception):
        return "failed", f"failed after {steps}: {error_text(state.exception)}"
    if state.exception is not None:
        return "cancelled", f"interrupted after {steps}"
    why = f": {state.stop_reason}" if state.stop_reason else ""
    return "completed", f"completed after {steps}{why}"


class _Receiver:
    """Where notifications go. Its address is a secret: messages name its host alone."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        remember({"webhook_url": url, "headers": dict(headers)})
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CallbackConfigError("callback kind 'webhook': webhook_url must begin with https:// or http://")
        self.host = parts.hostname
        self._url = url
        self._headers = {"Content-Type": "application/json", "User-Agent": "proa", **headers}
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirects)
        for name, value in headers.items():
            _check_header(name, value)

    def post(self, body: bytes, until: float) -> None:
        request = urllib.request.Request(self._url, body, self._headers, method="POST")  # noqa: S310 - http(s) only
        seconds = max(0.1, min(self._timeout, until - monotonic()))
        try:
            with self._opener.open(request, timeout=seconds):
                return
        except urllib.error.HTTPError as answer:
            with answer:
                self._judge(answer)
        except urllib.error.URLError as error:
            raise ConnectionError(f"{self.host} cannot be reached: {error.reason}") from None
        except TimeoutError:
            raise TimeoutError(f"{self.host} did not answer within {seconds:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(f"{self.host}: {type(error).__name__}: {error}") from None

    def _judge(self, answer: urllib.error.HTTPError) -> None:
        """Raise what a status other than success means."""
        said = f"{self.host} answered {answer.code} {answer.reason}".rstrip()
        if answer.code in _LATER:
            raise BusyError(said, _seconds(answer.headers.get("Retry-After")))
        if 300 <= answer.code < 400:
            target = urlsplit(answer.headers.get("Location") or "").hostname or "another address"
            raise RefusedError(f"{said}, to {target}: redirects are not followed; set webhook_url to the final address")
        raise RefusedError(said)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would turn the POST into a GET, and send the headers to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _check_header(name: str, value: str) -> None:
    """Raise before the run starts for a header that cannot be sent; its value is not shown."""
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not re.fullmatch(r"[\t\x20-\x7e\xa0-\xff]*", value):
        raise CallbackConfigError(
            f"callback kind 'webhook': the header {name!r} cannot be sent: use letters, digits and dashes in its name, "
            f"and Latin-1 text without line breaks in its value"
        )


def _seconds(retry_after: str | None) -> float:
    """The seconds of a `Retry-After` header: a number or a date; 0 if there is none."""
    if not retry_after:
        return 0.0
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0


class _Post(Delivery):
    """One notification on its way."""

    def __init__(self, notification: Notification, receiver: _Receiver) -> None:
        self._notification = notification
        self._body = notification.as_json()
        self._receiver = receiver

    def __str__(self) -> str:
        return f"the notification of {self._notification.event} at step {self._notification.step}"

    def attempt(self, until: float) -> None:
        self._receiver.post(self._body, until)
