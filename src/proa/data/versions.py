"""Versions of the weights count from 0; these stand for what is not among them."""

NO_VERSION = -1
"""No weights are loaded, or none that are trusted."""
BASE_VERSION = -2
"""What adapters go over: published once, where only adapters are published later."""
