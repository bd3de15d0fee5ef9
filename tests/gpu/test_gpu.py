"""On a CUDA device: engine and trainer agree, and a run learns. Skipped, saying so, where there is none."""

import json
import threading

import pytest
import torch
from tests.engines.prompted import Prompted, generated

from proa import Experience
from proa.callbacks import GradientNorms
from proa.data.sampling import Sampling
from proa.engines import build_engine
from proa.policy.log_probs import action_statistics
from proa.policy.models import load_model, model_weights
from proa.policy.packing import pack, packed_log_probs
from proa.policy.shared_prompts import shared_prompt_statistics
from proa.recipes import grpo, ppo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]

CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
REQUESTS = [Prompted(tuple(range(3, 3 + n)), (1, 2, 3)) for n in (3, 7, 5)]


def test_greedy_native_equals_hf_token_for_token():
    model = load_model(CONFIG, device="cuda", seed=0)
    greedy = Sampling(3, 16, temperature=0.0)
    native, reference = (
        generated(build_engine(kind, model, end_ids=[1]), REQUESTS, greedy) for kind in ("native", "hf")
    )
    for ours, theirs in zip(native, reference, strict=True):
        assert [c.tokens.tolist() for c in ours] == [c.tokens.tolist() for c in theirs]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.15)])
def test_the_engines_log_probabilities_are_the_trainers(dtype, tolerance):
    model = load_model(CONFIG, device="cuda", dtype=dtype, seed=0)
    engine = build_engine("native", model, end_ids=[])
    engine.load(model_weights(model), 0)
    completions = generated(engine, REQUESTS, Sampling(3, 16, temperature=0.7))
    for request, group in zip(REQUESTS, completions, strict=True):
        for completion in group:
            sequence = torch.tensor([[*request.tokens, *completion.tokens.tolist()]], device="cuda")
            own = action_statistics(model, sequence, None, len(completion), temperature=0.7).log_probs_BA[0].cpu()
            assert (own - completion.log_probs).abs().max() < tolerance


def test_a_run_learns_on_the_gpu(tmp_path, repository):
    state = grpo(
        repository / "examples" / "sort_digits.yaml", output_dir=tmp_path, total_steps=60,
        **{"model.device": "cuda"},
    )  # fmt: skip
    assert state.global_step == 60
    assert state.metrics["reward"] > 0.6


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_ppo_with_lora_in_bfloat16_runs_and_its_adapter_stays_float32(tmp_path, repository, critic):
    from safetensors.torch import load_file

    state = ppo(
        repository / "examples" / "ppo_sort_digits.yaml", output_dir=tmp_path, total_steps=4, critic=critic,
        lora={"rank": 4, "alpha": 8.0}, **{"model.device": "cuda", "model.dtype": "bfloat16"},
    )  # fmt: skip
    assert state.global_step == 4
    assert abs(state.metrics["ratio"] - 1) < 0.1  # the sampler's numbers are the trainer's, but for bfloat16
    adapter = load_file(tmp_path / "ppo_sort_digits" / "model" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.15)])
def test_a_shared_prompt_gives_the_numbers_of_each_row_alone(dtype, tolerance):
    model = load_model(CONFIG, device="cuda", dtype=dtype, seed=0)
    sequences = torch.randint(0, 64, (6, 20), generator=torch.Generator().manual_seed(0)).cuda()
    groups = torch.tensor([0, 0, 0, 1, 1, 1], device="cuda")
    sequences[:, :8] = sequences[groups * 3, :8]
    mask = torch.ones_like(sequences).bool()
    mask[4, 15:] = False
    shared = shared_prompt_statistics(model, sequences, mask, 12, groups).log_probs_BA
    alone = action_statistics(model, sequences, mask, 12).log_probs_BA
    assert (shared - alone).abs().max() < tolerance


