"""The run folder: the record of a run, and the interface to everything that looks at it."""
