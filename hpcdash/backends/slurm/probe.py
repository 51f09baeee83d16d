"""Probe of Slurm once per connection: presence, version, user and clock."""

from __future__ import annotations

import re

from hpcdash.backends.base import LocalConfiguration, Probe, ProbePart, ServerFiles, probe_values
from hpcdash.backends.queries import PROBE_BYTES, Answer, Query, decoded
from hpcdash.backends.slurm.commands import slurm, with_clusters_variable
from hpcdash.backends.slurm.errors import failure
from hpcdash.domain.columns import digits, epoch_seconds
from hpcdash.errors import CommandElsewhere, CommandMissing, CommandTimedOut, excerpt
from hpcdash.shell_files import shell_text

COMMANDS = ("squeue", "sinfo", "sacct", "scontrol", "sbatch", "scancel")
_PROBE_LIMIT_SECONDS = 45.0
_CLUSTERS_LIMIT_SECONDS = 15.0
# GRES that are GPUs, or parts of them.
_GPU_KINDS = frozenset({"gpu", "shard", "mps"})
_COMMAND = ("squeue", "--version")
_ELSEWHERE = (
    'If Slurm is installed elsewhere, set path = "/…/bin" for this cluster in the configuration.'
)


def parse_probe(answer: Answer) -> Probe:
    """Parse the result of a probe; raises CommandMissing where squeue is missing or not Slurm's."""
    found, commands = probe_values(answer)
    version = found.get("version", "")
    squeue = commands.get("squeue")
    if folder := found.get("folder"):
        raise CommandElsewhere("squeue is not on the PATH", folder, argv=_COMMAND)
    if configured := found.get("configured"):
        raise CommandMissing(
            "Slurm is configured here, but squeue is not on the PATH: "
            f"{' '.join(configured.split())}",
            f"{_ELSEWHERE} --backend local runs jobs on this machine without a scheduler.",
            argv=_COMMAND,
            status=127,
        )
    if found.get("slow"):
        # It exists: no other scheduler's commands may count as this cluster's.
        raise CommandTimedOut(
            "squeue --version did not respond within 10 s",
            "The login node or its disk may be busy; try again later.",
            argv=_COMMAND,
            output=excerpt(answer.stderr),
        )
    if not squeue or "slurm" not in version.lower():
        if squeue and answer.stderr.strip():
            raise failure(answer, _COMMAND)
        raise _no_slurm(answer, squeue, version)
    storage = found.get("AccountingStorageType", "")
    counted = found.get("AccountingStorageTRES", "").split(",")
    kinds = set(found.get("GresTypes", "").split(",")) & _GPU_KINDS
    counts_gpus = all(f"gres/{kind}" in counted for kind in kinds)
    has_accounting = not storage.endswith("/none") and storage != "(null)"
    clock = epoch_seconds(found.get("clock"))
    ping = found.get("ping", "")
    return Probe(
        user=found.get("user", ""),
        version=version,
        cluster=found.get("ClusterName", ""),
        clusters=tuple(found.get("clusters", "").replace(",", " ").split()),
        clock_epoch_seconds=None if clock is None else float(clock),
        counts_gpus=counts_gpus if "GresTypes" in found else None,
        # 0: none is forgotten.
        ended_kept_seconds=digits(found.get("MinJobAge")) or None,
        has_accounting=has_accounting if storage else None,
        controller_answers=" UP" in ping if ping else None,
        commands=commands,
    )


def _no_slurm(answer: Answer, squeue: str | None, version: str) -> CommandMissing:
    message = "no Slurm here: squeue is not on the PATH"
    step = _ELSEWHERE
    if squeue:
        shown = repr(version) if version else "nothing"
        message = f"{squeue} is not Slurm's squeue: for --version it prints {shown}"
        step = 'Set path = "/…/bin", where Slurm\'s own is, for this cluster in the configuration.'
    output = excerpt(answer.stderr)
    return CommandMissing(message, step, argv=_COMMAND, status=127, output=output)


def release(probe: Probe) -> tuple[int, int]:
    """(26, 5) of Slurm 26.05.5; (0, 0) where the version is not read."""
    found = re.search(r"\b([0-9]{2})\.([0-9]{2})\b", probe.version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


# Path of the configuration for Slurm's commands without SLURM_CONF; then the source of the
# configuration for daemons on a machine without a slurm.conf.
LOCAL_CONFIGURATION = LocalConfiguration(
    server_variables=("SLURM_CONF_SERVER",),
    file_variable="SLURM_CONF",
    files=(
        ServerFiles(
            (
                "/etc/slurm/slurm.conf",
                "/etc/slurm-llnl/slurm.conf",
                "/usr/local/etc/slurm.conf",
                "/usr/local/slurm/etc/slurm.conf",
                "/opt/slurm/etc/slurm.conf",
                "/run/slurm/conf/slurm.conf",
                "/var/spool/slurmd/conf-cache/slurm.conf",
                "/var/spool/slurm/conf-cache/slurm.conf",
            ),
            re.compile(r"(?im)^[ \t]*(?:SlurmctldHost|ControlMachine)[ \t]*=[ \t]*([^\s#]+)"),
            included=re.compile(r"(?im)^[ \t]*Include[ \t]+([^\s#]+)"),
        ),
        ServerFiles(
            (
                "/etc/default/slurmd",
                "/etc/sysconfig/slurmd",
                "/etc/default/sackd",
                "/etc/sysconfig/sackd",
            ),
            re.compile(r"(?m)^[^#\n]*--conf-server[= \t]+[\"']?([^\s\"']+)"),
        ),
    ),
    command="squeue",
    unconfigured=(
        "Slurm's commands are installed here, but no slurm.conf names a controller; --backend "
        "slurm uses them anyway"
    ),
    is_file_alone=True,
    # A prefix of the site's own, or DNS: nothing but the commands finds the configuration.
    server_command=("scontrol", "ping"),
    server_pattern=re.compile(r"(?m)^Slurmctld\([^)]*\) at (\S+) is "),
)


def _parse_clusters(answer: Answer) -> tuple[str, ...]:
    """Parse a name a line; () where users may not list them, or without accounting."""
    from hpcdash.backends.slurm.clusters import NAME

    lines = decoded(answer.stdout).splitlines() if answer.status == 0 else []
    return tuple(dict.fromkeys(line for line in lines if NAME.fullmatch(line)))


class SlurmProbe(ProbePart):
    """Detects Slurm, and what its site has."""

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

    def query(self) -> Query[Probe]:
        """Return the query of one remote shell; it requests the controller's configuration once."""
        return Query(
            with_clusters_variable("sh", "-c", shell_text("backends/slurm/probe.sh")),
            parse_probe,
            limit_seconds=_PROBE_LIMIT_SECONDS,
            cap_bytes=PROBE_BYTES,
        )

    def site_clusters(self) -> Query[tuple[str, ...]]:
        """Return the query of the clusters that share the accounting database."""
        return Query(
            slurm("sacctmgr", "-nP", "show", "cluster", "format=cluster"),
            _parse_clusters,
            limit_seconds=_CLUSTERS_LIMIT_SECONDS,
        )
