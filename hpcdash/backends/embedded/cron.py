"""The job that stands in for cron, on the embedded queue: with Slurm's directives."""

from __future__ import annotations

import shlex

from hpcdash.backends.script.cron import CronJob, CronParts
from hpcdash.backends.slurm import cron as slurm

_FUNCTIONS = """
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


def cron_parts(job: CronJob) -> CronParts:
    """`job.program` is the argv before the queue's commands."""
    program = " ".join(map(shlex.quote, job.program))
    functions = _FUNCTIONS.replace("@PROGRAM@", program).replace(
        "@PYTHON@", shlex.quote(job.program[0])
    )
    return CronParts(slurm.cron_parts(job).directives, functions)
