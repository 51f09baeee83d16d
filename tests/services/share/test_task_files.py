"""The suspend command and its answers, written as a task's owner, and the pool's own files, under
attack.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.errors import HpcdashError
from hpcdash.services.share.database import ShareDatabase
from hpcdash.services.share.files import TaskFiles
from hpcdash.transport.local import LocalTransport
from tests.support.scripted_transport import ScriptedTransport
from tests.support.sudo_rules import SudoSite, sudo_site, why_no_sudo

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def a_site() -> Iterator[SudoSite]:
    if reason := why_no_sudo():
        pytest.skip(reason)
    with sudo_site() as found:
        found.install()
        yield found


@pytest.fixture
def site(a_site: SudoSite) -> SudoSite:
    for entry in a_site.root.iterdir():
        entry.unlink() if entry.is_symlink() else shutil.rmtree(entry)
    return a_site


def launch(site: SudoSite, account: str, name: str = "run-1") -> Path:
    assert site.launch(account, "make", name).returncode == 0
    assert site.launch(account, "write", name, "suspend").returncode == 0
    return site.root / name


def files(site: SudoSite, folder: Path | str, account: str) -> TaskFiles:
    """As a coordinator with the launcher's account has them."""
    transport = ScriptedTransport()
    before = site.argv_as(site.launcher)
    transport.answers["*"] = lambda command: replace(
        command, argv=(*before, *command.argv)
    ).run_here()
    return TaskFiles(
        transport,
        str(folder),
        account=account,
        program=str(site.program),
        storage_root=str(site.root),
    )


async def test_a_task_of_another_account_is_told_as_that_account(site: SudoSite) -> None:
    folder = launch(site, site.alice)
    task = files(site, folder, site.alice)
    assert not await task.is_ready()
    assert await task.request_suspend()
    assert ((folder / "suspend").read_bytes(), (folder / "suspend").owner()) == (
        b"suspend\n",
        site.alice,
    )
    (folder / "suspend.ready").write_text("ready\n")
    shutil.chown(folder / "suspend.ready", site.alice)
    assert await task.is_ready()
    # Before it starts again nothing is left of that.
    assert await task.clear()
    assert (folder / "suspend").read_bytes() == b""
    assert not await task.is_ready()


async def test_nobody_is_told_in_the_folder_of_somebody_else(site: SudoSite) -> None:
    folder = launch(site, site.bob)
    (folder / "suspend.ready").write_text("ready\n")
    task = files(site, folder, site.alice)
    assert (await task.request_suspend(), await task.is_ready()) == (False, False)
    assert (folder / "suspend").read_bytes() == b""


@pytest.mark.parametrize(
    "place", ["{home}/run-1", "{root}/../launches/run-1", "{root}/run-1/deeper", "", "/"]
)
async def test_no_command_is_written_outside_the_launches(site: SudoSite, place: str) -> None:
    launch(site, site.alice)
    mine = site.home(site.alice) / "run-1"
    mine.mkdir(exist_ok=True)
    (mine / "suspend").touch()
    shutil.chown(mine, site.alice)
    shutil.chown(mine / "suspend", site.alice)
    task = files(site, place.format(home=site.home(site.alice), root=site.root), site.alice)
    assert not await task.request_suspend()
    assert (mine / "suspend").read_bytes() == b""


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "missing"])
async def test_a_command_file_that_is_none_is_not_written_to(site: SudoSite, kind: str) -> None:
    folder = launch(site, site.alice)
    target = site.home(site.bob) / "target"
    target.write_text("precious")
    (folder / "suspend").unlink()
    match kind:
        case "link":
            (folder / "suspend").symlink_to(target)
        case "fifo":
            os.mkfifo(folder / "suspend")
        case "folder":
            (folder / "suspend").mkdir()
    for account in (site.alice, ""):
        assert not await files(site, folder, account).request_suspend()
    assert target.read_text() == "precious"


@pytest.mark.parametrize("account", ["root", "-u", "x y", "outsider"])
async def test_nobody_outside_the_rules_is_told(site: SudoSite, account: str) -> None:
    folder = launch(site, site.alice)
    named = site.outsider if account == "outsider" else account
    assert not await files(site, folder, named).request_suspend()
    assert (folder / "suspend").read_bytes() == b""


async def test_a_hard_link_to_another_file_of_ones_own_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", tmp_path / "suspend")
    task = TaskFiles(LocalTransport(), str(tmp_path))
    assert not await task.request_suspend()
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["share.db", "share.lock"])
def test_a_pool_whose_files_are_links_is_not_opened(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.touch()
    pool = tmp_path / "pool"
    pool.mkdir()
    (pool / name).symlink_to(target)
    with pytest.raises(HpcdashError, match="is a link"):
        ShareDatabase(pool)
    assert target.read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")
def test_a_pool_that_somebody_else_planted_is_not_opened(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    (pool / "share.db").touch()
    os.chown(pool / "share.db", 65534, 65534)
    with pytest.raises(HpcdashError, match="belongs to nobody"):
        ShareDatabase(pool)


def test_a_pool_is_closed_to_others(tmp_path: Path) -> None:
    ShareDatabase(tmp_path / "pool").close()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "pool").iterdir()} == {0o600}
    assert (tmp_path / "pool").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("version", [0, 99])
def test_a_pool_s_file_of_another_version_is_refused_and_stays(
    tmp_path: Path, version: int
) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    with contextlib.closing(sqlite3.connect(pool / "share.db")) as other:
        other.execute("CREATE TABLE tasks (id TEXT PRIMARY KEY)")
        other.execute(f"PRAGMA user_version = {version}")
    content = (pool / "share.db").read_bytes()
    with pytest.raises(HpcdashError, match=rf"another version of hpcdash \(schema {version}, this"):
        ShareDatabase(pool)
    assert (pool / "share.db").read_bytes() == content
