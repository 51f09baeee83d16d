"""Name, files and body of a generated batch script, which runs on each node of its job.

Its bash defines `start_nodes`, `signal_nodes NAME` and `wait_nodes`, and calls them in this order,
the second from a trap; a trap for a signal that must not end the waiting sets `interrupted=1`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.script.allocation import Waiting
from hpcdash.backends.script.call import call_command, call_package, call_python
from hpcdash.backends.script.containers import container_command, pyxis_options
from hpcdash.backends.script.containers.words import ContainerCommand, Word
from hpcdash.backends.script.copies import COPY, copy_part, staged_path, with_copies
from hpcdash.backends.script.environment import JobEnvironment
from hpcdash.backends.script.folder import (
    CODE_FOLDER,
    CONTAINER_UP,
    LIBRARY_NAME,
    SECRETS_NAME,
)
from hpcdash.backends.script.launchers import (
    lone_launcher,
    lone_mpi_launcher,
    signal_name,
    start_commands,
)
from hpcdash.backends.script.node_checks import probe_text
from hpcdash.backends.script.resume import (
    HINT,
    RESUME_NAMES,
    fixed_part,
    is_a_folder_a_task,
    resume_lines,
)
from hpcdash.domain.request import (
    LONE_LAUNCHERS,
    NODE_LAUNCHERS,
    NOT_IN_SCRIPTS,
    NOT_KEPT,
    Launcher,
    Request,
    Runtime,
    SlotType,
    format_slots,
    is_secret,
    request_slots,
)
from hpcdash.domain.share import (
    LONGEST_LABEL,
    MAX_LABELS,
    SUSPEND_NAME,
    Priority,
    TaskMark,
    parse_priority,
)
from hpcdash.errors import ConfigError, UsageError
from hpcdash.job.preemption import STOPPED_EARLY
from hpcdash.job.suspend import READY_SUFFIX, SUSPEND, SUSPEND_READY
from hpcdash.job.switches import KILL_SWITCH, SAVE_SWITCH
from hpcdash.shell_files import shell_text

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
# Inside the quotes of a directive they would end the value, or the line.
NOT_IN_DIRECTIVES = re.compile(r"[\"\\\x00-\x1f\x7f]")
SOURCES = ("project", "workspace", "label", "label:PREFIX")


def job_name(prefix: str, kind: str, uid: str, most_letters: int | None = None) -> str:
    """`hpcdash_exp-2-trial-2-1a2b`; what no scheduler takes is left out, and where it is too long
    the prefix is cut.
    """
    name = _NOT_IN_NAMES.sub("", f"{prefix}_{kind}-{uid}")
    return (
        name
        if most_letters is None or len(name) <= most_letters
        else name[-most_letters:].lstrip("_-")
    )


def accounted_to(source: str, *, project: str, workspace: str, labels: Iterable[str]) -> list[str]:
    """Return the names a job is accounted by, in order; [] where none is configured.

    Raises ConfigError for another source.
    """
    if source == "project":
        return [project] if project else []
    if source == "workspace":
        return [workspace] if workspace else []
    if source == "label" or source.startswith("label:"):
        prefix = source.partition(":")[2]
        return sorted(
            {label.removeprefix(prefix) for label in labels if label.startswith(prefix)} - {""}
        )
    raise ConfigError(
        f"{source!r} is not a source of a job's project",
        f"Use {', '.join(SOURCES)}.",
        key="job_project_source",
    )


def accounting_names(request: Request) -> list[str]:
    """Return the names that a request's job is accounted by."""
    return accounted_to(
        request.site.job_project_source,
        project=request.project,
        workspace=request.workspace,
        labels=request.labels,
    )


# Environment of a node for a container that inherits nothing.
END_TIME_NAMES = ("HPCDASH_END_TIME", "HPCDASH_END_TIME_OF")

_SAID = "# The command can `import hpcdash.job` from this zip; job_library = false leaves it out."


_REST_OF_PATH = '"${PYTHONPATH:+:$PYTHONPATH}"'


