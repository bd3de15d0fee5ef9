"""The three families of callbacks, whose hooks are typed views of the moments, and one that hears all.

Override any hook; the others cost nothing. A method `on_*` that is not a hook is refused when its class is created,
because a misspelt hook would never be called.
"""

from __future__ import annotations

import inspect
import textwrap
from abc import ABC
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Self, TypeVar

# Not for type checkers alone: `typing.get_type_hints` finds these names here.
from ..data.experience import Experience
from ..data.facts import TrajectoryFacts, TurnFacts
from ..data.gradients import Gradients
from ..data.loop import LoopArtifacts, ManifestRow, TrainingBatch
from ..data.results import ArmResult, EvalResult, ExperimentResult, LogContext, RunResult
from ..data.state import LoopState
from ..errors import EventError, HookError
from ..spelling import did_you_mean
from .current import current_state
from .moments import MOMENTS, EventName, Moment
from .policy import ErrorPolicy, Priority


@dataclass(frozen=True, slots=True)
class Hook:
    """A callback method and the part of its moment's payload that it receives."""

    name: str
    moment: Moment
    positional: tuple[str, ...]
    keyword: tuple[str, ...]

    def __str__(self) -> str:
        keyword = ("*", *self.keyword) if self.keyword else ()
        return f"{self.name}({', '.join((*self.positional, *keyword))})"


class BaseCallback(ABC):
    """The settings of every callback. Derive from one of the families below, not from this."""

    priority: int = Priority.DEFAULT
    error_policy: ErrorPolicy = ErrorPolicy.RAISE
    thread_safe: bool = False
    """Whether several threads may run its hooks at once."""
    state_key: str | None = None
    """The name its state is saved under, if it has `state_dict`; by default the class's name."""
    uses_asyncio: bool | None = None
    """Whether hooks start asyncio tasks; None looks for asyncio in the modules that define them."""
    actor_copies: Mapping[str, Self] = MappingProxyType({})
    """After a run: the callback as it was in each trainer and maker that it lived in, by name (`"maker_0"`). Where it
    was used without being copied, in a run in one process, that is the instance itself."""

    hooks: ClassVar[Mapping[str, Hook]] = {}

    def log(self, name: str, value: Any) -> None:
        """Log a metric of the current step, in hooks that are not given the `state`: the same as `state.log`."""
        state = current_state()
        if state is None:
            raise HookError(
                f"{type(self).__name__}.log({name!r}, …): there is no step to log to. It can be called by hooks of a "
                f"trainer or a maker, in their own thread"
            )
        state.log(name, value)

    @property
    def background_failures(self) -> int:
        """How often its work in a thread of its own failed in this run; counted with the failures of its hooks."""
        return 0

    @property
    def first_background_failure(self) -> str:
        """The message of the first of these failures."""
        return ""

    def __init_subclass__(cls, *, family: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if family:
            cls.hooks = {name: _view(method) for name, method in vars(cls).items() if hasattr(method, "__moment__")}
        else:
            _check_one_family(cls)
            check_hook_names(cls, {name: getattr(cls, name) for name in dir(cls) if name.startswith("on_")})
            _check_shadowed_hooks(cls)


HookMethod = TypeVar("HookMethod", bound=Callable[..., None])


def _hears(event: EventName) -> Callable[[HookMethod], HookMethod]:
    """Mark a method as the hook of a moment; its parameters are items of the payload. Its docstring is the moment's."""

    def mark(method: HookMethod) -> HookMethod:
        moment = MOMENTS[event]
        method.__moment__ = moment  # type: ignore[attr-defined]
        parameters = list(inspect.signature(method).parameters)[1:]
        what = f"The hook of `{event}`.{' Arguments:' if parameters else ''}"
        items = [
            textwrap.fill(f"{item}: {moment.items[item]}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8)
            for item in parameters
        ]
        method.__doc__ = "\n".join([textwrap.fill(moment.doc, 100), "", what, *items])
        return method

    return mark


def _view(method: Any) -> Hook:
    moment: Moment = method.__moment__
    parameters = list(inspect.signature(method).parameters.values())[1:]
    unknown = {p.name for p in parameters} - set(moment.payload)
    assert not unknown, f"{method.__name__}: {unknown} are not items of {moment.name}"
    return Hook(
        method.__name__,
        moment,
        positional=tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY),
        keyword=tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY),
    )


