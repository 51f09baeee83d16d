"""Connections to the server of this machine: one that is used stays, one that is idle goes."""

from __future__ import annotations

import asyncio
import socket

import pytest

pytest.importorskip("aiohttp", reason="the extra [api] is not installed")

from aiohttp import web

from hpcdash.web.local_server import LocalServer

_ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_a_connection_is_closed_once_it_is_idle_and_not_while_it_is_used() -> None:
    async def answer(request: web.Request) -> web.Response:
        with server.busy(request):
            return web.Response(text="here\n")

    app = web.Application()
    app.router.add_get("/", answer)
    server = LocalServer(
        app,
        lambda status: web.Response(status=status),
        max_connections=4,
        connection_seconds=1.5,
        shutdown_seconds=1,
    )
    listening = socket.create_server(("127.0.0.1", 0))
    await server.start(listening)
    try:
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        now = asyncio.get_running_loop().time
        began = now()
        while now() - began < 3.5:
            writer.write(_ASKED)
            assert (await reader.readuntil(b"here\n")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.1)
        assert await reader.read() == b""
        writer.close()
    finally:
        await server.stop()
