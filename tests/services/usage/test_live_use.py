"""What a job uses while one looks: how a look is read, what is warned of, and what is kept of
it.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.inside import NodeOutput
from hpcdash.backends.node_samples import NodeSample
from hpcdash.domain.schema import RUNS
from hpcdash.errors import SchedulerRefused
from hpcdash.services.usage.efficiency import compute_efficiency
from hpcdash.services.usage.live import LiveUse, NodeHistory, bars
from hpcdash.services.usage.live_lines import use_lines
from hpcdash.services.usage.sample import parse_sample
from hpcdash.services.usage.watched import with_watched
from tests.support.job_rows import build_table, run_row
from tests.support.records import for_each
from tests.support.scripted_cluster import Cluster

ROW: dict[str, Any] = {
    "id": "12",
    "nodes": 1,
    "node_list": "n1",
    "work_dir": "/",
    "gpus": 2,
    "started_at": datetime(2026, 11, 21, tzinfo=UTC),
    "elapsed_seconds": 100,
}
HEAD = "up {up}\ncpus 8\nticks 100\npage 4096\n"
# As nvidia-smi 535 prints it with csv,noheader,nounits.
NVIDIA = """nvidia
0, GPU-6a1c, 93, 30100, 81920, 401.20, NVIDIA A100-SXM4-80GB
1, GPU-77fe, {second}, 3, 81920, [N/A], NVIDIA A100-SXM4-80GB
2, GPU-9b9b, 50, 3, 81920, 60.1, NVIDIA A100-SXM4-80GB
"""
# As rocm-smi 5.7 prints it with --csv.
ROCM = """rocm
device,Average Graphics Package Power (W),GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)
card0,120.0,99,68702699520,10960896
card1,N/A,0,68702699520,10960896

