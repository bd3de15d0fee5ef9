"""A small model learns to sort six digits, with callbacks in all three styles.

python examples/lifecycle_demo.py [--seed 0] [--max-steps 600] [--output-dir runs/lifecycle_demo]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from proa import Callback, CallbackManager, LoopState, TrainerCallback, TrainingBatch
from proa.callbacks import ConsoleProgress, JsonlMetrics
from proa.callbacks.console import sparkline
from proa.loop import ScoreFunction, SupervisedLoop

DIGITS, LENGTH, WIDTH, BATCH, HELD_OUT = 10, 6, 64, 256, 512


class Sorter(nn.Module):
    """Reads six digits and predicts, for each place, the digit after sorting."""

    def __init__(self) -> None:
        super().__init__()
        self.digit = nn.Embedding(DIGITS, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, DIGITS)

    def forward(self, digits_BL: torch.Tensor) -> torch.Tensor:
        logits_BLD: torch.Tensor = self.out(self.encoder(self.digit(digits_BL) + self.place))
        return logits_BLD


class StopWhenGoodEnough(Callback):
    """Style 1, a loop callback: it gets evals by name and may stop the run."""

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        if metrics["exact"] >= 0.99:
            state.stop_training(f"exact match reached {metrics['exact']:.1%}")


class GradientWatch(TrainerCallback):
    """Style 2, a trainer callback: it keeps the largest gradient norm, also across a resume."""

    state_key = "gradient_watch"

    def __init__(self) -> None:
        self.largest = 0.0

    def on_batch_end(self, metrics: dict[str, float], experience: object) -> None:
        self.largest = max(self.largest, metrics.get("grad_norm", 0.0))

    def state_dict(self) -> dict[str, float]:
        return {"largest": self.largest}

    def load_state_dict(self, saved: dict[str, float]) -> None:
        self.largest = saved["largest"]


def main() -> None:
    options = parse_options()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    model = Sorter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    held_out = torch.randint(DIGITS, (HELD_OUT, LENGTH), generator=torch.Generator().manual_seed(options.seed + 1))
    scores: list[float] = []

    callbacks = CallbackManager([StopWhenGoodEnough(), JsonlMetrics(), ConsoleProgress(every=20)])
    watch = callbacks.add(GradientWatch())

    @callbacks.on("eval_end")  # style 3, a function: its parameters name items of the payload
    def remember(metrics: dict[str, float]) -> None:
        scores.append(metrics["exact"])

    def training_step(batch: TrainingBatch) -> dict[str, float]:
        logits_BLD = model(batch.data)
        loss = nn.functional.cross_entropy(logits_BLD.flatten(0, 1), batch.data.sort().values.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss.item(), "grad_norm": grad_norm.item(), "learning_rate": optimizer.param_groups[0]["lr"]}

    def batches(_epoch: int) -> Iterator[TrainingBatch]:
        generator = torch.Generator().manual_seed(options.seed)
        while True:
            yield TrainingBatch(torch.randint(DIGITS, (BATCH, LENGTH), generator=generator), "cross_entropy")

    before = predict(model, held_out)
    loop = SupervisedLoop(
        training_step,
        callbacks=callbacks,
        evaluators=[
            ScoreFunction("sort_digits", lambda: {"exact": exact(model, held_out)}, run_every=10, baseline=True)
        ],
        output_dir=options.output_dir,
    )
    state = loop.fit(batches, max_steps=options.max_steps)
    show_result(state, callbacks, held_out, before, predict(model, held_out), scores, watch)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=600)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/lifecycle_demo"))
    return parser.parse_args()


@torch.no_grad()
def predict(model: Sorter, digits_BL: torch.Tensor) -> torch.Tensor:
    answers_BL: torch.Tensor = model(digits_BL).argmax(-1)
    return answers_BL


def exact(model: Sorter, digits_BL: torch.Tensor) -> float:
    return float((predict(model, digits_BL) == digits_BL.sort().values).all(-1).double().mean())


def show_result(
    state: LoopState,
    callbacks: CallbackManager,
    held_out: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
    scores: list[float],
    watch: GradientWatch,
) -> None:
    console = Console()
    table = Table(title=f"sorting six digits, {HELD_OUT} held-out prompts", title_justify="left")
    for column in ("prompt", "before", "after", "right"):
        table.add_column(column)
    for prompt, was, now in zip(held_out[:6], before, after, strict=False):
        right = bool((now == prompt.sort().values).all())
        table.add_row(_text(prompt), _text(was), _text(now), "yes" if right else "no")
    table.add_section()
    table.add_row("exact match", f"{scores[0]:.1%}", f"{scores[-1]:.1%}", "")
    console.print(table)
    console.print(f"exact match over the run: {sparkline(scores)}")
    console.print(f"largest gradient norm seen by GradientWatch: {watch.largest:.2f}")
    console.print(f"what the callbacks cost:\n{callbacks.report()}", highlight=False)
    assert state.output_dir is not None
    record = state.output_dir / "metrics.jsonl"
    last = json.loads(record.read_text(encoding="utf-8").splitlines()[-1])
    console.print(f"the record is {record}; its last row: {last}", highlight=False, soft_wrap=True)


def _text(digits: torch.Tensor) -> str:
    return " ".join(map(str, digits.tolist()))


if __name__ == "__main__":
    main()
