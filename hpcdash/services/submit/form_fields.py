"""Fields of the submission form: their names, groups and hints."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from hpcdash.domain.request import Launcher, Runtime, SlotType
from hpcdash.domain.share import LEVELS, Priority

if TYPE_CHECKING:
    from hpcdash.backends.base import Backend

HERE = "here"
THERE = "cluster"
YES = "yes"
NO = "no"
_PRIORITIES = tuple(one.name for one in (Priority.AUTO, *LEVELS))
# Fields without a key in a request.
FORM_ONLY = frozenset({"file", "file_where", "arguments", "chain", "saves_every", "save_takes"})


class FieldKind(StrEnum):
    """Conversion of typed text to a value of REQUEST.toml."""

    TEXT = "text"
    LINES = "lines"
    COUNT = "count"
    # One number, or several separated by blanks.
    COUNTS = "counts"
    FLAG = "flag"
    # Empty: yes.
    UNLESS_NO = "unless no"
    # Words separated by blanks, such as binds.
    WORDS = "words"
    OPTIONS = "options"
    # NAME=value, one per line.
    PAIRS = "pairs"


class Way(StrEnum):
    """Source of the submitted script: made from a request, or an existing one as it is."""

    REQUEST = "request"
    SCRIPT = "script"


BOTH_WAYS = frozenset(Way)
REQUEST_ONLY = frozenset({Way.REQUEST})
SCRIPT_ONLY = frozenset({Way.SCRIPT})


class FormField(Struct, frozen=True):
    """One field.

    `name` is its key in REQUEST.toml, or the form's own; `choices` are the only valid values, if
    any.
    """

    name: str
    label: str
    hint: str
    kind: FieldKind = FieldKind.TEXT
    example: str = ""
    choices: tuple[str, ...] = ()
    ways: frozenset[Way] = REQUEST_ONLY


class FormGroup(Struct, frozen=True):
    """Fields under a heading; `is_open` at first."""

    title: str
    fields: tuple[FormField, ...]
    is_open: bool = False


_RUNS = FormGroup(
    "Command",
    (
        FormField(
            "command",
            "command",
            "bash lines to run on each node",
            FieldKind.LINES,
            "python train.py --config base.yaml",
        ),
        FormField("name", "name", "job name (default: generated)", example="train-llm"),
        FormField(
            "files",
            "files",
            "local files and folders to send; the command starts there. Files ignored by git "
            "are omitted",
            FieldKind.WORDS,
            ".",
        ),
        FormField(
            "script",
            "script",
            "program or script on the cluster, instead of a command",
            example="run.sh",
        ),
        FormField(
            "plain",
            "plain script",
            "only directives and the command, without hpcdash.job, switches, early signal, resume",
            FieldKind.FLAG,
        ),
        FormField(
            "file",
            "batch script",
            "the script's directives apply; the fields below override them on the command line",
            example="train.sbatch",
            ways=SCRIPT_ONLY,
        ),
        FormField(
            "file_where",
            "location",
            "on this machine (sent on stdin) or on the cluster",
            example=HERE,
            choices=(HERE, THERE),
            ways=SCRIPT_ONLY,
        ),
        FormField(
            "arguments",
            "arguments",
            "arguments for the script",
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
        FormField("queue", "queue", "partition or queue; default: the cluster's", ways=BOTH_WAYS),
        # The form renames it once the type of slots is known.
        FormField(
            "slots",
            "GPUs or CPUs",
            "GPUs (or CPUs) in total; 0: one core",
            FieldKind.COUNT,
            "1",
        ),
        FormField("slots_per_node", "per node", "GPUs or CPUs on each node", FieldKind.COUNT),
        FormField("slot_type", "resource", "GPU (cuda, rocm) or CPU core", choices=tuple(SlotType)),
        FormField("gpu_type", "GPU type", "GPU model; default: any"),
        FormField(
            "cpus_per_gpu",
            "CPUs per GPU",
            "CPUs per GPU; default: a node's share on PBS, the site's default on Slurm",
            FieldKind.COUNT,
        ),
        FormField("memory", "memory", "memory per node, with a unit", example="64G"),
        FormField(
            "time",
            "time",
            "time limit; default: the queue's",
            example="2h, 1-12:00:00",
            ways=BOTH_WAYS,
        ),
    ),
    is_open=True,
)
_WHEN = FormGroup(
    "Array, chain and dependencies",
    (
        FormField(
            "array",
            "array",
            "tasks: 1-10, 1-10%1 one at a time, 1,5,9; default: one job",
            example="1-10%1",
            ways=BOTH_WAYS,
        ),
        FormField(
            "after",
            "after",
            "start after these jobs end; afterok:12 requires success",
            FieldKind.WORDS,
            ways=BOTH_WAYS,
        ),
        FormField(
            "chain",
            "chain length",
            "number of jobs, each starting after the previous one ends; for runs longer than the "
            "time limit",
            FieldKind.COUNT,
            "1",
            ways=BOTH_WAYS,
        ),
        FormField(
            "begin",
            "begin",
            "earliest start: 2026-12-01T08:00 in the cluster's time, or +2h",
            example="+2h",
        ),
        FormField("hold", "held", "submit held, until released", FieldKind.FLAG, ways=BOTH_WAYS),
    ),
)
_POOL = FormGroup(
    "Shared pool",
    (
        FormField("pool", "pool", "pool to run in (default: the only one)", example="lab"),
        FormField(
            "share",
            "share",
            "priority in the pool; default: AUTO with a pool, otherwise no pool",
            choices=_PRIORITIES,
        ),
        FormField(
            "labels",
            "labels",
            "free text for searches; some sites use it for accounting",
            FieldKind.WORDS,
            "nlp 7B",
        ),
    ),
)
_SLICES = FormGroup(
    "Slices",
    (
        FormField("slice", "slice", "TPU slice type; default: one node", example="v4-256"),
        FormField(
            "num_slices",
            "slices",
            "number of slices, or several acceptable numbers",
            FieldKind.COUNTS,
            "2 4 8",
        ),
        FormField(
            "tpus_per_worker",
            "TPUs",
            "TPUs per worker; default: the worker's chips",
            FieldKind.COUNT,
        ),
        FormField(
            "retries_preemption",
            "preemptions",
            "retries after preemptions",
            FieldKind.COUNT,
            "10000",
        ),
        FormField("retries_failure", "failures", "retries after failures", FieldKind.COUNT, "10"),
    ),
)
_ACCOUNT = FormGroup(
    "Account & priority",
    (
        FormField("account", "account", "account to charge; default: your own"),
        FormField("qos", "QoS", "quality of service: limits and priority"),
        FormField("reservation", "reservation", "reservation to run in"),
        FormField("project", "project", "project for accounting (Slurm: wckey)"),
    ),
)
_WHERE = FormGroup(
    "Directory & environment",
    (
        FormField(
            "work_dir",
            "work dir",
            "working directory on the cluster; default: home",
            example="/scratch/me/run",
        ),
        FormField(
            "environment",
            "environment",
            "NAME=value, one per line",
            FieldKind.PAIRS,
            "NCCL_DEBUG=INFO",
        ),
    ),
)
_CONTAINER = FormGroup(
    "Container",
    (
        FormField(
            "container.image",
            "image",
            "container image; default: none",
            example="docker://python:3.12, /images/torch.sif",
        ),
        FormField(
            "container.runtime",
            "runtime",
            "container runtime; default: the scheduler's",
            choices=tuple(Runtime),
        ),
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
        FormField(
            "signal",
            "signal",
            "USR1@600: send USR1 600 s before the time limit",
            example="USR1@600",
        ),
        FormField("requeue", "requeue", "restart after preemption or node failure", FieldKind.FLAG),
        FormField(
            "kill_switch",
            "kill switch",
            "file; creating it makes the run save and stop",
            example="/scratch/me/KILL",
        ),
        FormField(
            "save_switch", "save switch", "file; creating it makes the run save a checkpoint"
        ),
        FormField(
            "checkpoints",
            "checkpoints",
            "checkpoint folder; each start gets the newest complete one as $HPCDASH_RESUME_FROM",
            example="/scratch/me/run/checkpoints",
        ),
        FormField(
            "saves_every",
            "save interval",
            "time between checkpoints, to estimate the overhead",
            example="3h",
        ),
        FormField(
            "save_takes", "save duration", "training pause for each checkpoint", example="40s"
        ),
    ),
)
_MORE = FormGroup(
    "More",
    (
        FormField(
            "startup_hook",
            "startup hook",
            "bash to run once on each node before the command",
            FieldKind.LINES,
        ),
        FormField(
            "launcher", "launcher", "program that starts the processes", choices=tuple(Launcher)
        ),
        FormField(
            "rank_variables",
            "rank counts",
            "whether RANK and WORLD_SIZE count processes (set by the launcher) or nodes",
            choices=("processes", "nodes"),
        ),
        FormField("rank_logs", "rank logs", "also write a log for each rank", FieldKind.FLAG),
        FormField(
            "job_library",
            "job library",
            "make hpcdash.job importable; default: yes",
            FieldKind.UNLESS_NO,
            choices=(YES, NO),
        ),
        FormField("exclude_nodes", "exclude", "nodes to exclude", FieldKind.WORDS, "n[01-03] n17"),
        FormField(
            "extra_args",
            "extra options",
            "sbatch or qsub options, as typed",
            FieldKind.OPTIONS,
            ways=BOTH_WAYS,
        ),
        FormField(
            "place", "place", "PBS: chunk placement and node sharing", example="scatter:excl"
        ),
        FormField(
            "attributes",
            "attributes",
            "PBS: qsub -W attributes",
            FieldKind.WORDS,
            "group_list=lab umask=027",
        ),
        FormField(
            "keep_files",
            "keep files",
            "PBS: qsub -k; default: oed, which writes logs while the job runs",
            example="oed",
        ),
    ),
)
GROUPS = (_RUNS, _GETS, _SLICES, _WHEN, _POOL, _ACCOUNT, _WHERE, _CONTAINER, _ENDS, _MORE)
# Keys of a single scheduler, from its request_fields.
_SCHEDULER_FIELDS = {
    *(field.name for field in _SLICES.fields),
    *("place", "attributes", "keep_files"),
}
FIELDS = {field.name: field for group in GROUPS for field in group.fields}


def absent_fields(backend: Backend) -> frozenset[str]:
    """Return the fields that a scheduler does not use."""
    own = {field.name for field in backend.scripts.request_fields}
    absent = (_SCHEDULER_FIELDS - own) | backend.submit.without_fields
    if "after" in absent:
        absent.add("chain")
    return frozenset(absent)
