"""A login with a person in it, at a real sshd: approvals on a phone, words without a question, no
second try.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest

from hpcdash.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    LoginRequired,
    NotSent,
    UnreachableError,
)
from hpcdash.transport.base import Health
from hpcdash.transport.login_clock import LoginClock
from hpcdash.transport.openssh import OpenSshTransport
from hpcdash.transport.ssh import SshTransport
from tests.support import suite
from tests.support.cut_line import CutLine
from tests.support.pam_sshd import PUSH_WORDS, PamSshd, why_no_pam_sshd
from tests.support.person import Person
from tests.support.sshd import Sshd, login_user, make_key
from tests.support.waiting import until

# The network may take this long; a person's step is longer.
NETWORK_SECONDS = 1
PUSH_ALONE = "AuthenticationMethods keyboard-interactive\n"


@pytest.fixture
def pam_sshd() -> Iterator[PamSshd]:
    if reason := why_no_pam_sshd():
        pytest.skip(reason)
    # pytest's own folders are closed to the users who log in; this one is not.
    with tempfile.TemporaryDirectory(prefix="hpcdash-sshd-") as folder:
        server = PamSshd(Path(folder))
        try:
            yield server
        finally:
            server.stop()


@asynccontextmanager
async def transport_to(
    sshd: Sshd,
    user: str,
    folder: Path,
    person: Person | None = None,
    *,
    port: int | None = None,
    key: Path | None = None,
    config: str = "",
) -> AsyncIterator[SshTransport]:
    port = port or sshd.port
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {sshd.host_key_line}\n")
    (folder / "config").write_text(
        f"Host *\n ConnectTimeout {NETWORK_SECONDS}\n IdentityFile {key or sshd.key}\n "
        "IdentitiesOnly yes\n"
        f" IdentityAgent none\n{config}"
    )
    transport = SshTransport(
        f"{user}@127.0.0.1:{port}",
        person or Person(),
        config_path=folder / "config",
        known_hosts=folder / "known_hosts",
    )
    try:
        yield transport
    finally:
        await transport.close()


async def waits_longer_than_the_network_may(transport: SshTransport) -> None:
    """Returns once the login has waited for its person for longer than the network's limit."""
    health = transport.health
    await until(lambda: health.state == "asking" and health.waiting_since is not None)
    assert health.waiting_since is not None
    since = health.waiting_since
    await until(lambda: time.monotonic() - since > NETWORK_SECONDS + 0.2)


async def raised(error: type[UnreachableError], awaited: Awaitable[object]) -> UnreachableError:
    with pytest.raises(error) as caught:
        await awaited
    return caught.value


async def test_an_approval_on_a_phone_may_take_longer_than_the_network(
    pam_sshd: PamSshd, user: str, tmp_path: Path
) -> None:
    person = Person()
    pam_sshd.start_pushing(PUSH_ALONE)
    async with transport_to(pam_sshd, user, tmp_path, person) as transport:
        connecting = asyncio.create_task(transport.connect())
        await waits_longer_than_the_network_may(transport)
        assert not connecting.done()
        pam_sshd.approve()
        await connecting
        assert (await transport.run(("echo", "in"))).stdout == b"in\n"
    assert pam_sshd.pushes == 1
    assert (f"{user}@127.0.0.1:{pam_sshd.port}", PUSH_WORDS) in person.shown


async def test_a_key_and_then_an_approval_may_take_longer_than_the_network(
    pam_sshd: PamSshd, user: str, tmp_path: Path
) -> None:
    pam_sshd.start_pushing("AuthenticationMethods publickey,keyboard-interactive\n")
    async with transport_to(pam_sshd, user, tmp_path) as transport:
        connecting = asyncio.create_task(transport.connect())
        await waits_longer_than_the_network_may(transport)
        pam_sshd.approve()
        await connecting
        assert transport.health.state == "connected"


