"""`hpcdash log` where a job's output is on its node's own disk until the job ends."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hpcdash.cli import log as log_command
from hpcdash.cli.log import LogOutput, RawOutput
from hpcdash.cli.options import CommonOptions
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.logs.locate import locate_logs
from hpcdash.services.session import ClusterSession
from tests.support.node_disk import NOTE, REFUSES, Node, make_node
from tests.support.real_files import append, put, remove
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.logs.log_stage import RUNNING, log_session, log_transport, of_files, set_state


class Gathered(io.BytesIO):
    """A stdout of no file."""

    def fileno(self) -> int:
        return 1


class Command:
    """`hpcdash log` of a job that runs, with what it wrote."""

    def __init__(
        self, session: ClusterSession, transport: ScriptedTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.store: ClusterStore = session.store
        self.session = session
        self.transport = transport
        self.out = Gathered()

        def output() -> LogOutput:
            return RawOutput(self.out)

        monkeypatch.setattr(log_command, "log_output", output)
        monkeypatch.setattr(RawOutput, "pause", lambda raw: None)

    async def show(self, *, follow: bool = False, lines: int = 10) -> None:
        place = await locate_logs(self.store, RUNNING)
        file = log_command._open_file(self.store, place, False)
        await log_command._JobLog(self.store, place, file, err=False, other=None).show(
            lines, follow
        )

    def end_the_job(self) -> None:
        self._be(b"COMPLETED")

    def requeue_the_job(self) -> None:
        self._be(b"PENDING")

    def run_the_job(self) -> None:
        self._be(b"RUNNING")

    def _be(self, state: bytes) -> None:
        set_state(self.transport, state)

    async def until_written(self, content: bytes) -> None:
        while self.out.getvalue() != content:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return make_node(tmp_path, monkeypatch)


@pytest.fixture
async def command(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Command]:
    monkeypatch.setattr("hpcdash.services.logs.file.next_check_seconds", lambda quiet_seconds: 0.01)
    monkeypatch.setattr("hpcdash.services.logs.file.UNREACHED_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("hpcdash.cli.log._QUIET_SECONDS", 0.05)
    monkeypatch.setattr(log_command, "_FIRST_STATE_SECONDS", 0.05)
    monkeypatch.setattr(log_command, "_LONGEST_STATE_SECONDS", 0.05)
    transport = log_transport(node.last, node.last)
    session = log_session(transport)
    yield Command(session, transport, monkeypatch)
    await session.store.close()


async def test_the_last_lines_come_from_the_node_which_is_said(
    node: Node, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    put(node.log, b"one\ntwo\nthree\n")
    await command.show(lines=2)
    assert command.out.getvalue() == b"two\nthree\n"
    said = capsys.readouterr().err
    assert NOTE in said
    assert f"read from cn01:{node.log}" in said


async def test_a_node_that_refuses_is_an_error_in_its_own_words(
    node: Node, command: Command
) -> None:
    put(node.log, b"one\n")
    node.ssh_does(REFUSES)
    with pytest.raises(HpcdashError) as raised:
        await command.show()
    assert raised.value.message == (
        f"stdout of job {RUNNING}: the log is on cn01 ({node.log}) until the job ends, and ssh "
        "cn01 from the login node does not work (maya@cn01: Permission denied "
        "(publickey,password).)."
    )


async def test_following_goes_on_where_the_log_is_once_the_job_has_ended(
    node: Node, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    put(node.log, b"one\n")
    following = asyncio.ensure_future(command.show(follow=True))
    await command.until_written(b"one\n")
    append(node.log, b"two\n")
    await command.until_written(b"one\ntwo\n")
    remove(node.log)
    command.end_the_job()
    put(node.last, b"one\ntwo\nthree\n")
    await following
    assert command.out.getvalue() == b"one\ntwo\nthree\n"
    said = capsys.readouterr().err
    assert f"stdout is now in {node.last}" in said
    assert "is gone" not in said
    assert "another file" not in said
    assert f"job {RUNNING} completed" in said


async def test_a_log_that_comes_late_from_its_node_is_waited_for(
    node: Node, command: Command
) -> None:
    put(node.log, b"one\n")
    following = asyncio.ensure_future(command.show(follow=True))
    await command.until_written(b"one\n")
    asked = command.transport.count(of_files)
    remove(node.log)
    command.end_the_job()
    while command.transport.count(of_files) < asked + 20:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    put(node.last, b"one\ntwo\n")
    await following
    assert command.out.getvalue() == b"one\ntwo\n"


async def test_a_job_that_is_requeued_writes_anew_on_its_next_node(
    node: Node, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    put(node.log, b"one\n")
    following = asyncio.ensure_future(command.show(follow=True))
    await command.until_written(b"one\n")
    remove(node.log)
    command.requeue_the_job()
    said = ""
    while f"stdout is now in {node.last}" not in said:
        said += capsys.readouterr().err
        await asyncio.sleep(0.01)
    put(node.log, b"one\nonce more\n")
    command.run_the_job()
    await command.until_written(b"one\none\nonce more\n")
    assert f"cn01:{node.log}, from the start:" in capsys.readouterr().err
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_job_that_starts_is_followed_on_its_node(node: Node, command: Command) -> None:
    command.requeue_the_job()
    following = asyncio.ensure_future(command.show(follow=True))
    while command.transport.count(of_files) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    put(node.log, b"one\n")
    command.run_the_job()
    await command.until_written(b"one\n")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_log_that_never_comes_is_not_waited_for_forever(
    node: Node, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_command, "_ARRIVES_SECONDS", 0.2)
    put(node.log, b"one\n")
    following = asyncio.ensure_future(command.show(follow=True))
    await command.until_written(b"one\n")
    remove(node.log)
    command.end_the_job()
    await following
    assert command.out.getvalue() == b"one\n"


async def test_following_waits_for_the_end_where_the_node_refuses(
    node: Node, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    put(node.log, b"one\n")
    node.ssh_does(REFUSES)
    following = asyncio.ensure_future(command.show(follow=True))
    while not node.calls.exists() or node.calls.read_text().count("\n") < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    command.end_the_job()
    put(node.last, b"one\ntwo\n")
    await following
    assert command.out.getvalue() == b"one\ntwo\n"
    said = capsys.readouterr().err
    assert said.count("Permission denied") == 1


def test_the_path_of_a_file_on_a_node_names_the_node(
    node: Node,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    def with_session(common: object, work: object) -> None:
        asyncio.run(work(command.session))  # type: ignore[operator]

    monkeypatch.setattr(log_command, "with_session", with_session)
    log_command.run_log(
        CommonOptions(), job=RUNNING, err=False, lines=10, follow=False, path_only=True
    )
    assert capfdbinary.readouterr().out == f"cn01:{node.log}\n".encode()
