"""Engines: a stream of requests in, sampled tokens out, with weights that can be replaced at any time."""

from .build import ENGINES, EngineFactory, build_engine, check_engine, make_engine
from .description import ModelDescription
from .generating import generate, group_requests
from .hf import HFEngine
from .native import NativeEngine
from .protocol import Engine, EngineBusyError, Progress, Request, is_engine
from .stop_strings import StopStrings

__all__ = [
    "ENGINES", "Engine", "EngineBusyError", "EngineFactory", "HFEngine", "ModelDescription", "NativeEngine", "Progress",
    "Request", "StopStrings", "build_engine", "check_engine", "generate", "group_requests", "is_engine", "make_engine",
]  # fmt: skip
