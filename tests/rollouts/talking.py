"""Small parts for trajectories: a tokenizer of bytes with chat templates, and environments in this process."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from proa.environments import Start, Step
from proa.environments.tools import prompt_messages

SPECIAL = ("<pad>", "<|im_end|>", "<|im_start|>", "<|other_end|>")
PAD, END, BEGIN, OTHER_END = range(4)
VOCABULARY = len(SPECIAL) + 256
ENDS = tuple(range(END, VOCABULARY, 8))
"""With so many end tokens a model of random weights ends its turns by itself now and then."""
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS_THOUGHTS = (
    "{% set last = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 < last.user %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What the model thought is taken out once the user has spoken again, as several families do."""


def byte_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """A token for each byte, after the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE({letter: place for place, letter in enumerate([*SPECIAL, *alphabet])}, []))
    bytes_.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, pad_token="<pad>", eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


def byte_model() -> LlamaForCausalLM:
    """Of random weights, always the same."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=PAD,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


class InProcess:
    """An environment for each trajectory, in this process, without deadlines."""

    def __init__(self, make, deterministic=True):
        self.make, self.deterministic = make, deterministic
        self.begun, self.closed = [], 0

    async def begin(self, row, *, seed, alone=False):
        self.begun.append((row, seed, alone))
        environment = self.make()
        start = environment.reset(row, seed=seed)
        start = await start if inspect.isawaitable(start) else start

        async def step(message):
            answer = environment.step(message)
            return await answer if inspect.isawaitable(answer) else answer

        async def final_reward():
            return getattr(environment, "final", None)

        async def close():
            self.closed += 1

        return SimpleNamespace(start=start, step=step, final_reward=final_reward, close=close, seconds=0.25)


class Repeats:
    """Answers with what it was told, so many times."""

    def __init__(self, times=2, role="user", rewards=None):
        self.left, self.role, self.rewards = times, role, list(rewards or [])

    def reset(self, row, *, seed):
        return Start(prompt_messages(row["prompt"]))

    def step(self, message):
        reward = self.rewards.pop(0) if self.rewards else None
        self.left -= 1
        if self.left < 0:
            return Step(reward=reward, done=True)
        return Step([{"role": self.role, "content": f"heard: {message['content']}"}], reward=reward)
