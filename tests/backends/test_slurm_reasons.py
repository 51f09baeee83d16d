"""Reasons in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcdash.backends.slurm import BACKEND
from hpcdash.backends.slurm.reasons import reason_hint

CASES = sorted((Path(__file__).resolve().parents[2] / "fixtures" / "slurm").glob("*/*/expected.json"))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "next in line"),
        ("JobHeldUser", "release"),
        ("DependencyNeverSatisfied", "never start"),
        ("ReqNodeNotAvail, UnavailableNodes:g[1-2]", "g[1-2]"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "down, drained",
        ),
        ("QOSMaxCpuPerUserLimit", "CPUs for one user"),
        ("QOSMaxJobsPerUserLimit", "jobs running at once for one user"),
        ("QOSMaxGRESPerUser", "GPUs or other devices for one user"),
        ("AssocGrpCpuLimit", "its account as a whole"),
        ("AssocGrpGRESMinutes", "used up"),
        ("QOSMaxWallDurationPerJobLimit", "will not start: asks for more time"),
        ("Priority,JobArrayTaskLimit", "others are ahead"),
    ],
)
def test_why_a_job_waits(reason: str, words: str) -> None:
    assert words in reason_hint("pending", reason)


def test_a_word_we_do_not_know_gets_no_words_of_ours() -> None:
    assert reason_hint("pending", "FluxCapacitor") == ""
    assert reason_hint("running", None) == ""


def test_every_reason_that_was_recorded_has_a_hint() -> None:
    silent = {
        (row["state"], row["reason"])
        for file in CASES
        for row in json.loads(file.read_text("utf-8")).get("jobs_and_ended", ())
        if row["reason"] is not None and not BACKEND.reason_hint(row["state"], row["reason"])
    }
    assert silent == set()
