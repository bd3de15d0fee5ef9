"""Callbacks that hold a run up at a moment, so that a signal can meet it there. Each does so once in a run's life."""

import time
from pathlib import Path

from proa.callbacks.registry import register_callback
from proa.lifecycle.hooks import EveryMoment


class HoldsUp(EveryMoment):
    """Waits at the first moment of that name at that step or later, having made a file that says so.

    It goes on when there is a second file, `<marker>.over`; without one it hangs.
    """

    uses_asyncio = False

    def __init__(self, marker: str, moment: str, step: int = 0) -> None:
        self.marker, self.over = Path(marker), Path(f"{marker}.over")
        self.moment, self.step = moment, step

    def on_moment(self, event, payload):
        if event == self.moment and payload["state"].global_step >= self.step and not self.marker.exists():
            self.marker.touch()
            while not self.over.exists():
                time.sleep(0.02)


def register():
    """As `kind: holds_up` in a configuration."""
    register_callback("holds_up", HoldsUp)
