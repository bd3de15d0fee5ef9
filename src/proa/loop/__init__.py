"""Training loops: the moments in their order, around a step that the caller brings."""

from .after_step import AfterStep
from .evaluators import Evaluator, ScoreFunction, Scoring
from .savers import Resumed, SaveFunction, Saver
from .supervised import SupervisedLoop

__all__ = [
    "AfterStep", "Evaluator", "Resumed", "SaveFunction", "Saver", "ScoreFunction", "Scoring", "SupervisedLoop",
]  # fmt: skip
