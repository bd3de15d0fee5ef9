"""Stop strings end a completion after the token that completes one, with every engine, whatever else is decoded."""

import itertools
import random

import pytest
import torch
from tests.small import MODEL_WITH_END

from proa.data.sampling import Sampling
from proa.engines import HFEngine, Progress, StopStrings, build_engine, generate, group_requests
from proa.engines.generating import Collected
from proa.engines.stop_strings import StopWatch
from proa.errors import SettingError
from proa.policy.models import load_model
from proa.rollouts import EngineStream, StreamUser
from proa.rollouts import Progress as WorkProgress
from proa.tasks.builtin.characters import tokenizer


def bytes_tokenizer():
    """A token for every byte, so that characters are cut, and some pairs of letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("<", "/"), ("a", "n"), (">", ">")]
    vocabulary = {token: place for place, token in enumerate([*letters, *("".join(pair) for pair in pairs)])}
    model = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    model.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=model)


def spaced_tokenizer():
    """Words that begin with a space, which the decoder leaves out at the beginning."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: place for place, token in enumerate(["\u2581a", "\u2581b", "a", "b", "\u2581"])}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    model.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=model)


@pytest.mark.parametrize(
    ("make", "stops"),
    [
        (bytes_tokenizer, ("é<", "an", "<<</")),
        (spaced_tokenizer, (" a b", "aab a", "b  a")),
        (tokenizer, ("123", "0<end>")),
    ],
)
def test_it_is_found_at_the_first_token_whose_text_so_far_contains_it(make, stops):
    one, choose = make(), random.Random(3)
    strings, found = StopStrings(stops, one), set()
    small = list(range(len(one))) if len(one) < 20 else one.convert_tokens_to_ids([*"<an>", "</", "an", "Ã", "©"])
    for _ in range(60):
        tokens = choose.choices(small, k=80)
        texts = [strings.decode(tokens[: count + 1]) for count in range(len(tokens))]
        expected = next((place for place, text in enumerate(texts) if any(stop in text for stop in stops)), None)
        watch = StopWatch(strings)
        assert next((place for place, token in enumerate(tokens) if watch.is_ended_by(token)), None) == expected
        found.add(expected)
    assert len(found) > 3


@pytest.fixture(scope="module")
def model():
    return load_model(MODEL_WITH_END, seed=3)


@pytest.fixture(params=["native", "hf"])
def engine(request, model):
    return build_engine(request.param, model, end_ids=[1])


def requests(stops, seeds=range(6)):
    sampling = Sampling(max_new_tokens=14, stop=stops)
    strings = StopStrings(stops, tokenizer()) if stops else None
    return list(group_requests("p", (6, 7, 3), list(seeds), sampling, stop_strings=strings))


def up_to(completion, stop):
    """The tokens of a completion up to the one that completes the text, in this tokenizer a character each."""
    tokens = completion.tokens.tolist()
    texts = [tokenizer().decode(tokens[: count + 1]) for count in range(len(tokens))]
    return next((tokens[: count + 1] for count, text in enumerate(texts) if stop in text), None)


def frequent(completions):
    """A text of two characters that most of these contain, and not all."""
    texts = [tokenizer().decode(one.tokens) for one in completions]
    pairs = ("".join(pair) for pair in itertools.product("0123456789", repeat=2))
    return max(pairs, key=lambda pair: sum(pair in text for text in texts) % len(texts))


def test_a_completion_is_what_it_would_have_been_up_to_there_and_others_are_as_they_were(engine):
    whole = generate(engine, requests(()))
    stop = frequent(whole)
    stopped, ended = generate(engine, requests((stop,))), 0
    for before, after in zip(whole, stopped, strict=True):
        tokens = up_to(before, stop)
        if tokens is None:
            assert after.tokens.tolist() == before.tokens.tolist()
            assert after.finish_reason == before.finish_reason
        else:
            ended += 1
            assert after.tokens.tolist() == tokens
            assert after.finish_reason == "stop"
        assert torch.equal(after.log_probs, before.log_probs[: len(after)])
    assert 0 < ended < len(whole)


def test_it_is_the_same_where_many_share_the_engine_and_the_engine_is_left_with_nothing(engine):
    stop = frequent(generate(engine, requests(())))
    expected = generate(engine, requests((stop,)))
    stream = EngineStream(engine, name="maker_0")
    try:
        made = StreamUser(stream, "lease 0", 0, lambda: None).generate(requests((stop,)), WorkProgress("a test"))
    finally:
        stream.close("the test is over")
    assert [one.tokens.tolist() for one in made.completions] == [one.tokens.tolist() for one in expected]
    assert [one.finish_reason for one in made.completions] == [one.finish_reason for one in expected]
    assert engine.step() == []


class Late(HFEngine):
    """Says what it sampled two steps later, also of what was cancelled meanwhile."""

    def step(self):
        said = getattr(self, "said", [])
        now = super().step()
        self.said = [*said, now]
        if len(self.said) > 2 or not now:
            first, self.said = [one for progress in self.said[:2] for one in progress], self.said[2:]
            return first
        return []


def test_an_engine_that_says_late_what_it_sampled_gives_the_same(model):
    engine, late = (build_engine(kind, model, end_ids=[1]) for kind in (HFEngine, Late))
    stop = frequent(generate(engine, requests(())))
    expected, found = (generate(one, requests((stop,))) for one in (engine, late))
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in expected]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in expected]


def test_what_was_sampled_after_it_in_the_same_report_is_dropped():
    collected = Collected(StopStrings(["12"], tokenizer()))
    digits = tokenizer()("3124")["input_ids"]
    completion = collected.add(Progress("a", tuple(digits), (-1.0, -2.0, -3.0, -4.0), 0, "length"))
    assert (completion.tokens.tolist(), completion.finish_reason) == (digits[:3], "stop")
    assert completion.log_probs.tolist() == [-1.0, -2.0, -3.0]


def test_texts_without_a_tokenizer_and_empty_texts_are_refused(engine):
    with pytest.raises(SettingError, match="no tokenizer to find these texts with"):
        generate(engine, list(group_requests("p", (6, 7), [1], Sampling(stop="12"))))
    with pytest.raises(SettingError, match="an empty text"):
        StopStrings([""], tokenizer())
