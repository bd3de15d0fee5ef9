"""Rewards for the tests of replay."""

import random


def steady(prompts, completions, **columns):
    return [float(len(text) % 3) for text in completions]


def telling(prompts, completions, **columns):
    """Another for almost every text, so that hardly a group is without an advantage, and the order of leases shows."""
    return [float(sum(place * ord(sign) for place, sign in enumerate(text, 1)) % 101) for text in completions]


def flaky(prompts, completions, **columns):
    """The same, but some cannot be had, by chance: no seed of the run determines which."""
    return [None if random.random() < 0.2 else value for value in steady(prompts, completions)]
