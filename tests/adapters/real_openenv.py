"""An echo environment of the real package OpenEnv: server and client, as its template has them."""

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed: str = ""
    length: int = 0


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **_):
        return EchoObservation(echoed=f"ready {seed}", done=False)

    def step(self, action, timeout_s=None, **_):
        text = action.message
        return EchoObservation(echoed=text, length=len(text), reward=0.5, done=text == "bye")

    @property
    def state(self):
        return State()


class EchoClient(EnvClient[EchoAction, EchoObservation, State]):
    def _step_payload(self, action):
        return {"message": action.message}

    def _parse_result(self, payload):
        seen = payload.get("observation", {})
        observation = EchoObservation(echoed=seen.get("echoed", ""), length=seen.get("length", 0))
        return StepResult(observation, payload.get("reward"), payload.get("done", False))

    def _parse_state(self, payload):
        return State(**payload)


def sync_client(base_url):
    return EchoClient(base_url).sync()


def serve(port):
    import uvicorn

    app = create_fastapi_app(Echo, EchoAction, EchoObservation, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
