"""AdamW on float32 weights, with a schedule and clipping. Steps with non-finite numbers are skipped."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..errors import ProaError, SettingError
from ..spelling import did_you_mean
from .master_weights import MasterWeights

log = logging.getLogger("proa.learning")

Schedule: TypeAlias = Literal["constant", "linear", "cosine"]
Kind: TypeAlias = Literal["adamw", "adamw_8bit", "paged_adamw_8bit"]
State: TypeAlias = Literal["float32", "bfloat16"]


class OptimizerError(SettingError):
    """The optimizer cannot use these settings, parameters or saved state."""


class TooManySkippedSteps(ProaError):  # noqa: N818 - says what happened
    """Loss or gradient stayed non-finite for more steps in a row than allowed."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Settings of the optimizer. Steps are counted from 0, including skipped ones."""

    learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    """For matrices; biases and norms are never decayed."""
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    """How many steps rise to the full rate."""
    final_share: float = 0.0
    """The share of the learning rate that a linear or cosine schedule reaches after the last step."""
    max_grad_norm: float = 1.0
    """A longer gradient is shortened to this norm; 0 clips nothing."""
    max_skipped_steps: int = 10
    """How many steps in a row may be skipped because loss or gradient is not finite."""
    kind: Kind = "adamw"
    """The 8-bit ones are bitsandbytes': moments take 2 bytes a weight instead of 8; paged ones move to the host's
    memory where a GPU's is short."""
    state: State = "float32"
    """`bfloat16` trains a model that computes in it without float32 weights: 12 bytes a weight less, and small steps
    are rounded away. For those who know."""

    def __post_init__(self) -> None:
        _require(_is_above_0(self.learning_rate), "learning_rate must be a number above 0", self.learning_rate)
        betas: Sequence[float] = self.betas
        are_shares = len(betas) == 2 and all(_is_share(beta) and beta < 1 for beta in betas)
        _require(are_shares, "betas must be two numbers from 0 to below 1", betas)
        _require(_is_above_0(self.epsilon), "epsilon must be a number above 0", self.epsilon)
        _require(_is_not_negative(self.weight_decay), "weight_decay must be 0 or more", self.weight_decay)
        for setting, known in (("schedule", Schedule), ("kind", Kind), ("state", State)):
            given, names = getattr(self, setting), get_args(known)
            if given not in names:
                near = did_you_mean(str(given), names)
                raise OptimizerError(f"{setting} must be one of {', '.join(names)}, not {given!r}{near}")
        _require(_is_not_negative(self.warmup_steps), "warmup_steps must be 0 or more", self.warmup_steps)
        _require(_is_share(self.final_share), "final_share must be from 0 to 1", self.final_share)
        clips = _is_not_negative(self.max_grad_norm)
        _require(clips, "max_grad_norm must be above 0, or 0 to clip nothing", self.max_grad_norm)
        _require(
            _is_not_negative(self.max_skipped_steps), "max_skipped_steps must be 0 or more", self.max_skipped_steps
        )


def learning_rate_at(step: int, settings: OptimizerSettings, total_steps: int) -> float:
    """The learning rate of a step, counted from 0: warm-up, full rate, then the schedule's decay.

    No step is wasted on a rate of 0: the final share is reached after the last step, not in it.

    >>> settings = OptimizerSettings(learning_rate=1.0, schedule="linear", warmup_steps=1)
    >>> [learning_rate_at(step, settings, total_steps=5) for step in range(6)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / (settings.warmup_steps + 1)
    decaying_steps = max(1, total_steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / decaying_steps)
    share = _DECAY[settings.schedule](progress)
    return settings.learning_rate * (settings.final_share + (1.0 - settings.final_share) * share)


_DECAY: dict[Schedule, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of a step. `grad_norm` is before clipping, and may be non-finite if the step was skipped."""

    grad_norm: float
    learning_rate: float
    skipped: str | None


