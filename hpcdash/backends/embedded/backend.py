"""The embedded queue as a backend: its commands are those of a program of hpcdash's own.

Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcdash.backends.actions import ALTERABLE, ActionCommand, ActionRequest
from hpcdash.backends.base import (
    ActionsPart,
    Backend,
    Capability,
    DetailPart,
    HistoryPart,
    InsidePart,
    LogsPart,
    PolicyPart,
    PolicyReason,
    Probe,
    ProbePart,
    QueuePart,
    ReasonsPart,
    ScriptReader,
    ScriptsPart,
    ScriptWriter,
    SubmitPart,
)
from hpcdash.backends.embedded import typed
from hpcdash.backends.embedded.answers import (
    read_jobs,
    read_native,
    read_object,
    read_runs,
    read_table,
    require_success,
)
from hpcdash.backends.job_detail import JobDetail, Script, Usage
from hpcdash.backends.queries import Answer, JobScope, ParsedTable, Query
from hpcdash.backends.rank_logs import rank_logs_query
from hpcdash.backends.submissions import NewLimits, Submission, SubmitCommand
from hpcdash.domain import schema
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.states import ACTIVE, ENDED, WAITING

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.script.cron import CronJob, CronParts
    from hpcdash.backends.shell import ShellCommand, ShellRequest

# The scheduler whose directives its scripts have.
SCRIPTS_OF = "slurm"
_HINTS = {
    "Resources": "the next to start, once enough CPU or GPU slots are free",
    "Priority": "jobs submitted earlier go first",
    "JobHeldUser": "held; h releases it",
    "Dependency": "waiting for a job it depends on",
    "DependencyNeverSatisfied": "its dependency can no longer be met: cancel or resubmit it",
    "BeginTime": "waiting for its start time",
    "JobArrayTaskLimit": "the array's limit on running tasks is reached",
    "NonZeroExitCode": "its script ended with an error",
    "TimeLimit": "ran into its time limit",
    "more than this machine has": "requests more than this machine has and will never start",
}

_CAPABILITIES = frozenset(
    {
        Capability.JOBS,
        Capability.OWNERS,
        Capability.NODES,
        Capability.QUEUES,
        Capability.HISTORY,
        Capability.DETAIL,
        Capability.CHAINS,
        Capability.LOGS,
        Capability.ERROR_LOGS,
        Capability.SCRIPT,
        Capability.CANCEL,
        Capability.HOLD,
        Capability.REQUEUE,
        Capability.SUSPEND,
        Capability.SIGNAL,
        Capability.ALTER,
        Capability.SUBMIT,
        Capability.FORM,
        Capability.NODE_CHECKS,
        Capability.CONNECT,
        Capability.KEEPS_SCRIPTS,
        Capability.LIVE_LOGS,
        Capability.OTHER_LOGS,
        Capability.LIMITS,
        Capability.INSIDE,
        Capability.LIVE_USE,
    }
)


def embedded_backend(program: Sequence[str], *, ended_seconds: int = 0) -> Backend:
    """The queue of `program`, the argv before the queue's commands.

    With `ended_seconds` the list of jobs holds what ended within them as well.
    """
    words = tuple(program)
    native, script = partial(_native_query, words), partial(_script_query, words)
    return Backend(
        name="local",
        title="embedded queue",
        capabilities=_CAPABILITIES,
        is_embedded=True,
        probe=ProbePart(
            query=lambda: Query((*words, "probe"), partial(_read_probe, program=words))
        ),
        queue=QueuePart(
            jobs=partial(_jobs_query, words, ended_seconds),
            nodes=lambda: Query((*words, "nodes"), read_table(schema.NODES)),
            queues=lambda: Query((*words, "queues"), read_table(schema.QUEUES)),
            lists_ended=not ended_seconds,
        ),
        reasons=ReasonsPart(hint=_hint, never_starts=_never_starts, policy=_policy_reason),
        history=HistoryPart(
            jobs=partial(_history_query, words), runs=partial(_runs_query, words), native=native
        ),
        detail=DetailPart(
            native=native,
            usage=partial(_usage_query, words),
            shell=partial(_shell, words),
            requeue_refusal=_requeue_refusal,
            task_refusal=_requeue_refusal,
            variables=_variables,
        ),
        inside=InsidePart(step=partial(_inside_step, words)),
        logs=LogsPart(others=rank_logs_query),
        scripts=ScriptsPart(
            writer=_writer,
            reader=_reader,
            explain=_explain,
            query=script,
            history_query=script,
            cron_parts=_cron_parts,
        ),
        policy=PolicyPart(limits=partial(_limits_query, words)),
        actions=ActionsPart(commands=partial(_action_commands, words), alterable=ALTERABLE),
        submit=SubmitPart(
            submission=partial(_submission, words),
            resubmission=partial(_resubmission, words),
            new_limits=frozenset({"time_seconds"}),
        ),
    )


def _jobs_query(
    program: tuple[str, ...], ended_seconds: int, scope: JobScope
) -> Query[ParsedTable]:
    # All jobs here are one's own.
    ended = (f"--ended={ended_seconds}",) if ended_seconds else ("--ended",) if scope.ended else ()
    job_ids = () if scope.ended and scope.user is not None else scope.job_ids
    return Query((*program, "jobs", *ended, *map(typed.job_id, job_ids)), read_jobs)


def _history_query(
    program: tuple[str, ...], user: str | None, since_seconds: int, job_ids: Sequence[str] = ()
) -> Query[ParsedTable]:
    words = tuple(map(typed.job_id, job_ids)) or ("--since", str(since_seconds))
    return Query((*program, "history", *words), read_jobs)


def _runs_query(
    program: tuple[str, ...], user: str | None, since: int, until: int, now: int
) -> Query[ParsedTable]:
    return Query((*program, "history", "--since", str(max(0, now - since))), read_runs)


def _native_query(program: tuple[str, ...], job_id: str) -> Query[Mapping[str, str]]:
    return Query((*program, "show", typed.job_id(job_id)), read_native)


def _script_query(program: tuple[str, ...], job_id: str) -> Query[Script]:
    return Query((*program, "script", typed.job_id(job_id)), _read_script)


def _usage_query(program: tuple[str, ...], row: Mapping[str, Any]) -> Query[Usage] | None:
    if row["state"] not in ACTIVE and row["state"] not in ENDED:
        return None
    return Query((*program, "usage", str(row["id"])), partial(_read_usage, row=row))


def _resubmission(
    program: tuple[str, ...],
    detail: JobDetail,
    past: Mapping[str, str],
    script: Script,
    tasks: ArrayTasks | None,
    mark: str,
    limits: NewLimits,
) -> SubmitCommand:
    from hpcdash.backends.embedded.submit import resubmission

    return resubmission(program, detail, tasks, mark, limits)


def _submission(program: tuple[str, ...], wanted: Submission) -> SubmitCommand:
    from hpcdash.backends.embedded.submit import submission

    return submission(program, wanted)


def _action_commands(program: tuple[str, ...], request: ActionRequest) -> tuple[ActionCommand, ...]:
    from hpcdash.backends.embedded.actions import action_commands

    return action_commands(program, request)


def _hint(state: str, reason: str | None) -> str:
    return _HINTS.get(reason or "", "")


def _limits_query(program: tuple[str, ...], user: str, cluster: str = "") -> Query[ParsedTable]:
    return Query((*program, "nodes"), _read_slots)


def _read_slots(answer: Answer) -> ParsedTable:
    """What the queue gives all of its jobs together: this machine's slots."""
    nodes = read_table(schema.NODES)(answer).table.to_pylist()
    rows = [
        {
            "scope": "queue",
            "name": node["name"],
            "per": "all",
            "resource": unit,
            "maximum": node[unit],
            "used": node[f"{unit}_used"],
            "free": None
            if node[f"{unit}_used"] is None
            else max(0, node[unit] - node[f"{unit}_used"]),
            "queues": node["queues"],
            "native": f"slots.json: {unit}",
            "_id": f"{node['name']}/{unit}",
        }
        for node in nodes
        for unit in ("cpus", "gpus")
        if node[unit]
    ]
    return ParsedTable(pa.Table.from_pylist(rows, schema.LIMITS))


