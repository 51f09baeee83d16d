"""How long a million ended jobs take: to read what sacct prints of them, to keep, to read from the
disk and to show.

python -m benchmarks.history [RUNS]          exits 1 when a slice is read slower than promised
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from hpcdash.backends.slurm.runs import FIELDS, parse_runs
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain.arrays import fold
from hpcdash.domain.runs import merge_runs, overlapping
from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.services.usage.run_files import RunFiles
from hpcdash.transport.base import CommandResult

PROMISED_ROWS_A_SECOND = 300_000
RUNS_A_SLICE = 20_000
NOW = 1_795_242_000
SPAN_SECONDS = 180 * 86_400
# A run has its own row, the batch shell's and, of two in three, a step's.
_STATES = ("COMPLETED",) * 12 + ("FAILED", "TIMEOUT", "CANCELLED by 1001", "OUT_OF_MEMORY")
_HOSTILE_ONE_IN = 500
T = TypeVar("T")


def sacct_text(
    first: int, count: int, since: int, until: int, token: str, *, seed: int = 0
) -> bytes:
    """What sacct prints of `count` runs that ended in a slice, the same for the same seed."""
    choose = random.Random(seed)
    lines = []
    for number in range(first, first + count):
        end = since + (number - first) * (until - since) // count
        elapsed = choose.randrange(60, 40_000)
        cpus = choose.choice((1, 4, 8, 32, 64))
        state = choose.choice(_STATES)
        user = choose.randrange(300)
        tres = f"billing={cpus},cpu={cpus},gres/gpu={cpus // 8},mem={cpus * 4}G,node=1"
        times = (
            f"{end - elapsed - choose.randrange(50_000)} {end - elapsed - 100} "
            f"{end - elapsed} {end}"
        ).split()
        name = f"train_resnet50_seed{number % 977}"
        if number % _HOSTILE_ONE_IN == 0:
            name += "\n1|forged\x1b[31m"
        run = {
            "jobid": str(number),
            "user": f"user{user:03}",
            "account": f"lab{user % 40}",
            "partition": "gpu",
            "qos": "normal",
            "state": state,
            "nnodes": "1",
            "ncpus": str(cpus),
            "alloctres": tres,
            "reqtres": tres,
            "elapsedraw": str(elapsed),
            "timelimitraw": "720",
            "suspended": "00:00:00",
            **dict(zip(("submit", "eligible", "start", "end"), times, strict=True)),
            "totalcpu": f"{elapsed * cpus // 3600:02}:{elapsed // 60 % 60:02}:{elapsed % 60:02}",
            "maxrss": "",
            "tresusageintot": "",
            "nodelist": f"gpu{number % 400:03}",
            "jobname": name,
            "comment": "",
            "admincomment": "",
            "workdir": f"/home/user{user:03}/runs/{number % 3000}",
            "exitcode": "0:0",
        }
        step = {
            **run,
            "user": "",
            "partition": "",
            "qos": "",
            "reqtres": "",
            "timelimitraw": "",
            "workdir": "",
            "maxrss": f"{choose.randrange(10_000, 64_000_000)}K",
        }
        step["tresusageintot"] = (
            f"cpu={run['totalcpu']},energy=0,fs/disk={number},mem={step['maxrss']},pages=1,vmem=9G"
        )
        steps = [{**step, "jobid": f"{number}.batch", "jobname": "batch"}]
        if number % 3:
            steps.append({**step, "jobid": f"{number}.0", "jobname": "python"})
        lines += [token.join(row[field] for field in FIELDS) for row in (run, *steps)]
    return ("\n".join(lines) + "\n").encode()


def timed(what: str, work: Callable[[], T]) -> T:
    began, cpu = time.perf_counter(), time.process_time()
    result = work()
    print(
        f"{what:<44} {time.perf_counter() - began:7.2f} s  {time.process_time() - cpu:7.2f} s "
        "of CPU"
    )
    return result


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    count = int(words[0]) if words else 1_000_000
    slices = max(1, count // RUNS_A_SLICE)
    values_by_key = count // slices
    length = SPAN_SECONDS // slices
    parts: list[tuple[pa.Table, Span]] = []
    best = 0.0
    for at in range(slices):
        span = Span(NOW - (at + 1) * length, NOW - at * length)
        token = fresh_token()
        raw = sacct_text(
            at * values_by_key + 1, values_by_key, span.since, span.until, token, seed=at
        )
        answer = CommandResult(("sacct",), 0, raw, b"", 0.0)
        began = time.process_time()
        parsed = parse_runs(answer, token=token)
        took = time.process_time() - began
        assert parsed.table.num_rows == values_by_key, parsed.rejected
        began = time.process_time()
        raw.split(token.encode())
        split = time.process_time() - began
        # Names of more than a line have more.
        rows = raw.count(token.encode()) // (len(FIELDS) - 1)
        best = max(best, rows / took)
        if at in (0, slices - 1):
            print(
                f"slice: {len(raw) / 1e6:.0f} MB, {rows} rows of {values_by_key} runs read in {took:.2f} "
                "s of CPU: "
                f"{rows / took:,.0f} rows/s, {values_by_key / took:,.0f} runs/s; "
                f"{took / split:.1f} times bytes.split"
            )
        parts.append((parsed.table, span))
    whole = Span(NOW - SPAN_SECONDS, NOW)
    with tempfile.TemporaryDirectory() as folder:
        files = RunFiles(Path(folder), "everyone", asker="root", scheduler="slurm")

        def keep() -> None:
            for table, span in parts:
                files.add(table, span)
            files.save()

        timed(f"{count:,} runs sorted and written to the disk", keep)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        print(f"  {size / 1e6:.0f} MB in {len(list(Path(folder).iterdir()))} files")
        again = RunFiles(Path(folder), "everyone", asker="root", scheduler="slurm")
        again.load(whole)
        assert not again.missing(whole)
        runs = timed(
            "read, joined, numbered, cut to the span",
            lambda: overlapping(again.read(whole, RUNS.names), whole),
        )
        assert runs.num_rows >= count - 1
        jobs = timed("as jobs", lambda: merge_runs(runs))
        timed(
            "folded and sorted by user, as the view does",
            lambda: fold(jobs, frozenset(), ("user", False)),
        )
    print(f"best slice: {best:,.0f} rows/s")
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if best < PROMISED_ROWS_A_SECOND:
        print(f"slower than the promised {PROMISED_ROWS_A_SECOND:,} rows/s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
