"""`proa bench rollout`: one table of ratios, the same as JSON, and mistakes in words."""

import json

import pytest
import torch

from proa.bench.rollout import Case, step_limit
from proa.cli.main import main
from proa.policy.models import load_model

SMALL = ["--rows", "2", "--new-tokens", "4", "--prompt-tokens", "3", "--rounds", "1"]


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_figures_of_each_engine_and_case_with_their_limit(capsys):
    assert main(["bench", "rollout", *SMALL, "--engines", "native,hf,generate,vllm", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["device"], told["dtype"]) == ("small", "cpu", "float32")
    assert [(one["engine"], one["lengths"]) for one in told["figures"]] == [
        (engine, lengths) for lengths in ("uniform", "tail") for engine in ("native", "hf", "generate")
    ]
    uniform, tail = told["figures"][0], told["figures"][3]
    assert (uniform["tokens"], tail["rows"]) == (8, 2)
    assert tail["tokens"] == sum(one.sampling.max_new_tokens for one in Case(2, "tail", 3, 4).requests(4096))
    assert all(one["limit"] > 0 and one["tokens_per_second"] > 0 for one in told["figures"])
    assert "vllm" in told["not_measured"]


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