def library_line(folder: str, before: str = "") -> str:
    """The shell's line that puts the zip in `folder` first on PYTHONPATH, with a comment before it.

    After it comes what PYTHONPATH is then, or `before` where that is given: nothing else of it goes
    along.
    """
    rest = f":{shlex.quote(before)}" if before else _REST_OF_PATH
    return f"{_SAID}\nexport PYTHONPATH={shlex.quote(f'{folder}/{LIBRARY_NAME}')}{rest}\n"


def from_now(limit_seconds: int | None) -> str:
    return "" if limit_seconds is None else f"$(($(date +%s) + {int(limit_seconds)}))"


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
START = 'interrupted=\nstart_nodes\nwait_nodes\nexit "$status"\n'


def exports(environment: Mapping[str, str]) -> str:
    """Bash that sets the variables for all that it starts; '' for none.

    Raises UsageError for what bash cannot hold.
    """
    lines = export_lines(environment)
    return f"# For the command, on every node:\n{lines}" if lines else ""


def export_lines(environment: Mapping[str, str]) -> str:
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in checked_environment(environment)
    )


def checked_environment(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"environment: {name!r} is not a variable name", "Use letters, digits and _."
            )
        if "\0" in value:
            raise UsageError(
                f"environment.{name}: variables cannot contain NUL bytes", "Remove it."
            )
    return list(environment.items())


def quote_arguments(parts: Sequence[str | Word]) -> str:
    if not parts:
        raise UsageError("command: nothing to run", "Set command or script.")
    made = [word if isinstance(word, Word) else Word(word) for word in parts]
    if any("\0" in word.text for word in made):
        raise UsageError("command: arguments cannot contain NUL bytes", "Remove it.")
    return " ".join(word.quoted() for word in made)


# A broken GPU's driver hangs more often than it fails.
PROBE_LIMIT_SECONDS = 300

# A hook may install packages or copy data.
HOOK_LIMIT_SECONDS = 3600
BEFORE_COMMAND = (
    "Runs on each node before the command starts anywhere; if it fails on any node, the job exits "
    "with 1."
)


def node_steps(request: Request, place: Place, after_probe: str) -> list[str]:
    """Return bash for each step on all nodes before the command starts anywhere: the site's probe,
    then the startup hook, with the request's secrets.

    It calls `prepare_nodes TEXT SECONDS SIGNAL REPORT`, which ends the job where a step fails.
    `after_probe` is what to do about a NODE that failed its probe.
    """
    signal = signal_name(request.signal) if request.signal else "''"

    def step(name: str, text: str, limit_seconds: int, *report: str) -> str:
        definition = heredoc(name, text.strip("\n"), BEFORE_COMMAND)
        call = f'prepare_nodes "${name}" {limit_seconds} {signal}'
        return definition + " \\\n  ".join((call, *map(shlex.quote, report))) + "\n"

    steps = []
    if request.site.node_probe.strip():
        probe = probe_text(request.site.node_probe)
        report = "node NODE failed the probe (status STATUS):"
        steps.append(step("probe", probe, PROBE_LIMIT_SECONDS, report, after_probe))
    if (hook := request.startup_hook).strip():
        if place.folder and secret_variables(request):
            digests = {
                name: digest for name, digest in place.copies.items() if name == SECRETS_NAME
            }
            removal = f'rm -rf -- "${COPY}"\n' if digests else ""
            hook = f"{copy_part(place.folder, digests)}{_secrets_line(place)}\n{removal}{hook}"
        report = "the startup hook failed on node NODE (status STATUS)"
        steps.append(step("hook", hook, HOOK_LIMIT_SECONDS, report))
    return steps


# If TERM ends a shell before its command, the scheduler kills the command in the middle of its last
# save.
UNTIL_ITS_END = (
    "# TERM is meant for the programs: this shell exits after they do.\ntrap exit TERM\n"
)
# Set by the fan-out and the launcher on each node.
_OF_THE_NODE = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NUM_NODES", "NODE_SLOTS", "NUM_SLOTS")
_NOT_IN_FOLDERS = re.compile(r"[^A-Za-z0-9_./@+-]")
_COMMAND = Word('"$command"', is_shell=True)
_IN_CONTAINER = Word('"$in_container"', is_shell=True)
_INTERPRETERS = {".py": "python3", ".sh": "bash"}
# NAME_MAX is 255 bytes.
_MAX_FOLDER_LETTERS = 200


