"""Every causal language model of transformers through the engine `hf` and through a training pass.

Each of them, tiny and with random weights, works or is refused in words: greedy tokens are those of `generate`, the
engine's log-probabilities those of a forward pass, and those of a padded training batch those of each row alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.engines.prompted import Prompted, generated
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from proa.data.sampling import Sampling
from proa.engines import build_engine
from proa.errors import SettingError
from proa.policy.log_probs import action_statistics

VOCABULARY = 37
PROMPT = tuple(range(5, 14))
GREEDY = Sampling(max_new_tokens=10, temperature=0.0)

# Windows and chunks are shorter than what is generated; more than one expert, layer and head wherever there can be.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_words": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 16, "d_model": 16, "n_embd": 16, "emb_dim": 16, "embedding_size": 16, "attention_hidden_size": 16,
    "intermediate_size": 24, "d_ff": 24, "dim_ff": 24, "d_inner": 24, "ffn_dim": 24, "n_inner": 24,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 12,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "decoder_layers": 2, "encoder_layers": 2,
    "num_attention_heads": 2, "num_heads": 2, "n_head": 2, "n_heads": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "dim_head": 8, "rotary_dim": 4,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_seq_len": 64, "context_length": 64,
    "sliding_window": 5, "window_size": 5, "attention_chunk_size": 8,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "qk_head_dim": 8,
    "v_head_dim": 8, "state_size": 4, "mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1,
    "mamba_chunk_size": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "prompt_length": 4, "prompt_types": 4, "segment_types": 4, "n_langs": 1,
    "hidden_size_per_layer_input": 4,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
_SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "bert": {"is_decoder": True},
    "bert-generation": {"is_decoder": True},
    "codegen": {"n_head": 4, "rotary_dim": 2},
    "cwm": {"bos_token_id": 1, "eos_token_id": 2},
    "diffllama": {"num_key_value_heads": 2},
    "falcon_h1": {"mamba_d_ssm": 32},
    "gemma3n_text": {
        "num_hidden_layers": 5, "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * 5,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_ff_dim": 24},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 8, "expand": 2, "n_groups": 1, "chunk_size": 4},
    "modernbert-decoder": {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "qwen3_5_moe_text": {"num_hidden_layers": 4},
    "qwen3_5_text": {"num_hidden_layers": 4},
    "qwen3_next": {"num_hidden_layers": 4},
    "roberta": {"is_decoder": True},
    "xlm": {"causal": True},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip

NOT_CAUSAL = "it is not causal, for what it says after a text depends on what follows"
UNKNOWN_HEAD = "computes its logits in a way that Proa does not know"
REFUSED = {
    # by the engine and by training; the kin of BERT below are as their configurations are by default, encoders
    "big_bird": (NOT_CAUSAL, UNKNOWN_HEAD),
    "camembert": (NOT_CAUSAL, UNKNOWN_HEAD),
    "cpmant": (NOT_CAUSAL, "is not causal"),
    "data2vec-text": (NOT_CAUSAL, UNKNOWN_HEAD),
    "electra": (NOT_CAUSAL, UNKNOWN_HEAD),
    "ernie": (NOT_CAUSAL, UNKNOWN_HEAD),
    "megatron-bert": (NOT_CAUSAL, UNKNOWN_HEAD),
    "prophetnet": (NOT_CAUSAL, UNKNOWN_HEAD),
    "rembert": (NOT_CAUSAL, UNKNOWN_HEAD),
    "roberta-prelayernorm": (NOT_CAUSAL, UNKNOWN_HEAD),
    "roc_bert": (NOT_CAUSAL, UNKNOWN_HEAD),
    "roformer": (NOT_CAUSAL, UNKNOWN_HEAD),
    "xlm-roberta": (NOT_CAUSAL, UNKNOWN_HEAD),
    "xlm-roberta-xl": (NOT_CAUSAL, UNKNOWN_HEAD),
    "xlnet": (NOT_CAUSAL, "is not causal"),
    # by training alone
    "bert": (None, UNKNOWN_HEAD),
    "inkling_text": (None, UNKNOWN_HEAD),
    "modernbert-decoder": (None, UNKNOWN_HEAD),
    "roberta": (None, UNKNOWN_HEAD),
}
OTHER_GENERATE = {"moshi", "roberta", "xlm", "whisper"}
"""Whose `generate` adds tokens of its own, or has other positions than their forward pass."""


def tiny_configuration(kind: str) -> Any:
    return AutoConfig.for_model(kind, **(_sizes(AutoConfig.for_model(kind)) | _SPECIAL.get(kind, {})))


def _sizes(default: Any) -> dict[str, Any]:
    keys = default.to_dict()
    sizes = {name: value for name, value in _SIZES.items() if name in keys and not isinstance(keys[name], dict)}
    if "qk_rope_head_dim" in keys:  # latent attention has its own widths, and a key for every query head
        sizes = {**sizes, "num_key_value_heads": 2}
        sizes.pop("head_dim", None)
    parts = {name: getattr(default, name, None) for name in default.sub_configs}
    return sizes | {name: _sizes(part) for name, part in parts.items() if hasattr(part, "to_dict")}


def tiny_model(kind: str) -> PreTrainedModel:
    """A model that has opinions: its weights are large enough for every part of it to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(tiny_configuration(kind)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5.0)
    return model


