"""The OpenAI-compatible application: routes, and one request's way through them.

Every answer watches its connection: if the client goes, its request is aborted in the scheduler
before the next step and its blocks are free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from llmlab.serve import errors
from llmlab.serve.answers import Answer, ChatAnswer, CompletionAnswer
from llmlab.serve.engine_like import EngineLike
from llmlab.serve.errors import ApiError
from llmlab.serve.guard import Guard
from llmlab.serve.loop import EngineLoop
from llmlab.serve.openapi import document
from llmlab.serve.protocol import ChatRequest, CompletionRequest, GenerateRequest, parse, refused
from llmlab.serve.settings import ServeConfig
from llmlab.trace import Trace

LONG_TEXT = 20_000  # characters; longer prompts are tokenized off the event loop
NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Api:
    """The endpoints of one engine."""

    def __init__(self, loop: EngineLoop, config: ServeConfig) -> None:
        self.loop = loop
        self.config = config
        self.created = int(time.time())
        self.num_streams = 0

    def routes(self) -> list[Route]:
        """Every path and what answers it."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/trace", self.trace),
            Route("/openapi.json", self.openapi),
        ]

    # -- generation -----------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        """Continue a prompt; 16 tokens unless told otherwise, as OpenAI's API does."""
        body = parse(CompletionRequest, await request.body())
        prompt = body.one_prompt()
        if isinstance(prompt, str):
            prompt = await _encoded(self.loop.engine.tokenizer.encode, prompt, len(prompt))
        return await self._answer(request, body, prompt, 16, CompletionAnswer, "cmpl")

    async def chat(self, request: Request) -> Response:
        """Answer a conversation, up to the end of the context unless told otherwise."""
        body = parse(ChatRequest, await request.body())
        messages = [message.plain() for message in body.messages]
        size = sum(len(message["content"]) for message in messages)
        try:
            prompt = await _encoded(self.loop.engine.tokenizer.chat, messages, size)
        except ValueError as error:  # say, a template that takes no system message
            raise ApiError(400, str(error), param="messages") from error
        return await self._answer(request, body, prompt, None, ChatAnswer, "chatcmpl")

    async def _answer(
        self,
        request: Request,
        body: GenerateRequest,
        prompt: list[int],
        default_max_tokens: int | None,
        kind: Callable[..., Answer],
        prefix: str,
    ) -> Response:
        if body.model != self.config.model_name:
            raise ApiError(
                404,
                f"no model {body.model!r} here; there is {self.config.model_name!r}",
                param="model",
                code="model_not_found",
            )
        params = body.sampling(default_max_tokens)
        streamed = bool(body.stream)
        if streamed and self.num_streams >= self.config.max_streams:
            raise errors.too_busy(f"{self.num_streams} streams are open, as many as allowed")
        self.num_streams += streamed  # before the engine is waited for: that may take a whole step
        try:
            stream = await self.loop.submit(
                prompt,
                params,
                request_id=self._request_id(request, prefix),
                class_name=_name(request, "x-request-class") or "default",
                t_send=request.scope.get("t_arrival"),
            )
        except BaseException as error:
            self.num_streams -= streamed
            if isinstance(error, ValueError):
                raise refused(error) from error
            raise
        answer = kind(body, stream, self.loop.engine.tokenizer)
        return StreamedAnswer(answer, self) if body.stream else WholeAnswer(answer, self)

    def _request_id(self, request: Request, prefix: str) -> str:
        """The client's own id under our prefix; made unique if it was used before."""
        given = _name(request, "x-request-id")
        name = f"{prefix}-{given}"
        if given is None or self.loop.knows(name):
            unique = uuid.uuid4().hex
            name = f"{prefix}-{unique}" if given is None else f"{name}-{unique}"
        return name

    # -- about the server -----------------------------------------------------------------

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.config.model_name,
            "object": "model",
            "created": self.created,
            "owned_by": "llmlab",
            "max_model_len": self.loop.engine.config.max_model_len,
            "vocab_size": self.loop.engine.tokenizer.vocab_size,
        }

    async def models(self, request: Request) -> Response:
        """A list of the one model here."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """The model of this name, or a 404."""
        name = request.path_params["model"]
        if name != self.config.model_name:
            raise ApiError(404, f"no model {name!r} here", param="model", code="model_not_found")
        return JSONResponse(self._card())

    async def health(self, request: Request) -> Response:
        """200, or 503 once the engine has stopped or the server is closing."""
        if self.loop.dead is not None:
            raise errors.unavailable(self.loop.dead)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Counters for Prometheus; see prometheus.py."""
        return PlainTextResponse(
            self.loop.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def trace(self, request: Request) -> Response:
        """The trace so far as JSONL. Copied between two steps, written out beside them."""
        trace = await self.loop.call(_copy_trace)
        return StreamingResponse(_text(trace), media_type="application/x-ndjson")

    async def openapi(self, request: Request) -> Response:
        """The API's own description."""
        return JSONResponse(document(self.config.model_name))


class _Watched(Response):
    """An answer that aborts its request when its connection is gone, whatever the cause."""

    def __init__(self, answer: Answer, api: Api) -> None:
        self.answer = answer
        self.api = api
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        try:
            await self.respond(scope, receive, send)
        finally:
            watcher.cancel()
            self._abort()  # no effect on a request that has ended

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._abort()

    def _abort(self) -> None:
        self.api.loop.abort(self.answer.stream.request_id)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class WholeAnswer(_Watched):
    """One JSON object when all is there; 503 if the request was aborted before."""

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            data = await self.answer.complete()
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        if data is None:  # aborted: the client has gone, or the server is closing
            await errors.unavailable("the request was aborted").response()(scope, receive, send)
            return
        await JSONResponse(data)(scope, receive, send)


class StreamedAnswer(_Watched):
    """Server-sent events as they come; its place among the streams was taken before."""

    HEADERS = (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
    )

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": list(self.HEADERS)}
        try:
            await send(start)
            async for body in self.answer.frames():
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.api.num_streams -= 1


def create_app(engine: EngineLike, config: ServeConfig) -> ASGIApp:
    """The application; its lifespan starts and stops the engine's thread."""
    loop = EngineLoop(
        engine,
        model_name=config.model_name,
        max_live=engine.config.max_num_seqs + config.max_queue,
        trace_requests=config.trace_requests,
        trace_steps=config.trace_steps,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loop.start()
        try:
            yield
        finally:
            await loop.stop()

    app = Starlette(
        routes=Api(loop, config).routes(),
        lifespan=lifespan,
        exception_handlers={
            ApiError: errors.on_api_error,
            HTTPException: errors.on_http_exception,
            Exception: errors.on_crash,
        },
    )
    return Guard(app, config, loop.clock)


async def _encoded(encode: Callable[[Any], list[int]], text: Any, size: int) -> list[int]:
    return await asyncio.to_thread(encode, text) if size > LONG_TEXT else encode(text)


def _copy_trace(engine: EngineLike) -> Trace:
    """Lists of their own; ended records never change, running ones only grow."""
    trace = engine.trace
    return Trace(dict(trace.meta), dict(trace.requests), list(trace.steps))


def _text(trace: Trace, lines_at_once: int = 100) -> Iterator[str]:
    lines = trace.jsonl_lines()
    while part := "".join(itertools.islice(lines, lines_at_once)):
        yield part


def _name(request: Request, header: str) -> str | None:
    """A name the client gave for its request, if it is one that is safe to print and store."""
    value = request.headers.get(header)
    if value is None:
        return None
    if not NAME.fullmatch(value):
        raise ApiError(400, f"{header}: 1 to 128 of A-Z a-z 0-9 . _ : -", param=header)
    return value
