"""Errors in the shape OpenAI clients read: {"error": {message, type, param, code}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

MAX_MESSAGE = 1000  # characters; a message quotes the bad value, which may be huge


class ApiError(Exception):
    """What went wrong, with the HTTP status it deserves.

    type_ and code are OpenAI's words; param names the field of the request, if one is to blame.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error as JSON, its message cut to MAX_MESSAGE."""
        message = str(self)
        if len(message) > MAX_MESSAGE:
            message = message[:MAX_MESSAGE] + "..."
        error = {"message": message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The whole answer: status, body and headers."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def too_busy(message: str, retry_after_s: int = 1) -> ApiError:
    """429 with the time after which another try makes sense."""
    return ApiError(
        429,
        message,
        type_="rate_limit_error",
        code="server_busy",
        headers={"Retry-After": str(retry_after_s)},
    )


def unavailable(message: str) -> ApiError:
    """503: the server is closing, or its engine has stopped."""
    return ApiError(503, message, type_="server_error", code="unavailable")


def out_of_memory(message: str) -> ApiError:
    """503: this request did not fit beside the others; the message has the numbers that would."""
    return ApiError(503, message, type_="server_error", code="out_of_memory")


async def on_api_error(request: Request, error: Exception) -> JSONResponse:
    """What was raised on purpose."""
    assert isinstance(error, ApiError)
    return error.response()


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own 404 and 405, in the same shape as ours."""
    status = int(getattr(error, "status_code", 500))
    message = {
        404: f"no such path: {request.url.path}; /openapi.json lists what there is",
        405: f"{request.method} is not allowed on {request.url.path}",
    }.get(status, str(getattr(error, "detail", error)))
    headers = getattr(error, "headers", None)
    return ApiError(
        status, message, code="not_found" if status == 404 else None, headers=headers
    ).response()


async def on_crash(request: Request, error: Exception) -> JSONResponse:
    """A bug of ours: say so, and say nothing of the inside."""
    return ApiError(500, "internal error; the server's log has it", type_="server_error").response()
