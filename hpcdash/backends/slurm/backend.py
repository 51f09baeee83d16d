"""Slurm as hpcdash's backend interface: names the pieces, holds no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcdash.backends.actions import ALTERABLE, ActionCommand, ActionRequest, Verb
from hpcdash.backends.base import Capability, LocalConfiguration, Probe, ScriptReader, ScriptWriter
from hpcdash.backends.job_detail import JobDetail, LogFiles, Script, Usage
from hpcdash.backends.queries import JobScope, ParsedOffers, ParsedTable, Query
from hpcdash.backends.slurm import (
    accounts,
    actions,
    detail,
    explain,
    history,
    jobs,
    log_files,
    nodes,
    policy,
    probe,
    queues,
    reasons,
    start_estimate,
    submit,
    usage,
)
from hpcdash.backends.submissions import Handover, StartEstimate, Submission
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.offers import AccountOffer, QosOffer

if TYPE_CHECKING:
    from hpcdash.backends.script.cron import CronJob, CronParts
    from hpcdash.backends.stacks import Stacks


class SlurmBackend:
    """Implements hpcdash.backends.base.Backend for Slurm 20.11 and later; measured on 22.05."""

    name = "slurm"
    title = "Slurm"
    capabilities = frozenset(Capability)
    alterable = ALTERABLE
    whole_array_verbs: frozenset[Verb] = frozenset()
    has_whole_ids = True
    keeps_ended = False
    is_settled = True
    delegated_commands = ("sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
    usual_folder = "/usr/bin"

    @property
    def script_writer(self) -> ScriptWriter:
        from hpcdash.backends.slurm import script

        return script

    @property
    def script_reader(self) -> ScriptReader:
        from hpcdash.backends.slurm import lint

        return lint

    def settled(self, probe: Probe) -> SlurmBackend:
        return self

    @property
    def local_configuration(self) -> LocalConfiguration:
        return probe.LOCAL_CONFIGURATION

    def probe_query(self) -> Query[Probe]:
        return probe.probe_query()

    def jobs_query(self, scope: JobScope) -> Query[ParsedTable]:
        return jobs.jobs_query(scope)

    def nodes_query(self) -> Query[ParsedTable]:
        return nodes.nodes_query()

    def down_hosts_query(self, hosts: Sequence[str]) -> None:
        return None

    def queues_query(self) -> Query[ParsedTable]:
        return queues.queues_query()

    def history_query(self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()) -> Query[ParsedTable]:
        return history.history_query(user, since_seconds, job_ids)

    def native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return detail.native_query(job_id)

    def history_native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return history.history_native_query(job_id)

    def requeue_refusal(self, native: Mapping[str, str]) -> str:
        return detail.requeue_refusal(native)

    def job_detail(self, row: pa.Table, native: Mapping[str, str]) -> JobDetail:
        return detail.job_detail(row, native)

    def reason_hint(self, state: str, reason: str | None) -> str:
        return reasons.reason_hint(state, reason)

    def log_files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        return log_files.log_files(detail, script)

    def needs_script_for_logs(self, detail: JobDetail) -> bool:
        return log_files.needs_script(detail)

    def script_query(self, job_id: str) -> Query[Script]:
        return detail.script_query(job_id)

    def history_script_query(self, job_id: str) -> Query[Script]:
        return detail.history_script_query(job_id)

    def submitted_file(self, detail: JobDetail) -> str | None:
        return log_files.submitted_file(detail)

    def explain_directive(self, line: str) -> str:
        return explain.explain(line)

    def usage_query(self, row: Mapping[str, Any]) -> Query[Usage] | None:
        return usage.usage_query(row)

    def stacks_query(self, row: Mapping[str, Any]) -> Query[Stacks]:
        from hpcdash.backends.slurm import stacks

        return stacks.stacks_query(row)

    def priority_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return policy.priority_query(job_id)

    def qos_query(self, qos: str) -> Query[Mapping[str, str]]:
        return policy.qos_query(qos)

    def queue_rules_query(self, queue: str) -> Query[Mapping[str, str]]:
        return policy.queue_rules_query(queue)

    def queue_limits_query(self) -> None:
        return None

    def preemption_query(self, queue: str) -> Query[Mapping[str, str]]:
        return policy.preemption_query(queue)

    def action_commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        return actions.action_commands(request)

    def resubmission(
        self, detail: JobDetail, past: Mapping[str, str], script: Script, tasks: ArrayTasks | None, mark: str
    ) -> Handover:
        return submit.resubmission(detail, past, script, tasks, mark)

    def array_refusal_query(self, wanted: Submission) -> Query[str] | None:
        return submit.array_refusal_query(wanted)

    def submission(self, wanted: Submission) -> Handover:
        return submit.submission(wanted)

    def associations_query(self, user: str, cluster: str = "") -> Query[ParsedOffers[AccountOffer]]:
        return accounts.associations_query(user, cluster)

    def qos_offers_query(self) -> Query[ParsedOffers[QosOffer]]:
        return accounts.qos_offers_query()

    def start_estimate_query(self, wanted: Submission) -> Query[StartEstimate]:
        return start_estimate.start_estimate_query(wanted)

    @property
    def no_history(self) -> str:
        return "not kept here: how jobs ended is known for some minutes only (MinJobAge of the site)"

    def never_starts(self, state: str, reason: str | None) -> str:
        return reasons.never_starts(state, reason)

    def job_variables(self, row: Mapping[str, Any]) -> Mapping[str, str | None]:
        return detail.job_variables(row)

    def cron_parts(self, job: CronJob) -> CronParts:
        from hpcdash.backends.slurm.cron import cron_parts

        return cron_parts(job)


BACKEND = SlurmBackend()