@dataclass(frozen=True)
class Outcome:
    """What an architecture did: words where it was refused, and otherwise whether the numbers were right."""

    engine: str
    training: str

    @property
    def is_right(self) -> bool:
        return "WRONG" not in self.engine + self.training


def outcome_of(kind: str) -> Outcome:
    model = tiny_model(kind)
    return Outcome(_engine_outcome(kind, model), _training_outcome(model))


def _engine_outcome(kind: str, model: PreTrainedModel) -> str:
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    try:
        engine = build_engine("hf", model, end_ids=ends)
        # Prompts of two lengths, and two rows of one of them, for rows may disturb each other.
        groups = generated(engine, [Prompted(PROMPT, (1, 2)), Prompted(PROMPT[:4], (1,))], GREEDY)
    except SettingError as error:
        return str(error)
    completion = groups[0][0]
    tokens = completion.tokens.tolist()
    with torch.no_grad():
        text = torch.tensor([[*PROMPT, *tokens]])
        logits = model(input_ids=text, use_cache=False).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, completion.tokens[:, None])[:, 0]
    if not _close(completion.log_probs, expected):
        return f"WRONG: other log-probabilities than a forward pass, by {(completion.log_probs - expected).abs().max()}"
    if kind in OTHER_GENERATE:
        return "right"
    assert model.generation_config is not None
    model.generation_config.forced_eos_token_id = None  # BART and its kin end at the limit with a token of their own
    mask = torch.ones(1, len(PROMPT), dtype=torch.long)
    own = model.generate(torch.tensor([PROMPT]), attention_mask=mask, do_sample=False, max_new_tokens=10)
    return "right" if own[0, len(PROMPT) :].tolist() == tokens else "WRONG: other tokens than generate"


def _training_outcome(model: PreTrainedModel) -> str:
    sequences = torch.randint(3, VOCABULARY - 5, (3, 20), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(sequences, dtype=torch.bool)
    mask[1, :4] = mask[1, 15:] = mask[2, 12:] = False
    try:
        with torch.no_grad():
            ours_BA = action_statistics(model, sequences, mask, 12).log_probs_BA
    except SettingError as error:
        return str(error)
    for ours_A, tokens_S, mask_S in zip(ours_BA, sequences, mask, strict=True):
        row, count = tokens_S[mask_S], int(mask_S[-12:].sum())
        with torch.no_grad():
            log_probs = model(input_ids=row[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        expected = log_probs.gather(-1, row[1:, None])[-count:, 0]
        if not _close(ours_A[:count], expected):
            return f"WRONG: other log-probabilities than a row alone, by {(ours_A[:count] - expected).abs().max()}"
    return "right"


def _close(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    """Float32 through a few layers of 16 to 64 terms each, of which each grows an error by 5 * 0.02 * 16 at the most.

    That is 2**-24 * sqrt(64) * 1.6**10, 5e-5. Padding that is read, or a wrong position, is wrong by 1e-2 and more.
    """
    return bool(((ours - expected).abs() <= 1e-4 * expected.abs().clamp(min=1.0)).all())


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """transformers warns of what it does not find here: kernels, cameras."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    logging.getLogger("proa").setLevel(logging.ERROR)
    yield
    transformers_logging.set_verbosity(before)
    logging.getLogger("proa").setLevel(logging.NOTSET)


REPRESENTATIVES = (
    "bamba", "bloom", "gemma3", "gpt_neo", "llama4_text", "mamba", "mpt", "qwen3_moe", "rwkv", "xlnet", "openai-gpt",
)  # fmt: skip
"""A hybrid, distance biases, images, local and chunked attention, states, experts, no cache, and one not causal."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REPRESENTATIVES)
def test_an_architecture_is_right_or_refused_in_words(kind: str) -> None:
    _assert_as_expected(kind, outcome_of(kind))


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore")
def test_every_architecture_that_can_be_built_tiny_is_right_or_refused_in_words() -> None:
    wrong, unbuilt, right, refused = [], [], 0, 0
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            with torch.no_grad():
                model = tiny_model(kind)
                assert sum(parameter.numel() for parameter in model.parameters()) < 3_000_000
                model(input_ids=torch.tensor([PROMPT]))
        except Exception as error:
            unbuilt.append(f"{kind:28} {type(error).__name__}")
            continue
        try:
            outcome = outcome_of(kind)
            print(f"{kind:28} {outcome.engine[:60]:60} {outcome.training[:60]}")
            _assert_as_expected(kind, outcome)
            refused, right = refused + (kind in REFUSED), right + (kind not in REFUSED)
        except Exception as error:
            wrong.append(f"{kind}: {type(error).__name__}: {error}")
    print(f"{right} right, {refused} refused in words, not built here:", *unbuilt, sep="\n    ")
    assert not wrong, "\n".join(wrong)
    assert right > 100, "transformers 5.22 has 140 of them; a table that shrinks is looked at"


def _assert_as_expected(kind: str, outcome: Outcome) -> None:
    for words, found in zip(REFUSED.get(kind, (None, None)), (outcome.engine, outcome.training), strict=True):
        assert (found == "right") if words is None else (words in found), f"{kind}: {found}"
