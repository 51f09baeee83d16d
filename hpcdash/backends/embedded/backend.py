"""The embedded queue as a backend, whose commands are those of hpcdash's own program."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcdash.backends.actions import ALTERABLE, ActionCommand, ActionRequest
from hpcdash.backends.base import (
    BATCH_CAPABILITIES,
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
from hpcdash.backends.job_detail import JobDetail, LogFiles, OtherLog, Script, Usage
from hpcdash.backends.queries import Answer, JobScope, ParsedTable, Query
from hpcdash.backends.rank_logs import rank_logs_query
from hpcdash.backends.submissions import AS_IT_WAS, Copy, NewLimits, Submission, SubmitCommand
from hpcdash.domain import schema
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.states import ACTIVE, ENDED, WAITING
from hpcdash.shell_files import shell_text

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.script.cron import CronJob
    from hpcdash.backends.shell import ShellCommand, ShellRequest
    from hpcdash.domain.scripts import ScriptBlock

# The scheduler whose directives its scripts have.
SCRIPTS_OF = "slurm"
_HINTS = {
    "Resources": "the next to start, once enough CPU or GPU slots are free",
    "Priority": "jobs submitted earlier go first",
    "JobHeldUser": "held by its owner until released",
    "Dependency": "waits for a job it depends on",
    "DependencyNeverSatisfied": "a dependency can no longer be met: cancel or resubmit the job",
    "BeginTime": "waiting for its start time",
    "JobArrayTaskLimit": "the array's limit on running tasks is reached",
    "NonZeroExitCode": "exited with an error status",
    "TimeLimit": "hit its time limit",
    "more than this machine has": "requests more than this machine has and will never start",
}


_CAPABILITIES = BATCH_CAPABILITIES | {
    Capability.KEEPS_SCRIPTS,
    Capability.LIVE_LOGS,
    Capability.OTHER_LOGS,
}


def embedded_backend(program: Sequence[str], *, ended_seconds: int = 0) -> Backend:
    """Return the backend of a queue; `program` is the argv before the queue's commands.

    With `ended_seconds`, the list of jobs includes jobs that ended within this time.
    """
    parts = tuple(program)
    return Backend(
        name="local",
        title="embedded queue",
        capabilities=_CAPABILITIES,
        is_embedded=True,
        probe=EmbeddedProbe(parts),
        queue=EmbeddedQueue(parts, ended_seconds),
        reasons=EmbeddedReasons(),
        history=EmbeddedHistory(parts),
        detail=EmbeddedDetail(parts),
        inside=EmbeddedInside(parts),
        logs=EmbeddedLogs(),
        scripts=EmbeddedScripts(parts),
        policy=EmbeddedPolicy(parts),
        actions=EmbeddedActions(parts),
        submit=EmbeddedSubmit(parts),
    )


class EmbeddedProbe(typed.ProgramPart, ProbePart):
    """Detects the queue's program, which always exists."""

    def query(self) -> Query[Probe]:
        return Query((*self.argv, "probe"), partial(_read_probe, program=self.argv))


class EmbeddedQueue(typed.ProgramPart, QueuePart):
    """The queue as its program prints it."""

    def __init__(self, program: tuple[str, ...], ended_seconds: int) -> None:
        super().__init__(program)
        self.lists_ended = not ended_seconds
        self._ended_seconds = ended_seconds

    def jobs(self, scope: JobScope) -> Query[ParsedTable]:
        # All jobs of the queue are the user's own.
        ended = ("--ended",) if scope.ended else ()
        if self._ended_seconds:
            ended = (f"--ended={self._ended_seconds}",)
        job_ids = () if scope.ended and scope.user is not None else scope.job_ids
        return Query((*self.argv, "jobs", *ended, *map(typed.job_id, job_ids)), read_jobs)

    def nodes(self) -> Query[ParsedTable]:
        return Query((*self.argv, "nodes"), read_table(schema.NODES))

    def queues(self) -> Query[ParsedTable]:
        return Query((*self.argv, "queues"), read_table(schema.QUEUES))


