"""Copies of files over a real sshd whose line is cut, with both transports, and with one session a
connection.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hpcdash.assembly import cluster_pace
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.config.settings import ClusterSettings
from hpcdash.errors import UnreachableError
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.job_files.download import Download, RemoteFile
from hpcdash.services.job_files.listing import folder_query
from hpcdash.services.job_files.upload import Upload, find_local_files
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.launches import Launches
from hpcdash.transport.base import Transport
from hpcdash.transport.openssh import OpenSshTransport
from hpcdash.transport.ssh import SshTransport
from tests.support.cut_line import CutLine
from tests.support.person import Person
from tests.support.sshd import Sshd

SIZE = 200 << 20


@pytest.fixture
def there(user: str) -> Iterator[Path]:
    """A folder of the user's, which this process enters too."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-files-"))
    folder.chmod(0o755)
    if os.getuid() == 0:
        shutil.chown(folder, user)
    yield folder
    shutil.rmtree(folder)


def session_over(transport: Transport, folder: Path) -> ClusterSession:
    store = ClusterStore(
        "lab", transport, (BACKEND,), clock=SystemClock(), budget=CommandBudget(600), user="user"
    )
    poller = Poller(store, cluster_pace(ClusterSettings("lab", "lab")))
    actions = Actions(store, Journal(folder / "journal.jsonl"))
    return ClusterSession(store, poller, actions, Launches(store))


def ssh_files(sshd: Sshd, port: int, user: str, folder: Path) -> tuple[Path, Path]:
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {sshd.host_key_line}\n")
    config = folder / "config"
    config.write_text(
        f"Host login1\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile "
        f"{sshd.key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
    )
    return config, known


@asynccontextmanager
async def over_a_line(
    sshd: Sshd, user: str, folder: Path
) -> AsyncIterator[tuple[CutLine, ClusterSession]]:
    line = CutLine(sshd.port)
    await line.start()
    config, known = ssh_files(sshd, line.port, user, folder)
    transport = SshTransport("login1", Person(), config_path=config, known_hosts=known)
    try:
        await transport.connect()
        yield line, session_over(transport, folder)
    finally:
        await transport.close()
        await line.stop()


async def files_in(session: ClusterSession, folder: Path) -> list[RemoteFile]:
    found = await session.store.run_query(folder_query(os.fsencode(folder)))
    return [RemoteFile(found.path, entry, entry.name) for entry in found.entries]


def make(path: Path, size: int = SIZE) -> bytes:
    content = os.urandom(1 << 20) * (size >> 20)
    path.write_bytes(content)
    path.chmod(0o644)
    return content


async def test_a_download_goes_on_after_the_line_was_cut(
    sshd: Sshd, user: str, there: Path, tmp_path: Path
) -> None:
    content = make(there / "big")
    async with over_a_line(sshd, user, tmp_path) as (line, session):
        line.cut_after("down", SIZE // 2)
        files = await files_in(session, there)
        (result,) = await Download(session.store, tmp_path / "here").run(files)
        assert result.result == "resumed"
        assert (tmp_path / "here" / "big").read_bytes() == content
        assert line.connections == 2
        # Nothing that had arrived was sent again.
        assert line.bytes_down < SIZE + (16 << 20)


async def test_a_download_that_was_killed_continues_with_what_arrived(
    sshd: Sshd, user: str, there: Path, tmp_path: Path
) -> None:
    content = make(there / "big")
    here = tmp_path / "here"
    async with over_a_line(sshd, user, tmp_path) as (line, session):
        files = await files_in(session, there)
        line.cut_after("down", SIZE // 2)
        line.close_door()
        with pytest.raises(UnreachableError):
            await Download(session.store, here).run(files)
        (part,) = here.iterdir()
        assert part.name.startswith(".hpcdash-")
        arrived = part.stat().st_size
        assert SIZE // 3 < arrived < SIZE
        await line.start()
        await session.store.transport.connect(force=True)
        before = line.bytes_down
        (result,) = await Download(session.store, here).run(files)
        assert result.result == "resumed"
        assert (here / "big").read_bytes() == content
        assert line.bytes_down - before < SIZE - arrived + (16 << 20)
        assert [path.name for path in here.iterdir()] == ["big"]


async def test_an_upload_goes_on_after_the_line_was_cut(
    sshd: Sshd, user: str, there: Path, tmp_path: Path
) -> None:
    content = make(tmp_path / "big")
    files, _ = find_local_files([os.fsencode(tmp_path / "big")])
    async with over_a_line(sshd, user, tmp_path) as (line, session):
        line.cut_after("up", SIZE // 2)
        (result,) = await Upload(session, "1", os.fsencode(there)).run(files)
        assert result.result == "resumed"
        assert line.connections == 2
    assert (there / "big").read_bytes() == content
    assert os.listdir(there) == ["big"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")
async def test_the_ssh_program_and_one_session_a_connection_are_enough(
    own_sshd: Sshd, user: str, there: Path, tmp_path: Path
) -> None:
    own_sshd.stop()
    own_sshd.start("MaxSessions 1\n")
    content = make(there / "a", 3 << 20)
    config, known = ssh_files(own_sshd, own_sshd.port, user, tmp_path)
    ours = SshTransport("login1", Person(), config_path=config, known_hosts=known)
    theirs = OpenSshTransport("login1", config_path=config)
    for transport in (ours, theirs):
        try:
            session = session_over(transport, tmp_path)
            here = tmp_path / type(transport).__name__
            (copied,) = await Download(session.store, here).run(await files_in(session, there))
            assert copied.result == "copied"
            assert (here / "a").read_bytes() == content
            sent, _ = find_local_files([os.fsencode(here)])
            (result,) = await Upload(session, "1", os.fsencode(there)).run(sent)
            assert result.result == "copied"
            assert (there / here.name / "a").read_bytes() == content
            shutil.rmtree(there / here.name)
        finally:
            await transport.close()
