"""Certificates, agents, hardware keys and Kerberos at a real sshd: each works, or is named with the
next step.
"""

# ruff: noqa: ASYNC221
# Short programs are waited for here while nothing else runs.

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from hpcdash.errors import AuthenticationFailed, LoginRequired
from hpcdash.transport.ssh import SshTransport
from tests.support.cut_line import CutLine
from tests.support.hardware_key import HardwareKey
from tests.support.person import Person
from tests.support.sshd import Sshd, make_key, why_no_sshd
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def certifying_sshd() -> Iterator[Sshd]:
    """Lets in whoever has a certificate of its authority, whose key is `authority` in its
    folder.
    """
    if reason := why_no_sshd():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="hpcdash-sshd-") as folder:
        server = Sshd(Path(folder))
        (server.folder / "authorized_keys").write_text("")
        make_key(server.folder / "authority")
        server.start(f"TrustedUserCAKeys {folder}/authority.pub\n")
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def socket() -> Iterator[Path]:
    """Where an agent may listen: the path of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="hpcdash-agent-") as folder:
        yield Path(folder) / "agent socket"


@pytest.fixture
def agent(socket: Path) -> Iterator[Path]:
    """A real ssh-agent's socket."""
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        wait_until("the agent", socket.exists)
        yield socket
    finally:
        process.terminate()
        process.wait()


def add_to(agent: Path, key: Path) -> None:
    """Move a key, and its certificate where one is beside it, into the agent."""
    subprocess.run(
        ["ssh-add", "-q", str(key)], env={**os.environ, "SSH_AUTH_SOCK": str(agent)}, check=True
    )
    key.unlink()


def certify(
    sshd: Sshd, key: Path, principal: str, validity: str = "+1h", to: Path | None = None
) -> None:
    """A certificate beside a key, or in `to`."""
    authority = str(sshd.folder / "authority")
    command = [
        "ssh-keygen",
        "-q",
        "-s",
        authority,
        "-I",
        "test",
        "-n",
        principal,
        "-V",
        validity,
        f"{key}.pub",
    ]
    subprocess.run(command, check=True)
    if to is not None:
        shutil.move(f"{key}-cert.pub", to)


@asynccontextmanager
async def transport_to(
    sshd: Sshd,
    user: str,
    folder: Path,
    config: str,
    person: Person | None = None,
    port: int | None = None,
) -> AsyncIterator[SshTransport]:
    port = port or sshd.port
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {sshd.host_key_line}\n")
    (folder / "config").write_text(f"Host *\n{config}")
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


async def lets_in(
    sshd: Sshd, user: str, folder: Path, config: str, person: Person | None = None
) -> bool:
    async with transport_to(sshd, user, folder, config, person) as transport:
        return (await transport.run(("echo", "in"))).stdout == b"in\n"


async def refusal(sshd: Sshd, user: str, folder: Path, config: str) -> AuthenticationFailed:
    async with transport_to(sshd, user, folder, config) as transport:
        with pytest.raises(AuthenticationFailed) as caught:
            await transport.connect()
    return caught.value


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("where", ["named", "beside"])
async def test_a_certificate_lets_in(
    certifying_sshd: Sshd, user: str, tmp_path: Path, kind: str, where: str
) -> None:
    make_key(tmp_path / "id", kind=kind)
    certify(
        certifying_sshd,
        tmp_path / "id",
        user,
        to=tmp_path / "short-lived" if where == "named" else None,
    )
    config = f" IdentityFile {tmp_path}/id\n IdentityAgent none\n"
    if where == "named":
        config += f" CertificateFile {tmp_path}/short-lived\n"
    assert await lets_in(certifying_sshd, user, tmp_path, config)


async def test_a_certificate_of_a_locked_key_lets_in_and_its_passphrase_is_asked_once(
    certifying_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "id", passphrase="open sesame")
    certify(certifying_sshd, tmp_path / "id", user)
    person = Person({"Passphrase": "open sesame"})
    config = f" IdentityFile {tmp_path}/id\n IdentityAgent none\n"
    assert await lets_in(certifying_sshd, user, tmp_path, config, person)
    assert len(person.prompts) == 1


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
@pytest.mark.parametrize("identities_only", ["yes", "no"])
async def test_a_certificate_whose_key_is_in_an_agent_lets_in(
    certifying_sshd: Sshd, user: str, tmp_path: Path, agent: Path, kind: str, identities_only: str
) -> None:
    make_key(tmp_path / "id", kind=kind)
    certify(certifying_sshd, tmp_path / "id", user, to=tmp_path / "short-lived")
    add_to(agent, tmp_path / "id")
    config = (
        f' IdentityAgent "{agent}"\n CertificateFile {tmp_path}/short-lived\n IdentityFile '
        f"{tmp_path}/id.pub\n"
        f" IdentitiesOnly {identities_only}\n"
    )
    assert await lets_in(certifying_sshd, user, tmp_path, config)


async def test_an_expired_certificate_is_named_with_when_it_expired(
    certifying_sshd: Sshd, user: str, tmp_path: Path, agent: Path
) -> None:
    for name in ("id", "held"):
        make_key(tmp_path / name)
        certify(certifying_sshd, tmp_path / name, user, "20200101000000Z:20200102000000Z")
    add_to(agent, tmp_path / "held")
    config = f' IdentityFile {tmp_path}/id\n IdentityAgent "{agent}"\n'
    error = await refusal(certifying_sshd, user, tmp_path, config)
    expired = (
        datetime.fromisoformat("2020-01-02T00:00:00Z")
        .astimezone()
        .strftime("expired on %Y-%m-%d %H:%M %Z")
    )
    assert f"certificate id-cert.pub ({expired})" in error.message
    assert f"certificate test from the agent ({expired})" in error.message
    assert (
        error.next_step
        == "Get a new certificate the way your site issues them, then connect again."
    )


async def test_a_certificate_that_is_no_use_says_why(
    certifying_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "early")
    certify(certifying_sshd, tmp_path / "early", user, "+1h:+2h")
    make_key(tmp_path / "others")
    certify(certifying_sshd, tmp_path / "others", "alice,bob")
    make_key(tmp_path / "away")
    certify(certifying_sshd, tmp_path / "away", user)
    (tmp_path / "away").unlink()
    config = (
        f" IdentityFile {tmp_path}/early\n IdentityFile {tmp_path}/others\n IdentityAgent none\n"
        f" CertificateFile {tmp_path}/away-cert.pub\n CertificateFile {tmp_path}/gone\n"
    )
    error = await refusal(certifying_sshd, user, tmp_path, config)
    assert "certificate early-cert.pub (not valid before " in error.message
    assert f"certificate others-cert.pub (issued to alice, bob, not to {user})" in error.message
    assert "certificate away-cert.pub (its private key is not here)" in error.message
    assert "certificate gone (cannot be read: No such file or directory)" in error.message
    assert f"{tmp_path}/gone is set as CertificateFile" in error.next_step
    assert "clock" in error.next_step


@pytest.mark.parametrize(
    "written", ['"{socket}"', "$OTHER_AGENT", "${{OTHER_AGENT}}", "SSH_AUTH_SOCK", '"%d/{name}"']
)
async def test_the_agent_that_identity_agent_names_is_asked(
    own_sshd: Sshd,
    user: str,
    tmp_path: Path,
    agent: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent) if written == "SSH_AUTH_SOCK" else "/elsewhere")
    monkeypatch.setenv("OTHER_AGENT", str(agent))
    monkeypatch.setenv("HOME", str(agent.parent))
    make_key(tmp_path / "id")
    own_sshd.authorize(tmp_path / "id.pub")
    add_to(agent, tmp_path / "id")
    config = f" IdentityAgent {written.format(socket=agent, name=agent.name)}\n"
    assert await lets_in(own_sshd, user, tmp_path, config)


@pytest.mark.parametrize("named", ["none", "/nowhere/agent", "$NOT_SET"])
async def test_no_other_agent_is_asked_than_the_one_named(
    own_sshd: Sshd,
    user: str,
    tmp_path: Path,
    agent: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: str,
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    make_key(tmp_path / "id")
    own_sshd.authorize(tmp_path / "id.pub")
    add_to(agent, tmp_path / "id")
    error = await refusal(own_sshd, user, tmp_path, f" IdentityFile none\n IdentityAgent {named}\n")
    said = "no accepted method" if named == "none" else f"agent {named} (No such file or directory)"
    assert f"Tried: {said}." in error.message


async def test_without_identity_files_the_default_ones_are_not_offered(
    own_sshd: Sshd, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    make_key(tmp_path / ".ssh" / "id_ed25519")
    own_sshd.authorize(tmp_path / ".ssh" / "id_ed25519.pub")
    assert await lets_in(own_sshd, user, tmp_path, " IdentityAgent none\n")
    await refusal(own_sshd, user, tmp_path, " IdentityFile none\n IdentityAgent none\n")


async def test_a_hardware_key_in_an_agent_lets_in_however_late_it_is_touched_and_is_not_asked_again(
    own_sshd: Sshd, user: str, tmp_path: Path, socket: Path
) -> None:
    key = HardwareKey()
    key.write(tmp_path / "id_ed25519_sk")
    own_sshd.authorize(tmp_path / "id_ed25519_sk.pub")
    await key.start_agent(socket)
    line = CutLine(own_sshd.port)
    await line.start()
    config = (
        f' ConnectTimeout 1\n IdentityAgent "{socket}"\n IdentityFile {tmp_path}/id_ed25519_sk\n'
    )
    async with transport_to(own_sshd, user, tmp_path, config, port=line.port) as transport:
        connecting = asyncio.create_task(transport.connect())
        await asyncio.wait({connecting}, timeout=1.5)
        assert transport.health.state == "asking"
        key.touched.set()
        await connecting
        line.cut()
        while transport.health.state != "lost":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        with pytest.raises(LoginRequired):
            await transport.run(("true",))
        assert key.signatures == 1
    await line.stop()
    await key.stop_agent()


async def test_a_hardware_key_in_a_file_is_named_with_what_uses_it(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    key = HardwareKey()
    key.write(tmp_path / "id_ed25519_sk")
    own_sshd.authorize(tmp_path / "id_ed25519_sk.pub")
    # The file is one that OpenSSH reads.
    shown = subprocess.run(
        ["ssh-keygen", "-yf", str(tmp_path / "id_ed25519_sk")], capture_output=True, text=True
    )
    assert shown.stdout.split()[:2] == key.public_line.split()[:2]
    config = f" IdentityFile {tmp_path}/id_ed25519_sk\n IdentityAgent none\n"
    error = await refusal(own_sshd, user, tmp_path, config)
    assert "key id_ed25519_sk (a hardware key, usable only through an agent)" in error.message
    assert f"ssh-add {tmp_path}/id_ed25519_sk" in error.next_step
    assert 'transport = "openssh"' in error.next_step


async def test_kerberos_that_cannot_be_used_is_named_where_the_host_offers_it(
    own_sshd: Sshd, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.transport.ssh_identity.gss_available", False)
    own_sshd.stop()
    own_sshd.start("GSSAPIAuthentication yes\n")
    none = " IdentityFile none\n IdentityAgent none\n"
    error = await refusal(own_sshd, user, tmp_path, f" GSSAPIAuthentication yes\n{none}")
    assert "GSSAPI (not tried: the Python package gssapi is not installed)" in error.message
    assert "hpcdash[gssapi]" in error.next_step
    assert 'transport = "openssh"' in error.next_step
    assert "GSSAPI" not in str(await refusal(own_sshd, user, tmp_path, none))
    own_sshd.stop()
    own_sshd.start("GSSAPIAuthentication no\n")
    assert "GSSAPI" not in str(
        await refusal(own_sshd, user, tmp_path, f" GSSAPIAuthentication yes\n{none}")
    )
