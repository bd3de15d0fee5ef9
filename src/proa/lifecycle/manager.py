"""`CallbackManager`: registers callbacks of every style and fires moments to them, in one order."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

from ..errors import EventError, HookError
from ..spelling import did_you_mean
from . import saved_state
from .background import BackgroundTasks
from .dispatch import Settle, compile_moment
from .failures import Failures
from .hooks import BaseCallback, unknown_event
from .listeners import (
    Function,
    Listener,
    Registration,
    changing_only_what_may_be,
    listener_of_function,
    listeners_of_callback,
    locked,
)
from .moments import MOMENTS, EventName, Moment, Moments, Scope
from .policy import ErrorPolicy, Priority
from .profiling import FIRST_CALLS, Profiler
from .report import CallbackReport, report_of
from .roles import CallbackFactory, Role, callback_from, callbacks_in, refuse_misplaced, refuse_moment_elsewhere

log = logging.getLogger("proa.lifecycle")

Callbacks: TypeAlias = "CallbackManager | Iterable[BaseCallback | CallbackFactory | CallbackManager] | None"
F = TypeVar("F", bound=Callable[..., object])
AnyCallback = TypeVar("AnyCallback", bound=BaseCallback)


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
        callbacks: Iterable[BaseCallback | CallbackFactory] = (),
        *,
        role: Role = Role.RUN,
        timing: bool = True,
        drain_seconds: float = 30.0,
    ) -> None:
        self.role = role
        self.moments = Moments()
        """One method per moment, typed; calling it fires the moment. The fastest way to fire."""
        self._registrations: list[Registration] = []
        self._profiler = Profiler(self._build)
        self._timing = timing
        self._live: dict[str, Function] = {}
        self._unheard: frozenset[str] = frozenset()
        self._wanted: dict[tuple[str, str | None], bool] = {}
        self._change = threading.RLock()
        self._failures = Failures(self.rebuild)
        self._background = BackgroundTasks(self._failures, drain_seconds)
        self.rebuild()
        for callback in callbacks_in(callbacks):
            self.add(callback)

    @classmethod
    def of(cls, callbacks: Callbacks, *, role: Role = Role.RUN) -> CallbackManager:
        """A manager from whatever `callbacks=` may be given: a manager, a list, factories, or nothing.

        A manager in a list takes in what else is in it.
        """
        manager, others = cls.split(callbacks)
        if manager is None:
            return cls(others, role=role)
        for registration in manager._registrations:
            refuse_misplaced(registration.owner, role)
        for other in others:
            instance = callback_from(other)
            refuse_misplaced(instance, role)
            manager.add(instance)
        return manager

    @classmethod
    def split(cls, callbacks: Callbacks) -> tuple[CallbackManager | None, list[BaseCallback | CallbackFactory]]:
        """The manager among what `callbacks=` was given, if there is one, and the rest."""
        if callbacks is None or isinstance(callbacks, CallbackManager):
            return callbacks, []
        given: list[Any] = callbacks_in(callbacks)
        managers = [one for one in given if isinstance(one, CallbackManager)]
        if len(managers) > 1:
            raise HookError(f"callbacks= has {len(managers)} managers: give one, and register everything else with it")
        others = [one for one in given if not isinstance(one, CallbackManager)]
        return managers[0] if managers else None, others

    # -- registering ---------------------------------------------------------------------------------

    @overload
    def add(self, callback: AnyCallback) -> AnyCallback: ...
    @overload
    def add(self, callback: Callable[[], AnyCallback]) -> AnyCallback: ...
    def add(self, callback: BaseCallback | CallbackFactory) -> BaseCallback:
        """Register a callback, or what a factory (a class, or a function of no arguments) makes."""
        instance = callback_from(callback)
        refuse_misplaced(instance, self.role)
        with self._change:
            if any(registration.owner is instance for registration in self._registrations):
                raise HookError(f"{type(instance).__name__} is registered already: one object, one place in the order")
            saved_state.refuse_bad_state(instance, self.callbacks)
            name = self._unique_name(type(instance).__name__)
            registration = Registration(
                instance, name, instance.priority, instance.error_policy, instance.thread_safe
            )  # fmt: skip
            registration.listeners = listeners_of_callback(registration)
            if not registration.listeners:
                log.warning("%s overrides no hook, so nothing will ever call it", name)
            others = self._join(registration)
        _rebuild_all(others)
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

        The function names the payload items it wants as parameters; one parameter of another name gets the
        first item, the state. `every=n` calls it at steps with `(step_idx + 1) % n == 0`, at other moments
        at each n-th firing. `uses_asyncio` is as on callbacks.
        """
        moment = self._moment(event)
        if not isinstance(every, int) or every < 1:
            raise HookError(f"every={every!r}: give a whole number of firings, 1 or more")
        refuse_moment_elsewhere(moment, self.role)

        def register(function: F) -> F:
            with self._change:
                name = self._unique_name(getattr(function, "__name__", type(function).__name__))
                registration = Registration(function, name, priority, error_policy, thread_safe)
                registration.listeners = [listener_of_function(registration, moment, every, uses_asyncio)]
                others = self._join(registration)
            _rebuild_all(others)
            return function

        return register

    def remove(self, callback: object) -> None:
        """Take a callback, or a function from every moment it was registered for, out again."""
        with self._change:
            mine = [registration for registration in self._registrations if registration.is_of(callback)]
            if not mine:
                raise HookError(f"{callback!r} is not registered here")
            self._registrations = [other for other in self._registrations if other not in mine]
            mine[0].seat.leave(self)
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
        """Whether anyone listens to a moment, or reads that item of its payload: if not, do not build it."""
        wanted = self._wanted.get((event, item))
        if wanted is None:
            moment = self._moment(event)
            if item is not None and item not in moment.payload:
                raise EventError(f"{event!r} carries no {item!r}{did_you_mean(item, moment.payload)}")
            with self._change:
                wanted = any(item is None or listener.reads(item) for listener in self._order(moment))
                self._wanted[event, item] = wanted
        return wanted

    def readers(self, event: EventName, item: str) -> list[Any]:
        """The callbacks and functions that are given that item of a moment's payload, in order."""
        return [one.registration.owner for one in self._order(self._moment(event)) if one.takes(item)]

    def start_run(self) -> None:
        """A new run begins: failures are counted from zero, and who was disabled gets another chance."""
        with self._change:
            for registration in self._registrations:
                registration.errors, registration.disabled = 0, False
                for listener in registration.listeners:
                    listener.errors = listener.failures_in_a_row = listener.task_failures_in_a_row = 0
            self.rebuild()

    # -- looking at it -------------------------------------------------------------------------------

    def explain(self, event: EventName) -> list[str]:
        """Print who hears a moment, in order, and return their names."""
        moment = self._moment(event)
        listeners = self._order(moment)
        print(f"{event}({', '.join(moment.payload)}): {len(listeners) or 'no'} listeners")
        for place, listener in enumerate(listeners, start=1):
            registration = listener.registration
            every = f", every {listener.every}" if listener.every > 1 else ""
            policy = registration.error_policy.name
            print(f"{place:3}. {listener.name}  [{_band(registration.priority)}, {policy}{every}]")
        return [listener.name for listener in listeners]

    def report(self) -> CallbackReport:
        """Calls, time and errors of each callback at each moment it heard."""
        return report_of(self._registrations, self._profiler.clocks)

    @property
    def errors(self) -> dict[str, int]:
        """How often each callback failed; those that never did are left out, and so are those that hand moments on:
        what fails there is counted there."""
        return {r.name: r.errors for r in self._registrations if r.errors and not getattr(r.owner, "forwards", False)}

    # -- saving --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of every callback that has one, by its `state_key`, and what functions with `every=` counted."""
        counted = {key: listener.firings.count for key, listener in self._counting().items()}
        return saved_state.save(self.callbacks) | ({saved_state.FIRINGS: counted} if counted else {})

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore each callback's state into the same object; what matches nothing is said in the log."""
        saved_state.load(self.callbacks, {key: saved[key] for key in saved if key != saved_state.FIRINGS})
        for key, listener in self._counting().items():
            listener.firings.count = saved.get(saved_state.FIRINGS, {}).get(key, 0)

    def _counting(self) -> dict[str, Listener]:
        """The functions that count firings, by their name and their moment's."""
        listeners = [listener for registration in self._registrations for listener in registration.listeners]
        return {
            f"{one.name} at {one.moment.name}": one for one in listeners if one.every > 1 and one.moment.index is None
        }  # fmt: skip

    # -- building ------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Have every moment compiled anew at its next firing."""
        with self._change:
            heard: set[str] = {listener.moment.name for r in self._registrations for listener in r.listeners}
            heard |= self._boundaries()
            for moment in MOMENTS.values():
                function = self._compile_at_first_firing(moment) if moment.name in heard else _IDLE[moment.name]
                self._live[moment.name] = function
                setattr(self.moments, moment.method, function)
            self._unheard = frozenset(MOMENTS) - heard
            self._wanted = {}

    def _compile_at_first_firing(self, moment: Moment) -> Function:
        def first(*payload: Any, **named: Any) -> None:
            with self._change:
                self._profiler.start(moment, self._order(moment), FIRST_CALLS)
                dispatch = self._build(moment)
            dispatch(*payload, **named)

        return first

    def _build(self, moment: Moment) -> Function:
        """Compile a moment for those who listen now."""
        with self._change:
            function = self._live[moment.name] = compile_moment(
                moment,
                self._order(moment),
                judge=self._failures.judge,
                call=self._call_of,
                settle=self._settle_at(moment),
                profiler=self._profiler if self._timing else None,
            )
            setattr(self.moments, moment.method, function)
            return function

    def _call_of(self, listener: Listener) -> Function:
        """The listener's call, wrapped only in what it needs: an event loop, a lock."""
        call = self._background.under_the_loop(listener) if listener.uses_asyncio else listener.call
        registration = listener.registration
        if listener.moment.name == "maker.make_experience_end" and listener.reads("experience"):
            call = changing_only_what_may_be(listener, call)
        if not registration.thread_safe and self._heard_in_several_threads(registration):
            call = locked(registration.seat.lock, call)
        return call

    def _heard_in_several_threads(self, registration: Registration) -> bool:
        """The moments of a trainer fire in one thread, and so do those of one maker; but makers are many."""
        if registration.seat.is_shared:
            return True
        same = [other for other in self._registrations if other.seat is registration.seat]
        scopes = {listener.moment.scope for other in same for listener in other.listeners}
        return self.role is not Role.MAKER and bool(scopes & {Scope.MAKER, Scope.FLEET})

    def _settle_at(self, moment: Moment) -> Settle | None:
        if moment.name not in self._boundaries():
            return None
        return self._background.turn if moment.name in _TURNED else self._background.drain

    def _boundaries(self) -> set[str]:
        """The moments at which background tasks are seen to, if there can be any."""
        listeners = [listener for r in self._registrations for listener in r.listeners if listener.uses_asyncio]
        scopes = {listener.moment.scope for listener in listeners}
        if Scope.FLEET in scopes:  # it has no boundaries of its own; the trainer's are near
            scopes.add(Scope.TRAINER)
        return {name for name in _TURNED | _DRAINED if MOMENTS[name].scope in scopes}

    def _order(self, moment: Moment) -> list[Listener]:
        """Bands from high to low; within a band by registration, in outer teardown reversed."""
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
        """Take a registration in; returns the managers that share its callback and must be rebuilt."""
        for listener in registration.listeners:
            listener.calls_before = self._profiler.clocks[listener.moment.name].calls
        self._registrations = [*self._registrations, registration]
        others: list[CallbackManager] = registration.seat.join(self)
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


def _rebuild_all(managers: Iterable[CallbackManager]) -> None:
    """Done with no lock held: two managers may be doing this to each other."""
    for manager in managers:
        manager.rebuild()


_TURNED = frozenset({"step_end", "maker.batch_end"})
_DRAINED = frozenset({"train_end", "maker.loop_end", "run_end", "experiment_end"})


def _idle(moment: Moment) -> Function:
    def never(*_: Any) -> Any:
        raise AssertionError(f"nobody listens to {moment.name}")

    return compile_moment(moment, (), judge=never, call=never)


_IDLE = {name: _idle(moment) for name, moment in MOMENTS.items()}


def _band(priority: int) -> str:
    return Priority(priority).name if priority in set(Priority) else str(priority)
