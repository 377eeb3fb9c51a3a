"""The routes, over Starlette."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from buddy_gen.errors import BuddyError
from buddy_gen.serve.answers import chat_prompt, completion_prompts, generate_choices
from buddy_gen.serve.api_error import ApiError, invalid
from buddy_gen.serve.engine import Engine
from buddy_gen.serve.parameters import (
    Common,
    Limits,
    parse_chat,
    parse_completion,
    parse_detokenize,
    parse_tokenize,
)
from buddy_gen.serve.responses import ChatWriter, CompletionWriter, Writer, event
from buddy_gen.serve.scheduler import Job, Scheduler
from buddy_gen.serve.text_work import TextWork, dump_ids

__all__ = ["Settings", "make_app"]

_log = logging.getLogger("buddy.serve")
_Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Settings:
    """What a server is started with."""

    model: str  # the name under which it is served
    max_tokens: int
    max_body_bytes: int = 4 * 2**20
    api_key: str | None = None
    body_seconds: float = 30  # in which a body must have arrived
    created: int = 0  # when the model was built, in seconds since 1970


def make_app(engine: Engine, scheduler: Scheduler, settings: Settings) -> ASGIApp:
    """The server's application. `scheduler` is its own; whoever made both stops it and closes the engine."""
    api = _Api(engine, scheduler, settings)
    routes = [
        Route("/health", api.guarded(api.health, secret=False), methods=["GET"]),
        Route("/v1/models", api.guarded(api.models), methods=["GET"]),
        Route("/v1/models/{name:path}", api.guarded(api.model), methods=["GET"]),
        Route("/v1/chat/completions", api.guarded(api.chat), methods=["POST"]),
        Route("/v1/completions", api.guarded(api.completion), methods=["POST"]),
        Route("/tokenize", api.guarded(api.tokenize), methods=["POST"]),
        Route("/detokenize", api.guarded(api.detokenize), methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    return _AccessLog(app)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = "There is nothing at this path; see /v1/models, /v1/chat/completions, /v1/completions."
        return _error_response(ApiError(404, message, code="unknown_url"))
    message = f"{request.method} is not what this path takes."
    headers = dict(error.headers or {})
    return _error_response(ApiError(error.status_code, message, code="method_not_allowed", headers=headers))


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _json_response(json.dumps(value, ensure_ascii=False, separators=(",", ":")), status, headers)


def _json_response(content: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="application/json")


def _error_response(error: ApiError) -> Response:
    return _json(error.body(), error.status, error.headers)


def _as_api_error(error: ApiError | BuddyError) -> ApiError:
    return error if isinstance(error, ApiError) else ApiError(500, str(error), kind="server_error")


def _failure(error: Exception) -> ApiError:
    """A mistake of the server's own; its traceback goes to the log."""
    _log.error("A request failed.", exc_info=error)
    return ApiError(500, f"The server failed ({type(error).__name__}).", kind="server_error")


class _Api:
    def __init__(self, engine: Engine, scheduler: Scheduler, settings: Settings) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._settings = settings
        self._text_work = TextWork(scheduler.most_waiting)
        self._limits = Limits(settings.model, settings.max_tokens, engine.info.vocab_size)

    def guarded(self, handler: _Handler, *, secret: bool = True) -> _Handler:
        """The handler with every error turned into an answer, and behind the API key."""

        async def handle(request: Request) -> Response:
            try:
                if secret:
                    self._authorize(request)
                return await handler(request)
            except (ApiError, BuddyError) as error:
                return _error_response(_as_api_error(error))
            except ClientDisconnect:
                return Response(status_code=499)  # nobody reads it
            except Exception as error:
                return _error_response(_failure(error))

        return handle

    async def health(self, _request: Request) -> Response:
        return _json({"status": "ok", "busy": self._scheduler.busy, "waiting": self._scheduler.waiting})

    async def models(self, _request: Request) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._settings.model:
            shown = name if len(name) <= 64 else name[:64] + "..."
            raise ApiError(404, f"There is no model '{shown}' here.", param="model", code="model_not_found")
        return _json(self._model())

    def _model(self) -> dict[str, Any]:
        info = self._engine.info
        return {
            "id": self._settings.model,
            "object": "model",
            "created": self._settings.created,
            "owned_by": "buddy-gen",
            "context_length": info.context,
            "vocab_size": info.vocab_size,
        }

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)

        def answer() -> Response:
            wanted = parse_tokenize(body)
            self._require_text()
            ids = self._engine.tokenize(
                wanted.content, add_special=wanted.add_special, parse_special=wanted.parse_special
            )
            return _json_response(f'{{"tokens":{dump_ids(ids)}}}')

        return await self._text_work.run(answer)

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request)

        def answer() -> Response:
            ids = parse_detokenize(body, self._limits)
            self._require_text()
            return _json({"content": self._engine.detokenize(ids)})

        return await self._text_work.run(answer)

    def _require_text(self) -> None:
        if not self._engine.info.has_text:
            raise invalid("This model was built without a tokenizer.", code="no_tokenizer")

    async def chat(self, request: Request) -> Response:
        wanted = await asyncio.to_thread(parse_chat, await self._body(request), self._limits)
        prompts = [await asyncio.to_thread(chat_prompt, self._engine, wanted)]
        return await self._answer(request, wanted.common, prompts, ChatWriter)

    async def completion(self, request: Request) -> Response:
        wanted = await asyncio.to_thread(parse_completion, await self._body(request), self._limits)
        prompts = await asyncio.to_thread(completion_prompts, self._engine, wanted)
        return await self._answer(request, wanted.common, prompts, CompletionWriter)

    def _authorize(self, request: Request) -> None:
        if self._settings.api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            key.encode("latin-1"), self._settings.api_key.encode()
        ):
            raise ApiError(
                401,
                "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, request: Request) -> bytes:
        """The request's body, refused when it is too large, too slow or says that it is no JSON."""
        _check_content_type(request.headers.get("content-type", ""))
        most = self._settings.max_body_bytes
        body = bytearray()
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= most:
                        body += chunk
                    elif size > 16 * most:  # a client that only reads once it has sent all is let finish, within limits
                        break
        except TimeoutError:
            raise ApiError(408, f"The body took more than {self._settings.body_seconds:g} s.", code="timeout") from None
        if size > most:
            message = f"The body is larger than the {most} bytes that this server takes."
            raise ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
        return bytes(body)

    async def _answer(
        self, request: Request, common: Common, prompts: list[list[int]], writer_class: type[Writer]
    ) -> Response:
        writer = writer_class(
            self._engine,
            self._settings.model,
            len(prompts) * common.choices,
            prompts,
            with_usage=common.include_usage,
            with_scores=common.sampling.likely_count >= 0,
        )
        job = self._scheduler.submit(generate_choices(self._engine, prompts, common))
        response: Response | None = None
        try:
            if common.stream:
                response = await _unless_disconnected(request, self._stream(job, writer, common))
            else:
                response = await _unless_disconnected(request, _whole(job, writer))
            return response
        finally:
            if not isinstance(response, _EventStream):
                self._scheduler.cancel(job)

    async def _stream(self, job: Job, writer: Writer, common: Common) -> Response:
        """Starts a stream with its first event, so that what fails before has a status of its own."""
        events = job.events()
        first = await anext(events, None)

        async def chunks() -> AsyncIterator[bytes]:
            try:
                if first is not None:
                    for chunk in writer.take(first):
                        yield event(chunk)
                async for item in events:
                    yield b"".join(map(event, writer.take(item)))
                if common.include_usage:
                    yield event(writer.usage_chunk())
                yield b"data: [DONE]\n\n"
            except (ApiError, BuddyError) as error:
                yield event(_as_api_error(error).body())
            except Exception as error:
                yield event(_failure(error).body())

        return _EventStream(chunks(), lambda: self._scheduler.cancel(job))


def _check_content_type(value: str) -> None:
    """JSON in UTF-8; other parameters than the character set make no difference."""
    kind, *parameters = (part.strip().lower() for part in value.split(";"))
    if kind != "application/json":
        raise ApiError(415, "Content-Type must be application/json.", code="unsupported_media_type")
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name.strip() == "charset" and charset.strip().strip('"') not in ("utf-8", "utf8"):
            message = "The body's character set must be UTF-8; leave charset out of Content-Type."
            raise ApiError(415, message, code="unsupported_media_type")


async def _whole(job: Job, writer: Writer) -> Response:
    async for item in job.events():
        writer.take(item)
    return _json(writer.whole())


async def _unless_disconnected(request: Request, answer: Any) -> Response:
    """The answer.

    Raises:
        ClientDisconnect: The client left before there was one.
    """
    working = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        response: Response = working.result()
        return response
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _EventStream(StreamingResponse):
    """Server-sent events; `ended` is called when the last was sent, or when the client has gone."""

    def __init__(self, chunks: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(chunks, media_type="text/event-stream; charset=utf-8", headers=headers)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientDisconnect):
                await super().__call__(scope, receive, send)
        finally:
            self._ended()


class _AccessLog:
    """A line on stderr for each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            path = scope["path"].encode("unicode_escape").decode()[:200]
            _log.info("%s %s %s %.2f s", scope["method"], path, status or "-", time.monotonic() - start)
