"""TextArena's games for one player: `reset(num_players, seed)`, `get_observation()` and `step(text)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..protocol import Message, Start, Step
from ..text import as_text, prompt_messages, said, with_observation
from .adapter import Adapter


class TextArenaEnvironment(Adapter):
    """What the player sees is the user's message; the reward comes with the end of the game.

    Its games draw from Python's one random stream, which all trajectories of a worker share: they do not answer the
    same each time.
    """

    deterministic = False

    def __init__(self, make: Callable[..., Any]) -> None:
        self._env = make()
        self._is_over = False

    @staticmethod
    def fits(kind: type) -> bool:
        return all(callable(getattr(kind, name, None)) for name in ("reset", "get_observation", "step"))

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Start:
        self._env.reset(num_players=1, seed=seed)
        return Start(with_observation(prompt_messages(row.get("prompt")), self._observed()))

    def step(self, message: Message) -> Step:
        done, _ = self._env.step(said(message))
        if not done:
            return Step([{"role": "user", "content": self._observed()}])
        rewards, _ = self._close()
        return Step(reward=(rewards or {}).get(0), done=True)

    def close(self) -> None:
        if not self._is_over:
            self._close()

    def _close(self) -> Any:
        self._is_over = True
        return self._env.close()

    def _observed(self) -> str:
        _, seen = self._env.get_observation()
        if isinstance(seen, list):  # who says what, without a wrapper that makes text of it
            return "\n".join(str(entry[1]) for entry in seen)
        return as_text(seen)
