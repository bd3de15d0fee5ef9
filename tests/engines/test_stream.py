"""What an engine promises as a stream: requests come at any time, and not one bit of theirs depends on it."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.tiny import CONTEXT, SHAPES, VOCABULARY, tiny_model
from transformers import PreTrainedModel, RepetitionPenaltyLogitsProcessor

from proa import slow_work
from proa.data.sampling import Completion, Sampling
from proa.engines import Engine, NativeEngine, Request, backends, build_engine, generate, group_requests, independence
from proa.engines.generating import Collected
from proa.engines.product_shapes import ProductShapes
from proa.engines.protocol import EngineBusyError
from proa.errors import SettingError
from proa.slow_work import saying_if_slow

SAMPLINGS = (
    Sampling(max_new_tokens=12, temperature=0.7),
    Sampling(max_new_tokens=40, temperature=1.3),
    Sampling(max_new_tokens=25, temperature=1.0, top_k=4, top_p=0.9),
    Sampling(max_new_tokens=7, temperature=0.0),
    Sampling(max_new_tokens=20, temperature=1.5, min_p=0.1),
    Sampling(max_new_tokens=25, temperature=1.2, repetition_penalty=1.3),
    Sampling(max_new_tokens=9, temperature=0.0, repetition_penalty=1.8),
)


def prompt(number: int) -> tuple[int, ...]:
    """Another for each number, and of another length."""
    return tuple((number * 7 + place * 5) % VOCABULARY for place in range(1 + number * 3 % 21))


def requests_of(count: int) -> list[Request]:
    """Some alone, some in groups of three, with different settings."""
    return [
        replace(request, group="") if number % 3 == 0 else request
        for number in range(count)
        for request in group_requests(
            f"r{number}", prompt(number), range(number * 10, number * 10 + 1 + 2 * (number % 2)), SAMPLINGS[number % 7]
        )
    ]


def bits(completion: Completion) -> tuple[list[int], list[float], str]:
    return completion.tokens.tolist(), completion.log_probs.tolist(), completion.finish_reason


def drive(
    engine: Engine, requests: Sequence[Request], chance: random.Random, cancelled: Sequence[str] = ()
) -> dict[str, Completion]:
    """Submit in bursts at random times, cancel some on the way, and step to the end."""
    waiting, open_, found = list(requests), dict[str, Collected](), dict[str, Completion]()
    to_cancel = list(cancelled)
    while waiting or open_:
        for _ in range(min(len(waiting), chance.choice((0, 0, 1, 3, 10)) or (not open_))):
            request = waiting.pop(0)
            engine.submit(request)
            open_[request.id] = Collected()
        if to_cancel and to_cancel[0] in open_ and chance.random() < 0.3:
            engine.cancel(to_cancel[0])
            del open_[to_cancel.pop(0)]
        for progress in engine.step():
            completion = open_[progress.id].add(progress)
            if completion is not None:
                found[progress.id] = completion
                del open_[progress.id]
                to_cancel = [name for name in to_cancel if name != progress.id]
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[int], list[float], str]]:
    """What each request comes to with an engine to itself."""
    engine = build_engine("native", tiny_model(), end_ids=(4,))
    return {request.id: bits(generate(engine, [request])[0]) for request in requests_of(16)}


@settings(deadline=None, max_examples=settings.default.max_examples // 3)
@given(seed=st.integers(0, 10**6), slots=st.integers(1, 24), cache=st.sampled_from((0, 600, 2000)))
def test_no_bit_depends_on_company_order_refills_or_cancelled_neighbours(
    alone: dict[str, tuple[list[int], list[float], str]], seed: int, slots: int, cache: int
) -> None:
    chance = random.Random(seed)
    engine = build_engine("native", tiny_model(), end_ids=(4,), slots=slots, cache_tokens=cache)
    requests = requests_of(16)
    chance.shuffle(requests)
    cancelled = [request.id for request in requests[::5]]
    for name, completion in drive(engine, requests, chance, cancelled).items():
        assert bits(completion) == alone[name]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_completion_alone_is_the_same_among_forty_others_for_every_shape(shape: str) -> None:
    model = tiny_model(shape)
    together = generate(build_engine("native", model, end_ids=(4,)), requests_of(20))
    engine = build_engine("native", model, end_ids=(4,))
    for request, completion in list(zip(requests_of(20), together, strict=True))[::9]:
        assert bits(generate(engine, [request])[0]) == bits(completion)


def test_each_request_has_its_own_sampling_and_stops() -> None:
    engine = build_engine("native", tiny_model(), end_ids=())
    plain = Request("plain", (1, 2), 3, Sampling(max_new_tokens=30))
    [whole] = generate(engine, [plain])
    stop = int(whole.tokens[8])
    first = whole.tokens.tolist().index(stop)
    ended, longer = generate(engine, [replace(plain, id="ended", stops=frozenset((stop,))), plain])
    assert (ended.tokens.tolist(), ended.finish_reason) == (whole.tokens[: first + 1].tolist(), "stop")
    assert bits(longer) == bits(whole)


def test_progress_comes_step_by_step_and_names_the_version() -> None:
    engine = build_engine("native", tiny_model(), end_ids=())
    engine.load(tiny_model(seed=1).state_dict(), 5)
    engine.submit(Request("a", (1, 2), 3, Sampling(max_new_tokens=6), version=5))
    steps = []
    while not steps or steps[-1].finish_reason is None:
        [progress] = engine.step()
        steps.append(progress)
    assert [len(one.tokens) for one in steps] == [2, 1, 1, 1, 1]  # the first comes with the prompt
    assert {one.version for one in steps} == {5}
    assert engine.step() == []


# -- versions ----------------------------------------------------------------------------------------


def test_two_versions_are_decoded_side_by_side() -> None:
    first, second = tiny_model(), tiny_model(seed=1)
    engine = build_engine("native", first, end_ids=())
    sampling = Sampling(max_new_tokens=20)
    old, new = Request("old", (1, 2), 3, sampling), Request("new", (1, 2), 3, sampling, version=1)
    engine.submit(old)
    found, open_ = {}, {"old": Collected(), "new": Collected()}
    for step in range(40):
        if step == 5:
            engine.load(second.state_dict(), 1)
            engine.submit(new)
        for progress in engine.step():
            if (completion := open_[progress.id].add(progress)) is not None:
                found[progress.id] = bits(completion)
    for name, model in (("old", first), ("new", second)):
        fresh = build_engine("native", model, end_ids=())
        assert found[name] == bits(generate(fresh, [Request(name, (1, 2), 3, sampling)])[0])


def test_a_third_version_is_refused_while_two_are_decoded() -> None:
    engine = build_engine("native", tiny_model(), end_ids=())
    sampling, weights = Sampling(max_new_tokens=20), tiny_model().state_dict()
    engine.submit(Request("a", (1,), 0, sampling))
    engine.load(weights, 1)
    engine.submit(Request("b", (1,), 0, sampling, version=1))
    with pytest.raises(EngineBusyError, match="version 2 cannot be loaded while sequences of 0, 1 are decoded"):
        engine.load(weights, 2)
    with pytest.raises(EngineBusyError, match="version 1 cannot be loaded again"):
        engine.load(weights, 1)
    engine.cancel("a")
    engine.load(weights, 2)
    with pytest.raises(SettingError, match="wants weights of version 0, which are not loaded"):
        engine.submit(Request("c", (1,), 0, sampling))
    engine.submit(Request("d", (1,), 0, sampling, version=2))
    assert {progress.id for progress in engine.step()} == {"b", "d"}


# -- continuing --------------------------------------------------------------------------------------

PLAIN_TURNS = Sampling(max_new_tokens=9)
PENALISED_TURNS = Sampling(max_new_tokens=9, temperature=1.5, min_p=0.02, repetition_penalty=1.5)


def turns(
    engine: Engine, name: str, between: Iterator[None], sampling: Sampling = PLAIN_TURNS
) -> list[tuple[list[int], list[float], str]]:
    """Three requests, each of which continues the one before; something may happen between two of them."""
    said, before = [], ""
    for turn, tokens in enumerate(((1, 2, 3), (7, 8), tuple(range(9)))):
        request = Request(f"{name}{turn}", tokens, 50 + turn, sampling, continues=before, keep=True)
        engine.submit(request)
        collected, completion = Collected(), None
        while completion is None:
            for progress in engine.step():
                if progress.id == request.id:
                    completion = collected.add(progress)
        said.append(bits(completion))
        before = request.id
        next(between, None)
    return said


def test_a_request_that_continues_another_has_the_log_probs_of_the_whole_text() -> None:
    model = tiny_model()
    said = turns(build_engine("native", model, end_ids=(4,)), "t", iter(()))
    text: list[int] = []
    for tokens, (sampled, log_probs, _) in zip(((1, 2, 3), (7, 8), tuple(range(9))), said, strict=True):
        text += tokens
        with torch.no_grad():
            logits = model(torch.tensor([text + sampled]), use_cache=False).logits[0, len(text) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(sampled)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(log_probs), expected, atol=1.2e-4, rtol=0)  # as in test_engines.py
        text += sampled


@pytest.mark.parametrize("sampling", [PLAIN_TURNS, PENALISED_TURNS], ids=["plain", "penalised"])
def test_a_cache_that_was_dropped_is_made_again_to_the_same_bits(sampling: Sampling) -> None:
    model = tiny_model()
    expected = turns(build_engine("native", model, end_ids=(4,)), "t", iter(()), sampling)
    engine = build_engine("native", model, end_ids=(4,))

    def sleeping() -> Iterator[None]:
        while True:
            engine.sleep()  # nothing is decoded: all caches go
            yield

    assert turns(engine, "t", sleeping(), sampling) == expected
    small = build_engine("native", model, end_ids=(4,), cache_tokens=8 * CONTEXT)
    others = (small.submit(Request(f"o{n}", prompt(n), n, SAMPLINGS[1], keep=True)) for n in range(9))
    assert turns(small, "t", others, sampling) == expected


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_a_penalty_counts_all_that_a_request_continues(kind: str) -> None:
    """Greedy: each token is the likeliest of the logits that transformers' processor makes of the whole text."""
    model = tiny_model()
    sampling = Sampling(max_new_tokens=9, temperature=0.0, repetition_penalty=1.7)
    said = turns(build_engine(kind, model, end_ids=(4,)), "t", iter(()), sampling)
    text: list[int] = []
    for tokens, (sampled, _, _) in zip(((1, 2, 3), (7, 8), tuple(range(9))), said, strict=True):
        text += tokens
        for token in sampled:
            with torch.no_grad():
                logits = model(torch.tensor([text]), use_cache=False).logits[:, -1]
            penalised = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([text]), logits)
            assert token == int(penalised.argmax())
            text.append(token)


