"""The engine at a real vLLM server: tokens, log-probabilities, weights, and a server that dies in the middle."""

import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.vllm_server.server import KEY, MISSING, RunningServer, python_with_vllm

from proa.data.sampling import Sampling
from proa.engines import EngineBusyError, Request, build_engine, generate
from proa.engines.vllm_server import VLLMServerEngine
from proa.engines.vllm_server.client import Server
from proa.errors import ProaError, SettingError
from proa.policy.adapter_layout import AdaptedWeights
from proa.policy.lora import LoraSettings
from proa.policy.lora_policy import LoraPolicy, as_policy
from proa.policy.models import load_model, save_model
from proa.roles.probe import Probe, ProbeError

pytestmark = [pytest.mark.prove, pytest.mark.skipif(python_with_vllm() is None, reason=MISSING)]

TIED = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
ROUNDING = 1e-5
"""Two float32 passes over two layers of 64: each log-probability is a sum of about 64 terms of magnitude 1, which
float32 rounds by 6e-8 each: 5e-7 a layer. What was seen is 1.4e-6."""
PATIENCE = 900.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tied"
    save_model(load_model(TIED, seed=0), None, path)
    return path


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    running = RunningServer(folder, tmp_path_factory.mktemp("server") / "log.txt")
    try:
        yield running.wait()
    finally:
        running.kill()


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("PROA_VLLM_API_KEY", KEY)


def engine_at(server, seed=0, **settings):
    """An engine with weights of its own, as version 0, and the policy that they are of."""
    model = load_model(TIED, seed=seed)
    engine = build_engine(VLLMServerEngine, model, end_ids=[1], address=server.address, patience=PATIENCE, **settings)
    return engine, as_policy(model)


def some_requests(count=6, version=0, tokens=24, **sampling):
    settings = Sampling(max_new_tokens=tokens, **sampling)
    return [Request(f"{version} {seed}", (3, 4, 5 + seed), seed, settings, version) for seed in range(count)]


