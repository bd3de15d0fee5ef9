"""From conversations to what is trained: every sampled token once, every trajectory in the ledger once, whatever was
said between the turns, however they ended, and whatever became of the makers."""

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.leases.honest_makers import plan, prompt

from proa.actors.waiting import ClosedError
from proa.algorithms import GRPO
from proa.data.experience import merge
from proa.data.facts import ENDINGS, OWN_ENDINGS, TrajectoryFacts
from proa.data.lease import Delivery
from proa.data.sampling import Completion, Sampling
from proa.data.trajectories import Trajectories, split_samples
from proa.learning.group_filter import GroupFilter
from proa.leases.book import LeaseBook
from proa.rewards.score import Score
from proa.rollouts.sample import Sample, Turn

SAMPLING = Sampling(group_size=2, max_new_tokens=8)


@dataclass(frozen=True)
class Told:
    """What came between two turns."""

    rewrites: bool
    """Whether the template says of what was before something else now."""
    tokens: int
    """That the environment said."""


@dataclass(frozen=True)
class Talk:
    """A conversation: how many tokens the model says in each turn, what it is told after it, how all ends."""

    turns: tuple[tuple[int, Told], ...]
    ending: str


tellings = st.builds(Told, st.booleans(), st.integers(0, 3))
talks = st.builds(
    Talk,
    st.lists(st.tuples(st.integers(1, 3), tellings), max_size=4).map(tuple),
    st.sampled_from([*OWN_ENDINGS, *ENDINGS]),
)


def sample_of(one, index, seed, version, talk):
    """The trajectory of a talk. Each token that it samples is another: its number says where it is from."""
    turns, context, first = [], one.tokens, 1_000 * (2 * one.ordinal + index) + 10
    for said, told in talk.turns:
        tokens = tuple(range(first, first + said))
        first += said
        completion = Completion(torch.tensor(tokens), torch.full((said,), -0.5), "stop")
        turns.append(Turn(context, completion, version, "", reward=0.25))
        new = tuple([5] * told.tokens)
        # What a template rewrote begins as before: the prompt, without some of what was said.
        context = (*context[: len(one.tokens)], 6, *new) if told.rewrites else (*context, *tokens, *new)
    is_own = talk.ending in OWN_ENDINGS and turns
    facts = TrajectoryFacts(talk.ending, turns=len(turns), turn_rewards=tuple(turn.reward for turn in turns))
    score = Score(float((one.ordinal * 31 + index) % 5)) if is_own else Score(None, applies=False)
    return Sample(one, index, seed, tuple(turns), score=score, facts=facts, error=None if is_own else "it failed")


def sampled(sample):
    return [token for turn in sample.turns for token in turn.completion.tokens.tolist()]


class Maker:
    """Makes leases of talks in a thread of its own; what becomes of each delivery, a script says."""

    def __init__(self, book, own, script):
        self.book, self.own, self.script, self.made = book, own, iter(script), {}
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        with suppress(ClosedError):
            while True:
                lease, fate = self.book.next_lease("maker"), next(self.script, 0)
                if fate == 1:  # it is lost on the way, and made again
                    self.book.release(lease.id, "maker")
                    continue
                delivery = Delivery(lease.id, tuple(self.rows(lease)))
                self.book.deliver(delivery, "maker")
                if fate == 2:  # it comes twice
                    self.book.deliver(delivery, "maker")

    def rows(self, lease):
        for one, seeds in zip(lease.prompts, lease.seeds, strict=True):
            for index, seed in enumerate(seeds):
                talk = self.own[(2 * one.ordinal + index) % len(self.own)]
                self.made[f"{one.ordinal}/{index}"] = sample = sample_of(one, index, seed, lease.version, talk)
                yield from sample.rows(SAMPLING)


@given(st.lists(talks, min_size=1, max_size=12), st.lists(st.integers(0, 3), max_size=60), st.sampled_from([1, 2, 4]))
def test_what_was_sampled_is_trained_once_and_each_trajectory_is_in_the_ledger_once(own, script, lease_prompts):
    the = plan(lease_prompts=lease_prompts)
    book = LeaseBook(the, prompt, filter_group=GroupFilter(GRPO()).filter, wait_timeout=20.0)
    maker = Maker(book, own, script)
    trained: list[str] = []
    for episode in range(the.total_steps // the.update_steps):
        book.start_episode(episode)
        for _ in range(the.update_steps):
            items = book.take_step()
            trained += check_step(items, maker.made)
            book.settle(items)
            assert book.ledger.closes
    book.close("done")
    ledger = book.ledger.as_dict()
    assert len(set(trained)) == len(trained) == ledger["trained"]
    assert ledger["leased"] == ledger["trained"] + sum(ledger["dropped"].values())
    assert {name for name in ledger["dropped"] if name in ENDINGS} <= {*ENDINGS} - {*OWN_ENDINGS}
    # Each that was taken from the buffer is in the ledger under the way in which it ended.
    ended = Counter(maker.made[f"{ordinal}/{index}"].facts.ending for ordinal in range(24) for index in range(2))
    for ending in {*ENDINGS} - {*OWN_ENDINGS}:
        assert ledger["dropped"].get(ending, 0) >= ended[ending]


def check_step(items, made):
    """The tokens that count in a step are those that were sampled for its trajectories, each once."""
    if not items:
        return []
    experience = merge(items)
    counted = experience.sequences[:, -experience.action_mask.shape[1] :][experience.action_mask].tolist()
    uids = [rows[0].uid for rows in split_samples(items)]
    assert sorted(counted) == sorted(token for uid in uids for token in sampled(made[uid]))
    assert len(set(counted)) == len(counted)
    assert len(Trajectories(experience).rows) == len(uids)
    return uids
