"""The section `environment`: what answers a model between its turns, and how far a conversation may go."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .sections import Section


class EnvironmentSection(Section):
    """Limits hold for tools and agents too."""

    path: str | None = Field(
        None, description="dotted path of an environment: a class, an object, or a function that makes one"
    )
    params: dict[str, Any] = Field(default_factory=dict, description="what the class or the function is called with")
    max_turns: int = Field(8, ge=1, description="turns of the model in one conversation")
    max_trajectory_tokens: int | None = Field(
        None, ge=2, description="tokens of a conversation, answers included; by default the model's context"
    )
    call_timeout: float = Field(30.0, gt=0, le=1e6, description="seconds for one call of a tool")
    step_timeout: float = Field(60.0, gt=0, le=1e6, description="seconds for one answer of an environment")
    trajectory_timeout: float = Field(600.0, gt=0, le=1e6, description="seconds for a whole conversation")
    workers: int = Field(2, ge=1, le=1024, description="processes of each maker that environments live in")
    memory_gib: float | None = Field(4.0, gt=0, description="the most memory of such a process; null is no limit")
