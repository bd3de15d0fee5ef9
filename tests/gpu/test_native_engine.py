"""The native engine with its kernels on a CUDA device: right, and no bit depends on company, order or pauses."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from tests.engines.test_stream import bits, drive
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from proa.data.sampling import Sampling
from proa.engines import NativeEngine, Request, build_engine, generate
from proa.engines.generating import Collected

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]
COMMON = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 1024, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, head_dim=32, attention_bias=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**COMMON, sliding_window=None, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=64)),
}
ENDS = (5, 6)
BOUND = {torch.bfloat16: 0.1, torch.float32: 1e-4}
"""Between a step and a full pass: in bfloat16 the pass's own logits are rounded to 8 bits."""


def model_of(name: str, seed: int = 0):
    torch.manual_seed(seed)
    return MODELS[name]().eval()


def engine_of(model, dtype=torch.bfloat16, **settings) -> NativeEngine:
    return build_engine("native", model, end_ids=ENDS, dtype=dtype, device="cuda", **settings)


SETTINGS = (
    {}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_k": 5}, {"temperature": 0.9, "top_k": 40, "top_p": 0.5},
    {"min_p": 0.3}, {"repetition_penalty": 1.3}, {"temperature": 0.0, "repetition_penalty": 1.5},
)  # fmt: skip


def requests():
    """Prompts that end within blocks and at their ends, in groups with different settings."""
    chance = random.Random(0)
    for group, length in enumerate((1, 2, 31, 32, 33, 64, 65, 100, 130, 200, 600)):
        prompt = tuple(chance.randrange(10, 1000) for _ in range(length))
        for place, settings in enumerate(SETTINGS):
            sampling = Sampling(max_new_tokens=chance.choice((3, 17, 40, 90)), **settings)
            yield Request(f"{group}/{place}", prompt, 10 * group + place, sampling, group=str(group))


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in MODELS), ("qwen3", torch.float32)], ids=str
)
def test_they_are_right_and_independent(name, dtype):
    model, asked = model_of(name), list(requests())
    engine = engine_of(model, dtype, slots=64, cache_tokens=200_000)
    assert engine.is_independent
    found = dict(zip([one.id for one in asked], map(bits, generate(engine, asked)), strict=True))
    assert engine.cache_tokens == 0, "all blocks came back"
    for one in asked[::6]:
        assert bits(generate(engine, [one])[0]) == found[one.id]
    few = engine_of(model, dtype, slots=5, cache_tokens=5_000)
    for seed in range(3):
        chance = random.Random(seed)
        chance.shuffle(asked)
        cancelled = [one.id for one in asked[::5]]
        for request_id, completion in drive(few, asked, chance, cancelled).items():
            assert bits(completion) == found[request_id]
    check_against(model.to("cuda", dtype), asked, found, atol=BOUND[dtype])


@torch.no_grad()
def check_against(model, asked, found, atol):
    """The trainer's pass over the same tokens, and what top-k and top-p leave of it."""
    for one in asked:
        tokens, log_probs, _ = found[one.id]
        sampling = one.sampling
        logits = model(torch.tensor([[*one.tokens, *tokens]], device="cuda")).logits[0, len(one.tokens) - 1 : -1]
        log_probs_TV = (logits.float() / (sampling.temperature or 1.0)).log_softmax(-1).cpu()
        expected = log_probs_TV.gather(-1, torch.tensor(tokens)[:, None])
        torch.testing.assert_close(torch.tensor(log_probs), expected[:, 0], atol=atol, rtol=0)
        if sampling.top_k:
            lowest = log_probs_TV.topk(sampling.top_k).values[:, -1:]
            assert (expected >= lowest - 2 * atol).all()


