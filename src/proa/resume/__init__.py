"""The content of a run's checkpoints, and resuming from one: inputs, configuration, record."""
