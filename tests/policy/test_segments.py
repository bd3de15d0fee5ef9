"""Sequences end to end in one row: the numbers and the gradients of each sequence alone."""

import logging
import threading

import pytest
import torch

from proa.policy import segments as segments_module
from proa.policy.decoder_pass import find_decoder, hidden_states, takes_segments, use_segments
from proa.policy.log_probs import action_statistics
from proa.policy.models import load_model
from proa.policy.segments import ATTENTION, Segments, attention_as, bucket_size, make_segments, segment_hidden_states
from proa.policy.shared_prompts import check_shares_prompts, lay_end_to_end, shared_prompt_statistics

ROWS = [(3, 4), (5, 1), (1, 5), (2, 2), (4, 6)]
# GPT-2 computes in float64 throughout; norms of the others are float32 whatever the model's dtype. Two layers of width
# 16 with weights of 0.2 carry a rounding of 2**-24 through some ten products that grow it by 3 each at the most, to
# 4e-3 of a gradient. A token that sees another sequence changes by whole nats.
EXACT, ROUNDED = {"rtol": 1e-10, "atol": 1e-10}, {"rtol": 4e-3, "atol": 4e-3}
SHAPES = {"llama": ROUNDED, "qwen2": ROUNDED, "qwen3": ROUNDED, "gpt2": EXACT}


def with_segments(model, wanted=True):
    use_segments(find_decoder(model), wanted)
    return model


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def outcome(model, wanted, function, *batch):
    statistics = function(with_segments(model, wanted), *batch, temperature=0.7, with_entropy=True)
    weights = torch.arange(1.0, statistics.log_probs_BA.numel() + 1, dtype=torch.float64)
    loss = ((statistics.log_probs_BA + 0.3 * statistics.entropy_BA).flatten() * weights).sum()
    return [statistics.log_probs_BA, statistics.entropy_BA, *gradients(model, loss)]


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_and_gradients_are_those_of_padded_rows(shape, tiny, padded):
    model, batch = tiny(shape), padded(ROWS)
    together, apart = (outcome(model, wanted, action_statistics, *batch) for wanted in (True, False))
    for ours, theirs in zip(together, apart, strict=True):
        torch.testing.assert_close(ours, theirs, **SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shared_prompt_gives_what_each_row_gives(shape, tiny, padded):
    model = tiny(shape)
    sequences, mask, actions = padded([(3, 4), (3, 1), (2, 5), (3, 2), (2, 6)])
    groups = torch.tensor([0, 0, 1, 0, 1])
    for group in (0, 1):
        rows = (groups == group).nonzero()[:, 0]
        sequences[rows, :-actions] = sequences[rows[0], :-actions]
    shared = outcome(model, True, shared_prompt_statistics, sequences, mask, actions, groups)
    alone = outcome(model, False, action_statistics, sequences, mask, actions)
    for ours, theirs in zip(shared, alone, strict=True):
        torch.testing.assert_close(ours, theirs, **SHAPES[shape])


def test_a_shared_prompt_is_computed_once(padded):
    sequences, mask, actions = padded([(3, 4), (3, 4), (3, 1)])
    sequences[:, :-actions] = sequences[0, :-actions]
    laid, predictors = lay_end_to_end(sequences, mask, actions, torch.tensor([0, 0, 0]))
    assert laid.query_starts_N.diff().tolist()[:3] == [3, 3, 3]  # the prompt, and two completions without their last
    assert laid.key_starts_N.diff().tolist()[:3] == [3, 6, 6]
    assert predictors.tolist() == [2, 3, 4, 5, 2, 6, 7, 8, 2]


def test_what_fills_a_row_up_changes_nothing(tiny):
    model = tiny("llama")
    tokens, positions = torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 1, 2, 0, 1])
    filled = make_segments(tokens, positions, [3, 2])
    plain = Segments(
        tokens, positions, torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([0, 3, 5], dtype=torch.int32), 3, 3
    )
    more = make_segments(torch.cat((tokens, tokens)), torch.cat((positions, positions)), [3, 2, 3, 2])
    decoder = find_decoder(model)
    alone = segment_hidden_states(decoder, plain)
    torch.testing.assert_close(segment_hidden_states(decoder, filled)[:5], alone, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(segment_hidden_states(decoder, more)[:5], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 7, 8, 9, 100, 1000, 16_383, 24_000])
