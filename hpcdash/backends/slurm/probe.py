"""Asks once a connection whether Slurm is here, which version, who we are, and what the clock says."""

from __future__ import annotations

from hpcdash.backends.base import Probe
from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.failures import failure
from hpcdash.errors import CommandMissing, excerpt

COMMANDS = ("squeue", "sinfo", "sacct", "scontrol", "sbatch", "scancel")
# Constant: nothing from outside ever becomes part of it. Without a slurm.conf every command of Slurm tries for a
# minute; a controller that is down takes 10 s.
_SCRIPT = """
echo "user=$(id -un)"
echo "clock=$(date +%s)"
for command in squeue sinfo sacct scontrol sbatch scancel; do
  echo "command=$command=$(command -v "$command")"
done
command -v squeue >/dev/null 2>&1 || exit 127
soon=
if command -v timeout >/dev/null 2>&1; then soon="timeout 10"; fi
echo "version=$($soon squeue --version)"
ping=$($soon scontrol ping 2>&1 | head -n 2 | tr '\\n' ' ')
echo "ping=$ping"
case $ping in
  *" UP"*) $soon scontrol show config | sed -n -e 's/^ClusterName *= */ClusterName=/p' \\
    -e 's/^AccountingStorageType *= */AccountingStorageType=/p' ;;
esac
"""
_PROBE_LIMIT_SECONDS = 45.0


def probe_query() -> Query[Probe]:
    """One shell on the other side; asks the controller for its configuration once."""
    return Query(slurm("sh", "-c", _SCRIPT), parse_probe, limit_seconds=_PROBE_LIMIT_SECONDS)


def parse_probe(answer: Answer) -> Probe:
    """What was found; raises CommandMissing where squeue is not there or is not Slurm's."""
    found: dict[str, str] = {}
    commands: dict[str, str] = {}
    for line in answer.stdout.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        if key == "command":
            name, _, path = value.partition("=")
            commands[name] = path
        else:
            found.setdefault(key, value.strip())
    version = found.get("version", "")
    if not commands.get("squeue") or "slurm" not in version.lower():
        if commands.get("squeue") and answer.stderr.strip():
            raise failure(answer)
        raise CommandMissing(
            "no Slurm here: squeue is not on the PATH" if not version else f"squeue here is not Slurm's: {version!r}",
            'If Slurm lives elsewhere, set path = "/…/bin" for this cluster in the configuration.',
            argv=answer.argv[-1:] and ("squeue", "--version"),
            status=127,
            words=excerpt(answer.stderr),
        )
    storage = found.get("AccountingStorageType", "")
    clock = found.get("clock", "")
    ping = found.get("ping", "")
    return Probe(
        user=found.get("user", ""),
        version=version,
        cluster=found.get("ClusterName", ""),
        clock_epoch_seconds=float(clock) if clock.isdigit() else None,
        has_accounting=None if not storage else not storage.endswith("/none") and storage != "(null)",
        controller_answers=None if not ping else " UP" in ping,
        commands=commands,
    )
