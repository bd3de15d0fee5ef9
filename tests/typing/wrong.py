"""What a type checker must refuse; the comment names mypy's error code. Never run."""

from proa import Callback, CallbackManager, LoopState, MakerCallback, TrainerCallback, recipes
from proa.lifecycle import Moments

manager = CallbackManager()
state = LoopState()
moments: Moments = manager.moments


class WrongArity(Callback):
    def on_step_end(self, state: LoopState, step_idx: int) -> None: ...  # E: override


class WrongType(TrainerCallback):
    def on_episode_start(self, episode: str) -> None: ...  # E: override


class WrongReturn(MakerCallback):
    def on_send_end(self) -> int:  # E: override
        return 1


class Asynchronous(Callback):
    async def on_train_start(self, state: LoopState) -> None: ...  # E: override


@manager.on("step_ned")  # E: arg-type
def listens_to_nothing(state: LoopState) -> None: ...


manager.fire("train_strat", state)  # E: arg-type
manager.wants("epoch_edn")  # E: arg-type
manager.explain("epoch_edn")  # E: arg-type
moments.step_ned(state)  # E: attr-defined
moments.episode_end(state)  # E: call-arg
moments.episode_end(state, "0")  # E: arg-type
moments.step_end(state, 0, None, None, None)  # E: arg-type
moments.update_end(state, version=1, seconds=2.0)  # E: call-arg
manager.add(3)  # E: call-overload
recipes.grpo(total_step=5)  # E: call-arg
recipes.grpo(total_steps="5")  # E: arg-type
recipes.grpo(sampling={"group_sise": 4})  # E: typeddict-unknown-key
recipes.sft(makers=2)  # E: call-arg
