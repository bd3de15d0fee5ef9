"""`Experiment`: carries out planned runs, fires hooks, and compares the results."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..actors.interruption import Interruption
from ..callbacks import build_callback
from ..config import ConfigError, ExperimentConfig, load_experiment_config
from ..data.results import ArmResult, ExperimentResult, LogContext, Status
from ..errors import NotPortableError
from ..lifecycle.failures import note_failure
from ..lifecycle.hooks import BaseCallback, Callback
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.moments import EventName
from ..lifecycle.placement import check_portable
from ..lifecycle.roles import callback_list
from ..record.checkpoints import CheckpointManager
from ..record.durable import Disk
from ..record.run_folder import RunFolderError, json_text, read_json
from ..record.run_lock import lock
from ..record.secrets import remember
from ..resume.configuration import LENGTH, config_changes, saved_config
from ..run.checks import check_portable_algorithm
from ..run.experiment_result import summarise
from ..terminal import tolerate_lost_output
from ..visible import show_details
from .arm_run import ArmRun, GivenCallbacks, unreached
from .checking import check_arms
from .concurrent import run_concurrently
from .plan import Chain, PlannedRun, compared, plan
from .same_inputs import differing_inputs
from .saved_result import arm_dict, load_arm

log = logging.getLogger("proa.experiments")

EXPERIMENT_NAME = "experiment.json"
LOCK_SECONDS = 1.0  # `proa show` may hold the lock for a moment


class Experiment:
    """Arms times repeats, or stages, each a run of its own, compared at the end.

    Running it again skips what is complete and resumes what was cut off. `report` is called after each run; without it
    a line about each is logged.
    """

    def __init__(
        self,
        config: ExperimentConfig | Mapping[str, Any] | Path | str,
        callbacks: Callbacks = None,
        *,
        report: Callable[[ArmResult], None] | None = None,
    ) -> None:
        if isinstance(config, Mapping):
            config = load_experiment_config(None, **config)
        elif not isinstance(config, ExperimentConfig):
            config = load_experiment_config(config)
        if config.arms_on == "ray":  # workers may have another working directory
            config = config.model_copy(update={"output_dir": config.output_dir.resolve()})
        remember(config.model_dump(mode="json"))
        self.config = config
        self.plan = plan(config)
        self._given: GivenCallbacks = (
            callbacks if isinstance(callbacks, CallbackManager) else tuple(callback_list(callbacks or ()))
        )
        CallbackManager.split(self._given)  # refuses a function whose event nobody can tell
        self._report = report
        self._managers: list[CallbackManager] = []
        self._arms: dict[str, ArmResult] = {}
        self._announced_groups: set[str] = set()
        self._result = ExperimentResult(config.name, "running", hypothesis=config.metadata.hypothesis)
        if config.max_concurrent_arms > 1:
            _check_portable(self._given)
            _check_portable_algorithms(config, self.plan)

    def run(self) -> ExperimentResult:
        """Carry out the remaining runs and return the result of all."""
        config = self.config
        ctx = LogContext(config.folder, config)
        self._arms, self._announced_groups = {}, set()
        self._result = ExperimentResult(config.name, "running", hypothesis=config.metadata.hypothesis)
        if self._report is None and any(run.config.progress for chain in self.plan for run in chain):
            show_details(log)
        interruption = Interruption(grace=float("inf"))  # each run has a grace period of its own
        with lock(config.folder, LOCK_SECONDS), tolerate_lost_output(), interruption.listening():
            if (config.folder / "run.json").exists():
                raise RunFolderError(
                    f"{config.folder} is the folder of a run: give the experiment another name or output_dir"
                )
            for chain in self.plan:
                self._skip_complete(chain)
            if config.arms_on != "ray":  # names may exist only on the machines of the cluster
                check_arms(config, self.left)
            self._managers = self._build_managers()
            with self._hooks(ctx):
                if config.max_concurrent_arms > 1:
                    run_concurrently(self, ctx, interruption)
                else:
                    for chain in self.plan:
                        self._run_chain(chain, ctx, interruption)
        return self._result

    # -- one after the other -------------------------------------------------------------------------

    def _run_chain(self, chain: Chain, ctx: LogContext, interruption: Interruption) -> None:
        """Carry out a chain's runs in order; the first failure ends it."""
        failed: ArmResult | None = None
        for run in chain:
            if run.key in self._arms:  # already complete
                continue
            if failed is not None:
                self.note(unreached(run, failed))
                continue
            interruption.check()
            self.announce_group(run, ctx)
            ctx.ids.pop("run_id", None)
            arm = self._carry_out(ArmRun(self.config, run, self._given, ctx.ids), interruption)
            self.note(arm)
            failed = arm if arm.status != "completed" else None
        interruption.check()

    def _carry_out(self, arm_run: ArmRun, interruption: Interruption) -> ArmResult:
        try:
            return arm_run.carry_out(interruption)
        except BaseException:
            if arm_run.arm is not None:
                self.note(arm_run.arm)
            raise

    def announce_group(self, run: PlannedRun, ctx: LogContext) -> None:
        """Fire `group_start`, once, just before the group's first run."""
        if run.group is not None and run.group not in self._announced_groups:
            self._fire("group_start", ctx, run.group)
            self._announced_groups.add(run.group)

    def note(self, arm: ArmResult) -> None:
        """Record and report a run that has ended."""
        self._arms[arm.name] = arm
        if arm.status == "failed":
            log.warning("%s failed: %s", arm.name, arm.error)
        self._write()
        if self._report is not None:
            self._report(arm)
        elif arm.status != "failed":
            names = [name for name in arm.metric_names() if not name.endswith("completion_tokens")]
            scores = [f"{name} {value:.4g}" for name in names[:3] if (value := arm.score(name)) is not None]
            log.info("%s: %s", arm.name, ", ".join([arm.status, *scores]))

    def is_done(self, run: PlannedRun) -> bool:
        return run.key in self._arms

    @property
    def given(self) -> GivenCallbacks:
        """The user's callbacks."""
        return self._given

    @property
    def left(self) -> list[Chain]:
        """Chains with remaining runs."""
        return [chain for chain in self.plan if any(run.key not in self._arms for run in chain)]

    # -- completed runs ------------------------------------------------------------------------------

    def _skip_complete(self, chain: Chain) -> None:
        for run in chain:
            header = run.config.folder / "run.json"
            if not header.exists():
                return
            _check_same_run(run)
            arm = load_arm(run, self.config.metadata.benchmark)
            if read_json(header).get("status") != "completed" or arm is None or arm.status != "completed":
                return
            self._arms[run.key] = arm

    # -- hooks and record ----------------------------------------------------------------------------

    def _build_managers(self) -> list[CallbackManager]:
        """The managers for hooks of the experiment and its groups: the user's callbacks themselves, and one instance
        of each factory and configured kind. Each run makes instances of its own."""
        configured = [build_callback(section.model_dump()) for section in self.config.callbacks]
        own = CallbackManager([one for one in configured if isinstance(one, Callback)])
        if isinstance(self._given, CallbackManager):
            return [self._given, own]
        given, others = CallbackManager.split(self._given)
        for one in others:
            if not isinstance(one, BaseCallback) or isinstance(one, Callback):
                own.add(one)
        return [own] if given is None else [given, own]

    def _fire(self, event: EventName, *payload: Any) -> None:
        """Fire in all managers, also if a hook in one of them raises."""
        with ExitStack() as others:
            for manager in reversed(self._managers):
                others.callback(manager.fire, event, *payload)

    @contextmanager
    def _hooks(self, ctx: LogContext) -> Iterator[None]:
        """Fire `experiment_start`, and in any case `experiment_end` with the results so far."""
        try:
            self._write()
            self._fire("experiment_start", ctx)
            yield
        except BaseException as error:
            try:
                self._end(ctx, "failed" if isinstance(error, Exception) else "cancelled")
            except Exception as late:
                note_failure(error, "also failed", late)
            raise
        failed = any(arm.status != "completed" for arm in self._arms.values())
        self._end(ctx, "failed" if failed else "completed")

    def _end(self, ctx: LogContext, status: Status) -> None:
        result = self._result
        result.status = status
        result.experiment_id = str(ctx.ids.get("experiment_id", self.config.name))
        with ExitStack() as always:  # last in, first out
            always.callback(self._write)
            always.callback(self._fire, "experiment_end", ctx, result)
            result.arms = self._ordered_arms()
            arm_names = {run.key: run.arm for chain in self.plan for run in chain}
            summarise(result, result.arms, arm_names, self.config, compared(self.plan))
            for line in differing_inputs(result.arms):
                log.warning("%s", line)
                result.conclusion = f"{result.conclusion} Beware: {line}."

    def _ordered_arms(self) -> list[ArmResult]:
        return [self._arms[run.key] for chain in self.plan for run in chain if run.key in self._arms]

    def _write(self) -> None:
        result = self._result
        content = {
            "name": result.name,
            "status": result.status,
            "config": self.config.model_dump(mode="json"),
            "runs": [
                {"key": run.key, "arm": run.arm, "group": run.group, "seed": run.seed}
                for chain in self.plan
                for run in chain
            ],
            "compared": compared(self.plan),
            "best_arm": result.best_arm,
            "best_score": result.best_score,
            "conclusion": result.conclusion,
            "hypothesis": result.hypothesis,
            "groups": {name: group.as_dict() for name, group in result.groups.items()},
            "arms": [arm_dict(arm) for arm in self._ordered_arms()],
        }
        Disk().replace_file(self.config.folder / EXPERIMENT_NAME, json_text(content, stringify=True).encode("utf-8"))


