"""A logger as somebody would write it from EvSys's page about callbacks, for a service that is a file; and the grammar
of what such a service hears of any run."""

import json
import re
from pathlib import Path

from proa import Callback


class Service:
    """A tracking service: every call is a line of a file, and what is created gets an id."""

    def __init__(self, path):
        self.path = Path(path)

    def create(self, what, **facts):
        new_id = f"{what}-{len(calls_in(self.path))}"
        self.send(f"{what}_start", id=new_id, **facts)
        return new_id

    def send(self, call, **facts):
        with self.path.open("a") as file:
            file.write(json.dumps({"call": call, **facts}) + "\n")


class ServiceLogger(Callback):
    def __init__(self, path):
        self.service = Service(path)

    def on_experiment_start(self, ctx):
        ctx.ids["experiment_id"] = self.service.create(
            "experiment", name=ctx.config.name, tags=ctx.config.metadata.tags, folder=str(ctx.output_dir)
        )

    def on_group_start(self, ctx, group_name):
        ctx.ids[f"group:{group_name}"] = self.service.create(
            "group", name=group_name, experiment=ctx.ids["experiment_id"]
        )

    def on_run_start(self, ctx):
        group = None if ctx.group_name is None else ctx.ids[f"group:{ctx.group_name}"]
        ctx.ids["run_id"] = self.service.create(
            "run", name=ctx.run_key, seed=ctx.run_config.seed, experiment=ctx.ids["experiment_id"], group=group,
        )  # fmt: skip

    def on_train_start(self, state):
        self.service.send("train_start", run=state.ctx.ids["run_id"])

    def on_step_end(self, state, step_idx, batch, metrics):
        self.service.send("step", run=state.ctx.ids["run_id"], step=step_idx, loss=metrics["loss"])

    def on_eval(self, state, step_idx, eval_name, metrics):
        self.service.send("eval", run=state.ctx.ids["run_id"], name=eval_name, step=step_idx, metrics=metrics)

    def on_checkpoint(self, state, row):
        self.service.send("checkpoint", run=state.ctx.ids["run_id"], name=row.name)

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        self.service.send(
            "benchmark" if step is not None else "benchmark_after", run=ctx.ids["run_id"], name=eval_result.name,
            step=step, metrics=eval_result.metrics, predictions=len(predictions),
        )  # fmt: skip

    def on_train_end(self, state, artifacts):
        self.service.send("train_end", run=state.ctx.ids["run_id"], steps=artifacts.steps_run)

    def on_run_end(self, ctx, run_result, arm):
        self.service.send(
            "run_end", run=ctx.ids["run_id"], status=run_result.status, name=arm.name, metrics=run_result.metrics,
            steps=None if run_result.artifacts is None else run_result.artifacts.steps_run, error=run_result.error,
            evals=[[one.name, one.step] for one in arm.evals],
        )  # fmt: skip

    def on_experiment_end(self, ctx, result):
        self.service.send(
            "experiment_end", experiment=ctx.ids["experiment_id"], status=result.status,
            arms=[[arm.name, arm.status, arm.run_id] for arm in result.arms], conclusion=result.conclusion,
        )  # fmt: skip


def calls_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


_EVALS = r"( eval benchmark)*"
# A resumed run first tells of the checkpoint that it continues from.
_TRAINING = rf" train_start( checkpoint)?{_EVALS}( step{_EVALS}( checkpoint)?)*{_EVALS}( checkpoint)? train_end"
_RUN = rf" run_start({_TRAINING}( benchmark_after)*)? run_end"
_GRAMMAR = rf"experiment_start(( group_start)?{_RUN})* experiment_end"


def check_calls(calls):
    """Raise unless the calls are those of one experiment, in order, each with the ids of what it belongs to."""
    said = " ".join(call["call"] for call in calls)
    assert re.fullmatch(_GRAMMAR, said), said
    experiment, groups, run = calls[0]["id"], [None], None
    for call in calls[1:]:
        assert call.get("experiment", experiment) == experiment, call
        match call["call"]:
            case "group_start":
                groups.append(call["id"])
            case "run_start":
                run = call["id"]
                assert call["group"] in groups, call
            case "experiment_end":
                ended = [one for one in calls if one["call"] == "run_end"]
                assert call["arms"] == [[one["name"], one["status"], one["run"]] for one in ended], call
            case _:
                assert call.get("run", run) == run, call
    return said


def runs_in(calls):
    """The calls of each run by its name, from `run_start` to `run_end`."""
    names = {call["id"]: call["name"] for call in calls if call["call"] == "run_start"}
    return {name: [call for call in calls if call.get("run", call.get("id")) == run] for run, name in names.items()}
