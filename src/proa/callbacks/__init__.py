"""Callbacks that come with Proa, and the registry that builds them from `{kind, params}`."""

from .console import ConsoleProgress
from .early_stopping import EarlyStopping
from .gradient_norms import GradientNorms
from .metric_files import CsvMetrics, JsonlMetrics
from .performance import ExperienceMakerPerformanceEvaluator, TrainerPerformanceEvaluator
from .registry import build_callback, callback_kinds, check_callback, register_callback
from .tensorboard import TensorBoardLogger
from .tracer import EventTracer
from .trackio import TrackioLogger
from .upload import CheckpointUpload
from .wandb import WandbLogger
from .webhook import WebhookNotifier

__all__ = [
    "CheckpointUpload", "ConsoleProgress", "CsvMetrics", "EarlyStopping", "EventTracer",
    "ExperienceMakerPerformanceEvaluator", "GradientNorms",
    "JsonlMetrics", "TensorBoardLogger", "TrackioLogger", "TrainerPerformanceEvaluator", "WandbLogger",
    "WebhookNotifier",
    "build_callback", "callback_kinds", "check_callback", "register_callback",
]  # fmt: skip
