"""A maker's hook that changes experience: what it changes is what is trained and recorded, on any runtime."""

import json

import pytest
from tests.run.test_failed_rewards import SMALL, inline

from proa import CallbackManager, ErrorPolicy, MakerCallback
from proa.config import load_run_config
from proa.recipes import grpo
from proa.resume.inputs import ChangedInputsError
from proa.run.replay import replay


def by_length(completions):
    return [float(len(text)) for text in completions]


class Negate(MakerCallback):
    def on_make_experience_end(self, experience):
        experience.reward *= -1


def negated(completions):
    return [-value for value in by_length(completions)]


class MaskFirst(MakerCallback):
    """Leaves out the first token of each completion that has more than one."""

    def on_make_experience_end(self, experience):
        mask = experience.action_mask.clone()
        mask[:, 0] &= mask.sum(-1) == 1
        experience.action_mask = mask


def run(tmp_path, name, **changes):
    settings = {**SMALL, "name": name, "total_steps": 2, "reward": inline(by_length), "record": {"rollouts_every": 1}}
    grpo(**{**settings, "optimizer": {"learning_rate": 1e-2}, "output_dir": tmp_path, **changes})
    found = json.loads((tmp_path / name / "run.json").read_text())
    rollouts = [
        json.loads(line)
        for file in sorted((tmp_path / name / "rollouts").iterdir())
        for line in file.read_text().splitlines()
    ]
    return found, rollouts


def test_a_changed_reward_is_what_is_trained_and_recorded(tmp_path):
    plain, _ = run(tmp_path, "plain")
    hooked, shown = run(tmp_path, "hooked", callbacks=[Negate()])
    scored, expected = run(tmp_path, "scored", reward=inline(negated))
    assert hooked["weights_digest"] == scored["weights_digest"] != plain["weights_digest"]
    assert [one["reward"] for one in shown] == [one["reward"] for one in expected]
    assert any(one["reward"] < 0 for one in shown)
    again, _ = run(tmp_path, "two_makers", callbacks=[Negate()], makers=2)
    assert again["weights_digest"] == hooked["weights_digest"]


def test_a_changed_mask_is_what_is_trained_and_the_record_shows_the_whole_completion(tmp_path):
    plain, _ = run(tmp_path, "plain")
    masked, shown = run(tmp_path, "masked", callbacks=[MaskFirst()])
    assert masked["weights_digest"] != plain["weights_digest"]
    for one in shown:
        assert len(one["tokens"]) == len(one["log_probs"]) == len(one["advantages"])
        assert len(one["tokens"]) == 1 or one["advantages"][0] == 0.0
    assert any(len(one["tokens"]) > 1 and one["advantages"][1] for one in shown)


def test_a_function_that_listens_in_the_runs_manager_may_change_it_too(tmp_path):
    manager = CallbackManager()

    @manager.on("maker.make_experience_end")
    def negate(experience):
        experience.reward = -experience.reward

    hooked, _ = run(tmp_path, "hooked", callbacks=manager)
    scored, _ = run(tmp_path, "scored", reward=inline(negated))
    assert hooked["weights_digest"] == scored["weights_digest"]


def test_a_hook_may_give_a_reward_to_a_sample_that_had_none(tmp_path):
    class Rescue(MakerCallback):
        def on_make_experience_end(self, experience):
            experience.reward = experience.reward.nan_to_num(0.0)

    def fails_on_the_first(completions):
        return [None, *by_length(completions[1:])]

    def gives_0(completions):
        return [0.0, *by_length(completions[1:])]

    rescued, _ = run(tmp_path, "rescued", callbacks=[Rescue()], reward=inline(fails_on_the_first))
    scored, _ = run(tmp_path, "scored", reward=inline(gives_0))
    assert rescued["weights_digest"] == scored["weights_digest"]
    assert "reward_failures" not in rescued


def test_a_change_that_is_refused_fails_the_run_with_callback_and_hook_named(tmp_path):
    class Rewrite(MakerCallback):
        def on_make_experience_end(self, experience):
            experience.sequences[0, 0] += 1

    with pytest.raises(
        Exception, match=r"Rewrite.on_make_experience_end changed 'sequences' of the experience: it may"
    ):
        run(tmp_path, "refused", callbacks=[Rewrite()])


def test_it_does_not_fire_in_evals(tmp_path):
    shown = []

    class Count(MakerCallback):
        def on_make_experience_end(self, experience):
            shown.append(len(experience))

    run(tmp_path, "evals", callbacks=[Count()], eval=[{"name": "held_out", "source": "sort_digits", "count": 4}])
    assert sum(shown) == 2 * SMALL["train_batch_size"]


