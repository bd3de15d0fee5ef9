"""ColossalChat's page about `TrainerCallback` and `MakerCallback`, statement by statement."""

from abc import ABC
from types import SimpleNamespace

import pytest
from tests.ancestors.listeners import FromMakerPage, FromTrainerPage, Heard
from tests.ancestors.runs import OwnTrainer, numbered
from tests.ancestors.signatures import differences
from tests.small import MODEL

import proa
from proa import CallbackManager, Experience, ExperienceMakerHolder, MakerCallback, TrainerCallback
from proa.lifecycle import MOMENTS

TRAINER_HOOKS = {
    "on_fit_start": {},
    "on_fit_end": {},
    "on_episode_start": {"episode": int},
    "on_episode_end": {"episode": int},
    "on_epoch_start": {"epoch": int},
    "on_epoch_end": {"epoch": int},
    "on_batch_start": {},
    "on_batch_end": {"metrics": dict, "experience": Experience},
    "on_update_start": {},
    "on_update_end": {},
}
MAKER_HOOKS = {
    "on_loop_start": {},
    "on_loop_end": {},
    "on_make_experience_start": {},
    "on_make_experience_end": {"experience": Experience},
    "on_send_start": {},
    "on_send_end": {},
    "on_batch_start": {},
    "on_batch_end": {},
}
BASES = {"TrainerCallback": (TrainerCallback, TRAINER_HOOKS), "MakerCallback": (MakerCallback, MAKER_HOOKS)}


def nesting(heard, pairs):
    """How deep each start of one of these pairs is, in order; raises unless each has its own end."""
    open_pairs, depths = [], []
    for name in heard.names:
        pair, _, edge = name.removeprefix("on_").rpartition("_")
        if pair in pairs and edge == "start":
            depths.append((pair, len(open_pairs)))
            open_pairs.append(pair)
        elif pair in pairs:
            assert open_pairs.pop() == pair
    assert not open_pairs
    return depths


@pytest.mark.parametrize("pair", ["fit", "episode", "epoch", "batch", "update"])
def test_a_trainer_has_a_start_and_an_end_of(pair, grpo_run):
    starts, ends = grpo_run.hooks.named(f"on_{pair}_start"), grpo_run.hooks.named(f"on_{pair}_end")
    times = {"fit": 1, "episode": 2, "epoch": 4, "batch": 8, "update": 2}
    assert len(starts) == len(ends) == times[pair]
    depths = {"fit": 0, "episode": 1, "epoch": 2, "batch": 3, "update": 2}
    assert {depth for name, depth in nesting(grpo_run.hooks, depths) if name == pair} == {depths[pair]}


@pytest.mark.parametrize("pair", ["loop", "batch", "make_experience", "send"])
def test_a_maker_has_a_start_and_an_end_of(pair, grpo_run):
    starts, ends = grpo_run.makers.named(f"on_{pair}_start"), grpo_run.makers.named(f"on_{pair}_end")
    leases = len(grpo_run.makers.named("on_batch_end"))
    assert leases >= 8
    assert len(starts) == len(ends) == (1 if pair == "loop" else leases)
    depths = {"loop": 0, "batch": 1, "make_experience": 2, "send": 2}
    assert {depth for name, depth in nesting(grpo_run.makers, depths) if name == pair} == {depths[pair]}


@pytest.mark.parametrize("base", BASES)
def test_a_base_is_an_abc_of_which_nothing_must_be_overridden(base):
    family, _ = BASES[base]
    assert issubclass(family, ABC)
    assert not family.__abstractmethods__
    family()


@pytest.mark.parametrize("base", BASES)
def test_what_is_not_overridden_does_nothing(base):
    family, hooks = BASES[base]
    for name, arguments in hooks.items():
        assert getattr(family(), name)(*(None for _ in arguments)) is None


@pytest.mark.parametrize("base", BASES)
def test_a_subclass_overrides_the_hooks_that_it_needs_and_only_these_are_called(base):
    family, hooks = BASES[base]
    for name, arguments in hooks.items():
        hook = eval(f"lambda {', '.join(('self', *arguments))}: None")
        manager = CallbackManager([type("Mine", (family,), {name: hook})()])
        called = {event for event in MOMENTS if manager.explain(event)}
        assert called == {family.hooks[name].moment.name}


