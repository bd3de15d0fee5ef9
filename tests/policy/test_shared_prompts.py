"""A prompt that is computed once for its group: the same numbers and gradients as computing it for each row."""

import pytest
import torch
from torch import nn

from proa.policy.log_probs import UnsupportedModelError, action_statistics
from proa.policy.models import load_model
from proa.policy.shared_prompts import shared_lengths, shared_prompt_statistics

LLAMA = {
    "model_type": "llama", "vocab_size": 13, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 13, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 64}
SHAPES = {
    "llama": LLAMA,
    "qwen2": {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 4},
    "gpt2": GPT2,
}


def batch(groups=(0, 1, 0, 2, 1, 0), prompts=(3, 1, 4), lengths=(1, 4, 3, 2, 4, 2), seed=0):
    """Rows of three groups, not in order, with garbage under the mask."""
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(0, 13, (length,), generator=generator) for length in prompts]
    before, actions = max(prompts), max(lengths)
    sequences = torch.full((len(groups), before + actions), 99)
    mask = torch.zeros(sequences.shape, dtype=torch.bool)
    for row, (group, length) in enumerate(zip(groups, lengths, strict=True)):
        columns = slice(before - prompts[group], before + length)
        completion = torch.randint(0, 13, (length,), generator=generator)
        sequences[row, columns] = torch.cat((texts[group], completion))
        mask[row, columns] = True
    return sequences, mask, actions, torch.tensor(groups)


def both(model, sequences, mask, actions, groups, **settings):
    """Statistics and gradients, with the prompt shared and without."""
    results = []
    head = nn.Sequential(nn.Linear(8, 1, dtype=model.dtype), nn.Flatten(0)).requires_grad_(False)
    nn.init.ones_(head[0].weight)
    for shared in (True, False):
        model.zero_grad()
        groups_if = (groups,) if shared else ()
        function = shared_prompt_statistics if shared else action_statistics
        own = function(
            model, sequences, mask, actions, *groups_if, with_entropy=True, value_head=head, **settings
        )  # fmt: skip
        weights = torch.arange(1.0, own.log_probs_BA.numel() + 1, dtype=model.dtype).view_as(own.log_probs_BA)
        total = (own.log_probs_BA + 0.3 * own.entropy_BA + 0.1 * own.values_BA) * weights
        total.sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        results.append((own.log_probs_BA, own.entropy_BA, own.values_BA, *gradients))
    return results


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_numbers_and_gradients_are_those_of_each_row_alone(shape, attention):
    torch.set_num_threads(1)
    # transformers' eager attention is NaN for left padding in float64.
    model = load_model(SHAPES[shape], dtype="float64" if attention == "sdpa" else "float32", seed=1)
    model.set_attn_implementation(attention)
    # Norms of the Llama family compute in float32 whatever the model's dtype.
    exact = shape == "gpt2" and attention == "sdpa"
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if exact else {"rtol": 1e-4, "atol": 1e-4}
    for ours, alone in zip(*both(model, *batch(), temperature=0.7), strict=True):
        torch.testing.assert_close(ours, alone, **tolerance)


def test_garbage_under_the_mask_changes_no_bit():
    model = load_model(LLAMA, seed=1)
    sequences, mask, actions, groups = batch()
    first = shared_prompt_statistics(model, sequences, mask, actions, groups).log_probs_BA
    sequences = sequences.masked_fill(~mask, 5)
    assert torch.equal(first, shared_prompt_statistics(model, sequences, mask, actions, groups).log_probs_BA)


def test_one_group_of_one_completion_of_one_token():
    model = load_model(GPT2, dtype="float64", seed=1)
    given = batch(groups=(0,), prompts=(1,), lengths=(1,))
    for ours, alone in zip(*both(model, *given), strict=True):
        torch.testing.assert_close(ours, alone)


def test_lengths_count_a_prompt_once_and_no_last_tokens():
    _, mask, actions, groups = batch()
    assert shared_lengths(mask, actions, groups) == [3 + 0 + 2 + 1, 1 + 3 + 3, 4 + 1]


def test_another_prompt_in_a_group_is_refused():
    model = load_model(GPT2, seed=1)
    sequences, mask, actions, groups = batch()
    sequences[2, 1] = (sequences[2, 1] + 1) % 13
    with pytest.raises(ValueError, match="row 2 has another prompt than its group"):
        shared_prompt_statistics(model, sequences, mask, actions, groups)


def test_a_model_with_sliding_windows_is_refused():
    model = load_model({**LLAMA, "model_type": "mistral", "sliding_window": 4}, seed=1)
    with pytest.raises(UnsupportedModelError, match="cannot share prompts.*share_prompts to false"):
        shared_prompt_statistics(model, *batch())


GPT_NEO = {
    "model_type": "gpt_neo", "vocab_size": 13, "hidden_size": 8, "num_layers": 2, "num_heads": 2, "window_size": 6,
    "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64, "intermediate_size": 16,
}  # fmt: skip


def test_a_window_under_another_name_is_found_at_the_length_of_training():
    """GPT-Neo's local attention is in its layers, whatever mask they are given, and is called window_size."""
    model = load_model({**GPT_NEO, "window_size": 20}, seed=1)
    short = batch(groups=(0, 0), prompts=(3,), lengths=(3, 2))
    for ours, alone in zip(*both(model, *short), strict=True):  # all within the window
        # Float32 through two layers of width 8: some 20 sums of at most 16 terms, 1e-6 of numbers below 100.
        torch.testing.assert_close(ours, alone, rtol=1e-4, atol=1e-4)
    long = batch(groups=(0, 0), prompts=(12,), lengths=(12, 9))
    many = batch(groups=(0,) * 8, prompts=(3,), lengths=(4,) * 8)  # each within the window, and not the row
    for beyond in (long, many):
        with pytest.raises(UnsupportedModelError, match="GPTNeoForCausalLM cannot share prompts.*prompts to false"):
            shared_prompt_statistics(model, *beyond)


def test_completions_longer_together_than_a_model_with_a_fixed_mask_takes_are_refused_in_words():
    model = load_model({**GPT_NEO, "attention_types": [[["global"], 2]], "max_position_embeddings": 24}, seed=1)
    many = batch(groups=(0,) * 6, prompts=(4,), lengths=(8,) * 6)
    with pytest.raises(UnsupportedModelError, match="prompt with all its completions is .* tokens.*context of 24"):
        shared_prompt_statistics(model, *many)
