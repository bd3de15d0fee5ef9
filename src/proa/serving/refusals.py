"""Errors of the endpoint, in OpenAI's format, each with a sentence that says what to do."""

from __future__ import annotations

from typing import Any

from ..errors import ProaError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(ProaError):  # noqa: N818 - it is no failure
    """A request that is not answered: the status, and for the client what is wrong with which parameter."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(status, message, code, param, retry_after)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        """Seconds; 0 for a request that fails again in the same way."""

    def __str__(self) -> str:
        return self.message

    @property
    def content(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        if self.retry_after:
            return {"retry-after": str(self.retry_after)}
        # Clients of OpenAI repeat requests after some errors, unless they are told not to.
        return {"x-should-retry": "false"} | ({"www-authenticate": "Bearer"} if self.status == 401 else {})
