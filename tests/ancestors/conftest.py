"""A few small runs, recorded once, that the checks here look at."""

import pytest
from tests.ancestors.listeners import FromCallbackPage, FromMakerPage, FromTrainerPage, Heard, event_functions
from tests.ancestors.runs import (
    BENCHMARK,
    GENERATE,
    LOSS,
    SFT,
    Example,
    OutOfLuck,
    OwnTrainer,
    Recorded,
    RecordedExperiment,
    numbered,
)
from tests.experiments.small_experiment import RUN
from tests.small import DETACHED

from proa import Experiment, recipes


@pytest.fixture(scope="session")
def grpo_run(tmp_path_factory):
    """Two episodes of two fresh batches, each trained twice: 8 steps, evals and checkpoints after 4 and 8."""
    folder = tmp_path_factory.mktemp("grpo")
    run = Recorded(folder / "rl")
    run.state = recipes.grpo(
        **{**DETACHED, "total_steps": 4, "update_steps": 2, "train_epochs": 2},
        eval=[{**GENERATE, "run_every": 4}], checkpoint={"save_every": 4}, name="rl", output_dir=folder,
        callbacks=[
            event_functions(run.events), FromTrainerPage(run.hooks), FromCallbackPage(run.hooks),
            FromMakerPage(run.makers),
        ],
    )  # fmt: skip
    return run


@pytest.fixture(scope="session")
def sft_run(tmp_path_factory):
    """Two epochs of three steps, with micro-batches, two evals and a checkpoint after each epoch."""
    folder = tmp_path_factory.mktemp("sft")
    run = Recorded(folder / "supervised")
    run.state = recipes.sft(
        **{**SFT, "eval": [LOSS, {**GENERATE, "run_every": 3}], "checkpoint": {"save_every": 3},
           "optimizer": {"learning_rate": 3e-3, "token_budget": 16}},
        name="supervised", output_dir=folder, callbacks=[event_functions(run.events), FromCallbackPage(run.hooks)],
    )  # fmt: skip
    return run


@pytest.fixture(scope="session")
def failed_run(tmp_path_factory):
    """Fails in the second of its steps."""
    folder = tmp_path_factory.mktemp("failed")
    run = Recorded(folder / "unlucky")
    callbacks = [event_functions(run.events), FromCallbackPage(run.hooks), OutOfLuck()]
    with pytest.raises(RuntimeError, match="out of luck"):
        recipes.sft(**{**SFT, "eval": []}, name="unlucky", output_dir=folder, callbacks=callbacks)
    return run


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    """Two stages, repeated with two seeds; one benchmark in the loop and, under the same name, after training."""
    heard = Heard()
    config = {
        "name": "e", "output_dir": str(tmp_path_factory.mktemp("experiment")), "n_repeats": 2, "base_seed": 7,
        "run": {**RUN, "eval": [{**GENERATE, "run_every": 1}], "checkpoint": {"save_every": 2}},
        "continual": {"datasets": [{"source": "sort_digits", "count": 32}, {"source": "reverse_digits", "count": 32}]},
        "metadata": {
            "benchmark": [BENCHMARK, {**BENCHMARK, "name": "again", "tags": []}], "success_metric": "again.exact",
        },
    }  # fmt: skip
    return RecordedExperiment(Experiment(config, [FromCallbackPage(heard)]).run(), heard)


@pytest.fixture(scope="session")
def repeats(tmp_path_factory):
    """Two arms, repeated with two seeds."""
    heard = Heard()
    run = {**RUN, "eval": []}
    config = {
        "name": "r", "output_dir": str(tmp_path_factory.mktemp("repeats")), "n_repeats": 2, "base_seed": 0,
        "runs": {"a": run, "b": run},
    }  # fmt: skip
    return RecordedExperiment(Experiment(config, [FromCallbackPage(heard)]).run(), heard)


@pytest.fixture(scope="session")
def own_trainer():
    """The documented example's `fit`, with everything that it needs in the buffer before."""
    hooks, events = Heard(), Heard()
    trainer = OwnTrainer(
        experience_maker_holder_name_list=["maker_0"],
        train_batch_size=8,
        callbacks=[event_functions(events), FromTrainerPage(hooks)],
    )
    trainer.buffer_append(numbered(8000))
    example = Example(trainer, trainer.buffer_get_length(), hooks, events)
    example.returned = trainer.fit(total_steps=1000, update_steps=100, train_epochs=2)
    return example
