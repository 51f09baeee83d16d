"""`hpcdash efficiency` and `hpcdash report` on an embedded queue: every format, hostile names, and
what is refused.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from pathlib import Path

import pyarrow.parquet
import pytest

from hpcdash.services.state.database import StateDatabase
from tests.support.program import Program, home_with
from tests.support.records import for_each

HOSTILE = "=1+1<img src=x>"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """On an embedded queue of its own, where two jobs have ended, one of them badly."""
    folder = tmp_path_factory.mktemp("usage")
    program = Program(
        home_with(folder / "home"),
        ("--local", "--backend", "local"),
        {
            "HPCDASH_QUEUE": str(folder / "queue"),
            "HPCDASH_STATE": str(folder / "state"),
            "TZ": "UTC",
        },
    )
    file = program.home / "job.sh"
    for name, status in (("train", 0), (HOSTILE, 3)):
        file.write_text(f"#!/bin/bash\n#SBATCH -J '{name}' -n 2 -t 10\nsleep 1.2\nexit {status}\n")
        job = program("submit", str(file)).text.strip()
        # It follows until the job has ended.
        program("metrics", job, "-f", "--format", "csv")
    return program


def test_a_report_in_every_format_has_the_same_figures(program: Program, tmp_path: Path) -> None:
    answer = program("report", "--format", "json").json
    assert {name: answer[name] for name in ("schema", "backend", "rejected_rows", "missing")} == {
        "schema": 1,
        "backend": "local",
        "rejected_rows": 0,
        "missing": [],
    }
    assert (answer["total"]["jobs"], answer["total"]["failed"]) == (2, 1)
    assert answer["notes"] == ["Your own jobs"]
    assert (
        sum(row["cpu_seconds"] for row in answer["by_day"]) == answer["total"]["cpu_seconds"] >= 4
    )
    by_name = {row["key"]: row for row in answer["by_name"]}
    assert by_name.keys() == {"train", HOSTILE}

    written = program("report", "--by", "name", "--format", "csv").text
    rows = list(csv.DictReader(io.StringIO(written)))
    assert {row["key"] for row in rows} == {"train", HOSTILE}
    assert {int(row["failed"]) for row in rows} == {0, 1}
    assert (
        program("report", "--by", "name", "--format", "csv", "--out", "/dev/stdout").text == written
    )
    file = tmp_path / "usage.csv"
    assert program("report", "--by", "name", "--format", "csv", "--out", str(file)).status == 0
    # A spreadsheet would compute what begins with a sign.
    assert {row["key"] for row in csv.DictReader(io.StringIO(file.read_text()))} == {
        "train",
        f"'{HOSTILE}",
    }

    file = tmp_path / "usage.parquet"
    assert program("report", "--by", "name", "--format", "parquet", "--out", str(file)).status == 0
    assert pyarrow.parquet.read_table(file)["failed"].to_pylist() == [
        by_name[key]["failed"] for key in by_name
    ]

    failed = program("report", "--by", "name", "--format", "json", "--filter", "state:failed").json
    assert [(row["jobs"], row["failed"]) for row in failed["by_name"]] == [(1, 1)]

    table = program("report", "--by", "name", "--format", "table").text.splitlines()
    assert table[0].split()[:4] == ["NAME", "GPU_H", "CPU_H", "JOBS"]
    assert table[-1].split()[0] == "total"

    chart = program("report").text
    assert "CPU hours per day" in chart
    assert "\x1b" not in chart


def test_a_page_is_written_whole_and_a_bad_place_is_named(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "usage.html"
    assert program("report", "--html", str(file)).status == 0
    page = file.read_text()
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert "<img" not in page
    # A link that somebody planted is replaced.
    precious = tmp_path / ".bash_aliases"
    precious.write_text("precious")
    for name, words in (
        ("a.html", ("--html",)),
        ("a.csv", ("--by", "name", "--format", "csv", "--out")),
    ):
        (tmp_path / name).symlink_to(precious)
        assert program("report", *words, str(tmp_path / name)).status == 0
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).stat().st_size > 0
    assert precious.read_text() == "precious"
    assert program("report", "--html", "/dev/stdout").text.endswith("</html>\n")
    refused = program("report", "--html", str(tmp_path / "no" / "usage.html"))
    assert refused.status == 1
    assert "No such file or directory" in refused.stderr


def test_efficiency_of_jobs_and_of_a_span(program: Program) -> None:
    answer = program("efficiency", "--format", "json").json
    assert [row["state"] for row in answer["efficiency"]] == ["failed", "completed"]
    newest = answer["efficiency"][0]
    # The embedded queue measures memory or it does not; nothing is 0 for not known.
    assert newest["cpus"] == 2
    assert newest["time_use"] == pytest.approx(newest["elapsed_seconds"] / 600)
    one = program("efficiency", newest["id"], "--format", "json").json["efficiency"]
    assert [row["id"] for row in one] == [newest["id"]]
    lines = program("efficiency").text.splitlines()
    assert lines[0].split()[:3] == ["ID", "NAME", "STATE"]
    assert len(lines) >= 3
    assert program("efficiency", "--by", "name", "--format", "csv").text.count("\n") == 3


def test_gpus_that_were_watched_stand_in_efficiency_and_reports(program: Program) -> None:
    run = program("history", "--filter", "name:train", "--format", "json").json["jobs"][0]
    began = datetime.fromisoformat(run["started_at"]).timestamp()
    watched = (
        "INSERT INTO watched (cluster, job_id, started_at, seconds, gpu_percent) VALUES (?, "
        "?, ?, ?, ?)"
    )
    database = StateDatabase(Path(program.variables["HPCDASH_STATE"]))
    database.write((watched, ("local", run["id"], began, 30.0, 4.0)))
    try:
        found = {
            row["id"]: row for row in program("efficiency", "--format", "json").json["efficiency"]
        }
        watched = found.pop(run["id"])
        assert watched["gpu_use"] == pytest.approx(0.04)
        assert watched["usage_source"] in ("watched", "accounting+watched")
        assert [row["gpu_use"] for row in found.values()] == [None]
    finally:
        database.write(("DELETE FROM watched", ()))


@for_each(
    ("words", "status", "said"),
    [
        (("report", "--since", "soon"), 2, "not a time"),
        (("report", "--since", "2d", "--until", "3d"), 2, "is not after"),
        (("report", "--since", "2999-01-01"), 2, "not in the past"),
        (("report", "--filter", "nonsense:1"), 2, "nonsense"),
        (("report", "--out", "x.json", "--format", "json"), 2, "--out requires"),
        (("efficiency", "no-job"), 2, "is not a job"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_words(
    program: Program, words: tuple[str, ...], status: int, said: str
) -> None:
    refused = program(*words)
    assert (refused.status, said in refused.stderr) == (status, True), refused.stderr


def test_a_span_in_which_nothing_ran_is_a_report_of_nothing(program: Program) -> None:
    answer = program(
        "report", "--since", "2026-01-01", "--until", "2026-01-02", "--format", "json"
    ).json
    assert (answer["total"]["jobs"], [row["key"] for row in answer["by_day"]]) == (
        0,
        ["2026-01-01", "2026-01-02"],
    )
    assert (
        "Nothing ran in this interval."
        in program("report", "--since", "2026-01-01", "--until", "2026-01-02").text
    )
