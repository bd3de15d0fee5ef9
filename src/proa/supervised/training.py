"""What supervised recipes share: the seeded order of batches, the step on pairs, scores of held-out pairs, the loop."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Generic, TypeAlias, TypedDict, TypeVar, Unpack

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.loop import TrainingBatch
from ..data.state import LoopState
from ..errors import SettingError
from ..learning.gradients import show_gradients
from ..learning.optimizer import Optimizer, OptimizerSettings
from ..lifecycle.manager import Callbacks
from ..loop import Evaluator, Saver, Scoring, SupervisedLoop
from ..loop.supervised import TrainingStep
from ..maths.preferences import PreferenceLoss
from ..model_shape import context_length
from ..numerics import Numerics
from ..policy.measuring import measuring
from ..policy.micro_batches import plan_micro_batches
from ..tasks.overlong import Overlong, leave_out_overlong, say_cut
from ..tasks.preferences import PreferencePair, TokenisedPair, tokenise_pair


class SupervisedError(SettingError):
    """A supervised recipe cannot run with these settings."""


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Which rows make up each batch, determined by the seed and the epoch alone.

    An epoch is `steps` batches; each pass over the rows within it is a new permutation, and the rows that one pass
    leaves over begin the next batch. So with `steps` None, which is one pass, each row is drawn at least once.

    >>> order = BatchOrder(rows=5, batch_size=2, steps=None, epochs=2, seed=0)
    >>> order.steps_per_epoch, order.total_steps, list(order.epoch(0))
    (3, 6, [[4, 0], [1, 3], [2, 3]])
    """

    rows: int
    batch_size: int
    steps: int | None
    epochs: int
    seed: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise SupervisedError("there is nothing to learn from: not one row")
        for name, value in (("steps", self.steps), ("batch_size", self.batch_size), ("epochs", self.epochs)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SupervisedError(f"{name} must be a whole number, at least 1, not {value!r}")

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.rows / self.batch_size) if self.steps is None else self.steps

    @property
    def total_steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def epoch(self, epoch: int) -> Iterator[list[int]]:
        """The rows of each batch of an epoch."""
        generator = torch.Generator().manual_seed(_epoch_seed(self.seed, epoch))
        order: list[int] = []
        for _ in range(self.steps_per_epoch):
            while len(order) < self.batch_size:
                order += torch.randperm(self.rows, generator=generator).tolist()
            yield order[: self.batch_size]
            order = order[self.batch_size :]

    def drawn(self) -> list[int]:
        """All rows that occur in some batch, in ascending order."""
        if self.steps_per_epoch * self.batch_size >= self.rows:
            return list(range(self.rows))
        return sorted({row for epoch in range(self.epochs) for rows in self.epoch(epoch) for row in rows})


def check_context(model: PreTrainedModel, max_length: int | None) -> int | None:
    """The most tokens of a sequence: `max_length`, or the model's context, which it must not exceed."""
    context = context_length(model.config)
    if max_length is None or context is None:
        return max_length if context is None else context
    if max_length > context:
        raise SupervisedError(f"max_length={max_length} is more than the model's context of {context} tokens")
    return max_length


def make_optimizer(model: PreTrainedModel, given: OptimizerSettings | Optimizer | None, order: BatchOrder) -> Optimizer:
    """An optimizer of the parameters that require gradients, or the one that was given."""
    if isinstance(given, Optimizer):
        return given
    return Optimizer(model.named_parameters(), given or OptimizerSettings(), order.total_steps)


