"""A storage_root that others could replace: the site's is used with checked copies, the person's
own is refused.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.waiting import wait_until

# An account with a group of its name, and the group of the project.
PERSON, GROUP = "www-data", "mail"
TRAIN = "import os, helper\nprint('trained in', os.getcwd(), os.environ['API_TOKEN'], flush=True)\n"
REQUEST = """\
name = "train"
command = "python3 train.py"
slots = 1
slot_type = "cpu"
time = "5m"
files = ["."]
environment = { API_TOKEN = "t0ken" }
"""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root has a configuration that is the site's"
    ),
]


class Site(Struct):
    """A person's home, and a project folder of a group in which the site has launches stored."""

    home: Path
    project: Path

    @property
    def root(self) -> Path:
        return self.project / "amal" / "launches"

    def configure(self, file: Path, owner: str) -> Path:
        file.write_text(f'[launch]\nstorage_root = "{self.root}"\n')
        shutil.chown(file, owner)
        return file

    def run(self, config: Path, *words: str) -> subprocess.CompletedProcess[str]:
        argv = (
            sys.executable,
            "-P",
            "-m",
            "hpcdash",
            "--config",
            config,
            "--local",
            "--backend",
            "local",
            *words,
        )
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        return subprocess.run(
            argv,
            user=PERSON,
            group=PERSON,
            extra_groups=[],
            cwd=self.home / "code",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def log(self, name: str, suffix: str) -> str:
        return "".join(file.read_text() for file in self.root.glob(f"{name}*/*.{suffix}"))


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = Site(folder / "home", folder / "project")
        for path in (made.home, made.home / "code", made.project, made.project / "amal"):
            path.mkdir()
            shutil.chown(path, PERSON, GROUP if path == made.project else PERSON)
        made.project.chmod(0o2775)
        (made.home / "code" / "train.py").write_text(TRAIN)
        (made.home / "code" / "helper.py").write_text("")
        (made.home / "code" / "request.toml").write_text(REQUEST)
        yield made
        uid = pwd.getpwnam(PERSON).pw_uid
        for pid in Path("/proc").glob("[0-9]*"):
            # The queue's supervisor is of this home alone.
            try:
                if (
                    pid.stat().st_uid == uid
                    and str(made.home).encode() in (pid / "cmdline").read_bytes()
                ):
                    os.kill(int(pid.name), 9)
            except OSError:
                continue


def test_what_a_person_set_is_refused_in_the_configuration_and_in_a_request(site: Site) -> None:
    own = site.configure(site.home / "own.toml", PERSON)
    for words in (("submit", "request.toml"), ("submit", "request.toml", "--dry-run")):
        refused = site.run(own, *words)
        assert refused.returncode == 2, refused
        assert (
            f"members of group {GROUP} may write to {site.project}, so others could replace"
            in refused.stderr
        )
        assert "Set storage_root to a folder below your home on the cluster" in refused.stderr
    sites = site.home / "sites.toml"
    sites.write_text("")
    request = f'{REQUEST}[site]\nstorage_root = "{site.root}"\n'
    (site.home / "code" / "request.toml").write_text(request)
    assert site.run(sites, "submit", "request.toml").returncode == 2
    assert list((site.project / "amal").iterdir()) == []


def test_the_site_s_own_is_used_and_what_somebody_put_in_its_place_is_not_run(site: Site) -> None:
    sites = site.configure(site.home.parent / "sites.toml", "root")
    done = site.run(sites, "submit", "request.toml")
    assert done.returncode == 0, done.stderr
    assert "each node runs a checked copy of the staged files" in done.stderr
    wait_until("its log", lambda: "trained in" in site.log("train", "out"))
    *_, where, token = site.log("train", "out").split()
    assert token == "t0ken"
    assert not where.startswith(str(site.project))
    held = site.run(sites, "submit", "request.toml", "--hold")
    assert held.returncode == 0, held.stderr
    job = held.stdout.strip()
    (site.project / "amal").rename(site.project / "aside")
    for theirs in (site.project / "aside" / "launches").iterdir():
        planted = site.root / theirs.name
        planted.mkdir(parents=True)
        for name in ("batch.sh", "secrets.sh", "hpcdash-job.zip", "code.tar.gz"):
            (planted / name).write_text("#!/bin/bash\necho somebody else was here\n")
            (planted / name).chmod(0o755)
        # The scheduler opens the logs there.
        planted.chmod(0o777)
    assert site.run(sites, "release", job).returncode == 0
    wait_until("its refusal", lambda: "differs from the submitted file" in site.log("train", "err"))
    assert "somebody else" not in site.log("train", "out") + site.log("train", "err")
    assert "trained" not in site.log("train", "out")


def test_an_allocation_is_refused_there(site: Site) -> None:
    sites = site.configure(site.home.parent / "sites.toml", "root")
    refused = site.run(sites, "alloc", "--cpus", "1", "--time", "5m", "--keep")
    assert refused.returncode == 2, refused
    assert (
        "an allocation runs the files that arrive in its folder, and others could replace"
        in refused.stderr
    )
