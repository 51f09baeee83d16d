"""Who is let in, what is sent to them, and what becomes of the dashboard's process; a stand-in
speaks for the app.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

pytest.importorskip("aiohttp", reason="the extra [web] is not installed")
pytest.importorskip("textual_serve", reason="the extra [web] is not installed")

import aiohttp
from aiohttp import WSCloseCode, WSMsgType
from yarl import URL

from hpcdash.listening import listen_on_loopback
from hpcdash.web import process
from hpcdash.web import server as serving
from hpcdash.web.server import (
    LINK_SECONDS,
    MAX_CONNECTIONS,
    MAX_DASHBOARDS,
    MAX_MESSAGE_BYTES,
    DashboardServer,
)
from tests.support.records import for_each
from tests.support.waiting import until

pytestmark = pytest.mark.system
# Says its pid, then whatever it is sent.
ECHO = r"""
import os
def show(shown):
    packet = b"D" + len(shown).to_bytes(4, "big") + shown
    while packet:
        packet = packet[os.write(1, packet):]
os.write(1, b"__GANGLION__\n")
show(b"pid %d" % os.getpid())
while chunk := os.read(0, 65536):
    show(chunk)
"""
DEAF = (
    ECHO
    + "\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n"
)
FAILS = (
    "import os, sys\nos.write(1, b'__GANGLION__\\n')\nsys.exit('hpcdash: config.toml:3: "
    "\\x1b]0;no\\x07 such key')\n"
)
NO_APP = "print('no prelude')\n"


@dataclass
class Served:
    """A server, whose clock is `seconds`, and a browser of it."""

    server: DashboardServer
    session: aiohttp.ClientSession
    port: int
    seconds: list[float] = field(default_factory=lambda: [0.0])

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        """Status, text and headers; nothing is followed."""
        url = URL(self.origin + path, encoded=True)
        async with self.session.request(
            method, url, headers=headers, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text("utf-8", "replace"), dict(answer.headers)

    async def enter(self) -> str:
        """Come by a link; the path of the page."""
        status, _, headers = await self.get(self.server.new_link())
        assert status == 303
        return headers["Location"]

    async def open(
        self, root: str, query: str = "?width=90&height=30"
    ) -> aiohttp.ClientWebSocketResponse:
        return await self.session.ws_connect(
            f"{self.origin}{root}socket{query}", origin=self.origin
        )

    async def dashboard(self, root: str) -> tuple[aiohttp.ClientWebSocketResponse, psutil.Process]:
        """An open one, and its process."""
        page = await self.open(root)
        word, pid = (await page.receive_bytes()).split()
        assert word == b"pid"
        return page, psutil.Process(int(pid))


@asynccontextmanager
async def served(app: str = ECHO) -> AsyncIterator[Served]:
    seconds = [0.0]
    server = DashboardServer((sys.executable, "-c", app), clock=lambda: seconds[0])
    with closing(listen_on_loopback(0)) as listening:
        port = listening.getsockname()[1]
        await server.start(listening)
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            try:
                yield Served(server, session, port, seconds)
            finally:
                await server.stop()


async def gone(process: psutil.Process) -> None:
    def is_gone() -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    await until(is_gone)


# -- the link


async def test_a_link_lets_one_browser_in_once() -> None:
    async with served() as it:
        link = it.server.new_link()
        token = link.partition("token=")[2]
        status, _, headers = await it.get(link)
        cookie = headers["Set-Cookie"]
        assert (status, len(token)) == (303, 43)
        assert token not in headers["Location"] + cookie
        assert headers["Referrer-Policy"] == "no-referrer"
        assert {"HttpOnly", "SameSite=Strict", f"Path={headers['Location']}"} <= {
            *cookie.split("; ")
        }
        assert (await it.get(headers["Location"]))[0] == 200
        it.session.cookie_jar.clear()
        status, text, headers = await it.get(link)
        assert (status, "Set-Cookie" in headers) == (403, False)
        assert "Each link works once" in text


async def test_a_link_expires() -> None:
    async with served() as it:
        link = it.server.new_link()
        it.seconds[0] += LINK_SECONDS
        assert (await it.get(link))[0] == 403
        link = it.server.new_link()
        it.seconds[0] += LINK_SECONDS - 1
        assert (await it.get(link))[0] == 303


async def test_a_new_link_ends_the_one_before_and_nobody_who_is_in() -> None:
    async with served() as it:
        first = it.server.new_link()
        root = await it.enter()
        assert (await it.get(first))[0] == 403
        it.server.new_link()
        assert (await it.get(root))[0] == 200


@for_each(
    "query", ["", "?token=", "?token=x", "?token=%ff%00", "?token=%ED%A0%80", "?token=%C3%A9"]
)
async def test_a_guess_is_refused(query: str) -> None:
    async with served() as it:
        assert (await it.get(f"/{query}"))[0] == 403
        link = it.server.new_link()
        assert (await it.get(f"/{query}"))[0] == 403
        assert (await it.get(link[:-1]))[0] == 403
        assert (await it.get(link))[0] == 303
        assert (await it.get(f"/{query}"))[0] == 403


@pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS", "DELETE"])
async def test_only_get_uses_up_a_link(method: str) -> None:
    async with served() as it:
        link = it.server.new_link()
        assert (await it.get(link, method))[0] == 405
        assert (await it.get(link))[0] == 303


# -- who is not let in


@for_each("cookie", ["", "x", "é", "x" * 5000, '"', "a=b; hpcdash"])
async def test_without_its_cookie_nothing_is_sent(cookie: str) -> None:
    async with served() as it:
        root = await it.enter()
        it.session.cookie_jar.clear()
        for path in (
            "/",
            root,
            f"{root}textual.js",
            f"{root}socket",
            f"{root}none",
            "/favicon.ico",
            "/static/",
        ):
            status, text, _ = await it.get(path, Cookie=f"hpcdash={cookie}", Origin=it.origin)
            assert (status, "only in a browser that opened the" in text) == (403, True)
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await it.open(root)


@for_each(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example",
        "127.0.0.1:{port}@evil.example",
        "0.0.0.0:{port}",
    ],
)
async def test_a_name_that_was_rebound_to_this_machine_is_refused(host: str) -> None:
    async with served() as it:
        link = it.server.new_link()
        host = host.format(port=it.port)
        assert (await it.get(link, Host=host))[0] == 403
        root = (await it.get(link, Host=f"localhost:{it.port}"))[2]["Location"]
        assert (await it.get(root, Host=host))[0] == 403
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await it.session.ws_connect(
                f"{it.origin}{root}socket", headers={"Host": host, "Origin": f"http://{host}"}
            )


@for_each(
    "origin",
    [
        None,
        "null",
        "http://evil.example",
        "http://127.0.0.1:1",
        "https://{own}",
        "http://localhost",
    ],
)
async def test_a_page_of_another_origin_opens_no_dashboard(origin: str | None) -> None:
    async with served() as it:
        root = await it.enter()
        headers = {} if origin is None else {"Origin": origin.format(own=f"127.0.0.1:{it.port}")}
        before = psutil.Process().children()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await it.session.ws_connect(f"{it.origin}{root}socket", headers=headers)
        assert psutil.Process().children() == before
        # A page is asked for without an origin.
        assert (await it.get(root, **headers))[0] == (200 if origin is None else 403)


async def test_an_invalid_request_is_refused_without_naming_the_software_of_the_server() -> None:
    async with served() as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"no HTTP at all\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert answer.endswith(b"\r\n\r\nBad Request\n")
    assert (b"400 Bad Request" in answer, b"\r\nServer: hpcdash\r\n" in answer) == (True, True)
    assert b"frame-ancestors 'none'" in answer


async def test_two_hosts_or_none_are_refused() -> None:
    async with served() as it:
        for lines in ("", "Host: localhost\r\nHost: evil.example\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(f"GET {it.server.new_link()} HTTP/1.0\r\n{lines}\r\n".encode())
            assert (await reader.readline()).split()[1] in (b"400", b"403")
            writer.close()


# -- what is sent


@for_each(
    "path",
    ["../page.html", "../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/server.py", "/etc/passwd", "server.py",
     "js/textual.js", "page.html", "..%5c..%5cetc", "page.js%00", "%2e%2e%2f" * 9 + "etc/passwd"],
)  # fmt: skip
async def test_no_path_leads_to_another_file(path: str) -> None:
    async with served() as it:
        root = await it.enter()
        cookie = it.session.cookie_jar.filter_cookies(URL(it.origin + root))["hpcdash"].value
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        # A client would tidy the path.
        writer.write(
            f"GET {root}{path} HTTP/1.1\r\nHost: localhost\r\nCookie: hpcdash={cookie}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        answer = await reader.read()
        writer.close()
        assert answer.split()[1] in (b"400", b"403", b"404")
        assert len(answer) < 2000


async def test_everything_comes_from_here_and_may_ask_for_nothing_else() -> None:
    async with served() as it:
        root = await it.enter()
        _, page, _ = await it.get(root)
        assert "://" not in page
        names = [
            part.split('"')[0] for mark in ('href="', 'src="') for part in page.split(mark)[1:]
        ]
        assert {"textual.js", "mono.ttf"} <= {*names}
        for path in (
            root,
            *(root + name for name in names if name != "data:,"),
            "/",
            f"{root}none",
        ):
            status, _, headers = await it.get(path)
            assert status == {"/": 403, f"{root}none": 404}.get(path, 200)
            policy = dict(
                part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; ")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert (policy["script-src"], policy["font-src"]) == ("'self'", "'self'")
            assert policy["connect-src"] == f"'self' ws://127.0.0.1:{it.port}"
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "aiohttp" not in headers["Server"]


# -- a dashboard and its process


async def test_what_is_typed_and_done_reaches_the_app() -> None:
    async with served() as it:
        page, _ = await it.dashboard(await it.enter())
        await page.send_json(["stdin", "jé\ud800"])
        await page.send_json(["resize", {"width": 10**9, "height": -1}])
        await page.send_json(["focus"])
        await page.send_json(["ping", "7"])
        wanted = [
            b"D\0\0\0\x04j\xc3\xa9?",
            b'{"type": "resize", "width": 1000, "height": 5}',
            b'{"type": "focus"}',
        ]
        echoed, pong = b"", None
        while pong is None or not all(one in echoed for one in wanted):
            message = await page.receive()
            if message.type is WSMsgType.BINARY:
                echoed += message.data
            else:
                pong = json.loads(message.data)
        assert pong == ["pong", "7"]


async def test_the_process_of_a_closed_tab_ends_and_others_go_on() -> None:
    async with served() as it:
        root = await it.enter()
        (page, process), (other, stays) = await it.dashboard(root), await it.dashboard(root)
        await page.close()
        await gone(process)
        await other.send_json(["stdin", "x"])
        assert await other.receive_bytes() == b"D\0\0\0\x01x"
        assert stays.is_running()


async def test_an_app_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_SECONDS", 0.2)
    async with served(DEAF) as it:
        page, deaf = await it.dashboard(await it.enter())
        await page.close()
        await gone(deaf)


async def test_a_browser_that_no_longer_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "PING_SECONDS", 0.2)
    async with served() as it:
        root = await it.enter()
        page = await it.session.ws_connect(
            f"{it.origin}{root}socket", origin=it.origin, autoping=False
        )
        pid = int((await page.receive_bytes()).split()[1])
        await gone(psutil.Process(pid))


async def test_no_process_outlives_the_server() -> None:
    async with served() as it:
        root = await it.enter()
        processes = [(await it.dashboard(root))[1] for _ in range(3)]
        await it.server.stop()
        assert not any(process.is_running() for process in processes)


@pytest.mark.parametrize(
    ("app", "words"), [(FAILS, "config.toml:3: ␛]0;no␇ such key"), (NO_APP, None)]
)
async def test_a_browser_sees_why_the_app_has_ended(app: str, words: str | None) -> None:
    async with served(app) as it:
        page = await it.open(await it.enter())
        seen = b"".join([message.data async for message in page])
        assert (words or "") in seen.decode()
        assert page.close_code == WSCloseCode.OK
        assert bool(seen) == bool(words)


async def test_a_program_that_cannot_be_started_is_named() -> None:
    async with served() as it:
        it.server = DashboardServer(("/nowhere/python",))
        with closing(listen_on_loopback(0)) as listening:
            it.port = listening.getsockname()[1]
            await it.server.start(listening)
            page = await it.open(await it.enter())
            assert b"Cannot start hpcdash: No such file" in await page.receive_bytes()
            assert (await page.receive()).type is WSMsgType.CLOSE
            await it.server.stop()


@for_each(
    "message",
    [
        "",
        "{",
        "[]",
        "{}",
        '["stdin"]',
        '["stdin", 5]',
        '["resize", {"width": "9", "height": 9}]',
        '["exit"]',
        "[" * 100_000,
    ],
)
async def test_a_message_that_no_page_of_ours_sends_ends_the_dashboard(message: str) -> None:
    async with served() as it:
        page, process = await it.dashboard(await it.enter())
        await page.send_str(message)
        assert (await page.receive()).type is WSMsgType.CLOSE
        assert page.close_code == WSCloseCode.POLICY_VIOLATION
        await gone(process)


async def test_a_message_that_is_too_large_ends_the_dashboard() -> None:
    async with served() as it:
        root = await it.enter()
        (page, process), (_, stays) = await it.dashboard(root), await it.dashboard(root)
        await page.send_json(["stdin", "x" * MAX_MESSAGE_BYTES])
        assert (await page.receive()).type is WSMsgType.CLOSE
        assert page.close_code == WSCloseCode.MESSAGE_TOO_BIG
        await gone(process)
        assert stays.is_running()


async def test_a_slow_browser_holds_the_app_back(tmp_path: Path) -> None:
    """The app would write a GiB."""
    written = tmp_path / "written"
    flood = f"""
