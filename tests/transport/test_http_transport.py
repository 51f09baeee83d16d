"""A server asked over HTTP: what comes back of requests, how logs are followed, and how it
fails.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hpcdash.backends.registry import load_backend
from hpcdash.errors import (
    AuthenticationFailed,
    CommandMissing,
    CommandTimedOut,
    ConnectionFailed,
    HpcdashError,
)
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import FileRange, FileStat, files_query
from hpcdash.services.logs.file import file_readers
from hpcdash.services.watch.facts import (
    DiskQuery,
    FactsRequest,
    facts_log_positions,
    facts_query,
    facts_script,
)
from hpcdash.services.watch.state import LogTail
from hpcdash.transport.http import HttpTransport
from hpcdash.transport.local import LocalTransport
from tests.support.person import Person
from tests.support.sshd import Sshd, free_port
from tests.transport.test_ssh_transport import transport_to
from tests.transport.test_ssh_two_factor import ANSWERS, cluster_transport, two_hops

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(handle: Handler) -> AsyncIterator[int]:
    """An HTTP server on loopback: `handle` gets the request's head and body, and writes what it
    answers.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line[:15] == b"content-length:"
                ),
                0,
            )
            await handle(head + await reader.readexactly(length), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


def answering(status: str, body: bytes = b"", headers: str = "") -> Handler:
    async def handle(request: bytes, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)

    return handle


@asynccontextmanager
async def asked(handle: Handler, **options: object) -> AsyncIterator[HttpTransport]:
    async with server(handle) as port:
        transport = HttpTransport(f"http://127.0.0.1:{port}/base", **options)  # type: ignore[arg-type]
        try:
            yield transport
        finally:
            await transport.close()


async def test_each_path_comes_back_with_its_status_length_and_the_server_s_clock() -> None:
    date = "Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
    async with asked(answering("200 OK", b"{}\n", date)) as transport:
        done = await transport.run(("GET", "/a", "/b?x=1"))
        connected_at = transport.health.connected_at
    assert (done.status, done.stdout) == (0, b"200 3 1700000000\n{}\n" * 2)
    assert connected_at is not None
    assert time.time() - connected_at < 600


async def test_the_method_path_body_and_token_arrive_as_they_were_given() -> None:
    requests = []

    async def handle(request: bytes, writer: asyncio.StreamWriter) -> None:
        requests.append(request)
        await answering("204 No Content")(request, writer)

    async with asked(handle, headers={"Authorization": "Bearer t"}) as transport:
        await transport.run(("POST", "/x y/\n?a=ü%2F"), stdin=b'{"k": 1}')
        await transport.run(("DELETE", "/x"))
    first, second = requests
    assert b"user-agent: hpcdash\r\n" in first.lower()
    assert first.startswith(b"POST /base/x%20y/%0A?a=%C3%BC%2F HTTP/1.1\r\n")
    assert b"authorization: bearer t\r\n" in first.lower()
    assert first.endswith(b'\r\n\r\n{"k": 1}')
    assert second.startswith(b"DELETE /base/x HTTP/1.1\r\n")


async def test_an_unsuccessful_status_is_the_exit_status_with_the_server_s_words() -> None:
    async with asked(answering("500 Oops", b"Traceback")) as transport:
        done = await transport.run(("GET", "/a"))
    assert (done.status, done.stdout, done.stderr) == (
        500,
        b"500 9 -\nTraceback",
        b"500 Oops\nTraceback",
    )


async def test_a_redirect_is_not_followed() -> None:
    async with asked(answering("302 Found", b"", "Location: http://127.0.0.1:1/\r\n")) as transport:
        with pytest.raises(ConnectionFailed, match=r"redirects to http://127\.0\.0\.1:1/"):
            await transport.run(("GET", "/a"))


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        ("401 Unauthorized", {}, "401 Unauthorized: no token\nSet `token_file`"),
        ("403 Forbidden", {"Authorization": "Bearer t"}, "still valid"),
    ],
)
async def test_a_refused_token_says_where_to_set_one(
    status: str, headers: dict[str, str], words: str
) -> None:
    async with asked(answering(status, b"no token\n"), headers=headers) as transport:
        with pytest.raises(AuthenticationFailed, match=words):
            await transport.run(("GET", "/a"))


async def test_no_more_than_the_cap_is_kept() -> None:
    async with asked(answering("200 OK", b"x" * 500_000)) as transport:
        done = await transport.run(("GET", "/a"), cap_bytes=1000)
    assert (done.truncated, done.stdout) == (True, b"200 1000 -\n" + b"x" * 1000)


