"""Plain hooks may start asyncio tasks: they get on between steps and are done before training ends."""

import asyncio
import threading

import pytest

from proa import Callback, CallbackManager, ErrorPolicy, LoopState, StopTraining, TrainerCallback
from proa.lifecycle import Role


class Uploader(Callback):
    """Starts one task per step, as a logger to a slow service would."""

    def __init__(self, work, policy=ErrorPolicy.RAISE):
        self.work = work
        self.error_policy = policy
        self.done = []

    def on_step_end(self, state, step_idx, batch, metrics):
        asyncio.create_task(self._upload(step_idx), name=f"upload {step_idx}")  # noqa: RUF006 - the run's loop keeps it

    async def _upload(self, step_idx):
        await self.work(step_idx)
        self.done.append(step_idx)


def run(manager, steps=3, between=lambda: None):
    state = LoopState()
    for done in range(1, steps + 1):
        state.global_step = done
        manager.fire("step_end", state)
        between()
    manager.fire("train_end", state)
    return state


async def instantly(step_idx): ...


async def after_a_while(step_idx):
    await asyncio.sleep(0.02)


@pytest.mark.parametrize("work", [instantly, after_a_while])
def test_every_task_is_done_when_train_end_returns(work):
    uploader = Uploader(work)
    run(CallbackManager([uploader]))
    assert sorted(uploader.done) == [0, 1, 2]


def test_tasks_get_on_at_step_boundaries():
    uploader = Uploader(instantly)
    manager = CallbackManager([uploader])
    manager.fire("step_end", LoopState(global_step=1))
    assert uploader.done == [0]
    run(manager, 0)


def test_a_slow_task_does_not_hold_up_the_steps():
    """Which end before it: it waits for the second one."""
    second = asyncio.Event()

    async def until_the_second(step_idx):
        await second.wait() if step_idx == 0 else second.set()

    uploader = Uploader(until_the_second)
    manager = CallbackManager([uploader])
    manager.fire("step_end", LoopState(global_step=1))
    assert uploader.done == []
    manager.fire("step_end", LoopState(global_step=2))
    run(manager, 0)
    assert sorted(uploader.done) == [0, 1]


async def broken(step_idx):
    raise OSError(f"no network at {step_idx}")


def test_a_failed_task_raises_at_the_boundary_and_names_its_callback():
    manager = CallbackManager([Uploader(broken)])
    with pytest.raises(OSError, match="no network at 0") as raised:
        manager.fire("step_end", LoopState(global_step=1))
    assert "in callback Uploader.on_step_end" in raised.value.__notes__[0]
    run(manager, 0)


def test_a_failed_task_of_a_logger_is_counted_and_disables_it(caplog):
    uploader = Uploader(broken, ErrorPolicy.DISABLE)
    manager = CallbackManager([uploader])
    run(manager, 10)
    assert manager.errors == {"Uploader": 3}
    assert "is disabled" in caplog.text


def test_a_task_may_stop_training():
    async def enough(step_idx):
        raise StopTraining("the service said so")

    state = run(CallbackManager([Uploader(enough)]), 1)
    assert (state.stop_reason, state.stopped_by) == ("the service said so", "Uploader.on_step_end")


def test_a_task_that_misses_the_deadline_is_cancelled_and_said():
    cancelled = []

    async def forever(step_idx):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(step_idx)
            raise

    manager = CallbackManager([Uploader(forever)], drain_seconds=0.05)
    with pytest.raises(TimeoutError, match=r"background task upload 0 was not done after 0.05 s"):
        run(manager, 1)
    assert cancelled == [0]


def test_tasks_of_tasks_belong_to_the_same_callback():
    async def nested(step_idx):
        asyncio.create_task(broken(step_idx))  # noqa: RUF006

    manager = CallbackManager([Uploader(nested, ErrorPolicy.LOG)])
    run(manager, 1)
    assert manager.errors == {"Uploader": 1}


def test_training_inside_a_running_loop_works_too():
    """As in a notebook, whose cells run under a loop."""
    uploader = Uploader(after_a_while)

    async def cell():
        run(CallbackManager([uploader]))
        return asyncio.get_running_loop()

    outer = asyncio.run(cell())
    assert sorted(uploader.done) == [0, 1, 2]
    assert outer is not None


def test_outside_of_hooks_no_loop_is_running():
    uploader = Uploader(after_a_while)
    run(CallbackManager([uploader]), between=lambda: asyncio.run(instantly(0)))
    assert sorted(uploader.done) == [0, 1, 2]


def test_a_manager_dropped_in_mid_run_leaves_nothing_open(recwarn):
    async def quickly(step_idx): ...

    manager = CallbackManager([Uploader(quickly)])
    manager.fire("step_end", LoopState(global_step=1))
    del manager
    import gc

    gc.collect()
    assert not recwarn.list


def test_functions_may_start_tasks():
    done = []
    manager = CallbackManager()

    @manager.on("step_end")
    def upload(state):
        asyncio.create_task(after_a_while(0)).add_done_callback(lambda _: done.append(state.global_step))

    run(manager)
    assert sorted(set(done)) == [3]
    assert len(done) == 3


