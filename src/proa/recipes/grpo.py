"""Detached GRPO and its family from one configuration: model, task, makers, trainer, evals, record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..algorithms import build_algorithm
from ..callbacks import JsonlMetrics, build_callback
from ..config import RunConfig, change_run_config, load_run_config
from ..data.sampling import Sampling
from ..data.state import TrainState
from ..engines import build_engine
from ..lifecycle.hooks import BaseCallback, EveryMoment, MakerCallback
from ..lifecycle.manager import CallbackManager, Callbacks
from ..lifecycle.moments import MOMENTS, EventName, Scope
from ..lifecycle.placement import Placement
from ..loop import Evaluator
from ..policy.models import load_model, save_model, weights_digest, weights_of
from ..policy.optimizer import OptimizerSettings
from ..record.run_folder import RunFolder, refuse_used
from ..rewards import InlineRewards, RewardWorkers
from ..roles.grpo_trainer import DetachedGRPOTrainer, StepSettings
from ..roles.lease_book import LeaseBook, LeasePlan
from ..roles.maker import ExperienceMakerHolder
from ..roles.weights import WeightStore
from ..runtime.local import LocalRuntime, Supervision
from ..tasks import PromptStream, Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from .evaluation import evaluator_for
from .sft import sft


def grpo(config: RunConfig | Path | str | None = None, *, callbacks: Callbacks = None, **changes: Any) -> TrainState:
    """Run detached RL as configured (a `RunConfig`, a YAML file, or keywords alone) and return the final state.

    The run folder `<output_dir>/<name>` holds the record, and the final weights in `model/`.
    """
    if isinstance(config, RunConfig):
        config = change_run_config(config, **changes) if changes else config
    else:
        config = load_run_config(config, **changes)
    refuse_used(config.folder)
    run = _Run(config, callbacks)  # what is wrong with model, task or callbacks is found before the folder is made
    folder = RunFolder.create(config.folder, config.model_dump(mode="json"))
    try:
        state = run.train(folder)
    except BaseException as error:
        interrupted = not isinstance(error, Exception)
        reason = "interrupted" if interrupted else f"{type(error).__name__}: {error}"
        ending = {"status": "cancelled" if interrupted else "failed", "stop_reason": reason}
        folder.update(**run.summary() | ending | {"ended": round(time.time(), 3)})
        raise
    folder.update(**run.summary() | {"status": "completed", "ended": round(time.time(), 3)})
    return state


@dataclass
class _Material:
    """What a run works on."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    end_ids: list[int]


