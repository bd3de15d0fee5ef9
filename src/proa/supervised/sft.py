"""Supervised fine-tuning: the model learns the tokens of answers, or of the assistant in conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Unpack, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..config.supervised_settings import SFTSettings
from ..data.experience import BufferItem, Experience, merge, split
from ..data.loop import TrainingBatch
from ..data.messages import Messages, is_conversation, is_message
from ..data.state import LoopState
from ..learning.optimizer import Optimizer, OptimizerSettings
from ..policy.log_probs import action_statistics, check_causal
from ..policy.measuring import measuring
from ..policy.micro_batches import plan_micro_batches, take_rows
from ..policy.packing import check_packing, pack, pack_lengths, packed_log_probs
from ..spelling import did_you_mean
from ..tasks.completions import check_fits, completion_tokens, conversation_tokens, document_tokens
from ..tasks.overlong import Overlong, cut_prompt, leave_out_overlong, say_cut
from ..tasks.prompts import template_values
from ..tasks.task import Task, TaskError, TaskRow
from .training import BatchOrder, HeldOut, LoopOptions, SupervisedStep, check_context, make_optimizer, run_loop

_COMPLETION = "completion"
"""What TRL calls the column of answers."""


def fit_sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    *,
    steps: int | None = None,
    batch_size: int = 32,
    epochs: int = 1,
    settings: SFTSettings | None = None,
    optimizer: OptimizerSettings | Optimizer | None = None,
    token_budget: int = 16_384,
    overlong: Overlong = "error",
    seed: int = 0,
    held_out: HeldOut[Task] | None = None,
    **loop: Unpack[LoopOptions],
) -> LoopState:
    """Train `model` in place for `epochs` times `steps` steps (None: one pass over the rows).

    The loss is the mean over all learned tokens of a batch, whatever the micro-batches and the packing. A row is a
    prompt and its answer (in `answer_column`, or as TRL has it in `completion`), both text or messages; or a
    conversation that ends with the assistant's message, of which that message is learned, or with `every_answer` all
    of the assistant's; or, without a prompt, a text that is learned whole.
    """
    settings = settings or SFTSettings()
    settings = replace(settings, max_length=check_context(model, settings.max_length))
    examples = Examples(task, tokenizer, settings, overlong).fitting()
    order = BatchOrder(len(examples), batch_size, steps, epochs, seed)
    for row in order.drawn():
        examples[row]  # an unusable row raises before the first step
    say_cut(examples.cut, len(examples), f"task {task.name!r}")
    check_causal(model)
    if settings.packing:
        check_packing(model, max(len(examples[row].sequences) for row in order.drawn()))
    evaluator = None
    if held_out is not None:
        score = held_out_loss(model, examples.of(held_out.data).fitting(), token_budget)
        evaluator = held_out.evaluator(score)
    return run_loop(
        SFTStep(model, make_optimizer(model, optimizer, order), token_budget, packing=settings.packing),
        lambda rows: TrainingBatch(merge([examples[row] for row in rows]), "cross_entropy"),
        order,
        evaluator,
        **loop,
    )


@dataclass
class Examples:
    """The rows of a task as tokens, some of which are learned; each is made at its first use."""

    task: Task
    tokenizer: PreTrainedTokenizerBase
    settings: SFTSettings = field(default_factory=SFTSettings)
    overlong: Overlong = "error"
    cut: int = field(default=0, init=False)
    """How many rows lost the beginning of their prompt so far."""
    _made: dict[int, BufferItem] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.task.rows):
            raise TaskError(f"the task {self.task.name} has no rows")

    def __len__(self) -> int:
        return len(self.task.rows)

    def __getitem__(self, row: int) -> BufferItem:
        if row not in self._made:
            self._made[row] = self._item(self.task.rows[row], f"the task {self.task.name}, row {row}")
        return self._made[row]

    def of(self, task: Task) -> Examples:
        """The rows of another task, with the same settings."""
        return replace(self, task=task)

    def fitting(self) -> Examples:
        """The same, without rows that are too long if `overlong` is `drop`."""
        if self.overlong != "drop":
            return self
        kept = leave_out_overlong(self.task.rows, self.__getitem__, f"task {self.task.name!r}")
        return self.of(replace(self.task, rows=kept))

    def _item(self, row: TaskRow, where: str) -> BufferItem:
        tokens, learned = self._tokens(row, where)
        first = learned.index(True)
        room = first if self.settings.max_length is None else self.settings.max_length - (len(tokens) - first)
        if self.overlong == "truncate_left" and 0 < room < first:
            prompt = cut_prompt(tokens[:first], room, self.tokenizer)
            tokens, learned, first = prompt + tokens[first:], learned[first - room :], room
            self.cut += 1
        check_fits(first, len(tokens) - first, self.settings.max_length, where=where, what="answer")
        if self.settings.train_on_prompt:
            first, learned = 1, [False] + [True] * (len(tokens) - 1)
        return BufferItem(
            torch.tensor(tokens),
            torch.zeros(len(tokens) - first),
            attention_mask=torch.ones(len(tokens), dtype=torch.bool),
            action_mask=torch.tensor(learned[first:]),
        )

    def _tokens(self, row: TaskRow, where: str) -> tuple[tuple[int, ...], list[bool]]:
        column = self._column(row)
        if column is None and is_conversation(row.prompt):
            assert not isinstance(row.prompt, str)
            return self._conversation(row.prompt, row, where)
        answer = self._answer(row, column, where)
        if row.prompt == "" and isinstance(answer, str):
            return document_tokens(answer, self.tokenizer, where=where)
        if isinstance(row.prompt, str):
            if not isinstance(answer, str):
                raise TaskError(
                    f"{where}: the prompt is text and {column} is messages: give both as text, or the prompt as "
                    "[{'role': 'user', 'content': …}]"
                )
            prompt, completion = completion_tokens(row.prompt, answer, self.tokenizer, where=where)
            return prompt + completion, [False] * len(prompt) + [True] * len(completion)
        messages = [*row.prompt, *([{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer)]
        return self._conversation(messages, row, where, given=len(row.prompt))

    def _conversation(
        self, messages: Messages, row: TaskRow, where: str, *, given: int | None = None
    ) -> tuple[tuple[int, ...], list[bool]]:
        return conversation_tokens(
            messages,
            self.tokenizer,
            every_answer=self.settings.every_answer,
            given=given,
            values=template_values(row.columns, where),
            where=where,
        )

    def _column(self, row: TaskRow) -> str | None:
        """The column of the answer: the configured one, or by default also `completion`, as in TRL's datasets."""
        named = self.settings.answer_column
        names = (named, *((_COMPLETION,) if named == SFTSettings.answer_column else ()))
        return next((name for name in names if name in row.columns), None)

    def _answer(self, row: TaskRow, column: str | None, where: str) -> str | Messages:
        answer = None if column is None else row.columns[column]
        if answer is None:
            near = did_you_mean(self.settings.answer_column, row.columns)
            raise TaskError(
                f"{where} has nothing in column {self.settings.answer_column!r} to learn from{near} (it has: "
                f"{', '.join(row.columns) or 'none'}); name yours under task, e.g. columns: {{answer: NAME}}"
            )
        if isinstance(answer, str) or is_conversation(answer):
            return cast("str | Messages", answer)
        if is_message(answer):
            return [answer]
        if isinstance(answer, bool | int | float):
            return str(answer)
        raise TaskError(
            f"{where}: {column} is some text, or messages like [{{'role': 'assistant', 'content': …}}], "
            f"not {answer!r:.60}"
        )