def _check_same_run(run: PlannedRun) -> None:
    """Raise if the existing run has another configuration. One without a checkpoint may be corrected."""
    if not CheckpointManager(run.config.folder).rows:
        return
    try:
        changes = config_changes(saved_config(run.config.folder), run.config)
        if LENGTH in changes:  # arms that are complete would stay as short as they are
            raise ConfigError("total_steps was {} and is {}".format(*changes[LENGTH]))
    except ConfigError as error:
        raise ConfigError(f"{run.config.folder} belongs to another experiment: {error}") from None


def _check_portable(given: GivenCallbacks) -> None:
    """Raise if the callbacks cannot be used in the processes of concurrent runs."""
    if isinstance(given, CallbackManager) or any(isinstance(one, BaseCallback | CallbackManager) for one in given):
        raise ConfigError(
            "with max_concurrent_arms above 1 each run has its own process, which an instance of a callback cannot "
            "reach: give a factory, e.g. the class itself, which makes one for each run"
        )
    check_portable(given)
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "with max_concurrent_arms above 1 each run's process imports this script again: put the code that runs "
            "the experiment under if __name__ == '__main__':"
        )


def _check_portable_algorithms(config: ExperimentConfig, chains: Sequence[Chain]) -> None:
    """Raise if an arm's algorithm was given as an object that cannot be sent to the run's process."""
    dumps: Callable[[Any], bytes] = pickle.dumps
    if config.arms_on == "ray":
        from ..runtime.ray.cluster import pickled as dumps  # ray is optional
    for run in (chain[0] for chain in chains):
        try:
            check_portable_algorithm(run.config, dumps)
        except NotPortableError as error:
            raise NotPortableError(f"arm {run.arm}: {error}") from None
