"""Faults of a server that a real one cannot be made to show: cut streams, other tokens, strange answers."""

import errno
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.small import DETACHED
from tests.vllm_server.fake import MODEL, FakeServer

from proa import recipes
from proa.data.sampling import Sampling
from proa.engines import Request, build_engine, generate
from proa.engines.vllm_server import VLLMServerEngine
from proa.errors import ProaError, SettingError
from proa.policy.lora import LoraSettings
from proa.policy.lora_policy import LoraPolicy, as_policy
from proa.policy.models import load_model

TINY = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return load_model(TINY, seed=0)


@pytest.fixture
def fake():
    server = FakeServer({**TINY, "architectures": ["LlamaForCausalLM"]})
    yield server
    server.close()


@pytest.fixture
def engine(fake, model):
    made = build_engine(VLLMServerEngine, model, end_ids=[1], address=fake.address, patience=60.0)
    fake.generated.clear()
    return made


REQUEST = Request("a", (3, 4), 7, Sampling(max_new_tokens=8), 0)


def stepped(engine):
    """What comes of steps, until nothing is open any more or a minute has passed."""
    end = time.monotonic() + 60
    while engine.free < 4 and time.monotonic() < end:
        yield from engine.step()
    assert engine.free == 4


def test_a_stream_that_is_cut_is_asked_for_again_and_what_was_reported_is_reported_once(fake, engine):
    fake.answers = [([5, 6, 7], True), ([5, 6, 7, 8, 9, 10, 11, 12], False)]
    [made] = generate(engine, [REQUEST])
    assert made.tokens.tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert made.log_probs.tolist() == [-1.0 - place for place in range(8)]
    first, second = fake.generated
    assert first == second


def test_where_other_tokens_come_the_request_goes_on_after_those_that_were_reported(fake, engine):
    fake.answers = [([5, 6, 7], True), ([5, 9, 9, 9, 9, 9, 9, 9], False), ([8, 8, 8, 8, 8], False)]
    engine.submit(REQUEST)
    progress = list(stepped(engine))
    assert [token for one in progress for token in one.tokens] == [5, 6, 7, 8, 8, 8, 8, 8]
    assert progress[-1].finish_reason == "length"
    last = fake.generated[-1]
    assert last["token_ids"] == [3, 4, 5, 6, 7]
    assert last["sampling_params"]["max_tokens"] == 5


def test_a_server_that_has_forgotten_the_weights_gets_them_before_anything_is_sampled(fake, engine):
    fake.answers = [([5], True), ([5] * 8, False)]
    engine.submit(REQUEST)
    progress = stepped(engine)
    next(progress)
    fake.version = "default"  # as after a new start
    before = len(fake.pushed)
    list(progress)
    assert len(fake.pushed) == before + 1
    assert fake.version == fake.pushed[0]


def test_another_server_at_the_address_is_refused_when_it_comes_back(fake, engine):
    fake.answers = [([5], True)]
    engine.submit(REQUEST)
    fake.hf_config = {**fake.hf_config, "hidden_size": 99}
    with pytest.raises(SettingError, match="has another model .*hidden_size is 99 there and 8 here"):
        list(stepped(engine))


def test_a_server_that_was_gone_before_a_push_is_looked_at_anew(fake, engine, model, monkeypatch, caplog):
    monkeypatch.setattr("proa.engines.vllm_server.engine._BETWEEN_CALLS", 0.0)
    fake.failures = 2
    engine.load(as_policy(model).whole(), 1)
    assert "is there again" in caplog.text
    assert engine.versions == (1,)
    fake.failures, fake.hf_config = 1, {**fake.hf_config, "hidden_size": 99}
    with pytest.raises(SettingError, match="has another model .*hidden_size is 99 there and 8 here"):
        engine.load(as_policy(model).whole(), 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"backend": None}, "has the weight transfer backend none, and a run needs proa-files: start it with"),
        ({"backend": "nccl"}, "has the weight transfer backend nccl, and a run needs proa-files: start it with"),
        ({"pages": "<html>hello</html>"}, "is not a vLLM server: it does not answer with JSON"),
    ],
)
def test_servers_that_cannot_be_used_are_refused_in_words(fake, model, change, said):
    for name, value in change.items():
        setattr(fake, name, value)
    with pytest.raises(SettingError, match=said):
        build_engine(VLLMServerEngine, model, end_ids=[], address=fake.address)


def test_slips_in_settings_are_refused(model):
    with pytest.raises(SettingError, match="write it like http://127.0.0.1:8000"):
        build_engine(VLLMServerEngine, model, end_ids=[], address="localhost:8000")
    with pytest.raises(SettingError, match="write the seconds to wait"):
        build_engine(VLLMServerEngine, model, end_ids=[], address="http://127.0.0.1:1", patience=0)
    with pytest.raises(SettingError, match="cannot be written to"):
        build_engine(VLLMServerEngine, model, end_ids=[], address="http://127.0.0.1:1", folder="/no/such/folder")


def test_a_run_is_refused_before_its_warm_start_and_writes_nothing(tmp_path, monkeypatch):
    engine = {"kind": "vllm", "address": "http://127.0.0.1:1", "params": {"patience": 0}}
    warm = {"warm_start": {"steps": 2, "batch_size": 8}}
    monkeypatch.delattr("proa.run.trainer_side.fit_sft")
    with pytest.raises(SettingError, match="write the seconds to wait"):
        recipes.grpo(**DETACHED, **warm, engine=engine, output_dir=tmp_path, name="run")
    assert not list(tmp_path.iterdir())


