"""Evals in the loop: on the trainer's weights after a step, with an engine of their own, while the makers continue."""

from __future__ import annotations

from ..config import RunConfig
from ..config.eval_section import EvalSection
from ..data.state import LoopState
from ..loop import Evaluator, Scoring
from ..loop.evaluators import Participant
from ..policy.trainable import Trainable
from ..record.run_record import RunRecord
from .evaluation import build_eval, weights_version
from .given_eval import GivenEval
from .scoring import At, Scored, WeightsScoring


class PolicyEvaluator(Evaluator):
    """An eval as configured: a benchmark, or a function of the user's own that is given the policy.

    What is wrong with it is found when it is built; `record` is set before the first step.
    """

    def __init__(
        self, section: EvalSection, config: RunConfig, policy: Trainable, given: GivenEval | None = None
    ) -> None:
        super().__init__(section.name, section.run_every, baseline=section.baseline, apart=section.apart)
        self._config = config
        self._eval = build_eval(section, config, policy, given)
        self.record: RunRecord | None = None

    def begin(self, state: LoopState) -> RecordedScoring:
        steps = state.global_step
        assert self.record is not None, "evals come while it trains"
        return RecordedScoring(self._eval.begin(At(steps, weights_version(self._config, steps))), self.record)


class RecordedScoring(Scoring):
    """One eval of weights that were taken, which goes to the run's record."""

    def __init__(self, scoring: WeightsScoring, record: RunRecord) -> None:
        self._scoring = scoring
        self._record = record
        self._scored: Scored | None = None

    def score(self) -> dict[str, float]:
        self._scored = self._scoring.score()
        return self._scored.result.metrics

    def report(self) -> None:
        assert self._scored is not None, "it was scored before"
        self._record.report_eval(self._scored.result, self._scored.predictions)


class EvalParticipant(Participant):
    """An eval as other ranks than the first see it."""

    def __init__(self, section: EvalSection, policy: Trainable) -> None:
        super().__init__(section.name, section.run_every, baseline=section.baseline)
        self._policy = policy

    def take_part(self) -> None:
        self._policy.gathered()
