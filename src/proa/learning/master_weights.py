"""Float32 weights behind a model of lower precision: they are trained, and the model holds a rounded copy.

A bfloat16 has 8 bits of precision. A step of AdamW changes a weight by about the learning rate, and at 1e-5 that is
below the last of these bits for all but the smallest weights: in bfloat16 it would be rounded away, step after step.
So the optimizer steps float32 weights (the *masters*), which are rounded into the model after each step. Gradients
come from the backward pass in the model's dtype and are summed in float32, over micro-batches and over trainers.

    parameter (bfloat16)  ── backward ──►  parameter.grad  ── gather_gradients ──►  master.grad (float32)
            ▲                                                                            │ AdamW
            └───────────────────────────── round_into_model ◄───────────────────  master (float32)

A parameter in float32 or more is its own master, without copies or rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


class MasterWeights:
    """The weights that an optimizer steps, for named parameters of a model."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, exact: bool = True) -> None:
        """Unless `exact`, every parameter is its own master, whatever its dtype."""
        self.stepped = {name: _make_master(parameter) if exact else parameter for name, parameter in parameters.items()}
        """The trained weights by name: a float32 master, or the parameter itself."""
        self._rounded = {
            name: parameter for name, parameter in parameters.items() if self.stepped[name] is not parameter
        }

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The masters that are not the model's own parameters, by name; not copies."""
        self.follow_model()
        return {name: self.stepped[name].detach() for name in self._rounded}

    def gather_gradients(self) -> None:
        """Move the gradients from the model to the masters, adding them up in float32."""
        for name, parameter in self._rounded.items():
            if parameter.grad is None:
                continue
            master, gradient = self.stepped[name], parameter.grad.to(torch.float32)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def zero_grad(self) -> None:
        for parameter in (*self._rounded.values(), *self.stepped.values()):
            parameter.grad = None

    @torch.no_grad()
    def follow_model(self) -> None:
        """Take over weights of the model that were changed since they were rounded."""
        if not self._rounded:
            return
        differences = [(one != self.stepped[name].to(one.dtype)).any() for name, one in self._rounded.items()]
        for name, is_changed in zip(self._rounded, torch.stack(differences).tolist(), strict=True):  # one wait for all
            if is_changed:
                parameter, master = self._rounded[name], self.stepped[name]
                changed = parameter != master.to(parameter.dtype)
                master.copy_(torch.where(changed, parameter.to(torch.float32), master))

    @torch.no_grad()
    def copy_model(self) -> None:
        """Set the masters to the model's present weights."""
        for name, parameter in self._rounded.items():
            self.stepped[name].copy_(parameter)

    @torch.no_grad()
    def round_into_model(self) -> None:
        if self._rounded:
            torch._foreach_copy_(list(self._rounded.values()), [self.stepped[name] for name in self._rounded])

    @torch.no_grad()
    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Restore saved masters of the same names and shapes, and round them into the model."""
        for name in self._rounded:
            self.stepped[name].copy_(saved[name])
        self.round_into_model()


def _make_master(parameter: nn.Parameter) -> nn.Parameter:
    if torch.promote_types(parameter.dtype, torch.float32) == parameter.dtype:
        return parameter
    return nn.Parameter(parameter.detach().to(torch.float32))
