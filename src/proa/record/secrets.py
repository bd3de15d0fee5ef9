"""What a run must not write down: secrets, known by the name of their key or by their value, never guessed.

By key, the value under a name that says it is a secret, also where the key stands in a text: in a URL's query, in a
header, in quoted JSON. By value, wherever it stands inside a text: what such a key held in the run's configuration,
what an environment variable of such a name holds, and what a URL says before its host. The environment itself is never
recorded.

Texts that people read are cleaned. The state in a checkpoint is not: a callback gets back exactly what it saved.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

REDACTED = "REDACTED"
SHORTEST_OF_ENVIRONMENT = 8
SHORTEST_OF_CONFIGURATION = 6
"""A shorter value is only known by its key: as a text it might be part of an ordinary word."""
LONG_ENOUGH = 12
"""A shorter value is replaced as a word of its own only: inside a digest or an id its characters are chance."""


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
        self._written: Written = ()
        """Every way in which a secret may stand in a text, the longest first. Replaced as a whole, never changed."""

    def remember(self, config: Mapping[str, Any]) -> None:
        """Take note of a configuration's secrets, which from now on are known by their value too."""
        self._add(value for value in _secrets_in(config) if len(value) >= SHORTEST_OF_CONFIGURATION)

    def redact(self, value: Any) -> Any:
        """The value without secrets, known by key or by value. What is given is not changed."""
        return _without(value, self._current(), by_key=True)

    def redact_metrics(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The same for metrics, whose numbers stay under any name: a count called `pass` is a measure."""
        if all(type(value) in _NUMBERS for value in row.values()):
            # As steps write them: such a row cannot quote a variable, and is not worth a look at all of them.
            return {_without(name, self._written, by_key=False): value for name, value in row.items()}
        clean = self.redact({name: value for name, value in row.items() if type(value) not in _NUMBERS})
        names = {name: _without(name, self._written, by_key=False) for name in row}
        return {names[name]: clean.get(names[name], value) for name, value in row.items()}

    def redact_values(self, value: Any) -> Any:
        """The value without secrets known by value: for data, where a key called `token` means something else."""
        return _without(value, self._current(), by_key=False)

    def _current(self) -> Written:
        # Read each time: whoever logs in during the run may set a variable.
        named = ((name, self._environment.get(name, "")) for name in self._environment if is_secret_key(name))
        values = {
            value for name, value in named if len(value) >= SHORTEST_OF_ENVIRONMENT and _can_be_known(name, value)
        }
        if not values <= self._known:
            self._add(values)
        return self._written

    def _add(self, values: Iterable[str]) -> None:
        with self._guard:
            self._known = self._known.union(values)
            forms = {form for value in self._known for form in _forms(value)}
            self._written = tuple((form, _as_word(form)) for form in sorted(forms, key=len, reverse=True))


_OF_THIS_PROCESS = Redactor()
remember = _OF_THIS_PROCESS.remember
redact = _OF_THIS_PROCESS.redact
redact_metrics = _OF_THIS_PROCESS.redact_metrics
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

    >>> [is_secret_key(name) for name in ("HF_TOKEN", "x-api-key", "clientSecret", "wandb_key", "db_pass", "key")]
    [True, True, True, True, True, True]
    >>> [is_secret_key(name) for name in ("max_new_tokens", "eos_token", "key_column", "sort_key", "PWD")]
    [False, False, False, False, False]
    """
    words = _words(name)
    return _is_certain(words) or _is_likely(words, name)


def _words(name: str) -> list[str]:
    """The words of a name, without the number that tells it from others: `OPENAI_API_KEY_2`."""
    words = [word.lower() for word in _WORD.findall(_NUMBER_OF_NAME.sub("", name))]
    *rest, last = words or [""]
    return rest if last in _FORMATS and rest != ["token"] and (_is_certain(rest) or rest[-1:] == ["auth"]) else words


def _is_certain(words: list[str]) -> bool:
    if not words:
        return False
    if words[-1] == "token":
        return len(words) == 1 or words[-2] not in _OF_TEXT
    joined = "".join(words)
    return words[-1] in _NAMES or joined.endswith(_ENDINGS) or joined.removesuffix("s").endswith(_ENDINGS)


def _is_likely(words: list[str], name: str) -> bool:
    """Whether a name often means a secret, and sometimes a column or a place in a table."""
    last, before = (words[-1], words[-2] if len(words) > 1 else "") if words else ("", "")
    if last == "pwd":
        return name != "PWD"  # the shell's working directory
    return last in _LIKELY and before not in _LIKELY[last]


def _can_be_known(name: str, value: str) -> bool:
    """Whether what stands under a secret's name can be looked for in texts, and is not one of their ordinary words."""
    if value in _WORDS_OF_RECORDS:
        return False
    return _is_certain(_words(name)) or not _IDENTIFIER.fullmatch(value)


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NUMBER_OF_NAME = re.compile(r"(?<!@)[_-]?[0-9]+$")
_IDENTIFIER = re.compile(r"[A-Za-z_]{1,15}")
"""What a column may be called: `key: question` hides its value where it stands, not the word in every text."""
_FORMATS = frozenset({"b64", "base64", "header", "headers", "hex", "json", "pem", "plain", "plaintext", "value"})
"""What may follow a secret's name without making it another's."""
_NAMES = frozenset(
    {
        "authorization", "bearer", "cookie", "cookies", "cred", "credential", "credentials", "creds", "dsn", "jwt",
        "oauth", "otp", "secret", "secrets", "totp", "webhook", "webhooks",
    }
)  # fmt: skip
"""What the last word of a secret's name may be, besides token."""
_ENDINGS = (
    "password", "passwd", "passcode", "passphrase", "connectionstring", "webhookurl", "accesskeyid",
    *(f"{kind}key" for kind in ("api", "access", "secret", "private", "encryption", "signing", "auth", "account")),
    *(f"{kind}token" for kind in ("api", "access", "auth", "bearer", "refresh", "session")),
    *(f"{kind}pass" for kind in ("admin", "db", "database", "mysql", "pg", "root", "smtp", "ssh", "user")),
    *(f"{kind}pat" for kind in ("github", "gh", "gitlab", "azure")),
)  # fmt: skip
"""How a secret's name may end, however its words are joined, in the plural too."""
_LIKELY = {
    "auth": frozenset[str](),
    "key": frozenset(
        {
            "and", "answer", "any", "att", "attention", "attn", "audio", "batch", "cache", "chat", "chosen", "class",
            "column", "completion", "composite", "config", "content", "context", "data", "dataset", "dict", "each",
            "entry", "env", "every", "feature", "field", "file", "first", "foreign", "group", "head", "image",
            "index", "input", "item", "json", "label", "last", "layer", "lookup", "map", "max", "message", "messages",
            "metric", "metrics", "min", "model", "module", "name", "natural", "next", "num", "object", "or", "order",
            "output", "param", "parameter", "partition", "path", "per", "previous", "primary", "prompt", "public",
            "query", "question", "reference", "rejected", "response", "result", "reward", "routing", "row", "sample",
            "score", "seed", "sort", "sorting", "source", "split", "state", "subset", "target", "task", "text",
            "tool", "unique", "value", "video", "weight",
        }
    ),
    "pass": frozenset(
        {
            "all", "backward", "band", "by", "each", "every", "first", "forward", "high", "last", "low", "max", "min",
            "multi", "n", "num", "one", "per", "second", "single", "third", "total", "two", "warmup",
        }
    ),
    "session": frozenset({"desktop", "each", "every", "max", "min", "num", "per", "training"}),
}  # fmt: skip
"""Last words of a secret's name, each with what may stand before it in a name that says something else."""
_WORDS_OF_RECORDS = frozenset(
    {
        "adapter", "bfloat16", "cancelled", "checkpoint", "checkpoints", "completed", "completion", "default",
        "disabled", "enabled", "experiment", "failed", "float32", "in_order", "interrupted", "metrics", "native",
        "optimizer", "policy", "prompt", "required", "reward", "running", "stopped", "trainer", "unknown", "windowed",
    }
)  # fmt: skip
"""What a record says itself: as the value of a key it gives nothing away, and a record without it cannot be read."""
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
_QUERY = re.compile(r"(?<=[?&;#])([^=?&;#\s\"'<>]{1,80})=([^&;#\s\"'<>]+)")
_QUERY_NAMES = frozenset({"sig", "signature", "x-amz-credential", "x-amz-signature", "x-goog-signature"})
"""What signs a URL, besides what is called a secret everywhere."""
_HEADER = re.compile(
    r"""(?P<name>\b(?:proxy-)?authorization|\bx-api-key|\b(?:set-)?cookie)(?P<between>["']?\s*[:=]\s*["']?)"""
    r"""(?P<value>(?:(?:bearer|basic|token|digest)\s+)?[^\s"'<>,]+)""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?<=\bBearer )(?=[^\s\"'<>,]*[0-9])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_QUOTED = re.compile(r"""(?P<before>(?P<q>["'])(?P<name>[\w-]{1,80})(?P=q)\s*:\s*(?P<r>["']))(?P<value>[^"']+)(?P=r)""")
"""A pair as Python and JSON write it, as errors quote it."""
_ASSIGNED = re.compile(
    r"""(?P<before>(?:(?<![\w?&;#.-])(?P<name>[A-Za-z][\w-]{2,79})="""
    r"""|(?<![\w-])--(?P<option>[A-Za-z][\w-]{2,79})[= ])["']?)(?P<value>[^\s"'<>,;&(){}\[\]]+)"""
)
"""A pair as a shell and its commands have it: `API_KEY=…`, `--api-key …`."""


Written: TypeAlias = tuple[tuple[str, re.Pattern[str] | None], ...]
"""How secrets may stand in texts; the pattern is of those that are replaced as words only."""

_NUMBERS = frozenset({float, int, bool, type(None)})
_KEPT = frozenset({list, tuple, set, frozenset})
"""What comes back as what it was."""


def _as_word(form: str) -> re.Pattern[str] | None:
    if len(form) >= LONG_ENOUGH:
        return None
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])")


def _without(value: Any, secrets: Written, by_key: bool) -> Any:
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, str):
        return _without_in_text(value, secrets)
    if isinstance(value, Mapping):
        pairs = {
            _without(key, secrets, by_key): (
                _blotted(inner) if by_key and _names_secret(key, value) else _without(inner, secrets, by_key)
            )
            for key, inner in value.items()
        }
        return OrderedDict(pairs) if type(value) is OrderedDict else pairs
    if type(value) in _KEPT:
        return type(value)(_without(inner, secrets, by_key) for inner in value)
    return [_without(inner, secrets, by_key) for inner in value] if isinstance(value, list | tuple) else value


def _names_secret(key: Any, mapping: Mapping[Any, Any]) -> bool:
    """Whether a secret stands under a key: it says so itself, or it is `value`, beside a `name` that says so."""
    if key == "value" and isinstance(name := mapping.get("name", mapping.get("key")), str):
        return is_secret_key(name)
    return is_secret_key(str(key))


def _without_in_text(text: str, secrets: Written) -> str:
    for secret, as_word in secrets:
        if secret in text:
            text = as_word.sub(REDACTED, text) if as_word else text.replace(secret, REDACTED)
    if "://" in text and "@" in text:
        text = _USER_OF_URL.sub(REDACTED, text)
    if "=" in text and _QUERY_MARK.search(text):
        text = _QUERY.sub(_query_without, text)
    if _HEADER_MARK.search(text):
        text = _BEARER.sub(REDACTED, _HEADER.sub(rf"\g<name>\g<between>{REDACTED}", text))
    if "=" in text or "--" in text:
        text = _ASSIGNED.sub(_assigned_without, text)
    return _QUOTED.sub(_pair_without, text) if ":" in text else text


_QUERY_MARK = re.compile(r"[?&;#]")
_HEADER_MARK = re.compile(r"bearer|authorization|api-key|cookie", re.IGNORECASE)


def _is_secret_of_query(name: str) -> bool:
    return is_secret_key(unquote(name)) or unquote(name).lower() in _QUERY_NAMES


def _query_without(found: re.Match[str]) -> str:
    return f"{found[1]}={REDACTED}" if _is_secret_of_query(found[1]) else found[0]


def _pair_without(found: re.Match[str]) -> str:
    """In a text, only what a name is certain of: a table may have the columns `key` and `token`."""
    words = _words(found["name"])
    certain = words != ["token"] and _is_certain(words)
    return f"{found['before']}{REDACTED}{found['r']}" if certain else found[0]


def _assigned_without(found: re.Match[str]) -> str:
    words = _words(found["name"] or found["option"])
    certain = words != ["token"] and _is_certain(words) and found["value"] not in ("None", "True", "False")
    return f"{found['before']}{REDACTED}" if certain else found[0]


def _blotted(value: Any) -> Any:
    """What stands under a secret's name. Its shape stays, and so does what no secret is: a switch, a measure."""
    if isinstance(value, Mapping):
        return {key: _blotted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_blotted(inner) for inner in value]
    is_none = value is None or isinstance(value, bool | float) or (isinstance(value, str) and not value)
    return value if is_none else REDACTED


def _secrets_in(value: Any, named: str = "") -> Iterator[str]:
    """The secrets of a configuration; `named` is the name that they stand under, if it says so."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = str(value.get("name", value.get("key"))) if key == "value" else str(key)
            yield from _secrets_in(inner, named or (name if _names_secret(key, value) else ""))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secrets_in(inner, named)
    elif named and _blotted(value) == REDACTED:
        if _can_be_known(named, str(value)):
            yield str(value)
    elif isinstance(value, str):  # a part of a URL may be quoted without the rest
        parts = [user.partition(":")[2] for user in _USER_OF_URL.findall(value)]
        parts += [part for name, part in _QUERY.findall(value) if _is_secret_of_query(name)]
        yield from (form for part in parts for form in (part, unquote(part)))


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