class SFTStep(SupervisedStep):
    """A step on the mean loss over a batch's learned tokens."""

    def __init__(self, model: PreTrainedModel, optimizer: Optimizer, token_budget: int, *, packing: bool) -> None:
        super().__init__(optimizer)
        self._model = model
        self._token_budget = token_budget
        self._parts = _packed_parts if packing else _padded_parts

    def find_gradients(self, batch: TrainingBatch) -> dict[str, float]:
        experience: Experience = batch.data
        assert experience.action_mask is not None
        tokens = int(experience.action_mask.sum())
        loss = 0.0
        for log_probs in self._parts(self._model, experience, self._token_budget):
            part = -log_probs.sum() / tokens
            self.optimizer.backward(part)
            loss += float(part.detach())
        return {"loss": loss, "tokens": float(tokens)}


def held_out_loss(model: PreTrainedModel, examples: Examples, token_budget: int) -> Callable[[], dict[str, float]]:
    """A score for an `Evaluator`: `eval_loss`, the mean over all learned tokens, and `perplexity`, its exponential."""
    items = [examples[row] for row in range(len(examples))]
    plan = plan_micro_batches([len(item.sequences) for item in items], token_budget)
    tokens = sum(int(item.action_mask.sum()) for item in items if item.action_mask is not None)

    def score() -> dict[str, float]:
        total = 0.0
        with measuring(model):
            for rows in plan:
                total -= float(_masked_log_probs(model, merge([items[row] for row in rows])).sum())
        loss = torch.tensor(total / tokens, dtype=torch.float64)
        return {"eval_loss": float(loss), "perplexity": float(loss.exp())}  # inf, where math.exp would raise

    return score


def _padded_parts(model: PreTrainedModel, experience: Experience, token_budget: int) -> Iterator[torch.Tensor]:
    assert experience.attention_mask is not None
    for rows in plan_micro_batches(experience.attention_mask.sum(-1).tolist(), token_budget):
        yield _masked_log_probs(model, take_rows(experience, rows))


def _masked_log_probs(model: PreTrainedModel, micro: Experience) -> torch.Tensor:
    assert micro.attention_mask is not None
    assert micro.action_mask is not None
    device = model.device
    statistics = action_statistics(
        model, micro.sequences.to(device), micro.attention_mask.to(device), micro.action_log_probs.shape[1]
    )
    return statistics.log_probs_BA.masked_fill(~micro.action_mask.to(device), 0)


def _packed_parts(model: PreTrainedModel, experience: Experience, token_budget: int) -> Iterator[torch.Tensor]:
    """Samples packed into rows as long as the longest, so that packing saves padding and adds no attention."""
    items = split(experience)
    lengths = [len(item.sequences) for item in items]
    plan = pack_lengths(lengths, max(lengths))
    learned = []
    for item in items:
        assert item.action_mask is not None
        learned.append(torch.cat([torch.zeros(item.prompt_length, dtype=torch.bool), item.action_mask]))
    packed = pack([item.sequences for item in items], learned, plan)
    for rows in plan_micro_batches([sum(lengths[sample] for sample in row) for row in plan], token_budget):
        yield packed_log_probs(model, packed.take(rows).to(model.device))
