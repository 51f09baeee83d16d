"""A file on a node's own disk, read through the login node's ssh by a real sshd: reached, refused,
ended, cut.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.errors import CommandTimedOut
from hpcdash.services.logs import file as log_file
from hpcdash.services.logs.file import FileChange, LogFile
from hpcdash.services.logs.window import LogWindow
from hpcdash.transport.base import Transport
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.node import NodeUnreached, ThroughNode
from hpcdash.transport.ssh import SshTransport
from tests.support.person import Person
from tests.support.records import for_each
from tests.support.scripted_transport import ScriptedTransport
from tests.support.sshd import (
    Sshd,
    commands_with,
    free_port,
    login_user,
    make_key,
    until_gone,
    until_there,
    why_no_sshd,
)

pytestmark = pytest.mark.system
NODE = "cn01"


def unique_seconds() -> str:
    """So long that nobody waits for it, and no other process's number."""
    return f"7{secrets.randbelow(10**8):08}.5"


@dataclass
class Site:
    """A node `cn01` that only the ssh of a folder of programs finds; `transport` is the login
    node's.
    """

    folder: Path
    node: Sshd
    user: str
    transport: Transport

    @property
    def config(self) -> Path:
        return self.folder / "config"

    def configure(
        self, more: str = "", *, user: str = "", port: int = 0, key: Path | None = None
    ) -> None:
        """What ssh on the login node knows of the node."""
        lines = (
            f"Host {NODE}",
            "  HostName 127.0.0.1",
            f"  Port {port or self.node.port}",
            f"  User {user or self.user}",
            f"  IdentityFile {key or self.folder / 'key'}",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {self.folder / 'known_hosts'}",
            more,
        )
        self.config.write_text("\n".join(lines) + "\n")
        self.config.chmod(0o644)

    def forget_the_node(self) -> None:
        (self.folder / "known_hosts").write_text("")

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o644)
        return path


