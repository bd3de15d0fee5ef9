"""What the model wrote: samples that were trained on, token by token, and the predictions of evals. All untrusted."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.messages import in_words, is_conversation, turns_of
from ..record.evals import NOT_FINITE
from .lines import lines_in, objects_in
from .metrics import number_in
from .text import clipped

MOST_CHARACTERS = 2_000
"""Of one text."""
MOST_PREDICTIONS = 10_000
MOST_PREDICTION_CHARACTERS = 8_000_000
"""Of all predictions on a page."""
MOST_SAMPLE_TOKENS = 60_000
"""Of all samples on a page of an experiment, about: a run that reaches it is the last with samples."""
MOST_TOKENS = 400
"""Of one sample."""
ROWS_LOOKED_AT = 512
"""Of the samples of one step."""


@dataclass(frozen=True, slots=True)
class Samples:
    """How many samples of a run are shown: of so many steps, so many each."""

    steps: int
    of_a_step: int


SAMPLES = Samples(steps=6, of_a_step=8)
SAMPLES_OF_A_REPEAT = Samples(steps=3, of_a_step=3)
"""Of a run whose arm has another that is shown in full."""
NO_SAMPLES = Samples(steps=0, of_a_step=0)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled completion. The lists have one entry for each of its first tokens; None is not known."""

    step: int
    """Steps done before it was trained on."""
    prompt: str
    turns: list[tuple[str, str]]
    """Of the conversation that the prompt was made of; none if it was text."""
    rendered: str
    """The prompt with its special tokens; empty where it has none."""
    completion: str
    reward: Any
    reward_parts: dict[str, Any]
    reward_logged: dict[str, Any]
    finish_reason: str
    tokens: list[str]
    advantages: list[float | None]
    mismatches: list[float | None]
    """The trainer's log-probability less the sampler's."""
    sampler: list[float | None]
    versions: list[Any]
    given: list[bool]
    """Whether an environment wrote the token; empty where there was none."""
    all_tokens: int
    group: str
    trajectory: dict[str, Any] = field(default_factory=dict)
    """How a conversation with an environment went; of several rows, the last has it, with all turns."""


@dataclass(slots=True)
class Predictions:
    """The rows of one eval of one run, or the first of them."""

    run: str
    name: str
    when: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    of: int = 0


def read_rollouts(folder: Path, most: Samples = SAMPLES) -> tuple[list[Rollout], int]:
    """Samples of a few steps, spread over the run, the first and the last among them; and how many steps there are."""
    files = sorted((number, path) for path in folder.glob("step_*.jsonl") if (number := _number_of(path)) is not None)
    chosen = _spread(files, most.steps)
    rollouts: list[Rollout] = []
    for _, path in chosen:
        rows = list(itertools.islice(objects_in(path), ROWS_LOOKED_AT))
        rollouts += [_rollout(row) for row in _spread(rows, most.of_a_step)]
    return rollouts, len(files)


def read_predictions(folder: Path, run: str, budget: Budget) -> list[Predictions]:
    """The last rows of each eval, as far as the page has room for them."""
    found = []
    for evals in sorted(path for path in folder.glob("*") if path.is_dir() and not path.is_symlink()):
        path = _latest(evals)
        if path is None:
            continue
        of = lines_in(path)
        predictions = Predictions(run, evals.name, _when(path), of=of)
        for row in objects_in(path):
            kept = _prediction(row)
            if not budget.takes(kept):
                break
            predictions.rows.append(kept)
        found.append(predictions)
    return found


