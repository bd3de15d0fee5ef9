"""An engine whose completions are known beforehand, and prompts for it."""

from __future__ import annotations

import torch

from proa.data.lease import Prompt
from proa.data.sampling import Completion


class FixedEngine:
    """A completion is its seed, twice if it is odd; it ends by itself if it is even."""

    context_length = 64

    def __init__(self):
        self.weights = None
        self.calls = []

    def load(self, weights):
        self.weights = weights

    def generate(self, requests, sampling):
        self.calls.append((requests, sampling))
        return [[self.completion(seed) for seed in request.seeds] for request in requests]

    @staticmethod
    def completion(seed):
        count = 1 + seed % 2
        return Completion(torch.full((count,), seed), torch.full((count,), -0.5), "length" if seed % 2 else "stop")


def prompts(*texts, **columns):
    """The prompts with these texts; columns by name, one value for each."""
    return [
        Prompt(place, (1, 2 + place), text, {name: values[place] for name, values in columns.items()})
        for place, text in enumerate(texts)
    ]
