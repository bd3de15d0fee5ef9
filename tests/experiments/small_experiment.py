"""Experiments small enough to be over in a second or two, and who listens to them."""

from tests.small import MODEL

from proa import Callback

RUN = {
    "algorithm": "sft", "total_steps": 2, "train_batch_size": 4, "model": {"config": MODEL},
    "task": {"source": "sort_digits", "count": 32}, "optimizer": {"learning_rate": 3e-3},
    "sampling": {"max_new_tokens": 7},
    "eval": [{"name": "held_out", "kind": "generate", "count": 4, "run_every": 1, "baseline": False}],
}  # fmt: skip
BENCHMARK = {"name": "after", "count": 4, "metric": "proa.tasks.builtin.places:by_place"}
JUDGED = {"metadata": {"benchmark": [BENCHMARK], "success_metric": "after.by_place"}}


class Listener(Callback):
    """Writes down what it hears, in order."""

    def __init__(self):
        self.heard = []
        self.arms = {}

    def _note(self, *words):
        self.heard.append(" ".join(map(str, words)))

    def on_experiment_start(self, ctx):
        self._note("experiment_start")
        ctx.ids["experiment_id"] = "e1"

    def on_group_start(self, ctx, group_name):
        self._note("group_start", group_name)
        ctx.ids[f"group:{group_name}"] = f"g-{group_name}"

    def on_run_start(self, ctx):
        self._note("run_start", ctx.run_key)
        assert ctx.run_config.name == ctx.run_key
        assert ctx.ids["experiment_id"] == "e1"
        assert "run_id" not in ctx.ids
        ctx.ids["run_id"] = f"r-{ctx.run_key}"

    def on_train_start(self, state):
        self._note("train_start")
        assert state.ctx.ids["run_id"] == f"r-{state.ctx.run_key}"

    def on_eval(self, state, step_idx, eval_name, metrics):
        self._note("eval", eval_name, step_idx)

    def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
        self._note("benchmark_eval", eval_result.name, step, len(predictions))
        assert eval_result.step == step

    def on_train_end(self, state, artifacts):
        self._note("train_end")

    def on_run_end(self, ctx, run_result, arm):
        self._note("run_end", ctx.run_key, run_result.status)
        self.arms[arm.name] = arm

    def on_experiment_end(self, ctx, result):
        self._note("experiment_end", result.status)


def of_a_run(name, status="completed"):
    """What is heard of one run of `RUN` with the benchmark."""
    return [
        f"run_start {name}", "train_start", "eval held_out 0", "benchmark_eval held_out 0 4", "eval held_out 1",
        "benchmark_eval held_out 1 4", "train_end", "benchmark_eval after None 4", f"run_end {name} {status}",
    ]  # fmt: skip
