"""A vLLM server as an engine: requests stream over HTTP, weights go to it in files.

The server samples by vLLM's own rule, so its tokens are not those of Proa's engines for the same seed. What it reports
is checked: whose weights sampled each token, and that log-probabilities are the policy's.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ...data.versions import NO_VERSION
from ...errors import ProaError, SettingError
from ..protocol import EngineBusyError, Progress, Request, check_request, refuse_second
from ..weights import places_of
from .checks import ServerFacts, check_sampling, inspect
from .client import Event, Server, ServerError, ServerGoneError, Stream
from .independence import is_independent
from .open_request import OpenRequest, OtherTokensError
from .turns import Turn
from .weight_files import WeightFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..description import ModelDescription

log = logging.getLogger("proa.vllm_server")

KEY = "PROA_VLLM_API_KEY"
"""The environment variable with the server's API key: what is in a configuration is written to the run's folder."""
_POLL_SECONDS = 0.2
"""How long a step waits for something to come."""
_BETWEEN_CALLS = 1.0
"""Seconds between two looks at a server that is gone."""
_LOSSES = 5
"""In a row, with no token between, after which a server is given up."""


class VLLMServerEngine:
    """Decodes at a server, which it shares with nobody but engines of the same machine.

    A server that is gone is waited for, for as long as `patience` says; then it gets the weights again, and the
    requests that it lost. Tokens that were reported of them are expected to come again; where others come, the request
    continues after those that were reported.
    """

    def __init__(
        self,
        description: ModelDescription,
        *,
        address: str,
        slots: int = 0,
        folder: str = "",
        patience: float = 300.0,
        api_key: str = "",
    ) -> None:
        self.check_settings(address=address, patience=patience)
        self._description = description
        self._server = Server(address, api_key or os.environ.get(KEY, ""), patience)
        self._patience = patience
        self._turn = Turn(self._server.address)
        outline = description.outline()
        embeddings: Any = outline.get_input_embeddings()
        self._vocabulary = int(embeddings.weight.shape[0])
        self._weights = WeightFiles(self._server, folder, places_of(outline), description.dtype, patience)
        self._version = NO_VERSION
        self._open: dict[str, OpenRequest] = {}
        self._waiting: deque[OpenRequest] = deque()
        self._kept: dict[str, tuple[int, ...]] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._facts: ServerFacts = self._call(lambda: inspect(self._server, description))
        self._slots = slots or self._facts.most_sequences
        self._is_ready = False
        """Whether the server is there and has this engine's weights, as far as is known."""
        self._gone_since: float | None = None
        self._losses = 0
        self._is_independent = False
        with self._my_turn():
            self._is_independent = is_independent(
                self._server, vocabulary=self._vocabulary, context=self.context_length, patience=patience
            )

    @staticmethod
    def check_settings(*, address: str, patience: float = 300.0, **_: Any) -> None:
        """Raise for what is seen to be wrong without a server, before a run has begun."""
        Server(address, "", patience)
        if not patience > 0:
            raise SettingError(f"engine.params.patience is {patience}: write the seconds to wait for the server")

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def context_length(self) -> int:
        return self._facts.context_length

    @property
    def free(self) -> int:
        return max(0, self._slots - len(self._open))

    @property
    def is_independent(self) -> bool:
        return self._is_independent

    @property
    def applies_adapters(self) -> bool:
        """Whether an adapter need not be merged for it."""
        return self._facts.largest_rank > 0

    @property
    def dtype(self) -> torch.dtype:
        """In which it computes."""
        return self._description.dtype

    @property
    def versions(self) -> tuple[int, ...]:
        return () if self._version == NO_VERSION else (self._version,)

    # -- requests ------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        refuse_second(request, self._open)
        if request.version not in self.versions:
            raise SettingError(f"request {request.id} wants weights of version {request.version}, which are not loaded")
        if request.continues and request.continues not in self._kept:
            raise SettingError(f"request {request.id} continues {request.continues!r}, which was not kept")
        before = self._kept.get(request.continues, ())
        check_request(request, context_length=self.context_length, vocabulary=self._vocabulary, continued=len(before))
        check_sampling(request.sampling, self._facts)
        self._kept.pop(request.continues, None)
        one = OpenRequest(request, (*before, *request.tokens))
        self._open[request.id] = one
        self._waiting.append(one)

    def cancel(self, request_id: str) -> None:
        self._kept.pop(request_id, None)
        one = self._open.pop(request_id, None)
        if one is None:
            return
        one.close()
        self._waiting = deque(other for other in self._waiting if other is not one)
        self._leave_if_idle()

    def step(self) -> list[Progress]:
        """What has come since the last step; nothing where the server took longer than a moment."""
        if not self._open:
            return []
        if not self._turn.is_mine:
            if not self._turn.take(_POLL_SECONDS):
                return []
            self._is_ready = False  # another engine may have had the server
        if not self._is_ready and not self._get_ready():
            return []
        self._send_waiting()
        try:
            events = [self._events.get(timeout=_POLL_SECONDS)]
        except queue.Empty:
            return []
        while not self._events.empty():
            events.append(self._events.get())
        progress = [one for event in events if (one := self._take(event)) is not None]
        self._leave_if_idle()
        return progress

    def _send_waiting(self) -> None:
        live = sum(one.stream is not None for one in self._open.values())
        if live and self._turn.is_wanted():
            return  # as soon as these have ended it is another engine's turn
        while self._waiting and live < self._slots:
            one = self._waiting.popleft()
            content = {
                "token_ids": one.prompt_sent, "stream": True, **self._weights.of_a_request,
                "sampling_params": one.params(self._description.end_ids),
            }  # fmt: skip
            one.stream = Stream(self._server, one.request.id, content, self._events)
            live += 1

    # -- what comes ----------------------------------------------------------------------------------

    def _take(self, event: Event) -> Progress | None:
        one = self._open.get(event.stream.request_id)
        if one is None or one.stream is not event.stream:
            return None  # it was cancelled, or is asked for anew
        if event.choice is None or event.choice.get("finish_reason") == "abort":
            self._lost(event)
            return None
        self._check_versions(event.choice)
        try:
            progress = one.take(event.choice)
        except OtherTokensError as problem:
            log.warning("%s: it continues after what was reported", problem)
            one.continue_reported()
            self._waiting.append(one)
            return None
        self._losses = 0
        if progress is not None and progress.finish_reason is not None:
            del self._open[one.request.id]
            if one.request.keep:
                self._kept[one.request.id] = (*one.prompt, *one.tokens)
        return progress

    def _check_versions(self, choice: Mapping[str, Any]) -> None:
        others = {str(span["version"]) for span in choice.get("weight_versions") or ()} - {self._weights.tag}
        if others:
            raise ProaError(
                f"the vLLM server at {self._server.address} sampled with weights {', '.join(sorted(others))}, which "
                "are not this engine's: somebody else uses it. Each maker needs a server of its own"
            )

    # -- when the server is gone ---------------------------------------------------------------------

    def _lost(self, event: Event) -> None:
        """A stream ended early. If that was the server's end, wait for it; all that it lost is asked for anew."""
        error = event.error
        if isinstance(error, ServerError) and not error.is_temporary:
            raise SettingError(f"the vLLM server refuses request {event.stream.request_id}: {error}") from error
        lost = [one for one in self._open.values() if one.stream is not None]
        for one in lost:
            one.close()
        self._losses += 1
        if self._losses >= _LOSSES:
            raise ProaError(
                f"the vLLM server at {self._server.address} lost its requests {_LOSSES} times in a row: "
                f"{error or 'it dropped them'}"
            ) from error
        self._waiting.extendleft(reversed(lost))
        self._is_ready, self._gone_since = False, time.monotonic()
        log.warning(
            "the vLLM server at %s lost %d requests (%s): waiting for it, for %g s at most", self._server.address,
            len(lost), error or "it dropped them", self._patience,
        )  # fmt: skip

    def _get_ready(self) -> bool:
        """Look once whether the server is there, and give it the weights; a ProaError past the deadline. Nobody waits
        here for long, so that a run can be stopped meanwhile."""
        since = self._gone_since
        try:
            if since is not None:
                self._facts = inspect(self._server, self._description)  # another may stand there now
            if self._version != NO_VERSION:
                self._weights.push_if_needed()
        except (ServerGoneError, ServerError) as error:
            self._gone_since = since = time.monotonic() if since is None else since
            self._check_patience(since + self._patience, error)
            time.sleep(_BETWEEN_CALLS)
            return False
        if since is not None:
            self._say_it_is_back(since)
        self._is_ready, self._gone_since = True, None
        return True

    def _check_patience(self, end: float, error: ProaError) -> None:
        """Raise what is the user's to mend at once, and anything past the deadline."""
        if isinstance(error, ServerError) and not error.is_temporary:
            raise error
        if time.monotonic() >= end:
            raise ProaError(
                f"the vLLM server at {self._server.address} was not available for {self._patience:g} s: {error}. Start "
                "it, or set engine.params.patience"
            ) from error

    def _call(self, work: Callable[[], Any]) -> Any:
        """The result of what the server must be there for. It is waited for, and looked at anew when it comes back."""
        gone_since: float | None = None
        while True:
            try:
                if gone_since is not None:
                    self._facts = inspect(self._server, self._description)
                result = work()
            except (ServerGoneError, ServerError) as error:
                if gone_since is None:
                    gone_since = time.monotonic()
                    log.warning("waiting for the vLLM server at %s: %s", self._server.address, error)
                self._check_patience(gone_since + self._patience, error)
                time.sleep(_BETWEEN_CALLS)
                continue
            if gone_since is not None:
                self._say_it_is_back(gone_since)
            return result

    def _say_it_is_back(self, gone_since: float) -> None:
        seconds = time.monotonic() - gone_since
        log.warning("the vLLM server at %s is there again, after %.0f s", self._server.address, seconds)

    # -- weights -------------------------------------------------------------------------------------

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        if self._open or self._kept:
            raise EngineBusyError(
                f"version {version} cannot be loaded while sequences of version {self._version} are decoded or kept"
            )
        with self._my_turn():
            before, self._version = self._version, NO_VERSION
            try:
                self._weights.write(weights, version, largest_rank=self._facts.largest_rank)
            except ValueError:  # they do not fit: those before are still there
                self._version = before
                raise
            self._call(self._weights.push_if_needed)
            self._version = version

    def _ensure_weights(self) -> None:
        """Have the server compute with this engine's weights, if it does not."""
        if self._version != NO_VERSION:
            self._call(self._weights.push_if_needed)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Of each sequence's tokens but the first, by a pass over all: vLLM has no decode steps for given tokens."""
        with self._my_turn():
            self._ensure_weights()
            return [self._call(partial(self._score, tokens)) for tokens in sequences]

    def _score(self, tokens: Sequence[int]) -> torch.Tensor:
        if len(tokens) < 2:
            return torch.empty(0)
        params = {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False, "ignore_eos": True}
        content = {"token_ids": list(tokens), "sampling_params": params, **self._weights.of_a_request}
        answer = self._server.ask("POST", "/inference/v1/generate", content, seconds=self._patience)
        for choice in answer["choices"]:
            self._check_versions(choice)
        return torch.tensor([
            said[str(token)]["logprob"] for token, said in zip(tokens[1:], answer["prompt_logprobs"][1:], strict=True)
        ])  # fmt: skip

    def sleep(self) -> None:
        """The server's memory is its own."""

    # -- turns ---------------------------------------------------------------------------------------

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Inside, no other engine of this machine uses the server."""
        if not self._turn.is_mine and not self._turn.take(self._patience):
            self._turn.leave()
            raise ProaError(f"other engines used the vLLM server at {self._server.address} for {self._patience:g} s")
        try:
            yield
        finally:
            self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if not self._open:
            self._turn.leave()
