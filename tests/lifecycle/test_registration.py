"""What is refused at registration, and what a function may ask for."""

import functools
from unittest.mock import MagicMock

import pytest

from proa import (
    Callback,
    CallbackManager,
    ErrorPolicy,
    LogContext,
    LoopState,
    MakerCallback,
    TrainerCallback,
    TrainState,
)
from proa.errors import EventError, HookError
from proa.lifecycle import BaseCallback, Role
from proa.lifecycle.hooks import EveryMoment


def test_a_hook_that_cannot_take_its_payload_is_refused_with_the_line_to_write():
    class Mine(Callback):
        def on_step_end(self, state, metrics): ...

    with pytest.raises(HookError, match=r"write def on_step_end\(self, state, step_idx, batch, metrics\)"):
        CallbackManager([Mine()])


def test_a_hook_with_its_payload_in_another_order_is_refused():
    class Mine(TrainerCallback):
        def on_batch_end(self, experience, metrics): ...

    with pytest.raises(HookError, match=r"in another order.*on_batch_end\(self, metrics, experience\)"):
        CallbackManager([Mine()])


def test_a_hook_may_rename_its_parameters_and_have_more_with_defaults():
    class Mine(Callback):
        def on_step_end(self, s, i, b, m, verbose=False): ...
        def on_eval(self, *args): ...
        def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None, more=1): ...

    CallbackManager([Mine()])


def test_a_benchmark_hook_without_its_step_is_refused():
    class Mine(Callback):
        def on_benchmark_eval(self, ctx, eval_result, predictions): ...

    with pytest.raises(HookError, match=r"predictions, \*, step=None\)"):
        CallbackManager([Mine()])


class AsyncHook(TrainerCallback):
    async def on_batch_start(self): ...


class AsyncCall:
    async def __call__(self, state): ...


async def async_function(state): ...


async def async_generator(state):
    yield state


@pytest.mark.parametrize(
    "function",
    [async_function, async_generator, AsyncCall(), functools.partial(async_function)],
    ids=["function", "generator", "object", "partial"],  # the same in every process: no addresses
)
def test_async_functions_are_refused_with_the_remedy(function):
    with pytest.raises(HookError, match=r"write 'def', and start async work in it with asyncio.create_task"):
        CallbackManager().on("step_end")(function)


def test_async_hooks_are_refused_with_the_remedy():
    with pytest.raises(HookError, match=r"AsyncHook.on_batch_start is 'async def'.*asyncio.create_task"):
        CallbackManager([AsyncHook()])


def test_callbacks_are_refused_where_their_hooks_would_never_be_called():
    with pytest.raises(HookError, match="MakerCallback and was given to a trainer"):
        CallbackManager([MakerCallback()], role=Role.TRAINER)
    for wrong in (TrainerCallback, Callback):
        with pytest.raises(HookError, match="was given to a maker"):
            CallbackManager([wrong()], role=Role.MAKER)
    with pytest.raises(HookError, match="given to a trainer"):
        CallbackManager.create(CallbackManager([MakerCallback()]), role=Role.TRAINER)
    with pytest.raises(HookError, match="'maker.batch_end' never fires in a trainer"):
        CallbackManager(role=Role.TRAINER).on("maker.batch_end")
    CallbackManager([MakerCallback(), TrainerCallback(), Callback()])


def test_things_that_are_no_callbacks_are_refused():
    manager = CallbackManager()
    with pytest.raises(HookError, match="neither a callback .* nor a factory"):
        manager.add(3)
    with pytest.raises(HookError, match=r"register a function for a moment with manager.on"):
        manager.add(lambda: None)
    with pytest.raises(HookError, match=r"register it with a manager, e.g. manager.on\('step_end'\)"):
        manager.add(lambda state: None)
    with pytest.raises(HookError, match="derive it from TrainerCallback"):
        type("Mine", (BaseCallback,), {})


def test_one_object_has_one_place():
    callback = Callback()
    with pytest.raises(HookError, match="already registered"):
        CallbackManager([callback, callback])


def test_factories_make_what_is_registered():
    class Mine(Callback):
        def __init__(self, size=1):
            self.size = size

    manager = CallbackManager([Mine, lambda: Mine(2), functools.partial(Mine, size=3)])
    assert [callback.size for callback in manager.callbacks] == [1, 2, 3]
    assert manager.add(Mine).size == 1


def asked_for(function, event="step_end", state=None):
    heard = []
    manager = CallbackManager()
    manager.on(event)(function(heard))
    manager.fire(event, state or TrainState(global_step=5, metrics={"loss": 1.0}))
    return heard


