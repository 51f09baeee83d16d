"""`hpcdash serve`: what it prints, whom it shows the dashboard to, and that all of it ends with
it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pty
import re
import signal
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hpcdash.cli.options import CommonOptions
from hpcdash.cli.serve import run_serve
from hpcdash.errors import UsageError
from tests.support.program import Program, home_with

pytest.importorskip("aiohttp", reason="the extra [web] is not installed")
pytest.importorskip("textual_serve", reason="the extra [web] is not installed")

import aiohttp

pytestmark = pytest.mark.system
_LINK = re.compile(r"http://127\.0\.0\.1:(\d+)(/\?token=\S+)")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """On an embedded queue of its own."""
    state = {"HPCDASH_QUEUE": str(tmp_path / "queue"), "HPCDASH_STATE": str(tmp_path / "state")}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), state)


@asynccontextmanager
async def serving(
    program: Program, *options: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The program, and its lines up to the last one."""
    running = await asyncio.create_subprocess_exec(
        *program.argv("serve", *options),
        env=program.environment,
        cwd=program.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert running.stdout is not None
        said = ""
        while "Restart to get" not in said or "ssh -L" not in said:
            line = await running.stdout.readline()
            assert line, said
            said += line.decode()
        yield running, said
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


@asynccontextmanager
async def browser(
    link: str, socket: Path | None = None
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Its dashboard, as a page of it opens it."""
    found = _LINK.search(link)
    assert found is not None
    origin = f"http://127.0.0.1:{found[1]}"
    connector = aiohttp.UnixConnector(str(socket)) if socket else aiohttp.TCPConnector()
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, connector=connector) as session:
        async with session.get(found[0]) as answer:
            assert answer.status == 200
        async with session.ws_connect(
            f"{answer.url}socket?width=120&height=45", origin=origin
        ) as page:
            yield page


async def shows(page: aiohttp.ClientWebSocketResponse, wanted: bytes) -> None:
    drawn = b""
    while wanted not in re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", drawn):
        message = await page.receive()
        assert isinstance(message.data, bytes), drawn
        drawn += message.data


def dashboards(server: int) -> list[psutil.Process]:
    return psutil.Process(server).children()


async def gone(processes: list[psutil.Process]) -> None:
    for process in processes:
        while True:
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                break
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("options", [(), ("--read-only",)])
async def test_it_is_read_only_unless_asked(program: Program, options: tuple[str, ...]) -> None:
    async with serving(program, *options) as (_, said), browser(said) as page:
        await shows(page, b"read-only")


async def test_with_actions_a_job_is_submitted_which_has_nothing_of_the_browser(
    program: Program,
) -> None:
    async with serving(program, "--allow-actions") as (_, said), browser(said) as page:
        await shows(page, b" live")
        await page.send_json(["stdin", "n"])
        await shows(page, b"your command goes here")
        # The next field is the name.
        await page.send_json(["stdin", "env\x1b[B"])
        await page.send_json(["stdin", "gpt"])
        await shows(page, b"called gpt")
        await page.send_json(["stdin", "\n"])
        await shows(page, b"Submit gpt?")
        await page.send_json(["stdin", "y"])
        await shows(page, b"job 1 submitted")
        log = await asyncio.to_thread(program, "log", "1", "-f")
        assert "PATH=" in log.text
        assert not re.search(r"^(TEXTUAL|COLUMNS=|ROWS=)", log.text, re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_dashboards_end_with_it_however_it_ends(
    program: Program, number: signal.Signals
) -> None:
    async with serving(program) as (running, said), browser(said) as page:
        await shows(page, b" live")
        shown = dashboards(running.pid)
        assert len(shown) == 1
        assert "token" not in " ".join(shown[0].cmdline()) + str(shown[0].environ())
        processes = [*shown, psutil.Process(running.pid)]
        running.send_signal(number)
        await gone(processes)


async def test_a_dashboard_ends_with_its_tab(program: Program) -> None:
    async with serving(program, "--allow-actions") as (running, said):
        async with browser(said) as page:
            await shows(page, b" live")
            shown = dashboards(running.pid)
        await gone(shown)
        assert running.returncode is None


async def test_q_ends_a_dashboard_and_its_page_hears_of_it(program: Program) -> None:
    async with serving(program) as (running, said), browser(said) as page:
        await shows(page, b" live")
        await page.send_json(["stdin", "q"])
        async for _ in page:
            pass
        assert page.close_code == 1000
        assert running.returncode is None


async def test_by_a_socket_it_needs_the_link_too(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "its socket"
    async with serving(program, "--socket", str(path)) as (running, said):
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert f"ssh -L '8080:{path}' " in said
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
            session.get("http://127.0.0.1:8080/") as answer,
        ):
            assert answer.status == 403
        async with browser(said, path) as page:
            await shows(page, b" live")
        running.terminate()
        await running.wait()
        assert not path.exists()


def test_enter_prints_a_new_link(program: Program) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        program.argv("serve"),
        env=program.environment,
        cwd=program.home,
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            assert running.stdout is not None
            first = next(line for line in running.stdout if "token=" in line)
            os.write(ours, b"\n")
            second = next(line for line in running.stdout if "token=" in line)
            assert first != second
            assert first.partition("token=")[0] == second.partition("token=")[0]
        finally:
            running.terminate()
            running.wait()
            os.close(ours)
            os.close(theirs)
    assert running.returncode == 128 + signal.SIGTERM


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "hpcdash.cli.serve.find_spec", lambda name: None if name == "textual_serve" else found(name)
    )
    with pytest.raises(UsageError, match=r"pip install 'hpcdash\[web\]'"):
        run_serve(CommonOptions(), port=None, socket_path=None, allow_actions=False)


def test_what_contradicts_itself_or_cannot_be_is_refused_at_once(
    program: Program, tmp_path: Path
) -> None:
    assert "--port and --socket" in program("serve", "--port", "8080", "--socket", "x").refused(2)
    assert "--read-only and --allow-actions" in program(
        "serve", "--read-only", "--allow-actions"
    ).refused(2)
    assert "no such file" in program("serve", "--config", str(tmp_path / "none")).refused(2)
    assert "No such file" in program("serve", "--socket", str(tmp_path / "none" / "it")).refused(2)


def test_the_dashboard_of_a_url_has_that_url(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(words: tuple[str, ...]) -> None:
        raise UsageError(" ".join(words))

    monkeypatch.setattr("hpcdash.web.server.DashboardServer", told)
    common = CommonOptions(url="http://127.0.0.1:8265", backend="ray", ssh="head")
    with pytest.raises(UsageError, match=r"--ssh=head --ray=http://127\.0\.0\.1:8265 --read-only"):
        run_serve(common, port=None, socket_path=None, allow_actions=False)