def test_what_is_continued_must_have_been_kept_with_these_weights() -> None:
    engine = build_engine("native", tiny_model(), end_ids=())
    short = Sampling(max_new_tokens=2)
    generate(engine, [Request("a", (1,), 0, short), Request("b", (1,), 0, short, keep=True)])
    for name in ("a", "nobody"):
        with pytest.raises(SettingError, match=f"continues '{name}', which was not kept"):
            engine.submit(Request("c", (1,), 0, short, continues=name))


@pytest.mark.parametrize("shape", ["llama", "llama, one of each"])  # of which a row's cache is one piece of memory
def test_what_is_kept_does_not_change_with_what_is_decoded_after_it(shape: str) -> None:
    model = tiny_model(shape)
    expected = turns(build_engine("native", model, end_ids=(4,)), "t", iter(()))
    engine = build_engine("native", model, end_ids=(4,))

    def others() -> Iterator[None]:
        for number in itertools.count():
            for n in range(3):  # they are decoded beside the next turn, one of them in the place of the last
                engine.submit(Request(f"{number}/{n}", prompt(n), n, Sampling(max_new_tokens=40)))
            engine.step()
            yield

    assert turns(engine, "t", others()) == expected


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_weights_stay_while_something_is_kept_that_was_decoded_with_them(kind: str) -> None:
    engine = build_engine(kind, tiny_model(), end_ids=(), **({"versions": 1} if kind == "native" else {}))
    short = Sampling(max_new_tokens=2)
    generate(engine, [Request("a", (1,), 0, short, keep=True)])
    with pytest.raises(EngineBusyError, match="while sequences of .* are decoded or kept"):
        engine.load(tiny_model(seed=1).state_dict(), 1)
    generate(engine, [Request("b", (1,), 0, short, continues="a", keep=True)])
    with pytest.raises(EngineBusyError):
        engine.load(tiny_model(seed=1).state_dict(), 1)
    engine.cancel("b")
    engine.load(tiny_model(seed=1).state_dict(), 1)
    with pytest.raises(SettingError, match="continues 'b', which was not kept"):
        engine.submit(Request("c", (1,), 0, short, version=1, continues="b"))


