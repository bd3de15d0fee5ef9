"""Statistics of experiments: intervals, paired comparisons, rankings, and conclusions in sentences.

Pure functions of plain values. Importing this does not load torch; numpy and scipy are loaded on first use.
"""

from .comparison import Comparison
from .conclusions import conclusion, without_metric
from .evals import mean_at_k, pass_at_k, summarise, task_means
from .intervals import Estimate, estimate
from .pairwise import compare
from .ranking import Best, rank_arms
from .runs import ArmScores, compare_runs

__all__ = [
    "ArmScores",
    "Best",
    "Comparison",
    "Estimate",
    "compare",
    "compare_runs",
    "conclusion",
    "estimate",
    "mean_at_k",
    "pass_at_k",
    "rank_arms",
    "summarise",
    "task_means",
    "without_metric",
]
