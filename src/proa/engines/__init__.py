"""Engines: prompts and seeds in, sampled completions out, over weights that can be replaced at any time."""

from .build import build_engine, check_engine
from .hf import HFEngine
from .native import NativeEngine
from .protocol import Engine, Request

__all__ = ["Engine", "HFEngine", "NativeEngine", "Request", "build_engine", "check_engine"]
