"""What honest makers deliver, made without a model; and the plan and prompts of a small run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from proa.data.experience import BufferItem
from proa.data.lease import Delivery, Lease, Prompt
from proa.leases.plan import LeasePlan


def prompt(ordinal: int) -> Prompt:
    return Prompt(ordinal, (1 + ordinal % 7, 2), f"prompt {ordinal}")


def plan(**changes: Any) -> LeasePlan:
    settings = {
        "prompts_per_step": 4, "lease_prompts": 2, "group_size": 2, "total_steps": 6, "update_steps": 2,
        "max_staleness": 1,
    }  # fmt: skip
    return LeasePlan(**{**settings, **changes})


def fulfil(lease: Lease) -> Delivery:
    """One item per sample, stamped with prompt, sample and version; one to three tokens are sampled."""
    items = []
    for one, seeds in zip(lease.prompts, lease.seeds, strict=True):
        for sample, _ in enumerate(seeds):
            length = 1 + (one.ordinal + sample) % 3
            items.append(
                BufferItem(
                    torch.tensor([*one.tokens, *[3] * length]),
                    torch.full((length,), -0.5),
                    versions=torch.full((length,), lease.version),
                    reward=torch.tensor(float((one.ordinal * 31 + sample) % 5)),
                    uid=f"{one.ordinal}/{sample}",
                    group_id=str(one.ordinal),
                )
            )
    return Delivery(lease.id, tuple(items))


def with_item(delivery: Delivery, index: int, **changes: Any) -> Delivery:
    """The same delivery, but for one item."""
    items = list(delivery.items)
    items[index] = replace(items[index], **changes)
    return replace(delivery, items=tuple(items))
