"""Callback state in checkpoints: under its own key, back into the same object."""

import pytest

from proa import Callback, CallbackManager
from proa.errors import CallbackStateError


class Counter(Callback):
    def __init__(self, count=0, state_key=None):
        self.count = count
        self.state_key = state_key

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, saved):
        self.count = saved["count"]


def test_two_of_one_class_keep_their_own_state_in_any_order():
    saved = CallbackManager([Counter(1, "a"), Counter(2, "b"), Callback()]).state_dict()
    assert saved == {"a": {"count": 1}, "b": {"count": 2}}
    a, b = Counter(state_key="a"), Counter(state_key="b")
    CallbackManager([b, a]).load_state_dict(saved)
    assert (a.count, b.count) == (1, 2)


def test_two_of_one_class_without_keys_are_refused():
    with pytest.raises(CallbackStateError, match="two callbacks would save their state as 'Counter'.*state_key"):
        CallbackManager([Counter(), Counter()])


def test_the_class_name_is_the_key_where_none_is_given():
    assert CallbackManager([Counter(5)]).state_dict() == {"Counter": {"count": 5}}


def test_state_that_fits_nobody_and_newcomers_are_said(caplog):
    counter = Counter(7, "new")
    CallbackManager([counter]).load_state_dict({"nwe": {"count": 1}})
    assert counter.count == 7
    assert "saved state of callback 'nwe' has no callback here; did you mean 'new'?" in caplog.text
    assert "callback 'new' has no saved state and starts from the beginning" in caplog.text


def test_half_a_pair_is_refused():
    class Half(Callback):
        def state_dict(self): ...

    with pytest.raises(CallbackStateError, match="needs both"):
        CallbackManager([Half()])
