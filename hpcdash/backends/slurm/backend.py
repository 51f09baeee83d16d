"""Slurm as a backend, 20.11 and later; measured on 22.05."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hpcdash.backends.base import (
    Backend,
    Capability,
    DetailPart,
    InsidePart,
    PolicyPart,
    Probe,
    ProbePart,
    ScriptReader,
    ScriptsPart,
    ScriptWriter,
    SubmitPart,
)
from hpcdash.backends.queries import ParsedTable, Query
from hpcdash.backends.slurm import (
    accounts,
    actions,
    detail,
    history,
    jobs,
    log_files,
    policy,
    probe,
    reasons,
    submit,
    usage,
)
from hpcdash.backends.slurm.clusters import (
    NO_OTHERS,
    ClusterPart,
    Clusters,
    asked_on,
    for_job,
    for_row,
    join,
    on_cluster,
    without_sstat,
)

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.script.cron import CronJob, CronParts
    from hpcdash.backends.shell import ShellCommand, ShellRequest


class _Probe(ProbePart):
    is_optional = True
    usual_folder = "/usr/bin"
    delegated_commands = (
        "sacct",
        "salloc",
        "sbatch",
        "scancel",
        "scontrol",
        "sinfo",
        "squeue",
        "srun",
    )

    def __init__(self, *, needs_answer: bool) -> None:
        self.needs_answer = needs_answer

    def query(self) -> Query[Probe]:
        return probe.probe_query()

    def backend(self, found: Probe) -> Backend | None:
        return slurm_backend(found) if self.needs_answer else None


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


class _Inside(ClusterPart, InsidePart):
    def step(self, row: Mapping[str, Any], command: InsideCommand) -> InsideStep:
        from hpcdash.backends.slurm.inside import inside_step

        plain, cluster = self.clusters.plain_row(row)
        step = inside_step(plain, command)
        return replace(step, argv=on_cluster(step.argv, cluster))


def _shares(user: str) -> Query[ParsedTable]:
    from hpcdash.backends.slurm.shares import shares_query

    return shares_query(user)


def _limits(user: str, cluster: str) -> Query[ParsedTable]:
    from hpcdash.backends.slurm.limits import limits_query

    return limits_query(user, cluster)


def _reservations(user: str) -> Query[ParsedTable]:
    from hpcdash.backends.slurm.reservations import reservations_query

    return reservations_query(user)


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
        return found if found is None else asked_on(found, clusters.require_one("this"))

    return query


def slurm_backend(found: Probe | None = None) -> Backend:
    """Slurm on a site; None: the probe has yet to find it out, until when its TRES are taken to
    count GPUs.
    """
    clusters = (
        NO_OTHERS
        if found is None
        else Clusters(
            found.clusters,
            found.cluster,
            counts_gpus=found.counts_gpus is not False,
            has_exclusive=probe.release(found) >= (26, 5),
        )
    )
    return Backend(
        name="slurm",
        title="Slurm",
        capabilities=frozenset(Capability) - {Capability.DELETE, Capability.WORKERS},
        probe=_Probe(needs_answer=found is None),
        queue=jobs.SlurmQueue(clusters),
        reasons=reasons.SlurmReasons(),
        history=history.SlurmHistory(clusters),
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
                {**row, "id": clusters.of_job(str(row["id"]))[0]}
            ),
        ),
        inside=_Inside(clusters),
        logs=log_files.SlurmLogs(clusters),
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
        actions=actions.SlurmActions(clusters),
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
