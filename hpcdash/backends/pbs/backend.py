"""PBS as hpcdash's backend interface: names the pieces, holds nothing but which kind of PBS it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
from hpcdash.backends.base import Capability, LocalConfiguration, Probe, ScriptReader, ScriptWriter
from hpcdash.backends.job_detail import JobDetail, LogFiles, Script, Usage
from hpcdash.backends.pbs import (
    actions,
    detail,
    explain,
    history,
    jobs,
    log_files,
    nodes,
    probe,
    queues,
    reasons,
    rules,
    submit,
)
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import JobScope, ParsedTable, Query
from hpcdash.backends.submissions import Handover, Submission
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.offers import QueueLimits

if TYPE_CHECKING:
    from hpcdash.backends.script.cron import CronJob, CronParts

_TITLES = {
    Dialect.OPENPBS: "PBS",
    Dialect.PBS_TEXT: "PBS",
    Dialect.TORQUE: "Torque",
    Dialect.SLURM_WRAPPERS: "Slurm by Torque's commands",
}
_ALL = frozenset(Capability) - {Capability.KEEPS_SCRIPTS}
# Slurm's wrappers have no qsig and no history, know neither paths nor starts to come, and change nothing of a job.
_NOT_WRAPPED = frozenset(
    {
        Capability.ALTER,
        Capability.EXPECTED_START,
        Capability.HISTORY,
        Capability.LIVE_LOGS,
        Capability.LOGS,
        Capability.SIGNAL,
        Capability.SUSPEND,
    }
)


class PbsBackend:
    """Implements hpcdash.backends.base.Backend; `dialect` None: the probe has yet to find it out.

    Measured on OpenPBS 23.06.
    """

    name = "pbs"
    delegated_commands = ("qsub", "qstat", "qdel", "pbsnodes")
    usual_folder = "/opt/pbs/bin"

    def __init__(self, dialect: Dialect | None = None) -> None:
        self.is_settled = dialect is not None
        self._dialect = dialect or Dialect.OPENPBS
        self.has_whole_ids = not self._dialect.has_array_brackets
        self.keeps_ended = self._dialect in (Dialect.OPENPBS, Dialect.PBS_TEXT)

    @property
    def title(self) -> str:
        return _TITLES[self._dialect]

    @property
    def capabilities(self) -> frozenset[Capability]:
        if self._dialect is Dialect.SLURM_WRAPPERS:
            return _ALL - _NOT_WRAPPED
        # qsub's -k takes no d before 18.1, nor does Torque's.
        return _ALL if self._dialect is Dialect.OPENPBS else _ALL - {Capability.LIVE_LOGS}

    @property
    def alterable(self) -> tuple[str, ...]:
        return actions.alterable(self._dialect)

    @property
    def whole_array_verbs(self) -> frozenset[Verb]:
        return actions.whole_array_verbs(self._dialect)

    @property
    def script_writer(self) -> ScriptWriter | None:
        if self._dialect is Dialect.SLURM_WRAPPERS:
            from hpcdash.backends.slurm import script as slurm_script

            return slurm_script
        # Torque has no select.
        if self._dialect is Dialect.TORQUE:
            return None
        from hpcdash.backends.pbs import script

        return script

    @property
    def script_reader(self) -> ScriptReader:
        from hpcdash.backends.pbs import lint
        from hpcdash.backends.slurm import lint as slurm_lint

        return slurm_lint if self._dialect is Dialect.SLURM_WRAPPERS else lint

    def settled(self, probe: Probe) -> PbsBackend:
        return PbsBackend(Dialect(probe.dialect))

    @property
    def local_configuration(self) -> LocalConfiguration:
        return probe.LOCAL_CONFIGURATION

    def probe_query(self) -> Query[Probe]:
        return probe.probe_query()

    def jobs_query(self, scope: JobScope) -> Query[ParsedTable]:
        return jobs.jobs_query(self._dialect, scope)

    def nodes_query(self) -> Query[ParsedTable]:
        return nodes.nodes_query(self._dialect)

    def down_hosts_query(self, hosts: Sequence[str]) -> Query[frozenset[str]] | None:
        return nodes.down_hosts_query(self._dialect, hosts)

    def queues_query(self) -> Query[ParsedTable]:
        return queues.queues_query(self._dialect)

    def history_query(self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()) -> Query[ParsedTable]:
        return history.history_query(self._dialect, user, since_seconds, job_ids)

    def native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return detail.native_query(self._dialect, job_id)

    def history_native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return history.history_native_query(self._dialect, job_id)

    def requeue_refusal(self, native: Mapping[str, str]) -> str:
        return "it was submitted with -r n" if native.get("Rerunable") == "False" else ""

    def job_detail(self, row: pa.Table, native: Mapping[str, str]) -> JobDetail:
        return detail.job_detail(self._dialect, row, native)

    def reason_hint(self, state: str, reason: str | None) -> str:
        return reasons.reason_hint(state, reason)

    def log_files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        return log_files.log_files(self._dialect, detail)

    def needs_script_for_logs(self, detail: JobDetail) -> bool:
        return False

    def script_query(self, job_id: str) -> None:
        return None

    def history_script_query(self, job_id: str) -> None:
        return None

    def submitted_file(self, detail: JobDetail) -> str | None:
        return log_files.submitted_file(detail)

    def explain_directive(self, line: str) -> str:
        return explain.explain(line)

    def usage_query(self, row: Mapping[str, Any]) -> Query[Usage] | None:
        return detail.usage_query(self._dialect, row)

    def stacks_query(self, row: Mapping[str, Any]) -> None:
        return None

    def priority_query(self, job_id: str) -> Query[Mapping[str, str]] | None:
        return rules.priority_query(self._dialect, job_id)

    def qos_query(self, qos: str) -> None:
        return None

    def queue_rules_query(self, queue: str) -> Query[Mapping[str, str]] | None:
        return rules.queue_rules_query(self._dialect, queue)

    def queue_limits_query(self) -> Query[Mapping[str, QueueLimits]] | None:
        return rules.queue_limits_query(self._dialect)

    def preemption_query(self, queue: str) -> None:
        return None

    def action_commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        return actions.action_commands(self._dialect, request)

    def resubmission(
        self, detail: JobDetail, past: Mapping[str, str], script: Script, tasks: ArrayTasks | None, mark: str
    ) -> Handover:
        return submit.resubmission(self._dialect, detail, past, script, tasks, mark)

    def array_refusal_query(self, wanted: Submission) -> Query[str] | None:
        return None

    def submission(self, wanted: Submission) -> Handover:
        return submit.submission(self._dialect, wanted)

    def associations_query(self, user: str, cluster: str = "") -> None:
        return None

    def qos_offers_query(self) -> None:
        return None

    def start_estimate_query(self, wanted: Submission) -> None:
        return None

    @property
    def no_history(self) -> str:
        if self._dialect is Dialect.TORQUE:
            return "not kept by Torque: how jobs ended is known for some minutes only (keep_completed of the site)"
        if self._dialect is Dialect.SLURM_WRAPPERS:
            return "not kept here"
        return (
            "not kept here (job_history_enable is off): a job is gone once it ended; how, is known only where it was"
            " seen"
        )

    def never_starts(self, state: str, reason: str | None) -> str:
        from hpcdash.backends.slurm.reasons import never_starts

        words = never_starts(state, reason) if self._dialect is Dialect.SLURM_WRAPPERS else ""
        return words or reasons.never_starts(state, reason)

    def job_variables(self, row: Mapping[str, Any]) -> Mapping[str, str | None]:
        from hpcdash.backends.slurm.detail import job_variables

        ours = detail.job_variables(row)
        return {**job_variables(row), **ours} if self._dialect is Dialect.SLURM_WRAPPERS else ours

    def cron_parts(self, job: CronJob) -> CronParts:
        from hpcdash.backends.pbs.cron import cron_parts

        return cron_parts(job)


BACKEND = PbsBackend()
