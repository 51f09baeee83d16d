"""What rc files and a configured `path` do to commands: what they print is no output, what they
break is told.
"""

# ruff: noqa: ASYNC240

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcdash.errors import ConnectionFailed, NotSent, UnreadableOutput
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.openssh import OpenSshTransport
from hpcdash.transport.ssh import SshTransport
from tests.support.person import Person
from tests.support.sshd import Sshd, login_user

Transport = SshTransport | OpenSshTransport
# A hung login shell is given up after this long.
LIMIT_SECONDS = 2


@pytest.fixture
def account() -> str:
    """An account that only these tests use, and of them only those of this worker: each writes its
    .bashrc.
    """
    if os.getuid() != 0 or (name := login_user("bash", "rc")) is None:
        pytest.skip("an account whose .bashrc may be written is needed")
    return name


@pytest.fixture
def bashrc(account: str) -> Iterator[Callable[[str], None]]:
    """Writes the .bashrc of the account."""
    path = Path(pwd.getpwnam(account).pw_dir, ".bashrc")

    def write(text: str) -> None:
        path.write_text(text)
        shutil.chown(path, account)

    try:
        yield write
    finally:
        path.unlink(missing_ok=True)


@pytest.fixture(params=["ssh", "openssh"])
def transport(
    request: pytest.FixtureRequest, sshd: Sshd, account: str, tmp_path: Path
) -> Transport:
    known_hosts, config = tmp_path / "known_hosts", tmp_path / "config"
    known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n")
    config.write_text(
        f"Host cluster\n HostName 127.0.0.1\n Port {sshd.port}\n User {account}\n IdentityFile "
        f"{sshd.key}\n"
        f" IdentitiesOnly yes\n IdentityAgent none\n UserKnownHostsFile {known_hosts}\n"
    )
    if request.param == "ssh":
        return SshTransport("cluster", Person(), config_path=config, known_hosts=known_hosts)
    if shutil.which("ssh") is None:
        pytest.skip("ssh is not installed")
    return OpenSshTransport("cluster", config_path=config)


@pytest.mark.parametrize(
    "line",
    [
        "echo noise; echo noise >&2",
        "printf noise; printf noise >&2",
        "trap 'echo noise; echo noise >&2' EXIT",
        "exec 2>&1",
        "set -x",
    ],
)
async def test_what_an_rc_file_prints_is_no_output(
    transport: Transport, bashrc: Callable[[str], None], line: str
) -> None:
    bashrc(line + "\n")
    answer = await transport.run(("sh", "-c", "echo row; exit 3"))
    assert (answer.status, answer.stdout, answer.stderr) == (3, b"row\n", b"")
    answer = await transport.run(("cat",), stdin=b"half a row")
    assert (answer.status, answer.stdout, answer.stderr) == (0, b"half a row", b"")
    async with transport.stream(("printf", "a row")) as stream:
        assert b"".join([chunk async for chunk in stream]) == b"a row"
    await transport.close()


@pytest.mark.parametrize(
    ("line", "what", "cause"),
    [
        ("exec bash", "had not started sh after 2 s", "exec zsh"),
        ("read -r x", "had not started sh after 2 s", "waits for input"),
        (
            "exec 0</dev/null",
            "The stdin of sh on cluster was closed from the start",
            "exec 0</dev/null",
        ),
        ("exec >/dev/null", "No output of sh arrived from cluster", "exec >file"),
        ("exit 3", "exited (status 3) before it ran sh", "may exit or replace the shell"),
        (
            "exec 0<&-",
            "could not run sh (status 2). Its output: /bin/sh: 9: eval: 0: Bad file descriptor",
            "likely cause",
        ),
        (
            "ulimit -u 1",
            "could not run sh (status 2). Its output: /bin/sh: 1: Cannot fork",
            "ulimit -u",
        ),
        (
            "while :; do echo noise; done",
            "printed more than 64 KiB of unrelated output before it ran sh",
            "likely cause",
        ),
        (
            "while :; do echo noise >&2; done",
            "printed more than 64 KiB of unrelated output before it ran sh",
            "likely cause",
        ),
    ],
)
async def test_what_an_rc_file_breaks_is_told_with_the_likely_cause(
    transport: Transport, bashrc: Callable[[str], None], line: str, what: str, cause: str
) -> None:
    bashrc(line + "\n")
    with pytest.raises(ConnectionFailed) as caught:
        await transport.run(("sh", "-c", "sleep 60"), limit_seconds=LIMIT_SECONDS)
    assert what in caught.value.message
    assert cause in caught.value.next_step
    assert "~/.bashrc" in caught.value.next_step
    await transport.close()


