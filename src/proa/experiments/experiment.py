"""`Experiment`: carries a plan of runs out, tells callbacks of it, and says what came of it."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..actors.interruption import Interruption
from ..callbacks import build_callback
from ..config import ConfigError, ExperimentConfig, load_experiment_config
from ..data.results import ArmResult, ExperimentResult, LogContext, Status
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
from ..resume.resuming import config_changes, saved_config
from ..terminal import tolerate_lost_output
from .arm_run import ArmRun, unreached
from .checking import check_arms
from .concurrent import run_concurrently
from .plan import Chain, PlannedRun, compared, plan
from .same_inputs import other_inputs
from .saved_result import arm_dict, load_arm
from .summary import summarise

log = logging.getLogger("proa.experiments")

EXPERIMENT_NAME = "experiment.json"
LOOKED_AT_SECONDS = 1.0  # `proa show` looks at the lock, and may have it for a moment


class Experiment:
    """Arms times repeats, or stages, each a run of its own, compared at the end.

    Running it again skips what is complete and goes on with what was cut off.
    """

    def __init__(
        self,
        config: ExperimentConfig | Mapping[str, Any] | Path | str,
        callbacks: Callbacks = None,
        *,
        tell: Callable[[ArmResult], None] | None = None,
    ) -> None:
        if isinstance(config, Mapping):
            config = load_experiment_config(None, **config)
        elif not isinstance(config, ExperimentConfig):
            config = load_experiment_config(config)
        if config.arms_on == "ray":  # whose workers may have another working directory
            config = config.model_copy(update={"output_dir": config.output_dir.resolve()})
        remember(config.model_dump(mode="json"))
        self.config = config
        self.plan = plan(config)
        self._given = callbacks if isinstance(callbacks, CallbackManager) else tuple(callback_list(callbacks or ()))
        self._tell = tell or (lambda _: None)
        self._managers: list[CallbackManager] = []
        self._arms: dict[str, ArmResult] = {}
        self._groups_told: set[str] = set()
        self._result = ExperimentResult(config.name, "running", hypothesis=config.metadata.hypothesis)
        if config.max_concurrent_arms > 1:
            _refuse_what_stays(self._given)

    def run(self) -> ExperimentResult:
        """Carry out what is left to be done, and say what came of all of it."""
        config = self.config
        ctx = LogContext(config.folder, config)
        self._arms, self._groups_told = {}, set()
        self._result = ExperimentResult(config.name, "running", hypothesis=config.metadata.hypothesis)
        interruption = Interruption(grace=float("inf"))  # each run has a grace period of its own
        with lock(config.folder, LOOKED_AT_SECONDS), tolerate_lost_output(), interruption.listening():
            _refuse_a_runs(config.folder)
            for chain in self.plan:
                self._skip_complete(chain)
            if config.arms_on != "ray":  # whose machines may have what this one has not
                check_arms(config, self.left)
            self._managers = self._listening()
            with self._around(ctx):
                if config.max_concurrent_arms > 1:
                    run_concurrently(self, ctx, interruption)
                else:
                    for chain in self.plan:
                        self._run_chain(chain, ctx, interruption)
        return self._result

    # -- one after the other -------------------------------------------------------------------------

    def _run_chain(self, chain: Chain, ctx: LogContext, interruption: Interruption) -> None:
        """A chain's runs in order; the first that fails ends it."""
        failed: ArmResult | None = None
        for run in chain:
            if run.key in self._arms:  # complete already
                continue
            if failed is not None:
                self.note(unreached(run, failed))
                continue
            interruption.leave_if_asked()
            self.announce_group(run, ctx)
            ctx.ids.pop("run_id", None)
            arm = self._arm_run(run, ctx.ids, interruption)
            self.note(arm)
            failed = arm if arm.status != "completed" else None
        interruption.leave_if_asked()

    def _arm_run(self, run: PlannedRun, ids: dict[str, Any], interruption: Interruption) -> ArmResult:
        carried = ArmRun(self.config, run, self._given, ids)
        try:
            return carried.carry_out(interruption)
        except BaseException:
            if carried.arm is not None:
                self.note(carried.arm)
            raise

    def announce_group(self, run: PlannedRun, ctx: LogContext) -> None:
        """`group_start`, once, just before the group's first run."""
        if run.group is not None and run.group not in self._groups_told:
            self._fire("group_start", ctx, run.group)
            self._groups_told.add(run.group)

    def note(self, arm: ArmResult) -> None:
        """A run has ended."""
        self._arms[arm.name] = arm
        if arm.status == "failed":
            log.warning("%s failed: %s", arm.name, arm.error)
        self._write()
        self._tell(arm)

    def is_done(self, run: PlannedRun) -> bool:
        return run.key in self._arms

    @property
    def given(self) -> Any:
        """The callbacks that the user gave."""
        return self._given

    @property
    def left(self) -> list[Chain]:
        """Chains that have something left to be done."""
        return [chain for chain in self.plan if any(run.key not in self._arms for run in chain)]

    # -- what is complete already --------------------------------------------------------------------

    def _skip_complete(self, chain: Chain) -> None:
        for run in chain:
            header = run.config.folder / "run.json"
            if not header.exists():
                return
            _refuse_anothers(run)
            arm = load_arm(run, self.config.metadata.benchmark)
            if read_json(header).get("status") != "completed" or arm is None or arm.status != "completed":
                return
            self._arms[run.key] = arm

    # -- hooks and record ----------------------------------------------------------------------------

    def _listening(self) -> list[CallbackManager]:
        """Who hears of the experiment and its groups: what was given as it is, and one of each that is made; runs have
        ones of their own."""
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
        """All managers hear of it, also when a hook of one raises."""
        with ExitStack() as others:
            for manager in reversed(self._managers):
                others.callback(manager.fire, event, *payload)

    @contextmanager
    def _around(self, ctx: LogContext) -> Iterator[None]:
        """`experiment_start`, and whatever happens, `experiment_end` with what there is."""
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
        with ExitStack() as whatever_happens:  # last in, first out
            whatever_happens.callback(self._write)
            whatever_happens.callback(self._fire, "experiment_end", ctx, result)
            result.arms = self._in_order()
            arm_of = {run.key: run.arm for chain in self.plan for run in chain}
            summarise(result, result.arms, arm_of, self.config, compared(self.plan))
            for line in other_inputs(result.arms):
                log.warning("%s", line)
                result.conclusion = f"{result.conclusion} Beware: {line}."

    def _in_order(self) -> list[ArmResult]:
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
            "arms": [arm_dict(arm) for arm in self._in_order()],
        }
        Disk().replace_file(self.config.folder / EXPERIMENT_NAME, json_text(content, stringify=True).encode("utf-8"))


def _refuse_anothers(run: PlannedRun) -> None:
    """Raise if the run that is there was another one. One that came to no checkpoint may be corrected."""
    if not CheckpointManager(run.config.folder).rows:
        return
    try:
        config_changes(saved_config(run.config.folder), run.config)
    except ConfigError as error:
        raise ConfigError(f"{run.config.folder} is of another experiment: {error}") from None


def _refuse_a_runs(folder: Path) -> None:
    if (folder / "run.json").exists():
        raise RunFolderError(f"{folder} is the folder of a run: give the experiment another name or output_dir")


def _refuse_what_stays(given: Sequence[Any] | CallbackManager) -> None:
    """Each run has a process of its own."""
    if isinstance(given, CallbackManager) or any(isinstance(one, BaseCallback | CallbackManager) for one in given):
        raise ConfigError(
            "with max_concurrent_arms above 1 each run has a process of its own, where a callback's instance is not: "
            "give a factory, e.g. the class itself, which makes one for each run"
        )
    check_portable(given)
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "with max_concurrent_arms above 1 each run's process imports this script again: put what runs the "
            "experiment under if __name__ == '__main__':"
        )
