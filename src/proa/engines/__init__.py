"""Engines: a stream of requests in, sampled tokens out, over weights that can be replaced at any time."""

from .build import build_engine, check_engine
from .generating import generate, group_requests
from .hf import HFEngine
from .native import NativeEngine
from .protocol import Engine, Progress, Request

__all__ = [
    "Engine",
    "HFEngine",
    "NativeEngine",
    "Progress",
    "Request",
    "build_engine",
    "check_engine",
    "generate",
    "group_requests",
]
