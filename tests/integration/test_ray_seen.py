"""Callbacks that live in actors are seen: the driver shows what they print, and its instances have their state."""

import os
import re

import pytest
from tests.integration.small_run import SMALL, digest, header
from tests.integration.watched_run import Counts

from proa.callbacks import TrainerPerformanceEvaluator

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

STEPS, LEASES = 4, 16


def test_what_the_documented_callback_prints_in_the_trainer_is_in_the_drivers_output(watched):
    said = [
        line
        for line in watched.printed_by("trainer_0")
        if line.startswith(("Batch metrics: {'loss'", "Training complete."))
    ]
    assert [line[:13] for line in said] == ["Batch metrics"] * STEPS + ["Training comp"]
    assert all(re.match(r"\[(trainer_0|maker_[01])\] ", line) for line in watched.lines), watched.lines


def test_what_rewards_print_in_their_own_processes_is_there_too_and_complete(watched):
    said = [line for actor in watched.makes.actor_copies for line in watched.printed_by(actor)]
    scored = [line for line in said if line.startswith("scoring 2 in ")]
    assert len(scored) == LEASES
    assert str(os.getpid()) not in {line.split()[-1] for line in scored}


def test_a_last_line_without_an_end_is_shown_when_the_run_ends(watched):
    for actor, copy in watched.makes.actor_copies.items():
        assert watched.printed_by(actor)[-1] == f"made {copy.made}"


def test_the_instance_of_the_driver_has_the_state_of_its_copy_in_the_trainer(watched):
    assert watched.counts.steps == STEPS
    assert watched.counts.seen_by != os.getpid()
    assert watched.counts.actor_copies == {"trainer_0": watched.counts}


def test_and_of_each_maker_under_its_name_without_what_cannot_be_sent(watched):
    # The first may have done all before the second is up.
    assert set(watched.makes.actor_copies) <= {"maker_0", "maker_1"}
    assert sum(copy.made for copy in watched.makes.actor_copies.values()) == STEPS * SMALL["train_batch_size"]
    assert not any(hasattr(copy, "lock") for copy in watched.makes.actor_copies.values())
    assert watched.makes.made == 0


def test_evaluators_print_there_and_their_summaries_are_in_the_header(watched):
    assert str(watched.trainer.performance) in watched.printed_by("trainer_0")
    assert watched.trainer.performance.samples == STEPS * SMALL["train_batch_size"]
    for actor, copy in watched.maker.actor_copies.items():
        assert str(copy.performance) in watched.printed_by(actor)
    measured = watched.on_ray["performance"]
    assert set(measured) == {"trainer_0", *watched.maker.actor_copies}
    assert measured["trainer_0"] == watched.trainer.performance.to_dict()
    assert (
        sum(one["samples"] for one in measured.values() if one["role"] == "maker") == STEPS * SMALL["train_batch_size"]
    )


class FailsLater(Counts):
    all_ranks = True

    def on_batch_end(self, metrics, experience):
        super().on_batch_end(metrics, experience)
        print("not shown")
        if self.steps == 2:
            raise OSError("the disk is full")


@pytest.mark.prove
def test_a_run_that_fails_gives_the_state_back_and_a_key_turns_the_lines_off(ray_cluster, tmp_path, capsys):
    callback, evaluator = FailsLater(), TrainerPerformanceEvaluator(3000)
    with pytest.raises(OSError, match="the disk is full"):
        digest(
            tmp_path, "ray", runtime="ray", trainers=2, callbacks=[callback, evaluator], ray={"log_to_driver": False}
        )
    assert callback.steps == 2
    assert set(callback.actor_copies) == {"trainer_0", "trainer_1"}
    assert callback.actor_copies["trainer_1"].steps >= 1
    assert callback.actor_copies["trainer_1"].seen_by not in (callback.seen_by, os.getpid())
    assert set(header(tmp_path, "ray")["performance"]) == {"trainer_0", "trainer_1"}
    assert "not shown" not in capsys.readouterr().out


def test_output_on_another_machine_is_read_there(ray_cluster, tmp_path, monkeypatch, capsys):
    from proa.runtime.ray import output
    from proa.runtime.ray.replies import Location, this_node_id

    there = this_node_id()
    monkeypatch.setattr(output, "this_node_id", lambda: "the driver's")
    monkeypatch.setattr(output, "LAST_SECONDS", 60.0)
    (tmp_path / "maker_0.log").write_text("one\ntwo")
    outputs = output.ActorOutputs(is_shown=True)
    outputs.follow("maker_0", Location(1, "10.0.0.7", str(tmp_path / "maker_0.log"), there))
    outputs.show()  # asks, and does not wait
    (tmp_path / "maker_0.log").write_text("one\ntwo\nthree")
    outputs.finish()
    assert capsys.readouterr().out == "[maker_0] one\n[maker_0] two\n[maker_0] three\n"


def test_output_on_a_machine_that_is_gone_is_said_to_be_missing(ray_cluster, monkeypatch, caplog):
    from proa.runtime.ray import output
    from proa.runtime.ray.replies import Location

    monkeypatch.setattr(output, "LAST_SECONDS", 60.0)
    outputs = output.ActorOutputs(is_shown=True)
    outputs.follow("maker_0", Location(1, "10.0.0.7", "/nowhere/maker_0.log", "ab" * 28))
    outputs.finish()
    assert caplog.messages[0].startswith("what actors on 10.0.0.7 print is not shown any more: ")
