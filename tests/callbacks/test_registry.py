"""Callbacks by kind: the shipped ones, those of other packages, and clear words for mistakes."""

import importlib.metadata

import pytest

from proa import Callback
from proa.callbacks import EarlyStopping, EventTracer, build_callback, callback_kinds, register_callback
from proa.callbacks import registry as registry_module
from proa.errors import CallbackConfigError

PARAMS = {"early_stopping": {"metric": "loss"}, "trainer_performance": {"actor_num_params": 1},
          "maker_performance": {"actor_num_params": 1}}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(callback_kinds()))
def test_every_kind_can_be_built(kind, monkeypatch):
    # Whether the library of a logger is installed is not asked here.
    monkeypatch.setattr("importlib.util.find_spec", lambda package: package)
    build_callback({"kind": kind, "params": PARAMS.get(kind, {})})


def test_params_reach_the_callback():
    callback = build_callback({"kind": "early_stopping", "params": {"metric": "exact", "mode": "max", "patience": 7}})
    assert isinstance(callback, EarlyStopping)
    assert (callback.metric, callback.mode, callback.patience) == ("exact", "max", 7)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kind": "early_stoping"}, "did you mean 'early_stopping'"),
        ({"kind": "early_stopping", "params": {"metrik": "loss"}}, "did you mean 'metric'"),
        ({"kind": "early_stopping"}, "missing a required argument: 'metric'"),
        ({"kind": "early_stopping", "parms": {}}, r"\{kind: …, params: \{…\}\}"),
        ({"params": {}}, "kind"),
        ("console", "a callback is given as"),
        ({"kind": "console", "params": ["every"]}, "a callback is given as"),
        ({"kind": "console", "params": {"every": 0}}, "1 or more"),
    ],
)
def test_mistakes_are_told_in_the_users_words(spec, words):
    with pytest.raises(CallbackConfigError, match=words):
        build_callback(spec)


class Plugged(Callback):
    def __init__(self, size=1):
        self.size = size


@pytest.fixture
def plugin(monkeypatch):
    """An installed package's entry point, as importlib.metadata would find it."""

    def entry_points(*, group):
        assert group == "proa.callbacks"
        values = {"plugged": f"{__name__}:Plugged", "broken": "no_such_package:Thing", "not_one": "builtins:dict"}
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in values.items()]

    monkeypatch.setattr(registry_module, "entry_points", entry_points)
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("sys").modules[__name__])


def test_other_packages_add_kinds_by_entry_point(plugin):
    assert callback_kinds()["plugged"].endswith(":Plugged")
    assert build_callback({"kind": "plugged", "params": {"size": 3}}).size == 3


def test_a_plugin_that_cannot_be_loaded_says_so(plugin):
    with pytest.raises(CallbackConfigError, match=r"'broken' \(no_such_package:Thing\) could not be loaded"):
        build_callback({"kind": "broken"})
    with pytest.raises(CallbackConfigError, match="is not a callback"):
        build_callback({"kind": "not_one"})


def test_code_can_add_a_kind_but_not_take_one():
    register_callback("mine_for_this_test", Plugged)
    try:
        assert build_callback({"kind": "mine_for_this_test"}).size == 1
        with pytest.raises(CallbackConfigError, match="is taken"):
            register_callback("console", Plugged)
    finally:
        del registry_module._registered["mine_for_this_test"]


def test_the_tracer_shows_what_nests(capsys):
    from proa import CallbackManager, TrainingBatch
    from proa.loop import SupervisedLoop

    tracer = EventTracer(times=False)
    SupervisedLoop(lambda batch: {}, callbacks=CallbackManager([tracer])).fit(lambda epoch: [TrainingBatch(0)])
    assert capsys.readouterr().out.splitlines() == [
        "train_start",
        "  epoch_start epoch=0",
        "    step_start",
        "    step_end step_idx=0",
        "  epoch_end epoch=0",
        "train_end",
    ]
    assert tracer.events[0] == "train_start"


def test_the_tracer_can_look_at_some_moments_only(capsys):
    from proa import CallbackManager, TrainState

    manager = CallbackManager([EventTracer(only={"step_end"}, times=False)])
    manager.fire("step_start", TrainState())
    manager.fire("step_end", TrainState(global_step=1))
    manager.fire("error", TrainState(), exception=ValueError("x"))
    assert capsys.readouterr().out == "step_end step_idx=0\n"
