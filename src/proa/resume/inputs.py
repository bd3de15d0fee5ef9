"""Digests of a run's inputs beside its configuration: its data as tokens, tokenizer, rewards, models.

A checkpoint holds those of its run, and a resumed run must have the same: an edited file or function would otherwise
change the weights unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config import ConfigError

MOST_DIGESTS = 1024
"""The most digests of rows; with more rows, each digest is of several adjacent ones, so that checkpoints stay small."""


class ChangedInputsError(ConfigError):
    """A run cannot continue with other data, rewards or models than it had."""


@dataclass(frozen=True)
class Rows:
    """Digests of rows in their order, one for every `together` rows."""

    count: int = 0
    together: int = 1
    tokens: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tokens: Iterable[Any], columns: Iterable[Any], count: int) -> Rows:
        """Digests of `count` rows: of the tokens that the model reads, and of the columns that rewards get."""
        together = max(1, -(-count // MOST_DIGESTS))
        return cls(count, together, _digests(tokens, together), _digests(columns, together))

    def differences(self, now: Rows) -> list[str]:
        """The differences in words: the number of rows, and the first that changed."""
        found = [] if self.count == now.count else [f"the data had {self.count} rows and has {now.count}"]
        if self.together != now.together:
            return found
        pairs = {"what the model reads": (self.tokens, now.tokens), "its columns": (self.columns, now.columns)}
        for part, (before, after) in pairs.items():
            places = [place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
            if places:
                first, last = places[0] * self.together, min(places[0] * self.together + self.together, now.count) - 1
                rows = f"row {first}" if first == last else f"one of the rows {first} to {last}"
                found.append(f"{rows} changed ({part})")
        return found


@dataclass(frozen=True)
class Inputs:
    """Digests of all inputs of a run; empty where there is no input, or no digest of it."""

    rows: Rows = Rows()
    tokenizer: str = ""
    architecture: dict[str, Any] = field(default_factory=dict)
    """The model's configuration."""
    rewards: dict[str, str] = field(default_factory=dict)
    """By name."""
    reward_model: str = ""
    end_ids: list[int] = field(default_factory=list)
    """Tokens that end a completion; the model's folder may name more than the tokenizer's."""
    hooks: dict[str, str] = field(default_factory=dict)
    """Hooks that may change rewards and masks, by name."""
    algorithm: str = ""
    """The class of a user's own algorithm."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Inputs:
        """Restore saved digests; unknown entries are ignored, and missing ones empty."""
        known = {one.name: saved[one.name] for one in fields(cls) if one.name in saved}
        return cls(**known | {"rows": Rows(**known.get("rows", {}))})

    def differences(self, now: Inputs) -> list[str]:
        """The differences from the present inputs, in words."""
        found = self.rows.differences(now.rows)
        if self.tokenizer and now.tokenizer and self.tokenizer != now.tokenizer:
            found.append("the tokenizer has changed (its files, or its chat template)")
        for change in _configuration_differences(_computed(self.architecture), _computed(now.architecture)):
            found.append(f"the model's configuration: {change}")
        for name in sorted(self.rewards.keys() & now.rewards.keys()):
            if _differ(self.rewards[name], now.rewards[name]):
                found.append(f"the reward {name} has changed (it, or what it calls, was edited)")
        if self.end_ids and now.end_ids and self.end_ids != now.end_ids:
            found.append(f"what ends a completion was {self.end_ids} and is {now.end_ids} (generation_config.json)")
        for name in sorted(self.hooks.keys() | now.hooks.keys()):
            found += _hook_differs(name, self.hooks.get(name), now.hooks.get(name))
        if self.algorithm and now.algorithm and _differ(self.algorithm, now.algorithm):
            found.append("the algorithm has changed (its class, or what it calls, was edited)")
        if self.reward_model and now.reward_model and self.reward_model != now.reward_model:
            found.append("the reward model has other weights than it had")
        return found

    def refuse_differences(self, now: Inputs) -> None:
        if found := self.differences(now):
            raise ChangedInputsError(
                f"this run cannot continue with other inputs than it had: {'; '.join(found)}. Put back what was there, "
                f"or start a new run whose model.path is one of its checkpoints. To continue nevertheless, as a "
                f"run that nobody can repeat: --allow-changes, or allow_changes=True in Python"
            )


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of everything that turns text into tokens and back."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content: Any = json.loads(backend.to_str())
        for used in ("truncation", "padding"):  # state left by the last call
            content.pop(used, None)
    else:
        content = sorted(tokenizer.get_vocab().items())
    ends = [tokenizer.bos_token_id, tokenizer.eos_token_id]
    return _digest([content, getattr(tokenizer, "chat_template", None), ends])


def model_architecture(model: PreTrainedModel) -> dict[str, Any]:
    """The part of a model's configuration that affects its results."""
    content: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return _computed(content)


