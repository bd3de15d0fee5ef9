"""The driver's view of its makers, at the end of a run that was too short to look at them."""

from types import SimpleNamespace

from proa import CallbackManager
from proa.record.live import ActorView
from proa.runtime.local import Supervision
from proa.runtime.ray.maker_host import MakerEnd
from proa.runtime.ray.makers import Limits, MakerFleet


class Call:
    """A call to an actor that ends when it is told to."""

    def __init__(self, value=None, *, over=False):
        self.value, self.over = value, over

    def ended(self):
        return self.over


class Watched:
    """An actor that replies to every look."""

    def __init__(self, view):
        self.said, self._view = None, view

    def look(self):
        self.said = self._view
        return True


def fleet_of(view, *, is_up):
    fleet = MakerFleet(
        1, SimpleNamespace, None, manager=CallbackManager(), limits=Limits(supervision=Supervision()), patience=1.0
    )
    (post,) = fleet._posts.values()
    post.actor, post.starting, post.watched = object(), Call(over=is_up), Watched(view)
    post.working = Call(MakerEnd(callback_errors={"Failing": 3}))
    return fleet, post


def test_a_maker_that_nobody_looked_at_is_waited_for_and_what_failed_in_it_is_counted():
    fleet, post = fleet_of(ActorView("maker_0", "maker", doing="generating", since=1.0), is_up=True)
    assert fleet.at_work
    fleet.see_off()
    assert fleet.at_work  # it says so itself now
    post.working.over = True
    fleet.see_off()
    assert not fleet.at_work
    assert fleet.callback_errors == {"Failing": 3}


def test_a_maker_that_is_not_up_or_still_gets_ready_is_not_waited_for():
    fleet, _ = fleet_of(None, is_up=False)
    assert not fleet.at_work
    fleet, _ = fleet_of(ActorView("maker_0", "maker", doing="getting ready"), is_up=True)
    fleet.see_off()
    assert not fleet.at_work
