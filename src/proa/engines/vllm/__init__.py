"""vLLM as an engine, in the process of the maker. It is imported when an engine is made, not before."""

from .engine import VLLMEngine

__all__ = ["VLLMEngine"]
