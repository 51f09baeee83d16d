"""`hpcdash storage`: file systems and quotas by path, and paths of which nothing is known."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab
from tests.support.program import Program, home_with
from tests.support.waiting import wait_until

# Printed by Lustre 2.15 for a user with a soft and a hard limit, with other names.
_LFS = """Disk quotas for usr alice (uid 1001):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
       {mount} 2097152  3145728 4194304       -   12000       0  100000       -
"""


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Program]:
    """hpcdash on an embedded queue, with a folder of programs before the PATH."""
    queue = QueueLab(tmp_path / "queue", tmp_path / "work")
    (tmp_path / "bin").mkdir()
    variables = {
        "HPCDASH_QUEUE": str(queue.folder),
        "HPCDASH_STATE": str(tmp_path / "state"),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }
    yield Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)
    queue.end()


def rows(person: Program, *paths: str) -> list[dict[str, object]]:
    answer = json.loads(person("storage", *paths, "--format", "json").text)
    found: list[dict[str, object]] = answer["storage"]
    return found


def test_the_home_s_file_system_is_listed_without_a_path(person: Program) -> None:
    (home,) = rows(person)
    assert home["path"] == str(person.home)
    assert isinstance(home["used_bytes"], int)
    assert isinstance(home["limit_bytes"], int)
    assert home["free_bytes"] == home["limit_bytes"] - home["used_bytes"]
    assert "df" in str(home["source"])


def test_a_quota_counts_before_the_file_system(person: Program, tmp_path: Path) -> None:
    mount = next(path for path in (tmp_path, *tmp_path.parents) if os.path.ismount(path))
    lfs = tmp_path / "bin" / "lfs"
    lfs.write_text(f"#!/bin/sh\ncat <<'END'\n{_LFS.format(mount=mount)}END\n")
    lfs.chmod(0o755)
    # The type of the file system decides which tool is run.
    stat = tmp_path / "bin" / "stat"
    stat.write_text('#!/bin/sh\n[ "$1 $2" = "-f -c" ] && echo lustre || exec /usr/bin/stat "$@"\n')
    stat.chmod(0o755)
    (row,) = rows(person, str(tmp_path))
    assert (row["used_bytes"], row["limit_bytes"]) == (2 << 30, 3 << 30)
    assert (row["used_inodes"], row["limit_inodes"]) == (12_000, 100_000)
    assert row["owner"] == "usr alice"


def with_command(person: Program, tmp_path: Path, output: str) -> Program:
    """Give the cluster a quota command that prints a text."""
    command = tmp_path / "quota"
    command.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    command.chmod(0o755)
    person.config.parent.mkdir(parents=True, exist_ok=True)
    person.config.write_text(
        '[clusters.desk]\nbackend = "local"\ntransport = "local"\n'
        f'quota_command = ["{command}", "--all"]\n'
    )
    return Program(person.home, ("--cluster", "desk"), person.variables)


def test_the_site_s_own_quotas_come_first(person: Program, tmp_path: Path) -> None:
    table = f"path used limit owner\n{person.home} 1G 4G alice\n/projects/x 2T - lab"
    desk = with_command(person, tmp_path, table)
    home, project = rows(desk)
    assert (home["path"], home["used_bytes"], home["free_bytes"]) == (
        str(person.home),
        1 << 30,
        3 << 30,
    )
    assert (project["limit_bytes"], project["owner"], project["source"]) == (None, "lab", "site")
    (below,) = rows(desk, str(person.home))
    assert below["limit_bytes"] == 4 << 30
    # One reading is no growth.
    assert (home["full_at"], home["daily_growth_bytes"]) == (None, None)


def test_the_rest_is_listed_where_the_site_s_command_prints_something_else(
    person: Program, tmp_path: Path
) -> None:
    desk = with_command(person, tmp_path, "path used\n/projects/x lots")
    answer = desk("storage")
    assert answer.status == 1
    assert str(person.home) in answer.text
    assert "line 2: 'lots' is not an amount" in answer.stderr
    assert "command: " in answer.stderr
    assert " --all\n" in answer.stderr
    assert "output: /projects/x lots" in answer.stderr


def test_checkpoints_of_a_job_that_was_launched_here_count(person: Program, tmp_path: Path) -> None:
    saves = tmp_path / "ckpt"
    for step, saved_at in ((1, 1000.0), (2, 4600.0)):
        (saves / f"step-{step}").mkdir(parents=True)
        marker = {"saved_at": saved_at, "files": {"model": {"bytes": 1 << 30}}}
        (saves / f"step-{step}" / "WHOLE.json").write_text(json.dumps(marker))
    request = tmp_path / "train.toml"
    request.write_text(
        f'name = "train"\ncommand = "sleep 600"\ntime = "10m"\ncheckpoints = "{saves}"\n'
    )
    job = person("submit", str(request)).text.split()[0]
    wait_until(
        "the job to run",
        lambda: person("jobs", "--format", "json", "--filter", "state:running").json["jobs"],
    )
    found = [row["daily_checkpoint_bytes"] for row in rows(person)]
    assert [rate for rate in found if rate] == [24 << 30]
    assert person("cancel", job, "--yes").status == 0


def test_a_path_that_is_not_there_is_named_and_the_others_are_listed(
    person: Program, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    answer = person("storage", str(tmp_path), missing)
    assert answer.status == 1
    assert "no such folder, or no permission" in answer.text
    assert str(tmp_path) in answer.text.splitlines()[1]
    assert "not an absolute path" in person("storage", "scratch").stderr