class _Run:
    """One run's parts, put together."""

    def __init__(self, config: RunConfig, callbacks: Callbacks) -> None:
        self.config = config
        self.manager, self.maker_callbacks = _place(config, callbacks)
        self.material = _load_material(config)
        self.trainer: DetachedGRPOTrainer | None = None

    def train(self, folder: RunFolder) -> TrainState:
        config, material = self.config, self.material
        torch.set_num_threads(config.threads)
        if config.warm_start is not None:
            _warm_start(config, material)
        with _scorer(config, material.task) as scorer:
            scorer.check(material.task.rows[0].columns)  # a misspelt column is found now, not at the first score
            runtime = self._assemble(material, scorer)
            runtime.run(config.total_steps, config.update_steps, config.train_epochs)
        assert self.trainer is not None
        save_model(material.model, material.tokenizer, folder.path / "model")
        return self.trainer.state

    def summary(self) -> dict[str, Any]:
        """What the header says of how far the run came."""
        if self.trainer is None:
            return {}
        state = self.trainer.state
        return {
            **({"stop_reason": state.stop_reason} if state.stop_reason else {}),
            "stopped_by": state.stopped_by,
            "steps_run": state.global_step,
            "policy_version": state.policy_version,
            "weights_digest": weights_digest(weights_of(self.trainer.model)),
            "ledger": self.trainer.source.ledger.as_dict(),
            "evals": _evals_in(state.metrics, [e.name for e in self.config.eval]),
            "callback_errors": self.manager.errors,
        }

    def _assemble(self, material: _Material, scorer: Any) -> LocalRuntime:
        config = self.config
        sampling = Sampling(**config.sampling.model_dump())
        store = WeightStore(wait_timeout=config.wait_timeout)
        store.publish(0, weights_of(material.model))
        self.trainer = trainer = DetachedGRPOTrainer(
            material.model,
            algorithm=build_algorithm(config.algorithm.name, **config.algorithm.params),
            sampling=sampling,
            optimizer=_optimizer_settings(config),
            optimizer_steps=config.total_steps * config.train_epochs,
            store=store,
            settings=StepSettings(
                token_budget=config.optimizer.token_budget,
                old=config.algorithm.old,
                importance_cap=config.algorithm.importance_cap,
            ),
            callbacks=self.manager,
            seed=config.seed,
            evaluators=self._evaluators(material),
            output_dir=config.folder,
            wait_timeout=config.wait_timeout,
        )
        stream = PromptStream(
            material.task,
            material.tokenizer,
            seed=config.seed,
            max_prompt_tokens=_room_for_prompts(material.model, sampling.max_new_tokens),
        )
        book = LeaseBook(_plan(config), stream.__getitem__, sift=trainer.sift, wait_timeout=config.wait_timeout)
        trainer.source = book

        def make_maker(name: str) -> ExperienceMakerHolder:
            engine = build_engine(
                config.engine.kind, material.model, end_ids=material.end_ids, slots=config.engine.slots
            )
            decode = material.tokenizer.decode
            return ExperienceMakerHolder(
                engine=engine,
                decode=lambda ids: str(decode(list(ids), skip_special_tokens=True)),
                scorer=scorer,
                sampling=sampling,
                callbacks=[_ToDriver(self.manager), *(_fresh(callback) for callback in self.maker_callbacks)],
                name=name,
                seed=config.seed,
            )

        patience = Supervision(lease_timeout=config.lease_timeout or config.wait_timeout / 2)
        return LocalRuntime(
            trainer, make_maker, makers=config.makers, book=book, store=store, supervision=patience
        )  # fmt: skip

    def _evaluators(self, material: _Material) -> list[Evaluator]:
        return [
            evaluator_for(section, self.config, material.model, material.tokenizer, material.end_ids, self._steps_done)
            for section in self.config.eval
        ]

    def _steps_done(self) -> int:
        return self.trainer.state.global_step if self.trainer is not None else 0


def _place(config: RunConfig, callbacks: Callbacks) -> tuple[CallbackManager, list[Any]]:
    """The driver's manager with the record and the configured callbacks, and what lives with each maker."""
    configured = [build_callback(section.model_dump()) for section in config.callbacks]
    maker_callbacks: list[Any] = [c for c in configured if isinstance(c, MakerCallback)]
    if isinstance(callbacks, CallbackManager):
        manager = callbacks
    else:
        placement = Placement.of(callbacks or ())
        maker_callbacks += placement.makers
        manager = CallbackManager([*placement.driver, *placement.trainer, *placement.every_trainer])
    manager.add(JsonlMetrics())
    for callback in configured:
        if not isinstance(callback, MakerCallback):
            manager.add(callback)
    return manager, maker_callbacks


class _ToDriver(EveryMoment):
    """Takes a maker's moments to functions that listen in the run's own manager."""

    thread_safe = True  # the driver's manager locks each of its listeners
    uses_asyncio = False

    def __init__(self, driver: CallbackManager) -> None:
        self._driver = driver

    def on_moment(self, event: EventName, payload: Mapping[str, Any]) -> None:
        if MOMENTS[event].scope is Scope.MAKER:
            self._driver.fire(event, *payload.values())


def _fresh(given: Any) -> BaseCallback:
    """A maker's own copy of a callback where a factory can make one; an instance is shared, and locked."""
    made: BaseCallback = given if isinstance(given, BaseCallback) else given()
    return made