def test_what_a_text_grows_to_is_checked_against_the_context() -> None:
    engine = build_engine("native", tiny_model(), end_ids=())
    generate(engine, [Request("a", (1,) * 20, 0, Sampling(max_new_tokens=20), keep=True)])
    with pytest.raises(SettingError, match="prompt of 50 tokens; .* context is 64"):
        engine.submit(Request("b", (1,) * 10, 0, Sampling(max_new_tokens=20), continues="a"))
    engine.cancel("a")
    with pytest.raises(SettingError, match="was not kept"):
        engine.submit(Request("b", (1,), 0, Sampling(max_new_tokens=2), continues="a"))


# -- scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_scores_are_those_of_a_full_pass(kind: str) -> None:
    model = tiny_model()
    sequences = [prompt(number) for number in range(1, 8)] + [(3,)]
    for tokens, scores in zip(sequences, build_engine(kind, model, end_ids=()).score(sequences), strict=True):
        with torch.no_grad():
            log_probs = model(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)[:-1]
        expected = log_probs.gather(-1, torch.tensor(tokens)[1:, None])[:, 0]
        torch.testing.assert_close(scores, expected, atol=1.2e-4, rtol=0)


def test_scores_are_the_bits_that_sampling_recorded_and_of_the_newest_weights() -> None:
    engine = build_engine("native", tiny_model(), end_ids=())
    engine.load(tiny_model(seed=1).state_dict(), 1)
    request = Request("a", (1,), 3, Sampling(max_new_tokens=30), version=1)
    [completion] = generate(engine, [request])
    [scores] = engine.score([(1, *completion.tokens.tolist())])
    torch.testing.assert_close(scores, completion.log_probs, atol=2e-6, rtol=0)  # sums over 23 tokens, in another order


