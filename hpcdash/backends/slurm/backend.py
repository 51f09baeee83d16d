"""Slurm as a backend, 20.11 and later; measured on 22.05."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from hpcdash.backends.slurm.clusters import (
    NO_OTHERS,
    Clusters,
    action_commands,
    for_job,
    for_row,
    join,
    named_rows,
    plain_detail,
    query_on,
    without_sstat,
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


def _runs(
    counts_gpus: bool, user: str | None, since: int, until: int, now: int
) -> Query[ParsedTable]:
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


def _on_one(clusters: Clusters, build: Callable[..., Query[Any] | None]) -> Callable[..., Any]:
    """`build` for the one cluster that is meant; raises UsageError where there are several."""

    def query(*words: Any) -> Query[Any] | None:
        found = build(*words)
        return found if found is None else query_on(found, clusters.require_one("this"))

    return query


def _each(
    clusters: Clusters, build: Callable[..., Query[ParsedTable]]
) -> Callable[..., Query[ParsedTable]]:
    """`build` for all clusters that reads ask."""
    return lambda *words: (
        named_rows(build(*words), clusters.default)
        if not clusters.several
        else query_on(build(*words), clusters.several)
    )


_CAPABILITIES = frozenset(
    {
        Capability.JOBS,
        Capability.OWNERS,
        Capability.NODES,
        Capability.QUEUES,
        Capability.HISTORY,
        Capability.DETAIL,
        Capability.CHAINS,
        Capability.EXPECTED_START,
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
        Capability.SHARES,
        Capability.LIMITS,
        Capability.RESERVATIONS,
        Capability.INSIDE,
        Capability.LIVE_USE,
    }
)


def slurm_backend(found: Probe | None = None) -> Backend:
    """Slurm on a site; None: the probe has yet to find it out, until when its TRES are taken to
    count GPUs.
    """
    counts_gpus = found is None or found.counts_gpus is not False
    clusters = Clusters(found.clusters, found.cluster) if found else NO_OTHERS
    has_exclusive = found is not None and probe.release(found) >= (26, 5)
    return Backend(
        name="slurm",
        title="Slurm",
        capabilities=_CAPABILITIES,
        probe=ProbePart(
            query=probe.probe_query,
            backend_for=slurm_backend if found is None else None,
            is_optional=True,
            usual_folder="/usr/bin",
            delegated_commands=(
                "sacct",
                "salloc",
                "sbatch",
                "scancel",
                "scontrol",
                "sinfo",
                "squeue",
                "srun",
            ),
        ),
        queue=QueuePart(
            jobs=partial(
                jobs.jobs_query,
                counts_gpus=counts_gpus,
                clusters=clusters,
                has_exclusive=has_exclusive,
            ),
            nodes=partial(nodes.nodes_query, clusters),
            queues=partial(queues.queues_query, clusters),
            lists_ended=True,
        ),
        reasons=ReasonsPart(
            hint=reasons.reason_hint,
            never_starts=reasons.never_starts,
            policy=reasons.policy_reason,
        ),
        history=HistoryPart(
            jobs=partial(history.history_query, counts_gpus=counts_gpus, clusters=clusters),
            runs=_each(clusters, partial(_runs, counts_gpus)),
            runs_at=_each(clusters, partial(_runs_at, counts_gpus)),
            is_sliced=True,
            native=for_job(clusters, history.history_native_query),
            scope=history.scope_query,
            no_history="not kept here: how jobs ended is known for some minutes only (MinJobAge of "
            "the site)",
        ),
        detail=DetailPart(
            native=for_job(clusters, detail.native_query),
            join=join(clusters, detail.job_detail),
            usage=without_sstat(clusters, usage.usage_query),
            steps=without_sstat(clusters, _steps),
            shell=for_row(clusters, _shell),
            priority=for_job(clusters, policy.priority_query),
            requeue_refusal=detail.requeue_refusal,
            task_refusal=detail.task_refusal,
            submit_line=detail.submit_line,
            variables=lambda row: detail.job_variables(
                {**row, "id": clusters.split_cluster(str(row["id"]))[0]}
            ),
        ),
        inside=InsidePart(step=for_row(clusters, _inside_step)),
        logs=LogsPart(
            files=lambda found, script: log_files.log_files(plain_detail(clusters, found), script),
            needs_script=lambda found: log_files.needs_script(plain_detail(clusters, found)),
            others=lambda found, files: rank_logs_query(plain_detail(clusters, found), files),
        ),
        scripts=ScriptsPart(
            writer=_writer,
            reader=_reader,
            explain=_explain,
            query=for_job(clusters, detail.script_query),
            history_query=for_job(clusters, detail.history_script_query),
            submitted_file=log_files.submitted_file,
            cron_parts=_cron_parts,
        ),
        policy=PolicyPart(
            qos=policy.qos_query,
            queue_rules=_on_one(clusters, policy.queue_rules_query),
            preemption=_on_one(clusters, policy.preemption_query),
            associations=accounts.associations_query,
            qos_offers=accounts.qos_offers_query,
            shares=_on_one(clusters, _shares),
            limits=_on_one(clusters, _limits),
            reservations=_on_one(clusters, _reservations),
        ),
        actions=ActionsPart(
            commands=partial(action_commands, clusters, actions.action_commands),
            alterable=ALTERABLE,
        ),
        submit=SubmitPart(
            program="sbatch",
            submission=partial(submit.submission, clusters=clusters),
            resubmission=partial(submit.resubmission_on_cluster, clusters),
            new_limits=frozenset({"time_seconds", "memory_bytes"}),
            log_folders=submit.log_folders,
            array_refusal=_on_one(clusters, submit.array_refusal_query),
            start_estimate=partial(submit.start_estimate_query, clusters=clusters),
            start_again_estimate=partial(submit.start_again_estimate_query, clusters),
        ),
    )


BACKEND = slurm_backend()