FUNCTIONS = {
    "nothing": (lambda heard: lambda: heard.append("called"), ["called"]),
    "its name": (lambda heard: lambda metrics: heard.append(metrics), [{"loss": 1.0}]),
    "two, in any order": (
        lambda heard: lambda metrics, step_idx: heard.append((metrics, step_idx)),
        [({"loss": 1.0}, 4)],
    ),
    "a keyword": (lambda heard: lambda *, step_idx: heard.append(step_idx), [4]),
    "after a default": (lambda heard: lambda note="n", step_idx=None: heard.append((note, step_idx)), [("n", 4)]),
    "a closure's default is kept": (lambda heard: lambda s, i=7: heard.append((s.global_step, i)), [(5, 7)]),
    "only a default": (lambda heard: lambda i=7: heard.append(i), [7]),
    "everything by name": (
        lambda heard: lambda **payload: heard.append(sorted(payload)),
        [["batch", "experience", "metrics", "state", "step_idx"]],
    ),
    "the rest by name": (
        lambda heard: lambda state, **rest: heard.append(sorted(rest)),
        [["batch", "experience", "metrics", "step_idx"]],
    ),
    "everything in order": (lambda heard: lambda *payload: heard.append(payload[1:]), [(4, None, {"loss": 1.0}, None)]),
    "one stranger and a name": (
        lambda heard: lambda s, metrics=None: heard.append((s.global_step, metrics)),
        [(5, {"loss": 1.0})],
    ),
    "one stranger and the rest": (
        lambda heard: lambda s, **rest: heard.append(sorted(rest)),
        [["batch", "experience", "metrics", "step_idx"]],
    ),
    "the rest in order and a keyword": (
        lambda heard: lambda *rest, metrics: heard.append((len(rest), metrics)),
        [(4, {"loss": 1.0})],
    ),
    "a partial": (lambda heard: functools.partial(lambda a, step_idx: heard.append((a, step_idx)), 1), [(1, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_function_gets_what_it_names(case):
    function, expected = FUNCTIONS[case]
    assert asked_for(function) == expected


@pytest.mark.parametrize("name", ["state", "s", "anything"])
def test_an_only_parameter_gets_the_state_whatever_its_name(name):
    state = TrainState()
    assert asked_for(lambda heard: eval(f"lambda {name}: heard.append({name})", {"heard": heard}), state=state) == [
        state
    ]


def test_builtins_and_mocks_can_listen():
    heard, mock, state = [], MagicMock(), TrainState()
    manager = CallbackManager()
    manager.on("epoch_end")(heard.append)
    manager.on("epoch_end")(mock)
    manager.fire("epoch_end", state, epoch=2)
    assert heard == [state]
    mock.assert_called_once_with(state, 2)


def test_a_function_that_asks_for_what_is_not_there_is_refused():
    with pytest.raises(
        HookError, match="has a parameter 'metric', which is not an item of 'step_end'; did you mean 'metrics'"
    ):
        CallbackManager().on("step_end")(lambda state, metric: None)


def test_firing_with_the_state_alone_fills_in_what_it_knows():
    heard = {}
    manager = CallbackManager()
    manager.on("step_end")(lambda **payload: heard.update(payload))
    state = TrainState(global_step=3, metrics={"loss": 0.5})
    manager.fire("step_end", state)
    assert heard == {"state": state, "step_idx": 2, "metrics": {"loss": 0.5}, "batch": None, "experience": None}
    manager.fire("step_end", state, 7, metrics={"loss": 0.1})
    assert (heard["step_idx"], heard["metrics"]) == (7, {"loss": 0.1})


def test_firing_with_too_much_or_too_little_is_an_error():
    for manager in (CallbackManager(), CallbackManager([_Hearing()])):
        with pytest.raises(TypeError, match="nonsense"):
            manager.moments.step_end(TrainState(), nonsense=1)
        with pytest.raises(TypeError, match="state"):
            manager.moments.step_end()


class _Hearing(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        return batch


def test_wanting_speaks_of_moments_and_of_items():
    manager = CallbackManager([_Hearing()])
    assert manager.wants("step_end")
    assert manager.wants("step_end", "batch")
    assert not manager.wants("step_end", "experience")
    assert not manager.wants("epoch_end")
    manager.on("epoch_end")(lambda: None)
    assert manager.wants("epoch_end")
    with pytest.raises(EventError, match="did you mean 'batch'"):
        manager.wants("step_end", "bach")


def test_every_counts_steps_by_their_index_and_other_moments_by_firings():
    manager, steps, evals, episodes = CallbackManager(), [], [], []
    manager.on("step_end", every=3)(lambda step_idx: steps.append(step_idx))
    manager.on("eval_end", every=2)(lambda eval_name: evals.append(eval_name))
    manager.on("episode_end", every=2)(lambda episode: episodes.append(episode))
    for step_idx in range(4, 10):  # as after a resume
        manager.fire("step_end", TrainState(global_step=step_idx + 1))
        manager.fire("eval_end", TrainState(), eval_name=f"e{step_idx}")
        manager.fire("episode_end", TrainState(), episode=step_idx)
    assert steps == [5, 8]
    assert evals == ["e5", "e7", "e9"]
    assert episodes == [5, 7, 9]
    with pytest.raises(HookError, match="every must be an integer of at least 1, not 0"):
        manager.on("step_end", every=0)


def test_every_at_step_start_names_the_same_steps_as_at_step_end():
    manager, starts, ends = CallbackManager(), [], []
    manager.on("step_start", every=3)(lambda state: starts.append(state.global_step))
    manager.on("step_end", every=3)(lambda step_idx: ends.append(step_idx))
    for step_idx in range(7):
        manager.fire("step_start", TrainState(global_step=step_idx))
        manager.fire("step_end", TrainState(global_step=step_idx + 1))
    assert starts == ends == [2, 5]


def fires_twelve_times(manager, first=0, last=12):
    """Two epochs in each of six episodes, as a trainer fires them; from the middle, as after a resume."""
    for place in range(first, last):
        episode, epoch = divmod(place, 2)
        state = LoopState(episode=episode, epoch=epoch, num_epochs=2)
        if epoch == 0 or place == first:  # the starts of what is open come again
            manager.fire("episode_start", state, episode)
        manager.fire("epoch_start", state, epoch)
        manager.fire("eval_end", state, 0, "quiz", {})
        manager.fire("epoch_end", state, epoch)
        if epoch == 1:
            manager.fire("update_start", state, episode + 1)
            manager.fire("update_end", state, episode + 1)
            manager.fire("episode_end", state, episode)


COUNTED = ("episode_start", "episode_end", "epoch_start", "epoch_end", "update_start", "update_end", "eval_end")


def listening(heard):
    manager = CallbackManager()
    for event in COUNTED:
        manager.on(event, every=3)(lambda state, event=event: heard.append((event, state.episode, state.epoch)))
    return manager


def test_every_counts_on_after_a_resume_wherever_that_is():
    whole = []
    fires_twelve_times(listening(whole))
    assert {event for event, *_ in whole} == set(COUNTED)
    for cut in range(1, 12):
        parts = []
        first = listening(parts)
        fires_twelve_times(first, last=cut)
        second = listening(parts)
        second.load_state_dict(first.state_dict())
        fires_twelve_times(second, first=cut)
        again = [one for one in parts if one[0] == "episode_start"]  # of the open episode, whose start comes again
        assert [one for one in parts if one[0] != "episode_start"] == [
            one for one in whole if one[0] != "episode_start"
        ]
        assert [episode for _, episode, _ in dict.fromkeys((e, n, 0) for e, n, _ in again)] == [2, 5]


def test_what_is_removed_is_not_called_again():
    manager, heard = CallbackManager(), []
    function = manager.on("step_end")(lambda state: heard.append(1))
    manager.on("step_start")(function)
    manager.fire("step_end", TrainState())
    manager.remove(function)
    manager.fire("step_end", TrainState())
    manager.fire("step_start", TrainState())
    assert heard == [1]
    with pytest.raises(HookError, match="is not registered here"):
        manager.remove(function)


def test_callbacks_added_while_a_moment_is_heard_hear_the_next_one():
    manager, heard = CallbackManager(), []

    @manager.on("step_end")
    def add_another():
        heard.append("first")
        if len(heard) == 1:
            manager.on("step_end")(lambda: heard.append("second"))

    manager.fire("step_end", TrainState())
    assert heard == ["first"]
    manager.fire("step_end", TrainState())
    assert heard == ["first", "first", "second"]


def test_experiment_moments_carry_their_context(tmp_path):
    heard = []

    class Logger(Callback):
        def on_run_start(self, ctx):
            heard.append(ctx)

        def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
            heard.append((eval_result, predictions, step))

    manager, ctx = CallbackManager([Logger()]), LogContext(tmp_path)
    manager.moments.run_start(ctx)
    manager.moments.benchmark_eval(ctx, "result", [{"reward": 1.0}], 7)
    manager.fire("benchmark_eval", ctx, "result", [])
    assert heard == [ctx, ("result", [{"reward": 1.0}], 7), ("result", [], None)]


@pytest.mark.parametrize("wrong", [{"priority": "LOGGING"}, {"priority": True}, {"error_policy": "raise"}])
def test_settings_of_the_wrong_type_are_refused_at_registration(wrong):
    with pytest.raises(HookError, match=next(iter(wrong))):
        CallbackManager().on("step_end", **wrong)(lambda: None)
    with pytest.raises(HookError, match=next(iter(wrong))):
        CallbackManager([type("Mine", (_Hearing,), wrong)()])


@pytest.mark.parametrize(
    ("event", "right"),
    [
        ("batch_end", "'step_end'"), ("fit_start", "'train_start'"), ("eval", "'eval_end'"),
        ("checkpoint", "'checkpoint_saved'"), ("exception", "'error'"), ("train_begin", "'train_start'"),
    ],
)  # fmt: skip
def test_names_of_hooks_and_of_other_libraries_lead_to_the_moment(event, right):
    with pytest.raises(EventError, match="did you mean") as refused:
        CallbackManager().on(event)
    assert right in str(refused.value)


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("on_train_begin", "did you mean 'on_train_start'"),
        ("on_error", "Callback has on_exception(state, exception) for that moment"),
        ("on_eval_end", "Callback has on_eval(state, step_idx, eval_name, metrics)"),
        ("on_step_start", "it is one of"),
        ("on_log", "it has: on_benchmark_eval"),
    ],
)
def test_hooks_of_other_libraries_lead_to_ours(hook, words):
    if hook == "on_step_start":
        words = "register a function with manager.on('step_start')"
    with pytest.raises(HookError) as refused:
        type("Mine", (Callback,), {hook: lambda self: None})
    assert words in str(refused.value)


def test_likely_mistakes_with_callbacks_are_told_in_the_users_words():
    with pytest.raises(EventError, match=r"write e.g. @callbacks.on\('step_end'\)"):
        CallbackManager().on(lambda state: None)
    for wrong in (_Hearing(), "console", {"kind": "console"}):
        with pytest.raises(HookError, match="give a list"):
            CallbackManager.create(wrong)
    for wrong in ("console", {"kind": "console"}):
        with pytest.raises(HookError, match="build_callback"):
            CallbackManager([wrong])
    with pytest.raises(HookError, match=r"register a callback object with manager.add"):
        CallbackManager().on("step_end")(_Hearing())
    for every in ("10", 2.5):
        with pytest.raises(HookError, match="an integer"):
            CallbackManager().on("step_end", every=every)


def test_a_generator_would_never_run_and_is_refused():
    def generator(state):
        yield state

    with pytest.raises(HookError, match="'yield'"):
        CallbackManager().on("step_end")(generator)


def test_a_hook_set_to_none_is_not_overridden():
    class Without(_Hearing):
        on_step_end = None

    CallbackManager([Without()]).fire("step_end", TrainState())


def test_a_mixin_whose_hooks_would_be_hidden_is_refused():
    class Mixin:
        def on_step_end(self, state, step_idx, batch, metrics): ...

    with pytest.raises(HookError, match=r"write class Wrong\(Mixin, Callback\)"):

        class Wrong(Callback, Mixin): ...

    class Right(Mixin, Callback): ...

    assert CallbackManager([Right()]).wants("step_end")


def test_a_callback_without_hooks_is_said(caplog):
    class Nothing(Callback):
        def step_end(self): ...

    CallbackManager([Nothing()])
    assert "Nothing overrides no hook" in caplog.text


def test_a_bound_method_can_be_removed():
    class Owner:
        def hear(self, state): ...

    owner, manager = Owner(), CallbackManager()
    manager.on("step_end")(owner.hear)
    manager.remove(owner.hear)
    assert not manager.wants("step_end")


def test_a_bound_value_of_a_partial_is_kept():
    heard = []
    manager = CallbackManager()
    manager.on("step_end")(functools.partial(lambda s, metrics: heard.append(metrics), metrics="mine"))
    manager.fire("step_end", TrainState())
    assert heard == ["mine"]


def test_every_at_episodes_works_with_the_state_alone():
    heard, manager = [], CallbackManager()
    manager.on("episode_end", every=2)(lambda: heard.append(1))
    for _ in range(4):
        manager.fire("episode_end", TrainState())
    assert heard == [1, 1]


def test_one_that_hears_every_moment_may_choose_some():
    class Ends(EveryMoment):
        only_moments = ("train_end", "maker.lost")

        def __init__(self):
            self.heard = []

        def on_moment(self, event, payload):
            self.heard.append(event)

    manager = CallbackManager([Ends()])
    manager.fire("step_end", TrainState())
    manager.fire("maker.lost", "maker_1", "killed")
    manager.fire("train_end", TrainState())
    assert manager.callbacks[0].heard == ["maker.lost", "train_end"]
    assert not manager.wants("step_end")


def test_failures_in_a_callbacks_own_thread_are_counted_with_those_of_its_hooks():
    class Sender(Callback):
        error_policy = ErrorPolicy.LOG
        background_failures = 2

        def on_train_start(self, state):
            raise OSError("down")

    manager = CallbackManager([Sender()])
    manager.fire("train_start", TrainState())
    assert manager.errors == {"Sender": 3}
