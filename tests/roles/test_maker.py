"""A maker: what it tells of itself, and when it loads weights."""

import threading
from dataclasses import replace

import pytest
import torch
from tests.engines.made_up import MadeUpEngine
from tests.leases.honest_makers import prompt
from tests.small import Numbers

from proa import MakerCallback, StopTraining
from proa.actors.waiting import ClosedError, LeaseFailedError, WaitTimeoutError
from proa.data.lease import Lease, check_delivery, sample_seed
from proa.data.sampling import Sampling
from proa.engines import build_engine
from proa.policy.models import load_model, model_weights
from proa.rewards import InlineRewards
from proa.roles.maker import ExperienceMakerHolder
from proa.roles.probe import Probe
from proa.roles.weights import WeightStore
from proa.rollouts import SingleTurn

GROUP = 2


def lease(number, version=0):
    prompts = (prompt(2 * number), prompt(2 * number + 1))
    seeds = tuple(tuple(sample_seed(0, one.ordinal, sample) for sample in range(GROUP)) for one in prompts)
    return Lease(number, version, prompts, seeds)


def nothing():
    pass


class Studio:
    """A maker with everything around it written down; each step of its work can be given something to do."""

    def __init__(self, leases=(), monkeypatch=None, **during):
        self.leases = list(leases)
        self.during = during
        self.seen, self.fetched, self.deliveries, self.pushed = [], [], [], []
        self.now = 0.0
        if monkeypatch is not None:
            monkeypatch.setattr("proa.actors.activity.time", self)
        self.store = WeightStore()
        for version in range(4):
            self.store.publish(version, {"weight": torch.full((3,), float(version))})
        self.maker = ExperienceMakerHolder(
            ["trainer"], engine=StudioEngine(self), name="maker_7", find_trainer=lambda name: self,
            rollout=SingleTurn(Numbers(), Sampling(group_size=GROUP), scorer=self),
        )  # fmt: skip

    def step(self, name):
        self.seen.append(self.maker.activity.look().what)
        self.during.get(name, nothing)()

    # the clock
    def time(self):
        return self.now

    perf_counter = time

    # the book
    def next_lease(self, maker):
        self.step("next_lease")
        if not self.leases:
            raise ClosedError("over")
        following = self.leases.pop(0)
        if isinstance(following, Exception):
            raise following
        return following

    def another_lease(self, maker):
        return None

    def note_made(self, lease_ids, maker):
        pass

    def note_handing_in(self, lease_id, maker):
        pass

    def note_progress(self, lease_ids, maker):
        pass

    def deliver(self, delivery, maker):
        self.step("deliver")
        self.deliveries.append(delivery)
        return True

    def release(self, lease_id, maker):
        self.seen.append(f"released {lease_id}")

    # the store of weights
    def fetch(self, version, *, owner):
        self.step("fetch")
        self.fetched.append(version)
        return self.store.fetch(version, owner=owner)

    # the scorer
    def score(self, prompts, completions, columns):
        self.step("score")
        return InlineRewards(lambda prompts, completions, **_: [1.0] * len(prompts)).score(
            prompts, completions, columns
        )

    # a trainer that is pushed to
    def buffer_extend(self, items):
        self.step("extend")
        self.pushed.extend(items)

    def work(self):
        with pytest.raises(ClosedError):
            self.maker.work(self, self)
        return self


class StudioEngine(MadeUpEngine):
    is_independent = False  # one lease after the other: what happens when is the same each time

    def __init__(self, studio):
        super().__init__()
        self._studio = studio

    def load(self, weights, version):
        self._studio.step("load")

    def step(self):
        self._studio.step("generate")
        return super().step()

    def tokens(self, request):
        return (4,) * (1 + request.seed % 3), "length"


def takes(studio, **seconds):
    """Each step of the work takes so long."""
    for name, length in seconds.items():
        studio.during[name] = lambda length=length: setattr(studio, "now", studio.now + length)
    return studio


# -- what it tells -----------------------------------------------------------------------------------


def test_it_says_what_it_is_doing():
    studio = Studio([lease(12, version=3)]).work()
    assert studio.seen == [
        "waiting for a lease", "loading weights of version 3", "loading weights of version 3", "generating lease 12",
        "scoring lease 12", "delivering lease 12", "waiting for a lease",
    ]  # fmt: skip
    assert studio.maker.activity.look().what == "over"


def test_between_two_things_it_is_not_starting_any_more():
    seen = []

    class Looking(MakerCallback):
        def on_batch_start(self):
            seen.append(studio.maker.activity.look().what)

    studio = Studio([lease(0)])
    assert studio.maker.activity.look().what == "starting"
    studio.maker.manager.add(Looking())
    studio.work()
    assert seen == ["working on leases"]


def test_it_counts_what_each_kind_of_work_took(monkeypatch):
    studio = Studio([lease(0), lease(1), lease(2, version=1)], monkeypatch)
    takes(studio, next_lease=1.0, fetch=2.0, load=4.0, generate=8.0, score=16.0, deliver=32.0).work()
    assert studio.maker.activity.look().spent == {
        "wait": 4.0, "load": 12.0, "generate": 24.0, "score": 48.0, "send": 96.0,
    }  # fmt: skip


