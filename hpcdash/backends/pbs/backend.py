"""PBS as a backend, in each of its dialects; measured on OpenPBS 23.06."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcdash.backends.base import (
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
from hpcdash.backends.pbs.dialects import Dialect, DialectPart
from hpcdash.backends.pbs.request_fields import REQUEST_FIELDS

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.script.cron import CronJob, CronParts

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
        probe=probe.PbsProbe() if dialect else _Probe(),
        queue=jobs.PbsQueue(one),
        reasons=reasons.WrapperReasons() if is_slurm else reasons.PbsReasons(),
        history=history.PbsHistory(one),
        detail=(detail.WrapperDetail if is_slurm else detail.PbsDetail)(one),
        inside=_Inside(one),
        logs=log_files.PbsLogs(one),
        scripts=_SCRIPTS.get(one, _Scripts)(),
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

    def explain(self, line: str) -> str:
        return explain.explain(line)

    def submitted_file(self, detail: JobDetail) -> str | None:
        return log_files.submitted_file(detail)

    def cron_parts(self, job: CronJob) -> CronParts:
        from hpcdash.backends.pbs.cron import cron_parts

        return cron_parts(job)


class _TorqueScripts(_Scripts):
    def writer(self) -> None:
        """None: Torque has no select."""


class _WrapperScripts(_Scripts):
    def writer(self) -> ScriptWriter:
        from hpcdash.backends.slurm import script

        return script

    def reader(self) -> ScriptReader:
        from hpcdash.backends.slurm import lint

        return lint


_SCRIPTS = {Dialect.TORQUE: _TorqueScripts, Dialect.SLURM_WRAPPERS: _WrapperScripts}


class _Inside(DialectPart, InsidePart):
    def step(self, row: Mapping[str, Any], command: InsideCommand) -> InsideStep:
        from hpcdash.backends.pbs.inside import inside_step

        return inside_step(self.dialect, row, command)


BACKEND = pbs_backend()
