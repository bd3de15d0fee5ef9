"""What both engines promise: the right tokens, the right log-probabilities, whatever else is in the call."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.prompted import Prompted, generated
from tests.engines.tiny import CONTEXT, SHAPES, VOCABULARY, logits_of, some_requests, tiny_model, tokens_of
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MinPLogitsWarper,
    Qwen2Config,
    Qwen2ForCausalLM,
    RepetitionPenaltyLogitsProcessor,
)

from proa.data.sampling import Completion, Sampling
from proa.engines import Engine, build_engine

Kind = Literal["native", "hf"]
KINDS: tuple[Kind, ...] = ("native", "hf")
GREEDY = Sampling(max_new_tokens=12, temperature=0.0)
SAMPLED = Sampling(max_new_tokens=12, temperature=0.7)

both_kinds = pytest.mark.parametrize("kind", KINDS)
every_shape = pytest.mark.parametrize("shape", SHAPES)


# Two ways to compute these models in float32: sums of up to 24 terms are off by sqrt(24) * 2**-24, and each of the two
# layers has a softmax over scores of up to about 20, which grows an error by as much: 1.2e-4 in a logit at the most.
# A key in the wrong column, or a wrong position, is wrong by a tenth and more.
ROUNDING = 2**-24 * 24**0.5 * 20**2


def flat(groups: Iterable[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def assert_same(one: list[list[Completion]], other: list[list[Completion]]) -> None:
    """The same tokens and ends, and log-probabilities that differ at most by rounding."""
    assert tokens_of(one) == tokens_of(other)
    for ours, theirs in zip(flat(one), flat(other), strict=True):
        assert ours.finish_reason == theirs.finish_reason
        torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=ROUNDING, rtol=0)


def assert_scored_by(model: torch.nn.Module, engine: Engine, sampling: Sampling) -> None:
    requests = some_requests()
    for request, group in zip(requests, generated(engine, requests, sampling), strict=True):
        for completion in group:
            logits = logits_of(model, request, completion) / (sampling.temperature or 1.0)
            expected = logits.log_softmax(-1).gather(-1, completion.tokens[:, None])[:, 0]
            assert completion.log_probs.dtype == torch.float32
            torch.testing.assert_close(
                completion.log_probs, expected, atol=ROUNDING / (sampling.temperature or 1.0), rtol=0
            )


@every_shape
def test_greedy_tokens_are_those_of_generate(shape: str) -> None:
    model = tiny_model(shape)
    requests = some_requests(seeds=1)
    expected = [
        model.generate(
            torch.tensor([request.tokens]),
            attention_mask=torch.ones(1, len(request.tokens)),
            do_sample=False,
            max_new_tokens=GREEDY.max_new_tokens,
        )[0, len(request.tokens) :].tolist()
        for request in requests
    ]
    for kind in KINDS:
        engine = build_engine(kind, model, end_ids=())
        assert [group[0] for group in tokens_of(generated(engine, requests, GREEDY))] == expected


@every_shape
def test_native_samples_what_hf_samples(shape: str) -> None:
    model = tiny_model(shape)
    native, hf = (generated(build_engine(kind, model, end_ids=(4,)), some_requests(), SAMPLED) for kind in KINDS)
    assert_same(native, hf)


def test_native_samples_what_hf_samples_under_min_p_and_a_penalty() -> None:
    model = tiny_model()
    for limits in ({"min_p": 0.1}, {"repetition_penalty": 1.4}, {"min_p": 0.05, "repetition_penalty": 0.8}):
        sampling = Sampling(max_new_tokens=12, temperature=1.5, **limits)
        native, hf = (generated(build_engine(kind, model, end_ids=(4,)), some_requests(), sampling) for kind in KINDS)
        assert_same(native, hf)


@every_shape
@both_kinds
def test_log_probs_are_those_of_a_full_pass(shape: str, kind: Kind) -> None:
    model = tiny_model(shape)
    assert_scored_by(model, build_engine(kind, model, end_ids=(4,)), SAMPLED)


@both_kinds
def test_log_probs_are_over_the_whole_vocabulary_under_top_k_and_top_p(kind: Kind) -> None:
    model = tiny_model()
    sampling = Sampling(max_new_tokens=12, temperature=0.7, top_k=4, top_p=0.8)
    assert_scored_by(model, build_engine(kind, model, end_ids=()), sampling)


@both_kinds
def test_log_probs_are_the_policys_under_min_p_and_a_penalty(kind: Kind) -> None:
    model = tiny_model()
    sampling = Sampling(max_new_tokens=12, temperature=0.7, min_p=0.1, repetition_penalty=1.5)
    assert_scored_by(model, build_engine(kind, model, end_ids=()), sampling)


@both_kinds
def test_greedy_records_log_probs_at_temperature_one(kind: Kind) -> None:
    model = tiny_model()
    assert_scored_by(model, build_engine(kind, model, end_ids=()), GREEDY)


@every_shape
@both_kinds
def test_loaded_weights_are_the_ones_in_force(shape: str, kind: Kind) -> None:
    engine = build_engine(kind, tiny_model(shape), end_ids=(4,))
    trained = tiny_model(shape, seed=1)
    engine.load(trained.state_dict(), 0)
    assert_scored_by(trained, engine, SAMPLED)
    again = tiny_model(shape, seed=2)
    engine.load(dict(again.named_parameters()), 0)  # tied weights come once here
    assert_scored_by(again, engine, SAMPLED)


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(4)), count=st.integers(1, 4), slots=st.integers(0, 7), kind=st.sampled_from(KINDS))
def test_a_sample_does_not_depend_on_its_company(order: list[int], count: int, slots: int, kind: Kind) -> None:
    model, requests = tiny_model(), some_requests()
    expected = generated(build_engine(kind, model, end_ids=(4, 9)), requests, SAMPLED)
    chosen = order[:count]
    engine = build_engine(kind, model, end_ids=(4, 9), slots=slots)
    assert_same(generated(engine, [requests[i] for i in chosen], SAMPLED), [expected[i] for i in chosen])


def test_a_sample_does_not_depend_on_its_siblings() -> None:
    engine = build_engine("native", tiny_model(), end_ids=(4,))
    whole = generated(engine, [Prompted((1, 2, 3), (5, 6, 7))], SAMPLED)
    alone = generated(engine, [Prompted((1, 2, 3), (6,)), Prompted((1, 2, 3), (7, 5))], SAMPLED)
    assert_same([[whole[0][1]], [whole[0][2], whole[0][0]]], alone)


@both_kinds
def test_the_same_call_gives_the_same_bits(kind: Kind) -> None:
    engine = build_engine(kind, tiny_model(), end_ids=(4, 9), slots=5)
    once, twice = (flat(generated(engine, some_requests(), SAMPLED)) for _ in range(2))
    assert all(torch.equal(one.log_probs, two.log_probs) for one, two in zip(once, twice, strict=True))
    assert all(torch.equal(one.tokens, two.tokens) for one, two in zip(once, twice, strict=True))


def test_long_calls_through_few_slots_give_what_hf_gives() -> None:
    """Enough steps for the native cache to move its columns to the front several times."""
    model = tiny_model()
    requests = [
        Prompted(tuple((index + place) % VOCABULARY for place in range(1 + index % 11)), (index, 1000 + index))
        for index in range(60)
    ]
    sampling = Sampling(max_new_tokens=40)
    native = generated(build_engine("native", model, end_ids=(4,), slots=3), requests, sampling)
    assert_same(native, generated(build_engine("hf", model, end_ids=(4,)), requests, sampling))
    lengths = {len(completion) for group in native for completion in group}
    assert len(lengths) > 15, "the case is meant to be ragged"


@both_kinds
def test_a_completion_ends_with_the_first_of_several_end_tokens(kind: Kind) -> None:
    ends = {4, 9, 17}
    requests = some_requests(seeds=20)
    sampling = Sampling(max_new_tokens=30)
    reasons = set()
    for completion in flat(generated(build_engine(kind, tiny_model(), end_ids=ends), requests, sampling)):
        *before, last = completion.tokens.tolist()
        assert not ends & set(before)
        assert completion.finish_reason == ("stop" if last in ends else "length")
        assert len(completion) == len(completion.log_probs)
        assert completion.finish_reason == "stop" or len(completion) == 30
        reasons.add((completion.finish_reason, last if last in ends else None))
    assert {("stop", 4), ("stop", 9), ("stop", 17)} <= reasons


@both_kinds
def test_without_end_tokens_all_completions_have_the_full_length(kind: Kind) -> None:
    groups = generated(build_engine(kind, tiny_model(), end_ids=()), some_requests(), SAMPLED)
    assert {(len(completion), completion.finish_reason) for group in groups for completion in group} == {(12, "length")}


@both_kinds
def test_an_end_token_in_the_last_place_is_a_stop(kind: Kind) -> None:
    model, requests = tiny_model(), [Prompted((1, 2), (3,))]
    [[completion]] = generated(build_engine(kind, model, end_ids=()), requests, SAMPLED)
    first_at = completion.tokens.tolist().index(completion.tokens[-1])
    exact = Sampling(max_new_tokens=first_at + 1, temperature=SAMPLED.temperature)
    [[ended]] = generated(build_engine(kind, model, end_ids={int(completion.tokens[-1])}), requests, exact)
    assert (len(ended), ended.finish_reason) == (first_at + 1, "stop")


@both_kinds
def test_top_k_of_one_is_greedy(kind: Kind) -> None:
    engine = build_engine(kind, tiny_model(), end_ids=(4,))
    sampled = generated(engine, some_requests(), Sampling(max_new_tokens=12, temperature=5.0, top_k=1))
    assert tokens_of(sampled) == tokens_of(generated(engine, some_requests(), GREEDY))


@both_kinds
def test_keeping_all_tokens_by_top_k_changes_nothing(kind: Kind) -> None:
    engine = build_engine(kind, tiny_model(), end_ids=(4,))
    kept = generated(engine, some_requests(), Sampling(max_new_tokens=12, temperature=0.7, top_k=VOCABULARY + 5))
    assert tokens_of(kept) == tokens_of(generated(engine, some_requests(), SAMPLED))


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.6), (5, 0.5)])
def test_no_token_comes_from_outside_of_the_support(top_k: int, top_p: float) -> None:
    model, requests = tiny_model(), some_requests(seeds=30)
    sampling = Sampling(max_new_tokens=12, temperature=2.0, top_k=top_k, top_p=top_p)
    ranks = set()
    groups = generated(build_engine("native", model, end_ids=()), requests, sampling)
    for request, group in zip(requests, groups, strict=True):
        for completion in group:
            for logits, token in zip(logits_of(model, request, completion) / 2.0, completion.tokens, strict=True):
                order = logits.argsort(descending=True)[: top_k or VOCABULARY]
                probabilities = logits[order].softmax(-1)
                kept = [index for index in range(len(order)) if probabilities[:index].sum() < top_p - 1e-5]
                assert token in order[kept]
                ranks.add(order.tolist().index(token))
    assert len(ranks) > 1, "sampling is meant to make use of its support"


@both_kinds
def test_sampled_frequencies_are_the_probabilities(kind: Kind) -> None:
    """Chi-square with 22 degrees of freedom: 48.3 is passed by chance once in a thousand."""
    model, samples = tiny_model(), 3000
    request = Prompted((1, 2, 3), tuple(range(samples)))
    sampling = Sampling(max_new_tokens=2, temperature=3.0)
    [group] = generated(build_engine(kind, model, end_ids=()), [request], sampling)
    first = logits_of(model, request, group[0])[0].div(3.0).softmax(-1)
    observed = torch.stack([completion.tokens for completion in group])
    counts = torch.bincount(observed[:, 0], minlength=VOCABULARY)
    assert (counts - samples * first).square().div(samples * first).sum() < 48.3
    with torch.no_grad():
        followers = model(torch.tensor([[1, 2, 3, int(tokens[0])] for tokens in observed])).logits[:, -1]
    expected = followers.div(3.0).softmax(-1).sum(0)
    counts = torch.bincount(observed[:, 1], minlength=VOCABULARY)
    assert (counts - expected).square().div(expected).sum() < 48.3


@both_kinds
def test_frequencies_under_min_p_and_a_penalty_are_those_of_the_logits_that_transformers_makes(kind: Kind) -> None:
    """Chi-square over the tokens that are left, at most 22 of them: 48.3 is passed by chance once in a thousand."""
    model, samples = tiny_model(), 3000
    request = Prompted((1, 2, 3), tuple(range(samples)))
    sampling = Sampling(max_new_tokens=1, temperature=3.0, min_p=0.6, repetition_penalty=1.5)
    [group] = generated(build_engine(kind, model, end_ids=()), [request], sampling)
    text, logits = torch.tensor([request.tokens]), logits_of(model, request, group[0])[:1]
    penalised = RepetitionPenaltyLogitsProcessor(1.5)(text, logits.clone())
    expected = samples * MinPLogitsWarper(0.6)(text, penalised / 3.0).softmax(-1)[0]
    counts = torch.bincount(torch.cat([completion.tokens for completion in group]), minlength=VOCABULARY)
    kept = expected > 0
    assert 2 < kept.sum() < VOCABULARY
    assert counts[~kept].sum() == 0
    assert (counts - expected)[kept].square().div(expected[kept]).sum() < 48.3


@both_kinds
def test_training_the_model_does_not_change_the_engine(kind: Kind) -> None:
    model = tiny_model()
    engine = build_engine(kind, model, end_ids=(4,))
    before = generated(engine, some_requests(), SAMPLED)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert_same(generated(engine, some_requests(), SAMPLED), before)


@both_kinds
def test_loaded_tensors_are_copied(kind: Kind) -> None:
    model = tiny_model(seed=1)
    engine = build_engine(kind, tiny_model(), end_ids=(4,))
    engine.load(model.state_dict(), 0)
    before = generated(engine, some_requests(), SAMPLED)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert_same(generated(engine, some_requests(), SAMPLED), before)


def _without(weights: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: weight for key, weight in weights.items() if key != name}


NORM = "model.norm.weight"
BAD_MAPPINGS = {
    f"missing: {NORM}": lambda weights: _without(weights, NORM),
    "unexpected: surplus": lambda weights: weights | {"surplus": torch.zeros(1)},
    rf"{NORM} is \(3,\) and should be \(16,\)": lambda weights: weights | {NORM: torch.zeros(3)},
}


@pytest.mark.parametrize("problem", BAD_MAPPINGS)
@both_kinds
def test_weights_that_do_not_fit_leave_the_old_ones_in_force(kind: Kind, problem: str) -> None:
    engine = build_engine(kind, tiny_model(), end_ids=(4,))
    before = generated(engine, some_requests(), SAMPLED)
    with pytest.raises(ValueError, match=problem):
        engine.load(BAD_MAPPINGS[problem](dict(tiny_model(seed=1).state_dict())), 0)
    assert_same(generated(engine, some_requests(), SAMPLED), before)


@both_kinds
def test_tied_weights_that_differ_are_refused(kind: Kind) -> None:
    engine = build_engine(kind, tiny_model("llama, tied"), end_ids=())
    weights = tiny_model("llama, tied", seed=1).state_dict()
    with pytest.raises(ValueError, match=r"lm_head.weight differs from the weight it is tied to"):
        engine.load(weights | {"lm_head.weight": weights["lm_head.weight"] + 1}, 0)


@both_kinds
def test_weights_are_cast_to_the_dtype_of_the_engine(kind: Kind) -> None:
    model = tiny_model()
    engine = build_engine(kind, model, end_ids=(4,))
    before = generated(engine, some_requests(), SAMPLED)
    engine.load({name: weight.double() for name, weight in model.state_dict().items()}, 0)
    assert_same(generated(engine, some_requests(), SAMPLED), before)


@both_kinds
def test_an_engine_of_another_dtype_than_the_model(kind: Kind) -> None:
    model = tiny_model()
    engine = build_engine(kind, model, end_ids=(4,), dtype=torch.float64)
    assert_same(
        generated(engine, some_requests(), SAMPLED),
        generated(build_engine(kind, model, end_ids=(4,)), some_requests(), SAMPLED),
    )
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@both_kinds
def test_dropout_of_a_model_in_training_does_not_reach_the_engine(kind: Kind) -> None:
    model = tiny_model("gpt2")
    before = generated(build_engine(kind, model, end_ids=()), some_requests(), SAMPLED)
    assert_same(generated(build_engine(kind, model.train(), end_ids=()), some_requests(), SAMPLED), before)
    assert model.training


@both_kinds
def test_the_global_random_state_is_neither_used_nor_changed(kind: Kind) -> None:
    model = tiny_model()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    engine = build_engine(kind, model, end_ids=(4,))
    first = generated(engine, some_requests(), SAMPLED)
    engine.load(model.state_dict(), 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert_same(generated(engine, some_requests(), SAMPLED), first)


@both_kinds
def test_a_prompt_that_does_not_fit_the_context_is_refused(kind: Kind) -> None:
    engine = build_engine(kind, tiny_model(), end_ids=())
    assert engine.context_length == CONTEXT
    fits, too_long = Prompted((1,) * (CONTEXT - 12), (0,)), Prompted((1,) * (CONTEXT - 11), (0,))
    assert len(generated(engine, [fits], SAMPLED)[0][0]) == 12
    with pytest.raises(
        ValueError, match=r"request prompt 1/0 has a prompt of 53 tokens.*context is 64.*max_new_tokens"
    ):
        generated(engine, [fits, too_long], SAMPLED)


@pytest.mark.parametrize(
    ("request_", "sampling", "problem"),
    [
        (Prompted((), (0,)), SAMPLED, "empty prompt"),
        (Prompted((VOCABULARY,), (0,)), SAMPLED, "outside the model's vocabulary"),
        (Prompted((1,), (0,)), Sampling(max_new_tokens=0), "max_new_tokens"),
        (Prompted((1,), (0,)), Sampling(temperature=-1.0), "temperature"),
        (Prompted((1,), (0,)), Sampling(temperature=float("nan")), "temperature"),
        (Prompted((1,), (0,)), Sampling(top_p=0.0), "top_p"),
        (Prompted((1,), (0,)), Sampling(top_k=-1), "top_k"),
        (Prompted((1,), (0,)), Sampling(min_p=1.5), "min_p is 1.5: write 0 to keep all"),
        (Prompted((1,), (0,)), Sampling(min_p=-0.1), "min_p"),
        (Prompted((1,), (0,)), Sampling(repetition_penalty=0.0), "repetition_penalty is 0.0: write 1 for none"),
        (Prompted((1,), (0,)), Sampling(repetition_penalty=-1.0), "repetition_penalty"),
    ],
)
@both_kinds
def test_a_call_that_makes_no_sense_is_refused(
    kind: Kind, request_: Prompted, sampling: Sampling, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        generated(build_engine(kind, tiny_model(), end_ids=()), [request_], sampling)


@both_kinds
def test_no_requests_and_requests_without_seeds_give_no_completions(kind: Kind) -> None:
    engine = build_engine(kind, tiny_model(), end_ids=())
    assert generated(engine, [], SAMPLED) == []
    groups = generated(engine, [Prompted((1,), ()), Prompted((1, 2), (3,)), Prompted((1, 2, 3), ())], SAMPLED)
    assert [len(group) for group in groups] == [0, 1, 0]


@both_kinds
def test_damaged_weights_are_reported_not_sampled_from(kind: Kind) -> None:
    model = tiny_model()
    engine = build_engine(kind, model, end_ids=(4,))
    engine.load({name: torch.full_like(weight, float("nan")) for name, weight in model.state_dict().items()}, 0)
    with pytest.raises(FloatingPointError, match="not finite"):
        generated(engine, some_requests(), SAMPLED)


@both_kinds
def test_completions_can_be_trained_on_and_sent_alone(kind: Kind) -> None:
    completion = generated(build_engine(kind, tiny_model(), end_ids=()), some_requests(seeds=50), SAMPLED)[0][0]
    scale = torch.ones(12, requires_grad=True)
    (scale * completion.log_probs).sum().backward()  # an inference tensor would be refused here
    assert len(pickle.dumps(completion.tokens)) < 2000  # a view would carry the tokens of all 200 samples


def test_a_model_the_native_engine_does_not_know_is_refused() -> None:
    bloom = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match=r"'bloom'; it knows gpt2, llama, mistral, qwen2, qwen3"):
        build_engine("native", bloom, end_ids=())


def test_rope_and_windows_the_native_engine_does_not_know_are_refused() -> None:
    small = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    rope = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    dynamic = LlamaForCausalLM(LlamaConfig(**small, **heads, rope_parameters=rope))
    with pytest.raises(ValueError, match=r"rope type 'dynamic'.*default, linear, llama3, yarn"):
        build_engine("native", dynamic, end_ids=())
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    with pytest.raises(ValueError, match="sliding window"):
        build_engine("native", Qwen2ForCausalLM(Qwen2Config(**small, **heads, **window)), end_ids=())


def test_an_unknown_kind_of_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="no engine 'vlm'; did you mean 'vllm'"):
        build_engine("vlm", tiny_model(), end_ids=())


@both_kinds
def test_engines_in_two_threads_give_what_they_give_one_after_the_other(kind: Kind) -> None:
    engines = [build_engine(kind, tiny_model(seed=seed), end_ids=(4,), slots=5) for seed in (0, 1)]

    def work(engine: Engine) -> list[Completion]:
        return flat(flat(generated(engine, some_requests(), SAMPLED)) for _ in range(5))

    in_turn = [work(engine) for engine in engines]
    with ThreadPoolExecutor(2) as pool:
        at_once = list(pool.map(work, engines))
    for one, two in zip(flat(in_turn), flat(at_once), strict=True):
        assert torch.equal(one.tokens, two.tokens)
        assert torch.equal(one.log_probs, two.log_probs)
