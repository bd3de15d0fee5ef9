"""Callbacks that hold a run up at a moment, so that a signal can meet it there. Each does so once in a run's life."""

import os
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


class LosesItsReader(EveryMoment):
    """At the start of training whoever reads the output leaves, as `tee` does at Ctrl-C; and then it prints."""

    uses_asyncio = False

    def on_moment(self, event, payload):
        if event == "train_start":
            reading, writing = os.pipe()
            os.close(reading)
            for output in (1, 2):
                os.dup2(writing, output)
        print("a line that nobody reads", flush=True)


def register():
    """As `kind: holds_up` and `kind: loses_its_reader` in a configuration."""
    register_callback("holds_up", HoldsUp)
    register_callback("loses_its_reader", LosesItsReader)