@dataclass(slots=True)
class Budget:
    """How much of what the model wrote a page may hold, shared by so many runs."""

    rows: int = MOST_PREDICTIONS
    characters: int = MOST_PREDICTION_CHARACTERS
    share: int = 1

    def one_share(self) -> Budget:
        """What one of the runs that are still to come may have; those after it have the rest."""
        shares = max(1, self.share)
        part = Budget(self.rows // shares, self.characters // shares)
        self.rows, self.characters, self.share = self.rows - part.rows, self.characters - part.characters, shares - 1
        return part

    def takes(self, row: dict[str, Any]) -> bool:
        size = sum(len(value) for value in row.values() if isinstance(value, str))
        if self.rows < 1 or self.characters < size:
            self.rows = 0  # what comes later would leave a hole
            return False
        self.rows -= 1
        self.characters -= size
        return True


def _prediction(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its texts clipped; its columns, and what its function logged, stand beside the rest."""
    inner = [found for key in ("columns", "logged") if isinstance(found := row.get(key), dict)]
    flat: dict[str, Any] = {}
    for one in (*inner, {key: value for key, value in row.items() if key not in ("columns", "logged")}):
        flat |= one
    kept: dict[str, Any] = {}
    for key, value in flat.items():
        if value is None or key == NOT_FINITE:
            continue
        is_plain = isinstance(value, int | float | bool)
        kept[clipped(str(key), 60)] = value if is_plain else clipped(in_words(value), MOST_CHARACTERS)
    return kept


def _rollout(row: dict[str, Any]) -> Rollout:
    tokens = [str(token) for token in _list(row.get("tokens"))]
    shown = tokens[:MOST_TOKENS]
    sampler, trainer = (_numbers(row.get(key), len(shown)) for key in ("log_probs", "trainer_log_probs"))
    step = row.get("step")
    parts, logged = row.get("reward_parts"), row.get("reward_logged")
    return Rollout(
        step=step if isinstance(step, int) else 0,
        prompt=clipped(in_words(row.get("prompt", "")), MOST_CHARACTERS),
        turns=[(clipped(role, 40), clipped(text, MOST_CHARACTERS)) for role, text in _turns(row.get("messages"))],
        rendered=clipped(str(row.get("rendered") or ""), MOST_CHARACTERS),
        completion=clipped(in_words(row.get("completion", "")), MOST_CHARACTERS),
        reward=row.get("reward"),
        reward_parts=parts if isinstance(parts, dict) else {},
        reward_logged={
            name: clipped(value, 100) if isinstance(value, str) else value
            for name, value in (logged if isinstance(logged, dict) else {}).items()
        },
        finish_reason=str(row.get("finish_reason") or ""),
        tokens=[clipped(token, 100) for token in shown],
        advantages=_numbers(row.get("advantages"), len(shown)),
        mismatches=[_difference(ours, theirs) for ours, theirs in zip(trainer, sampler, strict=True)],
        sampler=sampler,
        versions=(_list(row.get("versions")) + [None] * len(shown))[: len(shown)],
        given=[value == 0 for value in _list(row.get("sampled"))[: len(shown)]],
        all_tokens=len(tokens),
        group=str(row.get("group_id", "")),
        trajectory=trajectory if isinstance(trajectory := row.get("trajectory"), dict) else {},
    )


def _turns(messages: Any) -> list[tuple[str, str]]:
    return turns_of(messages) if is_conversation(messages) else []


def _difference(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs


def _numbers(said: Any, length: int) -> list[float | None]:
    return ([number_in(value) for value in _list(said)] + [None] * length)[:length]


def _list(said: Any) -> list[Any]:
    return said if isinstance(said, list) else []


def _spread(items: list[Any], most: int) -> list[Any]:
    """So many of them, evenly spread, the first and the last included.

    >>> _spread(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= most:
        return items
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def _latest(folder: Path) -> Path | None:
    """The file after training, or that of the most steps."""
    final = folder / "final.jsonl"
    if final.is_file():
        return final
    files = [(number, path) for path in folder.glob("step_*.jsonl") if (number := _number_of(path)) is not None]
    return max(files)[1] if files else None


def _when(path: Path) -> str:
    number = _number_of(path)
    return "after training" if number is None else f"after {number:,} steps"


def _number_of(path: Path) -> int | None:
    found = re.fullmatch(r"step_(\d{1,15})", path.stem)
    return int(found[1]) if found else None