class TrainerCallback(BaseCallback, family=True):
    """Hooks on a detached trainer: lives with trainer rank 0, or with every rank if `all_ranks`."""

    all_ranks: bool = False

    @_hears("train_start")
    def on_fit_start(self) -> None: ...
    @_hears("train_end")
    def on_fit_end(self) -> None: ...
    @_hears("episode_start")
    def on_episode_start(self, episode: int) -> None: ...
    @_hears("episode_end")
    def on_episode_end(self, episode: int) -> None: ...
    @_hears("epoch_start")
    def on_epoch_start(self, epoch: int) -> None: ...
    @_hears("epoch_end")
    def on_epoch_end(self, epoch: int) -> None: ...
    @_hears("step_start")
    def on_batch_start(self) -> None: ...
    @_hears("gradients_ready")
    def on_gradients_ready(self, gradients: Gradients) -> None: ...
    @_hears("step_end")
    def on_batch_end(self, metrics: dict[str, Any], experience: Experience) -> None: ...
    @_hears("update_start")
    def on_update_start(self) -> None: ...
    @_hears("update_end")
    def on_update_end(self) -> None: ...
    @_hears("error")
    def on_exception(self, exception: BaseException) -> None: ...
    @_hears("wait_start")
    def on_wait_start(self) -> None: ...
    @_hears("wait_end")
    def on_wait_end(self, seconds: float) -> None: ...


class MakerCallback(BaseCallback, family=True):
    """Hooks on an experience maker: on Ray one copy lives with every maker; in one process they share the instance, or
    have a copy each if `per_maker`."""

    per_maker: bool = False

    @_hears("maker.loop_start")
    def on_loop_start(self) -> None: ...
    @_hears("maker.loop_end")
    def on_loop_end(self) -> None: ...
    @_hears("maker.batch_start")
    def on_batch_start(self) -> None: ...
    @_hears("maker.batch_end")
    def on_batch_end(self) -> None: ...
    @_hears("maker.make_experience_start")
    def on_make_experience_start(self) -> None: ...
    @_hears("maker.trajectory_start")
    def on_trajectory_start(self, uid: str) -> None: ...
    @_hears("maker.turn_end")
    def on_turn_end(self, uid: str, turn: TurnFacts) -> None: ...
    @_hears("maker.trajectory_end")
    def on_trajectory_end(self, uid: str, trajectory: TrajectoryFacts) -> None: ...
    @_hears("maker.make_experience_end")
    def on_make_experience_end(self, experience: Experience) -> None: ...
    @_hears("maker.send_start")
    def on_send_start(self) -> None: ...
    @_hears("maker.send_end")
    def on_send_end(self) -> None: ...
    @_hears("maker.weights_loaded")
    def on_weights_loaded(self, version: int) -> None: ...


