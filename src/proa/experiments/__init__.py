"""Experiments: arms, repeats and stages of runs, each recorded, compared, and gone on with if it was cut off."""

from .experiment import Experiment

__all__ = ["Experiment"]
