"""Blocks of lines of sbatch's generated scripts, by which they are recognised."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import product

from hpcdash.backends.script.blocks import (
    EARLY,
    END_TIME,
    FOLDER,
    NUMBER,
    SIGNAL,
    SIGNALLED,
    STARTED,
    file_blocks,
    shared_blocks,
    text_block,
)
from hpcdash.backends.slurm import script
from hpcdash.domain.scripts import ScriptBlock
from hpcdash.job.preemption import STOPPED_EARLY
from hpcdash.shell_files import shell_text

_LOG = f"{FOLDER}/$SLURM_JOB_ID"
_ARRAY_LOG = f"{FOLDER}/${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
_STATUS = "exit status: keeps the status of the rank that failed first"
_FILES = {
    "address: rendezvous of the ranks": "slurm/address",
    "steps before: runs a step on all nodes before the command": "slurm/prepare_nodes",
}


@cache
def script_blocks() -> tuple[ScriptBlock, ...]:
    """Return all blocks that such a script may have."""
    return (*shared_blocks(), *_own_blocks())


def _own_blocks() -> Iterator[ScriptBlock]:
    yield from file_blocks(_FILES)
    yield text_block(END_TIME, script.end_time(NUMBER), script.end_time(None))
    yield text_block(SIGNALLED, *map(script.signal_trap, EARLY))
    nodes = shell_text("backends/slurm/require_nodes.sh")
    nodes += f"require_nodes {NUMBER}"
    yield text_block("node count: ends a job that got a different number of nodes", nodes)
    for log in (_LOG, _ARRAY_LOG):
        requeue = f"export {STOPPED_EARLY}={log}.stopped\n"
        requeue += shell_text("backends/slurm/requeue.sh")
        yield text_block("requeue: requeues a preempted job that has saved and ended", requeue)
    end = f"status=$?\nrequeue_preempted {NUMBER} ''\nexit \"$status\""
    yield text_block("requeue: exits with the command's status, unless requeued", end)
    for signal, log, is_alone in product(("", SIGNAL), ("", _LOG, _ARRAY_LOG), (True, False)):
        text = script.keep_status((), signal, log=log, is_alone=is_alone)[0]
        yield text_block(_STATUS, text)
    # One command line for each way to start it, in this shell and behind it.
    here: list[str] = []
    behind: list[str] = []
    for arguments in STARTED:
        here.append(script.srun_line(arguments, is_lone=True, tasks_per_node=None))
        behind.append(script.fanout(arguments, {}, is_lone=True, tasks_per_node=None))
        for parts in (arguments, script.keep_status(arguments)[1]):
            for count in (1, None, NUMBER):
                for options in ((), script.SRUN_OPTIONS):
                    srun = partial(script.srun_line, parts, tasks_per_node=count)
                    here.append(srun(srun_options=options))
                    srun = partial(script.fanout, parts, {}, step=NUMBER, tasks_per_node=count)
                    behind.append(srun(srun_options=options))
    yield text_block("start: starts the command on the nodes", *here)
    yield text_block("start: starts, signals and waits for the command on the nodes", *behind)
