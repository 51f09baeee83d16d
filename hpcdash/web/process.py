"""A dashboard in its own process, and the packets of Textual's web driver between it and a
browser.
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
# Time for the app to save input and close its connections.
END_SECONDS = 5.0
_CHUNK_BYTES = 1 << 16
# Screens are smaller than this.
_MAX_PACKET_BYTES = 1 << 24
# Limit of input that the app has not read.
_MAX_UNREAD_BYTES = 1 << 22
_MAX_STDERR_BYTES = 4000


async def run_dashboard(
    argv: Sequence[str], browser: web.WebSocketResponse, width: str, height: str
) -> None:
    """Run `argv` for a browser until one of them ends, then end the other.

    Neither is read faster than the other reads. `width` and `height` are the browser's, in cells.
    """
    columns, rows = _clamp_size(_parse_side(width), _parse_side(height))
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
        await show_text(browser, f"Cannot start hpcdash: {error.strerror}")
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
        # The app treats the end of its input as a closed terminal.
        dashboard.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await dashboard.wait()
        finally:
            await dashboard.terminate()


async def show_text(browser: web.WebSocketResponse, text: str) -> None:
    """Replace the browser's screen by lines of text."""
    lines = "\r\n".join(map(visible, text.splitlines()))
    with suppress(ConnectionError):
        await browser.send_bytes(f"\x1b[?1049l\x1b[0m\x1b[2J\x1b[H{lines}\r\n".encode())


async def _show(dashboard: ChildProcess, browser: web.WebSocketResponse) -> None:
    """Send the app's screen to the browser, then its errors if it failed; close the connection."""
    stderr = await dashboard.read(2, _CHUNK_BYTES)
    stdout = await dashboard.read(1, _CHUNK_BYTES)

    async def read_errors() -> bytes:
        last = b""
        while chunk := await stderr.read(_CHUNK_BYTES):
            last = (last + chunk)[-_MAX_STDERR_BYTES:]
        return last

    errors = asyncio.create_task(read_errors())
    try:
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await stdout.readuntil(_PRELUDE)
            while True:
                kind = await stdout.readexactly(1)
                size = int.from_bytes(await stdout.readexactly(4), "big")
                if size > _MAX_PACKET_BYTES:
                    break
                packet = await stdout.readexactly(size)
                # Other kinds are for downloads, which are not supported.
                if kind == b"D":
                    await browser.send_bytes(packet)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                if await dashboard.wait():
                    await show_text(browser, excerpt(await errors, _MAX_STDERR_BYTES))
        await browser.close()
    finally:
        errors.cancel()


async def _pass_on(browser: web.WebSocketResponse, stdin: asyncio.WriteTransport) -> None:
    """Pass a person's input to the app until the browser disconnects, or sends invalid messages."""
    async for message in browser:
        match _parsed(message.data) if message.type is WSMsgType.TEXT else None:
            case ["stdin", str(typed)]:
                packet = _packet(b"D", typed.encode("utf-8", "replace"))
            case ["resize", {"width": int(width), "height": int(height)}]:
                columns, rows = _clamp_size(width, height)
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


def _parse_side(text: str) -> int:
    text = text[:9]
    return int(text) if text.isascii() and text.isdigit() else 0


def _clamp_size(columns: int, rows: int) -> tuple[int, int]:
    return min(max(columns, 20), 1000), min(max(rows, 5), 500)
