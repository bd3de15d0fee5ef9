"""Packing: few rows, and in each sample the log-probabilities and gradients that it has alone."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proa.policy.decoder_pass import find_decoder, use_segments
from proa.policy.log_probs import UnsupportedModelError
from proa.policy.packing import pack, pack_lengths, packed_log_probs

EXACT = {"rtol": 1e-12, "atol": 1e-12}
# Eager attention takes its softmax in float32 whatever the model's dtype, over rows of other lengths when they are
# packed: sums of up to 14 terms are off by sqrt(14) * 2**-24, and each of some four products with weights of 0.2 and
# width 16 grows that by 3.2 at the most. That is 2.3e-5 of what is compared, or of the largest in a gradient.
ROUNDED = 2.3e-5
LENGTHS = [5, 9, 2, 7, 12, 3, 1, 2]
CAPACITY = 14


@pytest.fixture
def samples():
    """Sequences, and which of their tokens are learned: any but the first."""
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(3, 23, (length,), generator=generator) for length in LENGTHS]
    learned = [torch.rand(length, generator=generator) < 0.6 for length in LENGTHS]
    for flags in learned:
        flags[0] = False
    return sequences, learned


def log_probs_alone(model, sequences, learned):
    """From the whole logits, one sample at a time."""
    by_place = {}
    for sample, (tokens, flags) in enumerate(zip(sequences, learned, strict=True)):
        distribution = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
        for place in flags.nonzero()[:, 0].tolist():
            by_place[sample, place] = distribution[place - 1, tokens[place]]
    return by_place


def in_packed_order(packed, by_place):
    places = zip(packed.learned_samples_N.tolist(), packed.positions_RL[packed.learned_RL].tolist(), strict=True)
    return torch.stack([by_place[place] for place in places])


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3", "gpt2"])
def test_values_and_gradients_are_those_of_each_sample_alone(shape, attention, tiny, samples):
    model = tiny(shape)
    model.set_attn_implementation(attention)
    packed = pack(*samples, pack_lengths(LENGTHS, CAPACITY))
    ours = packed_log_probs(model, packed, chunk_tokens=4)
    expected = in_packed_order(packed, log_probs_alone(model, *samples))
    bound = {"rtol": 0, "atol": ROUNDED * float(expected.detach().abs().max())} if attention == "eager" else EXACT
    torch.testing.assert_close(ours, expected, **bound)
    weights = torch.rand(len(ours), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    left, right = gradients(model, (weights * ours).sum()), gradients(model, (weights * expected).sum())
    for name in left:
        bound = {"rtol": 0, "atol": ROUNDED * float(right[name].abs().max())} if attention == "eager" else EXACT
        torch.testing.assert_close(left[name], right[name], **bound)


def test_a_sliding_window_stays_within_its_sample(tiny, samples):
    model = tiny("qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=0)
    assert "sliding_attention" in model.config.layer_types
    packed = pack(*samples, pack_lengths(LENGTHS, CAPACITY))
    expected = in_packed_order(packed, log_probs_alone(model, *samples))
    torch.testing.assert_close(packed_log_probs(model, packed), expected, **EXACT)


def test_neighbours_change_no_bit(tiny, samples):
    model, (sequences, learned) = tiny(dtype="float32"), samples
    plan = [[1, 2, 3]]
    before = packed_log_probs(model, pack(sequences, learned, plan))
    sequences[1] = (sequences[1] + 1) % 23
    packed = pack(sequences, learned, plan)
    after = packed_log_probs(model, packed)
    others = packed.learned_samples_N != 1
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[~others], after[~others])


def test_rows_can_be_taken_and_give_what_they_give_together(tiny, samples):
    model = tiny()
    packed = pack(*samples, pack_lengths(LENGTHS, CAPACITY))
    together = packed_log_probs(model, packed)
    parts = [packed.take([row]) for row in range(len(packed.tokens_RL))]
    torch.testing.assert_close(torch.cat([packed_log_probs(model, part) for part in parts]), together, **EXACT)
    assert [part.tokens_RL.shape[1] for part in parts] == [14, 14, 13]  # as full as each is


def test_padding_is_in_no_sample_and_sees_nothing(samples):
    packed = pack(*samples, [[0], [1, 2]])
    padding = packed.samples_RL < 0
    assert padding.sum().item() == 11 - 5
    assert not packed.positions_RL[padding].any()
    assert not packed.learned_RL[padding].any()


def test_the_plan_of_a_known_case():
    assert pack_lengths([2, 7, 3, 5], 8) == [[1], [3, 2], [0]]
    assert pack_lengths([4, 4, 4, 4], 8) == [[0, 1], [2, 3]]
    assert pack_lengths([], 8) == []


lengths_of_samples = st.lists(st.integers(1, 20), max_size=15)


@given(lengths_of_samples, st.integers(20, 50))
def test_each_sample_is_in_one_row_with_room_for_it(lengths, capacity):
    plan = pack_lengths(lengths, capacity)
    assert sorted(itertools.chain(*plan)) == list(range(len(lengths)))
    assert all(sum(lengths[sample] for sample in row) <= capacity for row in plan)


@given(lengths_of_samples, st.integers(20, 50))
def test_no_two_rows_could_be_one(lengths, capacity):
    filled = [sum(lengths[sample] for sample in row) for row in pack_lengths(lengths, capacity)]
    assert all(one + other > capacity for one, other in itertools.combinations(filled, 2))


def test_samples_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="sample 1 has 9 tokens; a row takes samples of 1 to 8"):
        pack_lengths([3, 9], 8)
    with pytest.raises(ValueError, match="sample 0 has 0 tokens"):
        pack_lengths([0], 8)


def test_a_first_token_cannot_be_learned():
    with pytest.raises(ValueError, match="the first token of sample 0 cannot be learned"):
        pack([torch.tensor([1, 2])], [torch.tensor([True, True])], [[0]])


@pytest.mark.parametrize("wrong", ["positions of the row", "one sample"])
def test_a_model_that_does_not_follow_its_positions_is_refused(wrong, tiny, samples, monkeypatch):
    model = tiny(dtype="float32")
    forward = model.model.forward

    def leaking(input_ids=None, attention_mask=None, position_ids=None, use_cache=None):
        if wrong == "one sample":  # right positions, but everything is seen
            attention_mask = torch.ones_like(input_ids)
        else:
            position_ids = None
        return forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=use_cache
        )

    monkeypatch.setattr(model.model, "forward", leaking)
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM cannot be trained on packed rows"):
        packed_log_probs(model, pack(*samples, [[0, 1]]))


def test_a_model_without_positions_is_refused(tiny, samples, monkeypatch):
    model = tiny()
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda input_ids, use_cache: forward(input_ids, use_cache=use_cache))
    with pytest.raises(UnsupportedModelError, match="Set packing to False"):
        packed_log_probs(model, pack(*samples, [[0, 1]]))


def test_a_model_of_nan_is_not_mistaken_for_an_unknown_one(tiny, samples):
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
        model.model.norm.weight.fill_(torch.nan)
    assert packed_log_probs(model, pack(*samples, [[0, 1]])).isnan().all()


def test_nothing_learned_gives_nothing(tiny):
    packed = pack([torch.tensor([3, 4, 5])], [torch.zeros(3, dtype=torch.bool)], [[0]])
    assert packed_log_probs(tiny(), packed).shape == (0,)


@pytest.mark.parametrize("shape", ["llama", "qwen3", "gpt2"])
def test_samples_end_to_end_have_the_log_probabilities_and_gradients_of_packed_rows(shape, tiny):
    model = tiny(shape)
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randint(3, 23, (length,), generator=generator) for length in (7, 2, 12, 5, 3)]
    learned = [torch.arange(len(sample)) > 0 for sample in samples]
    packed = pack(samples, learned, pack_lengths([len(sample) for sample in samples], 16))
    results = []
    for wanted in (False, True):
        use_segments(find_decoder(model), wanted)
        model.zero_grad()
        log_probs = packed_log_probs(model, packed)
        (log_probs * torch.arange(1.0, len(log_probs) + 1)).sum().backward()
        results.append([log_probs, *(parameter.grad.clone() for parameter in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=4e-3, atol=4e-3)  # norms are float32: tests/policy/test_segments.py
