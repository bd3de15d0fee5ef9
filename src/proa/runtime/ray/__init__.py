"""The runtime `ray`: the same roles as named actors, on one machine or on many. Nothing else imports ray."""

import os

# Ray tells of every worker that dies in a paragraph of its own; the run says it once, in a line. Read at Ray's import.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
# A cluster that is started for a run has nothing else to do: its actors need not stand back behind everyone else.
os.environ.setdefault("RAY_worker_niceness", "0")
