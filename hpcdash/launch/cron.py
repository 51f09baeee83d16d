"""The text of a job that stands in for cron: it submits itself again, then runs every script of a folder. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpcdash.domain.units import DAY, HOUR, MINUTE, format_clock
from hpcdash.errors import UsageError

SCRIPT_SECONDS = 10 * MINUTE
LIMIT_SECONDS = 30 * MINUTE
KEEP_DAYS = 7
_NAMED = {HOUR: "hourly", DAY: "daily", 7 * DAY: "weekly"}
_INTERVALS = {"hourly": "1h", "daily": "1d", "weekly": "7d"}
_LABEL = re.compile(r"hourly|daily|weekly|[1-9][0-9]{0,5}[smhd]")


@dataclass(frozen=True, slots=True)
class CronJob:
    """A job that comes again every `every_seconds`, and its places below `folder`, an absolute path on the cluster.

    `options` are the scheduler's, a directive each; `program` is the argv before the embedded queue's commands.
    """

    every_seconds: int
    folder: str
    options: tuple[str, ...] = ()
    program: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """hourly, daily, weekly, or the interval: 15m, 90s."""
        return label_of(self.every_seconds)

    @property
    def name(self) -> str:
        """Of the job; at most 15 letters, which is all that some PBS take."""
        return job_name(self.label)

    @property
    def script_path(self) -> str:
        """The job's own script: moved away it is taken out."""
        return f"{self.folder}/scheduler/{self.name}.sh"

    @property
    def scripts_folder(self) -> str:
        """Where the scripts are that it runs."""
        return f"{self.folder}/cron.{self.label}"

    @property
    def output_folder(self) -> str:
        return f"{self.folder}/outputs/{self.label}"


def interval_of(label: str) -> str:
    """A label as `--every` takes it: 1h of hourly, 15m as it is."""
    return _INTERVALS.get(label, label)


def label_of(every_seconds: int) -> str:
    """The shortest way to write an interval, that is also a folder's name."""
    if named := _NAMED.get(every_seconds):
        return named
    for unit, letter in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if every_seconds % unit == 0:
            return f"{every_seconds // unit}{letter}"
    return f"{every_seconds}s"


def job_name(label: str) -> str:
    return f"hpcdash-{label}"


def label_in(name: str) -> str | None:
    """The label of a job's or script's name; None for one of another kind."""
    label = name.removesuffix(".sh").removeprefix("hpcdash-")
    return label if name.startswith("hpcdash-") and _LABEL.fullmatch(label) else None


def cron_script(job: CronJob, scheduler: str) -> str:
    """The script for `slurm`, `pbs` or `local`; raises UsageError for another one, or what no script can hold."""
    if scheduler not in _SCHEDULERS:
        raise UsageError(f"there is no cron job for {scheduler!r}", f"For {', '.join(_SCHEDULERS)}.")
    if not job.folder.startswith("/"):
        raise UsageError(f"{job.folder!r} is no path from the root", "A job may start in any folder.")
    for word in (job.folder, *job.options, *job.program):
        if not word.isprintable():
            raise UsageError(f"{word!r} holds what does not print", "Choose another one.")
    if re.search(r"[\s%\\'\"]", job.folder):
        raise UsageError(
            f"{job.folder!r}: schedulers take no blank, quote, % or \\ in an output's path", "Choose another."
        )
    directives, functions = _SCHEDULERS[scheduler](job)
    head = "\n".join(("#!/bin/sh", *directives))
    values = {
        "SELF": job.script_path,
        "SCRIPTS": job.scripts_folder,
        "OUTPUTS": job.output_folder,
        "NAME": job.name,
        "EVERY": str(job.every_seconds),
        "SECONDS": str(SCRIPT_SECONDS),
        "DAYS": str(KEEP_DAYS - 1),
    }
    return f"{head}\n{_filled(_BEGINNING, values)}{_filled(functions, values)}{_filled(_REST, values)}"


