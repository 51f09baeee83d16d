"""A dashboard in a process of its own, and the packets of `textual.drivers.web_driver` between it
and a browser.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import WSCloseCode, WSMsgType, web

from hpcdash.child_process import ChildProcess
from hpcdash.domain.text import visible
from hpcdash.errors import excerpt

# First output of the driver.
_PRELUDE = b"__GANGLION__\n"
# For the app to keep what was typed and to close its connections.
END_SECONDS = 5.0
_CHUNK_BYTES = 1 << 16
# No screen is as large.
_MAX_PACKET_BYTES = 1 << 24
# Most typed bytes, for an app that reads nothing.
_MAX_UNREAD_BYTES = 1 << 22
_MAX_STDERR_BYTES = 4000
_SMALLEST, _LARGEST = (20, 5), (1000, 500)


async def run_dashboard(
    argv: Sequence[str], browser: web.WebSocketResponse, width: str, height: str
) -> None:
    """Run `argv` for a browser, until one of them ends; the other is then ended too.

    Neither is read faster than the other takes it. `width` and `height` are the browser's, in
    cells.
    """
    columns, rows = _size(
        *(int(side) if side.isascii() and side.isdigit() else 0 for side in (width[:9], height[:9]))
    )
    environment = {
        **os.environ,
        "TEXTUAL_DRIVER": "hpcdash.web.driver:BrowserDriver",
        "TEXTUAL_COLOR_SYSTEM": "truecolor",
        "COLUMNS": str(columns),
        "ROWS": str(rows),
    }
    try:
        dashboard = ChildProcess(argv, stdin=subprocess.PIPE, environment=environment)
    except OSError as error:
        await show_text(browser, f"hpcdash cannot be started: {error.strerror}")
        return
    try:
        stdin = await dashboard.open_stdin()
        showing = asyncio.create_task(_show(dashboard, browser))
        try:
            await _pass_on(browser, stdin)
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await showing
    finally:
        # The end of its input is to the app what a closed terminal is.
        dashboard.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await dashboard.wait()
        finally:
            await dashboard.terminate()


async def show_text(browser: web.WebSocketResponse, text: str) -> None:
    """Put lines on the browser's screen, in place of what was there."""
    lines = "\r\n".join(map(visible, text.splitlines()))
    with suppress(ConnectionError):
        await browser.send_bytes(f"\x1b[?1049l\x1b[0m\x1b[2J\x1b[H{lines}\r\n".encode())


async def _show(dashboard: ChildProcess, browser: web.WebSocketResponse) -> None:
    """Send the browser what the app draws; once that has ended, what it complained of, and close
    the connection.
    """
    complaining = asyncio.create_task(_last_bytes(await dashboard.read(2, _CHUNK_BYTES)))
    stdout = await dashboard.read(1, _CHUNK_BYTES)
    try:
        try:
            await stdout.readuntil(_PRELUDE)
            while True:
                kind, size = (
                    await stdout.readexactly(1),
                    int.from_bytes(await stdout.readexactly(4), "big"),
                )
                if size > _MAX_PACKET_BYTES:
                    break
                packet = await stdout.readexactly(size)
                # Other kinds are for downloads, which are not supported here.
                if kind == b"D":
                    await browser.send_bytes(packet)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                if await dashboard.wait():
                    await show_text(browser, excerpt(await complaining, _MAX_STDERR_BYTES))
        await browser.close()
    finally:
        complaining.cancel()


async def _last_bytes(stream: asyncio.StreamReader) -> bytes:
    stored = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        stored = (stored + chunk)[-_MAX_STDERR_BYTES:]
    return stored


async def _pass_on(browser: web.WebSocketResponse, stdin: asyncio.WriteTransport) -> None:
    """Pass a person's input to the app, until the browser is gone or sends an invalid message."""
    async for message in browser:
        match _parsed(message.data) if message.type is WSMsgType.TEXT else None:
            case ["stdin", str(typed)]:
                packet = _packet(b"D", typed.encode("utf-8", "replace"))
            case ["resize", {"width": int(width), "height": int(height)}]:
                columns, rows = _size(width, height)
                packet = _meta({"type": "resize", "width": columns, "height": rows})
            case ["focus" | "blur" as kind]:
                packet = _meta({"type": kind})
            case ["ping", str(moment)]:
                await browser.send_json(["pong", moment])
                continue
            case _:
                await browser.close(code=WSCloseCode.POLICY_VIOLATION)
                return
        if stdin.is_closing() or stdin.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            return
        stdin.write(packet)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _packet(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


def _meta(message: dict[str, object]) -> bytes:
    return _packet(b"M", json.dumps(message).encode())


def _size(*sides: int) -> tuple[int, ...]:
    return tuple(
        min(max(side, least), most)
        for side, least, most in zip(sides, _SMALLEST, _LARGEST, strict=True)
    )
