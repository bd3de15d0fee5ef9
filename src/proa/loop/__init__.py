"""Training loops: the moments in their order, around a step that the caller brings."""

from .after_step import AfterStep, Evaluator, Resumed, Saver
from .supervised import SupervisedLoop

__all__ = ["AfterStep", "Evaluator", "Resumed", "Saver", "SupervisedLoop"]
