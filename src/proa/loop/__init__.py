"""Training loops: the moments in their order, around a step that the caller brings."""

from .supervised import Evaluator, Saver, SupervisedLoop

__all__ = ["Evaluator", "Saver", "SupervisedLoop"]
