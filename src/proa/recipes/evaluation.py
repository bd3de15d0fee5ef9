"""Greedy evals of the trainer's weights, with an engine of their own, while the makers go on."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import ConfigError
from ..config.run_config import EvalSection, RunConfig
from ..data.sampling import Sampling
from ..engines import build_engine
from ..engines.protocol import Engine, Request
from ..loop import Evaluator
from ..policy.whole import whole_weights
from ..private_files import make_private_folder, write_private
from ..record.secrets import redact_values, remember
from ..rewards import InlineRewards
from ..tasks import Task, load_task
from ..tasks.builtin import BUILTIN, builtin_task
from ..tasks.prompts import tokenise
from .material import Material


def evaluator_for(
    section: EvalSection, config: RunConfig, material: Material, steps_done: Callable[[], int]
) -> Evaluator:
    """An evaluator as configured: the mean of its metric over greedy completions of its prompts.

    Each time, the predictions go to `evals/<name>/step_<steps done>.jsonl` in the run folder.
    """
    remember(config.model_dump(mode="json"))  # this may be another process than the one that made the run's folder
    model, tokenizer = material.model, material.tokenizer
    task = _eval_task(section, config)
    scorer = InlineRewards(_metric(section, task))
    rows = task.rows[: section.count]
    requests = [Request(tokenise(row, tokenizer, where=f"eval {section.name}"), (0,)) for row in rows]
    sampling = Sampling(1, section.max_new_tokens or config.sampling.max_new_tokens, temperature=0.0)
    _check_room(section, material, max(len(request.tokens) for request in requests) + sampling.max_new_tokens)
    columns = {name: [row.columns[name] for row in rows] for name in rows[0].columns}
    engines: list[Engine] = []  # built at the first use, kept for the next

    def score() -> dict[str, float]:
        if not engines:
            engines.append(build_engine(config.engine.kind, model, end_ids=material.end_ids, slots=config.engine.slots))
        engines[0].load(whole_weights(model))
        completions = [group[0] for group in engines[0].generate(requests, sampling)]
        texts = [str(tokenizer.decode(c.tokens.tolist(), skip_special_tokens=True)) for c in completions]
        scores = scorer.score([row.prompt for row in rows], texts, columns)
        values = [one.value for one in scores if one.value is not None]
        name = scorer.functions[0].name
        _write_predictions(
            config.folder / "evals" / section.name / f"step_{steps_done()}.jsonl",
            [
                {**row.columns, "prompt": row.prompt, "completion": text, name: one.value, "error": one.error}
                for row, text, one in zip(rows, texts, scores, strict=True)
            ],
        )
        return {
            name: sum(values) / len(values) if values else float("nan"),
            "completion_tokens": sum(map(len, completions)) / len(completions),
        }

    return Evaluator(section.name, score, run_every=section.run_every, baseline=section.baseline)


def _check_room(section: EvalSection, material: Material, longest: int) -> None:
    context = getattr(material.model.config, "max_position_embeddings", None)
    if context is not None and longest > context:
        raise ConfigError(
            f"eval {section.name}: its longest prompt with max_new_tokens is {longest} tokens, and the model's context "
            f"is {context}"
        )


def _write_predictions(path: Path, predictions: list[dict[str, Any]]) -> None:
    """One line each. A key's name says nothing here: a completion, or a column called `token`, is data."""
    lines = [
        json.dumps(prediction, default=lambda value: redact_values(str(value)), ensure_ascii=False)
        for prediction in redact_values(predictions)
    ]
    make_private_folder(path.parent)
    write_private(path, "\n".join(lines) + "\n")


def _eval_task(section: EvalSection, config: RunConfig) -> Task:
    source = eval_source(section, config)
    if source in BUILTIN:
        return builtin_task(source, "test", section.count, config.seed)
    return load_task(source, prompt_column=config.task.prompt_column)


def eval_source(section: EvalSection, config: RunConfig) -> str:
    """Data that is not trained on: what the section names, or the test split of a built-in task."""
    source = section.source or config.task.source
    if section.source is None and source not in BUILTIN:
        raise ConfigError(f"eval {section.name} has no data of its own: give source, what is held out of training")
    return source


def _metric(section: EvalSection, task: Task) -> Any:
    if section.metric is not None:
        return section.metric
    if task.name in BUILTIN:
        return importlib.import_module(f"proa.tasks.builtin.{task.name}").exact
    if task.reward is None:
        raise ConfigError(f"eval {section.name}: the task {task.name} brings no score; give eval.metric")
    return task.reward
