"""Hooks of makers that are actors: what they change is trained, and what fails in them is counted."""

import pytest
from tests.integration.small_run import SMALL, digest, header

from proa import CallbackManager, ErrorPolicy, MakerCallback, TrainerCallback


class Negate(MakerCallback):
    def on_make_experience_end(self, experience):
        experience.reward *= -1


class MakerFails(MakerCallback):
    error_policy = ErrorPolicy.LOG

    def on_send_start(self):
        raise ValueError("my bug")


class TrainerFails(TrainerCallback):
    error_policy = ErrorPolicy.LOG

    def on_batch_start(self):
        raise ValueError("my bug")


def listening(*others):
    """A list with a manager in it, in which a function halves rewards."""
    manager = CallbackManager()

    @manager.on("maker.make_experience_end")
    def halve(experience):
        experience.reward = experience.reward / 2

    return [*others, manager]


@pytest.mark.usefixtures("ray_cluster")
def test_hooks_in_actors_and_in_the_driver_change_what_is_trained_and_errors_in_actors_are_counted(tmp_path):
    plain = digest(tmp_path, "plain")
    local = digest(tmp_path, "local", callbacks=listening(Negate(), MakerFails(), TrainerFails()))
    there = digest(
        tmp_path, "there", callbacks=listening(Negate(), MakerFails(), TrainerFails()), runtime="ray", makers=2
    )
    assert there == local != plain
    steps = SMALL["total_steps"]
    expected = {"MakerFails": 4 * steps, "TrainerFails": steps}  # four leases a step
    assert header(tmp_path, "local")["callback_errors"] == expected
    assert header(tmp_path, "there")["callback_errors"] == expected