def test_top_k_and_top_p_sample_what_the_rule_of_all_engines_does():
    model = model_of("llama")
    sampling = Sampling(max_new_tokens=1, temperature=0.8, top_k=50, top_p=0.9)
    asked = [Request(str(seed), (7, 8, seed), seed, sampling) for seed in range(10, 300)]
    on_gpu, on_cpu = (
        [int(one.tokens[0]) for one in generate(engine, asked)]
        for engine in (engine_of(model, torch.float32), build_engine("native", model.cpu(), end_ids=ENDS))
    )
    # A choice differs only where a uniform number falls between two roundings of one boundary: 1e-6 of them.
    assert sum(one != other for one, other in zip(on_gpu, on_cpu, strict=True)) <= 1


@pytest.mark.parametrize(
    "settings",
    [
        {"min_p": 0.2}, {"repetition_penalty": 1.5}, {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 0.7},
    ],
    ids=str,
)  # fmt: skip
def test_min_p_and_penalties_sample_what_the_rule_of_all_engines_does(settings):
    """Six tokens, so that penalties count what was sampled too; 1,740 choices, of which one may round differently."""
    model = model_of("llama")
    sampling = Sampling(max_new_tokens=6, **settings)
    asked = [Request(str(seed), (7, 8, seed), seed, sampling) for seed in range(10, 300)]
    on_gpu, on_cpu = (
        [one.tokens.tolist() for one in generate(engine, asked)]
        for engine in (engine_of(model, torch.float32), build_engine("native", model.cpu(), end_ids=ENDS))
    )
    assert sum(one != other for one, other in zip(on_gpu, on_cpu, strict=True)) <= 1


def test_a_penalty_that_comes_while_others_decode_changes_nothing_for_them():
    """The step with penalties is recorded while rows are live, and used only while one of them has a penalty."""
    model = model_of("llama")
    plain = [Request(f"p{seed}", (7, 8, seed), seed, Sampling(max_new_tokens=60)) for seed in range(10, 20)]
    penalised = Request("q", (7, 8, 9), 3, Sampling(max_new_tokens=15, repetition_penalty=1.5))
    expected = dict(zip([one.id for one in plain], map(bits, generate(engine_of(model), plain)), strict=True))
    expected["q"] = bits(generate(engine_of(model), [penalised])[0])
    engine = engine_of(model)
    open_, found = {one.id: Collected() for one in (*plain, penalised)}, {}
    for one in plain:
        engine.submit(one)
    for step in range(200):
        if step == 7:
            engine.submit(penalised)
        if step == 12:
            engine.score([tuple(range(11, 40))])
        for progress in engine.step():
            if (completion := open_[progress.id].add(progress)) is not None:
                found[progress.id] = bits(completion)
    assert found == expected


def test_requests_stop_at_their_own_stops():
    engine = engine_of(model_of("llama"))
    plain = Request("plain", (11, 12), 3, Sampling(max_new_tokens=40))
    [whole] = generate(engine, [plain])
    stop = int(whole.tokens[8])
    first = whole.tokens.tolist().index(stop)
    ended, longer = generate(engine, [replace(plain, id="ended", stops=frozenset((stop,))), plain])
    assert (ended.tokens.tolist(), ended.finish_reason) == (whole.tokens[: first + 1].tolist(), "stop")
    assert bits(longer) == bits(whole)


# -- continuing --------------------------------------------------------------------------------------

GIVEN = ((11, 12, 13), (17, 18), tuple(range(100, 200)), (), (9,))
"""What comes before each turn: once nothing, once a single token, once more than a chunk."""


def turns(engine, name, between=lambda: None, penalty=1.0):
    said, before = [], ""
    for turn, tokens in enumerate(GIVEN):
        sampling = Sampling(max_new_tokens=40, temperature=0.9, repetition_penalty=penalty)
        request = Request(f"{name}{turn}", tokens, 50 + turn, sampling, continues=before, keep=True)
        engine.submit(request)
        collected, completion = Collected(), None
        while completion is None:
            for progress in engine.step():
                if progress.id == request.id:
                    completion = collected.add(progress)
        said.append(bits(completion))
        before = request.id
        between()
    return said


