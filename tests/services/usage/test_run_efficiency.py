"""Efficiency: the figures of seff, reportseff and jobstats on their own published inputs, and
comments made to harm.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from hpcdash.backends.submissions import StartEstimate
from hpcdash.domain.schema import RUNS
from hpcdash.services.usage.efficiency import advise, compute_efficiency, parse_jobstats, with_use
from hpcdash.services.usage.sooner import EarlierStart, StartOption
from tests.support.job_rows import build_table, run_row
from tests.support.records import for_each

KIB, GIB = 1 << 10, 1 << 30


def comment_of(summary: object) -> str:
    return "JS1:" + base64.b64encode(gzip.compress(json.dumps(summary).encode())).decode()


def clock(text: str) -> float:
    """Seconds of `2-07:51:43` or `16:01.272`."""
    days, _, rest = text.rpartition("-")
    parts = [float(part) for part in rest.split(":")]
    return int(days or 0) * 86400 + sum(
        part * 60**place for place, part in enumerate(reversed(parts))
    )


def run(
    cpus: int,
    elapsed: str,
    used: str,
    memory: float,
    peak: float,
    limit: str = "",
    comment: Any = None,
) -> Any:
    return run_row(
        "1",
        cpus=cpus,
        elapsed_seconds=int(clock(elapsed)),
        cpu_seconds_used=clock(used),
        memory_bytes=int(memory),
        memory_peak_bytes=int(peak),
        limit_seconds=int(clock(limit)) if limit else None,
        usage_source="accounting",
        _admin_comment=comment
        if comment is None or isinstance(comment, str)
        else comment_of(comment),
    )


def node(
    cpus: int, seconds: float, used: int, memory: int, **gpus: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "cpus": cpus,
        "total_time": seconds,
        "used_memory": used,
        "total_memory": memory,
        **gpus,
    }


V100 = 17071734784
TIGER = 117440512000
FOUR_GPUS = {
    "gpu_total_memory": dict.fromkeys("0123", V100),
    "gpu_used_memory": dict.fromkeys("0123", 5146542080),
    "gpu_utilization": {"0": 3.5, "1": 3.5, "2": 3.2, "3": 3.8},
}
FOUR_MORE = {**FOUR_GPUS, "gpu_utilization": {"0": 7.5, "1": 7.5, "2": 7.2, "3": 7.8}}
ONE_GPU = {
    "gpu_total_memory": {"3": V100},
    "gpu_used_memory": {"3": 17040539648},
    "gpu_utilization": {"3": 29.4},
}
# Source, the run, and in percent what the tool prints of it: CPU, memory, time, GPU, GPU memory.
# None: it prints none.
PUBLISHED: list[tuple[str, Any, tuple[float | None, ...]]] = [
    (
        "seff 12347496 (University of Wyoming, Slurm Job Performance)",
        run(40, "02:24:01", "3-23:17:34", 80 * GIB, 105460 * KIB),
        (99.25, 0.13, None, None, None),
    ),
    (
        "reportseff 24418435 (tests/conftest.py)",
        run(1, "01:27:42", "01:27:29", GIB, 499092 * KIB, "03:00:00"),
        (99.8, 47.6, 48.7, None, None),
    ),
    (
        "reportseff 25569410 (tests/conftest.py)",
        run(1, "21:14:48", "19:28:36", 4000 * KIB * KIB, 62328 * KIB),
        (91.7, 1.5, None, None, None),
    ),
    (
        "reportseff 131042, eight tasks of 1947276K (issue 41, tests/conftest.py)",
        run(8, "00:00:53", "06:57.815", 16000 * KIB * KIB, 8 * 1947276 * KIB, "00:01:00"),
        (98.5, 95.1, 88.3, None, None),
    ),
    (
        "reportseff 11741520 without a limit (tests/test_job.py)",
        run(4, "03:22:47", "01:15:11", 28 * GIB, 0),
        (9.3, 0.0, None, None, None),
    ),
    (
        "reportseff 39889258_1426, whose comment is another job's (tests/test_job.py)",
        run(
            *(2, "02:14:11", "03:43:27", 8 * GIB, 3501608 * KIB, "02:55:00"),
            {
                "gpus": False,
                "nodes": {"a": node(1, 54515.3, 582283264, 16106127360)},
                "total_time": 54677,
            },
        ),
        (99.7, 3.6, 76.7, None, None),
    ),
    (
        "reportseff 8205048, four nodes of which one works (tests/test_job.py)",
        run(
            *(80, "00:02:26", "16:01.272", 312.5 * GIB, 1764224 * KIB, "01:00:00"),
            {
                "gpus": False,
                "nodes": {
                    "a": node(20, 542.0, 3790352384, 83886080000),
                    **{name: node(20, 0.0, 0, 83886080000) for name in "bcd"},
                },
                "total_time": 146,
            },
        ),
        (4.6, 1.1, 4.1, None, None),
    ),
    (
        "reportseff 8197399, one GPU (tests/test_job.py)",
        run(
            *(1, "05:03:23", "04:49:38", 32 * GIB, 3132024 * KIB, "23:59:00"),
            {
                "gpus": True,
                "nodes": {"a": node(1, 17368.0, 3250450432, 32 * GIB, **ONE_GPU)},
                "total_time": 18203,
            },
        ),
        (95.4, 9.5, 21.1, 29.4, 99.8),
    ),
    (
        "reportseff 8189521, four GPUs (tests/test_job.py)",
        run(
            *(28, "19:04:47", "2-07:51:43", 112000 * KIB * KIB, 29036860 * KIB, "23:00:00"),
            {
                "gpus": True,
                "nodes": {"a": node(28, 201481.2, 30866018304, TIGER, **FOUR_GPUS)},
                "total_time": 68687,
            },
        ),
        (10.5, 26.3, 83.0, 3.5, 30.1),
    ),
    (
        "reportseff 8189521, two nodes with four GPUs each (tests/test_job.py)",
        run(
            *(28, "19:04:47", "2-07:51:43", 112000 * KIB * KIB, 29036860 * KIB, "23:00:00"),
            {
                "gpus": True,
                "nodes": {
                    "a": node(28, 201481.2, 30866018304, TIGER, **FOUR_GPUS),
                    "b": node(28, 201411.2, 30266018304, TIGER, **FOUR_MORE),
                },
                "total_time": 68687,
            },
        ),
        (10.5, 26.0, 83.0, 5.5, 30.1),
    ),
    (
        "reportseff 8205464, too short for jobstats (tests/conftest.py)",
        run(8, "00:00:02", "00:01.608", 64 * GIB, 0, "24:00:00", "JS1:Short"),
        (10.1, 0.0, 0.0, None, None),
    ),
    (
        "jobstats 10920562 (tests/test_output_formatters.py)",
        run(
            *(40, "00:33:49", "1-00:00:00", 10 * GIB, 1, "1-00:00:00"),
            "JS1:H4sIAPdcJmcC/1WNQQqDMBBF7zLrtEzG0ZhcphQzqGBM0bgQyd0bUii4fe8//gVr9LKDuyDNo2yPibpBr00FMb2XV5AQtxOcRtMY1j0x"
            "Kjh28X/TdsRMhRfxa9IcBJyxbPsnKRg+R3lgzPk+ICSrYKwW8xcnjeJ8iwAAAA==",
        ),
        (98.0, 52.4, 2.3, None, None),
    ),
]


@for_each(
    ("row", "percents"), [case[1:] for case in PUBLISHED], ids=[case[0] for case in PUBLISHED]
)
def test_efficiency_is_what_the_fields_tools_print(
    row: Any, percents: tuple[float | None, ...]
) -> None:
    found = compute_efficiency(build_table(row, schema=RUNS)).to_pylist()[0]
    for use, percent in zip(("cpu", "memory", "time", "gpu", "gpu_memory"), percents, strict=True):
        value = found[f"{use}_use"]
        if percent is None:
            assert value is None, use
        else:
            # The tools round to one digit or two.
            assert value is not None, use
            assert 100 * value == pytest.approx(percent, abs=0.06 if percent != 99.25 else 0.006), (
                use
            )


def test_what_is_not_known_is_null_and_never_nothing() -> None:
    known = run_row(
        "1", cpus=4, elapsed_seconds=100, cpu_seconds_used=0.0, limit_seconds=0, memory_bytes=0
    )
    unknown = run_row("2", cpus=4, elapsed_seconds=100)
    never_began = run_row("3", cpus=4, elapsed_seconds=0, cpu_seconds_used=0.0)
    rows = compute_efficiency(build_table(known, unknown, never_began, schema=RUNS)).to_pylist()
    assert [row["cpu_use"] for row in rows] == [0.0, None, None]
    assert {row[use] for row in rows for use in ("memory_use", "gpu_use", "time_use")} == {None}


def bomb() -> str:
    """64 MiB of blanks before a summary, in some 90 kB."""
    return "JS1:" + base64.b64encode(gzip.compress(b" " * (64 << 20) + b'{"nodes":{}}')).decode()


HOSTILE = {
    "another program's": '\'{"arrayTaskId":4294967294}',
    "another version's": "JS0:" + comment_of({"nodes": {}})[4:],
    "no base64": "JS1:asd&asdf",
    "no gzip": "JS1:asdfasdf",
    "cut off": comment_of({"nodes": {"a": node(1, 1, 1, 1)}, "total_time": 1})[:-12],
    "a bomb": bomb(),
    "too long": "JS1:" + "A" * (2 << 20),
    "no object": comment_of([1, 2]),
    "words for numbers": comment_of(
        {"nodes": {"a": {"cpus": "many", "total_time": 1}}, "total_time": 1}
    ),
    "nan": "JS1:"
    + base64.b64encode(gzip.compress(b'{"nodes":{"a":{"cpus":NaN}},"total_time":1}')).decode(),
    "nested": "JS1:" + base64.b64encode(gzip.compress(b'{"x":' + b"[" * 200_000)).decode(),
    "less than nothing": comment_of({"nodes": {"a": node(-4, -1, -1, -1)}, "total_time": -5}),
    "more than there is": comment_of(
        {"nodes": {"a": node(10**300, 10**300, 10**300, 10**300)}, "total_time": 1}
    ),
    "nothing in it": comment_of({"nodes": {}, "total_time": 5}),
}


@for_each("comment", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_comment_that_is_no_summary_changes_nothing(comment: str) -> None:
    assert parse_jobstats(comment) is None
    row = run_row("1", cpus=2, elapsed_seconds=100, cpu_seconds_used=100.0, _admin_comment=comment)
    assert compute_efficiency(build_table(row, schema=RUNS))["cpu_use"].to_pylist() == [0.5]


def test_a_summary_without_memory_leaves_the_accountings() -> None:
    comment = comment_of(
        {"nodes": {"a": {"cpus": 15, "total_time": 505333.1}}, "total_time": 36322}
    )
    row = run(15, "10:05:22", "1-00:00:00", GIB, GIB // 2, comment=comment)
    found = compute_efficiency(build_table(row, schema=RUNS)).to_pylist()[0]
    assert found["cpu_use"] == pytest.approx(505333.1 / 15 / 36322)
    assert found["memory_use"] == 0.5
    assert found["usage_source"] == "jobstats"


def array_of_three() -> pa.Table:
    def task(number: str, **more: Any) -> dict[str, Any]:
        return run_row(
            f"7_{number}",
            array_id="7",
            array_task=number,
            gpus=0,
            cpus=2,
            memory_bytes=8 * GIB,
            **more,
        )

    return build_table(
        task(
            "1",
            elapsed_seconds=100,
            cpu_seconds_used=200.0,
            memory_peak_bytes=GIB,
            limit_seconds=400,
        ),
        task(
            "2",
            elapsed_seconds=300,
            cpu_seconds_used=0.0,
            memory_peak_bytes=2 * GIB,
            limit_seconds=400,
        ),
        task("3", elapsed_seconds=50, state="failed"),
        run_row("8", cpus=1, elapsed_seconds=10, cpu_seconds_used=5.0),
        schema=RUNS,
    )


def test_an_array_is_one_row_whose_tasks_weigh_what_they_had() -> None:
    whole, other = compute_efficiency(array_of_three(), by="array").to_pylist()
    assert (whole["id"], whole["runs"], whole["state"]) == ("7", 3, None)
    assert whole["cpu_use"] == pytest.approx(200 / 800)
    assert (whole["memory_use"], whole["memory_peak_bytes"], whole["time_use"]) == (
        0.25,
        2 * GIB,
        0.75,
    )
    assert (other["id"], other["runs"], other["cpu_use"], other["memory_use"]) == (
        "8",
        1,
        0.5,
        None,
    )
    assert compute_efficiency(array_of_three(), by="name")["runs"].to_pylist() == [4]


def test_advice_is_in_figures_and_silent_where_a_run_might_have_wanted_more() -> None:
    def memory(
        job: int, peak: float, state: str = "completed", name: str = "eval"
    ) -> dict[str, Any]:
        return run_row(
            str(job),
            state,
            name=name,
            cpus=1,
            elapsed_seconds=3600,
            memory_bytes=256 * GIB,
            memory_peak_bytes=int(peak * GIB),
        )

    rows = [memory(number, 31 if number == 7 else 20) for number in range(40)]
    rows += [memory(50, 20, "timeout", "cut"), memory(51, 200, name="full")]
    # What a person saw of a part of the run.
    rows += [memory(52, 20, name="seen") | {"usage_source": "watched"}]
    rows += [run_row("60", name="idle", cpus=1, gpus=4, elapsed_seconds=7200, gpu_use=0.004)]
    rows += [run_row("61", name="wide", cpus=64, elapsed_seconds=7200, cpu_seconds_used=7200 * 1.5)]
    rows += [run_row("62", name="long", cpus=1, elapsed_seconds=7200, limit_seconds=30 * 3600)]
    rows += [run_row("63", name="brief", cpus=64, elapsed_seconds=20, cpu_seconds_used=1.0)]
    told = advise(with_use(build_table(*rows, schema=RUNS)))
    advice = {one.name: one.messages for one in told}
    assert advice == {
        "eval": ("requested 256G, peak 31G in 40 runs: 40G is enough",),
        "idle": ("GPUs < 1% busy in 1 run: does the program detect them?",),
        "wide": (
            "1.5 of 64 CPUs busy in 1 run: request fewer, or check the program's thread count",
        ),
        "long": ("requested 1d06h, longest 2:00:00 in 1 run: 2:30:00 is enough",),
    }


@for_each(
    ("before", "after", "refusal", "said"),
    [
        (
            10_850.0,
            50.0,
            "",
            "with 1G of memory, the job would start about 3 h earlier: now, not in 3 h (Slurm's "
            "estimate)",
        ),
        (
            100.0,
            100.0,
            "",
            "with 1G of memory, the job would not start earlier now: now (Slurm's estimate)",
        ),
        # Without an estimate nothing is said.
        (11_000.0, None, "", ""),
        (None, 100.0, "", ""),
        (11_000.0, None, "no such node", "with 1G of memory: refused: no such node"),
    ],
)
def test_an_earlier_start_is_told_where_both_are_estimated(
    before: float | None, after: float | None, refusal: str, said: str
) -> None:
    as_it_was = StartOption("unchanged", "sbatch", StartEstimate(starts_at_epoch=before), "Slurm")
    changed = StartOption(
        "1G of memory", "sbatch", StartEstimate(starts_at_epoch=after, refusal=refusal), "Slurm"
    )
    assert EarlierStart(as_it_was, changed).format(50.0) == said
