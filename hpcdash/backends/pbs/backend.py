"""PBS as a backend, in each of its dialects; measured on OpenPBS 23.06."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

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
from hpcdash.backends.pbs import (
    actions,
    detail,
    explain,
    history,
    jobs,
    log_files,
    probe,
    reasons,
    rules,
    submit,
)
from hpcdash.backends.pbs.dialects import Dialect, DialectPart
from hpcdash.backends.pbs.request_fields import REQUEST_FIELDS
from hpcdash.backends.queries import ParsedTable, Query

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.script.cron import CronJob, CronParts
    from hpcdash.backends.shell import ShellCommand, ShellRequest

_TITLES = {Dialect.TORQUE: "Torque", Dialect.SLURM_WRAPPERS: "Slurm by Torque's commands"}
# Only its managers may ask for fair shares.
_ALL = frozenset(Capability) - {
    Capability.KEEPS_SCRIPTS,
    Capability.SHARES,
    Capability.DELETE,
    Capability.OTHER_LOGS,
    Capability.WORKERS,
}
_CAPABILITIES = {
    Dialect.OPENPBS: _ALL,
    # qsub's -k takes no d before 18.1, nor does Torque's.
    Dialect.PBS_TEXT: _ALL - {Capability.LIVE_LOGS},
    Dialect.TORQUE: _ALL - {Capability.LIVE_LOGS, Capability.RESERVATIONS},
    # Slurm's wrappers have no qsig and no history, know neither paths nor starts to come, and
    # change nothing of a job.
    Dialect.SLURM_WRAPPERS: _ALL
    - {
        Capability.ALTER,
        Capability.EXPECTED_START,
        Capability.HISTORY,
        Capability.LIMITS,
        Capability.INSIDE,
        Capability.LIVE_USE,
        Capability.LIVE_LOGS,
        Capability.LOGS,
        Capability.ERROR_LOGS,
        Capability.NODE_CHECKS,
        Capability.RESERVATIONS,
        Capability.SIGNAL,
        Capability.SUSPEND,
    },
}


def pbs_backend(dialect: Dialect | None = None) -> Backend:
    """PBS of a dialect; None: the probe has yet to find it out, until when it is taken for
    OpenPBS.
    """
    one = dialect or Dialect.OPENPBS
    is_slurm = one is Dialect.SLURM_WRAPPERS
    return Backend(
        name="pbs",
        title=_TITLES.get(one, "PBS"),
        capabilities=_CAPABILITIES[one],
        has_whole_ids=not one.has_array_brackets,
        probe=_Probe(dialect),
        queue=jobs.PbsQueue(one),
        reasons=reasons.WrapperReasons() if is_slurm else reasons.PbsReasons(),
        history=history.PbsHistory(one),
        detail=DetailPart(
            native=partial(detail.native_query, one),
            join=partial(detail.job_detail, one),
            usage=partial(detail.usage_query, one),
            shell=_shell_in_slurm if is_slurm else _shell,
            priority=partial(rules.priority_query, one),
            requeue_refusal=detail.requeue_refusal,
            submit_line=detail.submit_line,
            variables=_variables_in_slurm if is_slurm else detail.job_variables,
        ),
        inside=_Inside(one),
        logs=log_files.PbsLogs(one),
        scripts=ScriptsPart(
            writer=partial(_writer, one),
            request_fields=REQUEST_FIELDS,
            reader=partial(_reader, one),
            explain=explain.explain,
            submitted_file=log_files.submitted_file,
            cron_parts=_cron_parts,
        ),
        policy=PolicyPart(
            queue_rules=partial(rules.queue_rules_query, one),
            queue_limits=partial(rules.queue_limits_query, one),
            limits=partial(_limits, one),
            reservations=_reservations,
        ),
        actions=actions.PbsActions(one),
        submit=SubmitPart(
            program="" if one is Dialect.SLURM_WRAPPERS else "qsub",
            submission=partial(submit.submission, one),
            resubmission=partial(submit.resubmission, one),
            array_parts=partial(submit.array_parts, one),
            new_limits=frozenset({"time_seconds", "memory_bytes"}),
        ),
    )


class _Probe(ProbePart):
    usual_folder = "/opt/pbs/bin"
    delegated_commands = ("qsub", "qstat", "qdel", "pbsnodes")

    def __init__(self, dialect: Dialect | None) -> None:
        self.needs_answer = dialect is None

    def query(self) -> Query[Probe]:
        return probe.probe_query()

    def backend(self, found: Probe) -> Backend | None:
        return pbs_backend(Dialect(found.dialect)) if self.needs_answer else None


# What few commands need is imported by those.
def _writer(dialect: Dialect) -> ScriptWriter | None:
    if dialect is Dialect.SLURM_WRAPPERS:
        from hpcdash.backends.slurm import script as slurm_script

        return slurm_script
    # Torque has no select.
    if dialect is Dialect.TORQUE:
        return None
    from hpcdash.backends.pbs import script

    return script


def _reader(dialect: Dialect) -> ScriptReader:
    from hpcdash.backends.pbs import lint
    from hpcdash.backends.slurm import lint as slurm_lint

    return slurm_lint if dialect is Dialect.SLURM_WRAPPERS else lint


def _limits(dialect: Dialect, user: str, cluster: str) -> Query[ParsedTable]:
    from hpcdash.backends.pbs.limits import limits_query

    return limits_query(dialect, user)


def _reservations(user: str) -> Query[ParsedTable]:
    from hpcdash.backends.pbs.reservations import reservations_query

    return reservations_query(user)


def _shell(row: Mapping[str, Any], request: ShellRequest) -> ShellCommand | None:
    from hpcdash.backends.pbs.shell import shell_command

    return shell_command(row, request)


def _shell_in_slurm(row: Mapping[str, Any], request: ShellRequest) -> ShellCommand:
    from hpcdash.backends.slurm.shell import shell_command

    return shell_command(row, request)


class _Inside(DialectPart, InsidePart):
    def step(self, row: Mapping[str, Any], command: InsideCommand) -> InsideStep:
        from hpcdash.backends.pbs.inside import inside_step

        return inside_step(self.dialect, row, command)


def _cron_parts(job: CronJob) -> CronParts:
    from hpcdash.backends.pbs.cron import cron_parts

    return cron_parts(job)


def _variables_in_slurm(row: Mapping[str, Any]) -> Mapping[str, str | None]:
    from hpcdash.backends.slurm.detail import job_variables

    return {**job_variables(row), **detail.job_variables(row)}


BACKEND = pbs_backend()
