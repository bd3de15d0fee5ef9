"""A vLLM server that runs already, as an engine: tokens and weights go to it over HTTP and files.

engine.py     the engine: requests, weights, and what happens when the server is gone for a while
client.py     the server's HTTP interface, and a request that streams
checks.py     whether it is a server that a run can use
turns.py      engines of one machine that use the same server take turns
worker.py     what the server's workers import: it needs vLLM, nothing else here does
"""

from .engine import VLLMServerEngine

__all__ = ["VLLMServerEngine"]