class Optimizer:
    """AdamW over named parameters. A step whose loss or gradient is not finite changes neither weights nor moments.

    Weights, moments and sums of gradients are float32 at least; parameters of lower precision get the weights rounded
    after each step. So `backward` takes the gradients and adds them up:

        optimizer.zero_grad()
        for part in losses:                 # of micro-batches
            optimizer.backward(part)
        optimizer.step()
    """

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], settings: OptimizerSettings, total_steps: int
    ) -> None:
        _require(total_steps >= 1, "total_steps must be at least 1", total_steps)
        self.settings = settings
        self.total_steps = total_steps
        self.steps = 0
        self.skipped_steps = 0
        self.skipped_in_a_row = 0
        self._weights = MasterWeights(_trainable(parameters), exact=settings.state == "float32")
        self._parameters = self._weights.stepped
        # The plain loop over parameters is the reference, on the CPU; a kernel for each of them is slow on a GPU.
        self._is_on_gpu = all(parameter.is_cuda for parameter in self._parameters.values())
        self._adam = _adam(list(self._parameters.values()), settings, fused=self._is_on_gpu)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters with their gradients, in the order given: the model's own, or float32 weights for
        those of lower precision."""
        return list(self._parameters.values())

    @property
    def masters(self) -> dict[str, torch.Tensor]:
        """The float32 weights of parameters of lower precision, by name; empty for a model in float32."""
        return self._weights.tensors

    def zero_grad(self) -> None:
        self._weights.zero_grad()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a loss to the sum."""
        loss.backward()  # type: ignore[no-untyped-call]
        self._weights.gather_gradients()

    def gradients(self) -> dict[str, torch.Tensor]:
        """The present gradients by parameter name, in float32 at least; not copies."""
        self._weights.gather_gradients()
        return {name: parameter.grad for name, parameter in self._parameters.items() if parameter.grad is not None}

    def step(self, loss_is_finite: bool = True) -> StepOutcome:
        """Update the weights, or skip the step if a number is not finite; either way the schedule advances."""
        learning_rate = learning_rate_at(self.steps, self.settings, self.total_steps)
        self.steps += 1
        self._weights.gather_gradients()  # in case `loss.backward()` was called instead
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        norm = get_total_norm(gradients, foreach=self._is_on_gpu)
        grad_norm = float(norm)
        if not loss_is_finite or not math.isfinite(grad_norm):
            return StepOutcome(grad_norm, learning_rate, self._skip(loss_is_finite))
        if self.settings.max_grad_norm:
            clip_grads_with_norm_(self._parameters.values(), self.settings.max_grad_norm, norm, foreach=self._is_on_gpu)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._weights.follow_model()
        self._adam.step()
        self._weights.round_into_model()
        self.skipped_in_a_row = 0
        return StepOutcome(grad_norm, learning_rate, None)

    def _skip(self, loss_is_finite: bool) -> str:
        self.skipped_steps += 1
        self.skipped_in_a_row += 1
        reason = self._find_cause(loss_is_finite)
        if self.skipped_in_a_row > self.settings.max_skipped_steps:
            raise TooManySkippedSteps(
                f"{self.skipped_in_a_row} steps in a row were skipped, and max_skipped_steps is "
                f"{self.settings.max_skipped_steps}: in the last of them {reason}. Weights and moments "
                "are those of the last good step; look for NaN in these batches' rewards, or lower learning_rate"
            )
        return reason

    def _find_cause(self, loss_is_finite: bool) -> str:
        reasons = [] if loss_is_finite else ["the loss is not finite"]
        for name, parameter in self._parameters.items():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                reasons.append(f"the gradient of {name} is not finite")
                break
        return " and ".join(reasons) or "the norm of the gradient is too large for its dtype"

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to continue bit for bit; settings stay the user's.

        Moments and masters are the optimizer's own, not copies: save them before the next step.
        """
        return {
            "steps": self.steps,
            "skipped_steps": self.skipped_steps,
            "skipped_in_a_row": self.skipped_in_a_row,
            "parameters": list(self._parameters),
            "moments": {
                name: dict(state) for name, one in self._parameters.items() if (state := self._adam.state.get(one))
            },
            "masters": self.masters,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state of parameters with the same names, shapes and dtypes.

        A state of version 0.1 has no masters: they begin as the model's weights, which must be loaded before.
        """
        self._check_fits(state)
        if "masters" in state:
            self._weights.load(state["masters"])
        elif self.masters:
            log.warning(
                "this checkpoint was trained in bfloat16 without float32 weights, as version 0.1 did: small steps were "
                "rounded away. The run continues from the weights as they are, with float32 weights from here on"
            )
            self._weights.copy_model()
        self._load_moments(state["moments"])
        self.steps = state["steps"]
        self.skipped_steps = state["skipped_steps"]
        self.skipped_in_a_row = state["skipped_in_a_row"]

    def _check_fits(self, state: Mapping[str, Any]) -> None:
        if other := set(state["parameters"]) ^ set(self._parameters):
            raise OptimizerError(f"the saved optimizer state is of other parameters: {min(other)} is only in one")
        first = "exp_avg" if self.settings.kind == "adamw" else "state1"
        for name, tensors in state["moments"].items():
            if first not in tensors:
                raise OptimizerError(
                    "the saved optimizer state is of another kind of optimizer: give optimizer.kind as it was"
                )
            saved, ours = tensors[first].shape, self._parameters[name].shape
            if saved != ours:
                raise OptimizerError(
                    f"the saved optimizer state does not fit: {name} was {tuple(saved)} and is {tuple(ours)}"
                )
        self._check_masters_fit(state.get("masters", self.masters))

    def _check_masters_fit(self, saved: Mapping[str, torch.Tensor]) -> None:
        if missing := self.masters.keys() - saved.keys():
            raise OptimizerError(
                f"the saved optimizer state does not fit: the float32 weights of {min(missing)} are missing, which the "
                "model has in less now; give model.dtype as it was"
            )
        if more := saved.keys() - self.masters.keys():
            raise OptimizerError(
                f"the saved optimizer state does not fit: it has float32 weights of {min(more)} beside the model's, "
                "which was in less then; give model.dtype as it was"
            )
        for name, master in self.masters.items():
            if saved[name].shape != master.shape:
                raise OptimizerError(
                    f"the saved optimizer state does not fit: {name} was {tuple(saved[name].shape)} and is "
                    f"{tuple(master.shape)}"
                )

    def _load_moments(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        moments = {
            name: {key: value.clone() if torch.is_tensor(value) else value for key, value in values.items()}
            for name, values in saved.items()
        }
        if self.settings.kind == "adamw":  # torch knows on which device each of its tensors has to be
            indices = self._indices()
            content = {indices[name]: values for name, values in moments.items()}
            self._adam.load_state_dict({"state": content, "param_groups": self._adam.state_dict()["param_groups"]})
            return
        for name, values in moments.items():
            parameter = self._parameters[name]
            self._adam.state[parameter] = {
                key: value.to(parameter.device) if torch.is_tensor(value) else value for key, value in values.items()
            }

    def _indices(self) -> dict[str, int]:
        """torch numbers parameters through its groups; names hold whatever the order."""
        numbers: dict[int, int] = {}
        for group in self._adam.param_groups:
            numbers |= {id(parameter): len(numbers) + i for i, parameter in enumerate(group["params"])}
        return {name: numbers[id(parameter)] for name, parameter in self._parameters.items()}


def _trainable(parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    trainable = {name: parameter for name, parameter in parameters if parameter.requires_grad}
    if not trainable:
        raise OptimizerError("nothing to train: no parameter requires a gradient")
    for name, parameter in trainable.items():
        if parameter.dtype == torch.float16:
            raise OptimizerError(f"{name} is float16, in which small gradients are 0; train in bfloat16 or float32")
    return trainable


def _adam(parameters: list[nn.Parameter], settings: OptimizerSettings, *, fused: bool) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.epsilon}
    groups = [group for group in groups if group["params"]]
    if settings.kind != "adamw":
        eight_bit: torch.optim.Optimizer = _eight_bit(settings.kind)(groups, **options)
        return eight_bit
    return torch.optim.AdamW(groups, foreach=False, fused=fused, **options)


def _eight_bit(kind: Kind) -> Any:
    try:
        optimizers: Any = import_module("bitsandbytes").optim
    except ImportError as error:
        raise OptimizerError(
            f"optimizer.kind {kind} needs the package bitsandbytes: pip install 'proa[8bit]'"
        ) from error
    return optimizers.AdamW8bit if kind == "adamw_8bit" else optimizers.PagedAdamW8bit


def _is_not_negative(given: object) -> bool:
    return isinstance(given, int | float) and math.isfinite(given) and given >= 0  # YAML reads 3e-5 as a string


def _is_above_0(given: object) -> bool:
    return _is_not_negative(given) and given != 0


def _is_share(given: object) -> bool:
    return isinstance(given, int | float) and 0 <= given <= 1


def _require(holds: bool, rule: str, given: object) -> None:
    if not holds:
        raise OptimizerError(f"{rule}, not {given!r}")