def test_a_list_may_hold_callbacks_and_a_manager(tmp_path):
    heard, manager = [], CallbackManager()
    manager.on("step_end")(lambda state: heard.append(state.global_step))
    before = len(manager.callbacks)
    listed, _ = run(tmp_path, "listed", callbacks=[Negate(), manager])
    scored, _ = run(tmp_path, "scored", reward=inline(negated))
    assert listed["weights_digest"] == scored["weights_digest"]
    assert heard == [1, 2]
    assert len(manager.callbacks) == before  # what was given beside it is taken out again


class AlwaysFails(MakerCallback):
    error_policy = ErrorPolicy.LOG

    def on_make_experience_end(self, experience):
        raise ValueError("my bug")


def test_errors_of_a_makers_callbacks_are_counted_in_the_result(tmp_path):
    found, _ = run(tmp_path, "counted", callbacks=[AlwaysFails()], makers=2)
    leases = 2 * SMALL["train_batch_size"] // SMALL["sampling"]["group_size"]  # of one prompt each
    assert found["callback_errors"] == {"AlwaysFails": leases}


def test_errors_of_makers_that_were_replaced_are_counted_too(tmp_path):
    class Raises(MakerCallback):
        def on_make_experience_end(self, experience):
            raise ValueError("my bug")

    with pytest.raises(Exception, match="my bug"):
        run(tmp_path, "raised", callbacks=[Raises()])
    header = json.loads((tmp_path / "raised" / "run.json").read_text())
    assert header["callback_errors"]["Raises"] >= 3  # so many makers may fail on a lease, and they have several


def test_a_function_that_fails_in_the_runs_manager_is_counted_once(tmp_path):
    manager = CallbackManager()

    @manager.on("maker.send_end", error_policy=ErrorPolicy.LOG)
    def broken(state):
        raise ValueError("my bug")

    found, _ = run(tmp_path, "function", callbacks=manager)
    assert list(found["callback_errors"]) == ["broken"]


class Scale(MakerCallback):
    def __init__(self, by):
        self.by = by

    def on_make_experience_end(self, experience):
        experience.reward *= self.by


class Watch(MakerCallback):
    def on_make_experience_start(self):
        pass


def cut_off(tmp_path, name, *hooks, **more):
    """A run of two steps that counts as cut off after its first, and what goes on with it with other hooks."""
    kind = "tests.run.test_changed_experience:"
    settings = {
        **SMALL, "name": name, "total_steps": 2, "output_dir": tmp_path, "checkpoint": {"save_every": 1, "keep": None},
        "max_staleness": 0, "reward": {"workers": 0, "functions": [f"{kind}by_length"]}, **more,
        "optimizer": {"learning_rate": 1e-2},
    }  # fmt: skip

    def config(*hooks):
        sections = [{"kind": kind + type(one).__name__, "params": vars(one)} for one in hooks]
        return load_run_config(None, recipe="grpo", **settings, callbacks=sections)

    grpo(config(*hooks))
    path = tmp_path / name / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "cancelled"}))
    return lambda *hooks, **more: grpo(config(*hooks), resume="step_1", **more)


def test_a_replay_has_the_hooks_that_may_change_experience_and_no_other_callbacks(tmp_path):
    cut_off(tmp_path, "hooked", Scale(-1.0), Watch())
    found = replay(tmp_path / "hooked", into=tmp_path / "again")
    assert found.same, found.compared
    kept = json.loads((tmp_path / "again" / "config.json").read_text())["callbacks"]
    assert [one["kind"].partition(":")[2] for one in kept] == ["Scale"]


def test_a_replay_says_which_hook_it_could_not_have(tmp_path):
    run(tmp_path, "given", callbacks=[Negate()], reward=_by_path(), checkpoint={"save_every": 1})
    found = replay(tmp_path / "given", into=tmp_path / "again")
    assert not found.same
    assert found.other_inputs == ["the hook Negate, which is shown experience and may change it, was there and is not"]


def _by_path():
    return {"workers": 0, "functions": ["tests.run.test_changed_experience:by_length"]}


def test_a_run_goes_on_with_the_hooks_that_it_had(tmp_path):
    go_on = cut_off(tmp_path, "hooked", Scale(-1.0))
    others = {
        "Scale, which is shown experience and may change it, was there and is not": [],
        "Scale, which may change experience, has changed": [Scale(-2.0)],
        "Scale (2), which is shown experience and may change it, was not there and is now": [Scale(-1.0), Scale(-1.0)],
    }
    for words, hooks in others.items():
        with pytest.raises(ChangedInputsError) as caught:
            go_on(*hooks)
        assert words in str(caught.value)
    digest = json.loads((tmp_path / "hooked" / "run.json").read_text())["weights_digest"]
    go_on(Scale(-1.0), Watch())
    assert json.loads((tmp_path / "hooked" / "run.json").read_text())["weights_digest"] == digest
