"""Removes secrets from everything a run writes. A secret is known by the name of its key or by its value.

By key: the value under a name such as `api_key`, also within text, in a URL's query, a header or quoted JSON. By value,
anywhere in text: the values of such keys in the run's configuration, of environment variables with such names, and the
user part of URLs. The environment itself is never recorded.

Text for people to read is redacted. The state in a checkpoint is not: a callback gets back exactly what it saved.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import quote, unquote

from ..errors import SettingError

Value = TypeVar("Value")

REDACTED = "REDACTED"
MIN_ENVIRONMENT_LENGTH = 8
MIN_CONFIG_LENGTH = 6
"""Shorter values are known by their key only: in text they might be part of an ordinary word."""
MIN_SUBSTRING_LENGTH = 12
"""Shorter values are replaced as whole words only: within a digest or an id they occur by chance."""


class Redactor:
    """Removes secrets from values that are about to be written. Thread-safe.

    >>> redactor = Redactor(environment={})
    >>> redactor.remember({"params": {"api_key": "k-12345678"}})
    >>> redactor.redact({"params": {"api_key": "k-12345678"}, "error": "401 for k-12345678", "eos_token": "</s>"})
    {'params': {'api_key': 'REDACTED'}, 'error': '401 for REDACTED', 'eos_token': '</s>'}
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._guard = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._forms_known: Forms = ()
        """All forms of all known secrets, the longest first. Replaced as a whole, never changed."""

    def remember(self, config: Mapping[str, Any]) -> None:
        """Remember a configuration's secrets, so that they are known by value from now on."""
        self._add(value for value in _find_secrets(config) if len(value) >= MIN_CONFIG_LENGTH)

    def redact(self, value: Value) -> Value:
        """A copy of the value without secrets, known by key or by value."""
        return cast("Value", _redacted(value, self._current(), by_key=True))

    def redact_metrics(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The same for metrics, whose numbers stay under any name: a count may be called `pass`."""
        if all(type(value) in _NUMBERS for value in row.values()):
            # As steps write them: numbers cannot quote an environment variable, so these are not searched.
            return {_redact_text(name, self._forms_known): value for name, value in row.items()}
        clean = self.redact({name: value for name, value in row.items() if type(value) not in _NUMBERS})
        names = {name: _redact_text(name, self._forms_known) for name in row}
        return {names[name]: clean.get(names[name], value) for name, value in row.items()}

    def redact_values(self, value: Value) -> Value:
        """A copy without secrets known by value: for data, where a key `token` means something else."""
        return cast("Value", _redacted(value, self._current(), by_key=False))

    def _current(self) -> Forms:
        # Read each time: a login during the run may set a variable.
        named = ((name, self._environment.get(name, "")) for name in self._environment if is_secret_key(name))
        values = {
            value for name, value in named if len(value) >= MIN_ENVIRONMENT_LENGTH and _is_searchable(name, value)
        }
        if not values <= self._known:
            self._add(values)
        return self._forms_known

    def _add(self, values: Iterable[str]) -> None:
        with self._guard:
            self._known = self._known.union(values)
            forms = {form for value in self._known for form in _forms(value)}
            self._forms_known = tuple(
                (
                    form,
                    None
                    if len(form) >= MIN_SUBSTRING_LENGTH
                    else re.compile(rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"),
                )
                for form in sorted(forms, key=len, reverse=True)
            )


_process_redactor = Redactor()
remember = _process_redactor.remember
redact = _process_redactor.redact
redact_metrics = _process_redactor.redact_metrics
redact_values = _process_redactor.redact_values


def expand_environment(key: str, value: str) -> str:
    """A setting with the values of the environment variables that it refers to, as `${NAME}`; `key` is its name.

    >>> os.environ["CHAT_HOST"] = "chat.example.com"
    >>> expand_environment("address", "https://${CHAT_HOST}/hooks")
    'https://chat.example.com/hooks'
    """

    def find(reference: re.Match[str]) -> str:
        found = os.environ.get(reference[1])
        if not found:
            raise SettingError(f"{key} refers to the environment variable {reference[1]}, which is not set")
        return found

    if not isinstance(value, str):
        raise SettingError(f"{key} must be text, not {type(value).__name__}")
    return _REFERENCE.sub(find, value)


def redacted_keys(config: Mapping[str, Any]) -> list[str]:
    """The dotted paths of redacted values in a configuration, which must be given again to resume.

    >>> redacted_keys({"callbacks": [{"kind": "chat", "params": {"token": "REDACTED", "room": "runs"}}]})
    ['callbacks.0.params.token']
    """
    return [path for path, value in _leaves(config) if isinstance(value, str) and REDACTED in value]


@lru_cache(maxsize=4096)
def is_secret_key(name: str) -> bool:
    """Whether a name says that its value is a secret.

    >>> [is_secret_key(name) for name in ("HF_TOKEN", "x-api-key", "clientSecret", "wandb_key", "db_pass", "key")]
    [True, True, True, True, True, True]
    >>> [is_secret_key(name) for name in ("max_new_tokens", "eos_token", "key_column", "sort_key", "PWD")]
    [False, False, False, False, False]
    """
    words = _words(name)
    return _certainly_secret(words) or _probably_secret(words, name)


def _words(name: str) -> list[str]:
    """The words of a name, without a number or a format at its end: `OPENAI_API_KEY_2`, `SECRET_BASE64`."""
    words = [word.lower() for word in _WORD.findall(_NUMBER_SUFFIX.sub("", name))]
    *rest, last = words or [""]
    return (
        rest if last in _FORMATS and rest != ["token"] and (_certainly_secret(rest) or rest[-1:] == ["auth"]) else words
    )


def _certainly_secret(words: list[str]) -> bool:
    if not words:
        return False
    if words[-1] == "token":
        return len(words) == 1 or words[-2] not in _TEXT_TOKENS
    joined = "".join(words)
    return words[-1] in _NAMES or joined.endswith(_ENDINGS) or joined.removesuffix("s").endswith(_ENDINGS)


def _probably_secret(words: list[str], name: str) -> bool:
    """Whether a name usually means a secret, and sometimes a column or an index."""
    last, before = (words[-1], words[-2] if len(words) > 1 else "") if words else ("", "")
    if last == "pwd":
        return name != "PWD"  # the shell's working directory
    return last in _PROBABLE and before not in _PROBABLE[last]


def _is_searchable(name: str, value: str) -> bool:
    """Whether a secret's value can be searched for in text: it is not an ordinary word there."""
    if value in _RECORD_WORDS:
        return False
    return _certainly_secret(_words(name)) or not _IDENTIFIER.fullmatch(value)


_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A reference to an environment variable, which is not a secret itself."""
_ONLY_REFERENCES = re.compile(rf"(?:(?:Bearer|Basic|Token)\s+)?(?:{_REFERENCE.pattern})+", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NUMBER_SUFFIX = re.compile(r"(?<!@)[_-]?[0-9]+$")
_IDENTIFIER = re.compile(r"[A-Za-z_]{1,15}")
"""The name of a column: `key: question` hides the value there, not the word `question` in every text."""
_FORMATS = frozenset({"b64", "base64", "header", "headers", "hex", "json", "pem", "plain", "plaintext", "value"})
"""Formats that may follow a secret's name."""
_NAMES = frozenset(
    {
        "authorization", "bearer", "cookie", "cookies", "cred", "credential", "credentials", "creds", "dsn", "jwt",
        "oauth", "otp", "secret", "secrets", "totp", "webhook", "webhooks",
    }
)  # fmt: skip
"""Last words of a secret's name, besides token."""
_ENDINGS = (
    "password", "passwd", "passcode", "passphrase", "connectionstring", "webhookurl", "accesskeyid",
    *(f"{kind}key" for kind in ("api", "access", "secret", "private", "encryption", "signing", "auth", "account")),
    *(f"{kind}token" for kind in ("api", "access", "auth", "bearer", "refresh", "session")),
    *(f"{kind}pass" for kind in ("admin", "db", "database", "mysql", "pg", "root", "smtp", "ssh", "user")),
    *(f"{kind}pat" for kind in ("github", "gh", "gitlab", "azure")),
)  # fmt: skip
"""Endings of a secret's name, however its words are joined, also in the plural."""
_PROBABLE = {
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
"""Probable last words of a secret's name, each with words before it that give it another meaning."""
_RECORD_WORDS = frozenset(
    {
        "adapter", "bfloat16", "cancelled", "checkpoint", "checkpoints", "completed", "completion", "default",
        "disabled", "enabled", "experiment", "failed", "float32", "in_order", "interrupted", "metrics", "native",
        "optimizer", "policy", "prompt", "required", "reward", "running", "stopped", "trainer", "unknown", "windowed",
    }
)  # fmt: skip
"""Words that records contain: they are not secrets, and without them a record could not be read."""
_TEXT_TOKENS = frozenset(
    {
        "answer", "assistant", "audio", "begin", "blank", "boi", "bos", "class", "cls", "completion", "count",
        "delimiter", "draft", "each", "end", "eod", "eoi", "eop", "eos", "eot", "every", "first", "generated", "image",
        "input", "language", "last", "mask", "max", "middle", "min", "n", "new", "newline", "next", "num", "output",
        "pad", "padding", "patch", "per", "prefix", "previous", "prompt", "reasoning", "response", "reward", "sampled",
        "sep", "separator", "special", "start", "step", "stop", "suffix", "target", "think", "thinking", "timestamp",
        "tool", "total", "unk", "video", "vision",
    }
)  # fmt: skip
"""Words before `token` where it means a piece of text: `eos_token`, `loss_per_token`."""
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+(.+)", re.IGNORECASE | re.DOTALL)
_URL_USER = re.compile(r"(?<=://)[^/?#\s\"'<>]+(?=@)")
_QUERY = re.compile(r"(?<=[?&;#])([^=?&;#\s\"'<>]{1,80})=([^&;#\s\"'<>]+)")
_QUERY_NAMES = frozenset({"sig", "signature", "x-amz-credential", "x-amz-signature", "x-goog-signature"})
"""Names in a URL's query that are secrets there only."""
_HEADER = re.compile(
    r"""(?P<name>\b(?:proxy-)?authorization|\bx-api-key|\b(?:set-)?cookie)(?P<between>["']?\s*[:=]\s*["']?)"""
    r"""(?P<value>(?:(?:bearer|basic|token|digest)\s+)?[^\s"'<>,]+)""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?<=\bBearer )(?=[^\s\"'<>,]*[0-9])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_QUOTED = re.compile(r"""(?P<before>(?P<q>["'])(?P<name>[\w-]{1,80})(?P=q)\s*:\s*(?P<r>["']))(?P<value>[^"']+)(?P=r)""")
"""A pair as in Python and JSON, which errors quote."""
_ASSIGNED = re.compile(
    r"""(?P<before>(?:(?<![\w?&;#.-])(?P<name>[A-Za-z][\w-]{2,79})="""
    r"""|(?<![\w-])--(?P<option>[A-Za-z][\w-]{2,79})[= ])["']?)(?P<value>[^\s"'<>,;&(){}\[\]]+)"""
)
"""A pair as in a shell: `API_KEY=…`, `--api-key …`."""


Forms: TypeAlias = tuple[tuple[str, re.Pattern[str] | None], ...]
"""Forms of secrets in text; those with a pattern are replaced as whole words only."""

_NUMBERS = frozenset({float, int, bool, type(None)})
_CONTAINERS = frozenset({list, tuple, set, frozenset})
"""Types that are kept."""


def _redacted(value: Any, secrets: Forms, by_key: bool) -> Any:
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, str):
        return _redact_text(value, secrets)
    if isinstance(value, Mapping):
        pairs = {
            _redacted(key, secrets, by_key): (
                _masked(inner) if by_key and _names_secret(key, value) else _redacted(inner, secrets, by_key)
            )
            for key, inner in value.items()
        }
        return OrderedDict(pairs) if type(value) is OrderedDict else pairs
    if type(value) in _CONTAINERS:
        return type(value)(_redacted(inner, secrets, by_key) for inner in value)
    return [_redacted(inner, secrets, by_key) for inner in value] if isinstance(value, list | tuple) else value


def _names_secret(key: object, mapping: Mapping[Any, Any]) -> bool:
    """Whether the value of a key is a secret: by the key, or for `value` by the `name` beside it."""
    if key == "value" and isinstance(name := mapping.get("name", mapping.get("key")), str):
        return is_secret_key(name)
    if key == "headers" and isinstance(mapping[key], Mapping):  # of HTTP requests: any of them may hold a secret
        return True
    return is_secret_key(str(key))


def _redact_text(text: str, secrets: Forms) -> str:
    for secret, word in secrets:
        if secret in text:
            text = word.sub(REDACTED, text) if word else text.replace(secret, REDACTED)
    if "://" in text and "@" in text:
        text = _URL_USER.sub(REDACTED, text)
    if "=" in text and _QUERY_MARK.search(text):
        text = _QUERY.sub(_redact_query, text)
    if _HEADER_MARK.search(text):
        text = _BEARER.sub(REDACTED, _HEADER.sub(rf"\g<name>\g<between>{REDACTED}", text))
    if "=" in text or "--" in text:
        text = _ASSIGNED.sub(_redact_assignment, text)
    return _QUOTED.sub(_redact_pair, text) if ":" in text else text


_QUERY_MARK = re.compile(r"[?&;#]")
_HEADER_MARK = re.compile(r"bearer|authorization|api-key|cookie", re.IGNORECASE)


def _is_query_secret(name: str) -> bool:
    return is_secret_key(unquote(name)) or unquote(name).lower() in _QUERY_NAMES


def _redact_query(found: re.Match[str]) -> str:
    return f"{found[1]}={REDACTED}" if _is_query_secret(found[1]) else found[0]


def _redact_pair(found: re.Match[str]) -> str:
    """In text only certain names count: a table may have the columns `key` and `token`."""
    words = _words(found["name"])
    certain = words != ["token"] and _certainly_secret(words)
    return f"{found['before']}{REDACTED}{found['r']}" if certain else found[0]


def _redact_assignment(found: re.Match[str]) -> str:
    words = _words(found["name"] or found["option"])
    certain = words != ["token"] and _certainly_secret(words) and found["value"] not in ("None", "True", "False")
    return f"{found['before']}{REDACTED}" if certain else found[0]


def _masked(value: object) -> object:
    """The masked value of a secret key. Its structure stays, and so do switches, numbers, empty text and references to
    environment variables."""
    if isinstance(value, Mapping):
        return {key: _masked(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(inner) for inner in value]
    is_harmless = value is None or isinstance(value, bool | float)
    if isinstance(value, str):
        is_harmless = not value or _ONLY_REFERENCES.fullmatch(value) is not None
    return value if is_harmless else REDACTED


def _find_secrets(value: object, named: str = "") -> Iterator[str]:
    """The secrets of a configuration; `named` is the secret key that a value is under, if any."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = str(value.get("name", value.get("key"))) if key == "value" else str(key)
            yield from _find_secrets(inner, named or (name if _names_secret(key, value) else ""))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _find_secrets(inner, named)
    elif named and _masked(value) == REDACTED:
        if _is_searchable(named, str(value)):
            yield str(value)
    elif isinstance(value, str):  # an error may quote a part of a URL alone
        parts = [user.partition(":")[2] for user in _URL_USER.findall(value)]
        parts += [part for name, part in _QUERY.findall(value) if _is_query_secret(name)]
        yield from (form for part in parts for form in (part, unquote(part)))


def _forms(secret: str) -> set[str]:
    """A secret as it may occur in text: itself, without its scheme, escaped as in a literal, in JSON or in a URL."""
    plain = {secret, secret.strip()}
    if scheme := _SCHEME.fullmatch(secret.strip()):
        plain.add(scheme[1])
    forms = plain.union(
        *((repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, safe="", errors="surrogateescape")) for text in plain)
    )
    return {form for form in forms if len(form) >= MIN_CONFIG_LENGTH and form not in REDACTED}


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    inner: Iterable[tuple[object, object]]
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        yield path, value
        return
    for key, one in inner:
        yield from _leaves(one, f"{path}.{key}" if path else str(key))
