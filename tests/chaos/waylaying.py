"""Callbacks that hold a run up at a moment, so that a signal can meet it there. Each does so once in a run's life."""

import time
from pathlib import Path

from proa.callbacks.registry import register_callback
from proa.lifecycle.hooks import EveryMoment


class HoldsUp(EveryMoment):
    """Sleeps at the first of these moments that comes at that step or later, having made a file that says so."""

    uses_asyncio = False

    def __init__(self, marker: str, moment: str, step: int = 0, seconds: float = 1000.0) -> None:
        self.marker, self.moment, self.step, self.seconds = Path(marker), moment, step, seconds
        self.global_step = 0

    def on_moment(self, event, payload):
        state = payload.get("state")
        if event == self.moment and state.global_step >= self.step and not self.marker.exists():
            self.marker.touch()
            time.sleep(self.seconds)


def register():
    """As `kind: holds_up` in a configuration."""
    register_callback("holds_up", HoldsUp)
