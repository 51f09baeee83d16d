"""A report: hours cut to the span and to days, jobs and waits counted once, in any zone, of runs
that are odd too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.services.cluster.everywhere import join_runs
from hpcdash.services.usage.archive import FetchedRuns
from hpcdash.services.usage.report import (
    GROUPINGS,
    MEASURES,
    build_report,
    day_edges,
    runs_and_notes,
)
from tests.support.job_rows import build_table, run_row
from tests.support.records import for_each

BERLIN, HOWE = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe")
DAY = 86_400
BEGIN = int(datetime(2026, 3, 27, tzinfo=UTC).timestamp())
SPAN = Span(BEGIN, BEGIN + 4 * DAY)


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(BEGIN + seconds, UTC)


def run(
    job: str, begin: float | None, end: float | None, state: str = "completed", **more: Any
) -> dict[str, Any]:
    """A run from and to so many seconds after the span's begin."""
    elapsed = None if begin is None or end is None else int(end - begin)
    times = {"started_at": moment(begin), "ends_at": moment(end), "elapsed_seconds": elapsed}
    return run_row(job, state, **{"cpus": 2, "gpus": 0, **times, **more})


def report_of(*rows: Any, span: Span = SPAN, zone: Any = UTC) -> Any:
    return build_report(build_table(*rows, schema=RUNS), span, zone)


def column(report: Any, grouping: str, name: str) -> dict[str, int]:
    table = report.groups[grouping]
    return dict(zip(table["key"].to_pylist(), table[name].to_pylist(), strict=True))


