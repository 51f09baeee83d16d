"""What SshTransport does against a real sshd."""

# ruff: noqa: ASYNC220, ASYNC221, ASYNC240
# Short programs are waited for here while nothing else runs.

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    ConnectionFailed,
    HostKeyChanged,
    HostKeyRefused,
    UnreachableError,
)
from hpcdash.transport import ssh
from hpcdash.transport.known_hosts import fingerprint
from hpcdash.transport.ssh import SshTransport, retry_seconds
from tests.support.cut_line import CutLine
from tests.support.person import Person
from tests.support.sshd import Sshd, free_port, login_user, make_key, until_gone, until_there
from tests.support.suite import account
from tests.support.waiting import until

HOSTILE_WORDS = (
    "$(touch x)",
    "`touch x`",
    'it\'s "quoted" !! !x',
    "two\nlines\n",
    "\x1e\x1f\x01\x7f",
    "naïve ✓ 作业",
    "",
    "back\\slash \\\\ \\n %b %s",
    "~ * ? [a] {b,c} ;|&<>()#",
    "\t \r",
    "-n",
    "\udcff\udcfe",
)


def trusted(sshd: Sshd, folder: Path, port: int | None = None) -> Path:
    path = folder / "known_hosts"
    path.write_text(f"[127.0.0.1]:{port or sshd.port} {sshd.host_key_line}\n")
    return path


@asynccontextmanager
async def transport_to(
    sshd: Sshd,
    user: str,
    folder: Path,
    *,
    port: int | None = None,
    person: Person | None = None,
    known_hosts: Path | None = None,
    config: str = "",
) -> AsyncIterator[SshTransport]:
    config_path = folder / "config"
    config_path.write_text(config or f"Host *\n  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n")
    transport = SshTransport(
        f"{user}@127.0.0.1:{port or sshd.port}",
        person or Person(),
        config_path=config_path,
        known_hosts=known_hosts or trusted(sshd, folder, port),
    )
    try:
        yield transport
    finally:
        await transport.close()


async def raised(error: type[UnreachableError], awaited: Awaitable[object]) -> UnreachableError:
    with pytest.raises(error) as caught:
        await awaited
    return caught.value


