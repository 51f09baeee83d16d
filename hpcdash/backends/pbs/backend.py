"""PBS as a backend, in each of its dialects; measured on OpenPBS 23.06."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdash.backends.base import (
    BATCH_CAPABILITIES,
    Backend,
    Capability,
    InsidePart,
    Probe,
    ScriptReader,
    ScriptsPart,
    ScriptWriter,
)
from hpcdash.backends.job_detail import JobDetail
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
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.request_fields import REQUEST_FIELDS
from hpcdash.backends.queries import Row

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.script.cron import CronJob
    from hpcdash.domain.scripts import ScriptBlock

_TORQUE = BATCH_CAPABILITIES | {Capability.EXPECTED_START}
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
        probe=probe.PbsProbe() if dialect else _Probe(),
        queue=jobs.PbsQueue(one),
        reasons=reasons.PbsReasons(),
        history=history.PbsHistory(one),
        detail=detail.PbsDetail(one),
        inside=_Inside(),
        logs=log_files.PbsLogs(one),
        scripts=_TorqueScripts() if is_torque else _Scripts(),
        policy=rules.PbsPolicy(one),
        actions=actions.PbsActions(one),
        submit=submit.PbsSubmit(one),
    )


class _Probe(probe.PbsProbe):
    """Detects PBS of any dialect."""

    needs_answer = True

    def backend(self, found: Probe) -> Backend:
        return pbs_backend(Dialect(found.dialect))


# What few commands need is imported by those.
class _Scripts(ScriptsPart):
    request_fields = REQUEST_FIELDS

    def writer(self) -> ScriptWriter | None:
        from hpcdash.backends.pbs import script

        return script

    def reader(self) -> ScriptReader:
        from hpcdash.backends.pbs import lint

        return lint

    def blocks(self) -> tuple[ScriptBlock, ...]:
        from hpcdash.backends.pbs.blocks import script_blocks

        return script_blocks()

    def explain(self, line: str) -> str:
        return explain.explain(line)

    def submitted_file(self, detail: JobDetail) -> str | None:
        return log_files.submitted_file(detail)

    def cron_script(self, job: CronJob) -> str:
        from hpcdash.backends.pbs.script import cron_script

        return cron_script(job)


class _TorqueScripts(_Scripts):
    def writer(self) -> None:
        """None: Torque has no select."""


class _Inside(InsidePart):
    def step(self, row: Row, command: InsideCommand) -> InsideStep:
        from hpcdash.backends.pbs.inside import inside_step

        return inside_step(row, command)


BACKEND = pbs_backend()
