"""Writes the cases of Slurm releases that were never run: what they would print of a small made-up
cluster.

    python -m tests.support.slurm_releases

Fields, states, reasons and keys are those of each release's documentation and sources
(squeue/opts.c, sacct/sacct.c, job_state_reason.c, job_info.c at its tag). It answers what hpcdash
asks: run it again when that changes, and read the difference of expected.json.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence

from hpcdash.backends.slurm.history import FIELDS
from hpcdash.backends.slurm.jobs import LAYOUT as JOBS
from hpcdash.backends.slurm.nodes import LAYOUT as NODES
from hpcdash.backends.slurm.queues import LAYOUT as QUEUES
from hpcdash.backends.slurm.states import job_state
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain.states import ENDED
from hpcdash.recorded import normalised_argv
from tests.support.record_case import (
    ROOT,
    Recorded,
    case_questions,
    job_questions,
    probe_question,
    write_case,
    write_expected,
)
from tests.support.slurm_text import JOB, NODE, PAST_JOB, QUEUE, printed_row

# Release → what squeue --version says.
RELEASES = {"23.11": "23.11.10", "24.05": "24.05.8", "24.11": "24.11.6", "25.05": "25.05.3"}
USER = "maya"
# 2026-11-20 12:00 UTC.
CLOCK = 1795176000
_HOUR = 3600
_TOKEN = RECORDED_TOKEN.encode()
Fields = Mapping[str, str]

_SHOWN, _PAST = "11", "10"
_RUNNING = {
    "submittime": str(CLOCK - 3 * _HOUR),
    "eligibletime": str(CLOCK - 3 * _HOUR),
    "exit_code": "0:0",
}
_RUNNING |= {
    "starttime": str(CLOCK - 5400),
    "endtime": str(CLOCK - 5400 + 12 * _HOUR),
    "timeused": "1:30:00",
}
_RUNNING |= {"username": USER, "workdir": "/home/maya/llm"}
_WAITING = {
    **_RUNNING,
    "state": "PENDING",
    "starttime": "N/A",
    "endtime": "N/A",
    "timeused": "0:00",
    "nodelist": "",
}
# From 23.02 on an exit is CODE:SIGNAL, no longer the status of wait().
_FAILED = {**_RUNNING, "endtime": str(CLOCK - 120), "timeused": "1:28:00", "state": "FAILED"}
_JOBS: Sequence[Fields] = (
    {**_RUNNING, "jobarrayid": _SHOWN, "name": "train-llm"},
    {
        **_WAITING,
        "jobarrayid": "20_[2-9%1]",
        "arraytaskid": "2-9%1",
        "name": "sweep",
        "reason": "JobArrayTaskLimit",
    },
    {
        **_FAILED,
        "jobarrayid": "31",
        "name": "exit-3",
        "exit_code": "3:0",
        "reason": "NonZeroExitCode",
    },
)
_NEW_JOBS: Mapping[str, Sequence[Fields]] = {
    "23.11": (
        {
            **_RUNNING,
            "jobarrayid": "12",
            "name": "cfd",
            "tres-alloc": "cpu=8,mem=48G,node=1,license/foomem=2",
        },
        {**_WAITING, "jobarrayid": "13", "name": "avx", "reason": "Constraints"},
        {**_WAITING, "jobarrayid": "14", "name": "reserved", "reason": "ReservationInvalid"},
        {
            **_WAITING,
            "jobarrayid": "15",
            "name": "lost",
            "state": "RESV_DEL_HOLD",
            "reason": "ReservationDeleted",
        },
        {**_FAILED, "jobarrayid": "32", "name": "segfault", "exit_code": "0:11"}
        | {"reason": "RaisedSignal:11(Segmentation_fault)"},
    ),
    "24.05": (
        {**_WAITING, "jobarrayid": "41", "name": "mpi", "reason": "MpiPortsBusy"},
        {**_WAITING, "jobarrayid": "42", "name": "cloud", "reason": "MaxPoweredUpNodes"},
        {**_WAITING, "jobarrayid": "43", "name": "much", "reason": "MaxCpuRunMinsPerUser"},
    ),
}
_FREE = {
    "cpusstate": "0/8/0/8",
    "gresused": "gpu:a100:0(IDX:N/A)",
    "allocmem": "0",
    "cpusload": "0.01",
}
_DRAINED = {**_FREE, "timestamp": str(CLOCK - 2 * _HOUR), "user": "root", "reason": "bad DIMM"}
_NODES: Sequence[Fields] = ({"nodelist": "g1"},)
_NEW_NODES: Mapping[str, Sequence[Fields]] = {
    "23.11": (
        {**_DRAINED, "nodelist": "g2", "statecomplete": "idle+completing+drain"},
        {**_FREE, "nodelist": "g3", "statecomplete": "idle+cloud+powered_down"},
        {**_FREE, "nodelist": "g4", "statecomplete": "idle+dynamic_norm+powering_up"},
        {**_DRAINED, "nodelist": "g5", "statecomplete": "idle+invalid_reg"},
        {"nodelist": "g6", "statecomplete": "mixed+planned"},
    ),
    "24.05": ({**_FREE, "nodelist": "g2", "statecomplete": "idle+blocked"},),
    "25.05": ({**_FREE, "nodelist": "g2", "statecomplete": "idle+external"},),
}
_ENDED = {
    "submit": str(CLOCK - 5 * _HOUR),
    "eligible": str(CLOCK - 5 * _HOUR),
    "user": USER,
    "workdir": "/home/maya",
}
_ENDED |= {"end": str(CLOCK - 2 * _HOUR)}
_HISTORY: Sequence[Fields] = (
    {**_ENDED, "jobid": "9_4", "jobname": "sweep", "state": "OUT_OF_MEMORY", "exitcode": "0:125"}
    | {"start": str(CLOCK - 4 * _HOUR), "elapsedraw": "7200"},
    # From 23.02 on sacct tells no CPUs of a job that never began.
    {
        **_ENDED,
        "jobid": _PAST,
        "jobname": "never-began",
        "state": "CANCELLED by 1001",
        "ncpus": "0",
        "alloctres": "",
    }
    | {"nodelist": "None assigned", "start": "None", "elapsedraw": "0"},
)
_MORE_OF_THE_PAST = {
    "submitline": "sbatch -o logs/%x-%j.out train.sh",
    "stdout": "logs/%x-%j.out",
    "restarts": "0",
}
# Fields of `sacct -o ALL`, some of many, by the release that has them first.
_ALL_FIELDS = {
    "23.11": "Account AllocTRES ElapsedRaw End ExitCode Extra FailedNode JobID JobName Licenses "
    "NCPUS NNodes NodeList"
    " Partition Planned QOS Reason ReqTRES Start State Submit SubmitLine TimelimitRaw User WorkDir",
    "24.05": "StdErr StdIn StdOut",
    "24.11": "QOSREQ Restarts SLUID",
    "25.05": "ReqReservation SegmentSize",
}
# `scontrol show job` of the job that runs; {KEY} stands for a line that some releases have.
_SCONTROL = """\
JobId=11 JobName=train-llm
   UserId=maya(1001) GroupId=maya(1001) MCS_label=N/A
   Priority=4711 Nice=0 Account=physics QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime=01:30:00 TimeLimit=12:00:00 TimeMin=N/A
   SubmitTime=1795165200 EligibleTime=1795165200
   AccrueTime=1795165200
   StartTime=1795170600 EndTime=1795213800 Deadline=N/A
   Partition=gpu AllocNode:Sid=login1:4711
   NodeList=g1
   BatchHost=g1{StepMgrEnabled}
   NumNodes=1 NumCPUs=8 NumTasks=1 CPUs/Task=8 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=8,mem=48G,node=1,billing=8,gres/gpu=2
   AllocTRES=cpu=8,mem=48G,node=1,billing=8,gres/gpu=2
   MinCPUsNode=8 MinMemoryNode=48G MinTmpDiskNode=0
   OverSubscribe=OK Contiguous=0 Licenses=(null) {LicensesAlloc}Network=(null)
   Command=/home/maya/llm/train.sh
   WorkDir=/home/maya/llm
   Extra={Extra}
   StdErr=/home/maya/llm/logs/train-llm-11.out
   StdIn=/dev/null
   StdOut=/home/maya/llm/logs/train-llm-11.out{SegmentSize}{Power}{OOMKillStep}
   TresPerNode=gres/gpu:a100:2