def _load_material(config: RunConfig) -> _Material:
    section = config.model
    task = (
        builtin_task(config.task.source, "train", seed=config.seed, **_count(config))
        if config.task.source in BUILTIN
        else load_task(config.task.source, prompt_column=config.task.prompt_column)
    )
    task = replace(task, rows=task.rows[: config.task.count])
    source: Any = section.path if section.path is not None else section.config
    model = load_model(
        source,
        dtype=section.dtype,
        device=section.device,
        seed=config.seed,
        trust_remote_code=section.trust_remote_code,
    )
    tokenizer = _tokenizer(config)
    ends = getattr(model.generation_config, "eos_token_id", None)
    end_ids = ends if isinstance(ends, list) else [tokenizer.eos_token_id if ends is None else ends]
    if section.config is not None:
        end_ids = [tokenizer.eos_token_id]
    return _Material(model, tokenizer, task, [int(end) for end in end_ids])


def _count(config: RunConfig) -> dict[str, int]:
    return {} if config.task.count is None else {"count": config.task.count}


def _tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    folder = config.model.tokenizer or config.model.path
    if folder is None and config.task.source in BUILTIN:
        from ..tasks.builtin.characters import tokenizer

        return tokenizer()
    if folder is None:
        raise ValueError("a model made from configuration has no tokenizer: give model.tokenizer, a folder")
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, trust_remote_code=config.model.trust_remote_code
    )
    return loaded


def _warm_start(config: RunConfig, material: _Material) -> None:
    assert config.warm_start is not None
    settings = OptimizerSettings(learning_rate=config.warm_start.learning_rate)
    sft(
        material.model,
        material.tokenizer,
        material.task,
        steps=config.warm_start.steps,
        batch_size=config.warm_start.batch_size,
        optimizer=settings,
        seed=config.seed,
    )


def _scorer(config: RunConfig, task: Task) -> Any:
    rewards: Any = config.reward.functions or task.reward
    if not rewards:
        raise ValueError(f"the task {task.name} brings no reward: give reward.functions")
    if config.reward.workers == 0:
        return _Closing(InlineRewards(rewards, weights=config.reward.weights))
    return RewardWorkers(
        rewards, weights=config.reward.weights, timeout=config.reward.timeout, workers=config.reward.workers
    )


class _Closing:
    """Gives rewards that need no closing the form of those that do."""

    def __init__(self, rewards: InlineRewards) -> None:
        self._rewards = rewards

    def __enter__(self) -> InlineRewards:
        return self._rewards

    def __exit__(self, *_: object) -> None: ...


def _plan(config: RunConfig) -> LeasePlan:
    return LeasePlan(
        prompts_per_step=config.prompts_per_step,
        lease_prompts=config.prompts_per_lease,
        group_size=config.sampling.group_size,
        total_steps=config.total_steps,
        update_steps=config.update_steps,
        max_staleness=config.max_staleness,
        schedule=config.schedule,
        buffer_limit=config.buffer_limit,
        seed=config.seed,
    )


def _optimizer_settings(config: RunConfig) -> OptimizerSettings:
    return OptimizerSettings(**config.optimizer.model_dump(exclude={"token_budget"}))


def _room_for_prompts(model: PreTrainedModel, max_new_tokens: int) -> int | None:
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and context <= max_new_tokens:
        raise ValueError(
            f"sampling.max_new_tokens={max_new_tokens} leaves no room for a prompt in the context of {context} tokens"
        )
    return None if context is None else context - max_new_tokens


def _evals_in(metrics: dict[str, Any], names: Iterable[str]) -> dict[str, dict[str, float]]:
    """The last scores of each eval, as the state's metrics hold them."""
    return {
        name: {key.removeprefix(f"{name}."): value for key, value in metrics.items() if key.startswith(f"{name}.")}
        for name in names
    }
