"""Requests to launch a command: the fields of REQUEST.toml, and their total of nodes and slots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import astuple

from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.text import counted

SITE_SAID = "site."
# Login names as directories have them; no option, no number of sudo's (#0), nothing that a shell or
# sudoers acts on.
ACCOUNT_NAME = re.compile(r"(?!ALL\Z)[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
# Options that no batch script can request.
NOT_IN_SCRIPTS = (
    *("slice", "num_slices", "tpus_per_worker", "retries_preemption", "retries_failure"),
    *("grow_after", "grow_every", "runtime_env"),
)
# Interactive kinds: one node, whatever is requested.
INTERACTIVE_KINDS = frozenset({"command", "shell", "notebook"})
# The kind of a function's launches from Python: each function has a folder, and each launch one in
# there.
TASK_KIND = "task"
# Replaces the value of a secret in a stored request.
NOT_KEPT = "(not kept)"
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:(?:API|ACCESS|SECRET|PRIVATE|ACCOUNT|ENCRYPTION)_?KEY|TOKEN|SECRETS?|PASS)$"
    r"|PASS(?:WORD|WD|PHRASE)$|(?:^|_)SSHPASS$",
    re.IGNORECASE,
)
# Names that others give to folders, files and patterns too.
_MAYBE_SECRET_NAME = re.compile(r"_PWD$|_PAT$|(?:^|_)CRED(?:ENTIAL)?S?$", re.IGNORECASE)
_PLACE = re.compile(r"[/~$.*]|[A-Za-z]:\\")
# A password in a URL; the keys of OpenAI, Hugging Face, GitHub, GitLab, Slack and AWS.
_SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|\b(?:sk-[\w-]{16,}|hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16})"
)


class SlotType(StrEnum):
    """Hardware of a slot."""

    CUDA = "cuda"
    ROCM = "rocm"
    CPU = "cpu"


class Runtime(StrEnum):
    """Program that runs the container; singularity is read as apptainer."""

    NONE = "none"
    APPTAINER = "apptainer"
    DOCKER = "docker"
    PODMAN = "podman"
    ENROOT = "enroot"
    PYXIS = "pyxis"


class Launcher(StrEnum):
    """Program that starts the processes of the command on the nodes."""

    PLAIN = "plain"
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    SRUN = "srun"
    MPIRUN = "mpirun"
    DEEPSPEED = "deepspeed"
    HOROVODRUN = "horovodrun"


# Those that start processes of Python on their own node, given the address of the first.
NODE_LAUNCHERS = frozenset({Launcher.TORCHRUN, Launcher.ACCELERATE, Launcher.DEEPSPEED})
# Those that start once, and ranks on all nodes.
LONE_LAUNCHERS = frozenset({Launcher.MPIRUN, Launcher.HOROVODRUN})


class Container(Struct, frozen=True):
    """The image a command runs in. `binds` are `SOURCE[:TARGET[:OPTIONS]]`.

    `registry` names no secret. `runtime` None is the scheduler's usual: apptainer in batch scripts.
    """

    runtime: Runtime | None = None
    image: str = ""
    binds: tuple[str, ...] = ()
    force_pull: bool = False


class Call(Struct, frozen=True, eq=False):
    """The function that a job calls, by its names there; its arguments are TOML values.

    Each task of the array gets one of `items`: a table is keyword arguments, anything else one
    argument; () for none. `sys_path` are folders there, `callbacks` are named like the function.
    `wheel` (a file) or `source` (a project's folder) is installed into the job's own venv.
    `result_format` is pickle or json.

    `cache_key` tells calls with different content apart. From Python, `main` is the program's own
    file, which may define the function. `staged` are files of the launch folder by name: arguments
    that are not TOML values, as pickles in place of `args`, `kwargs` and `items`; a .zip goes on
    sys.path, a .whl is the wheel.
    """

    module: str
    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    items: tuple[Any, ...] = ()
    python: str = "python3"
    sys_path: tuple[str, ...] = ()
    wheel: str = ""
    source: str = ""
    callbacks: tuple[str, ...] = ()
    result_format: str = "pickle"
    main: str = ""
    cache_key: str = ""
    staged: Mapping[str, bytes] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether the same is called, wherever its arguments are staged."""
        return isinstance(other, Call) and astuple(self)[:-1] == astuple(other)[:-1]

    def __ne__(self, other: object) -> bool:
        # Struct's own does not call __eq__.
        return not self == other

    @property
    def name(self) -> str:
        """Name of the function as a person writes it."""
        return f"{self.module}:{self.function}"

    @property
    def package(self) -> str:
        """Package to install in the venv: a path there or a staged file; '' if there is no venv."""
        return (
            self.wheel
            or self.source
            or next((name for name in self.staged if name.endswith(".whl")), "")
        )


class EarlySignal(Struct, frozen=True):
    """`USR1@600` to all processes, `B:USR1@600` to the batch shell alone, so long before the time
    limit.
    """

    name: str
    seconds_before: int
    batch_only: bool = False


# Of `keep`: how many days after its end the folder of a job that completed is removed.
KEPT_DAYS = re.compile(r"([1-9][0-9]{0,3})d")


class Site(Struct, frozen=True):
    """Properties of a cluster from its configuration; a request may override them.

    `job_project_source` is project, workspace, label or label:PREFIX; `image_root` is the folder of
    images that are given by name. `storage_root` holds a folder per launch ('': hpcdash/launches in
    the home); `keep` is "always", "failed" to remove the folder of a launch that completed, "14d"
    to remove it that many days after its end, or "nothing" to remove that of a failed launch too.
    `default_cpu_queue` and `default_gpu_queue` are used if no queue is named. `run_as` is the
    account that jobs are submitted as through sudo, '' for one's own. `slot_type` is the type of a
    slot if a request has none; None: GPUs if the queue has some. `node_probe` is bash that exits
    with 0 on a healthy node, run on each before a command starts; '' for none.
    """

    tres_supported: bool = True
    gres_supported: bool = True
    job_project_source: str = "project"
    storage_root: str = ""
    name_prefix: str = "hpcdash"
    image_root: str = ""
    keep: str = "always"
    run_as: str = ""
    slot_type: SlotType | None = None
    node_probe: str = ""
    default_cpu_queue: str = ""
    default_gpu_queue: str = ""


class Request(Struct, frozen=True, eq=False):
    """Request to launch a command.

    '' and None: not given. Exactly one of `command`, `script` (a path) and `call` is given.

    `slots` are GPUs or CPUs in total, `slots_per_node` on each node; `limit_seconds` and
    `memory_bytes` (per node) are written as `time` and `memory`; `after` are job IDs to wait for;
    `environment` is set for the command. `max_requeues`: the most restarts after which a preempted
    job's own script requeues it (None: 20). `place`, `attributes` (`NAME=VALUE` of -W) and
    `keep_files` (-k) are those of qsub. `slice` is a type of TPU slice, `num_slices` how many, or
    the numbers that fit; each worker takes `tpus_per_worker`. It is retried `retries_preemption`
    and `retries_failure` times. If fewer slices than the maximum were available, it searches for
    more every `grow_every` seconds, but not until `grow_after` seconds after the last change.
    `runtime_env` is what the scheduler installs before the command starts. `checkpoints` is the
    folder searched at each start for the checkpoint to resume from (%a: the task). `share` makes it
    a task of a shared pool, with the name of the priority it requests (domain/share.py); `pool`
    selects the pool by name; its `labels` are the task's. `rank_variables` is the unit of RANK and
    WORLD_SIZE: "processes", as the launcher sets them, or "nodes". `rank_logs` also writes each
    rank's output to its own log, beside the job's. `job_library` puts hpcdash.job beside the
    script, for the command to import, and exports when the time is over. `plain`: the script has
    directives and the command alone. `begin` is the earliest
    start: `2026-12-01T08:00:00` by the cluster's clock, or `+2h` after submission. `startup_hook`
    is bash that each node runs once before the command starts anywhere. `files` are paths on the
    submitting machine: their content is sent, without what git ignores, and the command starts
    there unless `work_dir` names another folder. `said` names the fields the user wrote, those of
    the site prefixed with SITE_SAID, so that a written value counts even if it is the default.
    """

    name: str = ""
    kind: str = "exp"
    command: str = ""
    script: str = ""
    files: tuple[str, ...] = ()
    slots: int = 1
    slots_per_node: int | None = None
    slot_type: SlotType | None = None
    gpu_type: str = ""
    cpus_per_gpu: int | None = None
    queue: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    limit_seconds: int | None = None
    memory_bytes: int | None = None
    place: str = ""
    work_dir: str = ""
    array: ArrayTasks | None = None
    after: tuple[str, ...] = ()
    hold: bool = False
    begin: str = ""
    signal: EarlySignal | None = None
    requeue: bool = False
    max_requeues: int | None = None
    kill_switch: str = ""
    save_switch: str = ""
    checkpoints: str = ""
    share: str = ""
    pool: str = ""
    rank_variables: str = "processes"
    rank_logs: bool = False
    job_library: bool = True
    plain: bool = False
    exclude_nodes: tuple[str, ...] = ()
    extra_args: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    keep_files: str = ""
    slice: str = ""
    num_slices: tuple[int, ...] = ()
    tpus_per_worker: int | None = None
    retries_preemption: int | None = None
    retries_failure: int | None = None
    grow_after: int | None = None
    grow_every: int | None = None
    runtime_env: Mapping[str, Any] | None = None
    launcher: Launcher = Launcher.PLAIN
    startup_hook: str = ""
    project: str = ""
    workspace: str = ""
    labels: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    container: Container | None = None
    call: Call | None = None
    site: Site = field(default_factory=Site)
    said: frozenset[str] = frozenset()

    @property
    def is_task(self) -> bool:
        """Whether it is a task of a shared pool."""
        return bool(self.share or self.pool)

    def __eq__(self, other: object) -> bool:
        """Whether the same is to be launched, whoever said so."""
        return isinstance(other, Request) and astuple(self)[:-1] == astuple(other)[:-1]

    def __ne__(self, other: object) -> bool:
        # Struct's own does not call __eq__.
        return not self == other


class Slots(Struct, frozen=True):
    """`slots` in all, on `nodes` nodes with `per_node` each, a number that the person requested if
    `is_per_node`.

    The nodes have `nodes` × `per_node` slots, which may be more than requested.
    """

    slots: int
    nodes: int
    per_node: int
    is_per_node: bool

    @property
    def is_packed(self) -> bool:
        """Whether a scheduler may put several chunks of one slot on a node, as PBS does."""
        return self.nodes > 1 and not self.is_per_node

    @property
    def spare(self) -> int:
        """Slots beyond those requested."""
        return self.nodes * self.per_node - self.slots


def request_slots(request: Request) -> Slots:
    """Divide a request's slots over nodes.

    No slot is one core on one node; an interactive job has one node, whatever its slots.
    """
    if request.slots == 0:
        return Slots(0, 1, 1, is_per_node=False)
    if request.kind in INTERACTIVE_KINDS:
        return Slots(
            request.slots, 1, request.slots, is_per_node=request.slots_per_node is not None
        )
    if request.slots_per_node is None:
        return Slots(request.slots, request.slots, 1, is_per_node=False)
    nodes = -(-request.slots // request.slots_per_node)
    return Slots(request.slots, nodes, request.slots_per_node, is_per_node=True)


def request_slot_type(request: Request, *, queue_has_gpus: bool) -> SlotType:
    """Return the requested type of slot, else the site's.

    The default is GPUs if the queue has some, else CPUs.
    """
    return (
        request.slot_type
        or request.site.slot_type
        or (SlotType.CUDA if queue_has_gpus else SlotType.CPU)
    )


def format_slots(slots: Slots, slot_type: SlotType) -> str:
    """Format `7 nodes × 16 GPUs = 112`."""
    slot = "CPU" if slot_type is SlotType.CPU else "GPU"
    total = slots.nodes * slots.per_node
    return f"{counted(slots.nodes, 'node')} × {counted(slots.per_node, slot)} = {total}"


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a password, a token or a key, by its name or its value."""
    is_named = _SECRET_NAME.search(name) or (
        _MAYBE_SECRET_NAME.search(name) and not _PLACE.match(value)
    )
    return bool(value and (is_named or _SECRET_VALUE.search(value)))


def without_secret_values(value: object) -> object:
    """Return a value of TOML with NOT_KEPT in place of each text that holds a secret."""
    if isinstance(value, dict):
        return {name: without_secret_values(content) for name, content in value.items()}
    if isinstance(value, list):
        return [without_secret_values(item) for item in value]
    return NOT_KEPT if isinstance(value, str) and is_secret("", value) else value


def without_secret_lines(text: str) -> str:
    """Return the lines NAME=value of an environment with NOT_KEPT in place of its secrets."""
    return "\n".join(map(_without_secret, text.split("\n")))


def _without_secret(line: str) -> str:
    name, equals, value = line.partition("=")
    is_hidden = is_secret(name.strip().removeprefix("export ").strip(), value.strip())
    return f"{name}{equals}{NOT_KEPT}" if is_hidden else line