def changed(policy, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def gap_of(policy, request, completion):
    """How far what was reported of sampled tokens is from what the model thinks of them."""
    tokens = torch.tensor([[*request.tokens, *completion.tokens.tolist()]])
    temperature = request.sampling.temperature or 1.0
    log_probs_TV = (policy.model(tokens).logits[0, :-1].float() / temperature).log_softmax(-1)
    own = log_probs_TV.gather(-1, tokens[0, 1:, None])[len(request.tokens) - 1 :, 0]
    return float((own - completion.log_probs).abs().max())


@pytest.mark.parametrize("temperature", [0.7, 1.0, 0.0])
def test_log_probabilities_are_the_policys_push_after_push(server, temperature):
    engine, policy = engine_at(server)
    for version in range(1, 4):
        changed(policy, version)
        engine.load(policy.whole(), version)
        requests = some_requests(version=version, temperature=temperature)
        completions = generate(engine, requests)
        sequences = [
            (*one.tokens, *made.tokens.tolist()) for one, made in zip(requests, completions, strict=True)
        ]  # fmt: skip
        probe = Probe.of(policy, sequences)
        assert probe.check(engine.score(probe.sequences), version) < ROUNDING
        assert max(map(lambda one, made: gap_of(policy, one, made), requests, completions)) < ROUNDING


def test_a_seed_gives_the_same_tokens_again_and_another_seed_others(server):
    engine, _ = engine_at(server)
    assert engine.is_independent
    first, second = (generate(engine, some_requests()) for _ in range(2))
    assert [one.tokens.tolist() for one in first] == [one.tokens.tolist() for one in second]
    others = [Request("other", (3, 4, 5), 99, Sampling(max_new_tokens=24), 0)]
    assert generate(engine, others)[0].tokens.tolist() != first[0].tokens.tolist()


@pytest.mark.parametrize("fault", ["stale.StaleHead", "dropped.DroppedLayer"])
def test_a_server_that_does_not_take_all_weights_is_found_by_the_probe_with_both_numbers(folder, tmp_path, fault):
    faulty = RunningServer(folder, tmp_path / "log.txt", extension=f"tests.vllm_server.{fault}")
    try:
        faulty.wait()
        engine, policy = engine_at(faulty, seed=1)
        changed(policy, 1)
        engine.load(policy.whole(), 1)
        probe = Probe.of(policy, [tuple(range(2, 30))])
        numbers = r"a log-probability of -\d+\.\d+ on average, and the trainer -\d+\.\d+: \d+\.\d+ apart"
        with pytest.raises(ProbeError, match=f"with the weights of version 1 the engine gives 27 tokens {numbers}"):
            probe.check(engine.score(probe.sequences), 1)
    finally:
        faulty.kill()


@pytest.fixture(scope="module")
def lora_server(folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("lora_server") / "log.txt"
    running = RunningServer(folder, log, "--enable-lora", "--max-lora-rank", "16")
    try:
        yield running.wait()
    finally:
        running.kill()


def lora_policy(seed):
    policy = LoraPolicy(load_model(TIED, seed=seed), settings=LoraSettings(rank=4))
    policy.begin(Path())
    return policy


def moved(policy, seed):
    """Its adapter, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def test_ten_adapters_are_the_policys_one_after_another(lora_server):
    policy, seen = lora_policy(seed=4), set()
    engine = build_engine(VLLMServerEngine, policy.model, end_ids=[1], address=lora_server.address, patience=PATIENCE)
    receiver = policy.receiver()
    for version in range(1, 11):
        moved(policy, version)
        engine.load(receiver.whole(policy.published()), version)
        requests = some_requests(version=version, temperature=0.7)
        completions = generate(engine, requests)
        probe = Probe.of(policy, [(*a.tokens, *b.tokens.tolist()) for a, b in zip(requests, completions, strict=True)])
        assert probe.check(engine.score(probe.sequences), version) < ROUNDING
        assert max(map(lambda one, made: gap_of(policy, one, made), requests, completions)) < ROUNDING
        seen.add(tuple(completions[0].tokens.tolist()))
    assert len(seen) > 1
    names = [one["id"] for one in Server(lora_server.address, KEY, 60.0).ask("GET", "/v1/models")["data"]]
    assert [name for name in names if name.startswith("proa-")] == [names[-1]]
    assert names[-1].endswith("-adapter-10")


def test_another_adapter_and_another_scale_are_found_by_the_probe(lora_server):
    policy = lora_policy(seed=4)
    engine = build_engine(VLLMServerEngine, policy.model, end_ids=[1], address=lora_server.address, patience=PATIENCE)
    receiver = policy.receiver()
    moved(policy, 1)
    adapter = {name: 3 * tensor for name, tensor in policy.published().items()}
    right = receiver.whole(policy.published())
    scaled = AdaptedWeights(right.base, right.adapter, replace(right.layout, scaling=2 * right.layout.scaling))
    probe = Probe.of(policy, [tuple(range(2, 30))])
    for version, wrong in ((1, receiver.whole(adapter)), (2, scaled)):
        engine.load(wrong, version)
        with pytest.raises(ProbeError, match="They do not compute the same policy"):
            probe.check(engine.score(probe.sequences), version)
    engine.load(receiver.whole(policy.published()), 3)
    assert probe.check(engine.score(probe.sequences), 3) < ROUNDING


def test_a_request_ends_as_asked_is_continued_and_cancelled(server):
    engine, _ = engine_at(server)
    [made] = generate(engine, some_requests(1))
    stop = made.tokens[3].item()
    before = made.tokens.tolist().index(stop)
    [request] = some_requests(1)
    stopped = generate(engine, [Request("s", request.tokens, 0, request.sampling, 0, stops=frozenset([stop]))])[0]
    assert (stopped.tokens.tolist(), stopped.finish_reason) == (made.tokens.tolist()[: before + 1], "stop")

    kept = Request("kept", (3, 4, 5), 0, Sampling(max_new_tokens=4, temperature=0.0), 0, keep=True)
    [head] = generate(engine, [kept])
    with pytest.raises(EngineBusyError):
        engine.load(as_policy(load_model(TIED, seed=2)).whole(), 1)
    greedy = Sampling(max_new_tokens=4, temperature=0.0)
    [tail] = generate(engine, [Request("tail", (7,), 0, greedy, 0, continues="kept")])
    [whole] = generate(engine, [Request("whole", (3, 4, 5, *head.tokens.tolist(), 7), 0, greedy, 0)])
    assert tail.tokens.tolist() == whole.tokens.tolist()

    for one in some_requests(4, tokens=200):
        engine.submit(one)
    while not engine.step():
        pass
    for one in some_requests(4):
        engine.cancel(one.id)
    assert engine.step() == []
    assert engine.free == 16


def test_what_the_server_would_report_wrongly_is_refused(server):
    engine, _ = engine_at(server)
    with pytest.raises(SettingError, match="leave these out, or start the server with --logprobs-mode raw_logprobs"):
        engine.submit(Request("a", (3,), 0, Sampling(max_new_tokens=2, top_p=0.9), 0))


def test_a_server_with_another_model_dtype_or_key_is_refused(server, monkeypatch):
    other = load_model({**TIED, "num_hidden_layers": 3}, seed=0)
    with pytest.raises(SettingError, match="has another model .*num_hidden_layers is 2 there and 3 here"):
        build_engine(VLLMServerEngine, other, end_ids=[], address=server.address)
    with pytest.raises(SettingError, match="computes in float32, and engine.dtype is bfloat16"):
        build_engine(VLLMServerEngine, load_model(TIED), end_ids=[], address=server.address, dtype=torch.bfloat16)
    monkeypatch.setenv("PROA_VLLM_API_KEY", "another")
    with pytest.raises(SettingError, match="wants another API key"):
        build_engine(VLLMServerEngine, load_model(TIED), end_ids=[], address=server.address)


def test_two_engines_of_a_process_share_a_server_by_turns(server):
    """A maker's and an eval's, as a run has them."""
    one, first = engine_at(server, seed=1)
    other, second = engine_at(server, seed=2)
    found = {}

    def use(name, engine, policy):
        for _ in range(3):
            requests = some_requests()
            completions = generate(engine, requests)
            found.setdefault(name, []).append(max(map(lambda a, b: gap_of(policy, a, b), requests, completions)))

    threads = [threading.Thread(target=use, args=arguments) for arguments in (("a", one, first), ("b", other, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert max(found["a"] + found["b"]) < ROUNDING
    assert (len(found["a"]), len(found["b"])) == (3, 3)


def test_a_stranger_who_changes_the_weights_is_found(server):
    engine, _ = engine_at(server, slots=1)
    for name in ("before", "after"):  # the second is sent when the first has ended
        engine.submit(Request(name, (3, 4), 0, Sampling(max_new_tokens=200), 0))
    while not engine.step():
        pass
    request = urllib.request.Request(
        f"{server.address}/update_weight_version", b'{"new_version": "theirs"}', {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).close()
    with pytest.raises(ProaError, match="sampled with weights theirs, which are not this engine's"):
        for _ in range(10_000):
            engine.step()
    for name in ("before", "after"):
        engine.cancel(name)


def test_a_server_that_is_killed_and_started_again_loses_nothing(server, caplog):
    engine, policy = engine_at(server, seed=3, slots=2)  # so that most have not been sent yet when the server dies
    expected = generate(engine, some_requests(12, tokens=200))
    requests = some_requests(12, tokens=200)
    for request in requests:
        engine.submit(request)
    tokens = {request.id: [] for request in requests}
    log_probs = {request.id: [] for request in requests}
    ended, is_killed = set(), False
    end = time.monotonic() + PATIENCE
    while len(ended) < len(requests) and time.monotonic() < end:
        for progress in engine.step():
            assert progress.version == 0
            tokens[progress.id] += progress.tokens
            log_probs[progress.id] += progress.log_probs
            if progress.finish_reason is not None:
                ended.add(progress.id)
        if not is_killed and any(map(len, tokens.values())):
            server.kill()
            server.start()
            is_killed = True
    assert is_killed
    assert [tokens[one.id] for one in requests] == [made.tokens.tolist() for made in expected]
    assert [log_probs[one.id] for one in requests] == [made.log_probs.tolist() for made in expected]
    assert "lost" in caplog.text
    assert "is there again" in caplog.text
    weights = Server(server.address, KEY, 60.0).ask("GET", "/weight_info")["weight_version"]
    assert weights.startswith("proa-")  # it had none of that name when it was started again
    probe = Probe.of(policy, [tuple(range(2, 30))])
    assert probe.check(engine.score(probe.sequences), 0) < ROUNDING


def test_a_server_that_stays_away_is_given_up_with_a_sentence():
    with pytest.raises(ProaError, match=r"the vLLM server at http://127\.0\.0\.1:9 was not available for 0\.1 s"):
        build_engine(VLLMServerEngine, load_model(TIED), end_ids=[], address="http://127.0.0.1:9", patience=0.1)
