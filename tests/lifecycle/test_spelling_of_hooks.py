"""A misspelt hook or event cannot pass: it is refused where it is written, with the right name."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proa import Callback, CallbackManager, MakerCallback, TrainerCallback, TrainState
from proa.errors import EventError, HookError
from proa.lifecycle import EVENT_NAMES, EveryMoment
from proa.spelling import edit_distance

FAMILIES = [TrainerCallback, MakerCallback, Callback]
HOOKS = [(family, name) for family in FAMILIES for name in family.hooks]
LETTERS = string.ascii_lowercase + "_"
A_FEW = "s"  # each place of a name is tried with them; with every letter that is forty thousand classes


def one_edit_away(word: str, alphabet: str) -> set[str]:
    cuts = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    deleted = {a + b[1:] for a, b in cuts if b}
    swapped = {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
    replaced = {a + letter + b[1:] for a, b in cuts if b for letter in alphabet}
    inserted = {a + letter + b for a, b in cuts for letter in alphabet}
    return deleted | swapped | replaced | inserted


def refused_events(event, alphabet):
    """Every misspelling of an event is refused, with the right name."""
    manager = CallbackManager()
    for wrong in one_edit_away(event, alphabet) - set(EVENT_NAMES):
        for use in (manager.on, lambda name: manager.fire(name, TrainState())):
            with pytest.raises(EventError) as refused:
                use(wrong)
            assert f"did you mean {event!r}?" in str(refused.value)


def refused_hooks(family, hook, alphabet):
    """Every misspelling of a hook is refused when its class is made, with the right name."""
    for wrong in one_edit_away(hook.removeprefix("on_"), alphabet):
        name = f"on_{wrong}"
        if name in family.hooks or not name.isidentifier():
            continue
        with pytest.raises(HookError) as refused:
            type("Mine", (family,), {name: lambda self: None})
        assert f"Mine.{name} is not a hook of {family.__name__}" in str(refused.value)
        suggested = str(refused.value).partition("did you mean ")[2].partition("?")[0]
        assert repr(hook) in suggested.split(" or ")  # two hooks can be equally near: `on_ait_end`


def test_a_misspelt_event_is_refused_with_the_right_name():
    for event in EVENT_NAMES:
        refused_events(event, A_FEW)


def test_a_misspelt_hook_is_refused_when_its_class_is_made():
    for family, hook in HOOKS:
        refused_hooks(family, hook, A_FEW)


@pytest.mark.prove
@pytest.mark.parametrize("event", EVENT_NAMES)
def test_every_one_edit_misspelling_of_an_event_is_refused_with_the_right_name(event):
    refused_events(event, LETTERS + ".")


@pytest.mark.prove
@pytest.mark.parametrize(("family", "hook"), HOOKS, ids=lambda value: getattr(value, "__name__", value))
def test_every_one_edit_misspelling_of_a_hook_is_refused_when_its_class_is_made(family, hook):
    refused_hooks(family, hook, LETTERS)


@settings(max_examples=50)
@given(st.text(LETTERS, min_size=1, max_size=20))
def test_any_other_name_after_on_is_refused_too(tail):
    name = f"on_{tail}"
    for family in FAMILIES:
        if name not in family.hooks:
            with pytest.raises(HookError):
                type("Mine", (family,), {name: lambda self: None})


def test_a_hook_of_another_family_names_the_one_to_use():
    with pytest.raises(HookError, match=r"on_step_end is not a hook of TrainerCallback, it is one of Callback; "
                                        r"TrainerCallback has on_batch_end\(metrics, experience\)"):  # fmt: skip

        class Mine(TrainerCallback):
            def on_step_end(self, state, step_idx, batch, metrics): ...


def test_a_misspelt_hook_in_a_mixin_is_found():
    class Mixin:
        def on_step_ned(self, state, step_idx, batch, metrics): ...

    with pytest.raises(HookError, match="on_step_end"):

        class Mine(Mixin, Callback): ...


def test_a_misspelt_hook_on_an_instance_is_found_at_registration():
    callback = Callback()
    callback.on_step_ned = lambda *_: None
    with pytest.raises(HookError, match="on_step_end"):
        CallbackManager([callback])


def test_a_hook_set_on_an_instance_is_called():
    heard = []
    callback = Callback()
    callback.on_train_start = heard.append
    state = TrainState()
    CallbackManager([callback]).fire("train_start", state)
    assert heard == [state]


def test_helpers_and_attributes_that_are_no_hooks_are_left_alone():
    class Mine(Callback):
        on_gpu = True

        def _on_anything(self): ...
        def handle(self): ...

    CallbackManager([Mine()])


def test_a_class_of_two_families_is_refused():
    with pytest.raises(HookError, match="TrainerCallback and MakerCallback"):

        class Both(TrainerCallback, MakerCallback): ...


def test_a_listener_to_everything_has_one_hook():
    with pytest.raises(HookError, match="did you mean 'on_moment'"):

        class Mine(EveryMoment):
            def on_momnet(self, event, payload): ...


@given(st.text(LETTERS, max_size=8), st.text(LETTERS, max_size=8), st.text(LETTERS, max_size=8))
def test_edit_distance_is_a_distance_of_neighbours(a, b, c):
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, a + c) == len(c)


@given(st.text(LETTERS, min_size=1, max_size=8))
def test_one_edit_is_distance_one(word):
    assert {edit_distance(word, other) for other in one_edit_away(word, "ab") - {word}} == {1}
