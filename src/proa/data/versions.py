"""Special values beside the versions of the weights, which count from 0."""

NO_VERSION = -1
"""No weights are loaded, or none that are trusted; of a token, that it was not sampled."""
BASE_VERSION = -2
"""The base of adapters, published once; later only adapters are published."""