def test_log_probabilities_that_would_not_be_the_policys_are_refused(fake, engine, model, monkeypatch):
    with pytest.raises(SettingError, match="after top_p, top_k, min_p and repetition_penalty"):
        engine.submit(Request("b", (3,), 0, Sampling(max_new_tokens=2, top_k=3), 0))
    monkeypatch.setitem(MODEL, "logprobs_mode", "raw_logprobs")
    raw = build_engine(VLLMServerEngine, model, end_ids=[1], address=fake.address)
    with pytest.raises(SettingError, match="reports log-probabilities at temperature 1, and sampling.temperature is"):
        raw.submit(Request("b", (3,), 0, Sampling(max_new_tokens=2, temperature=0.5), 0))


def test_weights_that_a_killed_process_left_are_removed_and_those_in_use_are_not(fake, model, tmp_path):
    first = build_engine(VLLMServerEngine, model, end_ids=[], address=fake.address, folder=str(tmp_path))
    [in_use] = tmp_path.iterdir()
    left = tmp_path / "proa-weights-left"
    left.mkdir()
    (left / "3.safetensors").write_bytes(b"weights")
    for folder in (left, in_use):
        os.utime(folder, (0, 0))
    second = build_engine(VLLMServerEngine, model, end_ids=[], address=fake.address, folder=str(tmp_path))
    assert not left.exists()
    assert len(list(in_use.glob("*.safetensors"))) == 1
    assert first.versions == second.versions == (0,)


def lora_policy(seed):
    policy = LoraPolicy(load_model(TINY, seed=seed), settings=LoraSettings(rank=2))
    policy.begin(Path())
    return policy


def test_an_adapter_has_a_new_name_each_time_over_a_base_that_is_pushed_once(fake, model):
    fake.largest_rank = 8
    policy = lora_policy(seed=1)
    engine = build_engine(VLLMServerEngine, policy.model, end_ids=[1], address=fake.address)
    pushed = len(fake.pushed)
    receiver, names = policy.receiver(), []
    for version in (1, 2, 3, 3):  # a maker that may have missed a push loads the same version again
        engine.load(receiver.whole(policy.published()), version)
        assert len(fake.adapters) == 1
        names += fake.adapters
        fake.generated.clear()
        generate(engine, [replace(REQUEST, version=version)])
        assert fake.generated[0]["model"] == fake.generated[0]["cache_salt"] == names[-1]
    assert len(set(names)) == 4
    assert len(fake.pushed) == pushed + 1
    fake.version, fake.adapters = "default", []  # as after a new start
    generate(engine, [replace(REQUEST, version=3)])
    assert fake.adapters == names[-1:]
    assert len(fake.pushed) == pushed + 2


def test_an_adapter_that_is_too_large_for_the_server_goes_there_merged(fake, model):
    fake.largest_rank = 1
    policy = lora_policy(seed=1)
    engine = build_engine(VLLMServerEngine, policy.model, end_ids=[1], address=fake.address)
    pushed = len(fake.pushed)
    for version in (1, 2):
        engine.load(policy.whole(), version)
    assert fake.adapters_seen == []
    assert len(fake.pushed) == pushed + 2


def test_weights_that_do_not_fit_leave_those_before(fake, engine):
    with pytest.raises(ValueError, match="these weights do not fit the engine's model"):
        engine.load({}, 1)
    assert engine.versions == (0,)
    assert generate(engine, [REQUEST])[0].tokens.tolist() == [5] * 8


def test_weights_for_which_there_is_no_room_leave_it_with_none_and_the_next_are_taken(fake, engine, model, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("proa.engines.vllm_server.weight_files.save_file", full)
        with pytest.raises(ProaError, match=r"version 1 cannot be written to .*No space left.*engine\.params\.folder"):
            engine.load(as_policy(model).whole(), 1)
    assert engine.versions == ()
    with pytest.raises(SettingError, match="version 0, which are not loaded"):
        engine.submit(REQUEST)
    engine.load(as_policy(model).whole(), 2)
    assert generate(engine, [replace(REQUEST, version=2)])[0].tokens.tolist() == [5] * 8


def test_a_request_that_is_refused_for_now_is_asked_for_again_and_one_that_is_wrong_is_not(fake, engine):
    fake.refusals = [429, 408, 503]
    assert generate(engine, [REQUEST])[0].tokens.tolist() == [5] * 8
    fake.refusals = [400]
    with pytest.raises(SettingError, match="refuses request a: .*HTTP 400"):
        generate(engine, [REQUEST])


def test_an_end_that_is_not_the_models_is_not_taken_for_one(fake, engine):
    fake.ending = "repetition"
    with pytest.raises(ProaError, match="ended request a for a reason of its own: repetition"):
        generate(engine, [REQUEST])


def test_a_server_that_loses_a_request_again_and_again_is_given_up(fake, engine):
    fake.answers = [([], True)] * 20
    engine.submit(REQUEST)
    with pytest.raises(ProaError, match="lost its requests 5 times in a row"):
        list(stepped(engine))
