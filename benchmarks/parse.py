"""How long it takes to read the jobs of a poll, and to write them as JSON, beside merely splitting the same bytes.

python benchmarks/parse.py [COUNT ...]          exits 1 when 100 000 jobs take longer than promised
"""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
import pyarrow as pa

from benchmarks.generate_jobs import jobs_text
from hpcdash.backends.base import RECORDED_TOKEN
from hpcdash.backends.slurm.jobs import parse_jobs
from hpcdash.domain import schema
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.transport.base import Completed

COUNTS = (10_000, 30_000, 100_000)
PROMISED_JOBS = 100_000
PROMISED_SECONDS = 0.3
_ROUNDS = 5
_ENCODE = msgspec.json.Encoder().encode


def best_seconds(work: Callable[[], object]) -> float:
    """The best of a few rounds: what the work takes when nothing else does."""
    rounds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        rounds.append(time.perf_counter() - started)
    return min(rounds)


def as_json(table: pa.Table, names: list[str]) -> bytes:
    """What `hpcdash jobs --format json` prints of a table."""
    return _ENCODE(table_to_json_rows(table, names))


async def longest_gap(work: Callable[[], object]) -> float:
    """The longest time between two turns of an event loop that wants one each millisecond, while a thread works."""
    working = asyncio.create_task(asyncio.to_thread(work))
    longest = 0.0
    before = time.perf_counter()
    while not working.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest = max(longest, now - before)
        before = now
    await working
    return longest


def main() -> int:
    counts = [int(word) for word in sys.argv[1:]] or list(COUNTS)
    kept = True
    print(f"Python {platform.python_version()}, pyarrow {pa.__version__}, {platform.machine()}")
    print("    jobs      MB   split s   parse s   ratio    JSON s   JSON MB  gap ms")
    for count in counts:
        raw = jobs_text(count)
        read = partial(parse_jobs, Completed(("squeue",), 0, raw, b"", 0.0), token=RECORDED_TOKEN)
        table = read().table
        assert table.num_rows == count
        names = schema.public_names(schema.JOBS)
        split = best_seconds(partial(raw.split, RECORDED_TOKEN.encode()))
        parse = best_seconds(read)
        json_bytes = len(as_json(table, names))
        write = best_seconds(partial(as_json, table, names))
        gap = asyncio.run(longest_gap(read))
        print(
            f"{count:>8}  {len(raw) / 1e6:>6.1f}  {split:>8.4f}  {parse:>8.4f}  {parse / split:>6.1f}  {write:>8.3f}"
            f"  {json_bytes / 1e6:>8.1f}  {gap * 1000:>6.1f}"
        )
        kept &= count != PROMISED_JOBS or parse <= PROMISED_SECONDS
    if not kept:
        print(f"{PROMISED_JOBS} jobs took longer than {PROMISED_SECONDS} s", file=sys.stderr)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
