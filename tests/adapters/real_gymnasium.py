"""A text environment of the real package gymnasium."""

import gymnasium


class Letters(gymnasium.Env):
    action_space = gymnasium.spaces.Text(10)
    observation_space = gymnasium.spaces.Text(10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "Type a.", {}

    def step(self, action):
        right = action == "a"
        return ("Yes." if right else "No."), float(right), right, False, {}
