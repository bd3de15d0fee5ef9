"""A run as a kill would leave it at each of its moments: its folder, copied there and then."""

import contextlib
import json
import shutil

from tests import small
from tests.small import MODEL

from proa import Callback
from proa.lifecycle.hooks import EveryMoment
from proa.lifecycle.moments import MOMENTS, Scope
from proa.lifecycle.policy import Priority
from proa.record.checkpoint_files import relative_row
from proa.record.checkpoints import CheckpointManager

DETACHED = small.DETACHED | {
    "optimizer": {"learning_rate": 3e-3, "schedule": "linear"},
    "eval": [{"name": "held_out", "count": 4, "run_every": 2}], "checkpoint": {"save_every": 1, "keep": 2},
}  # fmt: skip
SUPERVISED = {
    "total_steps": 3, "train_epochs": 2, "train_batch_size": 4, "model": {"config": MODEL},
    "task": {"source": "sort_digits", "count": 64}, "optimizer": {"learning_rate": 3e-3, "schedule": "linear"},
    "eval": [{"name": "held_out", "count": 4, "run_every": 2}], "checkpoint": {"save_every": 1, "keep": 2},
}  # fmt: skip


class Counter(Callback):
    """Counts moments and adds numbers up, and saves both."""

    state_key = "counter"

    def __init__(self):
        self.counts = {}
        self.total = 0.0

    def _count(self, name):
        self.counts[name] = self.counts.get(name, 0) + 1

    def on_step_end(self, state, step_idx, batch, metrics):
        self._count("step_end")
        self.total += metrics.get("loss", 0.0) * (step_idx + 1)

    def on_checkpoint(self, state, row):
        self._count(f"checkpoint {row.step}")

    def on_eval(self, state, step_idx, eval_name, metrics):
        self._count(f"eval {step_idx}")

    def on_train_end(self, state, artifacts):
        self._count("train_end")

    def state_dict(self):
        return {"counts": dict(self.counts), "total": self.total}

    def load_state_dict(self, saved):
        self.counts, self.total = dict(saved["counts"]), saved["total"]


class CountEnds(EveryMoment):
    """Counts the ends of a trainer's moments, and saves how many; starts fire again, and waits come as they come."""

    uses_asyncio = False
    state_key = "ends"

    def __init__(self):
        self.counts = {}

    def on_moment(self, event, payload):
        if MOMENTS[event].scope is Scope.TRAINER and not event.endswith("_start") and not event.startswith("wait_"):
            self.counts[event] = self.counts.get(event, 0) + 1

    def state_dict(self):
        return dict(self.counts)

    def load_state_dict(self, saved):
        self.counts = dict(saved)


class Copies:
    """The folders of a run as kills would leave them; one that nobody has written to since the last is not kept."""

    def __init__(self, run_folder, into):
        self.run_folder, self.into = run_folder, into
        self.folders = []
        self._last = None

    def take(self, name):
        while True:  # a checkpoint may be written in the background: what changes under the copy is copied again
            before = _written(self.run_folder)
            if before == self._last:
                return
            place = self.into / f"{len(self.folders):03d}_{name}" / "run"
            try:
                shutil.copytree(self.run_folder, place, ignore=shutil.ignore_patterns("*live.json*"))
            except (shutil.Error, FileNotFoundError):
                before = None
            if _written(self.run_folder) == before:
                break
            shutil.rmtree(place.parent, ignore_errors=True)
        self._last = before
        self.folders.append(place)


def _written(folder):
    """All that is in a folder, and when it was written; the live view, which nobody goes on from, is left out."""
    with contextlib.suppress(FileNotFoundError):
        files = [path for path in folder.rglob("*") if "live.json" not in path.name]
        return sorted((str(path), (found := path.lstat()).st_size, found.st_mtime_ns) for path in files)
    return None


class CopyFolder(EveryMoment):
    """Copies the run's folder at every moment of the trainer: before anybody else hears of it, or after."""

    uses_asyncio = False

    def __init__(self, copies, priority):
        self.copies, self.priority = copies, priority

    def on_moment(self, event, payload):
        if MOMENTS[event].scope is Scope.TRAINER and not event.startswith("wait_"):
            self.copies.take(f"{event}_{self.priority}")


def killed_everywhere(recipe, folder, more=list, **settings):
    """Run once to the end; return what it came to, and the folders as kills would have left them."""
    copies = Copies(folder / "run", folder / "copies")
    copying = [CopyFolder(copies, Priority.METRICS + 1), CopyFolder(copies, Priority.LOGGING - 1)]
    outcome = finish(recipe, folder / "run", lambda: [*copying, *more()], **settings)
    return outcome, copies.folders


def finish(recipe, run_folder, more=list, **settings):
    """Begin or go on with the run in a folder, and say what it came to; `more` makes callbacks beside those here."""
    counter, ends = Counter(), CountEnds()
    recipe(
        **settings,
        output_dir=run_folder.parent,
        name=run_folder.name,
        callbacks=[counter, ends, *more()],
        resume="auto",
    )
    return outcome_of(run_folder) | {"counter": counter.state_dict(), "ends": ends.state_dict()}


def outcome_of(run_folder):
    header = json.loads((run_folder / "run.json").read_text())
    metrics = (run_folder / "metrics.jsonl").read_text()
    beside = [path for path in (run_folder / "journal.jsonl", run_folder / "evals.jsonl") if path.exists()]
    to_the_end = header["status"] == "completed" and header.get("stopped_by") is None
    return {
        "status": header["status"],
        "stop": (header.get("stop_reason"), header.get("stopped_by")),
        "digest": header["weights_digest"],
        "version": header.get("policy_version"),
        "steps": header["steps_run"],
        "evals": header["evals"],
        "trained": header.get("ledger", {}).get("trained"),
        "ledger": header.get("ledger") if to_the_end else None,  # how far makers were when it ended early is chance
        "metrics": [without_times(json.loads(line)) for line in metrics.splitlines()],
        "beside": {
            path.name: [without_times(json.loads(line)) for line in path.read_text().splitlines()] for path in beside
        },
        "predictions": {
            str(path.relative_to(run_folder)): path.read_text() for path in sorted(run_folder.glob("evals/*/*.jsonl"))
        },
        "checkpoints": [_described(relative_row(row, run_folder)) for row in CheckpointManager(run_folder).rows],
        "model": {path.name: path.read_bytes() for path in sorted((run_folder / "model").rglob("*.safetensors"))},
    }


def without_times(metrics):
    """What is the same whenever it is computed."""
    return {
        key: value
        for key, value in metrics.items()
        if key not in ("time", "makers") and "second" not in key and not key.startswith(("maker.", "trainer."))
    }


def _described(row):
    told = row.as_dict() | {"metrics": without_times(row.metrics), "sizes": None}
    return told | {"digests": {name: digest for name, digest in row.digests.items() if name.startswith("model/")}}
