"""The norms of gradients, layer by layer: which part of the model learns, and where gradients vanish or explode."""

from __future__ import annotations

from collections.abc import Iterable

from ..data.gradients import Gradients
from ..errors import CallbackConfigError
from ..lifecycle.current import current_state
from ..lifecycle.hooks import TrainerCallback
from ..lifecycle.policy import ErrorPolicy, Priority

PREFIX = "grad_norm."
"""Of the names of its metrics."""


class GradientNorms(TrainerCallback):
    """Logs the norm of the gradients of each layer every so many steps, before clipping, as `grad_norm.<layer>`.

    Parameters of a decoder layer are one group, such as `layers.0`; the others are grouped by their module, such as
    `embed_tokens`. The squares of all norms of a step add up to the square of `grad_norm`.
    """

    priority = Priority.METRICS
    error_policy = ErrorPolicy.DISABLE

    def __init__(self, *, every: int = 10) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise CallbackConfigError(f"every={every!r}: log the norms every so many steps, 1 or more")
        self.every = every

    def on_gradients_ready(self, gradients: Gradients) -> None:
        state = current_state()
        if state is None or (state.global_step + 1) % self.every:
            return
        for group, norm in gradient_norms(gradients).items():
            state.log(f"{PREFIX}{group}", norm)


def gradient_norms(gradients: Gradients) -> dict[str, float]:
    """The norm of each group of parameters, in the order of the model."""
    import torch  # slow to import, and all other callbacks are listed without it

    norms: dict[str, list[torch.Tensor]] = {}
    groups = group_names(gradients)
    for name, gradient in gradients.items():
        norms.setdefault(groups[name], []).append(torch.linalg.vector_norm(gradient.float()))
    return {group: float(torch.linalg.vector_norm(torch.stack(parts))) for group, parts in norms.items()}


def group_names(parameters: Iterable[str]) -> dict[str, str]:
    """The group of each parameter: its decoder layer, or else its module.

    >>> names = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "critic.model.layers.0.norm.weight"]
    >>> list(group_names(names).values())
    ['embed_tokens', 'layers.0', 'critic.layers.0']
    """
    return {name: _group(name) for name in parameters}


def _group(name: str) -> str:
    critic, parts = "", name.split(".")
    if parts[0] == "critic":
        critic, parts = "critic.", parts[1:]
    number = next((place for place, part in enumerate(parts) if part.isdigit()), 0)
    if number:
        return f"{critic}{parts[number - 1]}.{parts[number]}"
    return f"{critic}{parts[-2] if len(parts) > 1 else parts[0]}"
