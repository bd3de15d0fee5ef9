"""What a run must not write down: secrets, known by the name of their key or by their value, never guessed.

By key, the value under a name that says it is a secret. By value, wherever it stands inside a text: what such a key
held in the run's configuration, what an environment variable of such a name holds, and what a URL says before its host.
The environment itself is never recorded.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

REDACTED = "REDACTED"
SHORTEST_OF_ENVIRONMENT = 8
SHORTEST_OF_CONFIGURATION = 6
"""A shorter value is only known by its key: as a text it might be part of an ordinary word."""


class Redactor:
    """Takes secrets out of what is about to be written. Threads may share one; what it was told, it never forgets.

    >>> redactor = Redactor(environment={})
    >>> redactor.remember({"params": {"api_key": "k-12345678"}})
    >>> redactor.redact({"params": {"api_key": "k-12345678"}, "error": "401 for k-12345678", "eos_token": "</s>"})
    {'params': {'api_key': 'REDACTED'}, 'error': '401 for REDACTED', 'eos_token': '</s>'}
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._guard = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._written: tuple[str, ...] = ()
        """Every way in which a secret may stand in a text, the longest first. Replaced as a whole, never changed."""

    def remember(self, config: Mapping[str, Any]) -> None:
        """Take note of a configuration's secrets, which from now on are known by their value too."""
        self._add(value for value in _secrets_in(config) if len(value) >= SHORTEST_OF_CONFIGURATION)

    def redact(self, value: Any) -> Any:
        """The value without secrets, known by key or by value. What is given is not changed."""
        # A row of numbers, as steps write them, cannot quote a variable: it is not worth a look at all of them.
        return _without(value, self._written if _only_numbers(value) else self._current(), by_key=True)

    def redact_values(self, value: Any) -> Any:
        """The value without secrets known by value: for data, where a key called `token` means something else."""
        return _without(value, self._current(), by_key=False)

    def _current(self) -> tuple[str, ...]:
        # Read each time: whoever logs in during the run may set a variable.
        named = (self._environment.get(name, "") for name in self._environment if is_secret_key(name))
        values = {value for value in named if len(value) >= SHORTEST_OF_ENVIRONMENT}
        if not values <= self._known:
            self._add(values)
        return self._written

    def _add(self, values: Iterable[str]) -> None:
        with self._guard:
            self._known = self._known.union(values)
            forms = {form for value in self._known for form in _forms(value)}
            self._written = tuple(sorted(forms, key=len, reverse=True))


_OF_THIS_PROCESS = Redactor()
remember = _OF_THIS_PROCESS.remember
redact = _OF_THIS_PROCESS.redact
redact_values = _OF_THIS_PROCESS.redact_values


def redacted_keys(config: Mapping[str, Any]) -> list[str]:
    """The dotted paths of what a written configuration does not say any more: whoever goes on with it must ask.

    >>> redacted_keys({"callbacks": [{"kind": "chat", "params": {"token": "REDACTED", "room": "runs"}}]})
    ['callbacks.0.params.token']
    """
    return [path for path, value in _leaves(config) if isinstance(value, str) and REDACTED in value]