class Place(Struct, frozen=True):
    """Location of a launch: `uid` identifies it, `folder` on the cluster has its files and logs.

    `folder` is absolute, '' where it is unknown: then the logs are in the folder the script is
    submitted from. `script` is the path of the request's script there; '' where the request names
    it. `login` is a file made of containers.login_file(), '' for none. `waiting`: its batch shell
    waits for runs, in place of the request's command. `is_run`: it is one of those runs. `copies`,
    name → SHA-256, are files there that each node runs a checked copy of, as others could replace
    the folder; `code_folder` is then the folder in its code where the command starts.
    """

    uid: str
    folder: str = ""
    script: str = ""
    login: str = ""
    waiting: Waiting | None = None
    is_run: bool = False
    copies: Mapping[str, str] = field(default_factory=dict)
    code_folder: str = ""

    def __post_init__(self) -> None:
        if self.folder and (not self.folder.startswith("/") or _NOT_IN_FOLDERS.search(self.folder)):
            raise UsageError(
                f"storage_root: {self.folder!r} is not a valid launch folder",
                "Use an absolute path with only letters, digits and ._@+-",
            )


class BatchScript(Struct, frozen=True):
    """Batch script to submit.

    `warnings` are sentences to show to the person before the submission.
    """

    text: str
    job_name: str
    warnings: tuple[str, ...] = ()


class Body(Struct, frozen=True):
    """Parts that a script starts on each node: definitions, and arguments of a fan-out.

    `definitions` are bash. `tasks_per_node` are those that it starts, None where the scheduler
    spreads them. `library` is bash that puts hpcdash.job on PYTHONPATH; '' where it is
    missing, and where a container's shell does so. `package` is bash that makes the venv of a call
    and sets PY_EXEC for the nodes; '' where there is none. `path` is bash that sets the PATH of the
    request, for the command alone: the scheduler's own programs need not be on it. `srun_options`
    are those of pyxis.
    """

    definitions: str
    arguments: tuple[str | Word, ...]
    tasks_per_node: int | None
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    library: str = ""
    package: str = ""
    path: str = ""
    srun_options: tuple[str, ...] = ()


def effective_name(
    request: Request, uid: str, most_letters: int | None = None
) -> tuple[str, tuple[str, ...]]:
    """Return the job's name and a note on it: the request's own, else prefix, kind and uid."""
    if not request.name:
        return job_name(request.site.name_prefix, request.kind, uid, most_letters), ()
    name = re.sub(r"[^A-Za-z0-9_-]", "", request.name)[:most_letters]
    if not name:
        raise UsageError(
            f"name: {request.name!r} has no valid characters", "Use letters, digits, _ and -."
        )
    return name, (
        ()
        if name == request.name
        else (f"the job is named {name}: {request.name!r} is not a valid name here",)
    )


def has_library(request: Request, place: Place) -> bool:
    """Whether hpcdash.job is to be in the launch's folder."""
    return request.job_library and not request.plain and bool(place.folder)


def unsupported_fields(request: Request, names: Iterable[str], scheduler: str) -> list[str]:
    """Return a message for each field of a request that a scheduler has nothing for."""
    return [
        f"{name}: not supported by {scheduler}, ignored"
        for name in (*names, *NOT_IN_SCRIPTS)
        if getattr(request, name) not in ("", (), None)
    ]


def named_keys(request: Request) -> tuple[str, ...]:
    """The variables that the script itself finds the values of, for the command."""
    return (
        *(END_TIME_NAMES if request.job_library else ()),
        *(RESUME_NAMES if request.checkpoints else ()),
    )


