"""PPO's step: value by value against a loop that computes it token by token."""

import copy
from dataclasses import replace

import pytest
import torch

from proa.algorithms import DAPO, PPO
from proa.data.experience import Experience
from proa.data.facts import SampleFacts
from proa.data.sampling import Sampling
from proa.learning.optimizer import OptimizerSettings
from proa.policy.critic import Critic, critic_from_reward_model, separate_critic, shared_critic
from proa.policy.models import load_model
from proa.roles.policy_trainer import DetachedGRPOTrainer, DetachedPPOTrainer, StepSettings
from proa.roles.weights import WeightStore

CONFIG = {
    "model_type": "llama", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
}  # fmt: skip
PROMPTS, LENGTHS, FINISHED = (2, 3, 1), (3, 1, 4), (True, False, False)


@pytest.fixture
def model():
    torch.set_num_threads(1)
    return load_model(CONFIG, dtype="float64", seed=3)


def batch(model) -> Experience:
    """Three completions of different lengths; two were cut off at the limit."""
    generator = torch.Generator().manual_seed(0)
    prompt, actions = max(PROMPTS), max(LENGTHS)
    sequences = torch.zeros(3, prompt + actions, dtype=torch.long)
    mask = torch.zeros(3, prompt + actions, dtype=torch.bool)
    for row, (before, after) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        columns = slice(prompt - before, prompt + after)
        sequences[row, columns] = torch.randint(1, 11, (before + after,), generator=generator)
        mask[row, columns] = True
    noise = 0.2 * torch.randn(3, actions, generator=generator, dtype=torch.float64)
    own = torch.stack([log_probs(model, sequences, mask, row) for row in range(3)]).detach()
    return Experience(
        sequences,
        (own + noise).masked_fill(~mask[:, prompt:], 0),
        reward=torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64),
        attention_mask=mask,
        action_mask=mask[:, prompt:],
        facts=tuple(SampleFacts("stop" if finished else "length") for finished in FINISHED),
    )


def hidden(model, sequences, mask, row):
    """One row alone, without padding."""
    return model.get_decoder()(input_ids=sequences[row][mask[row]][None])[0][0]


def log_probs(model, sequences, mask, row):
    tokens, first = sequences[row][mask[row]], PROMPTS[row]
    logits = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
    taken = [logits[place - 1, tokens[place]] for place in range(first, len(tokens))]
    return torch.stack([*taken, *[torch.zeros((), dtype=torch.float64)] * (max(LENGTHS) - len(taken))])


def loop_loss(model, reference, values_of, old_values, experience, algorithm, coefficient):
    """PPO as its papers write it, one token after the other."""
    advantages, returns = [], []
    for row, length in enumerate(LENGTHS):
        own = log_probs(reference, experience.sequences, experience.attention_mask, row).detach()
        rewards = [-coefficient * float(experience.action_log_probs[row, t] - own[t]) for t in range(length)]
        rewards[-1] += float(experience.reward[row])
        values = [float(v) for v in old_values[row][: length + 1]]
        if FINISHED[row]:
            values[length] = 0.0
        deltas = [rewards[t] + algorithm.gamma * values[t + 1] - values[t] for t in range(length)]
        decay = algorithm.gamma * algorithm.lam
        row_advantages = [sum(decay**k * deltas[t + k] for k in range(length - t)) for t in range(length)]
        advantages.append(row_advantages)
        returns.append([a + v for a, v in zip(row_advantages, values[:length], strict=True)])
    everyone = torch.tensor([a for row in advantages for a in row], dtype=torch.float64)
    mean, spread = everyone.mean(), (everyone.var(correction=0) + 1e-8).sqrt()
    loss = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        now = log_probs(model, experience.sequences, experience.attention_mask, row)
        values = values_of(row)
        for t in range(length):
            ratio = (now[t] - experience.action_log_probs[row, t]).exp()
            advantage = (advantages[row][t] - mean) / spread
            clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
            loss = loss - torch.minimum(ratio * advantage, clipped * advantage)
            old = old_values[row][t]
            near = old + (values[t] - old).clamp(-algorithm.value_clip, algorithm.value_clip)
            error = torch.maximum((values[t] - returns[row][t]) ** 2, (near - returns[row][t]) ** 2)
            loss = loss + algorithm.value_coefficient * 0.5 * error
    return loss / sum(LENGTHS)


