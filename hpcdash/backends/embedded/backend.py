"""The embedded queue behind the backend interface: names its commands, holds no state, runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcdash.backends.actions import ALTERABLE, ActionCommand, ActionRequest, Verb
from hpcdash.backends.base import Capability, Probe, ScriptReader, ScriptWriter
from hpcdash.backends.embedded import actions, submit, typed
from hpcdash.backends.embedded.answers import read_jobs, read_native, read_object, read_table, require_success
from hpcdash.backends.job_detail import JobDetail, LogFiles, Script, Usage
from hpcdash.backends.queries import Answer, JobScope, ParsedTable, Query
from hpcdash.backends.submissions import Handover, Submission
from hpcdash.domain import schema
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.states import ACTIVE, ENDED

if TYPE_CHECKING:
    from hpcdash.backends.script.cron import CronJob, CronParts
    from hpcdash.backends.stacks import Stacks

_HINTS = {
    "Resources": "the next to start, once enough CPU or GPU slots are free",
    "Priority": "jobs submitted earlier go first",
    "JobHeldUser": "held; h releases it",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "what it waits for can never happen any more: cancel it, or submit it again",
    "BeginTime": "starts no earlier than the time it was given",
    "JobArrayTaskLimit": "as many tasks of this array run as its throttle allows",
    "NonZeroExitCode": "its script ended with an error",
    "TimeLimit": "ran into its time limit",
    "more than this machine has": "it asks for more than this machine has, and never starts",
}


class EmbeddedBackend:
    """Implements hpcdash.backends.base.Backend; `program` is the argv before the queue's commands.

    With `ended_seconds` the list of jobs holds what ended within them as well.
    """

    name = "local"
    title = "embedded queue"
    capabilities = frozenset(Capability) - {Capability.EXPECTED_START}
    alterable = ALTERABLE
    whole_array_verbs: frozenset[Verb] = frozenset()
    has_whole_ids = True
    keeps_ended = False
    # It reads Slurm's directives.
    scripts_of = "slurm"
    delegated_commands = ()
    usual_folder = ""
    local_configuration = None
    is_settled = True

    def __init__(self, program: Sequence[str], *, ended_seconds: int = 0) -> None:
        self._program = tuple(program)
        self._ended = (f"--ended={ended_seconds}",) if ended_seconds else ()

    @property
    def script_writer(self) -> ScriptWriter:
        from hpcdash.backends.slurm import script

        return script

    @property
    def script_reader(self) -> ScriptReader:
        from hpcdash.backends.slurm import lint

        return lint

    def settled(self, probe: Probe) -> EmbeddedBackend:
        return self

    def _ask(self, *words: str) -> tuple[str, ...]:
        return (*self._program, *words)

    def probe_query(self) -> Query[Probe]:
        return Query(self._ask("probe"), partial(_probe, program=self._program))

    def jobs_query(self, scope: JobScope) -> Query[ParsedTable]:
        # All jobs here are one's own.
        ended = self._ended or (("--ended",) if scope.ended else ())
        job_ids = () if scope.ended and scope.user is not None else scope.job_ids
        return Query(self._ask("jobs", *ended, *map(typed.job_id, job_ids)), read_jobs)

    def nodes_query(self) -> Query[ParsedTable]:
        return Query(self._ask("nodes"), read_table(schema.NODES))

    def down_hosts_query(self, hosts: Sequence[str]) -> None:
        return None

    def queues_query(self) -> Query[ParsedTable]:
        return Query(self._ask("queues"), read_table(schema.QUEUES))

    def history_query(self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()) -> Query[ParsedTable]:
        words = tuple(map(typed.job_id, job_ids)) or ("--since", str(since_seconds))
        return Query(self._ask("history", *words), read_jobs)

    def native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return Query(self._ask("show", typed.job_id(job_id)), read_native)

    def history_native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return self.native_query(job_id)

    def requeue_refusal(self, native: Mapping[str, str]) -> str:
        return "it was submitted with --no-requeue" if native.get("Requeue") == "no" else ""

    def job_detail(self, row: pa.Table, native: Mapping[str, str]) -> JobDetail:
        return JobDetail(row, native)

    def reason_hint(self, state: str, reason: str | None) -> str:
        return _HINTS.get(reason or "", "")

    def log_files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        row = detail.job.to_pylist()[0]
        stdout, stderr = row["stdout_path"], row["stderr_path"]
        return LogFiles(stdout, None if stderr == stdout else stderr)

    def needs_script_for_logs(self, detail: JobDetail) -> bool:
        return False

    def script_query(self, job_id: str) -> Query[Script]:
        return Query(self._ask("script", typed.job_id(job_id)), _script)

    def history_script_query(self, job_id: str) -> Query[Script]:
        return self.script_query(job_id)

    def submitted_file(self, detail: JobDetail) -> str | None:
        return None

    def explain_directive(self, line: str) -> str:
        from hpcdash.backends.pbs import explain as pbs
        from hpcdash.backends.slurm import explain as slurm

        return slurm.explain(line) or pbs.explain(line)

    def usage_query(self, row: Mapping[str, Any]) -> Query[Usage] | None:
        if row["state"] not in ACTIVE and row["state"] not in ENDED:
            return None
        return Query(self._ask("usage", str(row["id"])), partial(_usage, row=row))

    def stacks_query(self, row: Mapping[str, Any]) -> Query[Stacks]:
        from hpcdash.backends.embedded.stacks import stacks_query

        return stacks_query(self._program, row)

    def priority_query(self, job_id: str) -> None:
        return None

    def qos_query(self, qos: str) -> None:
        return None

    def queue_rules_query(self, queue: str) -> None:
        return None

    def queue_limits_query(self) -> None:
        return None

    def preemption_query(self, queue: str) -> None:
        return None

    def associations_query(self, user: str, cluster: str = "") -> None:
        return None

    def qos_offers_query(self) -> None:
        return None

    def start_estimate_query(self, wanted: Submission) -> None:
        return None

    def array_refusal_query(self, wanted: Submission) -> Query[str] | None:
        return None

    def submission(self, wanted: Submission) -> Handover:
        return submit.submission(self._program, wanted)

    def resubmission(
        self, detail: JobDetail, past: Mapping[str, str], script: Script, tasks: ArrayTasks | None, mark: str
    ) -> Handover:
        return submit.resubmission(self._program, detail, tasks, mark)

    def action_commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        return actions.action_commands(self._program, request)

    @property
    def no_history(self) -> str:
        return "not kept here"

    def never_starts(self, state: str, reason: str | None) -> str:
        from hpcdash.backends.slurm.reasons import never_starts

        return never_starts(state, reason)

    def job_variables(self, row: Mapping[str, Any]) -> Mapping[str, str | None]:
        """It sets the variables of both, since scripts written for either run on it."""
        from hpcdash.backends.pbs import detail as pbs
        from hpcdash.backends.slurm import detail as slurm

        return {**slurm.job_variables(row), **pbs.job_variables(row)}

    def cron_parts(self, job: CronJob) -> CronParts:
        from hpcdash.backends.embedded.cron import cron_parts

        return cron_parts(job)


def _probe(answer: Answer, *, program: tuple[str, ...]) -> Probe:
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


def _script(answer: Answer) -> Script:
    require_success(answer)
    return Script(answer.stdout.decode("utf-8", "surrogateescape"), "the embedded queue")


def _usage(answer: Answer, *, row: Mapping[str, Any]) -> Usage:
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