def test_trainer_callbacks_may_start_tasks():
    done = []

    class Notify(TrainerCallback):
        def on_batch_end(self, metrics, experience):
            asyncio.create_task(instantly(0)).add_done_callback(lambda _: done.append(1))

    run(CallbackManager([Notify()]))
    assert done == [1, 1, 1]


def test_a_maker_turns_its_own_loop():
    from proa import MakerCallback

    done = []

    class Notify(MakerCallback):
        def on_send_end(self):
            asyncio.create_task(instantly(0)).add_done_callback(lambda _: done.append(threading.get_ident()))

    manager = CallbackManager([Notify()], role=Role.MAKER)

    def loop():
        for _ in range(2):
            manager.fire("maker.send_end", LoopState())
            manager.fire("maker.batch_end", LoopState())
        manager.fire("maker.loop_end", LoopState())

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join(60)
    assert done == [thread.ident] * 2


def test_callbacks_that_do_not_touch_asyncio_pay_nothing_for_it():
    from proa.callbacks import EarlyStopping

    manager = CallbackManager([EarlyStopping("loss")])
    manager.fire("step_end", LoopState())
    assert "settle" not in manager.moments.step_end.__code__.co_names


def test_a_hook_that_reaches_asyncio_by_a_detour_can_say_so():
    source = "def on_step_end(self, state, step_idx, batch, metrics): self.helper()"
    names = {}
    exec(source, names)
    started = []

    class Detour(Callback):
        uses_asyncio = True
        on_step_end = names["on_step_end"]

        def helper(self):
            started.append(asyncio.create_task(instantly(0)))

    run(CallbackManager([Detour()]), 1)
    assert started[0].done()


def test_a_failure_that_the_parent_task_handled_is_no_failure():
    async def retry(step_idx):
        try:
            await asyncio.wait_for(broken(step_idx), 1)
        except OSError:
            pass
        await asyncio.gather(broken(step_idx), return_exceptions=True)

    manager = CallbackManager([Uploader(retry)])
    run(manager)
    assert manager.errors == {}


def test_a_failure_that_the_parent_passes_on_counts_once():
    async def passes_on(step_idx):
        await asyncio.create_task(broken(step_idx))

    manager = CallbackManager([Uploader(passes_on, ErrorPolicy.LOG)])
    run(manager, 1)
    assert manager.errors == {"Uploader": 1}


def test_an_interrupt_in_a_task_comes_out_and_the_others_are_still_drained():
    async def interrupt(step_idx):
        if step_idx == 0:
            raise KeyboardInterrupt
        await after_a_while(step_idx)

    uploader = Uploader(interrupt)
    manager = CallbackManager([uploader])
    with pytest.raises(KeyboardInterrupt):
        manager.fire("step_end", LoopState(global_step=1))
    manager.fire("step_end", LoopState(global_step=2))
    manager.fire("train_end", LoopState())
    assert uploader.done == [1]


def test_a_task_started_when_a_maker_is_lost_is_run():
    done, manager = [], CallbackManager()

    @manager.on("maker.lost")
    def tell(maker, reason):
        asyncio.create_task(instantly(0)).add_done_callback(lambda _: done.append(maker))

    manager.fire("maker.lost", "maker_1", "killed")
    manager.fire("train_end", LoopState())
    assert done == ["maker_1"]


def test_a_hook_that_needs_the_loop_and_was_not_seen_to_is_told_what_to_say():
    manager = CallbackManager()
    manager.on("step_end", uses_asyncio=False)(lambda: asyncio.get_running_loop())
    with pytest.raises(RuntimeError, match="no running event loop") as raised:
        manager.fire("step_end", LoopState())
    assert "uses_asyncio=True" in raised.value.__notes__[0]


def test_a_function_can_say_that_it_uses_asyncio():
    loops, manager = [], CallbackManager()
    manager.on("step_end", uses_asyncio=True)(lambda: loops.append(asyncio.get_running_loop()))
    run(manager, 1)
    assert loops[0].is_closed()


@pytest.mark.parametrize("event", ["experiment_start", "run_start"])
@pytest.mark.parametrize("work", [instantly, after_a_while])
def test_tasks_started_at_the_beginning_run_before_it_goes_on(event, work):
    manager, done = CallbackManager(), []

    @manager.on(event)
    def begin(ctx):
        async def register():
            await work(0)
            done.append(ctx)

        asyncio.create_task(register())  # noqa: RUF006 - the run's loop keeps it

    manager.fire(event, "ctx")
    assert done == ["ctx"]
    manager.fire("run_end", "ctx")


def test_a_task_that_lasts_does_not_keep_the_experiment_from_beginning(monkeypatch):
    monkeypatch.setattr("proa.lifecycle.background.BEGIN_SECONDS", 0.01)
    manager, beats, over = CallbackManager(), [], asyncio.Event()

    @manager.on("experiment_start")
    def begin(ctx):
        async def beat():
            beats.append("first")
            await over.wait()
            beats.append("last")

        asyncio.create_task(beat())  # noqa: RUF006 - the run's loop keeps it

    manager.on("experiment_end", uses_asyncio=True)(lambda ctx: over.set())
    manager.fire("experiment_start", "ctx")
    assert beats == ["first"]
    manager.fire("experiment_end", "ctx")
    assert beats == ["first", "last"]
