"""The placement of actors: the resources of each, and whether they run together or apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ...errors import SettingError

MIN_CPUS = 0.001
"""The CPUs of a bundle in a placement group without other resources, as none may be empty."""


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """The namespace, resources and placement of actors."""

    namespace: str
    trainer_resources: Mapping[str, Any] = field(default_factory=dict)
    maker_resources: Mapping[str, Any] = field(default_factory=dict)
    placement: str | None = None
    """PACK, SPREAD, STRICT_PACK or STRICT_SPREAD; None leaves it to Ray."""


RESERVED_OPTIONS = ("name", "namespace", "max_restarts")
"""Options of Ray that a run sets itself."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `SettingError` for options of an actor that Ray does not know, or that the run sets itself."""
    if taken := [name for name in RESERVED_OPTIONS if name in options]:
        raise SettingError(f"{taken[0]} is set by the run itself: leave it out")
    try:
        ray.remote(_Actor).options(**options)
    except (ValueError, TypeError) as error:
        raise SettingError(str(error).splitlines()[0]) from None


class _Actor:
    """Never started; Ray checks options against a class."""


class Places:
    """Ray's options for each actor of a run. With a placement, room for all of them is reserved at once."""

    def __init__(self, settings: RaySettings, *, trainers: int, makers: int) -> None:
        self._settings = settings
        self._trainers = trainers
        self._makers = makers
        self._group: PlacementGroup | None = None

    def reserve(self) -> Any:
        """Reserve room for all actors; returns a reference to wait for, or None without a placement."""
        settings = self._settings
        if settings.placement is None:
            return None
        trainer, maker = _bundle(settings.trainer_resources), _bundle(settings.maker_resources)
        self._group = placement_group(
            [trainer] * self._trainers + [maker] * self._makers, strategy=settings.placement
        )  # fmt: skip
        return self._group.ready()

    def trainer_options(self, rank: int) -> dict[str, Any]:
        return self._options(f"trainer_{rank}", self._settings.trainer_resources, rank)

    def maker_options(self, name: str, slot: int) -> dict[str, Any]:
        """A replacement goes where the maker before it was."""
        return self._options(name, self._settings.maker_resources, self._trainers + slot)

    def _options(self, name: str, resources: Mapping[str, Any], place: int) -> dict[str, Any]:
        options = {
            "num_cpus": 0, **resources, "name": name, "namespace": self._settings.namespace, "max_restarts": 0,
        }  # fmt: skip
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, place)
        return options

    def release(self) -> None:
        if self._group is not None and ray.is_initialized():
            remove_placement_group(self._group)


def _bundle(resources: Mapping[str, Any]) -> dict[str, float]:
    named = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    bundle = {named[key]: value for key, value in resources.items() if key in named and value}
    return {"CPU": MIN_CPUS, **bundle, **(resources.get("resources") or {})}
