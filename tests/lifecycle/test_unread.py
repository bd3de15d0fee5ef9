"""What a hook is given and never looks at is not worth building or sending."""

import functools

from proa import Callback, CallbackManager
from proa.lifecycle.unread import unread_items

STEP = ("state", "step_idx", "batch", "metrics")


class Hooks(Callback):
    def on_step_end(self, state, step_idx, batch, metrics):
        state.log("twice", 2 * metrics["loss"])

    def under_other_names(self, s, i, b, m):
        return b

    def in_a_closure(self, state, step_idx, batch, metrics):
        return lambda: batch

    def sets_it(self, state, step_idx, batch, metrics):
        batch = state.step
        state.log("step", batch)

    def hands_it_on(self, *args):
        return args

    def by_keyword(self, state, *, batch=None, **others):
        return others


def test_items_that_the_code_never_names_are_unread():
    hooks = Hooks()
    assert unread_items(hooks.on_step_end, STEP) == {"step_idx", "batch"}
    assert unread_items(hooks.under_other_names, STEP) == {"state", "step_idx", "metrics"}
    assert unread_items(hooks.in_a_closure, STEP) == {"state", "step_idx", "metrics"}
    assert "batch" not in unread_items(hooks.sets_it, STEP)
    assert unread_items(hooks.hands_it_on, STEP) == set()
    assert unread_items(hooks.by_keyword, ("state", "batch=batch", "metrics=metrics")) == {"state", "batch"}
    assert unread_items(lambda batch: 1, ("batch",)) == {"batch"}


def test_where_the_code_cannot_tell_everything_counts_as_read():
    def looks_at_all(batch):
        return locals()

    @functools.wraps(Hooks.on_step_end)
    def decorated(*args):
        return args

    for function in (looks_at_all, decorated, functools.partial(looks_at_all), [].append, print):
        assert unread_items(function, ("batch",)) == set()


def test_what_nobody_reads_is_not_wanted_though_it_is_taken():
    manager = CallbackManager([Hooks()])
    assert manager.wants("step_end", "metrics")
    assert not manager.wants("step_end", "batch")
    assert len(manager.readers("step_end", "batch")) == 1  # it is given to one
    manager.on("step_end")(lambda batch: print(batch))
    assert manager.wants("step_end", "batch")
