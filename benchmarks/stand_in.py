"""Slurm's commands as small shell scripts that print generated rows: as many jobs as one likes, without a controller.

Only the time of the scheduler itself is missing from what is measured on them.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from benchmarks.generate_jobs import jobs_text
from hpcdash.backends.tokens import RECORDED_TOKEN

_RECORDED = RECORDED_TOKEN[1:]
MINE = 200

# The token is what follows the last field's name; the recorded one is replaced by it.
_SQUEUE = """#!/bin/sh
for word; do case $word in *workdir:*) token=${{word##*workdir:?}};; esac; done
case " $* " in *" --me "*|*" -u "*) file={mine};; *) file={everyone};; esac
exec sed "s/{recorded}/$token/g" "$file"
"""
_SCONTROL = """#!/bin/sh
case "$*" in
  ping) echo "Slurmctld(primary) at standin is UP";;
  *config*) echo "ClusterName = standin";;
esac
"""


def make_stand_in(folder: Path, jobs: int) -> Path:
    """A folder for the PATH; `jobs` rows for everyone, the first of them one's own."""
    everyone, mine = folder / "everyone.out", folder / "mine.out"
    everyone.write_bytes(jobs_text(jobs))
    mine.write_bytes(jobs_text(min(jobs, MINE)))
    commands = folder / "bin"
    commands.mkdir()
    squeue = _SQUEUE.format(mine=shlex.quote(str(mine)), everyone=shlex.quote(str(everyone)), recorded=_RECORDED)
    squeue = squeue.replace("for word;", 'if [ "$1" = --version ]; then echo "slurm 22.05.8"; exit; fi\nfor word;')
    for name, script in {
        "squeue": squeue,
        "scontrol": _SCONTROL,
        "sinfo": "#!/bin/sh\n",
        "sacct": "#!/bin/sh\n",
        "sbatch": "#!/bin/sh\n",
        "scancel": "#!/bin/sh\n",
    }.items():
        program = commands / name
        program.write_text(script)
        program.chmod(0o755)
    return commands
