"""Scores of a policy: benchmarks of completions, and evaluators of the user's own, in the loop or after it."""
