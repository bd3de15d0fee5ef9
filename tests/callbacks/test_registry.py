"""Callbacks by kind: the shipped ones, those of other packages, and clear words for mistakes."""

import importlib.metadata

import pytest

from proa import Callback, CallbackManager, LogContext, TrainState
from proa.callbacks import (
    EarlyStopping,
    EventTracer,
    build_callback,
    callback_kinds,
    check_callback,
    register_callback,
)
from proa.callbacks.registry import _KINDS
from proa.errors import CallbackConfigError

PARAMS = {"early_stopping": {"metric": "loss"}, "trainer_performance": {"actor_num_params": 1},
          "maker_performance": {"actor_num_params": 1}, "webhook": {"webhook_url": "https://example.com"},
          "upload": {"to": "somewhere"}}  # fmt: skip


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

    monkeypatch.setattr("proa.registry.entry_points", entry_points)
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
        del _KINDS.registered["mine_for_this_test"]


def test_the_tracer_shows_what_nests(capsys):
    from proa import TrainingBatch
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
    manager = CallbackManager([EventTracer(only={"step_end"}, times=False)])
    manager.fire("step_start", TrainState())
    manager.fire("step_end", TrainState(global_step=1))
    manager.fire("error", TrainState(), exception=ValueError("x"))
    assert capsys.readouterr().out == "step_end step_idx=0\n"


def test_what_the_tracer_does_not_show_still_indents_what_is_inside(capsys):
    manager = CallbackManager([EventTracer(only={"step_end"}, times=False)])
    manager.fire("epoch_start", TrainState(), epoch=0)
    manager.fire("step_end", TrainState(global_step=1))
    assert capsys.readouterr().out == "  step_end step_idx=0\n"


def test_what_never_ended_does_not_indent_the_rest_of_the_trace(capsys):
    manager, state = CallbackManager([EventTracer(times=False)]), TrainState(global_step=1)
    for event, payload in [
        ("epoch_start", {"epoch": 0}), ("step_start", {}), ("epoch_end", {"epoch": 0}), ("epoch_start", {"epoch": 1}),
        ("epoch_end", {"epoch": 1}), ("step_end", {}),
    ]:  # fmt: skip
        manager.fire(event, state, **payload)
    assert capsys.readouterr().out.splitlines() == [
        "epoch_start epoch=0", "  step_start", "epoch_end epoch=0", "epoch_start epoch=1", "epoch_end epoch=1",
        "step_end step_idx=0",
    ]  # fmt: skip


def test_a_start_that_has_no_end_indents_nothing(capsys, tmp_path):
    manager, ctx = CallbackManager([EventTracer(times=False)]), LogContext(tmp_path)
    manager.fire("group_start", ctx, "a")
    manager.fire("run_start", ctx)
    assert capsys.readouterr().out.splitlines() == ["group_start group_name=a", "run_start"]


OWN = """
from proa import Callback, MakerCallback

class Counting(Callback):
    def __init__(self, every=1, *, start=0):
        if every < 1:
            raise ValueError("every must be 1 or more")
        self.every, self.start = every, start

class OfAMaker(MakerCallback):
    pass

class NotOne:
    pass

def make(size):
    return Counting(size)

def makes_something_else():
    return 3

ready = Counting()
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of the user's, beside the configuration."""
    import sys

    (tmp_path / "own_callbacks.py").write_text(OWN)
    (tmp_path / "own_misspelt.py").write_text(
        "from proa import Callback\nclass Wrong(Callback):\n    def on_step_ende(self): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_callbacks"
    for name in ("own_callbacks", "own_misspelt"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("mark", [".", ":"])
def test_a_callback_of_ones_own_is_named_by_its_path(own_module, mark):
    spec = {"kind": f"{own_module}{mark}Counting", "params": {"every": 4, "start": 2}}
    check_callback(spec)
    callback = build_callback(spec)
    assert (type(callback).__name__, callback.every, callback.start) == ("Counting", 4, 2)


def test_a_function_of_ones_own_may_make_the_callback(own_module):
    assert build_callback({"kind": f"{own_module}:make", "params": {"size": 3}}).every == 3


def test_looking_at_a_callback_of_ones_own_does_not_build_it(own_module):
    check_callback({"kind": f"{own_module}:Counting", "params": {"every": 0}})


@pytest.mark.parametrize("look", [check_callback, build_callback])
@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("own_calbacks.Counting", {}, "no module 'own_calbacks'"),
        ("own_callbacks.Countin", {}, "own_callbacks has no 'Countin'; did you mean 'Counting'"),
        ("own_callbacks.NotOne", {}, "is not a callback: derive a class from Callback"),
        ("own_callbacks.OWN", {}, "own_callbacks has no 'OWN'"),
        ("own_callbacks.__name__", {}, "is not a callback"),
        ("own_callbacks.ready", {}, "is a callback object: name its class"),
        ("own_callbacks.Counting", {"evry": 1}, "has no parameter 'evry'; did you mean 'every'"),
        ("own_callbacks.make", {}, "missing a required argument: 'size'"),
        ("own_misspelt.Wrong", {}, "importing own_misspelt failed: HookError: .*on_step_end"),
    ],
)
def test_mistakes_in_the_path_of_a_callback_are_told_in_the_users_words(own_module, look, kind, params, words):
    with pytest.raises(CallbackConfigError, match=words):
        look({"kind": kind, "params": params})


def test_what_a_constructor_says_of_its_parameters_is_told(own_module):
    with pytest.raises(CallbackConfigError, match="own_callbacks.Counting': ValueError: every must be 1 or more"):
        build_callback({"kind": "own_callbacks.Counting", "params": {"every": 0}})


def test_a_function_that_makes_no_callback_is_told(own_module):
    with pytest.raises(CallbackConfigError, match="made 3, which is not a callback"):
        build_callback({"kind": "own_callbacks.makes_something_else"})
