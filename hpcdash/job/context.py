"""Place of a process in its job, from the environment of Slurm, PBS, embedded queue or Ray.

Queries no scheduler; values missing in the environment are None or empty.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from hpcdash.job.rank_variables import (
    MPI_LOCAL_RANKS,
    MPI_LOCAL_SIZES,
    MPI_SIZES,
    find_rank,
    first_whole_number,
    is_launcher_set,
    whole_number,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    Value = TypeVar("Value")

# Port of PyTorch's own launchers, used outside a job.
DEFAULT_MASTER_PORT = 29500
MAX_HOSTS = 100_000
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,9}))?)?", re.ASCII)
_COMMA_OUTSIDE = re.compile(r",(?![^\[\]]*\])")
# Below the ports that Linux assigns to any process: 32768 and up.
_FIRST_PORT = 20000
_PORTS = 12000
_PORTS_PER_STEP = 1009
_LONGEST_NODEFILE_BYTES = 16 << 20


@dataclass(frozen=True)
class JobContext:
    """Process of a job. Ranks count from 0; unknown values are None or ().

    `rank` counts all processes, `local_rank` the processes of the node, `node_rank` the nodes of
    the job. `hostnames` has each host once, in the scheduler's order; `output_dir` is JOB_DIR. In a
    process that srun or mpirun started, their variables take precedence over RANK, LOCAL_RANK and
    WORLD_SIZE; in one that torchrun, accelerate or deepspeed started, these three do
    (`rank_variables.is_launcher_set` distinguishes the two).

    `master_port` is MASTER_PORT, else 20000 to 31999 by the numbers of the job, its array task and
    its step: the same in all ranks of a step, different in neighbouring jobs and steps. Outside a
    job it is 29500.

        >>> from hpcdash.job import current_job_context
        >>> job = current_job_context()
        >>> job.rank, job.world_size, job.hostnames                           # doctest: +SKIP
        (3, 8, ('gpu01', 'gpu02'))
    """

    job_id: str | None = None
    step_id: str | None = None
    node_rank: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    num_nodes: int | None = None
    local_world_size: int | None = None
    gpus_per_node: int | None = None
    hostnames: tuple[str, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
    output_dir: str | None = None
    array_index: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> JobContext:
        """Return the context of an environment, by default this process's own."""
        given = os.environ if environment is None else environment
        slots = _nodefile(given.get("PBS_NODEFILE", ""))
        hosts = _hosts(given) or tuple(dict.fromkeys(slots))
        is_launched = is_launcher_set(given)
        local_ranks = () if is_launched else (*MPI_LOCAL_RANKS, "SLURM_LOCALID")
        sizes = () if is_launched else (*MPI_SIZES, "SLURM_NTASKS", "SLURM_NPROCS")
        local_world_size = first_whole_number(given, "LOCAL_WORLD_SIZE")
        if not is_launched:
            local_world_size = _local_world_size(given, slots)
        return cls(
            job_id=_text(given, "SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "HPCDASH_JOB_ID"),
            step_id=_text(given, "SLURM_STEP_ID", "SLURM_STEPID", "PBS_TASKNUM"),
            node_rank=first_whole_number(given, "SLURM_NODEID", "PBS_NODENUM", "NODE_RANK"),
            rank=find_rank(given),
            local_rank=first_whole_number(given, *local_ranks, "LOCAL_RANK"),
            world_size=_first(first_whole_number(given, *sizes, "WORLD_SIZE"), len(slots)),
            num_nodes=_first(
                first_whole_number(given, "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NUM_NODES"),
                len(hosts),
            ),
            local_world_size=local_world_size,
            gpus_per_node=_gpus(given),
            hostnames=hosts,
            master_addr=_first(
                _text(given, "MASTER_ADDR"), *hosts[:1], _text(given, "SLURM_LAUNCH_NODE_IPADDR")
            ),
            master_port=first_whole_number(given, "MASTER_PORT") or _port(given),
            output_dir=_text(given, "JOB_DIR"),
            array_index=first_whole_number(
                given, "SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID"
            ),
        )

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0 or a process without ranks: it writes logs and deletes files."""
        return not self.rank

    def torch_distributed_env(self) -> dict[str, str]:
        """Return the variables of `torch.distributed.init_process_group("nccl")` as text, without
        unknown ones.

            os.environ.update(current_job_context().torch_distributed_env())
        """
        values = {
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": self.master_port,
            "WORLD_SIZE": self.world_size,
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "NODE_RANK": self.node_rank,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


@lru_cache(maxsize=None)
def current_job_context() -> JobContext:
    """Return this process's context, which is read at the first call."""
    return JobContext.from_environment()


def torch_distributed_env() -> dict[str, str]:
    """Return this process's variables; see JobContext.torch_distributed_env."""
    return current_job_context().torch_distributed_env()


def _first(*values: Value | None) -> Value | None:
    """Return the first known value; a count of 0 is unknown."""
    return next((value for value in values if value not in (None, "", 0)), None)


def _text(given: Mapping[str, str], *names: str) -> str | None:
    return next((given[name] for name in names if given.get(name)), None)


def _hosts(given: Mapping[str, str]) -> tuple[str, ...]:
    names = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
    lists = (expand_hosts(given[name]) for name in names if given.get(name))
    return next((hosts for hosts in lists if hosts), ())


def _port(given: Mapping[str, str]) -> int:
    # `123.server` and `123[4].server` of PBS, whose array tasks have one number.
    job_id = _text(given, "SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID") or ""
    job = whole_number(job_id.partition(".")[0].partition("[")[0])
    if job is None:
        return DEFAULT_MASTER_PORT
    if not given.get("SLURM_JOB_ID"):
        job += first_whole_number(given, "PBS_ARRAY_INDEX", "PBS_ARRAYID") or 0
    # Open MPI's mpirun starts its processes in a step, except those on the first node.
    is_mpirun = "OMPI_COMM_WORLD_RANK" in given
    step = None if is_mpirun else first_whole_number(given, "SLURM_STEP_ID", "SLURM_STEPID")
    return _FIRST_PORT + (job + _PORTS_PER_STEP * (step or 0)) % _PORTS


def _local_world_size(given: Mapping[str, str], slots: tuple[str, ...]) -> int | None:
    # A step takes precedence over its job: with `srun -n3` on two nodes of two tasks each, the
    # second node has one task.
    counted = [
        first_whole_number(given, *MPI_LOCAL_SIZES),
        _node_value(given, "SLURM_STEP_TASKS_PER_NODE"),
        _node_value(given, "SLURM_NTASKS_PER_NODE"),
        # For a node that is missing there: each has the requested number of tasks.
        whole_number(given.get("SLURM_NTASKS_PER_NODE", "").partition("(")[0]),
        first_whole_number(given, "LOCAL_WORLD_SIZE"),
        _node_value(given, "SLURM_TASKS_PER_NODE"),
    ]
    counts = set(Counter(slots).values())
    return _first(*counted, counts.pop() if len(counts) == 1 else None)


def _node_value(given: Mapping[str, str], name: str) -> int | None:
    """Return this node's number in `4(x2),3`, which is 4 for the first two nodes, then 3.

    It is the first number if the node is unknown, None if the list has none for it.
    """
    node = first_whole_number(given, "SLURM_NODEID") or 0
    for part in given.get(name, "").split(","):
        count, _, times = part.partition("(x")
        node -= (whole_number(times.rstrip(")")) or 1) if times else 1
        if node < 0:
            return whole_number(count)
    return None


def _gpus(given: Mapping[str, str]) -> int | None:
    """Return the sum of `4`, `a100:4` or `a100:2,v100:1`; else the number of GPUs on this node."""
    total = 0
    for part in given.get("SLURM_GPUS_PER_NODE", "").split(","):
        count = whole_number(part.rpartition(":")[2])
        if count is None:
            return first_whole_number(given, "SLURM_GPUS_ON_NODE")
        total += count
    return total


def _nodefile(path: str) -> tuple[str, ...]:
    """Return the hosts in PBS_NODEFILE, one for each requested process; () if unreadable."""
    try:
        if not path or os.path.getsize(path) > _LONGEST_NODEFILE_BYTES:
            return ()
        with open(path, encoding="utf-8", errors="replace") as lines:
            return tuple(line.strip() for line in lines if line.strip())
    except OSError:
        return ()


def expand_hosts(hosts: str) -> tuple[str, ...]:
    """Return the names in a list of hosts, in its order; () if it is malformed or too long.

    >>> expand_hosts("gpu[08-10],login")
    ('gpu08', 'gpu09', 'gpu10', 'login')
    """
    names: list[str] = []
    for part in _COMMA_OUTSIDE.split(hosts.strip()):
        pieces = _BRACKETS.split(part)
        if any("[" in literal or "]" in literal for literal in pieces[::2]):
            return ()
        choices = [_numbers(body) for body in pieces[1::2]]
        total = 1
        for choice in choices:
            total *= len(choice)
        if not total or total + len(names) > MAX_HOSTS:
            return ()
        for numbers in product(*choices):
            pieces[1::2] = numbers
            names.append("".join(pieces))
    return tuple(filter(None, names))


def _numbers(body: str) -> list[str]:
    """Return the numbers of `1-3,07,1-9:2` as texts, padded like the first of each range.

    The list is empty if the text is no list of ranges.
    """
    texts: list[str] = []
    for item in body.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            return []
        low = int(match[1])
        high = int(match[2] or low)
        step = int(match[3] or 1)
        if high < low or not step or (high - low) // step >= MAX_HOSTS:
            return []
        texts += [str(number).zfill(len(match[1])) for number in range(low, high + 1, step)]
    return texts
