"""`proa bench`: tables of ratios, the same as JSON, and mistakes in words."""

import json

import pytest
import torch

from proa.bench.rollout import Case, _with_continuous, step_limit
from proa.bench.shapes import SHAPES
from proa.cli.main import main
from proa.policy.models import load_model

SMALL = ["--rows", "2", "--new-tokens", "4", "--prompt-tokens", "3", "--rounds", "1"]


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_figures_of_each_engine_and_case_with_their_limit(capsys):
    one_row = ["--rows", "1"]  # and the tail is 32 times as many requests
    assert main(["bench", "rollout", *SMALL, *one_row, "--engines", "native,hf,generate,vllm", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["device"], told["dtype"]) == ("small", "cpu", "float32")
    assert [(one["engine"], one["lengths"]) for one in told["figures"]] == [
        (engine, lengths) for lengths in ("uniform", "tail") for engine in ("native", "hf", "generate")
    ]
    uniform, tail = told["figures"][0], told["figures"][3]
    assert (uniform["tokens"], tail["rows"]) == (4, 1)
    assert tail["tokens"] == sum(one.sampling.max_new_tokens for one in Case(1, "tail", 3, 4).requests(4096))
    assert all(one["limit"] > 0 and one["tokens_per_second"] > 0 for one in told["figures"])
    assert told["not_measured"]["vllm"].startswith("vLLM is not installed: pip install 'proa[vllm]'")


def test_continuous_batching_gets_room_for_its_rows_and_not_nearly_all_memory(monkeypatch):
    model, given = load_model(SHAPES["small"], seed=0), {}
    generate_batch = type(model).generate_batch

    def noted(self, *arguments, **settings):
        given.update(settings)
        return generate_batch(self, *arguments, **settings)

    monkeypatch.setattr(type(model), "generate_batch", noted)
    case = Case(2, "uniform", 3, 4)
    assert _with_continuous(model, case, case.requests(4096))() == 8
    assert given["continuous_batching_config"].num_blocks == 4


def test_the_table_has_ratios(capsys):
    assert main(["bench", "rollout", *SMALL, "--engines", "native,generate", "--lengths", "uniform"]) == 0
    printed = capsys.readouterr().out
    assert "of generate" in printed
    assert "1.00" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engines", "natve"], "there is no engine 'natve'; did you mean 'native'?"),
        (["--lengths", "short"], "there is no kind of lengths 'short'; there are uniform, tail"),
    ],
)
def test_mistakes_are_told_in_words(capsys, arguments, said):
    assert main(["bench", "rollout", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_rows_must_be_numbers(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "rollout", "--rows", "0"])
    assert "is not a list of numbers like 1,64,256" in capsys.readouterr().err


def test_the_tail_has_a_mean_near_the_uniform_length():
    lengths = [one.sampling.max_new_tokens for one in Case(64, "tail", 1, 256).requests(16)]
    assert len(lengths) == 2048
    assert (min(lengths), max(lengths)) == (32, 1024)
    assert sum(lengths) / len(lengths) == pytest.approx(256, rel=0.05)


def test_the_limit_is_what_must_be_read():
    config = {
        "model_type": "llama", "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
        "tie_word_embeddings": False,
    }  # fmt: skip
    model = load_model(config)
    layer = 16 * (16 + 8 + 8) + 16 * 16 + 3 * 16 * 32 + 2 * 16
    weights = 4 * (layer + 16 + 16 * 16)  # and the embeddings are looked up, not read
    cache = 4 * 2 * 8
    assert step_limit(model, 2, 10.0, 1000.0) == pytest.approx(2 * 1000.0 / (weights + 2 * 10 * cache))


STEP = ["--prompts", "2", "--group-size", "2", "--prompt-tokens", "3", "--new-tokens", "4", "--steps", "1"]


def test_a_step_is_measured_in_its_parts(capsys):
    assert main(["bench", "step", *STEP, "--without", "trl", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (figure,) = told["figures"]
    assert figure["library"] == "proa"
    parts = [figure[name] for name in ("generating", "training", "publishing")]
    assert figure["seconds"] == pytest.approx(sum(parts))
    assert all(part > 0 for part in parts)
    assert figure["tokens_per_second"] == pytest.approx(2 * 2 * 4 / figure["seconds"])
    assert told["trl_over_proa"] is None


def test_a_gate_fails_where_nothing_was_compared(capsys):
    assert main(["bench", "step", *STEP, "--without", "trl", "--at-least", "1.0"]) == 1
    assert "proa" in capsys.readouterr().out


def test_a_shape_that_there_is_not_is_answered(capsys):
    assert main(["bench", "step", "--shape", "7B"]) == 2
    assert "there is no shape '7B'; there are small, 0.6B" in capsys.readouterr().err


@pytest.mark.prove
def test_time_to_quality_is_told_seed_by_seed(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    arguments = ["--seeds", "1", "--target", "0.2", "--most-steps", "8"]
    assert main(["bench", "quality", *arguments]) == 0
    assert "seed 0, proa: " in capsys.readouterr().out
    assert main(["bench", "quality", "--seeds", "1", "--target", "1.1", "--most-steps", "2", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["reached"] == [{"library": "proa", "seed": 0, "seconds": None, "steps": 2}]
    assert told["ratio"]["mean"] is None
