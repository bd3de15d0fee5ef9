"""Records to look at, made without a model."""

import json
import subprocess

from proa.record.run_folder import RunFolder

CONFIG = {"total_steps": 10, "train_epochs": 1, "eval": [{"name": "sorting"}, {"name": "sorting.long"}]}


def make_run(parent, name="demo", metrics=(), config=CONFIG, **entries):
    folder = RunFolder.create(parent / name, config)
    folder.update(**entries)
    write_lines(folder.path / "metrics.jsonl", metrics)
    return folder


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows(count, begin=1000.0):
    return [{"step": step, "time": begin + step, "loss": 0.25} for step in range(count)]


def ended_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid
