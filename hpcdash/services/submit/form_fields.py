"""The fields of the form that a request is typed into: their names, groups and what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hpcdash.domain.request import Launcher, Runtime, SlotType

HERE, THERE = "here", "cluster"
YES, NO = "yes", "no"
# Fields that no request has.
OF_THE_FORM = frozenset({"file", "file_where", "arguments", "chain", "saves_every", "save_takes"})


class FieldKind(StrEnum):
    """How what is typed becomes a value of REQUEST.toml."""

    TEXT = "text"
    LINES = "lines"
    COUNT = "count"
    FLAG = "flag"
    # As usual where it is empty: yes.
    UNLESS_NO = "unless no"
    # Words with blanks between them, an option or a bind each.
    WORDS = "words"
    OPTIONS = "options"
    # NAME=value, one a line.
    PAIRS = "pairs"


class Way(StrEnum):
    """What is submitted: a script that is made of a request, or one that is there, as it is."""

    REQUEST = "request"
    SCRIPT = "script"


BOTH_WAYS = frozenset(Way)
REQUEST_ONLY = frozenset({Way.REQUEST})
SCRIPT_ONLY = frozenset({Way.SCRIPT})


@dataclass(frozen=True, slots=True)
class FormField:
    """One field. `name` is its key in REQUEST.toml, or the form's own; `choices` are all there is, if any."""

    name: str
    label: str
    hint: str
    kind: FieldKind = FieldKind.TEXT
    example: str = ""
    choices: tuple[str, ...] = ()
    ways: frozenset[Way] = REQUEST_ONLY


@dataclass(frozen=True, slots=True)
class FormGroup:
    """Fields under a heading; `is_open` at first."""

    title: str
    fields: tuple[FormField, ...]
    is_open: bool = False