async def test_what_is_no_request_runs_on_the_host_beside_the_server_or_is_refused(
    tmp_path: Path,
) -> None:
    write = ("sh", "-c", 'echo "$1" > "$2"', "sh", "there", str(tmp_path / "x"))
    async with asked(answering("200 OK")) as transport:
        with pytest.raises(CommandMissing, match="is an HTTP server and cannot run commands"):
            await transport.run(write)
    async with asked(answering("200 OK"), shell=LocalTransport()) as transport:
        assert (await transport.run(write)).status == 0
        assert (await transport.run(("GET", "/a"))).stdout == b"200 0 -\n"
    assert (tmp_path / "x").read_text() == "there\n"


async def test_a_server_that_is_not_there_or_says_nothing_is_unreachable() -> None:
    async with server(answering("200 OK")) as port:
        pass
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        await HttpTransport(f"http://127.0.0.1:{port}").run(("GET", "/a"))

    async def hang_up(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with asked(hang_up) as transport:
        with pytest.raises(ConnectionFailed, match="without an HTTP response"):
            await transport.run(("GET", "/a"))
        assert transport.health.state == "lost"

    async def cut(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with asked(cut) as transport:
        with pytest.raises(ConnectionFailed, match="cut short"):
            await transport.run(("GET", "/a"))


async def test_a_silent_server_is_given_up_on_in_time() -> None:
    async def say_nothing(request: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with asked(say_nothing) as transport:
        with pytest.raises(CommandTimedOut):
            await transport.run(("GET", "/a"), limit_seconds=0.2)


class GrowingLog:
    """Streams a log that grows, as a server does that follows a file; `cut` begins it anew with the
    next request.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.requests = 0
        self._grown = asyncio.Event()

    def grow(self, more: bytes) -> None:
        self.content += more
        self._grown.set()

    async def __call__(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        while True:
            if piece := self.content[sent:]:
                writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                await writer.drain()
                sent += len(piece)
            self._grown.clear()
            await self._grown.wait()


def log_request(path: str) -> str:
    return {"/logs/a": "/stream", "/logs/a#1": "/stream#1%3A%20"}.get(path, "")


async def read(transport: HttpTransport, path: str = "/logs/a") -> tuple[bytes, str]:
    query = files_query([FileRange(path, 0, 1 << 20)])
    [chunk] = query.parse(await transport.run(query.argv))
    return chunk.content, chunk.stat.problem


async def test_a_log_is_read_like_a_file_and_followed_by_one_request() -> None:
    log = GrowingLog(b"first\n")
    async with asked(log, log_request=log_request, file_readers=file_readers()) as transport:
        assert await read(transport) == (b"first\n", "")
        log.grow(b"second\n")
        while (await read(transport))[0] != b"first\nsecond\n":
            pass
        assert log.requests == 1


async def test_reading_a_log_again_is_no_command_to_the_cluster() -> None:
    log = GrowingLog(b"first\n")
    async with asked(log, log_request=log_request, file_readers=file_readers()) as transport:
        budget = CommandBudget(2)
        store = ClusterStore(
            "ray", transport, (load_backend("ray"),), clock=SystemClock(), budget=budget
        )
        for _ in range(5):
            [chunk] = await store.poll(files_query([FileRange("/logs/a", 0, 1 << 20)]))
            assert chunk.content == b"first\n"
        assert (budget.per_minute, budget.last_seconds) == (0, None)
        with pytest.raises(HpcdashError):
            await store.poll(store.backend.queue.nodes())
        assert budget.per_minute == 1


async def test_a_part_of_a_log_has_the_lines_that_begin_so_and_takes_no_request_more() -> None:
    log = GrowingLog(b"1: a\n2: b\n1: c\n1: not yet who")
    async with asked(log, log_request=log_request, file_readers=file_readers()) as transport:
        assert await read(transport, "/logs/a#1") == (b"a\nc\n", "")
        log.grow(b"le\n2: d\n")
        while (await read(transport, "/logs/a#1"))[0] != b"a\nc\nnot yet whole\n":
            pass
        assert (await read(transport))[0].endswith(b"2: d\n")
        assert log.requests == 1


async def test_a_path_that_is_no_log_is_no_file_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    async with asked(
        GrowingLog(b""), log_request=log_request, file_readers=file_readers()
    ) as transport:
        content, problem = await read(transport, str(tmp_path / "secret"))
    assert (content, problem) == (b"", "no such file")


async def test_a_log_that_the_server_does_not_know_is_missing() -> None:
    async with asked(
        answering("500 Oops", b"no file"), log_request=log_request, file_readers=file_readers()
    ) as transport:
        assert await read(transport) == (b"", "no such file")


async def test_what_watchdogs_ask_of_logs_is_answered_and_no_disk_of_this_machine_is_looked_at(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text("secret")
    logs = FactsRequest(
        files=("/logs/a",), tails={"/logs/a": LogTail(), str(tmp_path / "secret"): LogTail()}
    )
    disk = FactsRequest(files=("/logs/a",), disks=(DiskQuery(str(tmp_path)),))
    streamed, rest = disk.parted(lambda path: bool(log_request(path)))
    assert (streamed.files, rest.files, rest.disks) == (("/logs/a",), (), disk.disks)
    readers = {facts_script(): facts_log_positions}
    async with asked(
        GrowingLog(b"loss nan\n"), log_request=log_request, file_readers=readers
    ) as transport:
        query = facts_query(logs)
        facts = query.parse(await transport.run(query.argv))
        assert facts.files["/logs/a"].size == 9
        assert {path: chunk.content for path, chunk in facts.tails.items()} == {
            "/logs/a": b"loss nan\n"
        }
        with pytest.raises(CommandMissing, match="is an HTTP server and cannot run commands"):
            await transport.run(facts_query(disk).argv)


async def test_when_a_log_grew_is_known_once_it_was_seen_to_grow() -> None:
    log = GrowingLog(b"1: a\n")
    async with asked(log, log_request=log_request, file_readers=file_readers()) as transport:

        async def looks() -> list[FileStat]:
            query = files_query(
                [FileRange(path, 0, 0) for path in ("/logs/a", "/logs/a#1")], with_age=True
            )
            return [chunk.stat for chunk in query.parse(await transport.run(query.argv))]

        assert [(look.is_there, look.age_seconds) for look in await looks()] == [(True, None)] * 2
        log.grow(b"1: b\n")
        while None in (ages := [look.age_seconds for look in await looks()]):
            pass
        assert all(age is not None and age < 60 for age in ages)


async def test_nothing_of_a_log_stays_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with asked(
        GrowingLog(b"first\n"), log_request=log_request, file_readers=file_readers()
    ) as transport:
        await read(transport)
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


async def test_copies_of_logs_that_nobody_reads_any_more_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.transport.log_spool._IDLE_SECONDS", 0.5)
    monkeypatch.setattr("hpcdash.transport.log_spool._MAX_TOTAL_BYTES", 10)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with asked(
        GrowingLog(b"first\n"), log_request=str, file_readers=file_readers()
    ) as transport:
        for name in "abcb":
            assert (await read(transport, f"/logs/{name}"))[0] == b"first\n"
        [folder] = os.listdir(tmp_path)
        # The next one removes what was read before, until the rest is small enough.
        assert len(os.listdir(tmp_path / folder)) == 2


async def test_a_server_behind_a_login_node_is_asked_through_its_connection(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with (
        server(answering("200 OK", b"there")) as port,
        transport_to(sshd, user, tmp_path) as login,
    ):
        transport = HttpTransport(f"http://127.0.0.1:{port}", login=login)
        assert (await transport.run(("GET", "/a"))).stdout == b"200 5 -\nthere"
        closed = HttpTransport(f"http://127.0.0.1:{free_port()}", login=login)
        with pytest.raises(ConnectionFailed, match="cannot connect to"):
            await closed.run(("GET", "/a"))


async def test_a_person_may_log_in_for_longer_than_a_request_may_take_and_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.transport.http._CONNECT_SECONDS", 2.0)
    person = Person()
    async with server(answering("200 OK", b"there")) as port, two_hops(tmp_path) as (_, cluster):
        cluster.push_words = "Pushed a login request"
        transport = HttpTransport(
            f"http://127.0.0.1:{port}", login=cluster_transport(tmp_path, person)
        )
        with pytest.raises(AuthenticationFailed):
            await transport.connect()
        assert transport.health.state == "failed"
        person.answers = ANSWERS
        connecting = asyncio.create_task(transport.connect(force=True))
        await asyncio.wait({connecting}, timeout=2.5)
        assert transport.health.state == "asking"
        cluster.approved.set()
        await connecting
        assert transport.health.state == "connected"
        assert "Pushed a login request" in transport.health.text
        await transport.close()
        assert transport.health.state == "idle"
        connecting = asyncio.create_task(transport.run(("GET", "/a"), limit_seconds=2.0))
        assert (await connecting).stdout == b"200 5 -\nthere"
        await transport.close()