"""


def look(
    text: str,
    up: float = 10.0,
    gpus: int | None = None,
    node: str = "n1",
    process: tuple[int, str] = (0, "-"),
) -> NodeSample:
    ticks, rank = process
    content = f"{HEAD.format(up=up)}process 7 {ticks} 0 1000 {rank} python train.py\n{text}"
    sample = parse_sample(NodeOutput(node, "", content.encode("utf-8", "surrogateescape"), 0), gpus)
    assert sample is not None
    return sample


def test_nvidia_smi_is_read_and_only_the_job_s_own_gpus_are_shown() -> None:
    found = look("visible 0,GPU-77\n" + NVIDIA.format(second=0)).gpus
    assert [(gpu.index, gpu.percent, gpu.memory_bytes, gpu.watts) for gpu in found] == [
        ("0", 93, 30100 << 20, 401.2),
        ("1", 0, 3 << 20, None),
    ]
    assert len(look("visible \n" + NVIDIA.format(second=0)).gpus) == 3
    assert look("visible \n" + NVIDIA.format(second=0), gpus=0).gpus == ()


def test_rocm_smi_is_read_by_its_titles() -> None:
    found = look(ROCM).gpus
    assert [(gpu.index, gpu.percent, gpu.memory_total_bytes, gpu.watts) for gpu in found] == [
        ("0", 99, 68702699520, 120.0),
        ("1", 0, 68702699520, None),
    ]


@for_each(
    ("text", "expected"),
    [
        ("memory 1000 2000 300\ncpu_usec 5000000\n", (700, 2000, False, 5.0)),
        ("memory 1000 max 300\n", (700, None, False, None)),
        ("memory 1000 9223372036854771712 0\ncpu_nsec 5000000000\n", (1000, None, False, 5.0)),
        ("memory - - \n", (4096000, None, True, None)),
        ("", (4096000, None, True, None)),
    ],
)
def test_memory_is_the_cgroup_s_else_the_processes(text: str, expected: tuple[Any, ...]) -> None:
    found = look(text)
    assert (
        found.memory_bytes,
        found.memory_limit_bytes,
        found.is_rss,
        found.cpu_seconds,
    ) == expected


def test_what_no_node_prints_breaks_nothing_and_is_unknown() -> None:
    assert parse_sample(NodeOutput("n1", "", b"\xff\0up x\n")) is None
    assert parse_sample(NodeOutput("n1", "", b"up nan\n")) is None
    odd = "process 1\nprocess x y z\nprocess 9 1e400 0 0 - a\nmemory inf\ncpus -3\nvisible ,,\n"
    sample = look(f"{odd}nvidia\n0,\n\x1b[2J, a, b\n")
    assert (len(sample.processes), sample.gpus) == (1, ())
    hostile = look("process 8 1 1 1 ١ python \x1b]0;x\x07 [red]\n")
    assert [one.rank for one in hostile.processes] == ["", ""]
    live = LiveUse.__new__(LiveUse)
    live.nodes, live.problem, live.row = {"n1": NodeHistory()}, "", ROW
    live.nodes["n1"].add(hostile)
    assert "\x1b" not in "".join(text for text, _ in use_lines(live, 200))


class _Looks(Cluster):
    """A cluster whose streams give these chunks, in turn, for each step."""

    def step_stream(
        self, *steps: list[tuple[str, str]], stderr: bytes = b"", status: int = 0
    ) -> list[tuple[str, ...]]:
        begun: list[tuple[str, ...]] = []
        remaining = list(steps)

        class Chunks:
            def __init__(self, chunks: list[bytes]) -> None:
                self.chunks, self.stderr, self.status = chunks, stderr, status

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for chunk in self.chunks:
                    yield chunk

        @asynccontextmanager
        async def stream(argv: tuple[str, ...]) -> AsyncIterator[Chunks]:
            begun.append(argv)
            token = next(word for word in argv if word.startswith("hpcdash-"))
            chunks = []
            for node, text in remaining.pop(0) if remaining else []:
                coded = base64.encodebytes(text.encode()).decode().splitlines()
                frames = [f"{token} {node} - .{line}\n" for line in coded] + [
                    f"{token} {node} - =0\n"
                ]
                chunks.append("".join(frames).encode())
            yield Chunks(chunks)

        self.transport.stream = stream  # type: ignore[assignment, method-assign]
        return begun


async def followed(
    cluster: _Looks, folder: Path | None = None, row: dict[str, Any] = ROW
) -> LiveUse:
    live = LiveUse(cluster.store, row, folder)
    async for _ in live.follow():
        pass
    return live


@pytest.fixture
async def looks(tmp_path: Path) -> AsyncIterator[_Looks]:
    cluster = _Looks(tmp_path / "cache")
    await cluster.store.open()
    yield cluster
    await cluster.close()


def seen(up: float, text: str = "", ticks: int = 0, rank: str = "0", pid: int = 7) -> str:
    return f"{HEAD.format(up=up)}process {pid} {ticks} 0 1000 {rank} python\n{text}"


async def test_one_step_samples_a_job_and_its_cpu_is_that_between_two_looks(looks: _Looks) -> None:
    begun = looks.step_stream(
        [("n1", seen(10, ticks=100)), ("n1", seen(20, ticks=600)), ("n1", seen(30, ticks=600))]
    )
    live = await followed(looks)
    assert len(begun) == 1
    assert [use.cores for use in live.nodes["n1"].uses] == [None, 0.5, 0.0]
    assert looks.store.budget.per_minute >= 1


async def test_what_is_refused_is_raised_in_the_scheduler_s_words(looks: _Looks) -> None:
    looks.step_stream([], stderr=b"srun: error: Access/permission denied\n", status=1)
    with pytest.raises(SchedulerRefused) as refused:
        await followed(looks)
    assert "Access/permission denied" in refused.value.output


def gpus(*percents: float) -> str:
    rows = "".join(f"{n}, GPU-{n}, {percent}, 1, 2, 3, x\n" for n, percent in enumerate(percents))
    return f"nvidia\n{rows}"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([gpus(0, 0)], "no GPU is busy (2 idle)"),
        ([gpus(0)], "the GPU is idle"),
        ([gpus(90, *[0] * 7)], "1 of 8 GPUs is busy"),
        ([gpus(90, 80, 0, 70)], "1 of 4 GPUs are idle: n1:2"),
        ([gpus(90, 80), gpus(0, 80)], ""),
        (["memory 950 1000 0\n"], "memory is near the limit on n1"),
        (["memory 500 1000 0\n"], ""),
    ],
)
async def test_warnings_of_the_last_looks(looks: _Looks, texts: list[str], words: str) -> None:
    looks.step_stream([("n1", seen(10 * at, texts[at % len(texts)])) for at in range(1, 6)])
    found = (await followed(looks)).warnings()
    assert (words in found[0]) if words else found == []
    assert len(found) <= 1


async def test_a_rank_that_does_less_than_the_others_is_told(looks: _Looks) -> None:
    busy = [
        (f"n{node}", seen(10 * at, ticks=0 if node == 2 else 900 * at, rank=str(node), pid=node))
        for at in range(1, 5)
        for node in range(4)
    ]
    looks.step_stream(busy)
    [words] = (await followed(looks)).warnings()
    assert words == "ranks are unequal: rank 2 at 0.0 cores, others at 0.9"


USED = ("cpu_seconds_used", "memory_peak_bytes", "gpu_use", "gpu_memory_peak_bytes", "usage_source")
NOTHING = (None, None, None, None, None)
# Of 100 s: 16 s at 0.5 cores and with GPUs at 60 %.
SEEN = (50.0, 4096000, 0.6, 1 << 20, "watched")


@pytest.mark.parametrize(
    ("run", "cluster", "expected"),
    [
        ({}, "", SEEN),
        ({"elapsed_seconds": 161}, "", NOTHING),
        ({"elapsed_seconds": None}, "", NOTHING),
        ({"started_at": None}, "", NOTHING),
        ({"started_at": datetime(2026, 11, 22, tzinfo=UTC)}, "", NOTHING),
        ({"id": "13"}, "", NOTHING),
        ({}, "another", NOTHING),
        (
            {"cpu_seconds_used": 7.0, "usage_source": "accounting"},
            "",
            (7.0, None, 0.6, 1 << 20, "accounting+watched"),
        ),
        (
            {"cpu_seconds_used": 7.0, "gpu_use": 0.1, "usage_source": "accounting"},
            "",
            (7.0, None, 0.1, None, "accounting"),
        ),
    ],
)
async def test_what_was_watched_stands_where_nothing_else_tells_what_a_run_used(
    looks: _Looks, tmp_path: Path, run: dict[str, Any], cluster: str, expected: tuple[Any, ...]
) -> None:
    folder = tmp_path / "state"
    for start in (10, 100):
        looks.step_stream(
            [("n1", seen(start, gpus(40), 0)), ("n1", seen(start + 8, gpus(60), 400))]
        )
        (await followed(looks, folder)).remember()
    assert (folder / "state.db").stat().st_mode & 0o777 == 0o600
    row = (
        run_row("12", started_at=ROW["started_at"], elapsed_seconds=100) | dict.fromkeys(USED) | run
    )
    # The one beside it was never watched.
    runs = build_table(run_row("1") | dict.fromkeys(USED), row, schema=RUNS)
    found = with_watched(runs, folder, cluster or looks.store.name)
    assert found.schema == RUNS
    assert [tuple(one[name] for name in USED) for one in found.select(USED).to_pylist()] == [
        NOTHING,
        expected,
    ]


async def test_of_a_run_whose_nodes_were_not_all_watched_nothing_is_said(
    looks: _Looks, tmp_path: Path
) -> None:
    for nodes, use in ((["n1"], None), (["n1", "n2"], pytest.approx(0.5))):
        looks.step_stream([(node, seen(up, ticks=50 * up)) for up in (10, 50) for node in nodes])
        (await followed(looks, tmp_path, ROW | {"nodes": 2})).remember()
        row = run_row("12", started_at=ROW["started_at"], elapsed_seconds=100, cpus=2)
        runs = build_table(row | dict.fromkeys(USED), schema=RUNS)
        found = with_watched(runs, tmp_path, looks.store.name)
        assert compute_efficiency(found)["cpu_use"].to_pylist() == [use]


async def test_two_windows_that_watch_one_job_lose_nothing_of_each_other(
    looks: _Looks, tmp_path: Path
) -> None:
    windows = []
    for percent in (20, 60):
        looks.step_stream([("n1", seen(10, gpus(percent), 0)), ("n1", seen(50, gpus(percent), 0))])
        windows.append(await followed(looks, tmp_path))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda window: window.remember(), windows))
    row = run_row("12", started_at=ROW["started_at"], elapsed_seconds=100) | dict.fromkeys(USED)
    found = with_watched(build_table(row, schema=RUNS), tmp_path, looks.store.name)
    assert found["gpu_use"].to_pylist() == [pytest.approx(0.4)]


def test_bars_have_a_fixed_height_and_blanks_where_nothing_is_known() -> None:
    assert bars([None, 0, 50, 100, 400], 100, 7) == "   ▁▄██"
    assert bars([0, 100], 100, 2, is_ascii=True) == ".%"
