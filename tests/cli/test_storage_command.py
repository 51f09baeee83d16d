"""`hpcdash storage`: file systems and quotas by path, and paths of which nothing is known."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab
from tests.support.program import Program, home_with

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


def test_a_path_that_is_not_there_is_named_and_the_others_are_listed(
    person: Program, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    answer = person("storage", str(tmp_path), missing)
    assert answer.status == 1
    assert "no such folder, or no permission" in answer.text
    assert str(tmp_path) in answer.text.splitlines()[1]
    assert "not an absolute path" in person("storage", "scratch").stderr
