"""Errors as OpenAI's API has them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from typing import Any

__all__ = ["ApiError", "invalid"]


class ApiError(Exception):
    """An answer to a request that cannot be served; the message is one sentence."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self._fields = {"message": message, "type": kind, "param": param, "code": code}

    def body(self) -> dict[str, Any]:
        return {"error": dict(self._fields)}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A 400 about one parameter."""
    return ApiError(400, message, param=param, code=code)
