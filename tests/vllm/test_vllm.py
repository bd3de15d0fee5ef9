"""What is particular to vLLM: what it leaves alone, its cache, and what the probe finds in it."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.test_stream import drive, requests_of
from tests.engines.tiny import tiny_model
from tests.vllm.models import COMMON, Engines

from proa.data.sampling import Completion, Sampling
from proa.engines import EngineBusyError, ModelDescription, Request, build_engine, generate, group_requests
from proa.engines.vllm import VLLMEngine
from proa.errors import ProaError, SettingError
from proa.policy.adapter_layout import AdaptedWeights
from proa.policy.lora import LoraSettings, adapter_layout, adapter_weights, add_lora
from proa.policy.lora_policy import as_policy
from proa.policy.models import load_model, model_weights
from proa.policy.saved_adapter import write_adapter
from proa.roles.probe import Probe, ProbeError
from proa.vllm_arguments import RESERVED, known_arguments

pytestmark = pytest.mark.usefixtures("vllms_shapes")

LONG = {**COMMON, "model_type": "llama", "max_position_embeddings": 256, "vocab_size": 64}
TIED = {**LONG, "tie_word_embeddings": True}
CACHING = {"options": {"block_size": 32}}
TEXTS = [tuple(range(2, 12)), (5, 4, 3), tuple(range(20, 55)), (7, 7)]
PROMPT = tuple((7 * place) % 64 for place in range(100))


def sharp(config: dict[str, Any], seed: int = 0) -> Any:
    """Random weights say nearly the same of every token; these do not."""
    model = load_model(config, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    return model


def moved(model: Any, step: int) -> None:
    """As training would."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)


def gap(policy: Any, engine: VLLMEngine, version: int) -> float:
    probe = Probe.of(policy, TEXTS)
    return probe.check(engine.score(probe.sequences), version, engine.dtype)


def requests(count: int = 4, version: int = 0, tokens: tuple[int, ...] = PROMPT) -> list[Request]:
    sampling = Sampling(max_new_tokens=20, temperature=0.9)
    return list(group_requests("p", tokens, range(count), sampling, version))


def bits(completions: list[Completion]) -> list[tuple[list[int], list[float]]]:
    return [(one.tokens.tolist(), one.log_probs.tolist()) for one in completions]


# -- what it leaves alone ----------------------------------------------------------------------------


def test_the_process_is_as_it_was_before_it_started(capfd: pytest.CaptureFixture[str]) -> None:
    threads, set_threads, environment = torch.get_num_threads(), torch.set_num_threads, dict(os.environ)
    chance, state = random.getstate(), torch.get_rng_state()
    engine = build_engine("vllm", sharp(LONG), end_ids=(), slots=4)
    generate(engine, requests())
    assert (torch.get_num_threads(), torch.set_num_threads, dict(os.environ)) == (threads, set_threads, environment)
    assert random.getstate() == chance
    assert torch.equal(torch.get_rng_state(), state)
    assert "NUMA" not in capfd.readouterr().err  # the memory of the process is not bound to a node


def test_two_in_one_process_take_turns(engines: Engines) -> None:
    models = [sharp(LONG, seed=seed) for seed in (0, 1)]
    two = [VLLMEngine(ModelDescription.of(one, end_ids=()), slots=4) for one in models]
    for engine, model in zip(two, models, strict=True):
        engine.load(model_weights(model), 0)
    in_turn = [bits(generate(engine, requests(6))) for engine in two]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda engine: bits(generate(engine, requests(6))), two)) == in_turn
    assert in_turn[0] != in_turn[1]


# -- the same bits -----------------------------------------------------------------------------------


def test_it_is_independent_here_and_its_bits_do_not_depend_on_company_or_order(engines: Engines) -> None:
    engine = engines.build("vllm", sharp(LONG), end_ids=(4,), **CACHING)
    assert engine.is_independent
    wanted = [
        replace(request, id=f"{length} {request.id}")
        for length in (1, 9, 33, 64, 100)
        for request in requests(3, tokens=PROMPT[:length])
    ]
    together = dict(zip([one.id for one in wanted], bits(generate(engine, wanted)), strict=True))
    for request in reversed(wanted):
        assert bits(generate(engine, [request])) == [together[request.id]]


