"""inspect-ai asks the served model the rows of a file, as chats."""

import json
import os
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import exact
from inspect_ai.solver import generate


@task
def calls():
    rows = [json.loads(line) for line in Path(os.environ["ROWS"]).read_text().splitlines()]
    samples = [Sample(input=row["prompt"][-1]["content"], target=row["answer"]) for row in rows]
    return Task(
        MemoryDataset(samples), solver=generate(), scorer=exact(), config=GenerateConfig(temperature=0, max_tokens=8)
    )
