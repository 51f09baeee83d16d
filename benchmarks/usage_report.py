"""How long a report of very many ended runs takes, from the file that keeps them to its page.

python benchmarks/usage_report.py [RUNS]        exits 1 when it takes longer than promised
"""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from hpcdash.domain.runs import overlapping
from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.services.usage.run_files import RunFiles

RUNS_COUNT = 1_000_000
PROMISED_SECONDS = 5.0
# Of a report alone; the usage view adds the 40 MiB of a screen.
PROMISED_MIB = 560
DAYS = 90
UNTIL = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp())
SPAN = Span(UNTIL - DAYS * 86_400, UNTIL)
ZONE = ZoneInfo("Europe/Berlin")


def generate_runs(count: int, *, names: int = 20_000, seed: int = 7) -> pa.Table:
    """Runs of a cluster over some months: 60 people, 8 queues, and more at work on weekdays."""
    random = np.random.default_rng(seed)
    submitted = SPAN.since - 5 * 86_400 + random.integers(0, (DAYS + 5) * 86_400, count)
    hour = submitted // 3600 % 24
    submitted += np.where((hour < 7) & (random.random(count) < 0.7), 6 * 3600, 0)
    eligible = submitted + np.where(random.random(count) < 0.1, 1800, 0)
    started = eligible + random.exponential(2500, count).astype(np.int64)
    elapsed = np.minimum(random.exponential(5000, count).astype(np.int64) + 5, 3 * 86_400)
    gpus = random.choice([0, 0, 0, 1, 2, 4, 8], count)
    cpus = np.maximum(1, gpus * 12 + random.choice([0, 1, 4, 32], count))
    memory = cpus * (4 << 30)
    use = random.beta(3, 2, count)
    ones = np.ones(count, np.int64)

    def words(prefix: str, kinds: int) -> pa.Array:
        chosen = np.minimum(random.pareto(1.2, count) * kinds / 6, kinds - 1).astype(np.int32)
        return pa.DictionaryArray.from_arrays(
            pa.array(chosen), pa.array([f"{prefix}{at:02}" for at in range(kinds)])
        )

    states = ["completed", "failed", "timeout", "out_of_memory", "cancelled", "node_failed"]
    state = random.choice(6, count, p=[0.78, 0.09, 0.05, 0.02, 0.055, 0.005]).astype(np.int32)
    columns: dict[str, pa.Array] = {
        "id": pa.array(np.arange(count) + 100_000).cast(pa.string()),
        "name": words("train-", names).cast(pa.string()),
        "user": words("user", 60),
        "account": words("lab", 12),
        "queue": words("queue", 8),
        "state": pa.DictionaryArray.from_arrays(pa.array(state), pa.array(states)),
        "cpus": pa.array(cpus),
        "gpus": pa.array(gpus),
        "memory_bytes": pa.array(memory),
        "elapsed_seconds": pa.array(elapsed),
        "limit_seconds": pa.array(elapsed * 3 // 600 * 600 + 3600),
        "submitted_at": pa.array(submitted).cast(RUNS.field("submitted_at").type),
        "eligible_at": pa.array(eligible).cast(RUNS.field("submitted_at").type),
        "started_at": pa.array(started).cast(RUNS.field("submitted_at").type),
        "ends_at": pa.array(started + elapsed).cast(RUNS.field("submitted_at").type),
        "suspended_seconds": pa.array(np.where(random.random(count) < 0.01, elapsed // 10, 0)),
        "cpu_seconds_used": pa.array(cpus * elapsed * use),
        "memory_peak_bytes": pa.array((memory * random.beta(2, 4, count)).astype(np.int64)),
        "gpu_use": pa.array(random.beta(4, 2, count), mask=gpus == 0),
        "run": pa.array(ones + (random.random(count) < 0.02)),
        "_number": pa.array(np.arange(count)),
    }
    made = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in RUNS
    ]
    return pa.table(made, schema=RUNS)


def main(count: int = RUNS_COUNT) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = RunFiles(Path(folder), "everyone", asker="", scheduler="")
        kept.add(generate_runs(count), SPAN)
        kept.save()
        # In a process of its own: the imports count.
        program = "import sys; from benchmarks.usage_report import measure; measure(sys.argv[1])"
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program, folder], check=True)
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_cpu = used.ru_utime + used.ru_stime
    print(
        f"Python {platform.python_version()}: a report of {count:,} runs took {seconds:.2f} s as a "
        "whole, "
        f"{of_cpu:.2f} s of a CPU"
    )
    # Other programs do not count.
    if count <= RUNS_COUNT and min(seconds, of_cpu) > PROMISED_SECONDS:
        raise SystemExit(f"longer than the {PROMISED_SECONDS:g} s that are promised")


def measure(folder: str) -> None:
    began = time.perf_counter()
    from hpcdash.services.usage.report import RUN_COLUMNS, build_report

    kept = RunFiles(Path(folder), "everyone", asker="", scheduler="")
    kept.load(SPAN)
    runs = overlapping(kept.read(SPAN, RUN_COLUMNS), SPAN).select(RUN_COLUMNS)
    # As the archive does.
    kept.release()
    pa.default_memory_pool().release_unused()
    read = time.perf_counter()
    report = build_report(runs, SPAN, ZONE)
    built = time.perf_counter()
    hours = (report.total["cpu_seconds"] or 0) // 3600
    # The most since the program began: what the parent took does not count.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    mib = int(status["VmHWM"].split()[0]) / 1024
    print(
        f"read in {read - began:.2f} s, built in {built - read:.2f} s: {hours:,} CPU hours, "
        f"{mib:.0f} MiB"
    )
    if runs.num_rows <= RUNS_COUNT and mib > PROMISED_MIB:
        raise SystemExit(f"more than the {PROMISED_MIB} MiB that are promised")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