@pytest.mark.parametrize("method", ["keyboard-interactive", "password"])
async def test_an_approval_after_a_password_may_take_longer_than_the_network(
    pam_sshd: PamSshd, user: str, tmp_path: Path, method: str
) -> None:
    person = Person({"assword": "secret"})
    pam_sshd.start_pushing(
        f"AuthenticationMethods {method}\nPasswordAuthentication yes\n", password="secret"
    )
    async with transport_to(pam_sshd, user, tmp_path, person) as transport:
        connecting = asyncio.create_task(transport.connect())
        await until(lambda: pam_sshd.pushes == 1)
        await waits_longer_than_the_network_may(transport)
        pam_sshd.approve()
        await connecting
    assert len(person.prompts) == 1


async def test_whoever_waits_without_a_word_is_told_what_may_be_awaited(
    pam_sshd: PamSshd, user: str, tmp_path: Path
) -> None:
    person = Person()
    pam_sshd.start_pushing(PUSH_ALONE)
    async with transport_to(pam_sshd, user, tmp_path, person) as transport:
        connecting = asyncio.create_task(transport.connect())
        await until(lambda: bool(person.waited))
        assert person.waited == [f"{user}@127.0.0.1:{pam_sshd.port}"]
        pam_sshd.approve()
        await connecting


async def test_a_declined_approval_is_asked_for_once(
    pam_sshd: PamSshd, user: str, tmp_path: Path
) -> None:
    pam_sshd.start_pushing(PUSH_ALONE)
    pam_sshd.decline()
    async with transport_to(pam_sshd, user, tmp_path) as transport:
        error = await raised(AuthenticationFailed, transport.connect())
        assert "Tried: key login_key, keyboard-interactive" in error.message
        assert "approve" in error.next_step
        await raised(AuthenticationFailed, transport.run(("true",)))
        assert pam_sshd.pushes == 1
        pam_sshd.forget_answers()
        pam_sshd.approve()
        await transport.connect(force=True)
    assert pam_sshd.pushes == 2


async def test_the_host_decides_how_long_an_approval_may_take_and_it_is_not_asked_for_again(
    pam_sshd: PamSshd, user: str, tmp_path: Path
) -> None:
    pam_sshd.start_pushing(PUSH_ALONE + "LoginGraceTime 2\n")
    async with transport_to(pam_sshd, user, tmp_path) as transport:
        error = await raised(AuthenticationFailed, transport.connect())
        assert "aborted the login after 2 s" in error.message
        assert "VPN" not in str(error)
        assert transport.health.retry_at is None
        assert await raised(AuthenticationFailed, transport.run(("true",))) is error
    assert pam_sshd.pushes == 1


async def test_a_lost_connection_that_took_a_person_is_not_opened_again_unasked(
    pam_sshd: PamSshd, user: str, tmp_path: Path
) -> None:
    pam_sshd.start_pushing(PUSH_ALONE)
    pam_sshd.approve()
    line = CutLine(pam_sshd.port)
    await line.start()
    async with transport_to(pam_sshd, user, tmp_path, port=line.port) as transport:
        await transport.connect()
        running = asyncio.create_task(transport.run(("sleep", "98765.01")))
        await until(lambda: transport.health.state == "connected")
        line.cut()
        error = await raised(ConnectionFailed, running)
        assert "Log in again" in error.next_step
        await until(lambda: transport.health.state == "lost")
        for _ in range(2):
            error = await raised(LoginRequired, transport.run(("true",)))
            assert "lost" in error.message
            assert "ctrl+r" in error.next_step
        # Nothing was sent, and a submission need not be looked for.
        assert isinstance(error, NotSent)
        assert pam_sshd.pushes == 1
        await transport.connect(force=True)
        assert pam_sshd.pushes == 2
    await line.stop()