@lru_cache(maxsize=4096)
def is_secret_key(name: str) -> bool:
    """Whether a name says that what it names is a secret.

    >>> [is_secret_key(name) for name in ("HF_TOKEN", "x-api-key", "clientSecret", "PGPASSWORD", "credentials")]
    [True, True, True, True, True]
    >>> [is_secret_key(name) for name in ("max_new_tokens", "eos_token", "tokenizer", "token_budget", "PWD")]
    [False, False, False, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token":
        return before not in _OF_TEXT
    if last == "pwd":
        return bool(before)  # alone it is the working directory
    return last in _NAMES or "".join(words).removesuffix("s").endswith(_ENDINGS)


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAMES = frozenset(
    {
        "auth", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "creds", "jwt", "oauth",
        "secret", "secrets", "webhook", "webhooks",
    }
)  # fmt: skip
"""What the last word of a secret's name may be, besides token."""
_ENDINGS = (
    "password", "passwd", "passphrase", "connectionstring", "webhookurl", "accesskeyid",
    *(f"{kind}key" for kind in ("api", "access", "secret", "private", "encryption", "signing", "auth", "account")),
    *(f"{kind}token" for kind in ("api", "access", "auth", "bearer", "refresh", "session")),
)  # fmt: skip
"""How a secret's name may end, however its words are joined, in the plural too."""
_OF_TEXT = frozenset(
    {
        "answer", "assistant", "audio", "begin", "blank", "boi", "bos", "class", "cls", "completion", "count",
        "delimiter", "draft", "each", "end", "eod", "eoi", "eop", "eos", "eot", "every", "first", "generated", "image",
        "input", "language", "last", "mask", "max", "middle", "min", "n", "new", "newline", "next", "num", "output",
        "pad", "padding", "patch", "per", "prefix", "previous", "prompt", "reasoning", "response", "reward", "sampled",
        "sep", "separator", "special", "start", "step", "stop", "suffix", "target", "think", "thinking", "timestamp",
        "tool", "total", "unk", "video", "vision",
    }
)  # fmt: skip
"""A token of these is a piece of text: `eos_token`, `loss_per_token`."""
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+(.+)", re.IGNORECASE | re.DOTALL)
_USER_OF_URL = re.compile(r"(?<=://)[^/?#\s\"'<>]+(?=@)")


_NUMBERS = frozenset({float, int, bool, type(None)})
_KEPT = frozenset({list, tuple, set, frozenset})
"""What comes back as what it was, so that a checkpoint's state can be given too."""


def _only_numbers(row: Any) -> bool:
    return type(row) is dict and all(type(value) in _NUMBERS for value in row.values())


def _without(value: Any, secrets: tuple[str, ...], by_key: bool) -> Any:
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, str):
        return _without_in_text(value, secrets)
    if isinstance(value, Mapping):
        pairs = {
            _without(key, secrets, by_key): (
                _blotted(inner) if by_key and is_secret_key(str(key)) else _without(inner, secrets, by_key)
            )
            for key, inner in value.items()
        }
        return OrderedDict(pairs) if type(value) is OrderedDict else pairs
    if type(value) in _KEPT:
        return type(value)(_without(inner, secrets, by_key) for inner in value)
    return [_without(inner, secrets, by_key) for inner in value] if isinstance(value, list | tuple) else value


def _without_in_text(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, REDACTED)
    return _USER_OF_URL.sub(REDACTED, text) if "://" in text and "@" in text else text


def _blotted(value: Any) -> Any:
    """What stands under a secret's name. Its shape stays, and so does what no secret is: a switch, a measure."""
    if isinstance(value, Mapping):
        return {key: _blotted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_blotted(inner) for inner in value]
    is_none = value is None or isinstance(value, bool | float) or (isinstance(value, str) and not value)
    return value if is_none else REDACTED


def _secrets_in(value: Any, named: bool = False) -> Iterator[str]:
    """The secrets of a configuration; `named` if the name that they stand under says so."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secrets_in(inner, named or is_secret_key(str(key)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secrets_in(inner, named)
    elif named and _blotted(value) == REDACTED:
        yield str(value)
    elif isinstance(value, str):  # the password of a URL may be quoted without the rest
        passwords = [user.partition(":")[2] for user in _USER_OF_URL.findall(value)]
        yield from (form for password in passwords for form in (password, unquote(password)))


def _forms(secret: str) -> set[str]:
    """A secret as it may stand in a text: itself, without its scheme, escaped as in a literal, in JSON or in a URL."""
    plain = {secret, secret.strip()}
    if scheme := _SCHEME.fullmatch(secret.strip()):
        plain.add(scheme[1])
    forms = plain.union(
        *((repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, safe="", errors="surrogateescape")) for text in plain)
    )
    return {form for form in forms if len(form) >= SHORTEST_OF_CONFIGURATION and form not in REDACTED}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    inner: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        yield path, value
        return
    for key, one in inner:
        yield from _leaves(one, f"{path}.{key}" if path else str(key))
