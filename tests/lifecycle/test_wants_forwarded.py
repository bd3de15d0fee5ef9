"""What nobody reads at the other end of a forwarder is not built for it."""

from proa import CallbackManager
from proa.data.state import LoopState
from proa.run.placing import ToDriver


def test_a_forwarder_wants_what_is_read_where_it_forwards_to_also_by_listeners_that_come_later():
    driver = CallbackManager()
    maker = CallbackManager([ToDriver(driver)])
    asked = ("maker.make_experience_end", "experience")
    assert not maker.wants(*asked)
    seen = []
    listener = driver.on("maker.make_experience_end")(lambda experience: seen.append(experience))
    assert maker.wants(*asked)
    maker.fire("maker.make_experience_end", LoopState(), "rows")
    assert seen == ["rows"]
    driver.remove(listener)
    assert not maker.wants(*asked)


def test_a_listener_beside_it_still_counts():
    maker = CallbackManager([ToDriver(CallbackManager())])
    maker.on("maker.make_experience_end")(lambda experience: len(experience))
    assert maker.wants("maker.make_experience_end", "experience")