def _computed(configuration: dict[str, Any]) -> dict[str, Any]:
    """A configuration without keys that do not affect the results, also inside parts such as `text_config`."""
    return {
        key: _computed(value) if isinstance(value, dict) else value
        for key, value in configuration.items()
        if key not in _NOT_COMPUTED
    }


def _configuration_differences(before: dict[str, Any], now: dict[str, Any], inside: str = "") -> list[str]:
    """Differences in keys that both have, as a newer version of transformers may add keys."""
    found: list[str] = []
    for key in sorted(before.keys() & now.keys()):
        one, other = before[key], now[key]
        if isinstance(one, dict) and isinstance(other, dict):
            found += _configuration_differences(one, other, f"{inside}{key}.")
        elif one != other:
            found.append(f"{inside}{key} was {one!r} and is {other!r}")
    return found


_NOT_COMPUTED = {
    "_name_or_path", "architectures", "dtype", "id2label", "label2id", "num_labels", "pad_token_id", "problem_type",
    "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip


def row_tokens(tokens_of: Callable[[int], Any], rows: Sequence[Any], most: int) -> Iterable[Any]:
    """The tokens of each of the first `most` rows, and the rows themselves after that."""
    return (tokens_of(place) if place < most else row for place, row in enumerate(rows))


def _digests(values: Iterable[Any], together: int) -> list[str]:
    found, part, size = [], hashlib.blake2b(digest_size=8), 0
    for value in values:
        part.update(_as_text(value).encode("utf-8", "surrogatepass"))
        size += 1
        if size == together:
            found.append(part.hexdigest())
            part, size = hashlib.blake2b(digest_size=8), 0
    return [*found, part.hexdigest()] if size else found


def _digest(content: Any) -> str:
    return hashlib.blake2b(_as_text(content).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, default=_plain, sort_keys=True, ensure_ascii=False) + "\n"
    except TypeError:  # keys that JSON does not have, or that have no order among them
        return json.dumps(_stringify_keys(value), default=_plain, sort_keys=True, ensure_ascii=False) + "\n"


def _stringify_keys(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        value = _plain(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): _stringify_keys(inner) for key, inner in value.items()}
    return [_stringify_keys(inner) for inner in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    """A stand-in for a value that JSON lacks, the same in every process, unlike an object's address."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, set | frozenset):
        return sorted(map(_as_text, value))
    return repr(value) if isinstance(value, _SAME_EVERYWHERE) else type(value).__qualname__


_SAME_EVERYWHERE = (bytes, complex, date, time, timedelta, Decimal, Fraction, UUID, PurePath, Enum, range)
"""Types whose `repr` is the same in every process."""


def _hook_differs(name: str, before: str | None, now: str | None) -> list[str]:
    if before is None or now is None:
        there = "was there and is not" if now is None else "was not there and is now"
        return [f"the hook {name}, which is shown experience and may change it, {there}"]
    return [f"the hook {name}, which may change experience, has changed"] if _differ(before, now) else []


def _differ(before: str, now: str) -> bool:
    """Whether two digests of the same kind differ."""
    return before.partition(":")[0] == now.partition(":")[0] and before != now
