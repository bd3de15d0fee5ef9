"""One small tokenizer of each kind that models come with, made without a hub: how they treat the beginning of a text
differs, and so does what they add around it."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = ("2+2=4", "hello world", "Answer: yes", "ab abc bc c", "the cat\nsat on the mat", "22 444", "été 中文")
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _metaspace(scheme, split):
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return core, trainers.BpeTrainer(vocab_size=360, special_tokens=SPECIAL + BYTES, show_progress=False)


def _llama_legacy():
    core, trainer = _metaspace("never", split=False)
    core.pre_tokenizer = None
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return core, trainer


def _unigram():
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.decoder = decoders.Metaspace(prepend_scheme="always")
    alphabet = list("abcdefghijklmnopqrstuvwxyzA0123456789é中文.:=+\n▁")
    return core, trainers.UnigramTrainer(
        vocab_size=100, special_tokens=SPECIAL, unk_token="<unk>", initial_alphabet=alphabet, show_progress=False
    )


def _byte_level(add_prefix_space):
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return core, trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )


_KINDS = {
    "metaspace first": lambda: _metaspace("first", split=False),
    "metaspace always": lambda: _metaspace("always", split=True),
    "metaspace never": lambda: _metaspace("never", split=False),
    "llama legacy": _llama_legacy,
    "unigram": _unigram,
    "byte level": lambda: _byte_level(add_prefix_space=False),
    "byte level with a space in front": lambda: _byte_level(add_prefix_space=True),
}
_AROUND = {"nothing": "$A", "a beginning": "<s> $A", "both ends": "<s> $A </s>", "an end": "$A </s>"}
KINDS = [f"{kind}, {around}" for kind in _KINDS for around in _AROUND]


@cache
def tiny_tokenizer(kind):
    """Of a kind (`metaspace first`, …) that adds `nothing`, `a beginning`, `both ends` or `an end` around a text."""
    name, around = kind.split(", ")
    core, trainer = _KINDS[name]()
    core.train_from_iterator(TEXTS, trainer)
    core.post_processor = processors.TemplateProcessing(
        single=_AROUND[around], special_tokens=[(token, core.token_to_id(token)) for token in ("<s>", "</s>")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT,
    )
