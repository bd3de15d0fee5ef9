"""The same weights, bit for bit, whatever the number of makers, their speed and their crashes."""

import pytest
import torch
from tests.runtime.small_run import SmallRun, failing_once, hanging_once, with_random_delays

from proa.leases.book import LeaseBook
from proa.policy.lora import LoraSettings
from proa.runtime.supervisor import Limits


@pytest.fixture(scope="module")
def calm():
    """The digest of an undisturbed run with one maker, by settings."""
    digests = {}

    def digest(**settings):
        key = tuple(sorted(settings.items()))
        if key not in digests:
            digests[key] = SmallRun(**settings).run()
        return digests[key]

    return digest


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("makers", [2, 3])
def test_any_number_of_makers_gives_the_same_weights(calm, staleness, makers):
    assert SmallRun(max_staleness=staleness).run(makers) == calm(max_staleness=staleness)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_so_do_random_delays(calm, staleness):
    run = SmallRun(max_staleness=staleness)
    assert run.run(3, disturb=with_random_delays(staleness)) == calm(max_staleness=staleness)


@pytest.mark.parametrize("at_call", [0, 3])
def test_so_does_a_maker_that_raises_in_the_middle_of_a_lease(calm, at_call, caplog):
    def explode():
        raise RuntimeError("out of luck")

    run = SmallRun(max_staleness=1)
    lost = []
    run.manager.on("maker.lost")(lambda maker, reason: lost.append((maker, reason)))
    assert run.run(2, disturb=failing_once(at_call, explode)) == calm(max_staleness=1)
    assert len(lost) == 1
    assert "out of luck" in lost[0][1]


def test_so_does_a_maker_that_hangs(calm, caplog):
    run, limits = SmallRun(max_staleness=1), Limits()
    disturb = hanging_once(run, 1, limits)
    assert run.run(2, disturb=disturb, limits=limits) == calm(max_staleness=1)


def test_each_staleness_has_its_own_result(calm):
    assert len({calm(max_staleness=staleness) for staleness in (0, 1, 2)}) == 3


SETTINGS = [
    {"update_steps": 2, "train_epochs": 2},
    {"old": "trainer"},
    {"lease_prompts": 2},
    {"buffer_limit": 1, "max_staleness": 2},
    {"share_prompts": True},
    {"algorithm": "decoupled", "max_staleness": 2},
    {"algorithm": "ppo", "params": (("kl_reward_coefficient", 0.1), ("kl_target", 0.01), ("kl_horizon", 100))},
    {"algorithm": "ppo", "critic": "separate", "lora": LoraSettings(rank=2, alpha=4.0)},
]
MORE_SETTINGS = [
    {"kl": 0.05},
    {"algorithm": "dapo"},
    {"algorithm": "gspo"},
    {"algorithm": "cispo"},
    {"algorithm": "reinforce_pp", "params": (("kl_reward_coefficient", 0.05),)},
    {"algorithm": "reinforce_pp_baseline"},
    {"algorithm": "ppo", "max_staleness": 0},
    {"algorithm": "ppo", "critic": "separate", "update_steps": 2, "train_epochs": 2},
    {"lora": LoraSettings(rank=2, alpha=4.0), "kl": 0.05},
]


@pytest.mark.parametrize(
    "settings", [*SETTINGS, *(pytest.param(more, marks=pytest.mark.prove) for more in MORE_SETTINGS)], ids=str
)
def test_so_do_all_settings(calm, settings):
    run = SmallRun(**settings)
    assert run.run(3, disturb=with_random_delays(1)) == calm(**settings)


def test_the_size_of_a_lease_changes_nothing(calm):
    assert len({calm(lease_prompts=prompts, max_staleness=1) for prompts in (1, 2, 4)}) == 1


def test_filtering_and_refill_give_the_same_too(calm):
    """DAPO with a reward that often ties, so that groups are dropped and more are asked for."""
    from proa.rewards import InlineRewards

    def tied(prompts, completions, **_):
        return [float(len(set(c)) > 3) for c in completions]

    runs = [SmallRun(algorithm="dapo", scorer=InlineRewards(tied), max_staleness=s) for s in (1, 1)]
    first = runs[0].run()
    assert runs[1].run(3, disturb=with_random_delays(2)) == first
    ledger = runs[0].book.ledger
    assert ledger.dropped["zero_variance"] > 0
    assert ledger.closes


def test_staleness_zero_equals_a_plain_synchronous_loop(calm):
    from tests.runtime.reference_loop import reference_digest

    run = SmallRun(max_staleness=0, token_budget=0)
    assert run.run(2) == reference_digest()


def test_every_trained_token_is_within_the_bound_and_stamped_with_its_version():
    lags = []
    run = SmallRun(max_staleness=2, update_steps=1)

    @run.manager.on("step_end")
    def check(state, experience):
        lags.append((state.policy_version - experience.versions[experience.action_mask]).unique().tolist())

    run.run(2)
    assert lags == [[0], [1], [2], [2], [2]]


def test_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    SmallRun().run(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_ledger_closes_at_every_step_and_at_the_end():
    run = SmallRun(max_staleness=1)
    books: list[LeaseBook] = [run.book]
    closes = []
    run.manager.on("step_end")(lambda: closes.append(books[0].ledger.closes))
    run.run(2)
    assert closes == [True] * 5
    assert run.book.ledger.as_dict() | {"tokens": None} == {
        "leased": 80, "trained": 80, "buffered": 0, "in_flight": 0, "dropped": {}, "tokens": None,
    }  # fmt: skip


def test_the_trainers_log_probabilities_are_the_samplers_after_each_push():
    """At staleness 0 the weights that sampled are those that train, so every ratio is 1 but for float noise."""
    from proa.policy.log_probs import action_statistics

    worst = []
    run = SmallRun(max_staleness=0)
    step = run.trainer.training_step

    def checked(experience):
        own = action_statistics(
            run.model, experience.sequences, experience.attention_mask, experience.action_log_probs.shape[1]
        ).log_probs_BA
        worst.append(float((own - experience.action_log_probs)[experience.action_mask].abs().max().detach()))
        return step(experience)

    run.trainer.training_step = checked
    run.run(2)
    assert len(worst) == 5
    assert max(worst) < 1e-4


def test_windowed_trains_to_the_end_and_writes_its_choices_down():
    run = SmallRun(schedule="windowed", max_staleness=1)
    run.run(3, disturb=with_random_delays(3))
    assert len(run.book.take_journal()) == 20
    assert run.book.ledger.trained == 80