class SupervisedStep(ABC):
    """One optimizer step on a batch: its gradients, which hooks of the loop may look at, then the update."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.loop: SupervisedLoop | None = None
        """The loop that takes the step."""

    @abstractmethod
    def find_gradients(self, batch: TrainingBatch) -> dict[str, float]:
        """Give the optimizer the gradients of the whole batch; returns metrics, `loss` among them."""

    def __call__(self, batch: TrainingBatch) -> dict[str, float]:
        self.optimizer.zero_grad()
        found = self.find_gradients(batch)
        if self.loop is not None:
            show_gradients(self.loop.manager, self.loop.state, self.optimizer.gradients)
        outcome = self.optimizer.step(math.isfinite(found["loss"]))
        updated = {"grad_norm": outcome.grad_norm, "learning_rate": outcome.learning_rate}
        return found | updated | ({"skipped": 1.0} if outcome.skipped else {})


ReportScores: TypeAlias = Callable[[str, dict[str, float], float], None]
"""Called with the name of an eval, its scores, and how many seconds it took."""

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class HeldOut(Generic[Data]):
    """Data to evaluate on: before the first step, every `run_every` steps and at the end."""

    data: Data
    name: str = "held_out"
    run_every: int = 0
    baseline: bool = True
    report: ReportScores | None = None

    def evaluator(self, score: Callable[[], dict[str, float]]) -> Evaluator:
        return HeldOutEvaluator(self.name, score, self.run_every, baseline=self.baseline, report=self.report)


class HeldOutEvaluator(Evaluator):
    """Scores held-out data without generating."""

    def __init__(
        self,
        name: str,
        function: Callable[[], dict[str, float]],
        run_every: int,
        *,
        baseline: bool,
        report: ReportScores | None,
    ) -> None:
        super().__init__(name, run_every, baseline=baseline)
        self.function = function
        self.report = report

    def begin(self, state: LoopState) -> Scoring:
        return HeldOutScoring(self)


class HeldOutScoring(Scoring):
    """One eval of held-out data, timed."""

    def __init__(self, evaluator: HeldOutEvaluator) -> None:
        self._evaluator = evaluator
        self._scores: dict[str, float] = {}
        self._seconds = 0.0

    def score(self) -> dict[str, float]:
        began = perf_counter()
        self._scores = self._evaluator.function()
        self._seconds = perf_counter() - began
        return self._scores

    def report(self) -> None:
        if self._evaluator.report is not None:
            self._evaluator.report(self._evaluator.name, dict(self._scores), self._seconds)


class LoopOptions(TypedDict, total=False):
    """Options of the loop that every recipe passes on, as documented by `SupervisedLoop`."""

    callbacks: Callbacks
    evaluators: Sequence[Evaluator]
    saver: Saver | None
    output_dir: Path | str | None


def run_loop(
    step: SupervisedStep,
    batch: Callable[[list[int]], TrainingBatch],
    order: BatchOrder,
    evaluator: Evaluator | None,
    **options: Unpack[LoopOptions],
) -> LoopState:
    """Train in the given order, with the whole lifecycle around it; `batch` makes a batch from the numbers of its rows.

    `evaluator` comes after those in the options.
    """
    if evaluator is not None:
        options["evaluators"] = [*options.get("evaluators", ()), evaluator]
    loop = SupervisedLoop(_guard_numerics(step), **options)
    step.loop = loop
    saver = loop.saver
    if saver is not None and saver.resumed is not None:
        saver.restore()
        loop.load_state_dict(saver.resumed.state, saver.resumed.row)
    return loop.fit(lambda epoch: map(batch, order.epoch(epoch)), num_epochs=order.epochs, max_steps=order.total_steps)


def _guard_numerics(step: TrainingStep) -> TrainingStep:
    """A step that runs with torch's settings as the previous step left them, whatever callbacks changed since."""
    after_step: list[Numerics] = []

    def kept(batch: TrainingBatch) -> dict[str, float]:
        for numerics in after_step:  # none before the first step: settings of on_train_start are intended
            numerics.restore("a callback or an evaluator")
        metrics = step(batch)
        after_step[:] = [Numerics()]
        return metrics

    return kept


# -- pairs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Some pairs, and their places in the data. Both sides of a pair are always together."""

    places: tuple[int, ...]
    pairs: tuple[TokenisedPair, ...]

    def take(self, rows: Sequence[int]) -> PairBatch:
        return PairBatch(tuple(self.places[row] for row in rows), tuple(self.pairs[row] for row in rows))

    def micro_batches(self, token_budget: int) -> list[PairBatch]:
        """The same pairs in parts of at most `token_budget` tokens, padding included; a longer pair goes alone."""
        sides = [len(pair.prompt) + max(len(pair.chosen), len(pair.rejected)) for pair in self.pairs]
        return [self.take(rows) for rows in plan_micro_batches([2 * side for side in sides], token_budget)]


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """The losses of some pairs, and further numbers of each pair to report."""

    preference: PreferenceLoss
    more: Mapping[str, torch.Tensor]


