"""Callbacks that come with Proa, and the registry that builds them from `{kind, params}`."""

from .console import ConsoleProgress
from .early_stopping import EarlyStopping
from .metric_files import CsvMetrics, JsonlMetrics
from .performance import ExperienceMakerPerformanceEvaluator, TrainerPerformanceEvaluator
from .registry import build_callback, callback_kinds, register_callback
from .tracer import EventTracer

__all__ = [
    "ConsoleProgress", "CsvMetrics", "EarlyStopping", "EventTracer", "ExperienceMakerPerformanceEvaluator",
    "JsonlMetrics", "TrainerPerformanceEvaluator", "build_callback", "callback_kinds", "register_callback",
]  # fmt: skip