def test_a_delivery_tells_who_made_it_and_what_was_spent_on_it(monkeypatch):
    studio = Studio([lease(0), lease(1)], monkeypatch)
    takes(studio, next_lease=1.0, fetch=2.0, load=4.0, generate=8.0, score=16.0, deliver=32.0).work()
    first, second = studio.deliveries
    assert (first.made_by, second.made_by) == ("maker_7", "maker_7")
    assert first.seconds == {"wait": 1.0, "load": 6.0, "generate": 8.0, "score": 16.0}
    assert second.seconds == {"wait": 1.0, "generate": 8.0, "score": 16.0}


def test_a_delivery_tells_the_largest_gap_since_the_one_before_it(monkeypatch):
    studio = Studio([lease(0, version=2), lease(1, version=2)])
    gaps = iter([3e-4, 1e-4])
    monkeypatch.setattr(studio.maker.engine, "score", lambda sequences: [torch.tensor([-1.0 - next(gaps)])])
    for version in (1, 2):
        weights = studio.store.fetch(version, owner="maker_7")
        studio.maker.update_experience_maker(replace(weights, probe=Probe(((4, 5),), ((-1.0,),), torch.float32)))
    studio.work()
    assert [delivery.probe_gap for delivery in studio.deliveries] == [pytest.approx(3e-4, rel=1e-3), None]


def test_a_wait_that_was_too_long_is_gone_on_with_and_counts_for_the_lease_that_ended_it(monkeypatch):
    studio = Studio([WaitTimeoutError("idle"), WaitTimeoutError("idle"), lease(0)], monkeypatch)
    takes(studio, next_lease=1.0).work()
    assert studio.deliveries[0].seconds == {"wait": 3.0}


def test_it_counts_leases_and_completion_tokens():
    studio = Studio([lease(0), lease(1)])
    assert (studio.maker.leases_made, studio.maker.tokens_made) == (0, 0)
    studio.work()
    assert studio.maker.leases_made == 2
    assert studio.maker.tokens_made == sum(delivery.tokens for delivery in studio.deliveries) > 0


def test_work_that_is_pushed_is_told_as_batches(monkeypatch):
    studio = takes(Studio((), monkeypatch), generate=1.0, score=2.0, extend=4.0)
    studio.maker.workingloop(lambda: [[prompt(0), prompt(1)]])
    assert studio.seen == ["generating a batch", "scoring a batch", "delivering a batch", "delivering a batch"]
    assert studio.maker.activity.look().spent == {"generate": 1.0, "score": 2.0, "send": 8.0}
    assert studio.maker.tokens_made == sum(item.action_length for item in studio.pushed) > 0
    assert (studio.maker.leases_made, studio.maker.activity.look().what) == (0, "over")


# -- weights -----------------------------------------------------------------------------------------


def versions(studio):
    return [int(item.versions.unique()) for delivery in studio.deliveries for item in delivery.items]


def test_weights_are_loaded_when_the_version_changes_and_not_before():
    studio = Studio([lease(0), lease(1), lease(2, version=1), lease(3, version=1)])
    assert studio.maker.loaded_version == -1
    studio.work()
    assert studio.fetched == [0, 1]
    assert studio.maker.loaded_version == 1


def test_distrusted_weights_are_loaded_again_once_though_the_version_is_the_same():
    studio = Studio([lease(0)]).work()
    studio.maker.distrust_weights()
    studio.maker.distrust_weights()
    assert studio.maker.loaded_version == -1
    studio.leases = [lease(1), lease(2)]
    studio.work()
    assert studio.fetched == [0, 0]
    assert studio.maker.loaded_version == 0


def test_distrusted_weights_are_checked_again():
    studio = Studio([lease(0)]).work()
    studio.maker.distrust_weights()
    studio.store._versions[0].tensors["weight"][0] = 9.0
    studio.leases = [lease(1)]
    with pytest.raises(LeaseFailedError, match="version 0 were damaged"):
        studio.maker.work(studio, studio)
    assert studio.maker.loaded_version == -1


@pytest.mark.parametrize("moment", ["fetch", "load", "weights_loaded", "generate", "score", "deliver"])
def test_distrust_at_any_moment_of_a_lease_leads_to_another_load_and_leaves_the_lease_as_it_is(moment):
    studio = Studio([lease(0), lease(1), lease(2)])

    def distrust_once():
        studio.during.clear()
        thread = threading.Thread(target=studio.maker.distrust_weights)
        thread.start()
        thread.join(120)

    class Hook(MakerCallback):
        def on_weights_loaded(self, version):
            studio.during.get("weights_loaded", nothing)()

    studio.maker.manager.add(Hook())
    studio.during[moment] = distrust_once
    studio.work()
    assert studio.fetched == [0, 0]
    assert versions(studio) == [0] * 12