def test_what_comes_goes_or_is_cancelled_beside_a_request_changes_no_bit_of_it(engines: Engines) -> None:
    engine = engines.build("vllm", tiny_model(), end_ids=(4,), slots=5)
    alone = {request.id: bits(generate(engine, [request])) for request in requests_of(16)}
    for seed in range(4):
        chance, wanted = random.Random(seed), requests_of(16)
        chance.shuffle(wanted)
        cancelled = [request.id for request in wanted[::5]]
        for name, completion in drive(engine, wanted, chance, cancelled).items():
            assert bits([completion]) == alone[name]
        assert engine.free == 5
        assert engine.step() == []


def test_one_that_would_depend_on_others_is_found_by_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    from proa.engines.vllm.inside import sampler

    alone = sampler._forced

    def disturbed(logits_BV: torch.Tensor, rows: Any, places: list[int]) -> Any:
        return alone(logits_BV * (1 + 1e-7 * len(rows)), rows, places)

    monkeypatch.setattr(sampler, "_forced", disturbed)
    assert not VLLMEngine(ModelDescription.of(sharp(LONG), end_ids=())).is_independent


def test_what_continues_another_is_the_same_whether_it_is_cached_or_not(engines: Engines) -> None:
    engine = engines.build("vllm", sharp(LONG), end_ids=(), **CACHING)

    def turns(forget: bool) -> list[Any]:
        said, before = [], ""
        for turn, tokens in enumerate((PROMPT[:50], (7, 8), (9,))):
            one = Request(f"t{turn}", tokens, turn, Sampling(max_new_tokens=20), continues=before, keep=turn < 2)
            said += bits(generate(engine, [one]))
            before = one.id
            if forget:
                engine._core.forget()
        return said

    assert turns(forget=True) == turns(forget=False)


def test_a_cache_for_few_sequences_holds_others_back_and_changes_no_bit() -> None:
    model = sharp(LONG)
    wide, narrow = (build_engine("vllm", model, end_ids=(), slots=slots, **CACHING) for slots in (16, 2))
    narrow._core.blocks = 4  # a request of 120 tokens takes them all
    assert bits(generate(narrow, requests(5))) == bits(generate(wide, requests(5)))
    with pytest.raises(SettingError, match="may become 140 tokens long, and vLLM's cache has room for 128"):
        narrow.submit(Request("long", PROMPT, 0, Sampling(max_new_tokens=40)))


# -- pushes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [LONG, TIED], ids=["untied", "tied"])
def test_ten_pushes_agree_with_the_trainer_after_each_and_the_cache_is_never_stale(
    engines: Engines, config: dict[str, Any]
) -> None:
    model = sharp(config)
    engine = engines.build("vllm", model, end_ids=(), **CACHING)
    for version in range(1, 11):
        moved(model, version)
        engine.load(model_weights(model), version)
        assert gap(as_policy(model), engine, version) < 1e-5
        for _ in range(2):  # the second finds the prompt in the cache
            assert_policys(model, generate(engine, requests(2, version)))


MERGED, APPLIED = CACHING, {"options": {**CACHING["options"], "enable_lora": True, "max_lora_rank": 8}}
ADAPTER = LoraSettings(rank=3, alpha=6.0)


@pytest.mark.parametrize("settings", [MERGED, APPLIED], ids=["merged", "applied"])
def test_ten_pushes_of_an_adapter_agree_with_the_trainer_after_each(engines: Engines, settings: dict[str, Any]) -> None:
    model = sharp(TIED)
    add_lora(model, ADAPTER, seed=1)
    engine = engines.build("vllm", model, end_ids=(), **settings)
    assert engine.is_independent
    policy = as_policy(model)
    receiver = policy.receiver()
    for version in range(1, 11):
        moved(model, version)
        engine.load(receiver.whole(policy.published()), version)
        assert gap(policy, engine, version) < 1e-5
        for _ in range(2):  # the second finds the prompt in the cache
            assert_policys(model, generate(engine, requests(2, version)))
    kept = [10] if settings is MERGED else [9, 10]
    assert list(engine.versions) == kept


