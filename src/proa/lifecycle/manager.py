"""`CallbackManager`: registers callbacks of every style and fires moments to them, in one order."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, overload

from ..errors import EventError, HookError
from ..spelling import did_you_mean
from . import saved_state
from .background import BackgroundTasks
from .dispatch import Settle, compile_moment
from .failures import Failures
from .functions import ListeningFunction, listening_function
from .hooks import BaseCallback, unknown_event
from .listeners import (
    Function,
    Listener,
    Registration,
    callback_listeners,
    function_listener,
    locked,
    protect_experience,
)
from .moments import MOMENTS, EventName, Moment, Moments, Scope
from .policy import ErrorPolicy, Priority
from .profiling import FIRST_CALLS, Profiler
from .report import CallbackReport, build_report
from .roles import CallbackFactory, Role, callback_list, check_placement, check_scope, make_callback

log = logging.getLogger("proa.lifecycle")

Listening: TypeAlias = BaseCallback | CallbackFactory | ListeningFunction
"""An entry of `callbacks=` other than a manager, with functions resolved."""
Callbacks: TypeAlias = "CallbackManager | Iterable[BaseCallback | CallbackFactory | Function | CallbackManager] | None"
F = TypeVar("F", bound=Callable[..., object])
AnyCallback = TypeVar("AnyCallback", bound=BaseCallback)


class EnclosingRun(Protocol):
    """The run that training belongs to."""

    def begin(self) -> None:
        """Fire the moments that come before training, once."""


class CallbackManager:
    """Holds callbacks and fires moments to them.

    >>> from proa import TrainState
    >>> callbacks = CallbackManager()
    >>> @callbacks.on("step_end", every=2)
    ... def show(state):
    ...     print(f"step {state.global_step}: loss {state.metrics['loss']}")
    >>> for done in (1, 2, 3, 4):
    ...     callbacks.fire("step_end", TrainState(global_step=done, metrics={"loss": 1 / done}))
    step 2: loss 0.5
    step 4: loss 0.25

    Changes made while a moment is being heard take effect with its next firing.
    """

    def __init__(
        self,
        callbacks: Iterable[BaseCallback | CallbackFactory | Function | ListeningFunction] = (),
        *,
        role: Role = Role.RUN,
        timing: bool = True,
        drain_seconds: float = 30.0,
    ) -> None:
        self.role = role
        self.moments = Moments()
        """One method per moment, typed; calling it fires the moment. The fastest way to fire."""
        self.enclosing_run: EnclosingRun | None = None
        """The run that training with these callbacks belongs to; None in a loop of your own."""
        self._registrations: list[Registration] = []
        self._profiler = Profiler(self._build)
        self._timing = timing
        self._live: dict[str, Function] = {}
        self._unheard: frozenset[str] = frozenset()
        self._wanted: dict[tuple[str, str | None], tuple[bool, list[Any]]] = {}
        self._change = threading.RLock()
        self._failures = Failures(self.rebuild)
        self._background = BackgroundTasks(self._failures, drain_seconds)
        self.rebuild()
        for callback in callback_list(callbacks):
            self.add(callback)

    @classmethod
    def create(cls, callbacks: Callbacks, *, role: Role = Role.RUN) -> CallbackManager:
        """A manager from the value of `callbacks=`: a manager, None, or a list of callbacks, factories, functions and
        managers, the first of which gets everything else."""
        manager, others = cls.split(callbacks)
        if manager is None:
            return cls(others, role=role)
        for registration in manager._registrations:
            check_placement(registration.owner, role)
        for other in others:
            if isinstance(other, ListeningFunction):
                check_scope(other.moment, role)
                manager.add(other)
            else:
                instance = make_callback(other)
                check_placement(instance, role)
                manager.add(instance)
        return manager

    @classmethod
    def split(cls, callbacks: Callbacks) -> tuple[CallbackManager | None, list[Listening]]:
        """The first manager in the value of `callbacks=`, if there is one, and everything else in the list's order:
        functions with their events, and what further managers hold."""
        if callbacks is None or isinstance(callbacks, CallbackManager):
            return callbacks, []
        first: CallbackManager | None = None
        others: list[Listening] = []
        given: Any
        for given in callback_list(callbacks):
            if not isinstance(given, CallbackManager):
                others.append(listening_function(given) or given)
            elif first is None:
                first = given
            elif given is not first:
                others += given._contents()
        return first, others

    def _contents(self) -> list[Listening]:
        """All callbacks and functions registered here, for another manager."""
        contents: list[Listening] = []
        for registration in self._registrations:
            if isinstance(registration.owner, BaseCallback):
                contents.append(registration.owner)
            else:
                contents += map(ListeningFunction.from_listener, registration.listeners)
        return contents

    # -- registering ---------------------------------------------------------------------------------

    @overload
    def add(self, callback: AnyCallback) -> AnyCallback: ...
    @overload
    def add(self, callback: Callable[[], AnyCallback]) -> AnyCallback: ...
    @overload
    def add(self, callback: ListeningFunction | Function) -> object: ...
    def add(self, callback: Any) -> object:
        """Register a callback, one made by a factory (a class, or a function without arguments), or a function whose
        name says its event. Returns the callback, or the function."""
        listening = callback if isinstance(callback, ListeningFunction) else listening_function(callback)
        if listening is not None:
            check_scope(listening.moment, self.role)
            return self._add_function(listening)
        instance = make_callback(callback)
        check_placement(instance, self.role)
        with self._change:
            if any(registration.owner is instance for registration in self._registrations):
                raise HookError(
                    f"{type(instance).__name__} is already registered: one object has one place in the order"
                )
            saved_state.check_state(instance, self.callbacks)
            name = self._unique_name(type(instance).__name__)
            registration = Registration(
                instance, name, instance.priority, instance.error_policy, instance.thread_safe
            )  # fmt: skip
            registration.listeners = callback_listeners(registration)
            if not registration.listeners:
                log.warning("%s overrides no hook, so nothing will ever call it", name)
            others = self._join(registration)
        _rebuild_managers(others)
        return instance

    def on(
        self,
        event: EventName,
        *,
        every: int = 1,
        priority: int = Priority.DEFAULT,
        error_policy: ErrorPolicy = ErrorPolicy.RAISE,
        thread_safe: bool = False,
        uses_asyncio: bool | None = None,
    ) -> Callable[[F], F]:
        """Register a function for one moment: `@callbacks.on("step_end", every=100)`.

        The parameters of the function are names of payload items; one parameter of another name gets the first
        item, the state. `every=n` calls it at steps with `(step_idx + 1) % n == 0`, at other moments
        at each n-th firing. `uses_asyncio` is as on callbacks.
        """
        moment = self._moment(event)
        if not isinstance(every, int) or every < 1:
            raise HookError(f"every must be an integer of at least 1, not {every!r}")
        check_scope(moment, self.role)

        def register(function: F) -> F:
            self._add_function(
                ListeningFunction(function, moment, every, priority, error_policy, thread_safe, uses_asyncio)
            )
            return function

        return register

    def _add_function(self, given: ListeningFunction) -> object:
        function = given.function
        with self._change:
            name = self._unique_name(getattr(function, "__name__", type(function).__name__))
            registration = Registration(function, name, given.priority, given.error_policy, given.thread_safe, given)
            registration.listeners = [function_listener(registration, given.moment, given.every, given.uses_asyncio)]
            others = self._join(registration)
        _rebuild_managers(others)
        return function

    def remove(self, callback: object) -> None:
        """Remove a callback, a function from every moment it was registered for, or one `ListeningFunction`."""
        with self._change:
            mine = [registration for registration in self._registrations if registration.belongs_to(callback)]
            if not mine:
                raise HookError(f"{callback!r} is not registered here")
            self._registrations = [other for other in self._registrations if other not in mine]
            mine[0].shared_lock.leave(self)
            self.rebuild()

    @property
    def callbacks(self) -> list[BaseCallback]:
        """The registered callback objects, in order of registration."""
        return [r.owner for r in self._registrations if isinstance(r.owner, BaseCallback)]

    # -- firing --------------------------------------------------------------------------------------

    def fire(self, event: EventName, subject: Any, /, *payload: Any, **named: Any) -> None:
        """Fire a moment by name. `fire(event, state)` is enough: the rest of the payload is filled in.

        Where the event is known when the code is written, `manager.moments.<event>(...)` is the same,
        type-checked and faster.
        """
        if event in self._unheard:
            return
        dispatch = self._live.get(event) or unknown_event(event)
        if payload or named:
            dispatch(subject, *payload, **named)
        else:
            dispatch(subject)  # the common call, without the price of unpacking

    def wants(self, event: EventName, item: str | None = None) -> bool:
        """Whether anyone listens to a moment, or reads this item of its payload: if not, do not build it."""
        known = self._wanted.get((event, item))
        if known is None:
            moment = self._moment(event)
            if item is not None and item not in moment.payload:
                raise EventError(f"{event!r} has no item {item!r}{did_you_mean(item, moment.payload)}")
            with self._change:
                readers = [one.registration.owner for one in self._order(moment) if item is None or one.reads(item)]
                forwarders = [owner for owner in readers if getattr(owner, "forwards", False)]
                known = self._wanted[event, item] = (len(readers) > len(forwarders), forwarders)
        is_read_here, forwarders = known
        return is_read_here or any(one.wants(event, item) for one in forwarders)

    def readers(self, event: EventName, item: str) -> list[Any]:
        """The callbacks and functions that are given this item of a moment's payload, in order."""
        return [one.registration.owner for one in self._order(self._moment(event)) if one.takes(item)]

    def begin_training(self) -> None:
        """Called just before `train_start`: begin the enclosing run, or without one a run of its own."""
        if self.enclosing_run is not None:
            self.enclosing_run.begin()
        else:
            self.start_run()

    def start_run(self) -> None:
        """Start a new run: reset the counts of failures, and enable disabled callbacks again."""
        with self._change:
            for registration in self._registrations:
                registration.errors, registration.disabled = 0, False
                for listener in registration.listeners:
                    listener.errors = listener.failures_in_a_row = listener.task_failures_in_a_row = 0
            self.rebuild()

    # -- inspecting ----------------------------------------------------------------------------------

    def explain(self, event: EventName) -> list[str]:
        """Print who hears a moment, in order, and return their names."""
        moment = self._moment(event)
        listeners = self._order(moment)
        print(f"{event}({', '.join(moment.payload)}): {len(listeners) or 'no'} listeners")
        for place, listener in enumerate(listeners, start=1):
            registration = listener.registration
            every = f", every {listener.every}" if listener.every > 1 else ""
            policy = registration.error_policy.name
            priority = registration.priority
            band = Priority(priority).name if priority in set(Priority) else str(priority)
            print(f"{place:3}. {listener.name}  [{band}, {policy}{every}]")
        return [listener.name for listener in listeners]

    def report(self) -> CallbackReport:
        """Calls, time and errors of each callback at each moment it heard."""
        return build_report(self._registrations, self._profiler.clocks)

    @property
    def errors(self) -> dict[str, int]:
        """How often each callback failed, in its hooks and in its own threads; only those that did. Callbacks that
        forward moments are left out, as the failures are counted in the other manager."""
        counts = {
            r.name: r.errors + getattr(r.owner, "background_failures", 0)
            for r in self._registrations
            if not getattr(r.owner, "forwards", False)
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def first_errors(self) -> dict[str, str]:
        """The message of the first failure of each callback in `errors`."""
        said = {r.name: r.first_error or getattr(r.owner, "first_background_failure", "") for r in self._registrations}
        return {name: said[name] for name in self.errors if said.get(name)}

    # -- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of every callback that has one, by its `state_key`, and the counts of functions with `every=`."""
        counted = {key: listener.firings.count for key, listener in self._counting().items()}
        return saved_state.save(self.callbacks) | ({saved_state.FIRINGS: counted} if counted else {})

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore each callback's state into the same object; state without a callback is logged."""
        saved_state.load(self.callbacks, {key: saved[key] for key in saved if key != saved_state.FIRINGS})
        for key, listener in self._counting().items():
            listener.firings.count = saved.get(saved_state.FIRINGS, {}).get(key, 0)

    def _counting(self) -> dict[str, Listener]:
        """The functions that count firings, by name and moment."""
        listeners = [listener for registration in self._registrations for listener in registration.listeners]
        return {
            f"{one.name} at {one.moment.name}": one for one in listeners if one.every > 1 and one.moment.index is None
        }  # fmt: skip

    # -- building ------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Compile every moment again at its next firing."""
        with self._change:
            heard: set[str] = {listener.moment.name for r in self._registrations for listener in r.listeners}
            heard |= self._boundaries()
            for moment in MOMENTS.values():
                function = self._lazy_dispatcher(moment) if moment.name in heard else _IDLE[moment.name]
                self._live[moment.name] = function
                setattr(self.moments, moment.method, function)
            self._unheard = frozenset(MOMENTS) - heard
            self._wanted = {}

    def _lazy_dispatcher(self, moment: Moment) -> Function:
        def first(*payload: Any, **named: Any) -> None:
            with self._change:
                self._profiler.start(moment, self._order(moment), FIRST_CALLS)
                dispatch = self._build(moment)
            dispatch(*payload, **named)

        return first

    def _build(self, moment: Moment) -> Function:
        """Compile a moment for its current listeners."""
        with self._change:
            settle: Settle | None = None
            if moment.name in self._boundaries():
                background = self._background
                settle = background.drain if moment.name in _DRAINED else background.turn
                if moment.scope is Scope.EXPERIMENT and moment.name in _TURNED:
                    settle = background.begin
            function = self._live[moment.name] = compile_moment(
                moment,
                self._order(moment),
                judge=self._failures.judge,
                call=self._wrapped_call,
                settle=settle,
                profiler=self._profiler if self._timing else None,
            )
            setattr(self.moments, moment.method, function)
            return function

    def _wrapped_call(self, listener: Listener) -> Function:
        """The listener's call with an event loop and a lock, if it needs them."""
        call = self._background.wrap(listener) if listener.uses_asyncio else listener.call
        registration = listener.registration
        if listener.moment.name == "maker.make_experience_end" and listener.reads("experience"):
            call = protect_experience(listener, call)
        if not registration.thread_safe and self._needs_lock(registration):
            call = locked(registration.shared_lock.lock, call)
        return call

    def _needs_lock(self, registration: Registration) -> bool:
        """Whether several threads call it: each trainer or maker fires in one thread, but there may be many makers."""
        if registration.shared_lock.is_shared:
            return True
        same = [other for other in self._registrations if other.shared_lock is registration.shared_lock]
        scopes = {listener.moment.scope for other in same for listener in other.listeners}
        return self.role is not Role.MAKER and bool(scopes & {Scope.MAKER, Scope.FLEET})

    def _boundaries(self) -> set[str]:
        """The moments at which background tasks run, if there can be any."""
        listeners = [listener for r in self._registrations for listener in r.listeners if listener.uses_asyncio]
        scopes = {listener.moment.scope for listener in listeners}
        if Scope.FLEET in scopes:  # it has no boundaries, so the trainer's are used
            scopes.add(Scope.TRAINER)
        return {name for name in _TURNED | _DRAINED if MOMENTS[name].scope in scopes}

    def _order(self, moment: Moment) -> list[Listener]:
        """By priority, high to low, then in order of registration, reversed in outer teardown."""
        registrations = reversed(self._registrations) if moment.teardown else self._registrations
        listeners = [
            listener
            for registration in registrations
            if moment.teardown or not registration.disabled
            for listener in registration.listeners
            if listener.moment is moment
        ]
        return sorted(listeners, key=lambda listener: -listener.registration.priority)

    def _join(self, registration: Registration) -> list[CallbackManager]:
        """Add a registration; return the managers that share its callback and must be rebuilt."""
        for listener in registration.listeners:
            listener.calls_before = self._profiler.clocks[listener.moment.name].calls
        self._registrations = [*self._registrations, registration]
        others: list[CallbackManager] = registration.shared_lock.join(self)
        self.rebuild()
        return others

    def _unique_name(self, name: str) -> str:
        taken = {registration.name for registration in self._registrations}
        return (
            name if name not in taken else next(f"{name}#{n}" for n in itertools.count(2) if f"{name}#{n}" not in taken)
        )

    @staticmethod
    def _moment(event: str) -> Moment:
        return MOMENTS.get(event) or unknown_event(event)


def _rebuild_managers(managers: Iterable[CallbackManager]) -> None:
    """Call it without holding a lock, as two managers may rebuild each other."""
    for manager in managers:
        manager.rebuild()


_TURNED = frozenset({"step_end", "maker.batch_end", "experiment_start", "run_start"})
_DRAINED = frozenset({"train_end", "maker.loop_end", "run_end", "experiment_end"})


def _idle(moment: Moment) -> Function:
    def never(*_: Any) -> Any:
        raise AssertionError(f"nobody listens to {moment.name}")

    return compile_moment(moment, (), judge=never, call=never)


_IDLE = {name: _idle(moment) for name, moment in MOMENTS.items()}
