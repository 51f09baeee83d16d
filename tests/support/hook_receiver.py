"""An HTTP server on loopback that keeps what is posted to it and answers as it is told. Asserts nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@dataclass
class Request:
    """`headers` by lower-case name."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HookReceiver:
    """`answers`: the whole answers to the next requests, OK after them; None: nothing, and the line stays open."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    answers: list[bytes | None] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = lines[0].split(" ")
            fields = (line.partition(": ") for line in lines[1:] if line)
            headers = {name.lower(): value for name, _, value in fields}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append(Request(method, path, headers, body))
            answer = self.answers.pop(0) if self.answers else OK
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()


def answer(status: str, body: str = "", *headers: str) -> bytes:
    """`answer("429 Too Many Requests", "", "Retry-After: 7")`."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", body]).encode()


@contextlib.asynccontextmanager
async def hook_receiver(tls: ssl.SSLContext | None = None) -> AsyncIterator[HookReceiver]:
    receiver = HookReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