def test_two_adapters_are_decoded_side_by_side_and_a_third_waits(engines: Engines) -> None:
    models = [sharp(TIED) for _ in range(3)]
    engine = engines.build("vllm", models[0], end_ids=(), **APPLIED)
    receiver, alone = None, []
    for version, model in enumerate(models):
        add_lora(model, ADAPTER, seed=1)
        moved(model, version)
        policy = as_policy(model)
        receiver = receiver or policy.receiver()
        if version < 2:
            engine.load(receiver.whole(policy.published()), version)
            alone += bits(generate(engine, requests(2, version)))
    both = [replace(one, id=f"{version} {one.id}") for version in (0, 1) for one in requests(2, version)]
    assert bits(generate(engine, both)) == alone
    assert alone[:2] != alone[2:]
    for one in both:
        engine.submit(one)
    with pytest.raises(EngineBusyError, match="version 2 cannot be loaded while sequences of 0, 1 are decoded"):
        engine.load(receiver.whole(as_policy(models[2]).published()), 2)
    for one in both:
        engine.cancel(one.id)
    engine.load(receiver.whole(as_policy(models[2]).published()), 2)
    assert list(engine.versions) == [1, 2]
    assert gap(as_policy(models[2]), engine, 2) < 1e-5


def test_an_adapter_that_is_too_wide_for_vllm_is_refused_in_words(engines: Engines) -> None:
    model = sharp(TIED)
    add_lora(model, LoraSettings(rank=9), seed=1)
    engine = engines.build("vllm", model, end_ids=(), **APPLIED)
    policy = as_policy(model)
    with pytest.raises(SettingError, match="rank is 9, and engine.options.max_lora_rank is 8: raise it"):
        engine.load(policy.receiver().whole(policy.published()), 1)
    assert engine.versions == (0,)


def assert_policys(model: Any, completions: list[Completion]) -> None:
    """The log-probabilities are the model's own, to 1e-4 for each token (sums of 200 terms in two layers)."""
    for one in completions:
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *one.tokens.tolist()]]), use_cache=False).logits[0]
        expected = (logits[len(PROMPT) - 1 : -1] / 0.9).log_softmax(-1).gather(-1, one.tokens[:, None])[:, 0]
        torch.testing.assert_close(one.log_probs, expected, atol=1e-4, rtol=0)


def test_a_cache_that_were_kept_over_a_push_would_be_seen(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp(LONG)
    engine = engines.build("vllm", model, end_ids=(), **CACHING)
    generate(engine, requests())
    monkeypatch.setattr(engine._core, "forget", lambda: None)
    moved(model, 1)
    engine.load(model_weights(model), 1)
    with pytest.raises(AssertionError, match="not close"):
        assert_policys(model, generate(engine, requests(2, version=1)))


@pytest.mark.parametrize("fault", ["missing: model.norm.weight", "unexpected: surplus", r"should be \(64,\)"])
def test_weights_that_do_not_fit_leave_the_old_ones_in_force(engines: Engines, fault: str) -> None:
    engine = engines.build("vllm", sharp(LONG), end_ids=(), **CACHING)
    before = bits(generate(engine, requests()))
    wrong = {
        "missing: model.norm.weight": lambda weights: weights.pop("model.norm.weight"),
        "unexpected: surplus": lambda weights: weights.update(surplus=torch.zeros(1)),
        r"should be \(64,\)": lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}),
    }
    weights = dict(model_weights(sharp(LONG, seed=1)))
    wrong[fault](weights)
    with pytest.raises(ValueError, match=f"nothing was loaded.*{fault}"):
        engine.load(weights, 1)
    assert engine.versions == (0,)
    assert bits(generate(engine, requests())) == before


def test_after_damaged_weights_good_ones_are_as_if_nothing_had_been(engines: Engines) -> None:
    """What they left in the cache is no number, and would spread from where it is masked."""
    model = sharp(LONG)
    engine = engines.build("vllm", model, end_ids=(), **CACHING)
    before = bits(generate(engine, requests(6)))
    engine.load({name: torch.full_like(one, float("nan")) for name, one in model_weights(model).items()}, 1)
    with pytest.raises(FloatingPointError, match="damaged"):
        generate(engine, requests(6, version=1))
    engine.load(model_weights(model), 0)
    assert bits(generate(engine, requests(6))) == before


