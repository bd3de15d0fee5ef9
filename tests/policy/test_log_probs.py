"""Log-probabilities in chunks: the same numbers as the whole logits, in value and gradient, without holding them."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from proa.policy import head as head_module
from proa.policy.log_probs import UnsupportedModelError, action_statistics
from proa.policy.models import load_model

RAGGED = [(3, 4), (5, 1), (1, 5), (2, 2)]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def by_definition(model, sequences, mask, actions, temperature):
    """Log-probabilities and entropies from the whole logits, one row at a time and without padding."""
    log_probs = torch.zeros(len(sequences), actions, dtype=torch.float64)
    entropy = torch.zeros_like(log_probs)
    for row in range(len(sequences)):
        tokens, completion = sequences[row][mask[row]], int(mask[row, -actions:].sum())
        logits = model(input_ids=tokens[None]).logits[0, -completion - 1 : -1] / temperature
        distribution = logits.log_softmax(-1)
        log_probs[row, :completion] = distribution.gather(-1, tokens[-completion:, None])[:, 0]
        entropy[row, :completion] = torch.stack([entropy_of(one) for one in distribution])
    return log_probs, entropy


def entropy_of(log_probs_V):
    """-Σ p log p, of the tokens that can come at all: p log p goes to 0 with p."""
    return -sum(log_prob.exp() * log_prob for log_prob in log_probs_V if log_prob > -torch.inf)


def without(model, *tokens):
    """The same model, by which these tokens cannot come: their logits are -inf."""
    head = model.lm_head
    biased = torch.nn.Linear(head.in_features, head.out_features, dtype=head.weight.dtype)
    with torch.no_grad():
        biased.weight.copy_(head.weight)
        biased.bias.zero_()
        biased.bias[list(tokens)] = -torch.inf
    model.lm_head = biased
    return model


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_all_close(left, right):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], msg=lambda text, name=name: f"{name}: {text}", **EXACT)


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3", "gpt2"])
def test_values_and_gradients_are_those_of_the_whole_logits_row_by_row(shape, tiny, padded):
    model, (sequences, mask, actions) = tiny(shape), padded(RAGGED)
    weights = torch.rand(len(RAGGED), actions, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected, expected_entropy = by_definition(model, sequences, mask, actions, 0.7)
    ours = action_statistics(model, sequences, mask, actions, temperature=0.7, chunk_tokens=3, with_entropy=True)
    torch.testing.assert_close(ours.log_probs_BA, expected, **EXACT)
    torch.testing.assert_close(ours.entropy_BA, expected_entropy, **EXACT)
    assert_all_close(
        gradients(model, (weights * (ours.log_probs_BA + 0.3 * ours.entropy_BA)).sum()),
        gradients(model, (weights * (expected + 0.3 * expected_entropy)).sum()),
    )


def test_tokens_that_cannot_come_leave_entropy_and_gradients_right(tiny, padded):
    """Values and gradients of a loop over the tokens that can, with and without a share of the entropy."""
    sequences, mask, actions = padded(RAGGED)
    model = without(tiny("llama"), 0, 1, 2)  # which `padded` never draws
    expected, expected_entropy = by_definition(model, sequences, mask, actions, 0.7)
    ours = action_statistics(model, sequences, mask, actions, temperature=0.7, chunk_tokens=3, with_entropy=True)
    torch.testing.assert_close(ours.log_probs_BA, expected, **EXACT)
    torch.testing.assert_close(ours.entropy_BA, expected_entropy, **EXACT)
    for coefficient in (0.0, 0.3):
        own = gradients(model, (ours.log_probs_BA + coefficient * ours.entropy_BA).sum())
        assert all(gradient.isfinite().all() for gradient in own.values())
        assert_all_close(own, gradients(model, (expected + coefficient * expected_entropy).sum()))
        ours = action_statistics(model, sequences, mask, actions, temperature=0.7, with_entropy=True)
        expected, expected_entropy = by_definition(model, sequences, mask, actions, 0.7)


def test_a_token_that_cannot_come_has_log_probability_minus_infinity_and_the_others_are_as_they_were(tiny, padded):
    sequences, mask, actions = padded([(3, 4)])
    model = without(tiny("llama"), int(sequences[0, 4]))
    ours = action_statistics(model, sequences, mask, actions, with_entropy=True)
    log_probs = ours.log_probs_BA[0].tolist()
    assert [value == -torch.inf for value in log_probs] == [
        int(token) == int(sequences[0, 4]) for token in sequences[0, 3:]
    ]
    assert ours.entropy_BA.isfinite().all()


def test_an_unknown_model_is_refused_although_some_of_its_logits_are_minus_infinity(tiny, padded):
    """The comparison is against the largest logit, which must not be the infinite one."""
    sequences, mask, actions = padded(RAGGED)
    model = without(tiny("llama"), 0)
    forward = model.forward

    def other(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        outputs.logits = 2 * outputs.logits
        return outputs

    model.forward = other
    with pytest.raises(UnsupportedModelError):
        action_statistics(model, sequences, mask, actions)


@pytest.mark.parametrize("shape", ["gemma2", "cohere", "granite"])
def test_a_scale_or_cap_on_the_last_logits_is_applied(shape, tiny, padded):
    # In float32: inside these models parts are float32 anyhow, and padding in float64 gives NaN in eager attention.
    model, (sequences, mask, actions) = tiny(shape, dtype="float32"), padded(RAGGED)
    expected, _ = by_definition(model, sequences, mask, actions, 0.7)
    ours = action_statistics(model, sequences, mask, actions, temperature=0.7).log_probs_BA
    torch.testing.assert_close(ours, expected.float(), rtol=0, atol=1e-5)


def test_gathered_from_the_log_softmax_of_the_models_own_padded_pass(tiny, padded):
    model, (sequences, mask, actions) = tiny(), padded(RAGGED)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=sequences, attention_mask=mask.long(), position_ids=positions).logits
    expected = (logits / 0.7).log_softmax(-1)[:, :-1].gather(-1, sequences[:, 1:, None])[:, -actions:, 0]
    ours = action_statistics(model, sequences, mask, actions, temperature=0.7).log_probs_BA
    torch.testing.assert_close(ours, torch.where(mask[:, -actions:], expected, 0.0), **EXACT)


def test_a_row_is_the_same_alone_and_padded(tiny, padded):
    model, (sequences, mask, actions) = tiny(), padded(RAGGED)
    together = action_statistics(model, sequences, mask, actions).log_probs_BA
    for row, (_, completion) in enumerate(RAGGED):
        alone = action_statistics(model, sequences[row][mask[row]][None], None, completion).log_probs_BA
        torch.testing.assert_close(together[row, :completion], alone[0], **EXACT)


def test_the_chunk_size_changes_nothing(tiny, padded):
    model, (sequences, mask, actions) = tiny(), padded(RAGGED)

    def in_chunks_of(chunk_tokens):
        statistics = action_statistics(model, sequences, mask, actions, chunk_tokens=chunk_tokens, with_entropy=True)
        total = (statistics.log_probs_BA * statistics.entropy_BA).sum()
        return {"value": total.detach(), **gradients(model, total)}

    whole = in_chunks_of(10_000)
    for chunk_tokens in (1, 5, 12):
        assert_all_close(in_chunks_of(chunk_tokens), whole)


def test_a_certain_distribution_has_entropy_0_and_an_even_one_the_logarithm_of_its_size(tiny, padded):
    model, (sequences, mask, actions) = tiny(), padded([(2, 3)])
    even = action_statistics(model, sequences, mask, actions, temperature=1e9, with_entropy=True).entropy_BA
    torch.testing.assert_close(even, torch.full_like(even, 23.0).log(), rtol=0, atol=1e-6)
    certain = action_statistics(model, sequences, mask, actions, temperature=1e-4, with_entropy=True).entropy_BA
    torch.testing.assert_close(certain, torch.zeros_like(certain), rtol=0, atol=1e-6)


def test_entropy_is_computed_only_if_wanted(tiny, padded):
    assert action_statistics(tiny(), *padded(RAGGED)).entropy_BA is None


def test_masked_slots_are_exactly_0_and_touch_no_gradient(tiny, padded):
    model, (sequences, mask, actions) = tiny(), padded(RAGGED)
    real = mask[:, -actions:]
    statistics = action_statistics(model, sequences, mask, actions, with_entropy=True)
    assert not statistics.log_probs_BA[~real].any()
    assert not statistics.entropy_BA[~real].any()
    poison = torch.where(real, 0.0, torch.inf).double()
    model.zero_grad()
    torch.autograd.backward([statistics.log_probs_BA, statistics.entropy_BA], [poison, poison])
    assert not any(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("junk", [0, 22, -100, 2**40])
def test_garbage_under_the_mask_changes_no_bit(junk, tiny, padded):
    model, (clean, mask, actions), (dirty, _, _) = tiny(dtype="float32"), padded(RAGGED), padded(RAGGED, junk=junk)

    def outcome(sequences):
        log_probs = action_statistics(model, sequences, mask, actions).log_probs_BA
        return {"value": log_probs.detach(), **gradients(model, log_probs.sum())}

    before, after = outcome(clean), outcome(dirty)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_row_of_padding_only_is_0_and_leaves_the_others_as_they_were(tiny, padded):
    model, (sequences, mask, actions) = tiny(), padded(RAGGED)
    alone = action_statistics(model, sequences[:3], mask[:3], actions).log_probs_BA
    mask[3] = False
    together = action_statistics(model, sequences, mask, actions).log_probs_BA
    torch.testing.assert_close(together[:3], alone, **EXACT)
    assert not together[3].any()
    assert all(gradient.isfinite().all() for gradient in gradients(model, together.sum()).values())


def test_a_batch_of_padding_only_gives_zeros(tiny):
    sequences = torch.zeros(2, 6, dtype=torch.long)
    assert not action_statistics(tiny(), sequences, sequences.bool(), 3).log_probs_BA.any()


def test_log_softmax_of_a_half_precision_head_is_taken_in_float32(tiny, padded):
    model, (sequences, mask, actions) = tiny(dtype="float32"), padded(RAGGED)
    rounded = model.lm_head.register_forward_hook(lambda module, inputs, logits: logits.half())
    log_probs = action_statistics(model, sequences, mask, actions).log_probs_BA
    rounded.remove()
    assert log_probs.dtype == torch.float32
    exact = action_statistics(model, sequences, mask, actions).log_probs_BA
    assert not torch.equal(log_probs, exact)
    torch.testing.assert_close(log_probs, exact, rtol=0, atol=0.01)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = made if isinstance(made, list | tuple) else [made]
        sizes = [tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return made


BATCH, ACTIONS, VOCABULARY = 4, 32, 601


def test_no_tensor_of_the_forward_or_backward_pass_is_larger_than_one_chunks_logits(tiny):
    model = tiny(dtype="float32", vocab_size=VOCABULARY)
    sequences = torch.arange(BATCH * (ACTIONS + 2)).view(BATCH, -1)
    with Largest() as largest:
        statistics = action_statistics(model, sequences, None, ACTIONS, chunk_tokens=20, with_entropy=True)
        (statistics.log_probs_BA + statistics.entropy_BA).sum().backward()
    assert largest.elements == 20 * VOCABULARY


def test_nothing_as_wide_as_the_vocabulary_is_kept_for_the_backward_pass(tiny, monkeypatch):
    monkeypatch.setattr(head_module, "_KEPT", BATCH * ACTIONS * VOCABULARY - 1)
    model = tiny(dtype="float32", vocab_size=VOCABULARY)
    sequences = torch.arange(BATCH * (ACTIONS + 2)).view(BATCH, -1)
    kept = []
    with saved_tensors_hooks(lambda tensor: kept.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor):
        action_statistics(model, sequences, None, ACTIONS, chunk_tokens=20, with_entropy=True)
    assert kept
    head = {tuple(model.lm_head.weight.shape), tuple(model.lm_head.weight.T.shape)}
    assert not [shape for shape in kept if VOCABULARY in shape and shape not in head]


def test_works_without_gradients(tiny, padded):
    model, batch = tiny(), padded(RAGGED)
    with torch.no_grad():
        log_probs = action_statistics(model, *batch, chunk_tokens=2).log_probs_BA
    assert not log_probs.requires_grad
    torch.testing.assert_close(log_probs, action_statistics(model, *batch).log_probs_BA.detach(), **EXACT)


def test_training_mode_changes_nothing_although_the_configuration_asks_for_dropout(tiny, padded):
    model, batch = tiny("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5), padded(RAGGED)
    still = action_statistics(model, *batch).log_probs_BA
    assert torch.equal(action_statistics(model.train(), *batch).log_probs_BA, still)


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused(tiny, padded):
    model = tiny()
    model.register_forward_hook(lambda module, inputs, output: output | {"logits": output.logits * 1.01})
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM computes its logits in a way"):
        action_statistics(model, *padded(RAGGED))


def test_a_model_without_an_output_head_is_refused(tiny, padded):
    with pytest.raises(UnsupportedModelError, match="LlamaModel has no output head"):
        action_statistics(tiny().model, *padded(RAGGED))


def test_a_model_in_which_logits_are_nan_is_not_mistaken_for_an_unknown_one(tiny, padded):
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    assert action_statistics(model, *padded([(2, 2)])).log_probs_BA.isnan().all()


def test_a_model_of_another_seed_says_something_else(configuration, padded):
    batch = padded(RAGGED)
    one, other = (action_statistics(load_model(configuration(), seed=seed), *batch) for seed in (1, 2))
    assert not torch.equal(one.log_probs_BA, other.log_probs_BA)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"actions": 0}, "0 of 5 tokens cannot be a completion"),
        ({"actions": 5}, "5 of 5 tokens cannot be a completion"),
        ({"temperature": 0.0}, "temperature must be above 0, not 0.0: greedy tokens are scored at 1"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"chunk_tokens": 0}, "chunk_tokens must be at least 1"),
        ({"attention_mask_BS": torch.ones(1, 4)}, r"the attention mask is \(1, 4\) and the sequences \(1, 5\)"),
        ({"attention_mask_BS": torch.tensor([[1, 1, 0, 1, 1]])}, "row 0 has a completion token right after padding"),
        ({"attention_mask_BS": torch.tensor([[1, 1, 1, 0, 1]])}, "row 0 has a completion token right after padding"),
    ],
)
def test_bad_input_is_refused_in_clear_words(change, words, tiny):
    arguments = {"sequences_BS": torch.ones(1, 5).long(), "attention_mask_BS": None, "actions": 2, **change}
    with pytest.raises(ValueError, match=words):
        action_statistics(tiny(), **arguments)