import os
os.write(1, b"__GANGLION__\\n")
for number in range(1 << 14):
    for piece in (b"D" + (1 << 16).to_bytes(4, "big"), os.urandom(1 << 16)):
        while piece:
            piece = piece[os.write(1, piece):]
    with open({str(written)!r}, "w") as file:
        file.write(str(number))
"""
    async with served(flood) as it:
        root = await it.enter()
        cookie = it.session.cookie_jar.filter_cookies(URL(it.origin + root))["hpcdash"].value
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=1024)
        writer.write(
            f"GET {root}socket HTTP/1.1\r\nHost: 127.0.0.1:{it.port}\r\nOrigin: {it.origin}\r\n"
            f"Cookie: hpcdash={cookie}\r\nConnection: Upgrade\r\nUpgrade: "
            "websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        assert b"101" in await reader.readline()
        unchanged, last = 0, ""
        while unchanged < 10:
            await asyncio.sleep(0.1)
            now = written.read_text() if written.exists() else ""
            unchanged = unchanged + 1 if now and now == last else 0
            last = now
        # Buffers of the kernel and of a few layers.
        assert int(last) << 16 < 64 << 20
        writer.transport.abort()


async def test_there_is_a_limit_on_dashboards_at_once() -> None:
    async with served() as it:
        root = await it.enter()
        pages = [(await it.dashboard(root))[0] for _ in range(MAX_DASHBOARDS)]
        refused = await it.open(root)
        assert f"at most {MAX_DASHBOARDS} dashboards".encode() in await refused.receive_bytes()
        assert (await refused.receive()).type is WSMsgType.CLOSE
        await pages[0].close()

        async def opens() -> bool:
            return (await (await it.open(root)).receive_bytes()).startswith(b"pid")

        while True:
            if await opens():
                break
            await asyncio.sleep(0.05)


async def test_a_connection_too_many_is_closed_at_once() -> None:
    async with served() as it:
        idle = [
            await asyncio.open_connection("127.0.0.1", it.port) for _ in range(2 * MAX_CONNECTIONS)
        ]
        assert await idle[-1][0].read() == b""
        idle[0][1].write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"403" in await idle[0][0].readline()
        for _, writer in idle:
            writer.close()


async def test_many_connections_leave_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTION_SECONDS", 0.5)
    async with served() as it:
        root = await it.enter()
        page, _ = await it.dashboard(root)
        idle = [
            await asyncio.open_connection("127.0.0.1", it.port) for _ in range(2 * MAX_CONNECTIONS)
        ]
        for reader, writer in idle:
            assert await reader.read() == b""
            writer.close()
        assert (await it.get(root))[0] == 200
        await page.send_json(["stdin", "x"])
        assert await page.receive_bytes() == b"D\0\0\0\x01x"
