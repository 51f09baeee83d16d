"""Slurm as a backend, 20.11 and later; measured on 22.05."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdash.backends.actions import ALTERABLE
from hpcdash.backends.base import (
    ActionsPart,
    Backend,
    Capability,
    DetailPart,
    HistoryPart,
    InsidePart,
    LogsPart,
    PolicyPart,
    Probe,
    ProbePart,
    QueuePart,
    ReasonsPart,
    ScriptReader,
    ScriptsPart,
    ScriptWriter,
    SubmitPart,
)
from hpcdash.backends.queries import ParsedTable, Query
from hpcdash.backends.rank_logs import rank_logs_query
from hpcdash.backends.slurm import (
    accounts,
    actions,
    detail,
    history,
    jobs,
    log_files,
    nodes,
    policy,
    probe,
    queues,
    reasons,
    submit,
    usage,
)

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.script.cron import CronJob, CronParts
    from hpcdash.backends.shell import ShellCommand, ShellRequest


# What few commands need is imported by those.
def _writer() -> ScriptWriter:
    from hpcdash.backends.slurm import script

    return script


def _reader() -> ScriptReader:
    from hpcdash.backends.slurm import lint

    return lint


def _explain(line: str) -> str:
    from hpcdash.backends.slurm.explain import explain

    return explain(line)


def _inside_step(row: Mapping[str, Any], command: InsideCommand) -> InsideStep:
    from hpcdash.backends.slurm.inside import inside_step

    return inside_step(row, command)


def _shares(user: str) -> Query[ParsedTable]:
    from hpcdash.backends.slurm.shares import shares_query

    return shares_query(user)


def _limits(user: str, cluster: str) -> Query[ParsedTable]:
    from hpcdash.backends.slurm.limits import limits_query

    return limits_query(user, cluster)


def _reservations(user: str) -> Query[ParsedTable]:
    from hpcdash.backends.slurm.reservations import reservations_query

    return reservations_query(user)


def _runs(counts_gpus: bool, user: str | None, since: int, until: int, now: int) -> Query[ParsedTable]:
    from hpcdash.backends.slurm.runs import runs_query

    return runs_query(user, since, until, counts_gpus=counts_gpus)


def _runs_at(counts_gpus: bool, user: str | None, at: int) -> Query[ParsedTable]:
    from hpcdash.backends.slurm.runs import runs_at_query

    return runs_at_query(user, at, counts_gpus=counts_gpus)


def _steps(row: Mapping[str, Any]) -> Query[ParsedTable] | None:
    from hpcdash.backends.slurm.steps import steps_query

    return steps_query(row)


def _shell(row: Mapping[str, Any], request: ShellRequest) -> ShellCommand:
    from hpcdash.backends.slurm.shell import shell_command

    return shell_command(row, request)


def _cron_parts(job: CronJob) -> CronParts:
    from hpcdash.backends.slurm.cron import cron_parts

    return cron_parts(job)


def slurm_backend(found: Probe | None = None) -> Backend:
    """Slurm on a site; None: the probe has yet to find it out, until when its TRES are taken to count GPUs."""
    counts_gpus = found is None or found.counts_gpus is not False
    return Backend(
        name="slurm",
        title="Slurm",
        capabilities=frozenset(Capability) - {Capability.DELETE, Capability.WORKERS},
        probe=ProbePart(
            query=probe.probe_query,
            of_dialect=slurm_backend if found is None else None,
            usual_folder="/usr/bin",
            delegated_commands=("sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"),
        ),
        queue=QueuePart(
            jobs=partial(jobs.jobs_query, counts_gpus=counts_gpus),
            nodes=nodes.nodes_query,
            queues=queues.queues_query,
            lists_ended=True,
        ),
        reasons=ReasonsPart(hint=reasons.reason_hint, never_starts=reasons.never_starts, policy=reasons.policy_reason),
        history=HistoryPart(
            jobs=partial(history.history_query, counts_gpus=counts_gpus),
            runs=partial(_runs, counts_gpus),
            runs_at=partial(_runs_at, counts_gpus),
            is_sliced=True,
            native=history.history_native_query,
            scope=history.scope_query,
            no_history="not kept here: how jobs ended is known for some minutes only (MinJobAge of the site)",
        ),
        detail=DetailPart(
            native=detail.native_query,
            join=detail.job_detail,
            usage=usage.usage_query,
            steps=_steps,
            shell=_shell,
            priority=policy.priority_query,
            requeue_refusal=detail.requeue_refusal,
            task_refusal=detail.task_refusal,
            submit_line=detail.submit_line,
            variables=detail.job_variables,
        ),
        inside=InsidePart(step=_inside_step),
        logs=LogsPart(files=log_files.log_files, needs_script=log_files.needs_script, others=rank_logs_query),
        scripts=ScriptsPart(
            writer=_writer,
            reader=_reader,
            explain=_explain,
            query=detail.script_query,
            history_query=detail.history_script_query,
            submitted_file=log_files.submitted_file,
            cron_parts=_cron_parts,
        ),
        policy=PolicyPart(
            qos=policy.qos_query,
            queue_rules=policy.queue_rules_query,
            preemption=policy.preemption_query,
            associations=accounts.associations_query,
            qos_offers=accounts.qos_offers_query,
            shares=_shares,
            limits=_limits,
            reservations=_reservations,
        ),
        actions=ActionsPart(commands=actions.action_commands, alterable=ALTERABLE),
        submit=SubmitPart(
            program="sbatch",
            submission=submit.submission,
            resubmission=submit.resubmission,
            new_limits=frozenset({"time_seconds", "memory_bytes"}),
            array_refusal=submit.array_refusal_query,
            start_estimate=submit.start_estimate_query,
            start_again_estimate=submit.start_again_estimate_query,
        ),
    )


BACKEND = slurm_backend()