def _policy_reason(state: str, reason: str | None) -> PolicyReason | None:
    return PolicyReason("limits", per="all") if reason == "Resources" and state in WAITING else None


def _requeue_refusal(native: Mapping[str, str]) -> str:
    return "it was submitted with --no-requeue" if native.get("Requeue") == "no" else ""


# It takes the scripts of both, reads Slurm's directives, and sets the variables of both.
def _writer() -> ScriptWriter:
    from hpcdash.backends.slurm import script

    return script


def _reader() -> ScriptReader:
    from hpcdash.backends.embedded import lint

    return lint


def _explain(line: str) -> str:
    from hpcdash.backends.pbs import explain as pbs
    from hpcdash.backends.slurm import explain as slurm

    return slurm.explain(line) or pbs.explain(line)


def _never_starts(state: str, reason: str | None) -> str:
    from hpcdash.backends.slurm.reasons import never_starts

    return never_starts(state, reason)


def _variables(row: Mapping[str, Any]) -> Mapping[str, str | None]:
    from hpcdash.backends.pbs import detail as pbs
    from hpcdash.backends.slurm import detail as slurm

    return {**slurm.job_variables(row), **pbs.job_variables(row)}


def _inside_step(
    program: tuple[str, ...], row: Mapping[str, Any], command: InsideCommand
) -> InsideStep:
    from hpcdash.backends.embedded.inside import inside_step

    return inside_step(program, row, command)


def _shell(program: tuple[str, ...], row: Mapping[str, Any], request: ShellRequest) -> ShellCommand:
    from hpcdash.backends.shell import ShellCommand, in_job

    # The job's variables stand as they are.
    inside = in_job(str(row["work_dir"] or ""), request, is_login=False)
    return ShellCommand((*program, "shell", str(row["id"]), *inside))


def _cron_parts(job: CronJob) -> CronParts:
    from hpcdash.backends.embedded.cron import cron_parts

    return cron_parts(job)


def _read_probe(answer: Answer, *, program: tuple[str, ...]) -> Probe:
    def made(found: Mapping[str, Any]) -> Probe:
        return Probe(
            user=str(found["user"]),
            version=str(found["version"]),
            cluster=str(found["node"]),
            clock_epoch_seconds=float(found["now"]),
            has_accounting=True,
            controller_answers=True,
            commands={"queue": " ".join(program)},
        )

    return read_object(answer, made)


def _read_script(answer: Answer) -> Script:
    require_success(answer)
    return Script(answer.stdout.decode("utf-8", "surrogateescape"), "the embedded queue")


def _read_usage(answer: Answer, *, row: Mapping[str, Any]) -> Usage:
    def made(found: Mapping[str, Any]) -> Usage:
        return Usage(
            cpu_seconds=found["cpu_seconds"],
            cpus=row["cpus"],
            elapsed_seconds=row["elapsed_seconds"],
            memory_peak_bytes=found["memory_peak_bytes"] or None,
            memory_asked_bytes=row["memory_bytes"],
            gpus=row["gpus"],
        )

    return read_object(answer, made)
