"""Decoding with own kernels on a CUDA device: right, and no bit depends on company, order or the number of rows."""

import random
from collections import deque

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from proa.data.sampling import Sampling
from proa.engines import Request, generate
from proa.engines.sequences import DecodedSequence, Given
from proa.engines.shapes import build_decoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]
COMMON = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 1024, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, head_dim=32)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=64)),
}


class Stream:
    """Rows on a GPU, fed as they become free."""

    def __init__(self, model, dtype, *, slots, cache_tokens=200_000):
        from proa.engines.cuda.rows import BlockPool, CudaRows

        decoder, _ = build_decoder(model, dtype, "cuda")
        with torch.inference_mode():
            self.pool = BlockPool(decoder, cache_tokens // 32, 1024)
            self.rows = CudaRows(decoder, self.pool, slots, frozenset((5, 6)))
        self.slots, self.waiting = slots, deque()

    def submit(self, request):
        self.waiting.append(DecodedSequence(request, [Given(request.tokens)]))

    def cancel(self, request_id):
        raise NotImplementedError

    @torch.inference_mode()
    def step(self):
        entering = []
        while self.waiting and len(self.rows.live) + len(entering) < self.slots:
            if self.rows.blocks_for([*entering, self.waiting[0]]) > len(self.pool):
                break
            entering.append(self.waiting.popleft())
        self.rows.enter(entering)
        live = list(self.rows.live)
        if live:
            self.rows.step()
        self.rows.remove([place for place, one in enumerate(self.rows.live) if one.finish_reason is not None])
        awaited = {one.group for one in self.waiting}
        self.rows.forget_prompts(awaited.__contains__)
        return [progress for one in live if (progress := one.take_progress()) is not None]


def requests():
    """Prompts that end within blocks and at their ends, in groups with different settings."""
    chance = random.Random(0)
    for group, length in enumerate((1, 2, 31, 32, 33, 64, 65, 100, 130, 200, 600)):
        prompt = tuple(chance.randrange(10, 1000) for _ in range(length))
        for place, temperature in enumerate((1.0, 0.7, 0.0)):
            sampling = Sampling(max_new_tokens=chance.choice((3, 17, 40, 90)), temperature=temperature)
            yield Request(f"{group}/{place}", prompt, 10 * group + place, sampling, group=str(group))


def bits(completion):
    return completion.tokens.tolist(), completion.log_probs.tolist(), completion.finish_reason


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in MODELS), ("qwen3", torch.float32)], ids=str
)
def test_they_are_right_and_independent(name, dtype):
    torch.manual_seed(0)
    model, asked = MODELS[name](), list(requests())
    stream = Stream(model, dtype, slots=64)
    blocks = len(stream.pool)
    found = dict(zip([one.id for one in asked], map(bits, generate(stream, asked)), strict=True))
    assert len(stream.pool) == blocks, "all blocks came back"
    for one in asked[::4]:
        assert bits(generate(stream, [one])[0]) == found[one.id]
    few = Stream(model, dtype, slots=5, cache_tokens=5_000)
    random.Random(1).shuffle(asked)
    for one, completion in zip(asked, generate(few, asked), strict=True):
        assert bits(completion) == found[one.id]
    check_against(model.to("cuda", dtype), asked, found, atol=0.1 if dtype == torch.bfloat16 else 1e-4)


@torch.no_grad()
def check_against(model, asked, found, atol):
    """The trainer's pass over the same tokens; in bfloat16 its own logits are rounded to 8 bits."""
    for one in asked:
        tokens, log_probs, _ = found[one.id]
        logits = model(torch.tensor([[*one.tokens, *tokens]], device="cuda")).logits[0, len(one.tokens) - 1 : -1]
        log_probs_TV = (logits.float() / (one.sampling.temperature or 1.0)).log_softmax(-1).cpu()
        expected = log_probs_TV.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(log_probs), expected, atol=atol, rtol=0)
