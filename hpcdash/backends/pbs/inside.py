"""A command on each node of a running job, by ssh from the login node: PBS itself starts nothing
there.
"""

from __future__ import annotations

import re
import shlex

from hpcdash.backends.inside import (
    GRACE_SECONDS,
    InsideCommand,
    InsideStep,
    exactly,
    fresh_frame_token,
    held,
)
from hpcdash.backends.queries import Answer, Row
from hpcdash.domain.nodelist import expand
from hpcdash.domain.text import visible
from hpcdash.errors import SchedulerRefused, UsageError, excerpt
from hpcdash.shell_files import shell_text

MAX_NODES = 32
# A node's name comes from the scheduler: no option, no user@, no shell's letters.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# No master is made: it would stay behind. One that is open is used.
_OPTIONS = (
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
    "-oControlMaster=no",
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",
    "-oForwardX11=no",
)


def inside_step(row: Row, command: InsideCommand) -> InsideStep:
    """ssh to each node, 32 at most. Raises UsageError where the nodes are not known."""
    nodes = expand(row["node_list"] or "")
    if not nodes:
        raise UsageError(
            f"the nodes of job {visible(str(row['id']))} are unknown",
            "Try again in a moment.",
        )
    for node in nodes:
        if not _HOST.fullmatch(node):
            raise UsageError(f"{visible(node)} is not a valid host name")
    token = fresh_frame_token()
    script, *arguments = command.arguments(token, str(row["work_dir"] or ""), as_job=True)
    job_id = str(row["id"])
    number, _, server = job_id.partition(".")
    variables = {
        "HPCDASH_JOB_CGROUP": job_id if "." in job_id else "",
        "HPCDASH_JOB_PATTERNS": rf"^PBS_JOBID={exactly(number)}(\..*)?$",
        "HPCDASH_NODE_VARIABLE": "",
        "HPCDASH_RANK_VARIABLE": "",
        "HPCDASH_JOB_VARIABLES": "PBS_JOBID",
        "HPCDASH_JOB_SUFFIX": f".{server}" if server else "",
        "HPCDASH_JOB_SAME": "",
    }
    # Read whole before any of it runs: what follows on stdin is the script's.
    text = "\n".join(
        (
            "{",
            "export LC_ALL=C "
            + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()),
            shlex.join(("set", "--", *arguments[1:])),
            script,
            "}",
        )
    )
    hosts = tuple(nodes[:MAX_NODES])
    skipped = tuple(nodes[MAX_NODES:])
    seconds = command.seconds + GRACE_SECONDS
    argv = held(
        seconds,
        "sh",
        "-c",
        shell_text("backends/pbs/inside.sh"),
        "sh",
        token,
        text,
        str(len(hosts)),
        *hosts,
        "ssh",
        *_OPTIONS,
        "--",
    )
    return InsideStep(
        argv, token, seconds + 15.0, _failure, nodes=hosts, command=("ssh",), skipped=skipped
    )


def _failure(answer: Answer) -> SchedulerRefused:
    text = excerpt(answer.stderr) or "no output"
    return SchedulerRefused(
        "none of the job's nodes could be reached by ssh from the login node",
        "Try it by hand, on the login node: ssh NODE",
        argv=("ssh",),
        status=answer.status,
        output=text,
    )