def test_runs_are_cut_to_the_span_and_to_its_days() -> None:
    report = report_of(
        run("1", -DAY, DAY // 2, gpus=1),
        run("2", 3 * DAY, 9 * DAY),
        run("3", DAY - 100, DAY + 50),
        run("4", -5, 0),
        run("5", 4 * DAY, 4 * DAY + 5),
    )
    assert column(report, "day", "cpu_seconds") == {
        "2026-03-27": 2 * (DAY // 2 + 100),
        "2026-03-28": 100,
        "2026-03-29": 0,
        "2026-03-30": 2 * DAY,
    }
    assert report.total["gpu_seconds"] == DAY // 2
    # What ends after the span is not one of its jobs, and what ended as it began is.
    assert column(report, "day", "jobs") == {
        "2026-03-27": 2,
        "2026-03-28": 1,
        "2026-03-29": 0,
        "2026-03-30": 0,
    }
    assert column(report, "week", "cpu_seconds") == {"2026-03-23": DAY + 300, "2026-03-30": 2 * DAY}


def test_days_are_those_of_the_persons_zone_when_clocks_change() -> None:
    # Berlin's 29 March has 23 hours; Lord Howe's clocks change by half an hour, on 5 April.
    spring = report_of(run("1", 0, 4 * DAY, cpus=1), zone=BERLIN)
    hours = {day: seconds / 3600 for day, seconds in column(spring, "day", "cpu_seconds").items()}
    assert hours == {
        "2026-03-27": 23,
        "2026-03-28": 24,
        "2026-03-29": 23,
        "2026-03-30": 24,
        "2026-03-31": 2,
    }
    begin = int(datetime(2026, 4, 4, tzinfo=HOWE).timestamp())
    week = Span(begin, begin + 3 * DAY)
    howe = build_report(
        build_table(run("1", begin - BEGIN, begin - BEGIN + 3 * DAY, cpus=1), schema=RUNS),
        week,
        HOWE,
    )
    hours = {day: seconds / 3600 for day, seconds in column(howe, "day", "cpu_seconds").items()}
    assert hours == {"2026-04-04": 24, "2026-04-05": 24.5, "2026-04-06": 23.5}
    assert [name for _, name in day_edges(week, HOWE)][:-1] == list(hours)
    # One CPU was held in each hour that the span has.
    assert {round(float(held), 6) for held in howe.load.held.ravel() if held == held} == {1.0}


def test_suspended_time_is_no_cpu_time_but_gpu_time() -> None:
    report = report_of(run("1", 0, 2000, gpus=3, suspended_seconds=500, elapsed_seconds=1500))
    assert (report.total["cpu_seconds"], report.total["gpu_seconds"]) == (2 * 1500, 3 * 2000)
    # More than the run took is no time at all, and not less.
    assert report_of(run("1", 0, 100, suspended_seconds=5000)).total["cpu_seconds"] == 0


def test_failures_requeues_and_waits_are_counted_where_they_belong() -> None:
    report = report_of(
        run("1", 100, 1100, "failed", submitted_at=moment(-500), queue="gpu", gpus=1, user="bob"),
        run(
            "2",
            100,
            1100,
            "timeout",
            submitted_at=moment(40),
            eligible_at=moment(70),
            queue="gpu",
            gpus=8,
        ),
        run("3", 100, 1100, "preempted", submitted_at=moment(100), queue="cpu"),
        run("3", 2100, 3100, submitted_at=moment(1100), queue="cpu", run=2),
        run("4", None, 50, "cancelled", submitted_at=moment(0), queue="cpu"),
        run("5", -50, 100, "out_of_memory", submitted_at=moment(-9999), queue=None),
    )
    total = report.total
    assert (total["jobs"], total["failed"], total["requeued"], total["started"]) == (6, 3, 1, 4)
    assert (total["failed_cpu_seconds"], total["failed_gpu_seconds"]) == (2 * 2100, 9 * 1000)
    assert total["wait_seconds"] == 600 + 30 + 0 + 1000
    assert column(report, "queue", "jobs") == {"gpu": 2, "cpu": 3, "(none)": 1}
    assert column(report, "user", "failed") == {"alice": 2, "bob": 1}
    waits = {(row["queue"], row["size"]): row for row in report.waits.to_pylist()}
    assert waits["cpu", "no GPU"]["wait_longest_seconds"] == 1000
    assert waits["gpu", "1 GPU"]["wait_median_seconds"] == 600
    assert [waits["cpu", "no GPU"][f"waits_{number}"] for number in range(7)] == [
        1,
        0,
        1,
        0,
        0,
        0,
        0,
    ]


def test_the_most_wasteful_names_come_first_and_unknown_use_is_no_waste() -> None:
    report = report_of(
        run("1", 0, 3600, name="lazy", gpus=4, gpu_use=0.25, cpu_seconds_used=3600.0),
        run("2", 0, 3600, name="lazy", gpus=4, gpu_use=0.25, cpu_seconds_used=3600.0),
        run("3", 0, 3600, name="busy", gpus=8, gpu_use=0.9),
        run("4", 0, 3600, name="unknown", gpus=64),
    )
    rows = [
        (row["name"], row["runs"], row["unused_gpu_seconds"]) for row in report.wasteful.to_pylist()
    ]
    assert rows == [("lazy", 2, 2 * 4 * 2700), ("busy", 1, 2880)]
    assert report.total["measured_gpu_seconds"] == 16 * 3600


@for_each(
    "rows",
    [
        [],
        [run("1", None, None)],
        [run("1", 5, None), run("2", None, 7)],
        [run("1", 50, 10)],
        [
            run(
                "1",
                0,
                10,
                cpus=None,
                gpus=None,
                user=None,
                name=None,
                queue=None,
                account=None,
                state=None,
            )
        ],
    ],
    ids=["no runs", "no times", "half a time", "ended before it began", "nothing known"],
)
def test_a_report_of_nothing_or_of_nonsense_is_a_report(rows: list[Any]) -> None:
    report = report_of(*rows)
    assert report.total["cpu_seconds"] == 0
    assert all(report.groups[name].num_rows >= 4 for name in ("day",))
    assert report.is_empty == (not rows or report.total["jobs"] == 0)


_MOMENTS = st.one_of(st.none(), st.integers(-2 * DAY, 6 * DAY))
_WORDS = st.sampled_from(["a", "b\x1b[31m", "<b>", "", None])


@st.composite
def _runs(draw: st.DrawFn) -> dict[str, Any]:
    begin = draw(_MOMENTS)
    end = None if begin is None else begin + draw(st.integers(0, 3 * DAY))
    return run(
        "1",
        begin,
        draw(_MOMENTS) if end is None else end,
        draw(st.sampled_from(["completed", "failed", "timeout", "cancelled"])),
        cpus=draw(st.integers(1, 999)),
        gpus=draw(st.integers(0, 9)),
        run=draw(st.integers(1, 3)),
        suspended_seconds=draw(st.one_of(st.none(), st.integers(0, DAY))),
        submitted_at=moment(None if begin is None else begin - draw(st.integers(0, DAY))),
        cpu_seconds_used=draw(st.one_of(st.none(), st.floats(0, 1e6))),
        **{name: draw(_WORDS) for name in ("user", "account", "queue", "name")},
    )


@given(
    st.lists(_runs(), max_size=12),
    st.sampled_from([UTC, BERLIN, HOWE, ZoneInfo("Asia/Kathmandu")]),
    st.integers(1, 12 * DAY),
)
def test_every_grouping_adds_up_to_the_total(rows: list[Any], zone: Any, seconds: int) -> None:
    report = report_of(*rows, span=Span(BEGIN, BEGIN + seconds), zone=zone)
    for grouping in GROUPINGS:
        for name, _ in MEASURES:
            assert (pc.sum(report.groups[grouping][name]).as_py() or 0) == report.total[name], (
                grouping,
                name,
            )
    assert (pc.sum(report.waits["started"]).as_py() or 0) == report.total["started"]


def test_a_table_in_chunks_with_dictionaries_of_their_own_is_one_table() -> None:
    parts = [
        build_table(run(str(at), 0, 10, user=user), schema=RUNS)
        for at, user in enumerate(["bob", "alice", "bob"])
    ]
    report = build_report(pa.concat_tables(parts), SPAN, UTC)
    assert column(report, "user", "cpu_seconds") == {"bob": 40, "alice": 20}


def test_ten_years_of_days_are_still_a_report() -> None:
    span = Span(BEGIN, int((moment(0) + timedelta(days=3650)).timestamp()))  # type: ignore[operator]
    assert report_of(run("1", 0, 10), span=span).groups["day"].num_rows == 3650


HIDDEN = "The cluster hides other users' ended jobs from you"


@for_each(
    ("users", "everyone", "hides_others", "said"),
    [
        (["alice"], False, None, "Your own jobs"),
        (
            ["alice"],
            True,
            None,
            "The cluster showed only your own jobs: other users' jobs may be private",
        ),
        (["bob"], True, None, "Jobs of 1 user: only jobs that the cluster shows you"),
        (
            ["alice", "bob", None],
            True,
            None,
            "Jobs of 2 users: only jobs that the cluster shows you",
        ),
        ([], True, None, "Jobs of 0 users: only jobs that the cluster shows you"),
        (["alice"], True, True, HIDDEN),
        ([], True, True, HIDDEN),
        (["alice", "bob"], True, True, f"Jobs of 2 users. {HIDDEN}"),
        (["alice"], True, False, "Jobs of 1 user: no jobs are hidden from you"),
    ],
)
def test_a_report_says_whose_jobs_it_is_of(
    users: list[str | None], everyone: bool, hides_others: bool | None, said: str
) -> None:
    runs = build_table(
        *(run(str(at), 0, 10, user=user) for at, user in enumerate(users)), schema=RUNS
    )
    fetched = FetchedRuns(
        runs, SPAN, SPAN.until, hides_others=hides_others, running=runs.slice(0, 0)
    )
    assert runs_and_notes(fetched, everyone=everyone, user="alice") == (runs, [said])


def test_what_a_cluster_forgot_is_rounded_up_to_days_where_there_are_many() -> None:
    span = Span(BEGIN - 30 * DAY, SPAN.until)
    missing = (Span(span.since, span.until - 3 * DAY - 300),)
    fetched = FetchedRuns(
        RUNS.empty_table(), span, span.until, missing, retained_since=span.until - 3 * DAY
    )
    assert fetched.format_forgotten().endswith(
        f": {span.seconds // DAY - 3} d of the time range before that are missing"
    )


def test_a_report_says_what_it_lacks_of_its_span_and_what_still_runs() -> None:
    ended = build_table(run("1", 0, 10, user="bob"), schema=RUNS)
    running = build_table(
        run("2", DAY, None, "running", elapsed_seconds=DAY, user="carol"), schema=RUNS
    )
    fetched = FetchedRuns(
        ended,
        SPAN,
        SPAN.until,
        (Span(BEGIN, BEGIN + 2 * DAY),),
        retained_since=SPAN.until - 3 * DAY,
    )
    runs, notes = runs_and_notes(fetched, everyone=True, user="alice")
    assert (runs.num_rows, notes) == (
        1,
        [
            "Jobs of 1 user: only jobs that the cluster shows you",
            "Running jobs are not counted: the queue could not be queried",
            "The cluster keeps ended jobs for 3 d: 1 d of the time range before that are missing",
            "1 d of the time range are missing: fetching failed",
        ],
    )
    runs, notes = runs_and_notes(
        replace(fetched, missing=(), running=running), everyone=True, user="alice"
    )
    assert runs["id"].to_pylist() == ["1", "2"]
    assert notes == [
        "Jobs of 2 users: only jobs that the cluster shows you",
        "1 job still running, counted up to now",
    ]
    # Of what is filtered out nothing is said.
    runs, notes = runs_and_notes(
        replace(fetched, missing=(), running=running),
        everyone=True,
        user="",
        select=lambda part: part.slice(1),
    )
    assert (runs.num_rows, notes) == (0, ["Jobs of 2 users: only jobs that the cluster shows you"])


def test_what_still_runs_counts_with_its_hours_and_as_no_job_that_ended() -> None:
    rows = [
        run("1", -DAY, None, "running", elapsed_seconds=3 * DAY, gpus=1, suspended_seconds=0),
        # Suspended for half of its two days.
        run("2", 2 * DAY, None, "suspended", elapsed_seconds=DAY, suspended_seconds=DAY, gpus=4),
    ]
    report = report_of(*rows, run("3", 0, 100))
    assert report.total["cpu_seconds"] == 2 * (2 * DAY + DAY + 100)
    # A suspended job keeps its GPUs.
    assert report.total["gpu_seconds"] == 2 * DAY + 4 * 2 * DAY
    assert [report.total[name] for name in ("jobs", "running", "failed")] == [1, 2, 0]
    assert column(report, "day", "cpu_seconds")["2026-03-27"] == 2 * (DAY + 100)
    assert sum(column(report, "day", "running").values()) == 2


def test_the_runs_of_several_clusters_are_grouped_by_cluster() -> None:
    here = build_table(run("15", 0, 3600, queue="batch"), schema=RUNS)
    there = build_table(
        run("15", 0, 3 * 3600, queue="batch"), run("16", 0, 3600, queue="batch"), schema=RUNS
    )
    report = build_report(join_runs([("one", here), ("second", there)]), SPAN, UTC)
    assert column(report, "cluster", "jobs") == {"one": 1, "second": 2}
    assert report.total["jobs"] == 3
    hours = column(report, "cluster", "cpu_seconds")
    assert hours["second"] == 4 * hours["one"] == report.total["cpu_seconds"] - hours["one"]
    assert set(column(report, "queue", "jobs")) == {"batch@one", "batch@second"}