"""


def _release_jobs(release: str, argv: Sequence[str]) -> bytes:
    """What squeue lists: those that have not ended, or all, or one."""
    rows = [
        {**JOB, "arrayjobid": row["jobarrayid"].partition("_")[0], **row}
        for row in (*_JOBS, *_NEW_JOBS.get(release, ()))
        if ("-t" in argv or job_state(row.get("state", "RUNNING")) not in ENDED)
        and ("-j" not in argv or row["jobarrayid"] == argv[argv.index("-j") + 1])
    ]
    return b"".join(printed_row(JOBS, row, RECORDED_TOKEN) for row in rows)


def _nodes(release: str, argv: Sequence[str]) -> bytes:
    rows = (*_NODES, *_NEW_NODES.get(release, ()))
    return b"".join(printed_row(NODES, {**NODE, **row}, RECORDED_TOKEN) for row in rows)


def _queues() -> bytes:
    return f"gpu\n{RECORDED_TOKEN}\n".encode() + printed_row(
        QUEUES, {**QUEUE, "partition": "gpu*"}, RECORDED_TOKEN
    )


def _history(release: str, argv: Sequence[str]) -> bytes:
    rows = [
        {**PAST_JOB, **_MORE_OF_THE_PAST, **row}
        for row in _HISTORY
        if "-j" not in argv or row["jobid"] in argv
    ]
    names: Sequence[str] = FIELDS
    lines = []
    if argv[-1] == "ALL":
        names = " ".join(
            fields for first, fields in _ALL_FIELDS.items() if first <= release
        ).split()
        lines = [names]
    lines += [[row.get(name.lower(), "") for name in names] for row in rows]
    return b"".join(_TOKEN.join(value.encode() for value in line) + b"\n" for line in lines)


def _shown_job(release: str) -> bytes:
    return _SCONTROL.format(
        Extra="tier=2 StdOut=/of/nobody ",
        StepMgrEnabled="\n   StepMgrEnabled=Yes" * (release >= "24.05"),
        Power="\n   Power=" * (release < "24.05"),
        OOMKillStep="\n   OOMKillStep=1" * (release >= "24.11"),
        LicensesAlloc="LicensesAlloc=(null) " * (release >= "25.05"),
        SegmentSize="\n   SegmentSize=2" * (release >= "25.05"),
    ).encode()


def _probed(release: str) -> bytes:
    commands = "".join(
        f"command={name}=/usr/bin/{name}\n"
        for name in ("squeue", "sinfo", "sacct", "scontrol", "sbatch")
    )
    return (
        f"user={USER}\nclock={CLOCK}\n{commands}version=slurm {RELEASES[release]}\n"
        "ping=Slurmctld(primary) at ctl1 is UP "
        "\nAccountingStorageType=accounting_storage/slurmdbd\nClusterName=atlas\n"
        "AccountingStorageTRES=cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu\nGresTypes=gpu\nMinJobAge=300\n"
    ).encode()


def _answers(release: str) -> Iterator[Recorded]:
    """Everyone's jobs are one's own, so that three questions have one answer."""
    answer = {"squeue": _release_jobs, "sinfo": _nodes, "sacct": _history}
    asked = (
        probe_question(),
        *case_questions(USER),
        *job_questions(_SHOWN, in_queue=True),
        *job_questions(_PAST, in_queue=False),
    )
    for stem, word_file, query in asked:
        argv = normalised_argv(query.argv)
        if argv[0] in answer:
            stdout = answer[argv[0]](release, argv)
        elif stem == "queues":
            stdout = _queues()
        else:
            stdout = _shown_job(release) if argv[0] == "scontrol" else _probed(release)
        file = stem.replace("-me", "").replace("-mine", "").replace("-all-ended", "-ended")
        yield Recorded(
            file if stem.endswith("sacct-all") else file.removesuffix("-all"),
            argv,
            0,
            stdout,
            b"",
            0.01,
            word_file,
        )


def write_release(release: str) -> None:
    """The case of a release."""
    directory = ROOT / "fixtures" / "slurm" / release / "made-up"
    shutil.rmtree(directory, ignore_errors=True)
    about = f"Slurm {release}, never run: made up from its documentation and sources"
    write_case(directory, about, USER, CLOCK, _answers(release))
    write_expected(directory)


if __name__ == "__main__":
    for name in RELEASES:
        write_release(name)