class EmbeddedHistory(typed.ProgramPart, HistoryPart):
    """Finished jobs."""

    def jobs(
        self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()
    ) -> Query[ParsedTable]:
        parts = tuple(map(typed.job_id, job_ids)) or ("--since", str(since_seconds))
        return Query((*self.argv, "history", *parts), read_jobs)

    def runs(self, user: str | None, since: int, until: int, now: int) -> Query[ParsedTable]:
        return Query((*self.argv, "history", "--since", str(max(0, now - since))), read_runs)

    def native(self, job_id: str) -> Query[Mapping[str, str]]:
        return EmbeddedDetail(self.argv).native(job_id)


class EmbeddedDetail(typed.ProgramPart, DetailPart):
    """A job as the queue's program reports it."""

    holds_requeued = True

    def native(self, job_id: str) -> Query[Mapping[str, str]]:
        return Query((*self.argv, "show", typed.job_id(job_id)), read_native)

    def usage(self, row: Mapping[str, Any]) -> Query[Usage] | None:
        if row["state"] not in ACTIVE and row["state"] not in ENDED:
            return None
        return Query((*self.argv, "usage", str(row["id"])), partial(_read_usage, row=row))

    def shell(self, row: Mapping[str, Any], request: ShellRequest) -> ShellCommand:
        from hpcdash.backends.shell import ShellCommand, in_job

        # A login shell would change the job's variables.
        inside = in_job(str(row["work_dir"] or ""), request, is_login=False)
        return ShellCommand((*self.argv, "shell", str(row["id"]), *inside))

    def requeue_refusal(self, native: Mapping[str, str]) -> str:
        return "submitted with --no-requeue" if native.get("Requeue") == "no" else ""

    def variables(self, row: Mapping[str, Any]) -> Mapping[str, str | None]:
        from hpcdash.backends.pbs import detail as pbs
        from hpcdash.backends.slurm import detail as slurm

        return {**slurm.job_variables(row), **pbs.job_variables(row)}


class EmbeddedScripts(typed.ProgramPart, ScriptsPart):
    """Scripts for Slurm and for PBS, with the variables of both."""

    def writer(self) -> ScriptWriter:
        from hpcdash.backends.slurm import script

        return script

    def reader(self) -> ScriptReader:
        from hpcdash.backends.embedded import lint

        return lint

    def explain(self, line: str) -> str:
        from hpcdash.backends.pbs import explain as pbs
        from hpcdash.backends.slurm import explain as slurm

        return slurm.explain(line) or pbs.explain(line)

    def blocks(self) -> tuple[ScriptBlock, ...]:
        from hpcdash.backends.pbs import blocks as pbs
        from hpcdash.backends.slurm import blocks as slurm

        return (*slurm.script_blocks(), *pbs.script_blocks())

    def query(self, job_id: str) -> Query[Script]:
        return Query((*self.argv, "script", typed.job_id(job_id)), _read_script)

    history_query = query

    def cron_script(self, job: CronJob) -> str:
        from hpcdash.backends.slurm.script import cron_script

        # `job.program` is the argv before the queue's commands.
        python = shlex.quote(job.program[0])
        program = shlex.join(job.program)
        queue = f'\npython={python}\nqueue() {{ {program} "$@"; }}\n'
        return cron_script(job, queue + shell_text("backends/embedded/cron.sh"))


class EmbeddedPolicy(typed.ProgramPart, PolicyPart):
    """This machine's slots, which are the only limit."""

    def limits(self, user: str, cluster: str) -> Query[ParsedTable]:
        return Query((*self.argv, "nodes"), _read_slots)