def test_sizes_are_few_and_near(count):
    size = bucket_size(count)
    assert count <= size <= max(4, count * 1.25)
    assert len({bucket_size(number) for number in range(4096, 8192)}) <= 5


def test_models_that_attend_in_other_ways_are_padded(padded, configuration, caplog):
    capped = load_model(configuration("gemma2", attn_logit_softcapping=5.0), seed=0)
    sequences, mask, _ = padded(ROWS)
    before = hidden_states(find_decoder(capped), sequences, mask)[mask]
    with caplog.at_level(logging.WARNING):
        after = hidden_states(find_decoder(with_segments(capped)), sequences, mask)[mask]
    assert torch.equal(before, after)
    assert "they are padded, which is right and slower" in caplog.text


def test_the_model_keeps_its_own_attention_for_everything_else(tiny, padded):
    model = with_segments(tiny("llama"))
    sequences, mask, _ = padded(ROWS)
    hidden_states(find_decoder(model), sequences, mask)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ZeroDivisionError), attention_as(model.config, ATTENTION):
        raise ZeroDivisionError
    assert model.config._attn_implementation == "sdpa"


def test_on_a_cpu_rows_are_padded_unless_asked(tiny):
    assert not takes_segments(find_decoder(tiny("llama", dtype="float32")), 16)


def test_prompts_are_shared_by_models_whose_attention_takes_no_mask(tiny):
    model = tiny("llama", dtype="float32")
    check_shares_prompts(with_segments(model), 32)
    model.config._attn_implementation = "flash_attention_2"
    check_shares_prompts(model, 32)


class Garbage(torch.autograd.Function):
    """What a kernel leaves of the gradients of keys that it never looked at."""

    @staticmethod
    def forward(ctx, key, count):
        ctx.count = count
        return key.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        gradient[ctx.count :] = torch.nan
        return gradient, None


def test_keys_that_are_in_no_segment_cannot_touch_the_gradient(tiny, padded, monkeypatch):
    attend_one_by_one, unused = segments_module._attend_one_by_one, []

    def with_garbage(query, key, value, query_starts, key_starts, scaling):
        count = int(key_starts[-1])
        unused.append(len(key) - count)
        key, value = Garbage.apply(key, count), Garbage.apply(value, count)
        return attend_one_by_one(query, key, value, query_starts, key_starts, scaling)

    sequences, mask, actions = padded([(3, 4), (3, 1), (3, 2)])
    sequences[:, :-actions] = sequences[0, :-actions]
    batch = (sequences, mask, actions, torch.tensor([0, 0, 0]))
    clean = outcome(tiny("llama"), True, shared_prompt_statistics, *batch)
    monkeypatch.setattr(segments_module, "_attend_one_by_one", with_garbage)
    for ours, theirs in zip(outcome(tiny("llama"), True, shared_prompt_statistics, *batch), clean, strict=True):
        assert torch.equal(ours, theirs)
    assert max(unused) > 0  # else this shows nothing


def test_threads_that_share_a_model_do_not_change_each_other_s_attention(tiny, padded):
    model = with_segments(tiny("llama", dtype="float32"))
    batches = [padded(ROWS, seed=seed)[:2] for seed in range(2)]
    decoder = find_decoder(model)
    with torch.no_grad():
        alone = [hidden_states(decoder, *batch)[batch[1]] for batch in batches]
    failures = []

    def work(place):
        with torch.no_grad():
            for _ in range(60):
                found = hidden_states(decoder, *batches[place])[batches[place][1]]
                if not torch.equal(found, alone[place]):
                    failures.append(place)

    threads = [threading.Thread(target=work, args=[place]) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert model.config._attn_implementation == "sdpa"


def test_rows_that_are_longer_than_the_context_are_tried_within_it(tiny):
    assert takes_segments(find_decoder(with_segments(tiny("gpt2", dtype="float32"))), 500)