@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_turns_have_the_log_probs_of_the_whole_text_and_the_same_bits_after_pauses(penalty):
    model = model_of("qwen3")
    engine = engine_of(model)
    expected = turns(engine, "t", penalty=penalty)
    assert turns(engine, "s", engine.sleep, penalty) == expected
    small = engine_of(model, cache_tokens=1_500)
    others = iter(range(100))

    def crowd():
        for _ in range(4):
            number = next(others)
            prompt = tuple(range(10, 200 + number))
            small.submit(Request(f"o{number}", prompt, number, Sampling(max_new_tokens=200), keep=True))
        small.step()

    assert turns(small, "t", crowd, penalty) == expected
    text: list[int] = []
    model = model.to("cuda", torch.bfloat16)
    for tokens, (sampled, log_probs, _) in zip(GIVEN, expected, strict=True):
        text += tokens
        with torch.no_grad():
            logits = model(torch.tensor([text + sampled], device="cuda")).logits[0, len(text) - 1 : -1]
        wanted = (logits.float() / 0.9).log_softmax(-1).cpu().gather(-1, torch.tensor(sampled)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(log_probs), wanted, atol=BOUND[torch.bfloat16], rtol=0)
        text += sampled


# -- weights -----------------------------------------------------------------------------------------


def test_two_versions_are_decoded_side_by_side_and_scores_are_those_of_the_newest():
    first, second = model_of("llama"), model_of("llama", seed=1)
    engine = engine_of(first)
    sampling = Sampling(max_new_tokens=60)
    asked = [Request(f"{n}", (11, 12, n), n, sampling) for n in range(40)]
    open_, found = {}, {}

    def submit(version):
        for one in asked:
            engine.submit(replace(one, id=f"{version}:{one.id}", version=version))
            open_[f"{version}:{one.id}"] = Collected()

    submit(0)
    sequences = [tuple(range(11, 60)), (3, 4), (7,)]
    for step in range(200):
        if step == 5:
            engine.load(second.state_dict(), 1)
            submit(1)
        if step == 9:
            scores = engine.score(sequences)
        for progress in engine.step():
            if (completion := open_[progress.id].add(progress)) is not None:
                found[progress.id] = bits(completion)
    for version, model in enumerate((first, second)):
        for one, completion in zip(asked, generate(engine_of(model), asked), strict=True):
            assert found[f"{version}:{one.id}"] == bits(completion)
    assert [len(one) for one in scores] == [48, 1, 0]
    with torch.no_grad():
        logits = second.to("cuda", torch.bfloat16)(torch.tensor(sequences[:1], device="cuda")).logits[0, :-1].float()
    wanted = logits.log_softmax(-1).cpu().gather(-1, torch.tensor(sequences[0])[1:, None])[:, 0]
    torch.testing.assert_close(scores[0], wanted, atol=BOUND[torch.bfloat16], rtol=0)


def test_weights_are_replaced_in_place():
    first, second = model_of("qwen2"), model_of("qwen2", seed=1)
    engine, asked = engine_of(first), list(requests())[:12]
    generate(engine, asked)
    engine.load(second.state_dict(), 1)
    stamped = [replace(one, version=1) for one in asked]
    expected = generate(engine_of(second), asked)
    assert list(map(bits, generate(engine, stamped))) == list(map(bits, expected))


# -- what it cannot do -------------------------------------------------------------------------------


def test_what_its_kernels_do_not_know_is_decoded_slowly_and_it_says_so():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=1000, n_embd=64, n_layer=2, n_head=2, n_positions=128, eos_token_id=None)
    with pytest.warns(UserWarning, match="decodes slowly on this GPU: its kernels know models with a rotary"):
        engine = engine_of(GPT2LMHeadModel(config), torch.float32)
    [completion] = generate(engine, [Request("a", (11, 12), 3, Sampling(max_new_tokens=5))])
    assert len(completion) == 5


def test_memory_goes_back_when_it_sleeps():
    engine = engine_of(model_of("llama"), cache_tokens=100_000)
    generate(engine, list(requests())[:5])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    engine.sleep()
    cache_bytes = 100_000 * 3 * 4 * 32 * 2 * 2
    assert before - torch.cuda.memory_allocated() >= cache_bytes
    generate(engine, list(requests())[:5])
