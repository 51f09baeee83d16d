"""What a command wrote when its exit status comes first, as it does from an sshd that is busy."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncssh
import pytest

from hpcdash.transport import ssh_session
from hpcdash.transport.shell import RemoteCommand, RemoteOutput, remote_command
from hpcdash.transport.ssh_session import RunSession

STDERR = asyncssh.EXTENDED_DATA_STDERR


class Channel:
    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def new_session(command: RemoteCommand) -> RunSession:
    output = RemoteOutput(command, host="juno", program="sinfo", reads_stdin=False)
    return RunSession(output, 10_000)


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that moves the session's clock on by so many seconds."""
    now = [0.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(ssh_session, "time", Clock)
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


@pytest.mark.parametrize("silent_seconds", [0, 6, 60])
@pytest.mark.parametrize("late_seconds", [0, 5])
async def test_output_that_comes_after_the_exit_status_is_the_commands(
    turn: Any, silent_seconds: int, late_seconds: int
) -> None:
    command = remote_command(("sinfo",), limit_seconds=90)
    session, channel = new_session(command), Channel()
    session.connection_made(channel)  # type: ignore[arg-type]
    session.data_received(command.marker + b" stderr\n", STDERR)
    session.data_received(command.marker + b"\n", None)
    turn(silent_seconds)
    session.exit_status_received(1)
    waiting = asyncio.create_task(session.wait())
    await asyncio.sleep(0)
    turn(late_seconds)
    await asyncio.sleep(0)
    session.data_received(b"\x1e" + command.marker + b" end\n", None)
    session.data_received(b"sinfo: error: no controller\n\x1e" + command.marker + b" end\n", STDERR)
    session.connection_lost(None)
    await waiting
    assert (session.status, session.stderr, channel.is_aborted) == (
        1,
        b"sinfo: error: no controller\n",
        False,
    )


async def test_who_holds_the_output_of_a_command_that_has_ended_is_not_waited_for(
    turn: Any,
) -> None:
    command = remote_command(("sinfo",), limit_seconds=90)
    session, channel = new_session(command), Channel()
    session.connection_made(channel)  # type: ignore[arg-type]
    for datatype, begin in ((STDERR, b" stderr\n"), (None, b"\n")):
        session.data_received(
            command.marker + begin + b"\x1e" + command.marker + b" end\n", datatype
        )
    session.exit_status_received(0)
    waiting = asyncio.create_task(session.wait())
    await asyncio.sleep(0)
    turn(1.5)
    await waiting
    assert (session.status, channel.is_aborted) == (0, True)