def watches_preemption(request: Request, place: Place) -> bool:
    """Whether a script may requeue its preempted job: where each start resumes, and the training
    can notify it.
    """
    is_watched = (
        (request.requeue or request.is_task) and request.checkpoints and has_library(request, place)
    )
    return bool(is_watched) and place.waiting is None and not place.is_run


def resume_part(request: Request, task: str) -> str:
    """Return bash that finds the checkpoint to resume from.

    It is a hint where a training does not name where it saves, and '' for other requests. `task` is
    the variable with an array's task.
    """
    if request.checkpoints:
        return resume_lines(request.checkpoints, task)
    is_training = request.requeue or request.signal or request.kill_switch or request.save_switch
    return HINT if is_training else ""


def in_code_folder(request: Request, place: Place) -> Request:
    """Return the request in the folder of its `files`; else unchanged.

    A relative folder of the request is below that one. Raises UsageError without a folder of the
    launch.
    """
    if not request.files or place.code_folder or request.work_dir.startswith("/"):
        return request
    if not place.folder:
        raise UsageError(
            "files: no launch folder to unpack them in",
            "Set the launch folder: --storage-root PATH, or storage_root in [launch].",
        )
    return replace(request, work_dir=f"{place.folder}/{CODE_FOLDER}/{request.work_dir}".rstrip("/"))


def packages_part(request: Request, place: Place) -> str:
    """Bash that notes the packages of the Python that a launch with `files` starts with; '' for
    others.
    """
    has_image = request.container is not None and request.container.runtime is not Runtime.NONE
    # If others could replace the folder, they could redirect it.
    if not request.files or not place.folder or place.copies or has_image:
        return ""
    pythons = (request.call.python,) if request.call is not None else ("python", "python3")
    arguments = shlex.join((place.folder, request.environment.get("PATH", ""), *pythons))
    return f"{shell_text('backends/script/packages.sh')}note_packages {arguments}\n"


def with_code_state(script: BatchScript, text: str) -> BatchScript:
    """With the state of its code in a comment below its first lines."""
    first, second, rest = script.text.split("\n", 2)
    return replace(script, text=f"{first}\n{second}\n# code: {text}\n{rest}")


def folder_name(request: Request, uid: str) -> str:
    """Return the name of a launch's own folder, which ends in its uid and suits file systems."""
    name = effective_name(request, uid, _MAX_FOLDER_LETTERS)[0]
    return name if name.endswith(uid) else f"{name}-{uid}"


def script_body(
    request: Request, place: Place, slot_type: SlotType, environment: JobEnvironment
) -> Body:
    """Return the body started on each node: the launcher's command, in the container if any."""
    slots = request_slots(request)
    command = _body_command(request, place, environment)
    path = path_line(request) if environment.is_inherited else ""
    start = start_commands(
        request.launcher,
        command,
        None if environment.finds_nodes and is_spread(request, slot_type) else slots.per_node,
        ranks=max(1, slots.slots),
        signal=request.signal,
        environment=environment,
        python=call_python(request.call) if request.call is not None else "",
        path=path,
    )
    notes = [*start.notes, *_lone_notes(request, command, environment), *_one_folder(request)]
    secrets = secret_variables(request)
    if secrets and not place.folder:
        notes.append(_secrets_note(secrets, environment))
        secrets = {}
    own = {name: value for name, value in request.environment.items() if name not in secrets}
    if path:
        del own["PATH"]
    variables = own | _switches(request)
    read = f"{_secrets_line(place)} || exit\n" if secrets else ""
    before = f"{_share_lines(request, place)}{rank_lines(request, environment)}{read}"
    body = Body(
        _command_text(request, place, f"{UNTIL_ITS_END}{before}{start.line}"),
        ("bash", "-c", _COMMAND),
        start.tasks_per_node,
        {name: value for name, value in variables.items() if value},
        tuple(notes),
        path=path,
    )
    if request.container is None or request.container.runtime is Runtime.NONE:
        return _bare_body(body, request, place, environment)
    if request.launcher in LONE_LAUNCHERS and slots.nodes > 1:
        raise UsageError(
            f"launcher: in a container {request.launcher} cannot start ranks on other nodes",
            'Set launcher = "srun", or runtime = "none" with the container in the command.',
        )
    up = _in_container(request, place)
    if request.container.runtime is Runtime.PYXIS:
        return _pyxis_body(body, request, place, environment, up=up, named=own)
    inherited = [*_OF_THE_NODE, *named_keys(request)]
    if environment.is_inherited and watches_preemption(request, place):
        inherited.append(STOPPED_EARLY)
    made = container_command(
        request.container,
        ("sh", "-c", up, "sh", "bash", "-c", Word('"$1"', is_shell=True)),
        slot_type=slot_type,
        environment=variables | {name: "" for name in inherited if name not in variables},
        binds=bound_folders(request, place.folder),
        scheduler_variables=environment.own,
        image_root=request.site.image_root,
        login=place.login,
    )
    return _container_body(body, request, made)


# What a heredoc of the command says, where it does not run on each node.
_COMMAND_MESSAGES = {
    Launcher.SRUN: "Command for each task:",
    **dict.fromkeys(LONE_LAUNCHERS, "Command that runs once, on the first node:"),
}


def _command_text(request: Request, place: Place, line: str) -> str:
    """Return bash that sets `command` to a line, which runs from checked copies where there are
    any.
    """
    text = _from_copies(request, place, line) if place.copies else line
    message = _COMMAND_MESSAGES.get(request.launcher, "Command for each node:")
    return heredoc("command", text, message)


def _body_command(request: Request, place: Place, environment: JobEnvironment) -> str:
    """Return bash for the request's command, or for its call."""
    call = request.call
    if call is None:
        return command_line(request, place)
    if place.copies and call.package:
        raise UsageError(
            "call: a wheel or source cannot be installed in a storage_root that others could "
            "replace",
            "Install the package where the job runs, or pass its folder as sys_path.",
        )
    command = call_command(
        request,
        call,
        place.folder,
        place.uid,
        environment=environment,
        node_count=request_slots(request).nodes,
    )
    return with_copies(command, place.folder, place.copies)


def _lone_notes(request: Request, command: str, environment: JobEnvironment) -> list[str]:
    """Return notes on a command that starts a launcher of its own on each of several nodes."""
    if request_slots(request).nodes <= 1:
        return []
    notes = []
    alone = lone_launcher(request.command) if request.launcher is Launcher.PLAIN else None
    if alone:
        notes.append(
            f'each node starts its own {alone} and trains separately: launcher = "{alone}" '
            "joins them into one run"
        )
    program = "" if environment.is_inherited else lone_mpi_launcher(command)
    if program:
        notes.append(
            f'each node starts its own {program}: begin with [ "$NODE_RANK" = 0 ] || exit 0'
        )
    return notes


def _secrets_note(names: Iterable[str], environment: JobEnvironment) -> str:
    """Return the note on secrets that no file can hold, as the launch has no folder."""
    seen = "" if environment.is_inherited else ", and in the process list of the job's node"
    return (
        f"environment: {', '.join(names)} would be in the script{seen}: let the command read a "
        "file with mode 0600 instead"
    )


def _in_container(request: Request, place: Place) -> str:
    """Return bash that starts the command inside of a container."""
    up = f'echo "{CONTAINER_UP}$(hostname 2>/dev/null || echo "$HOSTNAME")" >&2\nexec "$@"'
    if has_library(request, place) and not place.copies:
        up = f"{library_line(place.folder)}{up}"
    if request.files and not place.code_folder:
        # A runtime may start it elsewhere.
        up = f"cd -- {shlex.quote(request.work_dir)} || exit\n{up}"
    return up


def _bare_body(body: Body, request: Request, place: Place, environment: JobEnvironment) -> Body:
    """Return a body without a container, with the library and the venv of a call."""
    variables = dict(body.environment)
    library = ""
    if has_library(request, place) and not place.copies:
        before = "" if environment.is_inherited else variables.pop("PYTHONPATH", "")
        library = library_line(place.folder, before)
    package = call_package(request, place.folder)
    if body.path and package:
        package = (
            f'hpcdash_path=$PATH\n{body.path.rstrip()}:"$PATH"\n{package}\nPATH=$hpcdash_path\n'
        )
    return replace(body, environment=variables, library=library, package=package)