# No `set -e`: whatever fails, the rest is done all the same.
_BEGINNING = """
# Submits itself again, then runs every script of a folder. To end it, move this file away.
self=@SELF@ scripts=@SCRIPTS@ outputs=@OUTPUTS@ name=@NAME@ every=@EVERY@
if [ ! -f "$self" ]; then
  echo "$self is not there any more: this is the end"
  exit 0
fi
"""
_REST = """
again() {
  [ -f "$self" ] || { echo "$self is not there any more: this is the last time"; return 0; }
  others=$(waiting) && [ "$others" ] && { echo "one waits already:" $others; return 0; }
  submit_again
}
is_submitted=
for pause in 0 5 20 60; do
  sleep "$pause"
  if again; then is_submitted=1; break; fi
done

if elder; then
  echo "the one before still runs: it has the scripts"
else
  cd "$scripts" || exit
  for script in "$scripts"/*; do
    case $script in
      *~ | *.bak | *.off) continue ;;
      *.sbatch | *.slurm | *.pbs) echo "submits $script"; hand_in "$script"; continue ;;
    esac
    [ -f "$script" ] || continue
    if [ ! -x "$script" ]; then echo "$script is not executable: left out"; continue; fi
    echo "$(date '+%Y-%m-%d %H:%M:%S') $script"
    timeout -k 10 @SECONDS@ "$script" </dev/null
    echo "exit status $?: $script"
  done
fi

find "$outputs" -type f -mtime +@DAYS@ -exec rm -f {} +
if [ ! "$is_submitted" ]; then
  sleep 60
  again || { echo "it could not be submitted again, and comes no more: hpcdash cron --install"; exit 1; }
fi
exit 0
"""
# What a job is told of itself is not for those it submits; SLURM_CONF says which cluster it is.
_SLURM = """
plain() (
  for variable in $(env | sed -n -e 's/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
    [ "$variable" = SLURM_CONF ] || unset "$variable"
  done
  exec "$@"
)
waiting() { squeue -h -u "$(id -un)" -n "$name" -t PENDING -o %i; }
submit_again() { plain sbatch --begin="now+$every" "$self"; }
hand_in() { plain sbatch "$1"; }
# Its dependency, singleton, lets no two run at once.
elder() { false; }
"""
_PBS = """
waiting() { qselect -u "$(id -un)" -N "$name" -s HQW; }
submit_again() { qsub -a "$(date -d "+$every seconds" +%Y%m%d%H%M.%S)" "$self"; }
hand_in() { qsub "$1"; }
elder() {
  for other in $(qselect -u "$(id -un)" -N "$name" -s R); do
    [ "${other%%.*}" -lt "${PBS_JOBID%%.*}" ] && return 0
  done
  return 1
}
"""
_LOCAL = """
queue() { @PROGRAM@ "$@"; }
waiting() {
  queue jobs | @PYTHON@ -I -S -c 'import json, sys
columns = json.load(sys.stdin)["columns"]
rows = zip(columns["id"], columns["name"], columns["state"])
print(*[number for number, name, state in rows if name == sys.argv[1] and state in ("pending", "held")])' "$name"
}
submit_again() { queue submit --begin="now+$every" "$self"; }
hand_in() { queue submit "$1"; }
# Its dependency, singleton, lets no two run at once.
elder() { false; }
"""


def _slurm(job: CronJob) -> tuple[list[str], str]:
    words = [
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--time={format_clock(LIMIT_SECONDS)}",
        f"--output={job.output_folder}/%j.out",
        "--dependency=singleton",
        *job.options,
    ]
    return [f"#SBATCH {word}" for word in words], _SLURM


def _pbs(job: CronJob) -> tuple[list[str], str]:
    words = [
        f"-N {job.name}",
        "-l select=1:ncpus=1",
        f"-l walltime={format_clock(LIMIT_SECONDS)}",
        "-j oe",
        f"-o {job.output_folder}/",
        *job.options,
    ]
    return [f"#PBS {word}" for word in words], _PBS


def _local(job: CronJob) -> tuple[list[str], str]:
    directives, _ = _slurm(job)
    program = " ".join(map(shlex.quote, job.program))
    return directives, _LOCAL.replace("@PROGRAM@", program).replace("@PYTHON@", shlex.quote(job.program[0]))


_SCHEDULERS: Mapping[str, Callable[[CronJob], tuple[list[str], str]]] = {"slurm": _slurm, "pbs": _pbs, "local": _local}


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", shlex.quote(value))
    return text


def watch_script(argv: tuple[str, ...], variables: Mapping[str, str]) -> str:
    """A script that runs one round of the watchdogs; `variables` are set for it."""
    words = " ".join(map(shlex.quote, argv))
    settings = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
    return f"#!/bin/sh\n{settings}exec {words}\n"
