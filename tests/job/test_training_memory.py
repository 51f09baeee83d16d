"""Memory as the kernel's files say it: of real control groups, and of files like those of other
hosts.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hpcdash.job.memory import GIB, MemoryGuard, host_used_percent

MIB = 1 << 20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a host of which half is used, without control groups."""
    made = tmp_path / "proc"
    (made / "self").mkdir(parents=True)
    (made / "meminfo").write_text(
        "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  500 kB\nHugePages_Total: 0\n"
    )
    return made


def group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_what_is_available_is_not_used(proc: Path) -> None:
    assert host_used_percent(str(proc)) == 50


def test_a_system_without_these_files_says_nothing(tmp_path: Path) -> None:
    assert host_used_percent(str(tmp_path)) is None
    assert MemoryGuard(host_used=lambda: host_used_percent(str(tmp_path))).should_stop() == ""


def test_the_tightest_group_of_version_2_counts_without_its_cache(
    proc: Path, tmp_path: Path
) -> None:
    mount = tmp_path / "cgroup two"
    group(
        mount / "slurm" / "job_7" / "step_0",
        {"memory.max": "max\n", "memory.current": "990\n", "memory.stat": ""},
    )
    group(
        mount / "slurm" / "job_7",
        {
            "memory.max": "1000\n",
            "memory.current": "990\n",
            "memory.stat": "anon 800\ninactive_file 50\nactive_file 30\nslab_reclaimable 10\n",
        },
    )
    (proc / "self" / "cgroup").write_text("0::/slurm/job_7/step_0\n")
    escaped = str(mount).replace(" ", "\\040")
    (proc / "self" / "mountinfo").write_text(
        f"31 23 0:28 / {escaped} rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
    )
    assert host_used_percent(str(proc)) == 90


def test_a_group_of_version_1_counts_where_its_limit_is_one(proc: Path, tmp_path: Path) -> None:
    mount = tmp_path / "memory"
    own = {
        "memory.limit_in_bytes": "1000\n",
        "memory.usage_in_bytes": "970\n",
        "memory.stat": "total_active_file 20\n",
    }
    group(mount, {"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "5\n"})
    group(mount / "slurm" / "uid_1" / "job_7", own)
    (proc / "self" / "cgroup").write_text("5:cpu,cpuacct:/\n4:memory:/slurm/uid_1/job_7\n0::/\n")
    (proc / "self" / "mountinfo").write_text(f"35 31 0:32 / {mount} rw - cgroup cgroup rw,memory\n")
    assert host_used_percent(str(proc)) == 95


def test_a_container_that_sees_its_own_group_as_the_root_is_limited_by_it(
    proc: Path, tmp_path: Path
) -> None:
    mount = tmp_path / "memory"
    group(mount, {"memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "990\n"})
    (proc / "self" / "mountinfo").write_text(
        f"35 31 0:32 /docker/abc {mount} rw - cgroup cgroup rw,memory\n"
    )
    for path in ("/docker/abc", "/", "/another/view"):
        (proc / "self" / "cgroup").write_text(f"4:memory:{path}\n")
        assert host_used_percent(str(proc)) == 99, path


@pytest.mark.system
def test_a_process_in_a_real_group_is_stopped_before_the_kernel_kills_it() -> None:
    parent = Path("/sys/fs/cgroup/memory")
    own = parent / f"guard-test-{os.getpid()}"
    try:
        own.mkdir()
        (own / "memory.limit_in_bytes").write_text(str(200 * MIB))
    except OSError as error:
        pytest.skip(f"no group of version 1 can be made here: {error}")
    code = (
        "import sys\n"
        f"open('{own}/cgroup.procs', 'w').write('0')\n"
        "from hpcdash.job import MemoryGuard\n"
        "guard, leak = MemoryGuard(90, every_seconds=0), []\n"
        "while not guard.should_stop(): leak.append(bytearray(b'x' * (1 << 20)))\n"
        "print(len(leak), guard.should_stop())\n"
    )
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    finally:
        own.rmdir()
    assert ended.returncode == 0, ended.stderr
    mebibytes, _, why = ended.stdout.partition(" ")
    assert 120 < int(mebibytes) < 200
    assert why.startswith("9")
    assert why.endswith("% of host memory used, above 90%\n")


def test_a_share_of_1_for_a_percentage_is_refused() -> None:
    with pytest.raises(ValueError, match="95 is 95%"):
        MemoryGuard(0.95)


def test_memory_stops_above_its_limit_and_not_at_it() -> None:
    used = [95.0]
    guard = MemoryGuard(every_seconds=0, host_used=lambda: used[0])
    assert guard.should_stop() == ""
    used[0] = 95.1
    assert guard.should_stop() == "95.1% of host memory used, above 95%"
    used[0] = 10
    assert guard.should_stop() == "95.1% of host memory used, above 95%"


def test_a_gpu_is_full_only_when_it_is_after_its_cache_is_emptied() -> None:
    answers = iter([1 * GIB, 3 * GIB, 1 * GIB, 1.5 * GIB])
    guard = MemoryGuard(None, gpu_free=lambda: next(answers), every_seconds=0)
    assert guard.should_stop() == ""
    assert guard.should_stop() == "1.50 GiB of GPU memory free, below 2 GiB"


@pytest.fixture
def torch_that_is_imported() -> Iterator[ModuleType]:
    """A stand-in for torch with a GPU whose cache holds 5 GiB."""
    torch, cuda = ModuleType("torch"), ModuleType("torch.cuda")
    free = [1 * GIB, 24 * GIB]

    def empty_cache() -> None:
        free[0] += 5 * GIB

    vars(cuda).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        mem_get_info=lambda: tuple(free),
        empty_cache=empty_cache,
    )
    vars(torch).update(cuda=cuda, free=free)
    sys.modules["torch"] = torch
    yield torch
    del sys.modules["torch"]


def test_the_gpu_of_a_program_that_uses_torch_is_watched(
    torch_that_is_imported: ModuleType,
) -> None:
    guard = MemoryGuard(None, every_seconds=0)
    assert guard.should_stop() == ""
    assert torch_that_is_imported.free[0] == 6 * GIB
    torch_that_is_imported.free[0] = -4 * GIB
    assert guard.should_stop() == "1.00 GiB of GPU memory free, below 2 GiB"


@pytest.mark.system
def test_torch_is_never_imported_by_this(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('imported')\n")
    code = (
        "from hpcdash.job import TrainingGuard\n"
        "guard = TrainingGuard(metrics='')\n"
        "guard.step(1, loss=1.0)\n"
        "guard.memory.should_stop()\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_measurement_that_fails_is_said_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> float:
        raise RuntimeError("the driver is gone")

    guard = MemoryGuard(None, gpu_free=broken, every_seconds=0)
    assert [guard.should_stop() for _ in range(3)] == ["", "", ""]
    assert caplog.text.count("the driver is gone") == 1


def test_a_host_that_cannot_be_measured_is_said_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = MemoryGuard(95.0, None, every_seconds=0, host_used=lambda: None)
    assert [guard.should_stop() for _ in range(3)] == ["", "", ""]
    assert caplog.text.count("cannot measure host memory") == 1


def test_the_worst_rank_decides_for_all() -> None:
    said: list[int] = []

    def spread(number: int) -> int:
        said.append(number)
        return max(said)

    full = MemoryGuard(host_used=lambda: 99.0, all_reduce_max=spread)
    idle = MemoryGuard(host_used=lambda: 1.0, all_reduce_max=spread)
    assert full.should_stop() == "99.0% of host memory used, above 95%"
    assert idle.should_stop() == "another rank is almost out of memory"