def _pyxis_body(
    body: Body,
    request: Request,
    place: Place,
    environment: JobEnvironment,
    *,
    up: str,
    named: Mapping[str, str],
) -> Body:
    """Return a body in a container of srun's; `up` is bash inside of it, `named` are the variables
    that the image may not replace.
    """
    assert request.container is not None
    if not environment.has_pyxis or request.launcher in LONE_LAUNCHERS:
        what = request.launcher if environment.has_pyxis else environment.scheduler
        raise UsageError(
            f"container.runtime: pyxis works only with srun, not with {what}",
            "Use apptainer, podman or enroot.",
        )
    folders = bound_folders(request, place.folder)
    options, notes = pyxis_options(request.container, folders, named, request.work_dir)
    inside = heredoc("in_container", up, "Launcher inside the container:")
    return replace(
        body,
        definitions=f"{body.definitions}\n{inside}",
        arguments=("sh", "-c", _IN_CONTAINER, "sh", *body.arguments),
        notes=(*body.notes, *notes),
        srun_options=options,
    )


def _container_body(body: Body, request: Request, made: ContainerCommand) -> Body:
    """Return a body in a container of a runtime's own command."""
    around = "\n".join(replace(made, environment={}).lines())
    if request.signal:
        around = f"trap : {signal_name(request.signal)}\n{around}"
    inside = heredoc("in_container", f"{UNTIL_ITS_END}{around}", "Container for the command, $1:")
    return replace(
        body,
        definitions=f"{body.definitions}\n{inside}",
        arguments=("bash", "-c", _IN_CONTAINER, "in_container", _COMMAND),
        environment=dict(made.environment),
        notes=(*body.notes, *made.notes),
    )


def path_line(request: Request) -> str:
    """Bash that sets the request's PATH; '' where it has none, or its container is given it."""
    path = request.environment.get("PATH", "")
    runtime = Runtime.NONE if request.container is None else request.container.runtime
    if not path or runtime not in (Runtime.NONE, Runtime.PYXIS):
        return ""
    checked_environment({"PATH": path})
    return f"export PATH={shlex.quote(path)}\n"


def _from_copies(request: Request, place: Place, line: str) -> str:
    """Bash that runs a line on a node from checked copies, which are removed when it has ended,
    however it does.
    """
    if request.launcher in LONE_LAUNCHERS and request_slots(request).nodes > 1:
        raise UsageError(
            f"launcher: {request.launcher} starts ranks on nodes that have no copy of the "
            "launch's files, and others could replace the files in storage_root",
            'Set launcher = "srun", or storage_root to a folder that only you and root can '
            "replace.",
        )
    trap = f"trap : {signal_name(request.signal)}\n" if request.signal else ""
    library = f'{_SAID}\nexport PYTHONPATH="${COPY}"/{LIBRARY_NAME}{_REST_OF_PATH}\n'
    return (
        f"{UNTIL_ITS_END}{trap}{copy_part(place.folder, place.copies, place.code_folder)}"
        # bash runs what comes last in its own place, without its traps.
        f'{library if LIBRARY_NAME in place.copies else ""}(\n{line}\n)\nexit "$?"'
    )


def _secrets_line(place: Place) -> str:
    return f". {staged_path(place.folder, SECRETS_NAME, place.copies)}"


def share_mark(request: Request, place: Place) -> TaskMark:
    """Return the mark in the comment of a shared pool's task.

    Raises UsageError for a request that cannot be a task.
    """
    if request.array is not None or place.waiting is not None:
        raise UsageError(
            "share: arrays and allocations cannot run in a shared pool",
            "Submit one job per task.",
        )
    if request.begin:
        raise UsageError("begin: the shared pool decides when a task starts", "Remove begin.")
    if len(request.labels) > MAX_LABELS or any(
        len(label) > LONGEST_LABEL for label in request.labels
    ):
        raise UsageError(
            f"labels: a task can have at most {MAX_LABELS} labels, of up to {LONGEST_LABEL} "
            "characters each"
        )
    priority = parse_priority(request.share) if request.share else Priority.AUTO
    return TaskMark(
        priority, place.folder, is_paused=request.hold, pool=request.pool, labels=request.labels
    )


