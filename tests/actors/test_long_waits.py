"""A wait that lasts is said, with what everyone else does."""

from proa.actors.waiting import LongWaits


def test_a_long_wait_is_said_once_and_then_each_time_it_is_twice_as_long(caplog):
    waits = LongWaits("the trainer", first_seconds=30.0)
    for seconds in range(200):
        waits.look(
            [("maker_0", "more leases", 1e6), ("the trainer", "lease 3, which maker_0 has", float(seconds))],
            lambda: ["maker_0: scoring lease 3, for 12 s"],
        )
    said = [record.getMessage() for record in caplog.records]
    assert [line.split()[4] for line in said] == ["30", "60", "120"]
    assert said[0] == "the trainer has waited 30 s for lease 3, which maker_0 has; maker_0: scoring lease 3, for 12 s"


def test_the_next_wait_has_to_exceed_what_was_said_of_the_last(caplog):
    waits = LongWaits("the trainer", first_seconds=30.0)
    for seconds in (10.0, 40.0, 5.0, 70.0, 79.0, 80.0):
        waits.look([("the trainer", "any lease", seconds)], list)
    assert [record.getMessage().split()[4] for record in caplog.records] == ["40", "80"]
