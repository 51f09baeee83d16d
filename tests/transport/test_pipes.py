"""A command with an open stdin on each transport: bytes both ways, and its end with its stdin."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdash.transport.base import Transport
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.node import ThroughNode
from hpcdash.transport.prompter import TerminalPrompter
from hpcdash.transport.ssh import SshTransport
from tests.support.node_disk import REACHES, REFUSES
from tests.support.sshd import Sshd, until_gone, until_there
from tests.transport.test_openssh_transport import transport_to

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")

# Each byte, more than the buffers on the way, and hpcdash's own mark at the end of a chunk.
CONTENT = bytes(range(256)) * 4096 + b"\x1e"
KINDS = ("local", "ssh", "openssh", "node", "node over ssh")


@pytest.fixture
def transport(
    sshd: Sshd, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Transport]:
    openssh = transport_to(sshd, user, tmp_path)

    def build(kind: str, ssh_does: str = REACHES) -> Transport:
        if kind == "local":
            return LocalTransport()
        if kind == "openssh":
            return openssh
        ssh = SshTransport("cluster", TerminalPrompter(), config_path=tmp_path / "config")
        if kind == "ssh":
            return ssh
        tools = sshd.folder / "tools"
        tools.mkdir(exist_ok=True)
        (tools / "ssh").write_text(f"#!/bin/sh\n{ssh_does}")
        (tools / "ssh").chmod(0o755)
        login = LocalTransport(path=str(tools)) if kind == "node" else ssh
        if kind != "node":
            ssh.prepend_path(str(tools))
        return ThroughNode(login, "cn01")

    return build


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_pass_both_ways_and_the_end_of_stdin_is_the_command_s(
    transport: Callable[[str], Transport], kind: str
) -> None:
    one = transport(kind)
    received = b""
    async with one.open_pipe(("sh", "-c", "echo up >&2; cat; echo over")) as pipe:

        async def send() -> None:
            for at in range(0, len(CONTENT), 1 << 15):
                await pipe.write(CONTENT[at : at + (1 << 15)])
            pipe.write_eof()

        sending = asyncio.ensure_future(send())
        async for chunk in pipe:
            received += chunk
        await sending
        assert received == CONTENT + b"over\n"
        assert pipe.stderr == b"up\n"
    await one.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_ends_with_the_context_of_its_pipe(
    transport: Callable[[str], Transport], kind: str
) -> None:
    one = transport(kind)
    word = f"9876{KINDS.index(kind)}.5"
    async with one.open_pipe(("sh", "-c", f"cat; : {word}")) as pipe:
        await pipe.write(b"x")
        await until_there(word)
    assert await until_gone(word) == []
    await one.close()


async def test_error_output_is_complete_once_the_output_has_ended() -> None:
    async with LocalTransport().open_pipe(
        ("sh", "-c", "exec >&-; sleep 0.2; echo late >&2")
    ) as pipe:
        assert [chunk async for chunk in pipe] == []
        assert pipe.stderr == b"late\n"


async def test_a_node_that_ssh_does_not_reach_is_an_empty_pipe_with_its_message(
    transport: Callable[[str, str], Transport],
) -> None:
    async with transport("node", REFUSES).open_pipe(("cat",)) as pipe:
        assert [chunk async for chunk in pipe] == []
        assert b"Permission denied" in pipe.stderr
