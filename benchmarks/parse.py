"""How long it takes to read the jobs of a poll, and to write them as JSON, beside merely splitting
the same bytes.

python benchmarks/parse.py [COUNT ...]          exits 1 when reading takes longer than promised
"""

from __future__ import annotations

import asyncio
import platform
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa

from benchmarks.generate_jobs import jobs_text
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import JobScope, ParsedTable
from hpcdash.backends.slurm.jobs import parse_jobs
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain import schema
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.recorded import find_token
from hpcdash.transport.base import CommandResult

COUNTS = (10_000, 30_000, 100_000)
PROMISED_JOBS = 100_000
PROMISED_SECONDS = 0.3
# What a server with 20 000 jobs prints is as many bytes as 100 000 of Slurm's, with each
# attribute's name in it.
PBS_COUNTS = (5_000, 20_000)
PROMISED_PBS_JOBS = 20_000
PROMISED_PBS_SECONDS = 0.5
_PBS_SCENES = Path(__file__).parents[1] / "fixtures" / "pbs" / "23.06" / "scenes"
# Scene → its list.
_PBS_LISTS = {"everyday": "jobs.dsv", "finished": "ended.dsv"}
_RECORDED_DELIMITER = b"@@"
_RECORDED_CLOCK = b"04:01:41 2026"
_RECORDED_USERS = (b"alice", b"bob")
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
    """The longest time between two turns of an event loop that wants one each millisecond, while a
    thread works.
    """
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


def pbs_text(count: int, token: str, scene: str = "everyday", *, seed: int = 0) -> bytes:
    """`count` jobs as `qstat -f -F dsv` prints them: those of a scene over and over, under other
    ids, names, users and times, the same for the same seed.
    """
    choose = random.Random(seed)
    recorded = [
        line.split(_RECORDED_DELIMITER)
        for line in (_PBS_SCENES / scene / _PBS_LISTS[scene]).read_bytes().splitlines()
    ]
    jobs = []
    for number in range(1000, 1000 + count):
        head, name, *fields = recorded[number % len(recorded)]
        _, brackets, server = head.partition(b"[].")
        ending = brackets + server if brackets else b"." + head.split(b".", 1)[1]
        rest = token.encode().join([b"%b-%d" % (name, number % 977), *fields])
        for user in _RECORDED_USERS:
            rest = rest.replace(user, b"user%03d" % choose.randrange(180))
        second = choose.randrange(86_400)
        clock = b"%02d:%02d:%02d 2026" % (second // 3600, second // 60 % 60, second % 60)
        jobs.append(
            b"Job Id: %d%b%b%b"
            % (number, ending, token.encode(), rest.replace(_RECORDED_CLOCK, clock))
        )
    return b"\n".join([*jobs, b""])


def slurm_reading(count: int) -> tuple[bytes, str, Callable[[], ParsedTable]]:
    """What squeue printed, the token in it, and the reading of it."""
    raw = jobs_text(count)
    return (
        raw,
        RECORDED_TOKEN,
        partial(parse_jobs, CommandResult(("squeue",), 0, raw, b"", 0.0), token=RECORDED_TOKEN),
    )


def pbs_reading(count: int) -> tuple[bytes, str, Callable[[], ParsedTable]]:
    """What qstat printed, the token in it, and the reading of it; before the jobs comes the login
    node's clock.
    """
    query = pbs_backend(Dialect.OPENPBS).queue.jobs(JobScope())
    token = find_token(query.argv)
    assert token is not None
    raw = b"Clock: 1795233995\n" + pbs_text(count, token)
    return raw, token, partial(query.parse, CommandResult(query.argv, 0, raw, b"", 0.0))


def measure(count: int, raw: bytes, token: str, read: Callable[[], ParsedTable]) -> float:
    """Prints a line of figures; the seconds that reading took."""
    table = read().table
    assert table.num_rows >= count
    names = schema.public_names(schema.JOBS)
    split = best_seconds(partial(raw.split, token.encode()))
    parse = best_seconds(read)
    json_bytes = len(as_json(table, names))
    write = best_seconds(partial(as_json, table, names))
    gap = asyncio.run(longest_gap(read))
    print(
        f"{count:>8}  {len(raw) / 1e6:>6.1f}  {split:>8.4f}  {parse:>8.4f}  {parse / split:>6.1f}  "
        f"{write:>8.3f}"
        f"  {json_bytes / 1e6:>8.1f}  {gap * 1000:>6.1f}"
    )
    return parse


def main() -> int:
    asked = [int(word) for word in sys.argv[1:]]
    broken = []
    print(f"Python {platform.python_version()}, pyarrow {pa.__version__}, {platform.machine()}")
    for name, counts, reading, promised_jobs, promised_seconds in (
        ("squeue", asked or COUNTS, slurm_reading, PROMISED_JOBS, PROMISED_SECONDS),
        ("qstat", asked or PBS_COUNTS, pbs_reading, PROMISED_PBS_JOBS, PROMISED_PBS_SECONDS),
    ):
        print(f"\n{name:>8}      MB   split s   parse s   ratio    JSON s   JSON MB  gap ms")
        for count in counts:
            seconds = measure(count, *reading(count))
            if count == promised_jobs and seconds > promised_seconds:
                broken.append(f"{count} jobs of {name} took longer than {promised_seconds} s")
    for words in broken:
        print(words, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
