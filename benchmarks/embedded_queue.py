"""How soon the embedded queue starts a job, how many it runs a second, and what it costs while
nothing happens.

    python -m benchmarks.embedded_queue [TASKS]

Exits 1 when a warm queue takes more than 50 ms from a submission to its script's first line (the
median of 20), or the supervisor grows by more than 4 MiB over the tasks.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from hpcdash.embedded.start import supervisor_pid
from tests.embedded.queue_lab import QueueLab, is_alive
from tests.support.waiting import wait_until

DEFAULT_TASKS = 2000
_WARM_SECONDS = 0.050
# Two of them are SQLite's page cache.
_GROWTH_BYTES = 4 << 20
_IDLE_SECONDS = 5.0
_FIRST_LINE = "date +%s.%N"


def main(tasks: int) -> int:
    with tempfile.TemporaryDirectory(prefix="hpcdash-bench-queue-") as name:
        queue = QueueLab(Path(name) / "queue", Path(name) / "work", cpus=2)
        try:
            return measure(queue, tasks)
        finally:
            queue.end()


def measure(queue: QueueLab, tasks: int) -> int:
    queue.ended(queue.submit("true"))
    warm = statistics.median(until_first_line(queue) for _ in range(20))
    cold = statistics.median(cold_until_first_line(queue) for _ in range(5))
    print(f"submitted to its first line: warm {warm * 1000:.0f} ms, cold {cold * 1000:.0f} ms")
    command = statistics.median(seconds_of(lambda: queue.run("jobs")) for _ in range(10))
    print(
        f"`jobs` of an empty queue: {command * 1000:.0f} ms; python itself: "
        f"{python_seconds() * 1000:.0f} ms"
    )

    pid = queue.supervisor
    before = ticks(pid)
    time.sleep(_IDLE_SECONDS)
    print(
        f"idle: {ticks(pid) - before} ticks of CPU in {_IDLE_SECONDS:.0f} s, "
        f"{memory_bytes(pid) >> 10} KiB"
    )

    began = time.monotonic()
    queue.submit("", f"--array=1-{tasks}", "--output=none")
    submitted = time.monotonic() - began
    listed = seconds_of(lambda: queue.run("jobs"))
    wait_until("the first fifty", lambda: queue.store.pending_count() < tasks - 50, 600)
    before_bytes = memory_bytes(pid)
    wait_until("the last", lambda: not queue.store.has_work(), 3600)
    took = time.monotonic() - began
    growth = memory_bytes(pid) - before_bytes
    print(f"{tasks} tasks: handed in in {submitted:.2f} s, listed in {listed:.2f} s")
    print(
        f"  run through 2 slots in {took:.1f} s ({tasks / took:.0f} a second); the supervisor grew "
        f"{growth >> 10} KiB"
    )
    return 1 if warm > _WARM_SECONDS or growth > _GROWTH_BYTES else 0


def until_first_line(queue: QueueLab) -> float:
    """From just before the submission is written to the script's first line."""
    number = queue.submit(_FIRST_LINE)
    job = queue.ended(number)
    return float(queue.output(number)) - queue.store.submission(job.number).submitted_at


def cold_until_first_line(queue: QueueLab) -> float:
    pid = queue.supervisor
    os.kill(pid, signal.SIGTERM)
    wait_until("its end", lambda: not is_alive(pid) and supervisor_pid(queue.folder) is None)
    return until_first_line(queue)


def seconds_of(act: object) -> float:
    assert callable(act)
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def python_seconds() -> float:
    return statistics.median(
        seconds_of(lambda: os.system(f"{sys.executable} -c pass")) for _ in range(10)
    )


def ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_TASKS))