def _share_lines(request: Request, place: Place) -> str:
    """Return the shell's lines for a task of a shared pool.

    They pass the request to suspend to its first node alone; and make Python write its log
    unbuffered, since a silent task is cancelled.
    """
    if not request.is_task or not place.folder:
        return ""
    file = f"{place.folder}/{SUSPEND_NAME}"
    return (
        'export PYTHONUNBUFFERED="${PYTHONUNBUFFERED-1}"\n'
        f"export {SUSPEND_READY}={shlex.quote(file + READY_SUFFIX)}\n"
        f'[ "${{SLURM_NODEID:-${{NODE_RANK:-0}}}}" != 0 ] || export {SUSPEND}={shlex.quote(file)}\n'
    )


_MASTER_PORT = "2222"


def rank_lines(request: Request, environment: JobEnvironment) -> str:
    """Return lines that number the nodes, for a program that starts its own processes.

    '' where none requests it.
    """
    if request.rank_variables != "nodes":
        return ""
    if request.launcher is not Launcher.PLAIN:
        raise UsageError(
            f"rank_variables: {request.launcher} numbers the processes itself",
            'Set launcher = "plain", or remove it.',
        )
    port = shlex.quote(request.environment.get("MASTER_PORT") or _MASTER_PORT)
    return (
        "# This node's rank, the node count and the first node's address; "
        'rank_variables = "processes" leaves them out.\n'
        f'export RANK="${environment.node_rank}" WORLD_SIZE="${environment.node_count}" '
        f"MASTER_PORT={port} MASTER_IP\n"
        f"{shell_text('backends/script/node_ranks.sh')}"
    )


def secret_variables(request: Request) -> dict[str, str]:
    """Return the environment variables with a value and a secret's name.

    A file in the launch's folder contains them, which only the command reads.
    """
    return {name: value for name, value in request.environment.items() if is_secret(name, value)}


def secrets_file(request: Request) -> bytes:
    """Return the file of `secret_variables()`, in the form that bash reads.

    Raises UsageError for a value that was not stored.
    """
    if missing := [name for name, value in secret_variables(request).items() if value == NOT_KEPT]:
        raise UsageError(
            f"environment: the value of {', '.join(missing)} is unknown: secrets are not saved "
            "with a submission",
            "Set it, or remove the variable.",
        )
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in checked_environment(secret_variables(request))
    ]
    return "".join(lines).encode("utf-8", "surrogateescape")


def heredoc(name: str, text: str, message: str) -> str:
    """Bash that sets a variable to a text as it stands, of several lines too."""
    end = f"END_OF_{name.upper()}"
    while end in text.split("\n"):
        end += "_"
    return f"# {message}\nIFS= read -r -d '' {name} << '{end}'\n{text}\n{end}\n"


# Text in single quotes is expanded on the nodes, and traps call functions that seem unused.
FOR_SHELLCHECK = "# shellcheck disable=SC2016,SC2317"


def script_text(requested: str, options: Iterable[str], prefix: str, parts: Iterable[str]) -> str:
    """Return the whole script: a description, directives, then parts separated by blank lines."""
    head = ["#!/bin/bash", f"# {requested}", *(f"{prefix} {option}" for option in options)]
    shown = [part.strip("\n") for part in parts if part.strip("\n")]
    return "\n\n".join(["\n".join(head), FOR_SHELLCHECK, *shown]) + "\n"