class Callback(BaseCallback, family=True):
    """Hooks on the loop and on the experiment around it: lives in the run's driver."""

    @_hears("train_start")
    def on_train_start(self, state: LoopState) -> None: ...
    @_hears("train_end")
    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None: ...
    @_hears("step_end")
    def on_step_end(self, state: LoopState, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None: ...
    @_hears("metrics_logged")
    def on_metrics(self, state: LoopState, step_idx: int, metrics: dict[str, float]) -> None: ...
    @_hears("checkpoint_saved")
    def on_checkpoint(self, state: LoopState, row: ManifestRow) -> None: ...
    @_hears("eval_end")
    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None: ...
    @_hears("error")
    def on_exception(self, state: LoopState, exception: BaseException) -> None: ...
    @_hears("experiment_start")
    def on_experiment_start(self, ctx: LogContext) -> None: ...
    @_hears("experiment_end")
    def on_experiment_end(self, ctx: LogContext, result: ExperimentResult) -> None: ...
    @_hears("group_start")
    def on_group_start(self, ctx: LogContext, group_name: str) -> None: ...
    @_hears("run_start")
    def on_run_start(self, ctx: LogContext) -> None: ...
    @_hears("run_end")
    def on_run_end(self, ctx: LogContext, run_result: RunResult, arm: ArmResult) -> None: ...
    @_hears("benchmark_eval")
    def on_benchmark_eval(
        self,
        ctx: LogContext,
        eval_result: EvalResult,
        predictions: list[dict[str, Any]],
        *,
        step: int | None = None,
    ) -> None: ...


class EveryMoment(BaseCallback, family=True):
    """Hears every moment through one hook: for tracing, recording and forwarding."""

    only_moments: Collection[EventName] | None = None
    """The moments it hears, when it is registered; None is all of them."""
    forwards: ClassVar[bool] = False
    """Whether it only forwards moments to another manager."""
    unread: ClassVar[frozenset[str]] = frozenset()
    """Items of payloads that it never reads, which are then neither built for it nor sent to it."""

    def wants(self, event: EventName, item: str | None) -> bool:
        """Whether it needs a moment, or an item of its payload, now. A callback that forwards asks the manager that it
        forwards to, so that items which are not read there are not built here."""
        return True

    def on_moment(self, event: EventName, payload: Mapping[str, Any]) -> None:
        """`payload` maps each item's name to its value, in the moment's order."""


def may_change_experience(kind: type) -> bool:
    """Whether callbacks of a class may change the experience of makers. Proa's own do not."""
    default = MakerCallback.on_make_experience_end
    overrides = issubclass(kind, MakerCallback) and kind.on_make_experience_end is not default
    return overrides and not kind.__module__.startswith("proa.")


FAMILIES: tuple[type[BaseCallback], ...] = (TrainerCallback, MakerCallback, Callback, EveryMoment)


def callback_family(cls: type) -> type[BaseCallback]:
    """The family a callback class belongs to."""
    for base in FAMILIES:
        if issubclass(cls, base):
            return base
    raise HookError(
        f"{cls.__name__} is not a callback: derive it from TrainerCallback, MakerCallback or Callback, "
        f"or register a function with manager.on(event)"
    )


def check_hook_names(cls: type[BaseCallback], methods: Mapping[str, object]) -> None:
    """Raise for any method named `on_*` that is not a hook of its family, with the right name."""
    base = callback_family(cls)
    known = {"on_moment"} if base is EveryMoment else set(base.hooks)
    for name, method in methods.items():
        if name not in known and (callable(method) or isinstance(method, (staticmethod, classmethod))):
            raise HookError(
                f"{cls.__name__}.{name} is not a hook of {base.__name__}{_remedy(name, base, known)} "
                f"(if it is a helper, give it a name that does not start with 'on_')"
            )


def unknown_event(event: object) -> NoReturn:
    """Raise for an unknown event name, with the one that was probably meant."""
    if not isinstance(event, str):
        raise EventError(f"{event!r} is not an event name: write e.g. @callbacks.on('step_end')")
    hook = f"on_{_normalised(event)}"
    meant: set[str] = {family.hooks[hook].moment.name for family in FAMILIES if hook in family.hooks}
    meant |= {_normalised(event)} & MOMENTS.keys()
    hint = f"; did you mean {' or '.join(map(repr, sorted(meant)))}?" if meant else did_you_mean(event, MOMENTS)
    raise EventError(f"unknown moment {event!r}{hint or ' (known: ' + ', '.join(MOMENTS) + ')'}")


def _remedy(name: str, base: type[BaseCallback], known: set[str]) -> str:
    """What to write instead of a hook that the family does not have."""
    for other in FAMILIES:
        if name in other.hooks:
            return f", it is one of {other.__name__}{_twin(other.hooks[name].moment, base)}"
    normalised = _normalised(name)
    if normalised in known:
        return f"; did you mean {normalised!r}?"
    moment = MOMENTS.get(normalised.removeprefix("on_"))
    if moment is not None:
        return _twin(moment, base) or f"; to hear {moment.name!r}, register a function with manager.on({moment.name!r})"
    return did_you_mean(name, known) or f" (it has: {', '.join(sorted(known))})"


def _twin(moment: Moment, base: type[BaseCallback]) -> str:
    hook = next((str(hook) for hook in base.hooks.values() if hook.moment is moment), None)
    return f"; {base.__name__} has {hook} for that moment" if hook else ""


def _normalised(name: str) -> str:
    """A name with the words of other libraries replaced by Proa's."""
    return name.replace("begin", "start").replace("evaluate", "eval").replace("exception_end", "exception")


def _check_shadowed_hooks(cls: type[BaseCallback]) -> None:
    """In `class Mine(Callback, Mixin)` the hooks of Mixin would never be called: the empty ones come first."""
    base = callback_family(cls)
    for mixin in cls.__mro__[cls.__mro__.index(base) + 1 :]:
        for name in vars(mixin).keys() & base.hooks.keys():
            if getattr(cls, name) is getattr(base, name):
                raise HookError(
                    f"{cls.__name__} inherits {name} from {mixin.__name__}, but {base.__name__} comes before it and "
                    f"hides it: write class {cls.__name__}({mixin.__name__}, {base.__name__})"
                )


def _check_one_family(cls: type) -> None:
    bases = [base.__name__ for base in FAMILIES if issubclass(cls, base)]
    if len(bases) > 1:
        raise HookError(
            f"{cls.__name__} derives from {' and '.join(bases)}, whose hooks share names but not signatures: "
            f"write one class for each, with a shared object if needed"
        )
