"""Writes what squeue, sinfo and sacct would print for given fields.

Knows the layouts asked for, no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcdash.backends.slurm import history, jobs, runs
from hpcdash.backends.slurm.rows import SEPARATOR, Layout
from hpcdash.transport.base import CommandResult

TOKEN = "\x1eabcDEF0123"

JOB = {
    "jobarrayid": "88",
    "arrayjobid": "88",
    "arraytaskid": "N/A",
    "username": "alice",
    "account": "physics",
    "partition": "gpu",
    "qos": "normal",
    "state": "RUNNING",
    "prioritylong": "4711",
    "numnodes": "1",
    "numcpus": "8",
    "tres-alloc": "cpu=8,mem=48G,node=1,billing=8,gres/gpu=2",
    "tres-per-job": "N/A",
    "tres-per-node": "N/A",
    "tres-per-task": "N/A",
    "tres-per-socket": "N/A",
    "sct": "*:*:*",
    "numtasks": "1",
    "oversubscribe": "OK",
    "timeused": "1:30",
    "timelimit": "12:00:00",
    "submittime": "1795242100",
    "eligibletime": "1795242100",
    "starttime": "1795242110",
    "endtime": "1795285310",
    "nodelist": "g1",
    "exit_code": "0",
    "dependency": "(null)",
    "reason": "None",
    "name": "train",
    "comment": "(null)",
    "workdir": "/home/alice",
}
PAST_JOB = {
    "jobid": "88",
    "user": "alice",
    "account": "physics",
    "partition": "gpu",
    "qos": "normal",
    "state": "COMPLETED",
    "reason": "None",
    "priority": "4711",
    "nnodes": "1",
    "ncpus": "8",
    "alloctres": "billing=8,cpu=8,gres/gpu=2,mem=48G,node=1",
    "reqtres": "billing=8,cpu=8,gres/gpu=2,mem=48G,node=1",
    "elapsedraw": "90",
    "timelimitraw": "720",
    "submit": "1795242100",
    "eligible": "1795242100",
    "start": "1795242110",
    "end": "1795242200",
    "nodelist": "g1",
    "jobname": "train",
    "comment": "",
    "workdir": "/home/alice",
    "exitcode": "0:0",
}
# As sacct prints it with its steps: what those used is in rows of their own.
PAST_RUN = {
    **{name: text for name, text in PAST_JOB.items() if name not in ("reason", "priority")},
    "suspended": "00:00:00",
    "totalcpu": "05:30.250",
    "maxrss": "",
    "tresusageintot": "",
    "admincomment": "",
}
NODE = {
    "nodelist": "g1",
    "partition": "gpu",
    "statecomplete": "mixed",
    "cpusstate": "6/2/0/8",
    "gres": "gpu:a100:4(S:0-1)",
    "gresused": "gpu:a100:2(IDX:0,3)",
    "memory": "16000",
    "allocmem": "4296",
    "cpusload": "0.18",
    "features": "gpu,a100",
    "timestamp": "Unknown",
    "user": "Unknown",
    "reason": "none",
}
QUEUE = {
    "partition": "gpu",
    "available": "up",
    "time": "2-00:00:00",
    "nodeaiot": "1/1/0/2",
    "cpusstate": "6/10/0/16",
    "nodes": "2",
    "gres": "gpu:a100:4",
    "gresused": "gpu:a100:2(IDX:0-1)",
    "groups": "all",
}
Fields = Mapping[str, str | bytes]


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def printed_row(layout: Layout, fields: Fields, token: str = TOKEN) -> bytes:
    """One line as `-O` prints it."""
    first = SEPARATOR.encode().join(_bytes(fields[name]) for name in layout.plain)
    return (
        b"".join(
            part + token.encode()
            for part in (first, *(_bytes(fields[name]) for name in layout.hostile))
        )
        + b"\n"
    )


def queue_text(*rows: Fields, token: str = TOKEN) -> bytes:
    """squeue's output: each row is JOB with these fields changed."""
    return b"".join(printed_row(jobs.LAYOUT, {**JOB, **row}, token) for row in rows)


def history_text(*rows: Fields, token: str = TOKEN) -> bytes:
    """sacct's output: each row is PAST_JOB with these fields changed."""
    return b"".join(
        token.encode().join(_bytes({**PAST_JOB, **row}[name]) for name in history.FIELDS) + b"\n"
        for row in rows
    )


def runs_text(*rows: Fields, token: str = TOKEN) -> bytes:
    """sacct's output with steps: a row whose jobid has a dot is a step, which has no user and no
    allocation of GPUs.
    """
    return b"".join(
        token.encode().join(_bytes({**PAST_RUN, **row}[name]) for name in runs.FIELDS) + b"\n"
        for row in rows
    )


def shown_job(job_id: str, *, name: str = "train", **fields: object) -> str:
    """What `scontrol show job` says of a batch job of alice's, with these fields (StdOut, StdErr,
    …).
    """
    more = "".join(f"   {field}={value}\n" for field, value in fields.items())
    return (
        f"JobId={job_id.partition('_')[0]} JobName={name}\n   UserId=alice(1001)\n   "
        f"BatchFlag=1\n{more}\n"
    )


def submit_line_text(words: tuple[str, ...], lines: Mapping[str, str] = {}) -> str:
    """What sacct says, asked for all fields, of how each of these jobs was submitted."""
    separator = next(word for word in words if word.startswith("--delimiter=")).removeprefix(
        "--delimiter="
    )
    more = [f"Field{number}" for number in range(30)]
    rows = [
        ["JobID", *more, "SubmitLine"],
        *([job_id, *("" for _ in more), line] for job_id, line in lines.items()),
    ]
    return "".join(separator.join(row) + "\n" for row in rows)


def answered(
    stdout: bytes = b"", *, status: int = 0, stderr: bytes = b"", argv: Iterable[str] = ("squeue",)
) -> CommandResult:
    """A finished command."""
    return CommandResult(tuple(argv), status, stdout, stderr, 0.01)