# -- room --------------------------------------------------------------------------------------------


def test_the_cache_stays_within_its_budget_and_all_are_served() -> None:
    budget = 4 * 8 * CONTEXT
    engine = build_engine("native", tiny_model(), end_ids=(4,), slots=64, cache_tokens=budget)
    waiting, most, served = requests_of(40), 0, set()
    for request in waiting:
        engine.submit(request)
    while len(served) < len(waiting):
        served |= {progress.id for progress in engine.step() if progress.finish_reason is not None}
        most = max(most, engine.cache_tokens)
    assert 0 < most <= budget


def test_memory_that_is_used_again_holds_nothing_of_damaged_weights() -> None:
    model, sampling = tiny_model(), Sampling(max_new_tokens=12)
    engine = build_engine("native", model, end_ids=())
    engine.load({name: torch.full_like(weight, torch.nan) for name, weight in model.state_dict().items()}, 1)
    with pytest.raises(FloatingPointError, match="not finite"):
        generate(engine, [Request("long", tuple(range(9)), 0, sampling, version=1)])
    engine.cancel("long")
    taken = engine.cache_tokens
    engine.load(model.state_dict(), 2)
    [found] = generate(engine, [Request("short", (1, 2), 0, sampling, version=2)])
    assert engine.cache_tokens == taken > 0  # both take one block of one row
    [expected] = generate(build_engine("native", model, end_ids=()), [Request("short", (1, 2), 0, sampling)])
    assert bits(found) == bits(expected)


def test_one_that_can_never_fit_is_refused_at_once() -> None:
    engine = build_engine("native", tiny_model(), end_ids=(), cache_tokens=100)
    with pytest.raises(SettingError, match=r"may become 33 tokens long.*engine.cache_tokens is 100"):
        engine.submit(Request("a", (1,), 0, Sampling(max_new_tokens=32)))


def test_sleeping_gives_the_cache_back_and_does_nothing_while_something_runs() -> None:
    engine = build_engine("native", tiny_model(), end_ids=())
    engine.submit(Request("a", (1,), 0, Sampling(max_new_tokens=3)))
    engine.step()
    engine.sleep()
    assert engine.cache_tokens > 0
    engine.step()
    engine.sleep()
    assert (engine.cache_tokens, engine.free) == (0, 64)


@pytest.mark.parametrize("count", [1_500, pytest.param(100_000, marks=pytest.mark.prove)])
def test_many_short_requests_leave_nothing_behind(count: int) -> None:
    engine = build_engine("native", tiny_model(), end_ids=(4,), slots=256)
    sampling = Sampling(max_new_tokens=2)

    def play(first: int) -> int:
        generate(
            engine, [Request(str(number), (1, number % 9), number, sampling) for number in range(first, first + 500)]
        )
        gc.collect()
        return len(gc.get_objects())

    play(0)
    objects = [play(first) for first in range(500, count, 500)]
    # One object kept of each request would be 500 more every time; threads of other tests may make some at any time.
    assert min(after - before for before, after in itertools.pairwise(objects)) < 50


# -- whether it is so --------------------------------------------------------------------------------


