"""The runtime `ray`: the same roles as named actors, on one machine or on many. Nothing else imports ray."""

import os

# Ray reports every dead worker in a paragraph; the run does so in one line. Read at Ray's import.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed while executing a task")
# A cluster that is started for a run has no other work, so its actors need no lower priority.
os.environ.setdefault("RAY_worker_niceness", "0")