def _read_slots(answer: Answer) -> ParsedTable:
    """Read this machine's slots, which all jobs of the queue share."""
    rows = []
    for node in read_table(schema.NODES)(answer).table.to_pylist():
        for unit in ("cpus", "gpus"):
            maximum = node[unit]
            used = node[f"{unit}_used"]
            if not maximum:
                continue
            row = {
                "scope": "queue",
                "name": node["name"],
                "per": "all",
                "resource": unit,
                "maximum": maximum,
                "used": used,
                "free": None if used is None else max(0, maximum - used),
                "queues": node["queues"],
                "native": f"slots.json: {unit}",
                "_id": f"{node['name']}/{unit}",
            }
            rows.append(row)
    return ParsedTable(pa.Table.from_pylist(rows, schema.LIMITS))


class EmbeddedInside(typed.ProgramPart, InsidePart):
    """Commands in a job's environment."""

    def step(self, row: Mapping[str, Any], command: InsideCommand) -> InsideStep:
        from hpcdash.backends.embedded.inside import inside_step

        return inside_step(self.argv, row, command)


class EmbeddedActions(typed.ProgramPart, ActionsPart):
    """Actions by the queue's program."""

    alterable = ALTERABLE

    def commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        from hpcdash.backends.embedded.actions import action_commands

        return action_commands(self.argv, request)


class EmbeddedSubmit(typed.ProgramPart, SubmitPart):
    """Submission by the queue's program."""

    new_limits = frozenset({"time_seconds"})

    def submission(self, submission: Submission) -> SubmitCommand:
        from hpcdash.backends.embedded import submit

        return submit.submission(self.argv, submission)

    def resubmission(
        self,
        detail: JobDetail,
        past: Mapping[str, str],
        script: Script,
        tasks: ArrayTasks | None,
        mark: str,
        limits: NewLimits = AS_IT_WAS,
        copy: Copy | None = None,
    ) -> SubmitCommand:
        from hpcdash.backends.embedded import submit

        return submit.resubmission(self.argv, detail, tasks, mark, limits)


class EmbeddedLogs(LogsPart):
    """Logs at the paths in the jobs' rows, and those of their ranks."""

    def others(self, detail: JobDetail, files: LogFiles) -> Query[tuple[OtherLog, ...]] | None:
        return rank_logs_query(detail, files)


def _read_probe(answer: Answer, *, program: tuple[str, ...]) -> Probe:
    def build(found: Mapping[str, Any]) -> Probe:
        return Probe(
            user=str(found["user"]),
            version=str(found["version"]),
            cluster=str(found["node"]),
            clock_epoch_seconds=float(found["now"]),
            has_accounting=True,
            controller_answers=True,
            commands={"queue": " ".join(program)},
        )

    return read_object(answer, build)


def _read_script(answer: Answer) -> Script:
    require_success(answer)
    return Script(answer.stdout.decode("utf-8", "surrogateescape"), "the embedded queue")


def _read_usage(answer: Answer, *, row: Mapping[str, Any]) -> Usage:
    def build(found: Mapping[str, Any]) -> Usage:
        return Usage(
            cpu_seconds=found["cpu_seconds"],
            cpus=row["cpus"],
            elapsed_seconds=row["elapsed_seconds"],
            memory_peak_bytes=found["memory_peak_bytes"] or None,
            requested_memory_bytes=row["memory_bytes"],
            gpus=row["gpus"],
        )

    return read_object(answer, build)


class EmbeddedReasons(ReasonsPart):
    """The embedded queue's reasons, by Slurm's names."""

    def hint(self, state: str, reason: str | None) -> str:
        return _HINTS.get(reason or "", "")

    def short(self, row: Mapping[str, Any]) -> str:
        from hpcdash.backends.slurm.reasons import SlurmReasons

        return SlurmReasons().short(row)

    def never_starts(self, state: str, reason: str | None) -> str:
        from hpcdash.backends.slurm.reasons import SlurmReasons

        return SlurmReasons().never_starts(state, reason)

    def policy(self, state: str, reason: str | None) -> PolicyReason | None:
        if reason == "Resources" and state in WAITING:
            return PolicyReason("limits", per="all")
        return None
