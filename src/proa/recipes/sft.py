"""Supervised fine-tuning on prompts and answers: the model learns the answer's tokens, the prompt is masked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.experience import BufferItem, Experience, merge
from ..data.loop import TrainingBatch
from ..data.state import TrainState
from ..lifecycle.manager import Callbacks
from ..loop import Evaluator, SupervisedLoop
from ..policy.log_probs import action_statistics
from ..policy.micro_batches import plan_micro_batches, take_rows
from ..policy.optimizer import Optimizer, OptimizerSettings
from ..tasks.prompts import tokenise
from ..tasks.task import Task, TaskError, TaskRow


def sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    *,
    steps: int,
    batch_size: int = 32,
    optimizer: OptimizerSettings | None = None,
    answer_column: str = "answer",
    seed: int = 0,
    token_budget: int = 16_384,
    callbacks: Callbacks = None,
    evaluators: Sequence[Evaluator] = (),
) -> TrainState:
    """Train `model` in place on the task's answers for `steps` steps, in an order drawn from `seed`.

    The loss is the mean over the answers' tokens of a batch, whatever the micro-batches.
    """
    examples = _Examples(task, tokenizer, answer_column)
    step = _supervised_step(
        model, Optimizer(model.named_parameters(), optimizer or OptimizerSettings(), steps), token_budget
    )
    loop = SupervisedLoop(step, callbacks=callbacks, evaluators=evaluators)
    return loop.fit(lambda _epoch: examples.batches(batch_size, seed), max_steps=steps)


class _Examples:
    """The rows of a task as token sequences, made when they are first drawn."""

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, answer_column: str) -> None:
        if not task.rows:
            raise TaskError(f"the task {task.name} has no rows")
        if answer_column not in task.rows[0].columns:
            raise TaskError(f"the task {task.name} has no column {answer_column!r} to learn from")
        self._rows = task.rows
        self._tokenizer = tokenizer
        self._answer_column = answer_column

    def batches(self, batch_size: int, seed: int) -> Iterator[TrainingBatch]:
        """Batches without end; each pass over the rows is a new permutation."""
        generator = torch.Generator().manual_seed(seed)
        order: list[int] = []
        while True:
            while len(order) < batch_size:
                order += torch.randperm(len(self._rows), generator=generator).tolist()
            rows, order = order[:batch_size], order[batch_size:]
            yield TrainingBatch(merge([self._item(self._rows[row]) for row in rows]), "cross_entropy")

    def _item(self, row: TaskRow) -> BufferItem:
        prompt = tokenise(row, self._tokenizer, where="a row")
        answer = self._tokenizer(str(row.columns[self._answer_column]), add_special_tokens=False)["input_ids"]
        ids = [*answer, self._tokenizer.eos_token_id]
        tokens = torch.tensor([*prompt, *ids])
        return BufferItem(
            tokens,
            torch.zeros(len(ids)),
            attention_mask=torch.ones(len(tokens), dtype=torch.bool),
            action_mask=torch.ones(len(ids), dtype=torch.bool),
        )


def _supervised_step(
    model: PreTrainedModel, optimizer: Optimizer, token_budget: int
) -> Callable[[TrainingBatch], dict[str, float]]:
    def step(batch: TrainingBatch) -> dict[str, float]:
        experience: Experience = batch.data
        assert experience.attention_mask is not None
        assert experience.action_mask is not None
        tokens = int(experience.action_mask.sum())
        optimizer.zero_grad()
        loss = 0.0
        for rows in plan_micro_batches(experience.attention_mask.sum(-1).tolist(), token_budget):
            loss += _backward(model, take_rows(experience, rows), tokens)
        outcome = optimizer.step(loss == loss)
        metrics = {"loss": loss, "grad_norm": outcome.grad_norm, "learning_rate": outcome.learning_rate}
        return metrics | ({"skipped": 1.0} if outcome.skipped else {})

    return step


def _backward(model: PreTrainedModel, micro: Experience, tokens: int) -> float:
    assert micro.attention_mask is not None
    actions = micro.action_log_probs.shape[1]
    statistics: Any = action_statistics(
        model, micro.sequences.to(model.device), micro.attention_mask.to(model.device), actions
    )
    loss = -statistics.log_probs_BA.sum() / tokens
    loss.backward()
    return float(loss.detach())
