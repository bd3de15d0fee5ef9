"""On a CUDA device: engine and trainer agree, and a run learns. Skipped, saying so, where there is none."""

import pytest
import torch

from proa.data.sampling import Sampling
from proa.engines import build_engine
from proa.engines.protocol import Request
from proa.policy.log_probs import action_statistics
from proa.policy.models import load_model, weights_of
from proa.recipes import grpo

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]

CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
REQUESTS = [Request(tuple(range(3, 3 + n)), (1, 2, 3)) for n in (3, 7, 5)]


def test_greedy_native_equals_hf_token_for_token():
    model = load_model(CONFIG, device="cuda", seed=0)
    greedy = Sampling(3, 16, temperature=0.0)
    native, reference = (build_engine(kind, model, end_ids=[1]).generate(REQUESTS, greedy) for kind in ("native", "hf"))
    for ours, theirs in zip(native, reference, strict=True):
        assert [c.tokens.tolist() for c in ours] == [c.tokens.tolist() for c in theirs]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.15)])
def test_the_engines_log_probabilities_are_the_trainers(dtype, tolerance):
    model = load_model(CONFIG, device="cuda", dtype=dtype, seed=0)
    engine = build_engine("native", model, end_ids=[])
    engine.load(weights_of(model))
    completions = engine.generate(REQUESTS, Sampling(3, 16, temperature=0.7))
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