async def test_a_shell_that_prints_without_end_after_a_command_is_ended(
    transport: Transport, bashrc: Callable[[str], None]
) -> None:
    bashrc("trap 'while :; do echo noise; done' EXIT\n")
    with pytest.raises(
        ConnectionFailed, match="of unrelated output after it ran true, so it was terminated"
    ):
        await transport.run(("true",))
    await transport.close()


async def test_of_a_login_shell_that_prints_without_end_no_more_than_a_mebibyte_is_read(
    transport: Transport, bashrc: Callable[[str], None]
) -> None:
    bashrc("shopt -q login_shell && while :; do echo noise; done\n")
    with pytest.raises(UnreadableOutput, match="more than 1 MiB") as caught:
        await transport.adopt_login_environment()
    assert "'$SHELL' -l" in str(caught.value)
    assert ".bash_profile" in caught.value.next_step
    await transport.close()


@pytest.mark.parametrize("line", ["exec bash", "exec 0</dev/null", "exit 3", "ulimit -u 1"])
async def test_what_is_sent_to_a_command_is_never_run_by_a_shell_in_its_place(
    transport: Transport, account: str, bashrc: Callable[[str], None], line: str
) -> None:
    bashrc(line + "\n")
    mark = Path(pwd.getpwnam(account).pw_dir, "was-run")
    with pytest.raises(NotSent):
        await transport.run(("cat",), stdin=f"touch {mark}\n".encode(), limit_seconds=LIMIT_SECONDS)
    await transport.close()
    assert not mark.exists()


def make_program(folder: Path, words: str) -> None:
    folder.chmod(0o755)
    program = folder / "hpcdash-path-probe"
    program.write_text(f"#!/bin/sh\necho {words}\n")
    program.chmod(0o755)


async def test_a_local_program_is_found_in_the_configured_path(tmp_path: Path) -> None:
    make_program(tmp_path, "from the configured path")
    transport = LocalTransport(path=str(tmp_path))

    completed = await transport.run(("env", "LC_ALL=C", "hpcdash-path-probe"))
    async with transport.stream(("hpcdash-path-probe",)) as stream:
        streamed = b"".join([chunk async for chunk in stream])

    assert completed.stdout == b"from the configured path\n"
    assert completed.status == 0
    assert (await LocalTransport().run(("env", "hpcdash-path-probe"))).status == 127
    # The program to start is looked up in the configured path as well.
    assert streamed == b"from the configured path\n"


async def test_a_login_node_looks_in_the_configured_path_first(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    # The one who logs in may not enter pytest's own folders.
    with tempfile.TemporaryDirectory(prefix="with a 'quote ") as folder:
        make_program(Path(folder), "from there")
        config = tmp_path / "config"
        config.write_text(f"Host *\n  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n")
        known_hosts = tmp_path / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n")
        destination = f"{user}@127.0.0.1:{sshd.port}"
        transport = SshTransport(
            destination, Person(), config_path=config, known_hosts=known_hosts, path=folder
        )
        try:
            found = await transport.run(("env", "hpcdash-path-probe"))
            own = await transport.run(("sh", "-c", "echo $PATH"))
        finally:
            await transport.close()

    assert found.stdout == b"from there\n"
    # What was on the PATH stays on it.
    assert own.stdout.decode().startswith(f"{folder}:/")