def trained(model, critic, algorithm, token_budget=0) -> DetachedPPOTrainer:
    return DetachedPPOTrainer(
        [],
        model,
        critic=critic,
        algorithm=algorithm,
        sampling=Sampling(group_size=1, max_new_tokens=4),
        optimizer=OptimizerSettings(learning_rate=1e-3, max_grad_norm=0.0),
        optimizer_steps=10,
        store=WeightStore(),
        settings=StepSettings(token_budget=token_budget),
    )


def awake(critic: Critic) -> Critic:
    """A head that says something other than 0."""
    with torch.no_grad():
        critic.head.weight.copy_(torch.randn(critic.head.weight.shape, generator=torch.Generator().manual_seed(5)))
        critic.head.bias.fill_(0.3)
    return critic


@pytest.mark.parametrize("kind", ["shared", "separate"])
@pytest.mark.parametrize("budget", [0, 8], ids=["one micro-batch", "several"])
def test_a_step_has_the_loss_and_the_gradient_of_the_loop(model, kind, budget):
    algorithm = PPO(kl_reward_coefficient=0.1, gamma=0.9, lam=0.8, bootstrap_truncated=True)
    critic = awake(shared_critic(model) if kind == "shared" else separate_critic(model))
    trainer = trained(model, critic, algorithm, budget)
    with torch.no_grad():  # away from the reference and from where ratio and values are 1 and old
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    experience = batch(model)
    twin_model, twin = copy.deepcopy(model), copy.deepcopy(critic)

    def values_of(row):
        trunk = twin_model if kind == "shared" else None
        states = (
            hidden(trunk, experience.sequences, experience.attention_mask, row)
            if trunk is not None
            else twin.trunk(input_ids=experience.sequences[row][experience.attention_mask[row]][None])[0][0]
        )
        return twin.head(states[PROMPTS[row] - 1 :])

    with trainer.learner._reference.active() as reference:
        old_values = [values_of(row).detach() for row in range(3)]
        expected = loop_loss(twin_model, copy.deepcopy(reference), values_of, old_values, experience, algorithm, 0.1)
    expected.backward()
    metrics = trainer.training_step(experience)
    assert metrics["loss"] == pytest.approx(float(expected.detach()), rel=1e-10)
    # Llama's norms compute in float32: one pass for both losses rounds otherwise than the loop's pass for each.
    tolerance = {"rtol": 1e-4, "atol": 2e-6} if kind == "shared" else {"rtol": 1e-9, "atol": 1e-12}
    for (name, ours), theirs in zip(model.named_parameters(), twin_model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, **tolerance, msg=lambda m, n=name: n + m)
    for (name, ours), theirs in zip(critic.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: n + m)


def test_a_second_epoch_reuses_what_the_first_computed(model):
    trainer = trained(model, awake(separate_critic(model)), PPO())
    experience = batch(model)
    trainer.training_step(experience)
    kept = [experience.values.clone(), experience.returns.clone(), experience.advantages.clone()]
    trainer.training_step(experience)
    now = (experience.values, experience.returns, experience.advantages)
    assert all(torch.equal(before, after) for before, after in zip(kept, now, strict=True))


def test_a_completion_that_was_cut_off_is_worth_what_the_critic_still_expects(model):
    finished = batch(model)
    cut_off = replace(finished, facts=(SampleFacts("length"),) * 3)
    for experience in (finished, cut_off):
        trained(
            copy.deepcopy(model), awake(shared_critic(model)), PPO(whiten=False, bootstrap_truncated=True)
        ).learner._prepare(experience)
    differs = [not torch.equal(finished.returns[row], cut_off.returns[row]) for row in range(3)]
    assert differs == [True, False, False]  # the other two were cut off in both


def test_unless_it_is_told_to_the_trainer_expects_nothing_after_the_limit(model):
    given = batch(model)
    never = replace(given, facts=(SampleFacts("stop"),) * 3)
    for experience in (given, never):
        trained(copy.deepcopy(model), awake(shared_critic(model)), PPO()).learner._prepare(experience)
    assert torch.equal(given.returns, never.returns)


def test_an_adaptive_coefficient_follows_the_distance_from_the_reference(model):
    algorithm = PPO(kl_reward_coefficient=0.1, kl_target=1e-6, kl_horizon=30)
    trainer = trained(model, shared_critic(model), algorithm)
    experience = batch(model)
    experience.action_log_probs = experience.action_log_probs + 1.0  # far from the reference
    metrics = trainer.training_step(experience)
    assert trainer.learner.kl_coefficient == pytest.approx(0.1 * (1 + 0.2 * 3 / 30))
    assert metrics["kl_reward_coefficient"] == 0.1  # the one that was used; the next batch has the other


