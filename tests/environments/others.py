"""Faithful small stand-ins for environments of other libraries: what adapters see of them, without the libraries."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")


@dataclass
class StepResult(Generic[ObsT]):
    """OpenEnv's."""

    observation: ObsT
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


@dataclass(kw_only=True)
class EchoAction:
    message: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class EchoObservation:
    echoed: str = ""
    length: int = 0
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class EnvClient(Generic[ActT, ObsT]):
    """OpenEnv's, as far as it goes: async, with the server in this object."""

    def __init__(self, base_url: str):
        self._url = base_url
        self.closed = False

    async def reset(self, **given):
        await asyncio.sleep(0)
        return self._parse_result({"observation": {"echoed": f"{self._url} {given.get('seed')}"}})

    async def step(self, action: ActT):
        await asyncio.sleep(0)
        text = self._step_payload(action)["message"]
        return self._parse_result(
            {"observation": {"echoed": text, "length": len(text)}, "reward": 0.5, "done": text == "bye"}
        )

    async def close(self):
        self.closed = True

    def _step_payload(self, action):
        raise NotImplementedError

    def _parse_result(self, payload):
        raise NotImplementedError


class EchoClient(EnvClient[EchoAction, EchoObservation]):
    def _step_payload(self, action):
        return {"message": action.message}

    def _parse_result(self, payload):
        rest = {name: payload.get(name) for name in ("reward", "done")}
        return StepResult(EchoObservation(**payload["observation"]), rest["reward"], bool(rest["done"]))


class GenericClient(EnvClient[dict[str, Any], dict[str, Any]]):
    def _step_payload(self, action):
        return action

    def _parse_result(self, payload):
        return StepResult(payload["observation"], payload.get("reward"), payload.get("done", False))


class SyncEchoClient(EchoClient):
    """As OpenEnv's older HTTP clients are."""

    def reset(self, **given):
        return asyncio.run(super().reset(**given))

    def step(self, action):
        return asyncio.run(super().step(action))

    def close(self):
        pass


class BaseTextEnv:
    """SkyRL-Gym's."""

    def __init__(self):
        self.turns = 0
        self.max_turns = 1

    def step(self, action: str):
        pass

    def init(self, prompt):
        return prompt, {}

    def close(self):
        pass


class Sums(BaseTextEnv):
    def __init__(self, env_config: Any = None, extras: dict[str, Any] = {}):  # noqa: B006 - as theirs are
        super().__init__()
        self.truth = extras["reward_spec"]["ground_truth"]
        self.max_turns = extras.get("max_turns", 2)

    def step(self, action: str):
        self.turns += 1
        reward = float(action.strip() == self.truth)
        done = reward == 1.0 or self.turns >= self.max_turns
        observations = [] if done else [{"role": "user", "content": "Try again."}]
        return {"observations": observations, "reward": reward, "done": done, "metadata": {}}


class Guess:
    """A classic text environment, with gymnasium's five values."""

    def reset(self, *, seed=None, options=None):
        self._number = str(seed % 10) if not options else str(options["number"])
        return "Guess a digit.", {}

    def step(self, action):
        right = action == self._number
        return ("Right!" if right else "Wrong."), float(right), right, False, {}

    def close(self):
        pass


class OldGuess:
    """The same as it was before gymnasium."""

    def reset(self):
        return "Guess a digit."

    def step(self, action):
        return "Right!" if action == "7" else "Wrong.", int(action == "7"), action == "7", {}


class Game:
    """TextArena's, for one player."""

    def reset(self, num_players: int, seed=None):
        assert num_players == 1
        self._seen, self._rewards = f"[GAME] Seed {seed}.", None

    def get_observation(self):
        return 0, self._seen

    def step(self, action: str):
        self._rewards = {0: 1} if action == "[7]" else None
        self._seen = f"[GAME] You said {action}."
        return self._rewards is not None, {}

    def close(self):
        return self._rewards, {0: {"role": "Player 0"}}


class Discrete:
    def __init__(self):
        self.n = 4

    def sample(self):
        return 0


class Lake:
    """Its actions are numbers."""

    action_space = Discrete()

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}