def test_distrust_while_weights_are_handed_over_is_not_forgotten():
    studio = Studio()
    studio.maker.update_experience_maker(studio.store.fetch(2, owner="me"))
    assert studio.maker.loaded_version == 2
    studio.maker.distrust_weights()
    studio.maker.update_experience_maker(studio.store.fetch(2, owner="me"))
    assert studio.maker.loaded_version == 2  # this answered it
    studio.during["load"] = studio.maker.distrust_weights
    studio.maker.update_experience_maker(studio.store.fetch(3, owner="me"))
    assert studio.maker.loaded_version == -1  # this one came in the middle


def test_what_several_trainers_push_is_loaded_once():
    studio = Studio()
    for _ in range(3):
        studio.maker.update_experience_maker(studio.store.fetch(2, owner="me"))
    assert studio.seen == ["loading weights of version 2"]
    assert studio.maker.get_policy_version() == 2


def test_weights_that_do_not_fit_are_not_taken_for_loaded():
    def refuse():
        raise ValueError("lm_head.weight is missing")

    studio = Studio([lease(0)], load=refuse)
    with pytest.raises(LeaseFailedError, match="maker_7 failed on lease 0: lm_head.weight is missing"):
        studio.maker.work(studio, studio)
    assert studio.maker.loaded_version == -1
    assert studio.seen[-1] == "released 0"
    assert studio.maker.activity.look().what == "over"


# -- the gate lets in what engines make --------------------------------------------------------------

CONFIG = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
}  # fmt: skip


@pytest.mark.parametrize("engine", ["native", "hf"])
@pytest.mark.parametrize("sharpness", [1.0, 1000.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.01},
        {"temperature": 50.0},
        {"top_k": 1},
        {"top_p": 0.1},
        {"min_p": 0.5},
        {"repetition_penalty": 30.0},
        {"temperature": 0.0, "repetition_penalty": 0.1},
    ],
)
def test_the_gate_lets_in_whatever_an_engine_makes(engine, sharpness, settings):
    model = load_model(CONFIG, seed=1)
    with torch.no_grad():
        model.lm_head.weight *= sharpness
    store = WeightStore()
    store.publish(0, model_weights(model))
    studio = Studio([lease(0), lease(1)])
    maker = ExperienceMakerHolder(
        engine=build_engine(engine, model, end_ids=range(0, 300, 2)),  # half of all samples end with their first token
        rollout=SingleTurn(
            Numbers(),
            Sampling(group_size=GROUP, max_new_tokens=6, **settings),
            scorer=InlineRewards(lambda prompts, completions, **_: [None, *[0.5] * (len(prompts) - 1)]),
        ),
    )
    with pytest.raises(ClosedError):
        maker.work(studio, store)
    for asked, made in zip([lease(0), lease(1)], studio.deliveries, strict=True):
        check_delivery(asked, made)


# -- its hooks ---------------------------------------------------------------------------------------


class Hears(MakerCallback):
    def __init__(self):
        self.made = []

    def on_make_experience_start(self):
        self.made.append("start")

    def on_make_experience_end(self, experience):
        self.made.append(len(experience))
        self.log("made", len(experience))

    def on_send_start(self):
        self.log("sending", 1)


def test_what_its_hooks_log_goes_with_the_delivery():
    studio, hears = Studio([lease(0), lease(1)]), Hears()
    studio.maker.manager.add(hears)
    studio.maker.manager.on("maker.make_experience_start")(lambda state: state.log("batch", state.global_step))
    studio.work()
    assert [delivery.logged for delivery in studio.deliveries] == [
        {"batch": 0, "made": 4}, {"batch": 1, "made": 4, "sending": 1},
    ]  # fmt: skip


@pytest.mark.parametrize("asks", ["stop_training", "StopTraining"])
def test_its_hooks_cannot_stop_a_run_and_are_told_so(asks, caplog):
    studio = Studio([lease(0), lease(1)])

    @studio.maker.manager.on("maker.batch_end")
    def enough(state):
        if asks == "StopTraining":
            raise StopTraining("enough")
        state.stop_training("enough")

    studio.work()
    assert len(studio.deliveries) == 2
    assert caplog.text.count("enough in a maker asked to stop (enough), which ends nothing") == 2


def test_a_batch_that_fails_ends_without_rows_and_a_hook_s_own_failure_is_a_note():
    def fail():
        raise OSError("no memory")

    studio, hears = Studio([lease(0)], generate=fail), Hears()
    studio.maker.manager.add(hears)

    @studio.maker.manager.on("maker.make_experience_end")
    def expects_rows(experience):
        raise ValueError(f"{len(experience)} rows, rewards {experience.reward.tolist()}")

    with pytest.raises(LeaseFailedError, match="no memory") as raised:
        studio.maker.work(studio, studio)
    assert hears.made == ["start", 0]
    assert "ValueError: 0 rows, rewards []" in raised.value.__cause__.__notes__[0]


def test_a_hook_is_not_called_with_none_even_if_it_does_not_look():
    seen = []

    class Base(MakerCallback):
        def on_make_experience_end(self, experience):
            seen.append(experience)

    class Passes(Base):
        def on_make_experience_end(self, *args):
            super().on_make_experience_end(*args)

    studio = Studio([lease(0)])
    studio.maker.manager.add(Passes())
    studio.work()
    assert len(seen[0]) == 4
