"""What OpenSshTransport does with the real ssh program and a real sshd."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    ConnectionFailed,
    HostKeyChanged,
    HostKeyRefused,
)
from hpcdash.transport.openssh import OpenSshTransport
from tests.support.sshd import Sshd, free_port, make_key, until_gone

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")


def transport_to(
    sshd: Sshd, user: str, folder: Path, *, key: Path | None = None, known: str | None = None
) -> OpenSshTransport:
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(
        f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n" if known is None else known
    )
    config = folder / "config"
    config.write_text(
        f"Host cluster\n HostName 127.0.0.1\n Port {sshd.port}\n User {user}\n IdentityFile "
        f"{key or sshd.key}\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {known_hosts}\n"
    )
    return OpenSshTransport("cluster", config_path=config)


async def test_words_stdin_and_status_pass_through(sshd: Sshd, user: str, tmp_path: Path) -> None:
    transport = transport_to(sshd, user, tmp_path)
    done = await transport.run(
        ("sh", "-c", 'printf "<%s>" "$@"; cat; echo words >&2; exit 3', "sh", "$(x)", "a'b\n", ""),
        stdin=b"in\0",
    )
    assert (done.status, done.stdout, done.stderr) == (3, b"<$(x)><a'b\n><>in\0", b"words\n")
    assert done.argv[0] == "sh"
    assert transport.health.state == "connected"
    assert (await transport.run(("hpcdash-no-such-command",))).status == 127
    assert (await transport.run(("sh", "-c", "exit 255"))).status == 255


async def test_what_a_command_says_is_told_as_it_comes(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    pieces: list[bytes] = []
    transport = transport_to(sshd, user, tmp_path)
    done = await transport.run(
        ("sh", "-c", "cat; echo waiting >&2"), stdin=b"in", on_output=pieces.append
    )
    assert (done.stdout, done.stderr, b"".join(pieces)) == (b"in", b"waiting\n", b"waiting\n")
    pieces.clear()
    command = ("sh", "-c", "cat; echo waiting >&2; exit 3")
    done = await transport.run(command, stdin=b"in\x1e", on_stdout=pieces.append, cap_bytes=9)
    assert (done.status, done.stderr) == (3, b"waiting\n")
    assert b"".join(pieces) + done.stdout == b"in\x1e"


async def test_a_command_over_its_limit_is_ended_there(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandTimedOut):
        await transport_to(sshd, user, tmp_path).run(("sleep", "98765.91"), limit_seconds=1)
    assert await until_gone("98765.91") == []


async def test_a_stream_ends_with_its_context(sshd: Sshd, user: str, tmp_path: Path) -> None:
    async with transport_to(sshd, user, tmp_path).stream(
        ("sh", "-c", "echo first; sleep 98765.92")
    ) as stream:
        async for chunk in stream:
            assert chunk == b"first\n"
            break
    assert await until_gone("98765.92") == []


async def test_failures_of_ssh_itself_are_told_apart(sshd: Sshd, user: str, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    with pytest.raises(AuthenticationFailed, match="Permission denied"):
        await transport_to(sshd, user, tmp_path, key=tmp_path / "stranger").connect()
    with pytest.raises(HostKeyRefused):
        await transport_to(sshd, user, tmp_path, known="").connect()
    other = (tmp_path / "stranger.pub").read_text()
    with pytest.raises(HostKeyChanged):
        await transport_to(sshd, user, tmp_path, known=f"[127.0.0.1]:{sshd.port} {other}").connect()
    nobody = OpenSshTransport(f"{user}@127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionFailed, match="refused"):
        await nobody.connect()
    assert nobody.health.state == "failed"


async def test_a_master_that_reports_a_silent_server_is_a_lost_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        "for command; do :; done\n"
        "marker=$(printf %s \"$command\" | grep -o 'hpcdash-[0-9a-f]*' | head -n 1)\n"
        'echo "$marker"; echo "$marker stderr" >&2\n'
        "echo 'Timeout, server login not responding.' >&2\n"
        "exit 255\n"
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConnectionFailed, match="server login not responding"):
        await OpenSshTransport("login").run(("true",))
