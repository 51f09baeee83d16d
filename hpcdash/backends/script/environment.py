"""Environment of a job on one scheduler, in the form that the bash of generated scripts reads."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

# (nodes, extra_args) of each job that is needed to have just these nodes.
NodeJobs: TypeAlias = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


class JobEnvironment(Struct, frozen=True):
    """Names of variables, without `$`; '' where the scheduler has none.

    `own` are patterns of the scheduler's variables. `log_name` and `array_log_name` are bash for
    the names of a job's and a task's logs, without their endings. `node_slots` and
    `slots_in_all` are counted by the script where the scheduler packs slots that are not counted a
    node. `is_inherited`: what the script exports reaches the command on each node. `hosts` is bash
    for `host:slots` of all nodes with commas between, where @EACH are the slots of one. `node_name`
    is bash for that of a node. `has_pyxis`: containers are options of what starts the command.
    `finds_nodes`: the scheduler finds nodes for a number of GPUs, whatever each of them has.
    """

    scheduler: str
    own: tuple[str, ...]
    array_task: str
    log_name: str
    array_log_name: str
    node_count: str
    node_rank: str
    node_slots: str = ""
    slots_in_all: str = ""
    is_inherited: bool = False
    finds_nodes: bool = False
    hosts: str = ""
    has_pyxis: bool = False
    node_name: str = "$HOSTNAME"
