"""Reward models: made from a language model, saved as transformers reads them, scored at the last real token."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from proa.policy.models import ModelError, load_model, save_model
from proa.policy.reward_model import (
    TokenizerMismatchError,
    build_reward_model,
    check_same_tokenizer,
    load_reward_model,
    save_reward_model,
    sequence_scores,
)
from proa.tasks.builtin.characters import tokenizer as make_tokenizer

SHAPES = ["llama", "qwen2", "qwen3", "gpt2"]
SEQUENCES = [[3, 4, 5], [6, 7, 8, 9, 10, 1], [11], [12, 13, 14, 15], [3, 1]]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def reward_model(tiny):
    """A reward model whose head is large enough for scores to differ."""

    def build(shape="llama", **options):
        model = build_reward_model(tiny(shape, **options), seed=3)
        with torch.no_grad():
            model.score.weight.mul_(100.0)
        return model

    return build


def scores_alone(model, sequences=SEQUENCES):
    """By transformers' own pass over each sequence, without any padding."""
    return torch.stack([model(input_ids=torch.tensor([sequence])).logits[0, 0] for sequence in sequences])


# -- made


@pytest.mark.parametrize("shape", SHAPES)
def test_the_trunk_is_the_language_models_and_the_head_is_small(shape, tiny):
    model = tiny(shape)
    made = build_reward_model(model, seed=0)
    assert (
        type(made).__name__
        == type(model).__name__.replace("ForCausalLM", "").replace("LMHeadModel", "") + "ForSequenceClassification"
    )
    trunk = model.base_model.state_dict()
    assert trunk.keys() == made.base_model.state_dict().keys()
    assert all(torch.equal(tensor, trunk[name]) for name, tensor in made.base_model.state_dict().items())
    assert made.score.weight.shape == (1, 16)
    assert 0 < made.score.weight.std() < 2 / 17
    assert made.dtype == torch.float64
    assert not made.training


def test_the_trunk_is_a_copy(tiny):
    model = tiny()
    made = build_reward_model(model, seed=0)
    with torch.no_grad():
        made.base_model.embed_tokens.weight.zero_()
    assert model.model.embed_tokens.weight.any()


def test_the_head_follows_from_the_seed_and_torchs_generator_is_left_alone(tiny):
    model = tiny(dtype="float32")
    before = torch.default_generator.get_state()
    one, same, other = (build_reward_model(model, seed=seed).score.weight for seed in (1, 1, 2))
    assert torch.equal(torch.default_generator.get_state(), before)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_dropout_is_0_whatever_the_language_models_configuration_says(tiny):
    model = tiny("gpt2")
    model.config.attn_pdrop = model.config.resid_pdrop = 0.5
    made = build_reward_model(model, seed=0).train()
    assert torch.equal(sequence_scores(made, SEQUENCES), sequence_scores(made.eval(), SEQUENCES))
    assert model.config.attn_pdrop == 0.5


def test_a_kind_of_model_that_transformers_cannot_score_with_is_refused(tiny):
    with pytest.raises(ModelError, match="no reward model of the kind of CohereForCausalLM"):
        build_reward_model(tiny("cohere", dtype="float32"), seed=0)


def test_a_model_with_an_adapter_is_refused(tiny):
    model = tiny()
    model._hf_peft_config_loaded = True
    with pytest.raises(ModelError, match="has an adapter: merge it first"):
        build_reward_model(model, seed=0)


# -- scored


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("token_budget", [0, 1, 7, 16_384])
def test_each_score_is_that_of_the_sequence_alone_in_order(shape, token_budget, reward_model):
    model = reward_model(shape)
    ours = sequence_scores(model, SEQUENCES, token_budget)
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, scores_alone(model), **EXACT)


@pytest.mark.parametrize("token_budget", [0, 7])
def test_gradients_are_those_of_the_sequences_alone(token_budget, reward_model):
    model = reward_model()
    weights = torch.arange(1.0, 6.0).double()

    def gradients(scores):
        model.zero_grad()
        (weights * scores).sum().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    ours, expected = gradients(sequence_scores(model, SEQUENCES, token_budget)), gradients(scores_alone(model))
    for name in expected:
        torch.testing.assert_close(ours[name], expected[name], **EXACT)


@pytest.mark.parametrize("pad", [None, 0, 1, 3])
def test_the_models_padding_token_does_not_matter(pad, reward_model):
    model = reward_model()
    expected = sequence_scores(model, SEQUENCES)
    model.config.pad_token_id = pad
    assert torch.equal(sequence_scores(model, SEQUENCES), expected)


def test_the_same_call_gives_the_same_bits(reward_model):
    model = reward_model(dtype="float32")
    assert torch.equal(sequence_scores(model, SEQUENCES, 8), sequence_scores(model, SEQUENCES, 8))


def test_scores_without_gradients_are_plain_and_of_half_precision_float32(reward_model):
    model = reward_model(dtype="float32")
    with torch.no_grad():
        assert not sequence_scores(model, SEQUENCES).requires_grad
    model.score.register_forward_hook(lambda module, inputs, output: output.half())
    assert sequence_scores(model, SEQUENCES).dtype == torch.float32


def test_no_sequences_have_no_scores_and_an_empty_one_is_refused(reward_model):
    assert sequence_scores(reward_model(), []).shape == (0,)
    with pytest.raises(ValueError, match="sequence 1 has no tokens"):
        sequence_scores(reward_model(), [[3], []])


