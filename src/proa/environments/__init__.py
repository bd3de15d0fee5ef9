"""Environments: what answers a model between its turns. Tools, classes of a user's own, adapters for other libraries'.

They run in worker processes with deadlines, or in threads; one that hangs, exits or eats memory costs its trajectory.
"""

from .protocol import Environment, Message, Start, Step

__all__ = ["Environment", "Message", "Start", "Step"]
