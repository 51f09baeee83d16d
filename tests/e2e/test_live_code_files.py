"""A request's `files` on the real Slurm, over ssh as another account: sent once, whole or not at
all.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cut_line import CutLine, ssh_config_through
from tests.support.program import Program, Run, home_with
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm

COMMAND = (
    "command = \"\"\"cat ./-rf; find . -type f -print0 | sort -z | tr '\\\\0\\\\n' '|~'; "
    'readlink out; echo ${#DEMO_API_KEY}"""'
)
AUTHOR = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
SECRET = "hunter2 'quoted'"
REQUEST = (
    f'name = "code"\nslots = 1\nslot_type = "cpu"\ntime = "2m"\nfiles = ["."]\n{COMMAND}\n'
    f'[environment]\nDEMO_API_KEY = "{SECRET}"\n'
)


@pytest.fixture
def root(slurm_lab: SlurmLab) -> Iterator[Path]:
    """A folder that all accounts of the lab enter, and alice's to write to."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-code-"))
    folder.chmod(0o755)
    shutil.chown(folder, slurm_lab.alice)
    yield folder
    shutil.rmtree(folder)


def project(folder: Path, data: bytes = b"") -> Path:
    folder.mkdir()
    (folder / ".gitignore").write_text("*.pt\n")
    (folder / "model.pt").write_bytes(b"ignored")
    (folder / "-rf").write_text("before\n")
    (folder / "$(id)\nx").write_bytes(data)
    (folder / "out").symlink_to("/etc/shadow")
    (folder / "r.toml").write_text(REQUEST)
    for words in (
        ["init", "-q", "-b", "trunk"],
        ["add", "."],
        [*AUTHOR, "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", "-C", folder, *words], check=True)
    (folder / "-rf").write_text("dash\n")
    return folder / "r.toml"


def sent(run: Run) -> str:
    (line,) = [line for line in run.stderr.splitlines() if ": unpack " in line]
    return line


def test_a_folder_is_sent_once_and_a_job_starts_in_it(
    over_ssh: Program, root: Path, tmp_path: Path
) -> None:
    over_ssh.config.parent.mkdir(parents=True, exist_ok=True)
    over_ssh.config.write_text(f'[launch]\nstorage_root = "{root}"\n')
    request = project(tmp_path / "project")
    first = over_ssh("submit", str(request))
    assert first.status == 0, first
    assert "5 files" in sent(first)
    assert "out points outside the folder, to /etc/shadow" in first.stderr
    job = first.text.strip()

    def state() -> str:
        return str(over_ssh("show", job, "--format", "json").json["job"]["state"])

    wait_until("the job to end", lambda: state() in ("completed", "failed"))
    listed = "./$(id)~x|./-rf|./.gitignore|./r.toml|/etc/shadow"
    assert over_ssh("log", job).text.splitlines() == ["dash", listed, str(len(SECRET))]
    (folder,) = root.glob("code-*")
    assert (folder / "packages.txt").read_text().startswith("python==3")
    assert (folder / "git.txt").read_text().startswith("commit ")
    code = over_ssh("show", job, "--format", "json").json["launch"]["code"]
    assert code.startswith("trunk ")
    assert ", changed since (diff " in code
    assert f"# code: {code}" in over_ssh("script", job).text.splitlines()
    seen = [
        over_ssh("script", job).text,
        over_ssh("journal", "--format", "json").text,
        first.stderr,
    ]
    assert not [text for text in seen if "hunter2" in text]
    assert not [
        path
        for path in over_ssh.home.rglob("*")
        if path.is_file() and b"hunter2" in path.read_bytes()
    ]
    assert [
        path.name
        for path in sorted(folder.iterdir())
        if path.is_file() and b"hunter2" in path.read_bytes()
    ] == [
        "request.toml",
        "secrets.sh",
    ]
    assert (folder / "secrets.sh").stat().st_mode & 0o777 == 0o600
    again = over_ssh("submit", str(request), "--hold")
    assert "already on the cluster" in sent(again)
    assert len(list(root.glob(".code-*/*.tar.gz"))) == 1
    assert len(list(root.glob("code-*/code/-rf"))) == 2
    over_ssh("cancel", again.text.strip(), "--yes")


async def test_of_a_line_cut_half_way_nothing_is_used_and_the_rest_is_sent(
    slurm_lab: SlurmLab, root: Path, tmp_path: Path
) -> None:
    request = project(tmp_path / "project", os.urandom(6 << 20))
    line = CutLine(slurm_lab.ssh_port)
    await line.start()
    try:
        config = ssh_config_through(
            slurm_lab.ssh_config.read_text(), slurm_lab.ssh_port, line.port, tmp_path / "ssh"
        )
        program = Program(home_with(tmp_path / "home", config.read_text()), ("--cluster", "lab"))
        program.config.parent.mkdir(parents=True)
        program.config.write_text(
            f'[clusters.lab]\nssh = "lab-alice"\nlaunch.storage_root = "{root}"\n'
        )
        line.cut_after("up", 3 << 20)
        cut = await asyncio.to_thread(program, "submit", "--hold", str(request))
        assert (cut.status, cut.stdout) == (1, b""), cut
        assert "never received" in cut.stderr
        assert found(root, "code-*/code") == []
        (part,) = await asyncio.to_thread(until_no_writer, root)
        assert part.stat().st_size < 4 << 20
        again = await asyncio.to_thread(program, "submit", "--hold", str(request))
        assert again.status == 0, again
        (there,) = found(root, "code-*/code")
        copied = (there / "$(id)\nx").read_bytes()
        assert copied == (request.parent / "$(id)\nx").read_bytes()
        assert sorted(path.suffix for path in found(root, ".code-*/*")) == [".gz"]
        await asyncio.to_thread(program, "cancel", again.text.strip(), "--yes")
    finally:
        await line.stop()


def found(root: Path, pattern: str) -> list[Path]:
    return list(root.glob(pattern))


def until_no_writer(root: Path) -> list[Path]:
    """The part that arrived, once the shell that wrote it has ended."""
    parts: list[Path] = []

    def ended() -> bool:
        parts[:] = found(root, ".code-*/*.part")
        return len(parts) == 1 and not Path(f"/proc/{parts[0].name.split('.')[-2]}").exists()

    wait_until("the shell that writes to end", ended)
    return parts
