"""A training step on a CUDA device: end to end, checkpointed, compiled, and the same bits each time."""

import json
import statistics
from multiprocessing import get_context

import pytest
import torch

from proa.learning.learner import Learner
from proa.policy.computing import ComputeSettings, set_up_computing
from proa.policy.decoder_pass import find_decoder, takes_segments
from proa.policy.log_probs import action_statistics
from proa.policy.models import load_model
from proa.policy.shared_prompts import shared_prompt_statistics
from proa.recipes import grpo, sft

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]
SIZES = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 256,
}  # fmt: skip
SHAPES = {
    "llama": {"model_type": "llama", **SIZES},
    "mistral": {"model_type": "mistral", **SIZES},
    "qwen2": {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 32},
}
WAYS = {
    "segments": ComputeSettings(attention="segments"),
    "checkpointed": ComputeSettings(attention="segments", gradient_checkpointing=True),
    "compiled": ComputeSettings(attention="segments", compile=True),
    "compiled and checkpointed": ComputeSettings(attention="segments", compile=True, gradient_checkpointing=True),
}


def batch():
    """Four groups of one prompt each, with completions of all lengths, padded as makers send them."""
    generator = torch.Generator().manual_seed(0)
    prompts, actions = (24, 40, 7, 33), 48
    sequences = torch.randint(3, 512, (16, max(prompts) + actions), generator=generator)
    mask = torch.ones_like(sequences, dtype=torch.bool)
    for row in range(16):
        mask[row, : max(prompts) - prompts[row // 4]] = False
        mask[row, max(prompts) + 3 + 3 * row % actions :] = False
        sequences[row, : max(prompts)] = sequences[row // 4 * 4, : max(prompts)]
    groups = torch.arange(16) // 4
    return sequences.cuda(), mask.cuda(), actions, groups.cuda()


def gradients(model, function, *arguments):
    model.zero_grad()
    statistics = function(model, *arguments, with_entropy=True)
    weights = torch.linspace(-1, 1, statistics.log_probs_BA.numel(), device="cuda").view_as(statistics.log_probs_BA)
    ((statistics.log_probs_BA + 0.1 * statistics.entropy_BA) * weights).sum().backward()
    return {name: parameter.grad.float().clone() for name, parameter in model.named_parameters()}


def far_apart(ours, theirs):
    """By name, how far two gradients are apart, in parts of their length."""
    return {name: float((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp(min=1e-20)) for name in theirs}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_as_near_to_float32s_as_those_of_the_plain_path(shape, way):
    """Bfloat16 rounds each of some twenty sums to 2**-9: both paths are off by a few percent, and neither by more than
    twice the other."""
    sequences, mask, actions, _ = batch()
    exact = load_model(SHAPES[shape], device="cuda", dtype="bfloat16", seed=0).float()
    set_up_computing(exact, ComputeSettings(attention="sdpa"))
    reference = gradients(exact, action_statistics, sequences, mask, actions)
    found = {}
    for name, settings in (("plain", ComputeSettings(attention="sdpa")), (way, WAYS[way])):
        model = load_model(SHAPES[shape], device="cuda", dtype="bfloat16", seed=0)
        set_up_computing(model, settings)
        found[name] = far_apart(gradients(model, action_statistics, sequences, mask, actions), reference)
    assert max(found["plain"].values()) < 0.2
    for name, distance in found[way].items():
        assert distance <= 2 * found["plain"][name] + 0.01, (name, distance, found["plain"][name])


@pytest.mark.parametrize("way", WAYS)
def test_shared_prompts_give_the_same_gradients(way):
    sequences, mask, actions, groups = batch()
    model = load_model(SHAPES["qwen3"], device="cuda", dtype="bfloat16", seed=0)
    set_up_computing(model, WAYS[way])
    assert takes_segments(find_decoder(model), sequences.shape[1])
    alone = gradients(model, action_statistics, sequences, mask, actions)
    shared = gradients(model, shared_prompt_statistics, sequences, mask, actions, groups)
    assert max(far_apart(shared, alone).values()) < 0.1


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bits_each_time(way):
    sequences, mask, actions, groups = batch()
    torch.use_deterministic_algorithms(True)
    try:
        results = []
        for _ in range(2):
            model = load_model(SHAPES["qwen3"], device="cuda", dtype="bfloat16", seed=0)
            set_up_computing(model, WAYS[way])
            results.append(gradients(model, shared_prompt_statistics, sequences, mask, actions, groups))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_checkpointing_takes_less_memory():
    peaks = {}
    sequences = torch.randint(3, 512, (64, 256), device="cuda")
    for way in ("segments", "checkpointed"):
        model = load_model({**SHAPES["qwen3"], "num_hidden_layers": 12}, device="cuda", dtype="bfloat16", seed=0)
        set_up_computing(model, WAYS[way])
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        action_statistics(model, sequences, None, 128).log_probs_BA.sum().backward()
        peaks[way] = torch.cuda.max_memory_allocated() - before
    assert peaks["checkpointed"] < 0.5 * peaks["segments"]


RUN = {
    "total_steps": 6, "train_batch_size": 32, "sampling": {"group_size": 8, "max_new_tokens": 12}, "max_staleness": 1,
    "task": {"source": "sort_digits", "count": 256}, "reward": {"workers": 0}, "optimizer": {"learning_rate": 1e-3},
}  # fmt: skip
AUTOMATIC = {"config": {**SHAPES["qwen3"], "vocab_size": 16}, "device": "auto", "dtype": "auto"}


def header(folder):
    return json.loads((folder / "run.json").read_text())


def test_what_is_automatic_uses_the_gpu_and_gives_one_digest(tmp_path):
    digests = set()
    for name, makers in (("one", 1), ("two", 2)):
        grpo(**RUN, model=AUTOMATIC, output_dir=tmp_path, name=name, makers=makers)
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert (config["model"]["device"], config["model"]["dtype"]) == ("cuda", "bfloat16")
        assert config["model"]["compile"] is True
        digests.add(header(tmp_path / name)["weights_digest"])
        assert "skipped" not in (tmp_path / name / "metrics.jsonl").read_text()
    assert len(digests) == 1


def test_memory_that_is_short_is_answered_with_smaller_pieces(tmp_path, monkeypatch):
    compute = Learner._micro_batch

    def greedy(learner, experience, rows, *rest):
        taken = torch.empty(2**45, device="cuda", dtype=torch.uint8) if learner._memory.token_budget > 64 else None
        del taken
        return compute(learner, experience, rows, *rest)

    monkeypatch.setattr(Learner, "_micro_batch", greedy)
    settings = {**RUN, "optimizer": {"learning_rate": 1e-3, "token_budget": 128}}
    grpo(**settings, model=AUTOMATIC, output_dir=tmp_path, name="short")
    assert header(tmp_path / "short")["steps_run"] == RUN["total_steps"]
    assert "token_budget" in (tmp_path / "short/journal.jsonl").read_text()


@pytest.mark.parametrize("rate", [1e-6, 1e-5, 1e-4])
def test_the_loss_falls_in_bfloat16_as_in_float32(tmp_path, rate):
    falls = {}
    for dtype in ("float32", "bfloat16"):
        model = {"config": {**SHAPES["qwen3"], "vocab_size": 16}, "device": "cuda", "dtype": dtype}
        sft(
            model=model, task={"source": "sort_digits", "count": 256}, total_steps=200, train_batch_size=64,
            optimizer={"learning_rate": rate}, output_dir=tmp_path, name=f"{dtype}",
            eval=[{"name": "held_out", "kind": "loss"}],
        )  # fmt: skip
        rows = [json.loads(line) for line in (tmp_path / dtype / "metrics.jsonl").read_text().splitlines()]
        losses = [row["held_out.eval_loss"] for row in rows if "held_out.eval_loss" in row]
        falls[dtype] = losses[0] - losses[-1]
    assert 0.95 <= falls["bfloat16"] / falls["float32"] <= 1.05


@pytest.mark.prove
def test_grpo_learns_in_bfloat16_as_in_float32(tmp_path, repository):
    """The demo's task, three seeds each: the means of the last ten steps' rewards differ by no more than the standard
    error of their difference."""
    demo = repository / "examples" / "sort_digits.yaml"
    cases = [(demo, tmp_path, dtype, seed) for dtype in ("float32", "bfloat16") for seed in range(3)]
    with get_context("spawn").Pool(len(cases)) as pool:
        rewards = pool.starmap(_learned, cases)
    exact, half = rewards[:3], rewards[3:]
    print(f"float32 {exact}, bfloat16 {half}")
    standard_error = ((statistics.variance(exact) + statistics.variance(half)) / 3) ** 0.5
    assert min(exact) > 0.5
    assert abs(statistics.mean(exact) - statistics.mean(half)) <= standard_error


def _learned(config, folder, dtype, seed):
    settings = {"model.device": "cuda", "model.dtype": dtype, "seed": seed, "total_steps": 80, "eval": []}
    grpo(config, output_dir=folder, name=f"{dtype}_{seed}", **settings)
    rows = [json.loads(line) for line in (folder / f"{dtype}_{seed}" / "metrics.jsonl").read_text().splitlines()]
    return statistics.mean(row["reward"] for row in rows[-10:])
