"""What `hpcdash doctor` says of what it found."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from hpcdash.cli.doctor import clock_check, secret_checks
from hpcdash.config.settings import ClusterSettings
from tests.support.program import Program, home_with
from tests.support.records import for_each

THERE = 1_795_250_000.0
HERE_IS_WRONG, THERE_IS_WRONG, UNKNOWN = (
    "This machine's clock is not synchronized",
    "The cluster's clock is not synchronized",
    "with a clock you trust",
)


def test_two_clocks_that_are_close_are_well() -> None:
    check = clock_check(THERE, -2.4, None, None)
    assert (check.ok, check.detail) == (
        True,
        "differs by -2 s (cluster time: 2026-11-21 08:33:20 UTC)",
    )


@for_each(
    ("is_synced_here", "is_synced_there", "told"),
    [
        (False, True, HERE_IS_WRONG),
        (False, None, HERE_IS_WRONG),
        (True, False, THERE_IS_WRONG),
        (None, False, THERE_IS_WRONG),
        (True, True, UNKNOWN),
        (False, False, UNKNOWN),
        (None, None, UNKNOWN),
    ],
)
def test_of_two_clocks_the_wrong_one_is_that_which_no_time_server_keeps(
    is_synced_here: bool | None, is_synced_there: bool | None, told: str
) -> None:
    check = clock_check(THERE, 10_800.0, is_synced_here, is_synced_there)
    assert not check.ok
    assert check.detail.startswith(
        "the cluster's clock is 3 h ahead of this machine's; it differs by +10800 s"
    )
    assert told in check.next_step
    assert "behind" in clock_check(THERE, -600.0, is_synced_here, is_synced_there).detail


@for_each(
    ("url", "is_safe"),
    [
        ("http://head:8265", False),
        ("http://127.0.0.1.evil:8265", False),
        ("https://head", True),
        ("http://127.0.0.1:8265", True),
        ("http://[::1]:8265", True),
        ("http://localhost:8265", True),
    ],
)
def test_a_token_that_others_on_the_network_can_read_is_a_finding(url: str, is_safe: bool) -> None:
    [check] = secret_checks(ClusterSettings("tpu", "tpu", url=url, token_file="/home/maya/token"))
    assert check.ok == is_safe
    assert is_safe or "unencrypted" in check.detail
    assert secret_checks(ClusterSettings("tpu", "tpu", url=url)) == []


_STALE = "echo 'the cache is stale' >&2; exit 3"


@pytest.mark.system
@for_each(
    ("version", "names", "words"),
    [
        ("echo slurm 23.11.4", "queues", "sinfo failed: the cache is stale"),
        (":", "scheduler", "squeue is not Slurm's squeue: for --version it prints nothing"),
        (
            "echo cached",
            "scheduler",
            "squeue is not Slurm's squeue: for --version it prints 'cached'",
        ),
        (_STALE, "scheduler", "squeue failed: the cache is stale"),
    ],
)
def test_a_script_in_the_place_of_slurm_s_commands_is_called_by_its_name(
    tmp_path: Path, version: str, names: str, words: str
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    for name in ("squeue", "sinfo", "sacct", "scontrol", "sbatch", "scancel"):
        (folder / name).write_text(
            f'#!/bin/sh\ntest "$1" != --version || {{ {version}; exit; }}\n{_STALE}\n'
        )
        (folder / name).chmod(0o755)
    program = Program(home_with(folder / "home"), ("--local", "--backend", "slurm"))
    found = program("doctor", "--format", "json", PATH=f"{folder}:{os.environ['PATH']}")
    checks = {check["name"]: check for check in json.loads(found.stdout)["checks"]}
    assert checks[names]["detail"].endswith(words)
    assert "`man sh`" not in str(checks)
