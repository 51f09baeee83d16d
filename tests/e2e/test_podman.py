"""A launch in a real podman container without root, on a real Slurm over ssh: its shell, its end,
its secrets.
"""

from __future__ import annotations

import asyncio
import io
import os
import pwd
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process_lists import seen_command_lines
from tests.support.program import Program
from tests.support.screen import dashboard
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

# Its image is imported and its container started twice over.
pytestmark = [pytest.mark.slurm, pytest.mark.long]

SECONDS = 60.0
IMAGE = "localhost/hpcdash-test"
SECRET = "hunter2 'quoted'"
REQUEST = f"""
name = "pod"
command = '''echo "$IN_IMAGE ${{#API_TOKEN}}"; trap 'echo saved; exit 7' TERM; while :; do sleep 0.1; done'''
slots = 1
slot_type = "cpu"
time = "5m"
[container]
runtime = "podman"
image = "{IMAGE}"
[environment]
API_TOKEN = "{SECRET}"
"""


def image_of(*programs: str) -> bytes:
    """A tar with these programs in /bin and what they are linked with, and nothing else."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        added: set[str] = set()
        for program in programs:
            path = shutil.which(program)
            assert path is not None
            linked = subprocess.run(
                ["ldd", path], capture_output=True, text=True, check=True, timeout=10
            ).stdout
            files = {
                f"/bin/{program}": path,
                **{file: file for file in re.findall(r"(?:^|\s)(/\S+) \(", linked)},
            }
            for name in sorted(files.keys() - added):
                added.add(name)
                archive.add(os.path.realpath(files[name]), name)
    return packed.getvalue()


@pytest.fixture
def image(slurm_lab: SlurmLab) -> Iterator[str]:
    """In a store of alice's own that this test alone has."""
    if shutil.which("podman") is None or shutil.which("newuidmap") is None:
        pytest.skip("podman without root is not installed (apt-get install podman uidmap)")
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-pod-"))
    shutil.chown(folder, slurm_lab.alice)
    settings = Path(pwd.getpwnam(slurm_lab.alice).pw_dir) / ".config" / "containers"
    assert not settings.exists()
    runtime = next(
        name
        for name in ("runc", "crun")
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    )
    slurm_lab.as_user("alice", "mkdir", "-p", settings)
    (settings / "containers.conf").write_text(
        f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\n'
    )
    (settings / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    try:
        made = slurm_lab.as_user(
            "alice",
            "podman",
            "import",
            "-c",
            "ENV IN_IMAGE=small",
            "-",
            IMAGE,
            stdin=image_of("sh", "bash", "sleep"),
        )
        assert made.returncode == 0, made
        yield IMAGE
    finally:
        slurm_lab.as_user(
            "alice", "podman", "unshare", "rm", "-rf", folder / "graph", folder / "run", check=False
        )
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(settings)


async def test_its_shell_is_inside_its_program_hears_of_its_end_and_its_secret_is_nowhere_seen(
    slurm_lab: SlurmLab, over_ssh: Program, image: str, tmp_path: Path
) -> None:
    request = tmp_path / "pod.toml"
    request.write_text(REQUEST)
    with seen_command_lines("hunter2", image) as seen:
        submitted = await asyncio.to_thread(over_ssh, "submit", str(request))
        job = submitted.text.strip()
        begun = f"small {len(SECRET)}\n"
        wait_until(
            "the container",
            lambda: over_ssh("log", job).text == begun,
            lambda: over_ssh("log", job).text,
        )
        # The image has no `true`, and no `ls`.
        async with dashboard(
            over_ssh, "connect", job, "--", "sh", "-c", "type ls; echo at $IN_IMAGE; exit 3"
        ) as screen:
            assert await screen.ended() == 3, screen.text
            await screen.all_output()
            assert "ls: not found" in screen.text
            assert "at small" in screen.text
        await asyncio.to_thread(over_ssh, "cancel", job, "--yes")
        wait_until("its last words", lambda: over_ssh("log", job).text == f"{begun}saved\n")
    containers = slurm_lab.as_user("alice", "podman", "ps", "-aq").stdout
    assert containers == b""
    assert [line for line in seen if image in line]
    assert not [line for line in seen if "hunter2" in line]
