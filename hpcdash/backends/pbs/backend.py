"""PBS as a backend, in each of its dialects; measured on OpenPBS 23.06."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdash.backends.base import (
    ActionsPart,
    Backend,
    Capability,
    DetailPart,
    HistoryPart,
    InsidePart,
    LogsPart,
    PolicyPart,
    ProbePart,
    QueuePart,
    ReasonsPart,
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
    nodes,
    probe,
    queues,
    reasons,
    rules,
    submit,
)
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.request_fields import REQUEST_FIELDS
from hpcdash.backends.queries import ParsedTable, Query

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.script.cron import CronJob, CronParts
    from hpcdash.backends.shell import ShellCommand, ShellRequest

_NO_HISTORY = (
    "not kept here (job_history_enable is off): a job is gone once it ended; how, is known only "
    "where it was seen"
)
_NO_HISTORY_OF_TORQUE = (
    "not kept by Torque: how jobs ended is known for some minutes only (keep_completed of the site)"
)
_TORQUE = frozenset(
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
        Capability.LIMITS,
        Capability.INSIDE,
        Capability.LIVE_USE,
    }
)
_CAPABILITIES = {
    Dialect.TORQUE: _TORQUE,
    Dialect.PBS_TEXT: _TORQUE | {Capability.RESERVATIONS},
    # qsub's -k takes a d since 18.1; Torque's does not.
    Dialect.OPENPBS: _TORQUE | {Capability.RESERVATIONS, Capability.LIVE_LOGS},
}


def pbs_backend(dialect: Dialect | None = None) -> Backend:
    """PBS of a dialect; None: the probe has yet to find it out, until when it is taken for
    OpenPBS.
    """
    one = dialect or Dialect.OPENPBS
    is_torque = one is Dialect.TORQUE
    return Backend(
        name="pbs",
        title="Torque" if is_torque else "PBS",
        capabilities=_CAPABILITIES[one],
        has_whole_ids=False,
        probe=ProbePart(
            query=probe.probe_query,
            backend_for=None if dialect else lambda found: pbs_backend(Dialect(found.dialect)),
            usual_folder="/opt/pbs/bin",
            delegated_commands=("qsub", "qstat", "qdel", "pbsnodes"),
        ),
        queue=QueuePart(
            jobs=partial(jobs.jobs_query, one),
            nodes=partial(nodes.nodes_query, one),
            queues=partial(queues.queues_query, one),
            down_hosts=partial(nodes.down_hosts_query, one),
            pause=partial(queues.pause_query, one),
            newly_ended=partial(history.newly_ended_query, one),
        ),
        reasons=ReasonsPart(
            hint=reasons.reason_hint,
            never_starts=reasons.never_starts,
            policy=reasons.policy_reason,
        ),
        history=HistoryPart(
            jobs=partial(history.history_query, one),
            runs=partial(history.runs_query, one),
            native=partial(history.history_native_query, one),
            scope=partial(history.scope_query, one),
            keeps_ended=one in (Dialect.OPENPBS, Dialect.PBS_TEXT),
            forgotten="PBS no longer knows it, as after qdel -x",
            no_history=_NO_HISTORY_OF_TORQUE if is_torque else _NO_HISTORY,
        ),
        detail=DetailPart(
            native=partial(detail.native_query, one),
            join=partial(detail.job_detail, one),
            usage=partial(detail.usage_query, one),
            shell=_shell,
            priority=partial(rules.priority_query, one),
            requeue_refusal=detail.requeue_refusal,
            submit_line=detail.submit_line,
            variables=detail.job_variables,
        ),
        inside=InsidePart(step=_inside_step),
        logs=LogsPart(files=partial(log_files.log_files, one)),
        scripts=ScriptsPart(
            writer=partial(_writer, one),
            request_fields=REQUEST_FIELDS,
            reader=_reader,
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
        actions=ActionsPart(
            commands=partial(actions.action_commands, one),
            alterable=actions.alterable(one),
            whole_array_verbs=actions.whole_array_verbs(one),
        ),
        submit=SubmitPart(
            program="qsub",
            submission=partial(submit.submission, one),
            resubmission=partial(submit.resubmission, one),
            array_parts=partial(submit.array_parts, one),
            new_limits=frozenset({"time_seconds", "memory_bytes"}),
        ),
    )


# What few commands need is imported by those.
def _writer(dialect: Dialect) -> ScriptWriter | None:
    # Torque has no select.
    if dialect is Dialect.TORQUE:
        return None
    from hpcdash.backends.pbs import script

    return script


def _reader() -> ScriptReader:
    from hpcdash.backends.pbs import lint

    return lint


def _limits(dialect: Dialect, user: str, cluster: str) -> Query[ParsedTable]:
    from hpcdash.backends.pbs.limits import limits_query

    return limits_query(dialect, user)


def _reservations(user: str) -> Query[ParsedTable]:
    from hpcdash.backends.pbs.reservations import reservations_query

    return reservations_query(user)


def _shell(row: Mapping[str, Any], request: ShellRequest) -> ShellCommand | None:
    from hpcdash.backends.pbs.shell import shell_command

    return shell_command(row, request)


def _inside_step(row: Mapping[str, Any], command: InsideCommand) -> InsideStep:
    from hpcdash.backends.pbs.inside import inside_step

    return inside_step(row, command)


def _cron_parts(job: CronJob) -> CronParts:
    from hpcdash.backends.pbs.cron import cron_parts

    return cron_parts(job)


BACKEND = pbs_backend()