def dependent(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, *, is_dependent) -> NativeEngine:
    """An engine on a machine whose products depend on their number of rows where it says so."""
    from proa.engines.decoder import Linear

    honest = Linear.__call__

    def product(self: Linear, inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.numel() // inputs.shape[-1]
        return honest(self, inputs) * (1.0 + 1e-6 * is_dependent(rows))

    monkeypatch.setattr(Linear, "__call__", product)
    monkeypatch.setattr(independence, "_found", {})
    return build_engine("native", model, end_ids=(4,), slots=12)


def test_here_it_is_so() -> None:
    assert build_engine("native", tiny_model(), end_ids=()).is_independent
    assert not build_engine("hf", tiny_model(), end_ids=()).is_independent


def test_where_bits_depend_on_the_number_of_rows_there_is_only_one_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = dependent(tiny_model(), monkeypatch, is_dependent=lambda rows: rows)
    assert engine.is_independent
    assert engine.backend.shapes == ProductShapes(16, 1024)
    together = generate(engine, requests_of(5))
    for request, completion in zip(requests_of(5), together, strict=True):
        assert bits(generate(engine, [request])[0]) == bits(completion)


def test_where_they_depend_on_more_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    engine = dependent(tiny_model(), monkeypatch, is_dependent=lambda rows: chance.random())
    assert not engine.is_independent


def test_it_is_tried_on_this_model_and_takes_no_more_than_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, honest = [], independence._try
    monkeypatch.setattr(independence, "_found", {})
    monkeypatch.setattr(independence, "_try", lambda *given: tried.append(given) or honest(*given))
    for shape in ("gpt2", "gpt2", "llama"):
        assert build_engine("native", tiny_model(shape), end_ids=()).is_independent
    assert len(tried) == 2  # once for each kind of products


def test_what_takes_long_while_an_engine_is_built_is_said_meanwhile(monkeypatch, caplog) -> None:
    with saying_if_slow("never said", backends.log):
        pass
    monkeypatch.setattr(slow_work, "SLOW_SECONDS", 0.0)
    deadline = time.monotonic() + 60.0
    with saying_if_slow("kernels are compiled", backends.log):
        while not caplog.messages:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert caplog.messages == ["kernels are compiled"]


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_two_requests_of_one_name_are_refused_and_nothing_is_left(kind: str) -> None:
    engine = build_engine(kind, tiny_model(), end_ids=())
    twice = [Request("a", (1,), seed, Sampling(max_new_tokens=3)) for seed in (0, 1)]
    with pytest.raises(SettingError, match="there is a request 'a' already"):
        generate(engine, twice)
    assert len(generate(engine, twice[:1])) == len(generate(engine, twice[1:])) == 1


def test_requests_of_one_group_with_other_prompts_each_have_their_own() -> None:
    engine = build_engine("native", tiny_model(), end_ids=())
    sampling = Sampling(max_new_tokens=5)
    one, other = (Request(name, tokens, 3, sampling, group="g") for name, tokens in (("a", (1, 2)), ("b", (5, 6, 7))))
    together = [bits(completion) for completion in generate(engine, [one, other])]
    assert together == [bits(generate(engine, [request])[0]) for request in (one, other)]


def test_the_budget_holds_for_few_long_ones_after_many_short_ones_and_for_two_versions() -> None:
    budget = 2_000
    engine = build_engine("native", tiny_model(), end_ids=(), slots=48, cache_tokens=budget)
    short = [Request(f"s{n}", (1,), n, Sampling(max_new_tokens=4)) for n in range(48)]
    long = [Request(f"l{n}", (1,), n, Sampling(max_new_tokens=60), version=1) for n in range(4)]
    for request in short:
        engine.submit(request)
    engine.step()
    engine.load(tiny_model().state_dict(), 1)
    for request in long:
        engine.submit(request)
    served: set[str] = set()
    while len(served) < 52:
        served |= {progress.id for progress in engine.step() if progress.finish_reason is not None}
        assert engine.cache_tokens <= budget
    with pytest.raises(SettingError, match="takes 256 tokens"):
        build_engine("native", tiny_model(), end_ids=(), cache_tokens=200).submit(short[0])


def test_a_step_does_not_look_at_all_that_wait() -> None:
    engine = build_engine("native", tiny_model(), end_ids=(), slots=1)
    for number in range(200):
        engine.submit(Request(str(number), (1,), number, Sampling(max_new_tokens=50)))

    class Unread(deque):
        def __iter__(self):
            raise AssertionError("a step went through all that wait")

    engine._waiting = Unread(engine._waiting)
    for _ in range(120):
        engine.step()
