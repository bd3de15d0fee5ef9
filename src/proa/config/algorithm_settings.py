"""The settings of algorithms, `algorithm.params`: what each is, of which algorithms, and its default in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from .algorithm_outlines import OUTLINES
from .supervised_settings import SUPERVISED

PARAMS = "algorithm.params"


@dataclass(frozen=True, slots=True)
class _Words:
    type: str
    example: str
    meaning: str


_WORDS = {
    "clip_low": _Words("number, above 0, at most 1", "0.1", "a ratio below 1 - clip_low is not decreased further"),
    "clip_high": _Words("number, above 0", "0.28", "a ratio above 1 + clip_high is not increased further"),
    "kl_coefficient": _Words(
        "number, at least 0", "0.04", "weight of the KL to the model that the run starts from, in the loss"
    ),
    "kl_estimator": _Words("k1 | k2 | k3", "k1", "how that KL is estimated"),
    "entropy_coefficient": _Words("number, at least 0", "0.01", "weight of an entropy bonus in the loss"),
    "overlong_buffer": _Words(
        "whole number, at least 0", "64", "last tokens before the limit over which the reward falls by up to 1"
    ),
    "value_coefficient": _Words("number, at least 0", "1.0", "weight of the critic's loss beside the policy's"),
    "bootstrap_truncated": _Words(
        "true or false", "true", "add the critic's value after a completion that was cut off at the limit"
    ),
    "kl_reward_coefficient": _Words("number, at least 0", "0.05", "cost in reward of a unit of that KL"),
    "gamma": _Words("number, at least 0, at most 1", "0.99", "discount of a later reward"),
    "lam": _Words(
        "number, at least 0, at most 1", "1.0", "of GAE: 0 relies on the critic for all that follows, 1 not at all"
    ),
    "value_clip": _Words("number, above 0", "0.1", "how far a value may move towards its return"),
    "whiten": _Words("true or false", "false", "normalise advantages over the tokens of the batch"),
    "kl_target": _Words("number, above 0", "6.0", "KL of a completion to aim for by adapting kl_reward_coefficient"),
    "kl_horizon": _Words("number, above 0", "5000", "samples off the target that change it by a fifth at most"),
    "answer_column": _Words("text", "solution", "the column to learn beside prompt"),
    "train_on_prompt": _Words("true or false", "true", "learn the prompts too"),
    "every_answer": _Words("true or false", "true", "learn all of the assistant's messages, not the last alone"),
    "packing": _Words("true or false", "true", "several rows in one sequence, without padding"),
    "max_length": _Words("whole number, at least 1", "2048", "the longest sequence; by default the model's context"),
    "beta": _Words("number, above 0", "0.05", "how close to stay to the model that the run starts from"),
    "loss": _Words("sigmoid | ipo", "ipo", "the loss of a pair"),
    "label_smoothing": _Words("number, at least 0, below 0.5", "0.1", "share of pairs taken to be labelled wrongly"),
    "reference_free": _Words("true or false", "true", "compare with a uniform model instead of the first one"),
}


@dataclass(frozen=True, slots=True)
class AlgorithmSetting:
    """One key of `algorithm.params`, and its default by algorithm."""

    name: str
    type: str
    example: str
    meaning: str
    defaults: Mapping[str, Any]

    @property
    def default(self) -> Any:
        """That of most algorithms."""
        return Counter(self.defaults.values()).most_common(1)[0][0]

    @property
    def of(self) -> str:
        """Which algorithms have it, unless all that generate do; or which have another default."""
        if OUTLINES.keys() != self.defaults.keys():
            return f"of {', '.join(self.defaults)}"
        return ", ".join(f"{name} {value}" for name, value in self.defaults.items() if value != self.default)


def algorithm_settings() -> list[AlgorithmSetting]:
    """Those of all algorithms that come with Proa.

    >>> algorithm_settings()[0].of
    'gspo 0.0003, cispo 1.0'
    """
    by_algorithm: dict[str, Mapping[str, Any]] = {name: outline.settings for name, outline in OUTLINES.items()}
    for name, kind in SUPERVISED.items():
        by_algorithm[name] = {one.name: None if one.default is MISSING else one.default for one in fields(kind)}
    return [
        AlgorithmSetting(
            name, words.type, words.example, words.meaning,
            {algorithm: found[name] for algorithm, found in by_algorithm.items() if name in found},
        )
        for name, words in _WORDS.items()
    ]  # fmt: skip