@pytest.mark.parametrize("hook", TRAINER_HOOKS)
def test_the_signature_of_a_trainers(hook):
    assert differences(getattr(TrainerCallback, hook), TRAINER_HOOKS[hook]) == ""
    CallbackManager([FromTrainerPage(Heard())])


@pytest.mark.parametrize("hook", MAKER_HOOKS)
def test_the_signature_of_a_makers(hook):
    assert differences(getattr(MakerCallback, hook), MAKER_HOOKS[hook]) == ""
    CallbackManager([FromMakerPage(Heard())])


def test_both_bases_are_imported_from_one_place():
    assert {"TrainerCallback", "MakerCallback", "Experience"} <= set(proa.__all__)


def test_episodes_are_counted_by_whole_numbers_from_0(grpo_run):
    for hook in ("on_episode_start", "on_episode_end"):
        assert [call.given["episode"] for call in grpo_run.hooks.named(hook)] == [0, 1]


def test_epochs_are_counted_by_whole_numbers_from_0_in_each_episode(grpo_run):
    for hook in ("on_epoch_start", "on_epoch_end"):
        assert [call.given["epoch"] for call in grpo_run.hooks.named(hook)] == [0, 1, 0, 1]


def test_the_end_of_a_batch_has_its_metrics(grpo_run, own_trainer):
    for call in grpo_run.hooks.named("on_batch_end"):
        metrics = call.given["metrics"]
        assert type(metrics) is dict
        assert metrics.keys() >= {"loss", "reward", "grad_norm", "learning_rate"}
    losses = [call.given["metrics"]["loss"] for call in own_trainer.hooks.named("on_batch_end")]
    assert losses == [float(number) for number in range(1, 2001)]  # what `training_step` returned


def test_the_end_of_a_batch_has_its_experience(grpo_run):
    for call in grpo_run.hooks.named("on_batch_end"):
        assert isinstance(call.given["experience"], Experience)
        assert len(call.given["experience"]) == 8


def test_the_end_of_making_has_the_experience_that_was_made(grpo_run):
    made = [call.given["experience"] for call in grpo_run.makers.named("on_make_experience_end")]
    assert {type(experience) for experience in made} == {Experience}
    trained = [call.given["experience"] for call in grpo_run.hooks.named("on_batch_end")]
    used = {uid for experience in trained for uid in experience.uids}
    assert len(used) == 4 * 8
    assert used <= {uid for experience in made for uid in experience.uids}


def test_a_maker_callback_serves_a_holder():
    heard = Heard()
    sent = []
    trainer = SimpleNamespace(buffer_extend=sent.extend)
    maker = ExperienceMakerHolder(
        ["trainer_0"], MODEL, task="sort_digits", prompts_per_batch=2, group_size=2, max_new_tokens=4,
        callbacks=[FromMakerPage(heard)], find_trainer=lambda name: trainer,
    )  # fmt: skip
    maker.workingloop(num_steps=2)
    batch = ["on_make_experience_start", "on_make_experience_end", "on_send_start", "on_send_end"]
    assert heard.names == ["on_loop_start", *["on_batch_start", *batch, "on_batch_end"] * 2, "on_loop_end"]
    made = [call.given["experience"] for call in heard.named("on_make_experience_end")]
    assert [f"maker_0/{uid}" for experience in made for uid in experience.uids] == [item.uid for item in sent]
    assert len(sent) == 8


def test_a_step_that_fails_ends_without_metrics():
    class Fails(OwnTrainer):
        def training_step(self, experience):
            raise RuntimeError("out of memory")

    heard = Heard()
    trainer = Fails([], train_batch_size=2, callbacks=[FromTrainerPage(heard)])
    trainer.buffer_append(numbered(2))
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.fit(1, 1)
    (end,) = heard.named("on_batch_end")
    assert end.given["metrics"] == {}
    assert len(end.given["experience"]) == 2
    assert heard.names[-4:] == ["on_batch_end", "on_epoch_end", "on_episode_end", "on_fit_end"]


@pytest.mark.parametrize("base", BASES)
def test_every_hook_returns_none(base):
    family, hooks = BASES[base]
    for hook in family.hooks.values():
        assert getattr(family, hook.name).__annotations__["return"] in (None, "None")
    assert hooks.keys() <= family.hooks.keys()