def test_a_critic_of_its_own_leaves_the_policy_alone(model):
    critic = awake(separate_critic(model))
    trainer = trained(model, critic, PPO(value_coefficient=0.5))
    trainer.training_step(batch(model))
    policy = {id(parameter) for parameter in model.parameters()}
    assert not any(id(parameter) in policy for parameter in critic.parameters())
    assert trainer.learner.values.optimizer is not None


def test_a_critic_can_start_as_a_reward_model():
    from transformers import AutoModelForSequenceClassification, LlamaConfig

    reward_model = AutoModelForSequenceClassification.from_config(
        LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"}, num_labels=1, pad_token_id=0)
    ).eval()
    sequences = torch.tensor([[1, 2, 3, 4]])
    values = critic_from_reward_model(reward_model).values(sequences, torch.ones_like(sequences), 2)
    torch.testing.assert_close(values[:, -1], reward_model(sequences).logits[:, 0])


def test_trainer_and_algorithm_must_fit(model):
    settings = {
        "sampling": Sampling(), "optimizer": OptimizerSettings(), "optimizer_steps": 1, "store": WeightStore(),
    }  # fmt: skip
    with pytest.raises(ValueError, match="ppo needs a critic: give one, as DetachedPPOTrainer does"):
        DetachedGRPOTrainer([], model, algorithm=PPO(), **settings)
    with pytest.raises(ValueError, match="dapo has no use for a critic: leave it out, as DetachedGRPOTrainer does"):
        DetachedPPOTrainer([], model, critic=shared_critic(model), algorithm=DAPO(), **settings)


def test_what_the_experience_brings_is_not_computed_again(model):
    trainer = trained(model, awake(separate_critic(model)), PPO())
    experience = batch(model)
    advantages = torch.arange(12.0, dtype=torch.float64).view(3, 4)
    values = torch.ones(3, 4, dtype=torch.float64)
    experience.advantages, experience.values, experience.reward = advantages, values, None
    trainer.training_step(experience)
    mask = experience.action_mask
    assert torch.equal(experience.advantages[mask], advantages[mask])
    assert torch.equal(experience.returns[mask], (advantages + values)[mask])


def test_experience_with_neither_rewards_nor_advantages_is_refused_in_words(model):
    experience = replace(batch(model), reward=None)
    with pytest.raises(ValueError, match="neither rewards nor advantages"):
        trained(model, shared_critic(model), PPO()).training_step(experience)


def test_a_critic_of_its_own_keeps_to_the_token_budget_where_prompts_are_shared(model):
    trainer = trained(model, awake(separate_critic(model)), PPO(), token_budget=8)
    trainer.learner.settings = StepSettings(token_budget=8, share_prompts=True)
    seen, values = [], trainer.learner.values.critic.values
    trainer.learner.values.critic.values = lambda sequences, mask, actions: (
        seen.append(sequences.shape), values(sequences, mask, actions)
    )[1]  # fmt: skip
    trainer.training_step(replace(batch(model), group_ids=("a", "b", "c")))
    assert max(rows * length for rows, length in seen) <= 8


def test_tokens_that_a_hook_took_out_are_still_a_part_of_the_completion(model):
    """What the critic expects after it, and how long it is: for the trainer's metrics, and for DAPO's penalty."""
    whole = batch(model)
    holed = replace(whole, action_mask=whole.action_mask & torch.tensor([True, False, True, True]))
    holed.action_mask[2, 3] = False  # and its last
    trainer = trained(model, awake(separate_critic(model)), PPO(bootstrap_truncated=True))
    with torch.no_grad():
        bootstraps = [trainer.learner._credit_inputs(one, one.action_mask).bootstrap_B for one in (whole, holed)]
    torch.testing.assert_close(*bootstraps)
    trainer.learner._prepare(holed)
    described = trainer.learner._describe(holed)
    assert described["completion_tokens"] == pytest.approx(sum(LENGTHS) / 3)
    trainer.learner.algorithm = DAPO(overlong_buffer=4)
    rewards = [trainer.learner._credit_inputs(one, one.action_mask).rewards_B for one in (whole, holed)]
    assert torch.equal(*rewards)
    assert rewards[0].tolist() == [1.0 - 0.75, -0.5 - 0.25, 2.0 - 1.0]
