"""What the scores of experiments say, and what they do not: intervals, paired comparisons, rankings, sentences.

Functions of plain values. Importing this loads no torch, and numpy and scipy only when something is computed.
"""

from .comparison import Comparison, compare
from .evals import mean_at_k, pass_at_k, summarise, task_means
from .intervals import Estimate, estimate
from .ranking import Best, best_of
from .runs import ArmScores, compare_runs
from .words import conclusion, without_metric

__all__ = [
    "ArmScores",
    "Best",
    "Comparison",
    "Estimate",
    "best_of",
    "compare",
    "compare_runs",
    "conclusion",
    "estimate",
    "mean_at_k",
    "pass_at_k",
    "summarise",
    "task_means",
    "without_metric",
]