@pytest.fixture(scope="module")
def node() -> Iterator[Sshd]:
    if reason := why_no_sshd():
        pytest.skip(reason)
    # pytest's own folders are closed to the users who log in; this one is not.
    with tempfile.TemporaryDirectory(prefix="hpcdash-node-") as folder:
        server = Sshd(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hpcdash-site-") as made:
        Path(made).chmod(0o777)
        yield Path(made)


@pytest.fixture(params=["here", "over ssh"])
async def site(
    request: pytest.FixtureRequest, node: Sshd, folder: Path, tmp_path: Path
) -> AsyncIterator[Site]:
    """A login node that is this machine, and one that is reached by ssh itself."""
    user = login_user("bash")
    program = shutil.which("ssh")
    if user is None or program is None:
        pytest.skip("no ssh, or no user with bash as login shell")
    shutil.copy(node.key, folder / "key")
    if os.getuid() == 0 and request.param == "over ssh":
        os.chown(folder / "key", pwd.getpwnam(user).pw_uid, -1)
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{node.port} {node.host_key_line}\n")
    (folder / "known_hosts").chmod(0o666)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {program} -F {folder}/config "$@"\n')
    (programs / "ssh").chmod(0o755)
    transport: Transport = LocalTransport(path=str(programs))
    if request.param == "over ssh":
        (tmp_path / "config").write_text(
            f"Host *\n  IdentityFile {node.key}\n  IdentitiesOnly yes\n"
        )
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{node.port} {node.host_key_line}\n")
        transport = SshTransport(
            f"{user}@127.0.0.1:{node.port}",
            Person(),
            config_path=tmp_path / "config",
            known_hosts=tmp_path / "known_hosts",
            path=str(programs),
        )
    made = Site(folder, node, user, transport)
    made.configure()
    yield made
    await transport.close()


# -- reading


async def test_a_file_of_the_node_is_read_by_offset(site: Site) -> None:
    content = os.urandom(100_000)
    file = LogFile(site.transport, str(site.write("12[3].pbs01.OU", content)), NODE)
    for offset, length in ((0, 10), (511, 2), (99_999, 5), (0, 200_000)):
        chunk = await file.read(offset, length)
        assert (chunk.stat.problem, chunk.content) == ("", content[offset : offset + length])
    assert (await file.read_end(1000)).content == content[-1000:]
    assert file.place == f"{NODE}:{site.folder}/12[3].pbs01.OU"


@for_each(
    "name",
    ["two words", "quote'\"$(id)`", "new\nline", "caf\udce9", "a\\nb", "-n", "!x"],
    ids=ascii,
)
async def test_a_path_passes_both_shells_as_it_is(site: Site, name: str) -> None:
    with open(f"{site.folder}/{name}", "wb") as file:  # noqa: ASYNC230
        file.write(b"here")
    os.chmod(f"{site.folder}/{name}", 0o644)
    assert (
        await LogFile(site.transport, f"{site.folder}/{name}", NODE).read(0, 10)
    ).content == b"here"


async def test_a_log_of_the_node_is_searched_and_its_lines_are_counted(site: Site) -> None:
    file = LogFile(site.transport, str(site.write("log", b"epoch 1\n" * 500 + b"loss nan\n")), NODE)
    assert await file.find("nan", 0) == 4000
    assert await file.count_lines(4000) == 500


async def test_a_log_that_grows_is_followed_through_the_node(site: Site) -> None:
    path = site.write("log", b"one\n")
    window = LogWindow(LogFile(site.transport, str(path), NODE), lambda: 0.0)
    assert await window.follow(1.0)
    with path.open("ab") as log:
        log.write(b"two\n")
    assert await window.follow(1.0)
    assert [row.content for row in window.rows] == [b"one\n", b"two\n"]
    path.unlink()
    await window.follow(1.0)
    assert window.happened is not None
    assert window.happened.change is FileChange.DELETED


async def test_a_file_that_is_not_there_is_missing_not_beyond_reach(site: Site) -> None:
    look = await LogFile(site.transport, f"{site.folder}/none", NODE).stat()
    assert (look.is_missing, look.is_unreached, look.problem) == (
        True,
        False,
        "no such file",
    )


async def test_each_look_at_a_node_is_a_login_so_looks_are_rarer(site: Site) -> None:
    path = str(site.write("log", b"x"))
    near, far = LogFile(site.transport, path), LogFile(site.transport, path, NODE)
    await near.stat()
    await far.stat()
    assert near.pause_seconds == 0.0
    assert far.pause_seconds == log_file.NODE_PAUSE_SECONDS


@pytest.mark.parametrize("shell", ["csh", "fish"])
async def test_the_node_s_login_shell_may_be_any(site: Site, shell: str) -> None:
    user = login_user(shell)
    if user is None:
        pytest.skip(f"no user with {shell} as login shell")
    site.configure(user=user)
    path = site.write("a log's", b"here\n")
    assert (await LogFile(site.transport, str(path), NODE).read(0, 10)).content == b"here\n"


async def test_a_node_that_is_this_machine_is_read_without_ssh(site: Site) -> None:
    (site.folder / "bin" / "ssh").write_text("#!/bin/sh\necho no ssh >&2\nexit 255\n")
    path = str(site.write("log", b"here"))
    here = socket.gethostname().partition(".")[0]
    for name in {
        here,
        socket.gethostname(),
        f"{here}.example.org" if "." not in socket.gethostname() else here,
    }:
        assert (await LogFile(site.transport, path, name).read(0, 10)).content == b"here"


# -- commands


async def test_stdin_status_and_both_streams_pass(site: Site) -> None:
    stdin = os.urandom(200_000) + b"\ngo\n"
    through = ThroughNode(site.transport, NODE)
    answer = await through.run(("sh", "-c", "cat; echo said >&2; exit 7"), stdin=stdin)
    assert (answer.status, answer.stdout, answer.stderr) == (7, stdin, b"said\n")
    assert answer.argv == ("sh", "-c", "cat; echo said >&2; exit 7")
    assert (await through.run(("cat",), stdin=b"")).stdout == b""
    assert (await through.run(("cat",))).stdout == b""


async def test_a_command_s_own_255_is_no_failed_ssh(site: Site) -> None:
    assert (await ThroughNode(site.transport, NODE).run(("sh", "-c", "exit 255"))).status == 255


async def test_nothing_is_left_after_a_command_that_ended(site: Site) -> None:
    word = unique_seconds()
    answer = await ThroughNode(site.transport, NODE).run(("echo", word), limit_seconds=900)
    assert answer.stdout == f"{word}\n".encode()
    assert await until_gone(word) == []


async def test_the_limit_ends_the_command_on_the_node_too(site: Site) -> None:
    seconds = unique_seconds()
    with pytest.raises(CommandTimedOut, match=f"sleep did not finish within 2 s on {NODE} "):
        await ThroughNode(site.transport, NODE).run(("sleep", seconds), limit_seconds=2)
    assert await until_gone(seconds) == []


async def test_a_command_that_ignores_hangups_is_ended_as_well(site: Site) -> None:
    seconds = unique_seconds()
    script = f"trap '' HUP; while :; do sleep {seconds}; done"
    with pytest.raises(CommandTimedOut):
        await ThroughNode(site.transport, NODE).run(("sh", "-c", script), limit_seconds=2)
    assert await until_gone(seconds) == []


# The first is seen while the login node's shell has hardly begun, the other once the command runs
# on the node.
@pytest.mark.parametrize("begun", ["sleep {}", "905 sleep {}"], ids=["at once", "on the node"])
async def test_one_who_goes_away_leaves_nothing_on_the_node(site: Site, begun: str) -> None:
    seconds = unique_seconds()
    task = asyncio.ensure_future(
        ThroughNode(site.transport, NODE).run(("sleep", seconds), limit_seconds=900)
    )
    await until_there(begun.format(seconds))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await until_gone(seconds) == []


async def test_where_the_shell_of_the_login_node_alone_is_killed_all_ends(site: Site) -> None:
    seconds = unique_seconds()
    recorder = ScriptedTransport()
    recorder.answers["*"] = (1, b"", b"")
    with pytest.raises(NodeUnreached):
        await ThroughNode(recorder, NODE).run(("sleep", seconds), limit_seconds=900)
    path = f"{site.folder / 'bin'}:{os.environ['PATH']}"
    shell = subprocess.Popen(  # noqa: ASYNC220
        recorder.argvs[0],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PATH": path},
    )
    await until_there(f"905 sleep {seconds}")
    shell.kill()
    shell.wait()
    assert await until_gone(seconds) == []


async def test_too_much_output_is_cut_and_its_command_ended(site: Site) -> None:
    word = unique_seconds()
    answer = await ThroughNode(site.transport, NODE).run(("yes", word), cap_bytes=100_000)
    assert answer.truncated
    assert answer.stdout.startswith(f"{word}\n".encode())
    assert await until_gone(word) == []


async def test_a_stream_ends_with_its_context(site: Site) -> None:
    seconds = unique_seconds()
    async with ThroughNode(site.transport, NODE).stream(
        ("sh", "-c", f"echo begun; sleep {seconds}")
    ) as stream:
        async for chunk in stream:
            assert chunk == b"begun\n"
            break
    assert await until_gone(seconds) == []


async def test_no_master_of_ssh_stays_behind(site: Site) -> None:
    site.configure(f"  ControlMaster auto\n  ControlPath {site.folder}/%C\n  ControlPersist 600\n")
    await ThroughNode(site.transport, NODE).run(("true",))
    assert commands_with(f"{site.folder}/") == []


# -- not reached


async def refusal(site: Site) -> str:
    """What is said of a log there, which is neither missing nor read."""
    file = LogFile(site.transport, str(site.write("log", b"secret")), NODE)
    chunk = await file.read(0, 100)
    assert chunk.content == b""
    assert (chunk.stat.is_there, chunk.stat.is_missing, chunk.stat.is_unreached) == (
        False,
        False,
        True,
    )
    assert file.pause_seconds == log_file.UNREACHED_PAUSE_SECONDS
    head = (
        f"the log is on {NODE} ({site.folder}/log) until the job ends, and ssh {NODE} from the "
        "login node does not work ("
    )
    assert chunk.stat.problem.startswith(head)
    return chunk.stat.problem.removeprefix(head)


async def test_a_node_that_wants_a_password_is_not_asked_for_one(site: Site) -> None:
    make_key(site.folder / "other")
    if os.getuid() == 0:
        os.chown(site.folder / "other", pwd.getpwnam(site.user).pw_uid, -1)
    site.configure(key=site.folder / "other")
    assert "Permission denied (publickey)" in await refusal(site)


async def test_an_unknown_node_is_not_trusted_by_us(site: Site) -> None:
    site.forget_the_node()
    assert "Host key verification failed." in await refusal(site)
    assert (site.folder / "known_hosts").read_text() == ""


async def test_a_node_without_sshd_is_not_reached(site: Site) -> None:
    site.configure(port=free_port())
    assert "Connection refused" in await refusal(site)


async def test_a_node_that_is_reached_again_is_read_again(site: Site) -> None:
    file = LogFile(site.transport, str(site.write("log", b"here")), NODE)
    site.configure(port=free_port())
    assert (await file.stat()).is_unreached
    site.configure()
    assert (await file.read(0, 10)).content == b"here"
    assert file.pause_seconds == log_file.NODE_PAUSE_SECONDS


async def test_a_login_node_without_ssh_says_so(site: Site) -> None:
    (site.folder / "bin" / "ssh").write_text("#!/bin/sh\necho 'sh: ssh: not found' >&2\nexit 127\n")
    assert "sh: ssh: not found" in await refusal(site)


async def test_an_account_that_may_not_log_in_says_so(site: Site) -> None:
    (site.folder / "bin" / "ssh").write_text(
        "#!/bin/sh\necho 'This account is currently not available.'\nexit 1\n"
    )
    assert "This account is currently not available." in await refusal(site)


async def test_a_search_in_what_is_not_reached_finds_nothing(site: Site) -> None:
    file = LogFile(site.transport, str(site.write("log", b"here")), NODE)
    site.configure(port=free_port())
    assert await file.find("here", 0) is None
    assert await file.count_lines(3) == 0


@for_each(
    "name",
    [
        "-oProxyCommand=touch x",
        "-l",
        "cn01;id",
        "a b",
        "root@cn01",
        "cn01:22",
        "$(id)",
        "",
        ".",
        "c" * 300,
        "ü",
    ],
)
async def test_what_is_no_name_of_a_machine_is_never_run(name: str) -> None:
    transport = ScriptedTransport()
    with pytest.raises(NodeUnreached):
        await ThroughNode(transport, name).run(("true",))
    if name:
        assert (await LogFile(transport, "/x", name).stat()).is_unreached
    assert transport.argvs == []


def test_the_script_is_posix() -> None:
    from hpcdash.shell_files import shell_text

    for shell in filter(shutil.which, ("dash", "bash", "ksh", "busybox")):
        words = [shell, "sh"] if shell == "busybox" else [shell]
        subprocess.run([*words, "-n", "-c", shell_text("transport/through_node.sh")], check=True)
