"""Converts experience to trees of plain values, tensors and arrays for checkpoints, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import torch

from .experience import BufferItem, Experience
from .facts import SampleFacts, TrajectoryFacts
from .lease import Delivery
from .packed_items import Column, PackedItems, pack_items, unpack_items
from .sampling import Sampling


def items_tree(items: Sequence[BufferItem]) -> dict[str, Any]:
    """Items as a few arrays; their settings and facts are plain values."""
    packed = pack_items(items)
    plain = dict(packed.plain)
    if "sampling" in plain:
        plain["sampling"] = tuple(None if one is None else asdict(one) for one in plain["sampling"])
    if "facts" in plain:
        plain["facts"] = tuple(asdict(one) for one in plain["facts"])
    columns = [{f.name: getattr(column, f.name) for f in fields(Column)} for column in packed.columns]
    return {"count": packed.count, "columns": columns, "plain": plain}


def items_from(tree: Mapping[str, Any]) -> tuple[BufferItem, ...]:
    plain = dict(tree["plain"])
    if "sampling" in plain:
        plain["sampling"] = tuple(None if one is None else Sampling(**one) for one in plain["sampling"])
    plain["facts"] = _read_facts(plain)
    return unpack_items(PackedItems(tree["count"], tuple(Column(**column) for column in tree["columns"]), plain))


def delivery_tree(delivery: Delivery) -> dict[str, Any]:
    return {
        "lease_id": delivery.lease_id,
        "items": items_tree(delivery.items),
        "made_by": delivery.made_by,
        "seconds": dict(delivery.seconds),
        "logged": dict(delivery.logged),
    }


def delivery_from(tree: Mapping[str, Any]) -> Delivery:
    logged = tree.get("logged", {})  # version 0.1 had none
    return Delivery(tree["lease_id"], items_from(tree["items"]), tree["made_by"], tree["seconds"], logged=logged)


def experience_tree(experience: Experience) -> dict[str, Any]:
    """A batch with everything computed for it."""
    tree = {f.name: getattr(experience, f.name) for f in fields(Experience)}
    sampling = None if experience.sampling is None else asdict(experience.sampling)
    return tree | {"sampling": sampling, "facts": tuple(asdict(one) for one in experience.facts)}


def experience_from(tree: Mapping[str, Any], device: torch.device | str) -> Experience:
    known = dict(tree)
    known["sampling"] = None if tree["sampling"] is None else Sampling(**tree["sampling"])
    known["facts"] = _read_facts(known)
    experience = Experience(**known)
    experience.to_device(device)
    return experience


def _read_facts(known: dict[str, Any]) -> tuple[SampleFacts, ...]:
    """The facts of a tree's samples; version 0.1 saved them as `notes`, which are removed."""
    notes = known.pop("notes", None)
    if notes is None:
        return tuple(_sample_facts(one) for one in known.get("facts", ()))
    return tuple(
        SampleFacts(
            note.get("finish_reason"), note.get("reward_parts", {}), note.get("error"), note.get("reward_failure")
        )
        for note in notes
    )


def _sample_facts(saved: Mapping[str, Any]) -> SampleFacts:
    trajectory = saved.get("trajectory")
    return SampleFacts(**{**saved, "trajectory": None if trajectory is None else TrajectoryFacts(**trajectory)})
