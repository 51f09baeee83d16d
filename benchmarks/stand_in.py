"""Slurm's and PBS's commands as small shell scripts that print generated jobs: as many as one
likes, without a server.

Only the time of the scheduler itself is missing from what is measured on them.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.generate_jobs import ROW_END, jobs_text
from benchmarks.parse import pbs_text
from hpcdash.backends.tokens import RECORDED_TOKEN

_RECORDED = RECORDED_TOKEN[1:]
MINE = 200

# The token is what follows the last field's name; the recorded one is replaced by it.
_SQUEUE = """#!/bin/sh
for word; do case $word in *workdir:*) token=${{word##*workdir:?}};; esac; done
case " $* " in *" --me "*|*" -u "*) file={mine};; *) file={everyone};; esac
[ "$file" = {everyone} ] || {{
    printf . >>{answers}
    [ $(($(wc -c <{answers}) % 2)) = 1 ] || file=$file.later
}}
exec sed "s/{recorded}/$token/g" "$file"
"""
_SINFO = """#!/bin/sh
for word; do case $word in *reason:*) token=${{word##*reason:?}};; esac; done
case " $* " in *" -N "*) exec sed "s/{recorded}/$token/g" {nodes};; esac
"""
_SCONTROL = """#!/bin/sh
case "$*" in
  ping) echo "Slurmctld(primary) at standin is UP";;
  *config*) echo "ClusterName = standin";;
esac
"""
# Of a history alone: nothing is in the queue.
_QSTAT = """#!/bin/sh
for word; do [ "$last" != -D ] || token=$word; last=$word; done
case " $* " in
*" --version "*) echo "pbs_version = 23.06.06";;
*" -Bf "*) sed "s/@@/$token/g" {scene}/server.dsv;;
*" -Qf "*) sed "s/@@/$token/g" {scene}/queues.dsv;;
*" -E "*) printf '%s\\n' "$@" | awk -v token="$token" '
    NR == FNR {{ wanted["Job Id: " $0]; next }}
    {{ head = $0; sub(/@@.*/, "", head); if (head in wanted) {{ gsub("@@", token); print }} }}' - {ended};;
esac
"""
_QSELECT = """#!/bin/sh
case " $* " in *" -u "*) ;; *" -x "*) sed -n 's/^Job Id: \\([^@]*\\).*/\\1/p' {ended};; esac
"""
_PBS_PROGRAMS = ("pbsnodes", "qsub", "qdel", "qhold", "qrls", "qrerun", "qalter", "qsig", "qmove")
_SCENE = Path(__file__).parents[1] / "fixtures" / "pbs" / "23.06" / "scenes" / "finished"


def _install(folder: Path, programs: Mapping[str, str]) -> Path:
    commands = folder / "bin"
    commands.mkdir()
    for name, script in programs.items():
        program = commands / name
        program.write_text(script)
        program.chmod(0o755)
    return commands


def make_pbs_stand_in(folder: Path, jobs: int) -> Path:
    """A folder for the PATH, of a PBS where so many jobs ended yesterday."""
    now = time.time()
    day = time.strftime("%b %d", time.gmtime(now - 86400)).encode()
    raw = re.sub(
        rb"@@history_timestamp=\d+",
        b"@@history_timestamp=%d" % (now - 3600),
        pbs_text(jobs, "@@", "finished"),
    )
    ended = folder / "ended.dsv"
    ended.write_bytes(re.sub(rb" Nov 21 (\d\d:\d\d:\d\d 2026)", rb" %b \1" % day, raw))
    places = {"ended": shlex.quote(str(ended)), "scene": shlex.quote(str(_SCENE))}
    programs = {"qstat": _QSTAT.format(**places), "qselect": _QSELECT.format(**places)}
    return _install(folder, {**dict.fromkeys(_PBS_PROGRAMS, "#!/bin/sh\n"), **programs})


def nodes_text(count: int) -> bytes:
    """As sinfo prints so many nodes, with 8 GPUs each: of ten one is idle, one half used."""
    used = (8, 8, 8, 8, 4, 8, 8, 8, 0, 8)
    rows = []
    for number in range(count):
        gpus = used[number % len(used)]
        state = "idle" if not gpus else "mixed" if gpus < 8 else "allocated"
        fields = (
            *(f"g{number:04}", "gpu*", state, f"{8 * gpus}/{64 - 8 * gpus}/0/64", "gpu:h100:8"),
            *(f"gpu:h100:{gpus}(IDX:0-7)", "1031000", "0", "8.00", "ib", "Unknown"),
        )
        rows.append("\x1f".join((*fields, "Unknown")) + RECORDED_TOKEN + "none")
    return "".join(f"{row}{RECORDED_TOKEN}\n" for row in rows).encode()


def make_stand_in(folder: Path, jobs: int, *, own_jobs: int = MINE, nodes: int = 0) -> Path:
    """A folder for the PATH; `jobs` rows for everyone, the first of them one's own.

    Every second answer of one's own jobs leaves out a hundredth of them and has as many new ones;
    `answers` in the folder grows by a byte with each.
    """
    everyone, mine = folder / "everyone.out", folder / "mine.out"
    own_jobs = min(jobs, own_jobs)
    everyone.write_bytes(jobs_text(jobs))
    rows = jobs_text(own_jobs + own_jobs // 100).split(ROW_END)
    mine.write_bytes(ROW_END.join([*rows[:own_jobs], b""]))
    Path(f"{mine}.later").write_bytes(ROW_END.join(rows[own_jobs // 100 :]))
    squeue = _SQUEUE.format(
        mine=shlex.quote(str(mine)),
        everyone=shlex.quote(str(everyone)),
        answers=shlex.quote(str(folder / "answers")),
        recorded=_RECORDED,
    )
    squeue = squeue.replace(
        "for word;", 'if [ "$1" = --version ]; then echo "slurm 22.05.8"; exit; fi\nfor word;'
    )
    listed = folder / "nodes.out"
    listed.write_bytes(nodes_text(nodes))
    sinfo = _SINFO.format(nodes=shlex.quote(str(listed)), recorded=_RECORDED)
    silent = dict.fromkeys(("sacct", "sbatch", "scancel"), "#!/bin/sh\n")
    programs = {"sinfo": sinfo, "squeue": squeue, "scontrol": _SCONTROL}
    return _install(folder, {**silent, **programs})
