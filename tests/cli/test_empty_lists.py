"""A list without rows says so on stderr, with the reason or the next step, and is no failure."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hpcdash.cli.jobs import format_empty
from hpcdash.domain.tables import TABLES
from tests.contract.record import Recording, record
from tests.support.records import for_each

SLURM = "slurm/22.05/empty"
TRAINING = "slurm/22.05/training"
LAUNCHES = "No launch folders on this cluster."


@for_each(
    ("case", "line", "reason"),
    [
        (SLURM, "jobs", "You have no jobs. hpcdash submit submits one; --all shows everyone's."),
        (SLURM, "jobs --all", "The queue has no jobs. hpcdash submit submits one."),
        (
            "pbs/23.06/empty",
            "jobs",
            "You have no jobs. hpcdash submit submits one; --all shows everyone's.",
        ),
        (TRAINING, "jobs --all --filter name:zz", "None of 53 rows matches the filter."),
        (TRAINING, "nodes --filter name:zz", "None of 26 rows matches the filter."),
        (TRAINING, "queues --filter name:zz", "None of 6 rows matches the filter."),
        (
            SLURM,
            "history",
            "None of your jobs ended in the last 7 days. An earlier --since shows older jobs; "
            "--all shows everyone's.",
        ),
        (
            SLURM,
            "history --all",
            "No jobs ended in the last 7 days. An earlier --since shows older jobs.",
        ),
        (
            SLURM,
            "history --since 30d",
            "None of your jobs ended in this interval. An earlier --since shows older jobs; "
            "--all shows everyone's.",
        ),
        (
            SLURM,
            "efficiency",
            "None of your jobs ended in the last 7 days. An earlier --since shows older jobs; "
            "--all shows everyone's.",
        ),
        (
            SLURM,
            "report --format table",
            "Nothing ran in this interval. Use an earlier --since, or --all for everyone's jobs.",
        ),
        (SLURM, "reservations", "The scheduler has no reservations."),
        (SLURM, "journal", "No actions yet. Submissions and changes to jobs are listed here."),
        (SLURM, "launches list", LAUNCHES),
        (SLURM, "launches prune --dry-run", LAUNCHES),
        (SLURM, "alloc --list", "You have no allocations. hpcdash alloc submits one."),
        (TRAINING, "log 6 --logs", "hpcdash: job 6 has no logs besides its stdout and stderr"),
    ],
)
def test_an_empty_list_says_why_on_stderr_and_ends_with_0(
    case: str, line: str, reason: str
) -> None:
    recorded = record(Recording("empty", case, (tuple(shlex.split(line)),)))
    assert "\nstatus 0\n" in recorded
    assert reason in recorded.partition("\nstderr:\n")[2].splitlines()[-1]


@for_each("name", ["jobs", "nodes", "queues", "history", "reservations"])
def test_json_of_an_empty_list_comes_without_a_word(name: str) -> None:
    line = (name, "--format", "json", "--filter", "name:zz")
    recorded = record(Recording("empty", SLURM, (line,)))
    assert "stdout:" in recorded
    assert "stderr:" not in recorded


def test_a_table_without_rows_always_has_a_reason() -> None:
    texts = {
        (name, mine): format_empty(spec, mine=mine, all_rows=0)
        for name, spec in TABLES.items()
        for mine in (True, False)
    }
    assert all(texts.values())
    assert texts["nodes", False] == (
        "The scheduler lists no nodes. hpcdash doctor checks the setup."
    )
    assert texts["limits", True].startswith("No limits apply to you.")
    assert texts["shares", True] == "You have no fair share here. --all shows all accounts."
    assert texts["shares", False] == "The scheduler lists no fair shares."


def test_a_machine_without_clusters_says_how_to_add_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hpcdash.cli import clusters
    from hpcdash.cli.options import CommonOptions

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(clusters, "cluster_rows", lambda _settings: [])
    clusters.run_clusters(CommonOptions(), "table")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("No cluster is configured in ")
    assert "hpcdash clusters add NAME --ssh USER@HOST" in printed.err
