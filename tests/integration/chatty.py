"""A reward that prints. It is alone here: the processes that score import no more than this."""

import os


def chatty(completions, **_):
    print(f"scoring {len(completions)} in {os.getpid()}")
    return [float(len(set(completion))) for completion in completions]