# -- saved


def end_is_padding():
    tokenizer = make_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def no_padding():
    tokenizer = make_tokenizer()
    tokenizer.pad_token = None
    return tokenizer


TOKENIZERS = {"a padding token": make_tokenizer, "the end is padding": end_is_padding, "no padding": no_padding}


@pytest.mark.parametrize("shape", ["llama", "gpt2"])
@pytest.mark.parametrize("vocabulary", [16, 23])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_transformers_reads_our_scores_from_the_folder_in_right_padded_batches(
    kind, vocabulary, shape, reward_model, tmp_path
):
    model, tokenizer = reward_model(shape, vocab_size=vocabulary), TOKENIZERS[kind]()
    save_reward_model(model, tokenizer, tmp_path)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64)
    batch = AutoTokenizer.from_pretrained(tmp_path).pad({"input_ids": SEQUENCES}, return_tensors="pt")
    assert batch["attention_mask"][2].tolist() == [1, 0, 0, 0, 0, 0]
    torch.testing.assert_close(theirs(**batch).logits[:, 0], sequence_scores(model, SEQUENCES), **EXACT)
    loaded = load_reward_model(tmp_path, dtype="float64")
    torch.testing.assert_close(sequence_scores(loaded, SEQUENCES), sequence_scores(model, SEQUENCES), **EXACT)


def test_saving_changes_neither_model_nor_tokenizer(reward_model, tmp_path):
    model, tokenizer = reward_model(vocab_size=16), end_is_padding()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config, parameters = model.config.to_dict(), [id(parameter) for parameter in model.parameters()]
    save_reward_model(model, tokenizer, tmp_path)
    assert model.config.to_dict() == config
    assert [id(parameter) for parameter in model.parameters()] == parameters
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (tokenizer.pad_token, tokenizer.padding_side, len(tokenizer)) == ("<end>", "left", 16)


def test_a_language_models_folder_is_no_reward_model(tiny, tmp_path):
    save_model(tiny(), None, tmp_path)
    with pytest.raises(ModelError, match=r"lacks score\.weight and is not a reward model: fit_reward_model makes one"):
        load_reward_model(tmp_path)


def test_a_classifier_is_no_reward_model(reward_model, tmp_path):
    model = reward_model()
    model.config.num_labels = 3
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="a classifier of 3 labels; a reward model has one"):
        load_reward_model(tmp_path)


def test_loading_says_what_is_wrong(tmp_path, reward_model):
    with pytest.raises(ModelError, match="no reward model in"):
        load_reward_model(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="no dtype 'float23'; .*did you mean 'float32'"):
        load_reward_model(tmp_path, dtype="float23")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ModelError, match="it is a file"):
        save_reward_model(reward_model(), make_tokenizer(), file)
    save_reward_model(reward_model(), make_tokenizer(), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\0" * 16)
    with pytest.raises(ModelError, match="does not load as a reward model"):
        load_reward_model(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "lama"}')
    with pytest.raises(ModelError, match="does not load as a reward model: .*lama"):
        load_reward_model(tmp_path / "model")


def test_loading_leaves_torchs_generator_alone(reward_model, tmp_path):
    save_reward_model(reward_model(), make_tokenizer(), tmp_path)
    before = torch.default_generator.get_state()
    load_reward_model(tmp_path)
    assert torch.equal(torch.default_generator.get_state(), before)


# -- the same tokenizer


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_tokenizer_of_a_saved_reward_model_is_the_policys(kind, reward_model, tmp_path):
    save_reward_model(reward_model(), TOKENIZERS[kind](), tmp_path)
    check_same_tokenizer(TOKENIZERS[kind](), AutoTokenizer.from_pretrained(tmp_path))


def test_how_each_pads_does_not_matter():
    unknown_is_padding = make_tokenizer()
    unknown_is_padding.pad_token = unknown_is_padding.unk_token
    for policy in (make_tokenizer(), end_is_padding(), no_padding()):
        check_same_tokenizer(policy, unknown_is_padding)
        check_same_tokenizer(unknown_is_padding, policy)


def with_token(token):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([token])
    return tokenizer


def test_a_reward_model_with_another_tokenizer_is_refused():
    with pytest.raises(TokenizerMismatchError, match="'x' is no token for the policy and token 16 for the reward"):
        check_same_tokenizer(make_tokenizer(), with_token("x"))
    with pytest.raises(TokenizerMismatchError, match="'x' is token 16 for the policy and no token for the reward"):
        check_same_tokenizer(with_token("x"), with_token("y"))
    other = make_tokenizer()
    other.eos_token = "+"
    with pytest.raises(TokenizerMismatchError, match=r"another eos_token than the policy, '\+' and not '<end>'"):
        check_same_tokenizer(make_tokenizer(), other)


GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4, "max_position_embeddings": 64,
    },
    "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2},
}  # fmt: skip


def test_a_model_of_text_and_images_becomes_a_reward_model_whose_folder_is_read_back(tmp_path):
    model = build_reward_model(load_model(GEMMA3, seed=1), seed=1)
    save_reward_model(model, end_is_padding(), tmp_path)  # its padding gets a row of its own in the embedding
    loaded = load_reward_model(tmp_path)
    assert loaded.config.get_text_config().vocab_size == 17
    torch.testing.assert_close(sequence_scores(loaded, SEQUENCES), sequence_scores(model, SEQUENCES))