def format_request(
    request: Request, place: Place, slot_type: SlotType, environment: JobEnvironment
) -> str:
    """Format a script's first line: `2 nodes × 4 GPUs = 8, torchrun on each node`."""
    slots = request_slots(request)
    if slots.slots == 0:
        where = "1 node, 1 CPU"
    elif slots.is_packed and (not environment.finds_nodes or is_spread(request, slot_type)):
        unit = "CPUs" if slot_type is SlotType.CPU else "GPUs"
        where = f"{slots.slots} {unit} on any number of nodes"
    else:
        where = format_slots(slots, slot_type)
    if place.waiting is not None:
        return f"{where}; waiting for runs"
    started = {
        Launcher.PLAIN: "one command per node",
        Launcher.SRUN: "one srun task per slot",
    }
    started |= {one: f"{one} with one rank per slot" for one in LONE_LAUNCHERS}
    return f"{where}; {started.get(request.launcher, f'{request.launcher} on each node')}"


def command_line(request: Request, place: Place) -> str:
    """Return the request's command as bash; a Python or shell script need not be executable."""
    if request.command:
        return request.command
    path = place.script or request.script
    name = path.removeprefix(f"{place.folder}/")
    is_copied = name != path and name in place.copies
    plain = shlex.quote(path if "/" in path else f"./{path}")
    quoted = staged_path(place.folder, name, place.copies) if is_copied else plain
    if request.launcher in NODE_LAUNCHERS:
        return quoted
    interpreter = next(
        (program for end, program in _INTERPRETERS.items() if path.endswith(end)), ""
    )
    return f"{interpreter} {quoted}".lstrip()


def has_interpreter(request: Request) -> bool:
    """Whether its script is not run as a program of its own."""
    path = f"/{request.script.rpartition('/')[2]}"
    return request.launcher in NODE_LAUNCHERS or command_line(
        replace(request, script=path), Place("")
    ) != shlex.quote(path)


def _one_folder(request: Request) -> list[str]:
    """Return a warning where tasks that run at once go on from each other's checkpoints."""
    if not request.checkpoints:
        return []
    has_own = is_a_folder_a_task(request.checkpoints)
    if has_own and request.array is None:
        raise UsageError(
            "checkpoints: %a needs an array",
            "Set array, or remove %a.",
        )
    if has_own or request.array is None or request.array.throttle == 1:
        return []
    return [
        "checkpoints: tasks running at the same time would save to the same folder: put %a in its "
        "name, or "
        "limit the array to %1"
    ]


def _switches(request: Request) -> dict[str, str]:
    if request.kill_switch and request.kill_switch == request.save_switch:
        raise UsageError(
            f"kill_switch and save_switch are the same file, {request.save_switch}",
            "Use a separate path for each.",
        )
    return {
        name: path
        for name, path in ((KILL_SWITCH, request.kill_switch), (SAVE_SWITCH, request.save_switch))
        if path and name not in request.environment
    }


def bound_folders(request: Request, launch_folder: str = "") -> tuple[str, ...]:
    """Return the folders to bind into a container besides those that its runtime binds."""
    others = [path.rpartition("/")[0] for path in (request.kill_switch, request.save_switch)]
    others.append(fixed_part(request.checkpoints))
    others += request.call.sys_path if request.call else ()
    # Neither side of SOURCE:TARGET is bound again: the user chose it.
    bound = {
        path
        for bind in (request.container.binds if request.container else ())
        for path in bind.split(":")[:2]
    }
    requested = dict.fromkeys(
        path
        for path in (request.work_dir, launch_folder, *others)
        if path.startswith("/") and path not in bound
    )
    if (
        request.container
        and request.container.runtime is Runtime.ENROOT
        and re.search(r"\s", request.work_dir)
    ):
        raise UsageError(
            f"work_dir: enroot cannot mount a path with white space: {request.work_dir!r}",
            "Choose another folder.",
        )
    return tuple(requested)


def is_spread(request: Request, slot_type: SlotType) -> bool:
    """Whether Slurm is to find any nodes that have so many GPUs together."""
    slots = request_slots(request)
    site = request.site
    counts_gpus = slot_type is not SlotType.CPU and site.tres_supported and site.gres_supported
    return counts_gpus and slots.slots > 0 and not slots.is_per_node
