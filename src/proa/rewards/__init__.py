"""Rewards: functions that judge completions, run apart from training, with deadlines; errors are recorded as such."""

from .function import RewardError, RewardFunction, load_rewards
from .inline import InlineRewards
from .score import Score, Scorer
from .workers import RewardWorkers

__all__ = ["InlineRewards", "RewardError", "RewardFunction", "RewardWorkers", "Score", "Scorer", "load_rewards"]
