"""Replaces an engine's weights; everything is checked before anything is copied."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_NOISE = 2**16 - 15  # a prime, so that rows do not repeat


class WeightPlaces:
    """The place of each weight by its Hugging Face name. Names in `tied` are further names of the same places."""

    def __init__(self, places: Mapping[str, torch.Tensor], tied: Mapping[str, str]) -> None:
        self.places = dict(places)
        self._tied = dict(tied)

    @torch.no_grad()
    def fill(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy all weights to their places; raises ValueError, before copying, if they do not fit exactly."""
        sources = self.matched(weights)
        for name, place in self.places.items():
            place.copy_(sources[name])

    @torch.no_grad()
    def fill_with_noise(self) -> None:
        """Fill all places with numbers like a new model's, for trials before weights are loaded."""
        noise = torch.randn(_NOISE, generator=torch.Generator().manual_seed(0))
        for place in self.places.values():
            scaled = noise * min(place.shape) ** -0.5 if place.dim() > 1 else noise * 0.1 + 1.0
            scaled = scaled.to(place)  # in its own place and dtype, as repeating float32 on the host takes seconds
            place.copy_(scaled.repeat(-(-place.numel() // _NOISE))[: place.numel()].view(place.shape))

    def matched(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weight for each place, by the place's name; raises ValueError if they do not fit exactly."""
        sources: dict[str, torch.Tensor] = {}
        unexpected, misshapen, untied = [], [], []
        for name, weight in weights.items():
            main = self._tied.get(name, name)
            if main not in self.places:
                unexpected.append(name)
            elif weight.shape != self.places[main].shape:
                expected = tuple(self.places[main].shape)
                misshapen.append(f"{name} is {tuple(weight.shape)} and should be {expected}")
            elif main in sources and not _same(sources[main], weight):
                untied.append(f"{name} differs from the weight it is tied to")
            else:
                sources[main] = weight
        given = {self._tied.get(name, name) for name in weights}
        missing = [name for name in self.places if name not in given]
        _refuse(missing, unexpected, misshapen + untied)
        return sources


def places_of(model: torch.nn.Module) -> WeightPlaces:
    """The places of a Hugging Face model's own weights; a tied one has its first name."""
    places: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    names: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        main = names.setdefault(id(tensor), name)
        if main == name:
            places[name] = tensor
        else:
            tied[name] = main
    return WeightPlaces(places, tied)


def noise_for(outline: torch.nn.Module, device: torch.device) -> dict[str, torch.Tensor]:
    """Noise in place of every weight of a model on the meta device."""
    shapes = places_of(outline).places
    noise = {name: torch.empty(one.shape, dtype=one.dtype, device=device) for name, one in shapes.items()}
    WeightPlaces(noise, {}).fill_with_noise()
    return noise


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or one.data_ptr() == other.data_ptr() or bool(torch.equal(one, other))


def _refuse(missing: list[str], unexpected: list[str], wrong: list[str]) -> None:
    problems = [
        f"{label}: {_some(names)}"
        for label, names in (("missing", missing), ("unexpected", unexpected), ("wrong", wrong))
        if names
    ]
    if problems:
        raise ValueError(f"these weights do not fit the engine's model, nothing was loaded. {'; '.join(problems)}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
