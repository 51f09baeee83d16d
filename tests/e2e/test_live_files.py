"""The files of a job on the real Slurm, over ssh as alice, in a folder that bob writes to as well."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program import Program, Run
from tests.support.slurm import SlurmLab

pytestmark = pytest.mark.slurm_releases

# Puts in place of `turn` a folder and a link to alice's own files in turn, as fast as it can.
RACE = """
import os, sys
victim = sys.argv[1]
os.chdir(sys.argv[2])
os.makedirs("mine", exist_ok=True)
for name in ("a", "b"):
    open(f"mine/{name}", "w").write("bob's")
os.symlink(victim, "lead")
print("ready", flush=True)
while not os.path.exists("stop"):
    for name in ("mine", "lead"):
        try:
            os.rename(name, "turn")
            os.rename("turn", name)
        except OSError:
            pass
"""


@pytest.fixture
def shared(slurm_lab: SlurmLab) -> Iterator[Path]:
    """A folder that alice and bob write to, as a project's without a sticky bit."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-shared-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def job(slurm_lab: SlurmLab, shared: Path) -> str:
    """A job of alice's that has ended there."""
    script = "#!/bin/sh\nmkdir -m 777 out\necho 'step,loss\n1,0.5' >out/metrics.csv\n"
    number = slurm_lab.submit("alice", "-D", str(shared), "-o", "log-%j.txt", script=script)
    slurm_lab.wait_state(number, "COMPLETED")
    return number


def results(run: Run) -> dict[str, str]:
    return {row["name"]: row["result"] for row in json.loads(run.text)["transfers"]}


def test_results_are_listed_fetched_sent_and_deleted(
    over_ssh: Program, slurm_lab: SlurmLab, shared: Path, job: str, tmp_path: Path
) -> None:
    (folder,) = over_ssh("files", job, "--format", "json").json["files"]
    assert folder["path"] == str(shared)
    rows = over_ssh("files", job, "out", "--format", "json").json["files"]
    assert [(row["name"], row["owner"]) for row in rows] == [("metrics.csv", slurm_lab.alice)]
    here = tmp_path / "here"
    run = over_ssh("get", job, "out", f"log-{job}.txt", "--to", str(here), "--format", "json")
    assert results(run) == {"out/metrics.csv": "copied", f"log-{job}.txt": "copied"}
    assert (here / "out" / "metrics.csv").read_text() == "step,loss\n1,0.5\n"
    (tmp_path / "next.yaml").write_text("lr: 1\n")
    sent = over_ssh("put", job, str(tmp_path / "next.yaml"), "--to", "out", "--format", "json")
    assert results(sent) == {"next.yaml": "copied"}
    there = shared / "out" / "next.yaml"
    assert there.read_text() == "lr: 1\n"
    assert there.owner() == slurm_lab.alice
    gone = over_ssh("files", job, "out/metrics.csv", "--delete", "--yes")
    assert gone.status == 0, gone
    assert os.listdir(shared / "out") == ["next.yaml"]
    verbs = [entry["verb"] for entry in over_ssh("journal", "--format", "json").json["actions"]]
    assert verbs == ["delete-files", "put"]


def test_a_colleague_s_links_pipes_and_closed_files_are_neither_followed_nor_waited_for(
    over_ssh: Program, slurm_lab: SlurmLab, shared: Path, job: str, tmp_path: Path
) -> None:
    secret = slurm_lab.work_dir("alice") / "secret"
    secret.write_text("alice's")
    plant = (
        f"cd {shared}/out && ln -s {secret} innocent.txt && ln -s {secret.parent} folder && mkfifo "
        "pipe && umask 077 && echo x >closed && mkdir shut && umask 0 && printf 'a\\nb' >\"$(printf "
        "'n\\n\\033[31m\\377')\" && mkdir -p deep/data"
    )
    slurm_lab.as_user("bob", "sh", "-c", plant)
    here = tmp_path / "here"
    run = over_ssh("get", job, "out", "--to", str(here), "--format", "json")
    found = results(run)
    assert found["out/innocent.txt"] == found["out/folder"] == found["out/pipe"] == "skipped"
    assert found["out/closed"] == "failed"
    assert found["out/n␊␛[31m\\xff"] == "copied"
    assert not [
        path for path in here.rglob("*") if path.is_symlink() or b"alice's" in content(path)
    ]
    # Sent through bob's link, nothing of alice's would be replaced.
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "secret").write_text("overwritten")
    words = ("put", job, str(tmp_path / "folder"), "--to", "out", "--force", "--format", "json")
    assert results(over_ssh(*words)) == {"folder/secret": "failed"}
    assert over_ssh("files", job, "out/folder/secret", "--delete", "--yes").status == 2
    assert over_ssh("files", job, "out/folder", "--delete", "--yes").status == 0
    assert secret.read_text() == "alice's"
    assert not (shared / "out" / "folder").is_symlink()


def content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_of_a_folder_that_a_colleague_replaces_by_a_link_all_the_time_nothing_leaks(
    over_ssh: Program, slurm_lab: SlurmLab, shared: Path, job: str, tmp_path: Path
) -> None:
    victim = slurm_lab.work_dir("alice") / "victim"
    victim.mkdir(exist_ok=True)
    (victim / "a").write_text("alice's")
    (victim / "b").write_text("")
    for path in (victim, victim / "a", victim / "b"):
        shutil.chown(path, slurm_lab.alice)
    (tmp_path / "turn").mkdir()
    (tmp_path / "turn" / "a").write_text("sent")
    (tmp_path / "turn" / "new").write_text("sent")
    argv = slurm_lab.user_argv("bob", "python3", "-c", RACE, str(victim), str(shared / "out"))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as race:
        try:
            assert race.stdout is not None
            assert race.stdout.readline() == "ready\n"
            for number in range(6):
                here = tmp_path / f"here-{number}"
                over_ssh("get", job, "out", "--to", str(here), "--format", "json")
                assert not [path for path in here.rglob("*") if b"alice's" in content(path)]
                over_ssh("put", job, str(tmp_path / "turn"), "--to", "out", "--force")
                over_ssh("files", job, "out/turn", "--delete", "--yes")
                over_ssh("files", job, "out/turn/b", "--delete", "--yes")
        finally:
            (shared / "out" / "stop").touch()
            race.wait()
    assert sorted(os.listdir(victim)) == ["a", "b"]
    assert (victim / "a").read_text() == "alice's"
    assert stat.S_ISDIR(victim.stat().st_mode)
