"""Makes squeue's answer for any number of jobs, in the shape of recorded ones.

Knows the layout asked for, no server.

    python -m benchmarks.generate_jobs 100000 > jobs.out

Three jobs in ten run. Users, accounts, partitions, requests and folders are few, as on real
clusters; one pending row in eight stands for the rest of an array; one name in two hundred tries to
break the reader.
"""

from __future__ import annotations

import argparse
import random
import sys

from hpcdash.backends.slurm.jobs import LAYOUT
from hpcdash.backends.slurm.rows import SEPARATOR
from hpcdash.backends.tokens import RECORDED_TOKEN

NOW = 1_795_244_354
# The last field's end, and the line's.
ROW_END = RECORDED_TOKEN.encode() + b"\n"
RUNNING_SHARE = 0.3
_USERS = [f"user{number:03d}" for number in range(180)]
_ACCOUNTS = ["vision", "climate", "chem", "genomics", "physics", "materials"]
_PARTITIONS = ["cpu", "cpu", "cpu", "gpu", "gpu", "long", "himem", "debug"]
_REASONS = ["Priority"] * 12 + [
    "Resources",
    "Dependency",
    "QOSMaxCpuPerUserLimit",
    "JobHeldUser",
    "BeginTime",
]
_NAMES = [
    "train",
    "sweep",
    "relax",
    "md-300K",
    "wrf-post",
    "eval",
    "tokenize",
    "blast",
    "regrid",
    "jupyter",
]
_HOSTILE_NAMES = [
    b"line1\nline2\ttab",
    b"x\x1f\x1e\n999\x1fforged\x1falice",
    b"latin1-\xe9\xff",
    b"\x1b[31mred\x1b[0m\a",
    "étude-日本語-🚀".encode(),
    b"JobId=99 JobState=RUNNING",
]
_LIMITS = ["1:00:00", "12:00:00", "1-00:00:00", "3-00:00:00", "7-00:00:00", "UNLIMITED"]


def _row(number: int, choose: random.Random, token: bytes) -> bytes:
    running = choose.random() < RUNNING_SHARE
    user = choose.choice(_USERS)
    partition = choose.choice(_PARTITIONS)
    cpus = choose.choice([1, 4, 8, 16, 32, 64])
    gpus = choose.choice([1, 2, 4, 8]) if partition == "gpu" else 0
    submitted = NOW - choose.randrange(1, 500_000)
    started = submitted + choose.randrange(1, 1 + NOW - submitted)
    job_id, array_id, task = str(number), str(number), "N/A"
    if running and number % 4 == 0:
        array_id, task = str(number - number % 400), str(number % 400)
        job_id = f"{array_id}_{task}"
    elif not running and number % 8 == 0:
        task = f"{number % 17}-{number % 17 + choose.randrange(1, 500)}%{choose.choice([1, 4, 10])}"
        job_id = f"{array_id}_[{task}]"
    elapsed = NOW - started
    days, seconds = divmod(elapsed, 86400)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    tres = f"cpu={cpus},mem={cpus * 4}G,node=1,billing={cpus}" + (
        f",gres/gpu={gpus}" if gpus else ""
    )
    plain = {
        "jobarrayid": job_id,
        "arrayjobid": array_id,
        "arraytaskid": task,
        "username": user,
        "account": _ACCOUNTS[int(user[-1]) % len(_ACCOUNTS)],
        "partition": partition,
        "qos": "normal",
        "state": "RUNNING" if running else "PENDING",
        "prioritylong": str(choose.randrange(1, 20_000)),
        "numnodes": "1",
        "numcpus": str(cpus),
        "tres-alloc": tres,
        "tres-per-job": "N/A",
        "tres-per-node": f"gres:gpu:{gpus}" if gpus else "N/A",
        "tres-per-task": "N/A",
        "tres-per-socket": "N/A",
        "sct": "*:*:*",
        "numtasks": "1",
        "oversubscribe": "OK",
        "timeused": (f"{days}-{clock}" if days else clock) if running else "0:00",
        "timelimit": choose.choice(_LIMITS),
        "submittime": str(submitted),
        "eligibletime": str(submitted),
        "starttime": str(started) if running else "N/A",
        "endtime": str(started + 604_800) if running else "N/A",
        "nodelist": f"{partition[0]}{choose.randrange(1, 2000):04d}" if running else "",
        "exit_code": "0",
        "dependency": "(null)",
    }
    name = (
        choose.choice(_HOSTILE_NAMES)
        if number % 200 == 0
        else f"{choose.choice(_NAMES)}-{number % 977}".encode()
    )
    hostile = {
        "reason": b"None" if running else choose.choice(_REASONS).encode(),
        "name": name,
        "comment": b"(null)" if number % 3 else f"run {number % 40}".encode(),
        "workdir": f"/home/{user}/project{number % 5}".encode(),
    }
    first = SEPARATOR.join(plain[field] for field in LAYOUT.plain).encode()
    return (
        b"".join(part + token for part in (first, *(hostile[field] for field in LAYOUT.hostile)))
        + b"\n"
    )


def jobs_text(count: int, *, token: str = RECORDED_TOKEN, seed: int = 0) -> bytes:
    """`count` rows as squeue prints them, the same for the same seed."""
    choose = random.Random(seed)
    return b"".join(_row(number, choose, token.encode()) for number in range(1000, 1000 + count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    sys.stdout.buffer.write(jobs_text(asked.count, seed=asked.seed))


if __name__ == "__main__":
    main()