PairLoss: TypeAlias = Callable[[PairBatch], PairOutcome]


def tokenise_pairs(
    pairs: Sequence[PreferencePair],
    places: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
    overlong: Overlong = "error",
    what: str = "preference pair",
) -> dict[int, TokenisedPair]:
    """The pairs at these places, by place; raises for one that cannot be used."""
    tokenised, cut = {}, 0
    for place in places:
        pair = tokenise_pair(
            pairs[place], tokenizer, max_length=max_length, overlong=overlong, where=f"{what} {place}"
        )  # fmt: skip
        tokenised[place] = pair
        cut += pair.is_cut
    say_cut(cut, len(places), f"{what}s")
    return tokenised


def fitting_pairs(
    pairs: Sequence[PreferencePair],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
    overlong: Overlong,
    what: str = "preference pair",
) -> Sequence[PreferencePair]:
    """The pairs, without those that are too long if `overlong` is `drop`."""
    if overlong != "drop":
        return pairs
    return leave_out_overlong(
        pairs,
        lambda place: tokenise_pair(pairs[place], tokenizer, max_length=max_length, where=f"{what} {place}"),
        f"{what}s",
    )


def held_out_pairs(
    pairs: Sequence[PreferencePair], tokenizer: PreTrainedTokenizerBase, max_length: int | None, overlong: Overlong
) -> dict[int, TokenisedPair]:
    """All pairs of an eval, by place."""
    fitting = fitting_pairs(pairs, tokenizer, max_length, overlong, "eval pair")
    return tokenise_pairs(fitting, range(len(fitting)), tokenizer, max_length, overlong, "eval pair")


def pair_batch(tokenised: Mapping[int, TokenisedPair], places: Sequence[int]) -> PairBatch:
    return PairBatch(tuple(places), tuple(tokenised[place] for place in places))


class PairStep(SupervisedStep):
    """A step on the mean loss over a batch's pairs, whatever its micro-batches."""

    def __init__(self, optimizer: Optimizer, loss_of: PairLoss, token_budget: int) -> None:
        super().__init__(optimizer)
        self._loss_of = loss_of
        self._token_budget = token_budget

    def find_gradients(self, batch: TrainingBatch) -> dict[str, float]:
        whole: PairBatch = batch.data
        sums: dict[str, float] = {}
        for micro in whole.micro_batches(self._token_budget):
            outcome = self._loss_of(micro)
            self.optimizer.backward(outcome.preference.loss_N.sum() / len(whole.pairs))
            for name, values_N in _pair_numbers(outcome).items():
                sums[name] = sums.get(name, 0.0) + float(values_N.sum())
        return {name: total / len(whole.pairs) for name, total in sums.items()}


def score_pairs(
    model: PreTrainedModel, batch: PairBatch, loss_of: PairLoss, token_budget: int
) -> dict[str, torch.Tensor]:
    """All numbers of all pairs, in any order, computed without gradients."""
    with measuring(model):
        parts = [_pair_numbers(loss_of(micro)) for micro in batch.micro_batches(token_budget)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def held_out_means(numbers: Mapping[str, torch.Tensor], names: Sequence[str]) -> dict[str, float]:
    """Means over the pairs whose margin is a number; `nan_pairs` counts the others, if there are any."""
    scored_N = ~numbers["margin"].isnan()
    means = {("eval_loss" if name == "loss" else name): float(numbers[name][scored_N].mean()) for name in names}
    missing = int((~scored_N).sum())
    return means | ({"nan_pairs": float(missing)} if missing else {})


def _pair_numbers(outcome: PairOutcome) -> dict[str, torch.Tensor]:
    preference = outcome.preference
    return {
        "loss": preference.loss_N.detach(),
        "accuracy": preference.correct_N,
        "margin": preference.margins_N,
        "chosen_reward": preference.chosen_rewards_N,
        "rejected_reward": preference.rejected_rewards_N,
        **{name: values_N.detach() for name, values_N in outcome.more.items()},
    }


def _epoch_seed(seed: int, epoch: int) -> int:
    if epoch == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/epoch/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # a generator takes 63 bits
