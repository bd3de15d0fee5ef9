"""The section `algorithm`: what learns, by name, by dotted path, or as an object that the record describes."""

from __future__ import annotations

from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from ..dotted import name_of
from ..settings import Settings, changed_settings, make_settings
from .sections import GIVEN, Section, mistake
from .supervised_settings import SUPERVISED, SupervisedSettings

if TYPE_CHECKING:
    from ..algorithms import Algorithm


class AlgorithmSection(Section):
    """The algorithm and its settings."""

    name: str = Field(
        "grpo",
        description="grpo, dr_grpo, dapo, ppo, rloo, gspo, cispo, reinforce_pp, decoupled; sft, dpo, reward_model; or "
        "package.module:Algorithm",
    )
    params: dict[str, Any] = Field(default_factory=dict, description="settings of the algorithm itself, e.g. clip_high")

    def source(self) -> dict[str, Any]:
        """The content that the section was made from: without a default name, and with the object if one was given."""
        content = self.model_dump()
        if "name" not in self.model_fields_set:
            del content["name"]
        return content


class SupervisedAlgorithmSection(AlgorithmSection):
    """An algorithm that learns from data."""

    name: Literal["sft", "dpo", "reward_model"] = Field(description="what is learned from the data")

    def settings(self) -> SupervisedSettings:
        return make_settings(SUPERVISED[self.name], self.params, f"algorithm {self.name!r}")


class DetachedAlgorithmSection(AlgorithmSection):
    """An algorithm by name, by dotted path, or in Python as an object instead of the name."""

    old: Literal["sampler", "trainer"] = Field(
        "sampler",
        description="what the ratio is taken against: the sampler's log-probabilities, or the trainer's first pass",
    )
    importance_cap: float = Field(
        2.0, gt=0, description="with old: trainer, the most that a token's mismatch with the sampler may weigh"
    )
    _given: Algorithm | None = PrivateAttr(None)

    @property
    def given(self) -> Algorithm | None:
        """The object, if one of the user's own class was given; `name` and `params` describe it for the record."""
        return self._given

    def build(self) -> Algorithm:
        """The algorithm with its settings. This imports torch."""
        from ..algorithms import build_algorithm

        return self._given if self._given is not None else build_algorithm(self.name, **self.params)

    def source(self) -> dict[str, Any]:
        content = super().source()
        return content if self._given is None else {**content, "name": self._given, "params": {}}

    @model_validator(mode="wrap")
    @classmethod
    def _take_object(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """An object of a built-in class becomes its name with the changed settings; others are kept."""
        given = value.get("name") if isinstance(value, Mapping) else None
        if given is None or isinstance(given, str | int | float):
            return handler(value)
        from ..algorithms import ALGORITHMS, Algorithm

        if not isinstance(given, Algorithm):
            remedy = f"give an object, {given.__name__}()" if isinstance(given, type) else "derive it from Algorithm"
            raise mistake(f"algorithm must be a name, a dotted path or an algorithm, not {given!r}: {remedy}", "name")
        if value.get("params"):
            raise mistake(
                f"the algorithm {given.name} was given as an object with its settings: leave out algorithm.params",
                "params",
            )
        section = handler({**value, **describe_algorithm(given)})
        section._given = None if ALGORITHMS.get(given.name) is type(given) else given
        return section


def describe_algorithm(given: Algorithm) -> dict[str, Any]:
    """An object as `name` and `params` of a section, for the record: built-in ones can be made from them."""
    from ..algorithms import ALGORITHMS

    is_named = ALGORITHMS.get(given.name) is type(given)
    return {
        "name": given.name if is_named else f"{type(given).__name__} {GIVEN}",
        "params": {key: _recordable(setting) for key, setting in changed_settings(given).items()},
    }


def describe_objects(content: Any) -> Any:
    """Keys and values of a configuration, with algorithms that were given as objects described."""
    if isinstance(content, Mapping):
        described = {key: describe_objects(value) for key, value in content.items()}
        is_section = isinstance(content.get("name"), Settings)  # its name is the object
        return {**described, **described["name"]} if is_section else described
    if isinstance(content, list | tuple):
        return [describe_objects(value) for value in content]
    if isinstance(content, Settings):  # an algorithm, of which no module is imported here for nothing
        return describe_algorithm(cast("Algorithm", content))
    if callable(content):
        return f"{name_of(content)} {GIVEN}"
    return content


def _recordable(setting: Any) -> Any:
    """A setting as JSON; an object by its class, because its address differs from process to process."""
    if isinstance(setting, list | tuple):
        return [_recordable(one) for one in setting]
    if isinstance(setting, set | frozenset):
        return sorted(map(_recordable, setting), key=str)
    if isinstance(setting, Mapping):
        return {str(key): _recordable(one) for key, one in setting.items()}
    if isinstance(setting, type | FunctionType | BuiltinFunctionType):
        return f"{setting.__module__}:{setting.__qualname__}"
    return setting if isinstance(setting, str | int | float | None) else type(setting).__qualname__
