"""The kernels of the native engine on a GPU, interpreted on a CPU: they sample what the engine samples with torch.

Triton interprets the kernels, and streams and graphs of CUDA run what they are given at once. That is slow, and part of
`make prove` alone (`kernels`), which installs Triton into a folder of its own; tests/gpu tries them compiled.
"""

import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from proa.data.sampling import Sampling
from proa.engines import Request, backends, build_engine, generate, native, shapes
from proa.engines.generating import Collected
from proa.policy.models import load_model

pytest.importorskip("triton", reason="Triton is not installed: kernels are interpreted in `make prove`, part kernels")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are interpreted in `make prove`, part kernels", allow_module_level=True)

from proa.engines.cuda import passes, pool, rows  # they need Triton

pytestmark = [pytest.mark.prove, pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")]
COMMON = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
}  # fmt: skip
MODELS = {
    "qwen3": {"model_type": "qwen3", **COMMON},
    "llama": {"model_type": "llama", **COMMON, "attention_bias": True, "tie_word_embeddings": True},
}
SETTINGS = (
    {}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_k": 5}, {"temperature": 0.9, "top_k": 40, "top_p": 0.5},
    {"min_p": 0.3}, {"repetition_penalty": 1.3}, {"temperature": 0.0, "repetition_penalty": 1.5},
)  # fmt: skip
LENGTHS = (1, 2, 31, 32, 33, 64, 65, 70)
"""Of prompts: they end within blocks and chunks, and at their ends."""
BOUND = 100 * 2.0**-24
"""Between two float32 log-probabilities: sums of at most 100 terms of order one, in another order."""


SHARED_MEMORY = 232_448
"""Of an H200, in bytes: it decides how products are cut up."""


def stacked(allocator, names):
    """Weights lie as on a GPU, below each other."""
    parts = [allocator.weights[name] for name in names]
    made = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=allocator.dtype)
    allocator.places |= dict(zip(names, made.split_with_sizes(list(map(len, parts))), strict=True))
    return made


class Stream:
    def __init__(self, *_, **__): ...
    def wait_stream(self, _): ...
    def wait_event(self, _): ...
    def synchronize(self): ...


class Event:
    def __init__(self, *_, **__): ...
    def record(self, _=None): ...
    def synchronize(self): ...
    def query(self):
        return True


class Launches:
    """What a graph would replay."""

    def __init__(self, launch):
        self.replay = launch


@contextmanager
def stream(_):
    yield


def interpret(monkeypatch):
    """Have the native engine decode with its kernels, whatever the device."""
    cuda = SimpleNamespace(
        Stream=Stream, Event=Event, stream=stream, synchronize=lambda *_: None, current_stream=lambda *_: Stream(),
        current_device=lambda: 0, mem_get_info=lambda *_: (2**30, 2**30),
    )  # fmt: skip
    for module in (pool, rows, passes):
        monkeypatch.setattr(module, "torch", _WithCuda(cuda))
    monkeypatch.setattr(passes, "_shared_memory", lambda _: SHARED_MEMORY)
    monkeypatch.setattr(shapes._Allocator, "_stacked", stacked)
    monkeypatch.setattr(backends, "rows_are_independent", lambda *_: True)  # that takes a minute here
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(rows, "ROWS", 8)  # a row costs time here, also one that is empty
    monkeypatch.setattr(rows.CudaRows, "_record", lambda _, launch: Launches(launch))
    monkeypatch.setattr(native, "choose_backend", backends.KernelBackend)


class _WithCuda:
    """torch, with another `cuda`, and without memory that is locked for a GPU."""

    def __init__(self, cuda):
        self.cuda = cuda

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, *sizes, pin_memory=False, **options):
        return torch.empty(*sizes, **options)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def model_of(name, seed=0):
    return load_model(MODELS[name], seed=seed)


def requests(tokens=4):
    return [
        Request(str(place), tuple(range(2, 2 + length)), place, Sampling(max_new_tokens=tokens, **settings))
        for place, (length, settings) in enumerate(zip(LENGTHS, SETTINGS, strict=True))
    ]


def engine_of(model, monkeypatch, **settings):
    interpret(monkeypatch)
    return build_engine("native", model, end_ids=(1,), **{"slots": 8, "cache_tokens": 2_000, **settings})


def bits(completion):
    return completion.tokens.tolist(), completion.log_probs.tolist()


@pytest.mark.parametrize("name", MODELS)
def test_kernels_sample_what_torch_does_with_every_setting(name, monkeypatch):
    model = model_of(name)
    expected = generate(build_engine("native", model, end_ids=(1,)), requests())
    found = generate(engine_of(model, monkeypatch), requests())
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=BOUND, rtol=0)


def test_a_completion_alone_has_the_bits_that_it_has_among_others(monkeypatch):
    model = model_of("qwen3")
    among = {one.id: bits(completion) for one, completion in zip(
        requests(), generate(engine_of(model, monkeypatch), requests()), strict=True
    )}  # fmt: skip
    for one in (requests()[4], requests()[6]):
        alone = engine_of(model, monkeypatch)
        assert bits(generate(alone, [one])[0]) == among[one.id]


def test_a_conversation_continues_its_cache_and_is_the_same_where_it_was_dropped(monkeypatch):
    model = model_of("llama")

    def turns(engine, between):
        said, before = [], ""
        for turn, given in enumerate(((11, 12, 13), (17,), tuple(range(20, 55)))):
            sampling = Sampling(max_new_tokens=3, repetition_penalty=1.4)
            engine.submit(Request(f"t{turn}", given, turn, sampling, continues=before, keep=True))
            collected, completion = Collected(), None
            while completion is None:
                for progress in engine.step():
                    completion = collected.add(progress)
            said.append(bits(completion))
            between()
            before = f"t{turn}"
        return said

    plain = turns(build_engine("native", model, end_ids=(1,), slots=8), lambda: None)
    kept = turns(engine_of(model, monkeypatch), lambda: None)
    assert [tokens for tokens, _ in kept] == [tokens for tokens, _ in plain]
    other = engine_of(model, monkeypatch)
    assert turns(other, other.sleep) == kept


def test_scores_are_those_of_the_newest_weights(monkeypatch):
    old, new = model_of("qwen3"), model_of("qwen3", seed=1)
    texts = [tuple(range(5, 12)), tuple(range(40, 43))]
    expected = build_engine("native", new, end_ids=(1,)).score(texts)
    engine = engine_of(old, monkeypatch)
    engine.load(new.state_dict(), 1)
    for ours, theirs in zip(engine.score(texts), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=BOUND, rtol=0)


def test_what_is_decoded_goes_on_where_scoring_failed(monkeypatch):
    model, one = model_of("qwen3"), Request("a", (5, 6, 7), 3, Sampling(max_new_tokens=4))
    expected = bits(generate(engine_of(model, monkeypatch), [one])[0])
    engine, collected, completion = engine_of(model, monkeypatch), Collected(), None
    write = rows.CudaRows._write

    def fail(self, inputs):
        monkeypatch.setattr(rows.CudaRows, "_write", write)
        raise torch.OutOfMemoryError("no memory for the rows that are scored")

    engine.submit(one)
    for _ in range(8):
        for progress in engine.step():
            completion = collected.add(progress)
            monkeypatch.setattr(rows.CudaRows, "_write", fail)
            with pytest.raises(torch.OutOfMemoryError):
                engine.score([(4, 5, 6)])
    assert completion is not None
    assert bits(completion) == expected
