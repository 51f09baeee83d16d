"""Serves the dashboard to browsers: each link admits one browser, with its own process.

The terminal in the page is textual-serve's; its server does not authenticate and is not used.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path

from aiohttp import WSCloseCode, web

from hpcdash.web.local_server import HERE, LocalServer, refuse_request
from hpcdash.web.process import run_dashboard, show_text

LINK_SECONDS = 600
MAX_DASHBOARDS = 8
MAX_CONNECTIONS = 64
# A large paste.
MAX_MESSAGE_BYTES = 1 << 20
# Time limit of a connection without a dashboard.
CONNECTION_SECONDS = 60.0
# A browser that does not answer for half this time is gone.
PING_SECONDS = 15.0
_SHUTDOWN_SECONDS = 8.0
_CLOSE_SECONDS = 2.0
_COOKIE = "hpcdash"
_HEADERS = {
    # xterm.js writes styles into the page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' "
    "'unsafe-inline'; "
    "font-src 'self'; img-src data:; connect-src 'self' ws://{host}; base-uri 'none'; form-action "
    "'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "hpcdash",
}
_NOT_ADMITTED = (
    "This page works only in a browser that opened the hpcdash serve link. Each link works "
    "once; press Enter in the terminal of hpcdash serve for a new one.\n"
)


class DashboardServer:
    """Runs `argv`, the dashboard, for each browser that opens a link of `new_link`."""

    def __init__(self, argv: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._argv = tuple(argv)
        self._clock = clock
        self._token = b""
        self._token_ends_at = 0.0
        self._cookies: list[bytes] = []
        # Browsers send a host's cookies to all of its ports, including other users', but only to
        # the cookie's path.
        self._root = f"/{secrets.token_urlsafe(16)}/"
        self._files = _read_files()
        self._browsers: set[web.WebSocketResponse] = set()
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(self._close_browsers)
        app.router.add_get("/", self._enter, allow_head=False)
        app.router.add_get(f"{self._root}socket", self._connect, allow_head=False)
        app.router.add_get(self._root + "{name:.*}", self._send_file, allow_head=False)
        self._server = LocalServer(
            app,
            _protocol_error,
            max_connections=MAX_CONNECTIONS,
            connection_seconds=CONNECTION_SECONDS,
            shutdown_seconds=_SHUTDOWN_SECONDS,
        )

    def new_link(self) -> str:
        """Return a path that admits one browser within LINK_SECONDS; earlier links end."""
        token = secrets.token_urlsafe(32)
        self._token = token.encode()
        self._token_ends_at = self._clock() + LINK_SECONDS
        return f"/?token={token}"

    async def start(self, listening: socket.socket) -> None:
        """Serve the clients of a listening socket."""
        await self._server.start(listening)

    async def stop(self) -> None:
        """End all dashboards and connections."""
        await self._server.stop()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if reason := refuse_request(request, needs_origin=request.path == f"{self._root}socket"):
            return _refuse(f"{reason}\n")
        cookie = request.cookies.get(_COOKIE, "").encode("utf-8", "replace")
        is_admitted = any(hmac.compare_digest(cookie, known) for known in self._cookies)
        if request.path != "/" and not is_admitted:
            return _refuse(_NOT_ADMITTED)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n")

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """Exchange the link's token for a cookie."""
        token = request.query.get("token", "").encode("utf-8", "replace")
        is_valid = bool(self._token) and hmac.compare_digest(token, self._token)
        if not is_valid or self._clock() >= self._token_ends_at:
            return _refuse(_NOT_ADMITTED)
        self._token = b""
        cookie = secrets.token_urlsafe(32)
        self._cookies.append(cookie.encode())
        entered = web.Response(status=303, headers={"Location": self._root})
        entered.set_cookie(_COOKIE, cookie, path=self._root, httponly=True, samesite="Strict")
        return entered

    async def _send_file(self, request: web.Request) -> web.StreamResponse:
        found = self._files.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        content, content_type = found
        return web.Response(body=content, headers={"Content-Type": content_type})

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        browser = web.WebSocketResponse(
            timeout=_CLOSE_SECONDS, heartbeat=PING_SECONDS, max_msg_size=MAX_MESSAGE_BYTES
        )
        try:
            with self._server.busy(request):
                await browser.prepare(request)
                if len(self._browsers) >= MAX_DASHBOARDS:
                    await show_text(
                        browser,
                        f"hpcdash serve shows at most {MAX_DASHBOARDS} dashboards at once. Close "
                        "another tab.",
                    )
                    await browser.close(code=WSCloseCode.TRY_AGAIN_LATER)
                    return browser
                self._browsers.add(browser)
                size = (request.query.get("width", ""), request.query.get("height", ""))
                await run_dashboard(self._argv, browser, *size)
        finally:
            self._browsers.discard(browser)
        return browser

    async def _close_browsers(self, _: web.Application) -> None:
        closing = [browser.close(code=WSCloseCode.GOING_AWAY) for browser in self._browsers]
        await asyncio.gather(*closing)


def _refuse(text: str) -> web.Response:
    return web.Response(status=403, text=text)


def _protocol_error(status: int) -> web.Response:
    return web.Response(
        status=status, text=f"{HTTPStatus(status).phrase}\n", headers=_headers("localhost")
    )


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    host = request.headers.get("Host", "")
    response.headers.update(_headers(host if HERE.fullmatch(host) else "localhost"))


def _headers(host: str) -> dict[str, str]:
    return {name: value.replace("{host}", host) for name, value in _HEADERS.items()}


def _read_files() -> dict[str, tuple[bytes, str]]:
    """All that is ever sent, by its name in the page."""
    found = find_spec("textual_serve")
    assert found is not None
    assert found.origin is not None
    ours = Path(__file__).parent
    terminal = Path(found.origin).parent / "static"
    files = {
        "": (ours / "page.html", "text/html; charset=utf-8"),
        "page.css": (ours / "page.css", "text/css; charset=utf-8"),
        "page.js": (ours / "page.js", "text/javascript; charset=utf-8"),
        "textual.js": (terminal / "js" / "textual.js", "text/javascript; charset=utf-8"),
        "xterm.css": (terminal / "css" / "xterm.css", "text/css; charset=utf-8"),
        "mono.ttf": (terminal / "fonts" / "RobotoMono-VariableFont_wght.ttf", "font/ttf"),
        "mono-italic.ttf": (
            terminal / "fonts" / "RobotoMono-Italic-VariableFont_wght.ttf",
            "font/ttf",
        ),
    }
    return {name: (path.read_bytes(), content_type) for name, (path, content_type) in files.items()}