def test_weights_that_vllm_fails_to_take_leave_it_with_none(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    from proa.engines.vllm.inside.transfer import GivenWeightsEngine

    model = sharp(LONG, seed=5)
    engine = engines.build("vllm", model, end_ids=(), slots=3)

    def broken(*_: Any) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(GivenWeightsEngine, "receive_weights", broken)
        with pytest.raises(ProaError, match="not taken the weights of version 1, and has none now: no memory"):
            engine.load(model_weights(model), 1)
    assert engine.versions == ()
    with pytest.raises(SettingError, match="version 0, which are not loaded"):
        engine.submit(requests()[0])
    engine.load(model_weights(model), 2)
    assert gap(as_policy(model), engine, 2) < 1e-5


# -- what the probe finds ----------------------------------------------------------------------------


def stale_head(patch: pytest.MonkeyPatch) -> None:
    """vLLM's own defect: on a CPU the head stays packed as it was, where it is tied to the embeddings."""
    patch.setattr("proa.engines.vllm.inside.transfer.pack_again", lambda head: None)


def dropped_layer(patch: pytest.MonkeyPatch) -> None:
    from proa.engines.vllm.inside.transfer import GivenWeightsEngine

    def but_a_layer(self: Any, update_info: Any) -> None:
        weights = {name: one for name, one in update_info.weights.items() if "layers.1." not in name}
        self.model.load_weights(iter(weights.items()))

    patch.setattr(GivenWeightsEngine, "receive_weights", but_a_layer)


def wrong_scale(patch: pytest.MonkeyPatch) -> None:
    from proa.engines.vllm.inside.transfer import GivenWeightsEngine

    def at_another_scale(self: Any, update_info: Any) -> None:
        weights = {**update_info.weights, "model.norm.weight": update_info.weights["model.norm.weight"] * 1.02}
        self.model.load_weights(iter(weights.items()))

    patch.setattr(GivenWeightsEngine, "receive_weights", at_another_scale)


@pytest.mark.parametrize("fault", [stale_head, dropped_layer, wrong_scale])
def test_the_probe_refuses_a_push_that_was_not_taken_whole_and_the_next_is_right(
    fault: Any, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sharp(TIED)
    engine = engines.build("vllm", model, end_ids=(), **CACHING)
    other = sharp(TIED, seed=1)
    with monkeypatch.context() as patch:
        fault(patch)
        engine.load(model_weights(other), 1)
        with pytest.raises(ProbeError, match="They do not compute the same policy") as error:
            gap(as_policy(other), engine, 1)
    numbers = re.findall(r"-?\d+\.\d+", str(error.value))
    assert len(numbers) >= 3  # the engine's, the trainer's, and how far they are apart
    engine.load(model_weights(other), 2)
    assert gap(as_policy(other), engine, 2) < 1e-5


@pytest.mark.parametrize("settings", [MERGED, APPLIED], ids=["merged", "applied"])
def test_the_probe_refuses_another_adapter(engines: Engines, settings: dict[str, Any]) -> None:
    model = sharp(TIED)
    add_lora(model, ADAPTER, seed=1)
    engine = engines.build("vllm", model, end_ids=(), **settings)
    policy = as_policy(model)
    moved(model, 1)
    other = {name: torch.randn(one.shape, generator=torch.Generator().manual_seed(7)) * 0.2
             for name, one in adapter_weights(model).items()}  # fmt: skip
    engine.load(policy.receiver().whole(other), 1)
    with pytest.raises(ProbeError):
        gap(policy, engine, 1)


@pytest.mark.parametrize("settings", [MERGED, APPLIED], ids=["merged", "applied"])
def test_the_probe_refuses_an_adapter_at_another_scale(engines: Engines, settings: dict[str, Any]) -> None:
    model = sharp(TIED)
    add_lora(model, ADAPTER, seed=1)
    engine = engines.build("vllm", model, end_ids=(), **settings)
    policy = as_policy(model)
    moved(model, 1)
    right = policy.receiver().whole(policy.published())
    layout = replace(right.layout, scaling=2 * right.layout.scaling)
    engine.load(AdaptedWeights(right.base, right.adapter, layout), 1)
    with pytest.raises(ProbeError):
        gap(policy, engine, 1)
    engine.load(right, 2)
    assert gap(policy, engine, 2) < 1e-5


def test_an_adapter_in_the_place_of_another_would_be_seen(engines: Engines) -> None:
    """What a new name for every version is for."""
    model = sharp(TIED)
    add_lora(model, ADAPTER, seed=1)
    engine = engines.build("vllm", model, end_ids=(), **APPLIED)
    policy = as_policy(model)
    receiver = policy.receiver()
    engine.load(receiver.whole(policy.published()), 1)
    generate(engine, requests(2, 1))
    held = engine._held[1]
    folder = Path(held.lora_path)
    folder.mkdir()
    try:
        write_adapter(*_moved_adapter(model), folder)
        engine._core._engine.remove_lora(held.lora_int_id)
        engine._core._engine.add_lora(held)
    finally:
        shutil.rmtree(folder)
    assert gap(policy, engine, 1) < 1e-5  # short texts fill no block: they do not find it
    with pytest.raises(AssertionError, match="not close"):
        assert_policys(model, generate(engine, requests(2, 1)))


def _moved_adapter(model: Any) -> tuple[dict[str, torch.Tensor], Any]:
    for step in range(3):
        moved(model, step)
    return adapter_weights(model), adapter_layout(model)


@pytest.mark.prove
def test_split_over_two_processes_it_samples_the_same() -> None:
    model = sharp({**TIED, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2})
    split = build_engine("vllm", model, end_ids=(), slots=4, options={"tensor_parallel_size": 2})
    moved(model, 1)
    split.load(model_weights(model), 1)
    assert gap(as_policy(model), split, 1) < 1e-5
    expected = generate(build_engine("hf", model, end_ids=()), requests(3))
    found = generate(split, requests(3, version=1))
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in expected]


@pytest.mark.prove
def test_one_short_sequence_at_once_is_measured_beside_the_other_engines() -> None:
    """Of vLLM's cache one block is never given out, so a sequence that fills one needs two."""
    command = [sys.executable, "-m", "proa", "bench", "rollout", "small", "--engines", "vllm", "--rows", "1", "--json"]
    sizes = ["--lengths", "uniform", "--prompt-tokens", "16", "--new-tokens", "16", "--rounds", "1"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    [figure] = [one for one in json.loads(done.stdout)["figures"] if one["engine"] == "vllm"]
    assert figure["tokens_per_second"] > 0


# -- likely mistakes ---------------------------------------------------------------------------------


def test_the_arguments_that_are_read_from_its_source_are_those_that_it_has() -> None:
    from vllm import EngineArgs, __file__

    read = known_arguments(Path(__file__).parent)
    assert read == [field.name for field in fields(EngineArgs)]
    assert set(RESERVED) - {"device"} <= set(read)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"options": {"block_siz": 32}}, "vLLM has no argument 'block_siz'; did you mean 'block_size'"),
        ({"options": {"dtype": "bfloat16"}}, "'dtype' is not yours to set: write engine.dtype"),
        ({"options": {"max_model_len": 100000}}, "vLLM does not start with this model and engine.options: .*100000"),
        (
            {"options": {"block_size": "x"}},
            "vLLM does not start with this model and engine.options: block_size: .*valid",
        ),
        ({"device": "cuda"}, "this vLLM computes on cpu, and engine.device is cuda: install the vLLM for that device"),
        ({"options": {"kv_cache_memory_bytes": 10}, "cache_tokens": 5}, "both size the cache: leave one out"),
        ({"slot": 3}, "has no setting 'slot'; did you mean 'slots'"),
    ],
)
def test_what_it_cannot_be_told_is_said(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        build_engine("vllm", sharp(LONG), end_ids=(), **settings)


def test_models_that_it_cannot_run_are_refused_in_words() -> None:
    with pytest.raises(SettingError, match="vLLM cannot compute with this model on cpu: .*head_dim=4"):
        build_engine("vllm", sharp({**LONG, "num_attention_heads": 16, "num_key_value_heads": 16}), end_ids=())
    xlstm = {"model_type": "xlstm", "hidden_size": 64, "num_heads": 2, "num_hidden_layers": 1, "vocab_size": 64}
    with pytest.raises(SettingError, match="vLLM does not serve .*xlstm.*: use engine native or hf"):
        build_engine("vllm", xlstm, end_ids=())


def test_sleeping_on_a_cpu_says_once_that_it_does_nothing(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    engine = engines.build("vllm", sharp(LONG), end_ids=(), slots=5)
    for _ in range(2):
        engine.sleep()
    assert caplog.text.count("vLLM cannot sleep on a CPU") == 1
    assert len(generate(engine, requests())) == 4


def test_models_of_the_other_tests_are_those_that_vllm_serves() -> None:
    assert tiny_model("mistral").config.model_type == "mistral"


def test_one_that_is_gone_leaves_the_others_working(engines: Engines) -> None:
    engine = engines.build("vllm", sharp(LONG), end_ids=(), **CACHING)
    before = bits(generate(engine, requests()))
    gone = VLLMEngine(ModelDescription.of(sharp(LONG), end_ids=()), slots=2)
    del gone
    gc.collect()
    assert bits(generate(engine, requests())) == before