async def test_a_host_that_is_away_when_a_person_connects_again_is_not_dialled_later(
    pam_sshd: PamSshd, user: str, tmp_path: Path
) -> None:
    pam_sshd.start_pushing(PUSH_ALONE)
    pam_sshd.approve()
    async with transport_to(pam_sshd, user, tmp_path) as transport:
        await transport.connect()
        pam_sshd.kill_with_sessions()
        await until(lambda: transport.health.state == "lost")
        error = await raised(LoginRequired, transport.connect(force=True))
        assert "refused the connection" in error.message
        assert transport.health.retry_at is None
        pam_sshd.start_pushing(PUSH_ALONE)
        await raised(LoginRequired, transport.connect())
        assert pam_sshd.pushes == 1


async def test_a_login_given_up_while_it_waits_is_not_begun_again_unasked(
    pam_sshd: PamSshd, user: str, tmp_path: Path
) -> None:
    pam_sshd.start_pushing(PUSH_ALONE)
    async with transport_to(pam_sshd, user, tmp_path) as transport:
        connecting = asyncio.create_task(transport.connect())
        await until(lambda: pam_sshd.pushes == 1)
        connecting.cancel()
        await until(lambda: transport.health.state == "idle")
        await raised(LoginRequired, transport.run(("true",)))
        assert pam_sshd.pushes == 1


