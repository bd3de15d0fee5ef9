"""An engine whose completions are known beforehand, and prompts for it."""

from __future__ import annotations

from tests.engines.made_up import MadeUpEngine

from proa.data.lease import Prompt


class FixedEngine(MadeUpEngine):
    """A completion is its seed, twice if it is odd; it ends by itself if it is even."""

    def __init__(self):
        super().__init__()
        self.weights = None

    def tokens(self, request):
        return (request.seed,) * (1 + request.seed % 2), "length" if request.seed % 2 else "stop"

    def load(self, weights, version):
        self.weights = weights


def prompts(*texts, **columns):
    """The prompts with these texts; columns by name, one value for each."""
    return [
        Prompt(place, (1, 2 + place), text, {name: values[place] for name, values in columns.items()})
        for place, text in enumerate(texts)
    ]
