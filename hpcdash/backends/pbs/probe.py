"""Asks once a connection whether PBS is here, which kind and version, who we are, and what the
clock says.
"""

from __future__ import annotations

import re

from hpcdash.backends.base import LocalConfiguration, Probe, ProbePart, ServerFiles, probe_values
from hpcdash.backends.pbs.dialects import COMMANDS, detect_dialect, pbs
from hpcdash.backends.queries import PROBE_BYTES, Answer, Query
from hpcdash.domain.columns import epoch_seconds
from hpcdash.errors import CommandElsewhere, CommandMissing, CommandTimedOut, excerpt
from hpcdash.shell_files import shell_text

_PROBE_LIMIT_SECONDS = 45.0
_COMMAND = ("qstat", "--version")
_ELSEWHERE = (
    'If PBS is installed elsewhere, set path = "/…/bin" for this cluster in the configuration.'
)
_CONFIGURED = f"{_ELSEWHERE} --backend local runs jobs on this machine without a scheduler."
# Of Perl without the module, and of qstat's usage, which no other's has so.
_SLURMS_WORDS = ("Can't locate Slurm", "Unknown option: version Usage:     qstat")
# How others that have a qstat name themselves.
_OTHERS = (
    (("Grid Engine", "SGE", "UGE", "GE 6", "GE 8", "OGS/"), "Grid Engine's"),
    (("LSF", "Platform"), "LSF's"),
)


def parse_probe(answer: Answer) -> Probe:
    """Parse the result of a probe; raises CommandMissing where qstat is missing or of no known
    dialect.
    """
    found, paths = probe_values(answer)
    reported = found.get("version", "")

    def missing(message: str, next_step: str) -> CommandMissing:
        text = reported or excerpt(answer.stderr)
        return CommandMissing(
            message, next_step, argv=_COMMAND, status=answer.status or None, output=text
        )

    if folder := found.get("folder"):
        raise CommandElsewhere("qstat is not on the PATH", folder, argv=_COMMAND)
    if configured := found.get("configured"):
        raise missing(
            f"PBS is configured here, but qstat is not on the PATH: {configured}", _CONFIGURED
        )
    if not paths.get("qstat"):
        raise missing("no PBS here: qstat is not on the PATH", _ELSEWHERE)
    server_version = found.get("pbs_version", "")
    known = detect_dialect(reported) or (
        detect_dialect(f"pbs_version = {server_version}") if server_version else None
    )
    if known is None and (
        found.get("is_slurms") or any(text in reported for text in _SLURMS_WORDS)
    ):
        raise missing(
            "no PBS here: qstat is Slurm's",
            "Use Slurm through its own commands: put squeue on the PATH, or set path for this "
            "cluster, and omit --backend.",
        )
    if known is None and "hpcdash: no answer" in reported:
        raise CommandTimedOut(
            "qstat --version did not respond within 10 s",
            "The login node or its disk may be busy; try again later.",
            argv=_COMMAND,
        )
    if known is None:
        owner = next(
            (name for marks, name in _OTHERS if any(mark in reported for mark in marks)), ""
        )
        whose = f"is {owner}" if owner else "does not identify itself as PBS's"
        raise missing(f"no PBS here: qstat {whose}", _ELSEWHERE)
    dialect, version = known
    clock = epoch_seconds(found.get("clock"))
    answers = "Server" in found
    return Probe(
        user=found.get("user", ""),
        version=version,
        cluster=found.get("Server", ""),
        clock_epoch_seconds=None if clock is None else float(clock),
        # Where the server does not report it the setting is off.
        has_accounting=found.get("job_history_enable", "").lower() == "true" if answers else None,
        controller_answers=answers,
        is_scheduling=found["scheduling"].lower() == "true" if "scheduling" in found else None,
        commands={name: paths.get(name, "") for name in COMMANDS},
        dialect=str(dialect),
    )


# Where PBS's commands find theirs, where PBS_CONF_FILE does not say it; then Torque's.
LOCAL_CONFIGURATION = LocalConfiguration(
    server_variables=("PBS_SERVER", "PBS_DEFAULT"),
    file_variable="PBS_CONF_FILE",
    files=(
        ServerFiles(
            ("/etc/pbs.conf",),
            re.compile(r"(?m)^[ \t]*(?:PBS_SERVER|PBS_PRIMARY)=[\"']?([^\s\"']+)"),
        ),
        ServerFiles(
            (
                "/var/spool/torque/server_name",
                "/etc/torque/server_name",
                "/var/spool/pbs/server_name",
                "/usr/spool/PBS/server_name",
            ),
            re.compile(r"\A\s*(\S+)"),
        ),
    ),
    command="qstat",
    unconfigured="qstat is installed here, but no /etc/pbs.conf names a server; --backend pbs uses "
    "it anyway",
)


class PbsProbe(ProbePart):
    """Detects PBS, and which kind it is."""

    usual_folder = "/opt/pbs/bin"
    delegated_commands = ("qsub", "qstat", "qdel", "pbsnodes")

    def query(self) -> Query[Probe]:
        """One shell on the other side; asks the server once about itself.

        `Probe.dialect` is a Dialect.
        """
        return Query(
            pbs("sh", "-c", shell_text("backends/pbs/probe.sh")),
            parse_probe,
            limit_seconds=_PROBE_LIMIT_SECONDS,
            cap_bytes=PROBE_BYTES,
        )