async def test_a_command_gives_status_stdout_and_stderr(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        done = await transport.run(("sh", "-c", "id -un; echo words >&2; exit 3"))
        assert (done.status, done.stdout, done.stderr) == (3, f"{user}\n".encode(), b"words\n")
        assert transport.health.state == "connected"
        assert transport.health.hops == (f"{user}@127.0.0.1:{sshd.port}",)


async def test_what_a_command_says_is_told_as_it_comes(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        pieces: list[bytes] = []
        done = await transport.run(
            ("sh", "-c", "cat; echo waiting >&2"), stdin=b"in", on_output=pieces.append
        )
        assert (done.stdout, done.stderr, b"".join(pieces)) == (b"in", b"waiting\n", b"waiting\n")
        pieces.clear()
        command = ("sh", "-c", "cat; echo waiting >&2; exit 3")
        done = await transport.run(command, stdin=b"in\x1e", on_stdout=pieces.append, cap_bytes=9)
        assert (done.status, done.stderr) == (3, b"waiting\n")
        assert b"".join(pieces) + done.stdout == b"in\x1e"


@pytest.mark.parametrize("shell", ["bash", "dash", "tcsh", "fish", "zsh"])
async def test_hostile_words_arrive_byte_for_byte_whatever_the_login_shell(
    sshd: Sshd, tmp_path: Path, shell: str
) -> None:
    name = login_user(shell)
    if name is None:
        pytest.skip(f"no user with {shell} as login shell")
    async with transport_to(sshd, name, tmp_path) as transport:
        done = await transport.run(("printf", "<%s>", *HOSTILE_WORDS))
        assert done.stdout == b"".join(
            b"<" + w.encode("utf-8", "surrogateescape") + b">" for w in HOSTILE_WORDS
        )
        assert (done.status, done.stderr) == (0, b"")
        payload = bytes(range(256)) * 3000
        copied = await transport.run(("cat",), stdin=payload)
        assert copied.stdout == payload
        missing = await transport.run(("hpcdash-no-such-command",))
        assert missing.status == 127
        assert b"hpcdash-no-such-command" in missing.stderr


async def test_a_command_over_its_limit_is_ended_there_and_the_connection_lives(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        await transport.connect()
        connected_at = transport.health.connected_at
        with pytest.raises(CommandTimedOut) as caught:
            await transport.run(
                ("sh", "-c", "trap '' TERM; echo slow >&2; sleep 98765.41"), limit_seconds=0.5
            )
        assert "0.5 s" in str(caught.value)
        assert "slow" in str(caught.value)
        assert await until_gone("98765.41") == []
        assert (await transport.run(("echo", "alive"))).stdout == b"alive\n"
        assert transport.health.connected_at == connected_at


@pytest.mark.parametrize("how", ["cut", "silent", "sshd killed"])
async def test_nothing_is_left_running_when_the_line_goes(
    own_sshd: Sshd, user: str, tmp_path: Path, how: str
) -> None:
    line = CutLine(own_sshd.port)
    await line.start()
    word = f"98765.5{len(how)}"
    async with transport_to(own_sshd, user, tmp_path, port=line.port) as transport:
        command = ("sh", "-c", f"sleep {word} & echo begun >&2; sleep {word}")
        heard, limit_seconds = asyncio.Event(), 4 if how == "silent" else 60
        running = asyncio.create_task(
            transport.run(command, limit_seconds=limit_seconds, on_output=lambda data: heard.set())
        )
        await until_there(f"sleep {word}")
        await heard.wait()
        if how == "cut":
            line.cut()
        elif how == "silent":
            line.fall_silent()
        else:
            own_sshd.kill_with_sessions()
        if how == "silent":
            with pytest.raises(CommandTimedOut):
                await running
        else:
            error = await raised(ConnectionFailed, running)
            assert "lost while running sh" in error.message
            assert error.next_step == "The next command reconnects.", "most commands submit nothing"
            assert transport.health.state == "lost"
        assert await until_gone(word) == []
    await line.stop()


async def test_a_stdin_that_was_cut_off_never_looks_complete(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    line = CutLine(own_sshd.port)
    await line.start()
    mark = Path(f"/tmp/hpcdash-test-{os.getpid()}-complete")
    script = f"trap '' TERM; cat >/dev/null; touch {mark}; : 98765.61"
    async with transport_to(own_sshd, user, tmp_path, port=line.port) as transport:
        # Nobody reads there until the pipes are full, so that part of it is still on the way.
        running = asyncio.create_task(
            transport.run(("sh", "-c", f"sleep 0.5; {script}"), stdin=b"x" * 30_000_000)
        )
        await until_there("98765.61")
        line.cut()
        await raised(ConnectionFailed, running)
    assert await until_gone("98765.61") == []
    assert not mark.exists()
    await line.stop()


async def test_a_cancelled_command_is_ended_there(sshd: Sshd, user: str, tmp_path: Path) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        running = asyncio.create_task(transport.run(("sleep", "98765.71")))
        await until_there("sleep 98765.71")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await until_gone("98765.71") == []


async def test_what_a_command_leaves_in_the_background_is_ended_with_it(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        done = await transport.run(("sh", "-c", "sleep 98765.72 & echo done"), limit_seconds=900)
        assert (done.status, done.stdout) == (0, b"done\n")
        assert await until_gone("98765.72") == []


async def test_eight_commands_run_at_the_same_time_on_one_connection(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        accepted_before = sshd.log.count(f"Accepted publickey for {user} ")
        meeting = f"/tmp/hpcdash-test-{os.getpid()}-{time.monotonic_ns()}"
        # Each waits until all eight are there.
        wait = f"while [ $(ls {meeting} | wc -l) -lt 8 ]; do sleep 0.05; done"
        script = f"mkdir -p {meeting}; : >{meeting}/$1; {wait}; echo $1"
        done = await asyncio.gather(
            *(transport.run(("sh", "-c", script, "sh", str(n)), limit_seconds=15) for n in range(8))
        )
        assert [answer.stdout for answer in done] == [f"{n}\n".encode() for n in range(8)]
        assert sshd.log.count(f"Accepted publickey for {user} ") == accepted_before + 1
        await transport.run(("rm", "-r", meeting))


async def test_more_commands_than_channels_wait_for_one(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        done = await asyncio.gather(*(transport.run(("echo", str(n))) for n in range(30)))
        assert [answer.stdout for answer in done] == [f"{n}\n".encode() for n in range(30)]


async def test_a_login_node_with_few_sessions_is_asked_again(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    own_sshd.stop()
    own_sshd.start("MaxSessions 4\n")
    async with transport_to(own_sshd, user, tmp_path) as transport:
        done = await asyncio.gather(*(transport.run(("echo", str(n))) for n in range(16)))
        assert [answer.stdout for answer in done] == [f"{n}\n".encode() for n in range(16)]


async def test_output_over_the_cap_ends_the_command(sshd: Sshd, user: str, tmp_path: Path) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        done = await transport.run(("sh", "-c", "yes; : 98765.73"), cap_bytes=100_000)
        assert done.truncated
        assert len(done.stdout) == 100_000
        assert await until_gone("98765.73") == []
        assert (await transport.run(("echo", "alive"))).stdout == b"alive\n"


async def test_thirty_megabytes_come_whole(sshd: Sshd, user: str, tmp_path: Path) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        done = await transport.run(("head", "-c", "30000000", "/dev/zero"))
        assert done.stdout == bytes(30_000_000)


async def test_a_stream_gives_output_as_it_comes_and_ends_with_its_context(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_to(sshd, user, tmp_path) as transport:
        async with transport.stream(("sh", "-c", "echo first; sleep 98765.74")) as stream:
            async for chunk in stream:
                assert chunk == b"first\n"
                break
        assert await until_gone("98765.74") == []


async def test_a_stream_nobody_reads_is_held_back_and_then_comes_whole(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with (
        transport_to(sshd, user, tmp_path) as transport,
        transport.stream(("sh", "-c", "head -c 20000000 /dev/zero; echo end")) as stream,
    ):
        await transport.run(("sleep", "0.3"))
        size, last = 0, b""
        async for chunk in stream:
            size, last = size + len(chunk), chunk
        assert size == 20_000_004
        assert last.endswith(b"end\n")


async def test_what_rc_files_print_is_not_output(sshd: Sshd, tmp_path: Path) -> None:
    noisy = _user_with("zsh", {".zshenv": "echo noise; echo more noise >&2\n"})
    async with transport_to(sshd, noisy, tmp_path) as transport:
        done = await transport.run(("echo", "output"))
        assert (done.stdout, done.stderr) == (b"output\n", b"")


@pytest.mark.parametrize(
    ("shell", "file", "line"),
    [
        ("bash", ".bash_profile", "echo noise; export PATH=/opt/hpcdash-test/bin:$PATH\n"),
        ("tcsh", ".login", "echo noise\nsetenv PATH /opt/hpcdash-test/bin:$PATH\n"),
        (
            "fish",
            ".config/fish/config.fish",
            "if status is-login\n set -gx PATH /opt/hpcdash-test/bin $PATH\nend\n",
        ),
    ],
)
async def test_a_path_that_only_a_login_shell_sets_is_found(
    sshd: Sshd, tmp_path: Path, shell: str, file: str, line: str
) -> None:
    name = _user_with(shell, {file: line})
    async with transport_to(sshd, name, tmp_path) as transport:
        before = await transport.run(("printenv", "PATH"))
        assert b"/opt/hpcdash-test/bin" not in before.stdout
        assert await transport.adopt_login_environment()
        after = await transport.run(("printenv", "PATH"))
        assert after.stdout.startswith(b"/opt/hpcdash-test/bin:")
        assert not await transport.adopt_login_environment()


def _user_with(shell: str, files: dict[str, str]) -> str:
    """A user of that shell with these files in the home folder; skips where we may not make one."""
    name = login_user(shell)
    if os.getuid() != 0 or name is None:
        pytest.skip(f"no user with {shell} as login shell whose files may be written")
    for file, text in files.items():
        path = Path(f"~{name}").expanduser() / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["chown", "-R", f"{name}:", str(Path(f"~{name}").expanduser())], check=True)
    return name


async def test_an_unknown_key_is_asked_once_and_remembered(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    person = Person(accepts=True)
    known_hosts = tmp_path / "home" / "ssh" / "known_hosts"
    for _ in range(2):
        async with transport_to(
            sshd, user, tmp_path, person=person, known_hosts=known_hosts
        ) as transport:
            await transport.connect()
    (question,) = person.questions
    listed = subprocess.run(
        ["ssh-keygen", "-lf", str(sshd.folder / "host_key.pub")], capture_output=True, text=True
    )
    assert question.fingerprint == listed.stdout.split()[1]
    assert question.hop == f"{user}@127.0.0.1:{sshd.port}"
    assert question.algorithm == "ssh-ed25519"
    assert known_hosts.read_text() == f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n"
    assert known_hosts.stat().st_mode & 0o777 == 0o600
    assert known_hosts.parent.stat().st_mode & 0o777 == 0o700


async def test_an_unknown_key_that_is_declined_is_not_written(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    person = Person(accepts=False)
    known_hosts = tmp_path / "ssh" / "known_hosts"
    async with transport_to(
        sshd, user, tmp_path, person=person, known_hosts=known_hosts
    ) as transport:
        await raised(HostKeyRefused, transport.connect())
        # Not asked again by itself; only when a person wants it.
        await raised(HostKeyRefused, transport.run(("true",)))
        assert len(person.questions) == 1
        person.accepts = True
        await transport.connect(force=True)
    assert len(person.questions) == 2
    assert known_hosts.exists()


@pytest.mark.parametrize(
    ("strict", "connects"), [("yes", False), ("accept-new", True), ("no", True)]
)
async def test_strict_host_key_checking_decides_without_asking(
    sshd: Sshd, user: str, tmp_path: Path, strict: str, connects: bool
) -> None:
    config = (
        f"Host *\n IdentityFile {sshd.key}\n IdentitiesOnly yes\n StrictHostKeyChecking {strict}\n"
    )
    person, known_hosts = Person(accepts=True), tmp_path / "known_hosts_new"
    async with transport_to(
        sshd, user, tmp_path, person=person, known_hosts=known_hosts, config=config
    ) as transport:
        if connects:
            await transport.connect()
        else:
            await raised(HostKeyRefused, transport.connect())
    assert person.questions == []
    assert known_hosts.exists() == connects


async def test_a_key_that_cannot_be_stored_is_accepted_and_reported(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    person = Person(accepts=True)
    (tmp_path / "file").touch()
    known_hosts = tmp_path / "file" / "known_hosts"
    async with transport_to(
        sshd, user, tmp_path, person=person, known_hosts=known_hosts
    ) as transport:
        await transport.connect()
    (shown,) = person.shown
    assert f"could not store its key in {known_hosts}" in shown[1]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
async def test_a_changed_key_is_refused_without_asking(
    own_sshd: Sshd, user: str, tmp_path: Path, kind: str
) -> None:
    known_hosts = trusted(own_sshd, tmp_path)
    known_hosts.write_text("# a comment\n" + known_hosts.read_text())
    before = known_hosts.read_bytes()
    old = _fingerprint_of(own_sshd)
    person = Person(accepts=True)
    async with transport_to(
        own_sshd, user, tmp_path, person=person, known_hosts=known_hosts
    ) as transport:
        await transport.connect()
        own_sshd.stop()
        own_sshd.replace_host_key(kind)
        own_sshd.start()
        await until(lambda: transport.health.state != "connected")
        error = await raised(HostKeyChanged, transport.connect(force=True))
    assert old in error.message
    assert _fingerprint_of(own_sshd) in error.message
    assert f"{known_hosts}:2" in error.message
    assert f"ssh-keygen -R '[127.0.0.1]:{own_sshd.port}' -f {known_hosts}" in error.next_step
    assert person.questions == []
    assert known_hosts.read_bytes() == before


def _fingerprint_of(sshd: Sshd) -> str:
    import base64

    return fingerprint(base64.b64decode(sshd.host_key_line.split()[1]))


async def test_a_revoked_key_is_refused(sshd: Sshd, user: str, tmp_path: Path) -> None:
    known_hosts = trusted(sshd, tmp_path)
    known_hosts.write_text(known_hosts.read_text() + f"@revoked * {sshd.host_key_line}\n")
    person = Person(accepts=True)
    async with transport_to(
        sshd, user, tmp_path, person=person, known_hosts=known_hosts
    ) as transport:
        error = await raised(HostKeyRefused, transport.connect())
    assert "revoked" in error.message
    assert person.questions == []


async def test_a_hashed_entry_is_known(sshd: Sshd, user: str, tmp_path: Path) -> None:
    known_hosts = trusted(sshd, tmp_path)
    subprocess.run(["ssh-keygen", "-Hf", str(known_hosts)], check=True, capture_output=True)
    assert b"127.0.0.1" not in known_hosts.read_bytes()
    async with transport_to(sshd, user, tmp_path, known_hosts=known_hosts) as transport:
        await transport.connect()


async def test_a_host_certificate_of_a_known_authority_is_trusted(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "authority")
    host_key = own_sshd.folder / "host_key"
    sign = [
        "ssh-keygen",
        "-q",
        "-s",
        str(tmp_path / "authority"),
        "-I",
        "test",
        "-h",
        "-n",
        "127.0.0.1",
    ]
    subprocess.run([*sign, str(host_key.with_suffix(".pub"))], check=True)
    own_sshd.stop()
    own_sshd.start(f"HostCertificate {host_key}-cert.pub\n")
    known_hosts = tmp_path / "known_authorities"
    known_hosts.write_text(f"@cert-authority * {(tmp_path / 'authority.pub').read_text()}")
    person = Person()
    async with transport_to(
        own_sshd, user, tmp_path, person=person, known_hosts=known_hosts
    ) as transport:
        await transport.connect()
    assert person.questions == []


async def test_a_lost_connection_that_cannot_be_opened_again_is_tried_again_seconds_later(
    own_sshd: Sshd, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "FIRST_RETRY_SECONDS", 1.0)
    async with transport_to(own_sshd, user, tmp_path) as transport:
        await transport.run(("true",))
        own_sshd.kill_with_sessions()
        await until(lambda: transport.health.state == "failed")
        error = await raised(ConnectionFailed, transport.run(("true",)))
        assert "refused the connection" in error.message
        assert transport.health.state == "failed"
        retry_at = transport.health.retry_at
        assert retry_at is not None
        assert 0 < retry_at - time.time() <= 1
        own_sshd.start()
        again = await raised(ConnectionFailed, transport.run(("true",)))
        assert again is error
        await until(lambda: time.time() > retry_at)
        assert (await transport.run(("echo", "back"))).stdout == b"back\n"
        assert transport.health.state == "connected"
        assert transport.health.retry_at is None


async def test_a_host_that_refuses_again_and_again_is_tried_six_times_and_its_own_error_stays(
    own_sshd: Sshd, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "FIRST_RETRY_SECONDS", 0.0)
    async with transport_to(own_sshd, user, tmp_path) as transport:
        own_sshd.stop()
        for _ in range(ssh.MAX_LOGINS):
            await raised(ConnectionFailed, transport.connect())
            assert transport.health.retry_at is not None
            assert transport.health.retry_at <= time.time()
        error = await raised(ConnectionFailed, transport.connect())
        assert "refused the connection" in error.message
        assert transport.health.retry_at is not None
        assert transport.health.retry_at > time.time(), "it was not tried"


def test_waiting_doubles_up_to_two_minutes() -> None:
    for failures, longest in [(1, 5), (2, 10), (3, 20), (6, 120), (1000, 120)]:
        waits = {retry_seconds(failures) for _ in range(50)}
        assert longest / 2 <= min(waits)
        assert max(waits) <= longest
        assert len(waits) > 1


async def test_all_who_ask_at_once_wait_for_one_login(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    person = Person(accepts=True)
    async with transport_to(
        sshd, user, tmp_path, person=person, known_hosts=tmp_path / "none_yet"
    ) as transport:
        await asyncio.gather(*(transport.run(("true",)) for _ in range(5)))
    assert len(person.questions) == 1


async def test_a_refused_login_says_what_was_tried_and_is_not_tried_again(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "stranger")
    (tmp_path / "folder").mkdir()
    (tmp_path / "torn").write_text("-----BEGIN PRIVATE KEY-----\nMIIE\n")
    files = "".join(
        f" IdentityFile {tmp_path / name}\n" for name in ("folder", "torn", "stranger", "not_there")
    )
    config = f"Host *\n{files} IdentitiesOnly yes\n"
    async with transport_to(sshd, user, tmp_path, config=config) as transport:
        error = await raised(AuthenticationFailed, transport.connect())
        assert (
            "Tried: key folder (cannot be read: Is a directory), key torn (not used: locked or "
            "damaged" in error.message
        )
        assert "torn.pub is not beside it), key stranger." in error.message
        assert error.next_step
        tries = sshd.log.count("Connection from")
        await raised(AuthenticationFailed, transport.run(("true",)))
        assert sshd.log.count("Connection from") == tries


async def test_the_passphrase_of_a_locked_key_is_asked_for(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "locked", passphrase="open sesame")
    sshd.authorize(tmp_path / "locked.pub")
    (tmp_path / "locked.pub").unlink()
    config = f"Host *\n IdentityFile {tmp_path / 'locked'}\n IdentitiesOnly yes\n"
    person = Person({"Passphrase": "open sesame"})
    async with transport_to(sshd, user, tmp_path, person=person, config=config) as transport:
        await transport.connect()
    (prompt,) = person.prompts
    assert prompt.hop == f"{user}@127.0.0.1:{sshd.port}"
    assert str(tmp_path / "locked") in prompt.fields[0].label
    assert prompt.fields[0].secret


async def test_a_wrong_passphrase_is_asked_three_times(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "locked", passphrase="open sesame")
    sshd.authorize(tmp_path / "locked.pub")
    config = f"Host *\n IdentityFile {tmp_path / 'locked'}\n IdentitiesOnly yes\n"
    person = Person({"Passphrase": "wrong"})
    async with transport_to(sshd, user, tmp_path, person=person, config=config) as transport:
        await raised(AuthenticationFailed, transport.connect())
    assert [prompt.instructions for prompt in person.prompts] == [
        "",
        *["Wrong passphrase."] * 2,
    ]


async def test_a_key_in_the_agent_is_used_without_asking(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "locked", passphrase="open sesame")
    sshd.authorize(tmp_path / "locked.pub")
    socket = f"/tmp/hpcdash-test-agent-{os.getpid()}"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        await until(lambda: Path(socket).exists())
        plain = tmp_path / "plain"
        plain.write_bytes((tmp_path / "locked").read_bytes())
        plain.chmod(0o600)
        subprocess.run(
            ["ssh-keygen", "-q", "-p", "-P", "open sesame", "-N", "", "-f", str(plain)], check=True
        )
        added = subprocess.run(
            ["ssh-add", "-q", str(plain)], env={**os.environ, "SSH_AUTH_SOCK": socket}
        )
        assert added.returncode == 0
        config = (
            f"Host *\n IdentityFile {tmp_path / 'locked'}\n IdentitiesOnly yes\n "
            f"IdentityAgent {socket}\n"
        )
        person = Person()
        async with transport_to(sshd, user, tmp_path, person=person, config=config) as transport:
            await transport.connect()
        assert person.prompts == []
    finally:
        agent.terminate()
        agent.wait()


async def test_a_proxy_command_is_used_and_ended(sshd: Sshd, user: str, tmp_path: Path) -> None:
    program = f"{tmp_path}/relay.py"
    Path(program).write_text(
        "import socket, sys, threading, os\n"
        "line = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "print('talk', file=sys.stderr)\n"
        "def up():\n"
        "    while chunk := os.read(0, 65536): line.sendall(chunk)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while chunk := line.recv(65536): os.write(1, chunk)\n"
    )
    config = (
        f"Host *\n IdentityFile {sshd.key}\n IdentitiesOnly yes\n ProxyCommand python3 "
        f"{program} %h %p 98765.75 2>&2\n"
    )
    async with transport_to(sshd, user, tmp_path, config=config) as transport:
        assert (await transport.run(("echo", "here"))).stdout == b"here\n"
    assert await until_gone("98765.75") == []


async def test_failures_to_connect_say_what_and_what_next(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    port = free_port()
    async with transport_to(sshd, user, tmp_path, port=port) as transport:
        error = await raised(ConnectionFailed, transport.connect())
        assert f"{user}@127.0.0.1:{port} refused the connection" in error.message
        assert error.next_step
    unknown = SshTransport("nobody@no-such-host.invalid", Person(), config_path=tmp_path / "config")
    error = await raised(ConnectionFailed, unknown.connect())
    assert "Cannot resolve no-such-host.invalid" in error.message


async def test_a_host_that_accepts_and_says_nothing_is_given_up_on(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = "Host *\n ConnectTimeout 1\n"
    async with transport_to(sshd, user, tmp_path, port=port, config=config) as transport:
        error = await raised(ConnectionFailed, transport.connect())
    assert "did not respond within 1 s" in error.message
    server.close()


async def test_a_login_shell_that_runs_nothing_is_reported_with_its_words(
    sshd: Sshd, tmp_path: Path
) -> None:
    if login_user("bash") is None or os.getuid() != 0:
        pytest.skip("a user without a login shell is needed")
    name = account("nologin", "-M", "-s", "/usr/sbin/nologin")
    async with transport_to(sshd, name, tmp_path) as transport:
        error = await raised(ConnectionFailed, transport.run(("true",)))
    assert "not available" in error.message


async def test_the_next_login_node_is_tried_where_one_cannot_be_reached(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host *\n  IdentityFile {own_sshd.key}\n  IdentitiesOnly yes\n")
    works = f"{user}@127.0.0.1:{own_sshd.port}"
    transport = SshTransport(
        f"{user}@127.0.0.1:1",
        Person(),
        config_path=config,
        known_hosts=trusted(own_sshd, tmp_path),
        other_logins=[works],
    )
    try:
        assert (await transport.run(("echo", "here"))).stdout == b"here\n"
        assert transport.name == works
        own_sshd.kill_with_sessions()
        await until(lambda: transport.health.state == "failed")
        error = await raised(ConnectionFailed, transport.connect(force=True))
        assert "refused the connection" in error.message
    finally:
        await transport.close()


async def test_a_login_that_is_refused_is_not_tried_at_the_next_login_node(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  IdentityFile none\n  IdentitiesOnly yes\n")
    person = Person()
    transport = SshTransport(
        f"{user}@127.0.0.1:{own_sshd.port}",
        person,
        config_path=config,
        known_hosts=trusted(own_sshd, tmp_path),
        other_logins=[f"{user}@127.0.0.1:1"],
    )
    try:
        await raised(AuthenticationFailed, transport.connect())
        assert transport.name == f"{user}@127.0.0.1:{own_sshd.port}"
    finally:
        await transport.close()