_RUNS = FormGroup(
    "Command",
    (
        FormField("name", "name", "the job's name; empty: generated", example="train-llm"),
        FormField(
            "command",
            "command",
            "run on each node: one or more lines of bash",
            FieldKind.LINES,
            "python train.py --config base.yaml",
        ),
        FormField(
            "files",
            "files",
            "folders and files of this machine to send; the command starts in them. What git ignores is left out",
            FieldKind.WORDS,
            ".",
        ),
        FormField("script", "script", "a program or script there to run instead of a command", example="run.sh"),
        FormField(
            "file",
            "batch script",
            "its own directives count; what is filled in below is said on the command line, over them",
            example="train.sbatch",
            ways=SCRIPT_ONLY,
        ),
        FormField(
            "file_where",
            "it is",
            "on this machine (handed over on stdin), or on the cluster",
            example=HERE,
            choices=(HERE, THERE),
            ways=SCRIPT_ONLY,
        ),
        FormField(
            "arguments",
            "arguments",
            "words after the script's name",
            FieldKind.WORDS,
            "--epochs 10",
            ways=SCRIPT_ONLY,
        ),
    ),
    is_open=True,
)
_GETS = FormGroup(
    "Resources",
    (
        FormField("queue", "queue", "partition or queue; empty: the default one", ways=BOTH_WAYS),
        FormField("slots", "slots", "GPUs (or CPUs) in total; 0 is one core", FieldKind.COUNT, "1"),
        FormField("slots_per_node", "per node", "how many of them on each node", FieldKind.COUNT),
        FormField("slot_type", "slot type", "a GPU (cuda, rocm) or a CPU core", choices=tuple(SlotType)),
        FormField("gpu_type", "GPU type", "which GPUs; empty: any"),
        FormField(
            "cpus_per_gpu",
            "CPUs a GPU",
            "CPUs with each GPU; empty: a node's share on PBS, the site's default on Slurm",
            FieldKind.COUNT,
        ),
        FormField("memory", "memory", "of each node, with a unit", example="64G"),
        FormField("time", "time", "time limit; empty: the queue's default", example="2h, 1-12:00:00", ways=BOTH_WAYS),
    ),
    is_open=True,
)
_WHEN = FormGroup(
    "Array, chain and dependencies",
    (
        FormField(
            "array",
            "array",
            "tasks: 1-10, 1-10%1 one at a time, 1,5,9; empty: one job",
            example="1-10%1",
            ways=BOTH_WAYS,
        ),
        FormField("after", "after", "jobs whose end it waits for, however they end", FieldKind.WORDS, ways=BOTH_WAYS),
        FormField(
            "chain",
            "chain length",
            "how many jobs, each after the end of the one before: for a training longer than the limit",
            FieldKind.COUNT,
            "1",
            ways=BOTH_WAYS,
        ),
        FormField("begin", "begin", "not before: 2026-12-01T08:00 by the cluster's clock, or +2h", example="+2h"),
        FormField("hold", "held", "it waits until it is released", FieldKind.FLAG, ways=BOTH_WAYS),
    ),
)
_ACCOUNT = FormGroup(
    "Account & priority",
    (
        FormField("account", "account", "who pays; empty: your default account"),
        FormField("qos", "QoS", "quality of service: limits and priority"),
        FormField("project", "project", "what it is accounted to (Slurm: wckey)"),
    ),
)
_WHERE = FormGroup(
    "Directory & environment",
    (
        FormField("work_dir", "work folder", "the folder there it runs in; empty: home", example="/scratch/me/run"),
        FormField("environment", "environment", "NAME=value, one a line", FieldKind.PAIRS, "NCCL_DEBUG=INFO"),
    ),
)
_CONTAINER = FormGroup(
    "Container",
    (
        FormField("container.image", "image", "empty: no container", example="docker://python:3.12, /images/torch.sif"),
        FormField("container.runtime", "runtime", "what runs it; empty: apptainer", choices=tuple(Runtime)),
        FormField(
            "container.binds",
            "binds",
            "SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro",
            FieldKind.WORDS,
            "/scratch/data:/data:ro",
        ),
    ),
)
_ENDS = FormGroup(
    "Signals & requeue",
    (
        FormField("signal", "signal", "USR1@600: USR1 so many seconds before its time is up", example="USR1@600"),
        FormField("requeue", "requeue", "it may be started again after preemption or a node's failure", FieldKind.FLAG),
        FormField(
            "kill_switch", "kill switch", "a file: when it appears, the training stops", example="/scratch/me/KILL"
        ),
        FormField("save_switch", "save switch", "a file: when it appears, a checkpoint is saved"),
        FormField(
            "checkpoints",
            "checkpoints",
            "the folder it saves into: each start is told the newest whole one, as $HPCDASH_RESUME_FROM",
            example="/scratch/me/run/checkpoints",
        ),
        FormField(
            "saves_every", "saves every", "how often it saves by itself; the overhead is estimated", example="3h"
        ),
        FormField("save_takes", "a save takes", "how long one pauses the training", example="40s"),
    ),
)
_MORE = FormGroup(
    "More",
    (
        FormField("startup_hook", "startup hook", "bash that each node runs once before the command", FieldKind.LINES),
        FormField("launcher", "launcher", "what starts the command's processes", choices=tuple(Launcher)),
        FormField(
            "job_library",
            "job library",
            "hpcdash.job, which the command can import; empty: yes",
            FieldKind.UNLESS_NO,
            choices=(YES, NO),
        ),
        FormField("exclude_nodes", "not on", "nodes that it must not get", FieldKind.WORDS, "n[01-03] n17"),
        FormField("extra_args", "more options", "of sbatch or qsub, as typed", FieldKind.OPTIONS, ways=BOTH_WAYS),
        FormField("place", "place", "PBS: how its chunks lie, and whom they share nodes with", example="scatter:excl"),
        FormField("attributes", "attributes", "PBS: of qsub -W", FieldKind.WORDS, "group_list=lab umask=027"),
        FormField(
            "keep_files", "keep files", "PBS: of qsub -k; empty: oed, logs are written while it runs", example="oed"
        ),
    ),
)
GROUPS = (_RUNS, _GETS, _WHEN, _ACCOUNT, _WHERE, _CONTAINER, _ENDS, _MORE)
FIELDS = {field.name: field for group in GROUPS for field in group.fields}
