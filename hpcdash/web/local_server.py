"""Serves HTTP only to this machine: few and short connections, and only under its own names."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

HERE = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?")


class LocalServer:
    """Serves an application on a listening socket.

    There are at most `max_connections`. A connection is closed if it has no complete request for
    `connection_seconds`, from its start or since it was `busy`. Requests are not logged, as headers
    may contain tokens. `error_answer` builds the answer to a request that does not reach the
    application; its status is 400 if the request is not valid HTTP.
    """

    def __init__(
        self,
        app: web.Application,
        error_answer: Callable[[int], web.Response],
        *,
        max_connections: int,
        connection_seconds: float,
        shutdown_seconds: float,
    ) -> None:
        self._max_connections = max_connections
        self._connection_seconds = connection_seconds
        self._busy: set[object] = set()
        # When each connection was last busy.
        self._answered_at: dict[object, float] = {}
        self._error_answer = error_answer
        self._logger = logging.Logger("hpcdash.web", logging.CRITICAL + 1)
        self._runner = web.AppRunner(app, shutdown_timeout=shutdown_seconds)
        self._listening: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serve the clients of a listening socket."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        create = (
            loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
        )
        self._listening = await create(self._accept, sock=listening)

    async def stop(self) -> None:
        """End all connections."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    @contextmanager
    def busy(self, request: web.Request) -> Iterator[None]:
        """Keep the connection of a request open in this context, while it is answered."""
        handler = request.protocol
        self._busy.add(handler)
        try:
            yield
        finally:
            self._busy.discard(handler)
            if handler.transport is not None:
                self._answered_at[handler] = asyncio.get_running_loop().time()

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._max_connections:
            return _Refusal()
        handler = _Connection(
            server, loop=asyncio.get_running_loop(), access_log=self._logger, logger=self._logger
        )
        handler.error_answer = self._error_answer
        self._drop_later(handler, self._connection_seconds)
        return handler

    def _drop_later(self, handler: RequestHandler, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._drop, handler)

    def _drop(self, handler: RequestHandler) -> None:
        answered_at = self._answered_at.get(handler, float("-inf"))
        if (transport := handler.transport) is None:
            self._answered_at.pop(handler, None)
            return
        remaining = answered_at + self._connection_seconds - asyncio.get_running_loop().time()
        if handler in self._busy:
            remaining = self._connection_seconds
        if remaining > 0:
            self._drop_later(handler, remaining)
            return
        self._answered_at.pop(handler, None)
        # The handler forgets its transport.
        handler.force_close()
        transport.close()


class _Connection(RequestHandler):
    """A connection whose errors show neither aiohttp's version nor its parser's messages."""

    __slots__ = ("error_answer",)
    error_answer: Callable[[int], web.Response]

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        # Raises ConnectionError if part of an answer has been sent.
        super().handle_error(request, status, exc, message)
        answer = self.error_answer(status)
        answer.force_close()
        return answer


class _Refusal(asyncio.Protocol):
    """Closes a connection over the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def refuse_request(request: web.Request, *, needs_origin: bool = False) -> str:
    """Return why a request for another host's name, or from another site, is refused; '' if not."""
    hosts = request.headers.getall("Host", [])
    origins = request.headers.getall("Origin", [])
    if len(hosts) != 1 or not HERE.fullmatch(hosts[0]):
        # Protects against DNS rebinding.
        return "hpcdash answers only requests for 127.0.0.1 and localhost."
    if origins != [f"http://{hosts[0]}"] and (origins or needs_origin):
        return "hpcdash answers only requests from its own page, not from other sites."
    return ""
