"""Experiments: arms, repeats and stages of runs, recorded, compared, and resumed if they were cut off."""

from .experiment import Experiment

__all__ = ["Experiment"]
