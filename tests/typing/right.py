"""What a type checker must accept. Never run."""

import functools
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from proa import Callback, CallbackManager, Experience, LoopState, RunConfig, TrainerCallback, TrainState, recipes
from proa.algorithms import GRPO
from proa.callbacks import EarlyStopping
from proa.testing import assert_lifecycle

manager = CallbackManager()
state = LoopState()


class Typed(Callback):
    def on_step_end(self, state: TrainState, step_idx: int, batch: object, metrics: dict[str, float]) -> None:
        state.stop_training("enough")


class AsDocumented(TrainerCallback):
    def on_batch_end(self, metrics: dict[str, Any], experience: Experience) -> None:
        print(metrics, len(experience))


@manager.on("step_end", every=100)
def show(state: TrainState, metrics: dict[str, float]) -> None: ...


typed: Typed = manager.add(Typed())
made: EarlyStopping = manager.add(functools.partial(EarlyStopping, "loss"))
manager.fire("step_end", state)
manager.fire("step_end", TrainState(), 3, metrics={"loss": 1.0})
manager.moments.step_end(state, 0, None, {"loss": 1.0}, None)
show(state, {})  # a decorated function stays what it was
recipes.grpo("run.yaml", total_steps=5, sampling={"group_size": 4}, reward=len, callbacks=[Typed()], overwrite=True)
final: TrainState = recipes.sft(model={"path": "folder"}, task=[{"prompt": "1", "answer": "2"}], total_steps=3)
print(recipes.sft("run.yaml").model_dir)
assert_lifecycle(lambda callbacks: callbacks.fire("train_start", state))


@dataclass(frozen=True, kw_only=True)
class Halved(GRPO):
    share: Annotated[float, Field(gt=0)] = 0.5

    def advantages(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return self.share * super().advantages(rewards_B, groups_B)


config = RunConfig(total_steps=4, train_batch_size=8, makers=2, model="folder", task="sort_digits")
recipes.grpo(config, algorithm=Halved(share=0.25))