def test_packed_rows_give_the_numbers_of_each_sample_alone():
    model = load_model(CONFIG, device="cuda", seed=0)
    samples = [torch.arange(2, 2 + length) for length in (5, 9, 3)]
    learned = [torch.tensor([False] + [True] * (len(sample) - 1)) for sample in samples]
    packed = pack(samples, learned, [[0, 1, 2]]).to("cuda")
    together = packed_log_probs(model, packed)
    alone = [
        action_statistics(model, sample[None].cuda(), None, len(sample) - 1).log_probs_BA[0] for sample in samples
    ]  # fmt: skip
    assert (together - torch.cat(alone)).abs().max() < 1e-4


def test_on_ray_actors_share_a_gpu_and_several_trainers_make_the_steps_of_one(tmp_path):
    """Two trainers and two makers on one device; float32 sums differ in their last bits, no more."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")
    assert not ray.is_initialized()
    settings = {
        "total_steps": 4, "train_batch_size": 32, "sampling": {"group_size": 4, "max_new_tokens": 7}, "makers": 2,
        "model": {"config": {**CONFIG, "vocab_size": 16}, "device": "cuda"}, "runtime": "ray",
        "task": {"source": "sort_digits", "count": 64}, "reward": {"workers": 0}, "max_staleness": 0,
        "ray": {"trainer": {"num_gpus": 0.2}, "maker": {"num_gpus": 0.2}}, "output_dir": tmp_path,
    }  # fmt: skip
    one = grpo(name="one", **settings)
    two = grpo(name="two", trainers=2, **settings)
    assert one.global_step == two.global_step == 4
    assert two.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=1e-3)
    assert two.metrics["reward"] == pytest.approx(one.metrics["reward"], abs=0.2)
    assert two.world_size == 2


def test_an_eval_that_goes_on_apart_scores_the_weights_it_began_with(tmp_path, repository):
    changes = {"model.device": "cuda", "total_steps": 6, "checkpoint.save_every": 0}
    rows, threads = {}, {False: [], True: []}
    for apart in (False, True):

        def own(policy, seen=threads[apart]):
            seen.append(threading.current_thread().name)
            return {"x": 1.0}

        evals = [{"name": "held", "run_every": 2, "count": 64, "max_new_tokens": 12, "apart": apart}]
        evals += [{"name": "own", "run_every": 2, "evaluator": own, "apart": apart}]
        name = f"apart_{apart}"
        grpo(repository / "examples" / "sort_digits.yaml", output_dir=tmp_path, name=name, eval=evals, **changes)
        rows[apart] = (tmp_path / name / "evals" / "held" / "step_0.jsonl").read_text()
        written = (tmp_path / name / "evals.jsonl").read_text().splitlines()
        steps = [row["step"] for row in map(json.loads, written) if row["name"] == "held"]
        assert steps == [-1, 1, 3, 5]
        assert {name == "eval own" for name in threads[apart]} == {apart}
    assert rows[True] == rows[False]  # of the first weights, which are the same on every device


def test_experience_is_moved_to_the_cpu_to_be_sent_and_stays_where_it_is():
    experience = Experience(torch.zeros(2, 5, device="cuda"), torch.zeros(2, 3, device="cuda"))
    sent = experience.on_cpu()
    assert (sent.sequences.device.type, sent.action_log_probs.device.type) == ("cpu", "cpu")
    assert experience.sequences.device.type == "cuda"
    assert sent.on_cpu() is sent


def test_norms_of_gradients_are_those_of_the_whole_step(tmp_path):
    settings = {
        "total_steps": 1, "train_batch_size": 8, "sampling": {"group_size": 2, "max_new_tokens": 7},
        "task": {"source": "sort_digits", "count": 64}, "reward": {"workers": 0}, "output_dir": tmp_path,
    }  # fmt: skip
    model = {"config": {**CONFIG, "vocab_size": 16}, "device": "cuda", "dtype": "bfloat16"}
    grpo(**settings, name="run", model=model, callbacks=[GradientNorms(every=1)])
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    norms = [value for name, value in row.items() if name.startswith("grad_norm.")]
    assert len(norms) == 5  # embeddings, two layers, the last norm, the head
    assert sum(norm**2 for norm in norms) ** 0.5 == pytest.approx(row["grad_norm"], rel=1e-4)