async def test_with_a_key_alone_a_lost_connection_is_opened_again(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    line = CutLine(own_sshd.port)
    await line.start()
    async with transport_to(own_sshd, user, tmp_path, port=line.port) as transport:
        await transport.connect()
        line.cut()
        await until(lambda: line.connections == 2 and transport.health.state == "connected")
        assert (await transport.run(("echo", "back"))).stdout == b"back\n"
    await line.stop()


async def test_a_line_that_is_lost_again_and_again_is_opened_six_times_in_five_minutes(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    line = CutLine(own_sshd.port)
    await line.start()
    async with transport_to(own_sshd, user, tmp_path, port=line.port) as transport:
        await transport.connect()
        for number in range(1, 7):
            await until(
                lambda number=number: (
                    line.connections == number and transport.health.state == "connected"
                )
            )
            line.cut()
        await until(lambda: transport.health.state == "lost")
        with pytest.raises(NotSent, match="dropped too often: 6 logins within 5 min") as caught:
            await transport.run(("true",))
        assert "ctrl+r" in caught.value.next_step
        assert line.connections == 6
        await transport.connect(force=True)
        assert line.connections == 7
    await line.stop()


async def test_a_person_who_was_needed_once_is_never_disturbed_by_a_retry(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "locked", passphrase="open sesame")
    own_sshd.authorize(tmp_path / "locked.pub")
    line = CutLine(own_sshd.port)
    await line.start()
    typing = Person({"Passphrase": "open sesame"})
    async with transport_to(
        own_sshd, user, tmp_path, typing, key=tmp_path / "locked", port=line.port
    ) as transport:
        await transport.connect()
        # Without its passphrase the same key needs nobody.
        plain = [
            "ssh-keygen",
            "-q",
            "-p",
            "-P",
            "open sesame",
            "-N",
            "",
            "-f",
            str(tmp_path / "locked"),
        ]
        await asyncio.to_thread(subprocess.run, plain, check=True)
        for logins in (1, 2):
            line.cut()
            await until(lambda: transport.health.state == "lost")
            await raised(LoginRequired, transport.run(("true",)))
            assert line.connections == logins
            await transport.connect(force=True)
    await line.stop()


async def test_text_comes_compressed_unless_the_configuration_says_no(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    # As a scheduler prints a list: in one piece, which sshd does not send line by line.
    rows = "i=0; while [ $i -lt 20000 ]; do echo row $i of a long list; i=$((i+1)); done"
    command = ("sh", "-c", f'file=$(mktemp); {{ {rows}; }} >"$file"; cat "$file"; rm "$file"')
    came = {}
    for answer in ("yes", "no"):
        line = CutLine(own_sshd.port)
        await line.start()
        async with transport_to(
            own_sshd, user, tmp_path, port=line.port, config=f" Compression {answer}\n"
        ) as transport:
            stdout = (await transport.run(command)).stdout
        came[answer] = line.bytes_down
        await line.stop()
    assert came["no"] > len(stdout)
    assert came["yes"] < len(stdout) / 4


async def test_the_time_that_a_line_takes_is_not_the_commands(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_to(own_sshd, user, tmp_path) as transport:
        folder = (await transport.run(("mktemp", "-d"))).stdout.decode().strip()
        began = time.monotonic()
        # A little may come before the scheduler was called.
        script = (
            'printf "%2000s" first; while ! [ -e "$1/go" ]; do sleep 0.02; done; rm -r "$1"; '
            "echo last"
        )
        running = asyncio.create_task(transport.run(("sh", "-c", script, "sh", folder)))
        # What it prints first is here before what comes after it on the same connection.
        await transport.run(("true",))
        first = time.monotonic() - began
        await transport.run(("touch", f"{folder}/go"))
        answer = await running
    assert answer.stdout == b"%2000s" % b"first" + b"last\n"
    assert answer.answer_seconds is not None
    assert 0 <= answer.answer_seconds <= first < answer.seconds


async def test_where_nobody_is_no_phone_rings(pam_sshd: PamSshd, user: str, tmp_path: Path) -> None:
    pam_sshd.start_pushing(PUSH_ALONE)
    async with transport_to(pam_sshd, user, tmp_path, Person(is_here=False)) as transport:
        error = await raised(AuthenticationFailed, transport.connect())
    assert "keyboard-interactive (not tried: no one is present to answer)" in error.message
    assert "terminal" in error.next_step
    assert pam_sshd.pushes == 0


async def test_a_criterion_of_match_that_is_unknown_is_warned_of_and_does_not_keep_a_login_back(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    config = (
        "Match localnetwork 203.0.113.0/24\n ProxyJump gate\nHost *\n ServerAliveInterval 1m "
        "# often\n"
    )
    async with transport_to(sshd, user, tmp_path, person := Person(), config=config) as transport:
        assert (await transport.run(("echo", "in"))).stdout == b"in\n"
        ((hop, words),) = person.shown
        assert transport.health.text == f"{hop}: {words}"
    assert words.startswith(
        f"{tmp_path}/config line 6: hpcdash cannot evaluate Match localnetwork 203.0.113.0/24"
    )
    assert words.endswith("with its ProxyJump gate")


async def test_a_banner_is_shown_and_told_where_the_login_fails(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    banner = own_sshd.folder / "banner"
    banner.write_text("Maintenance on Monday.\nNo logins from 8 to 10.\n")
    own_sshd.stop()
    own_sshd.start(f"Banner {banner}\n")
    person = Person()
    async with transport_to(own_sshd, user, tmp_path, person) as transport:
        await transport.connect()
    assert person.shown == [(f"{user}@127.0.0.1:{own_sshd.port}", banner.read_text().strip())]
    make_key(tmp_path / "locked", passphrase="open sesame")
    own_sshd.authorize(tmp_path / "locked.pub")
    typing = Person({"Passphrase": "open sesame"})
    async with transport_to(own_sshd, user, tmp_path, typing, key=tmp_path / "locked") as transport:
        await transport.connect()
    assert [prompt.message for prompt in typing.prompts] == [banner.read_text().strip()]
    async with transport_to(
        own_sshd, user, tmp_path, config=" PubkeyAuthentication no\n"
    ) as transport:
        error = await raised(AuthenticationFailed, transport.connect())
        assert "Its message: Maintenance on Monday. No logins from 8 to 10." in error.message
    quiet = Person()
    async with transport_to(
        own_sshd, user, tmp_path, quiet, config=" LogLevel ERROR\n"
    ) as transport:
        await transport.connect()
    assert quiet.shown == []


OLD, NEW = "Old-secret-77", "Brand-new-Key-88"
PAM_UNIX = "\n".join(
    f"{kind} required {module}"
    for kind, module in (
        ("auth", "pam_unix.so"),
        ("account", "pam_unix.so"),
        ("session", "pam_permit.so"),
    )
)


@pytest.fixture
def expired_user() -> str:
    """An account whose password has expired."""
    if os.getuid() != 0 or (name := login_user("bash", "expired")) is None:
        pytest.skip("an account whose password may be set is needed")
    with suite.locked_accounts():
        subprocess.run(["chpasswd"], input=f"{name}:{OLD}\n", text=True, check=True)
        subprocess.run(["chage", "-d", "0", name], check=True)
    return name


async def test_an_expired_password_is_changed_where_the_host_asks(
    pam_sshd: PamSshd, expired_user: str, tmp_path: Path
) -> None:
    person = Person({"Retype": NEW, "New": NEW, "assword": OLD})
    pam_sshd.start_with(f"{PAM_UNIX}\npassword required pam_unix.so\n", PUSH_ALONE)
    async with transport_to(pam_sshd, expired_user, tmp_path, person) as transport:
        assert (await transport.run(("echo", "in"))).stdout == b"in\n"
    assert [prompt.fields[0].label.strip() for prompt in person.prompts] == [
        "Password:",
        "Current password:",
        "New password:",
        "Retype new password:",
    ]
    # What PAM puts before its question is not its label.
    assert "required to change your password immediately" in person.prompts[1].instructions


@pytest.mark.parametrize("kind", ["ssh", "openssh"])
async def test_an_expired_password_that_the_host_does_not_ask_for_is_told(
    pam_sshd: PamSshd, expired_user: str, tmp_path: Path, kind: str
) -> None:
    pam_sshd.start_with(f"{PAM_UNIX}\npassword required pam_unix.so\n")
    async with transport_to(pam_sshd, expired_user, tmp_path) as asyncssh_transport:
        transport: SshTransport | OpenSshTransport = asyncssh_transport
        if kind == "openssh":
            config = tmp_path / "config"
            config.write_text(config.read_text() + f" UserKnownHostsFile {tmp_path}/known_hosts\n")
            transport = OpenSshTransport(asyncssh_transport.name, config_path=config)
        error = await raised(AuthenticationFailed, transport.run(("true",)))
    assert "has expired" in error.message
    assert f"ssh ssh://{transport.name} prompts for a new one" in error.next_step


class _Changing(asyncssh.SSHServer):
    """Asks by SSH_MSG_USERAUTH_PASSWD_CHANGEREQ, which sshd does not."""

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        if password == OLD:
            raise asyncssh.PasswordChangeRequired("Your password is a year old.")
        return False

    def change_password(self, username: str, old_password: str, new_password: str) -> bool:
        return (old_password, new_password) == (OLD, NEW)


async def test_a_password_is_changed_where_the_protocol_asks(tmp_path: Path) -> None:
    make_key(tmp_path / "host")
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=_Changing, server_host_keys=[str(tmp_path / "host")]
    )
    port = server.get_port()
    (tmp_path / "known_hosts").write_text(
        f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}"
    )
    (tmp_path / "config").write_text("Host *\n IdentityFile none\n IdentityAgent none\n")
    person = Person({"Repeat": NEW, "New": NEW, "assword": OLD})
    transport = SshTransport(
        f"maya@127.0.0.1:{port}",
        person,
        config_path=tmp_path / "config",
        known_hosts=tmp_path / "known_hosts",
    )
    await transport.connect()
    assert person.prompts[-1].instructions == "Your password is a year old."
    assert [field.label for field in person.prompts[-1].fields] == [
        "Current password",
        "New password",
        "Repeat the new password",
    ]
    assert all(field.secret for field in person.prompts[-1].fields)
    await transport.close()
    server.close()


async def test_a_host_that_never_ends_a_login_is_left_in_the_end() -> None:
    clock = LoginClock(0.05, Health(), person_seconds=0.2)

    async def waits_for_ever() -> None:
        clock.wait_for_person()
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await clock.limit(waits_for_ever())
    assert clock.elapsed_seconds >= 0.2
    assert clock.outlasted_network
