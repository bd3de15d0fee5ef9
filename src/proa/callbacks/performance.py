"""The throughput of trainer and makers, and how they spend their time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ..data.experience import Experience
from ..data.trajectories import Trajectories
from ..lifecycle.current import current_state
from ..lifecycle.hooks import MakerCallback, TrainerCallback
from ..lifecycle.policy import ErrorPolicy, Priority


@dataclass(frozen=True)
class Performance:
    """Throughput, arithmetic rate, and the share of time in each activity; printing it gives a summary."""

    role: str
    seconds: float
    samples: int
    tokens: int
    flop: float
    shares: dict[str, float]

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tflops(self) -> float:
        """10¹² floating-point operations per second over the whole time, including waits."""
        return self.flop / self.seconds / 1e12 if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For the run's header."""
        return {
            "role": self.role,
            "seconds": self.seconds,
            "samples": self.samples,
            "tokens": self.tokens,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "tflops": self.tflops,
            "shares": dict(self.shares),
        }

    def __str__(self) -> str:
        if not self.samples:
            return f"{self.role} performance: nothing measured (warm-up is left out)"
        shares = ", ".join(f"{name} {share:.1%}" for name, share in self.shares.items())
        return (
            f"{self.role} performance over {self.seconds:.1f} s: {self.samples_per_second:.1f} samples/s, "
            f"{self.tokens_per_second:.0f} tokens/s, {self.tflops:.3g} TFLOP/s; time {shares}"
        )


def measured_performance(callbacks: Iterable[object]) -> Performance | None:
    """What an evaluator among the callbacks of one actor has measured; of several, the last one."""
    kinds = (TrainerPerformanceEvaluator, ExperienceMakerPerformanceEvaluator)
    evaluators = [callback for callback in callbacks if isinstance(callback, kinds)]
    return next((one.performance for one in reversed(evaluators) if one.performance is not None), None)


class TrainerPerformanceEvaluator(TrainerCallback):
    """Measures a trainer: samples/s, tokens/s, TFLOP/s; time training, updating makers, waiting for experience.

    The first `ignore_first_episodes` episodes are warm-up and left out. A forward pass is taken as 2 FLOP
    per parameter and token, a backward pass as 4, recomputation under gradient checkpointing as 2 more.
    """

    priority = Priority.METRICS
    error_policy = ErrorPolicy.DISABLE
    all_ranks = True

    def __init__(
        self,
        actor_num_params: int,
        critic_num_params: int = 0,
        enable_grad_checkpoint: bool = False,
        ignore_first_episodes: int = 1,
        *,
        verbose: bool = True,
    ) -> None:
        passes = 8 if enable_grad_checkpoint else 6
        self._flop_per_token = passes * (actor_num_params + critic_num_params)
        self._ignored = ignore_first_episodes
        self._verbose = verbose
        self._watch = _Stopwatch("training", "updating", "waiting")
        self.performance: Performance | None = None
        """Of the whole run, once it has ended."""

    def on_fit_start(self) -> None:
        self.performance = None
        self._watch.reset()

    def on_episode_end(self, episode: int) -> None:
        if episode < self._ignored:
            self._watch.reset()

    def on_wait_start(self) -> None:
        self._watch.start("waiting")

    def on_wait_end(self, seconds: float) -> None:
        self._watch.stop("waiting")

    def on_batch_start(self) -> None:
        self._watch.start("training")

    def on_batch_end(self, metrics: dict[str, Any], experience: Experience) -> None:
        self._watch.stop("training")
        if experience is not None:
            self._watch.count(experience, self._flop_per_token)

    def on_update_start(self) -> None:
        self._watch.start("updating")

    def on_update_end(self) -> None:
        self._watch.stop("updating")

    def on_fit_end(self) -> None:
        self.performance = self._watch.performance("trainer")
        if self._verbose:
            print(self.performance)


class ExperienceMakerPerformanceEvaluator(MakerCallback):
    """Measures a maker: samples/s, tokens/s, TFLOP/s; time making experience, sending it, and the rest.

    Generation with a cache reads each token once: 2 FLOP per parameter and token, and the same for each
    further model that scores it.
    """

    priority = Priority.METRICS
    error_policy = ErrorPolicy.DISABLE
    per_maker = True

    def __init__(
        self,
        actor_num_params: int,
        critic_num_params: int = 0,
        initial_model_num_params: int = 0,
        reward_model_num_params: int = 0,
        *,
        ignore_first_batches: int = 1,
        verbose: bool = True,
    ) -> None:
        self._flop_per_token = 2 * (
            actor_num_params + critic_num_params + initial_model_num_params + reward_model_num_params
        )
        self._ignored = ignore_first_batches
        self._verbose = verbose
        self._batches = 0
        self._watch = _Stopwatch("making", "sending")
        self.performance: Performance | None = None
        """Of one maker; in a run, `actor_copies` has each of them."""

    def on_loop_start(self) -> None:
        self.performance = None
        self._batches = 0
        self._watch.reset()

    def on_make_experience_start(self) -> None:
        self._watch.start("making")

    def on_make_experience_end(self, experience: Experience) -> None:
        state = current_state()
        self._watch.stop("making", seconds=getattr(state, "making_seconds", None))
        self._watch.count(experience, self._flop_per_token)

    def on_send_start(self) -> None:
        self._watch.start("sending")

    def on_send_end(self) -> None:
        self._watch.stop("sending")

    def on_batch_end(self) -> None:
        self._batches += 1
        if self._batches <= self._ignored:
            self._watch.reset()

    def on_loop_end(self) -> None:
        self.performance = self._watch.performance("maker")
        if self._verbose:
            print(self.performance)


@dataclass
class _Stopwatch:
    """Time by activity since the last reset, with the samples and tokens processed."""

    activities: tuple[str, ...]
    since: float = 0.0
    samples: int = 0
    tokens: int = 0
    flop: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def __init__(self, *activities: str) -> None:
        self.activities = activities
        self.reset()

    def reset(self) -> None:
        self.since = perf_counter()
        self.samples = self.tokens = 0
        self.flop = 0.0
        self.seconds = dict.fromkeys(self.activities, 0.0)
        self.started = {}

    def start(self, activity: str) -> None:
        self.started[activity] = perf_counter()

    def stop(self, activity: str, seconds: float | None = None) -> None:
        """Count the time since it was started; or so many seconds, if it was done before."""
        begun = self.started.pop(activity, None)
        if begun is not None:
            self.seconds[activity] += perf_counter() - begun if seconds is None else seconds

    def count(self, experience: Experience, flop_per_token: float) -> None:
        mask = experience.attention_mask
        tokens = experience.sequences.numel() if mask is None else int(mask.sum())
        self.samples += len(Trajectories(experience))
        self.tokens += tokens
        self.flop += flop_per_token * tokens

    def performance(self, role: str) -> Performance:
        total = perf_counter() - self.since
        shares = {name: seconds / total if total else 0.0 for name, seconds in self.seconds.items()}
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        return Performance(role, total, self.samples, self.tokens, self.flop, shares)
