"""A function that a job calls: bash that starts its runner, and the files it reads."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from hpcdash.backends.script.environment import JobEnvironment
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.request import NODE_LAUNCHERS, Call, Launcher, Request, Runtime
from hpcdash.errors import UsageError
from hpcdash.shell_files import shell_text

ARGS_NAME = "call-args.b64"
KWARGS_NAME = "call-kwargs.b64"
ITEMS_NAME = "call-items.b64"
CALLBACKS_NAME = "call-callbacks.b64"
# The name of a result, by its format.
RESULT_NAMES = {"pickle": "result.pkl", "json": "result.json"}
# In the launch's folder, for the venv alone.
_VENV_FOLDER = "env"
_SAID = """\
# Calls {function}.
# Its return value is {how} to the output file (FILE.N for rank N > 0); FILE.error (JSON) describes a failure.
"""
# If a process has no rank, each host would write the same file.
_HOST = "host=${NODE_RANK#0}\n"
_OF_HOST = '"${host:+.$host}"'


def call_files(call: Call) -> dict[str, bytes]:
    """Return the files of a call in the launch's folder, by name."""
    from hpcdash.job.pickles import packed

    values = {
        ARGS_NAME: list(call.args),
        KWARGS_NAME: dict(call.kwargs),
        ITEMS_NAME: list(call.items),
    }
    return {
        name: call.staged[name] if name in call.staged else packed(values[name])
        for name in call_names(call)
    }


def call_names(call: Call) -> tuple[str, ...]:
    """The names of those files."""
    there = {ARGS_NAME: call.args, KWARGS_NAME: call.kwargs, ITEMS_NAME: call.items}
    return tuple(dict.fromkeys((*(name for name, value in there.items() if value), *call.staged)))


def call_command(
    request: Request,
    call: Call,
    folder: str,
    uid: str,
    *,
    environment: JobEnvironment,
    node_count: int,
) -> str:
    """Return bash that calls the function on a node, in a container too.

    For a launcher of Python it is the launcher's arguments. `folder` is the launch's, with the
    files of `call_files()` in it; `uid` identifies the launch. Raises UsageError for conflicting
    fields, by name.
    """
    _refuse(request, call, folder)
    files = {name: f"{folder}/{name}" for name in call_names(call)}
    name = RESULT_NAMES[call.result_format]
    output = shlex.quote(f"{folder}/{name}")
    task = environment.array_task if request.array is not None else ""
    if task:
        stem, _, ending = name.rpartition(".")
        output = f'{shlex.quote(f"{folder}/{stem}-")}"${task}".{ending}'
    is_for_launcher = request.launcher in NODE_LAUNCHERS
    is_shared = not is_for_launcher and not environment.is_inherited and node_count > 1
    if is_for_launcher:
        start = "--module" if request.launcher is Launcher.DEEPSPEED else "-m"
    else:
        start = f"{call_python(call)} -m"
    log = environment.array_log_name if request.array else environment.log_name
    # A container may start elsewhere than in the job's folder.
    has_folder = request.container is not None and request.work_dir.startswith("/")
    command = runner_command(
        start,
        call,
        folder,
        files,
        main=call.main,
        submission_id=uid,
        sys_path=(*call.sys_path, *((request.work_dir,) if has_folder else ())),
        output=output + (_OF_HOST if is_shared else ""),
        task=task,
        logs=(f'"{folder}/{log}.out"', f'"{folder}/{log}.err"'),
    )
    if is_for_launcher:
        return command
    how = "pickled" if call.result_format == "pickle" else "written as JSON"
    return _SAID.format(function=call.name, how=how) + (_HOST if is_shared else "") + command


def runner_command(
    start: str,
    call: Call,
    folder: str,
    files: Mapping[str, str],
    *,
    main: str,
    submission_id: str,
    sys_path: Iterable[str],
    output: str = "",
    task: str = "",
    logs: tuple[str, ...] = (),
) -> str:
    """Return bash that starts the runner of a call: `start` is what goes before its module.

    `files` are the paths of `call_names()`, of which archives go on sys.path. `output` and `logs`
    are bash for the paths of the result, of stdout and of stderr; `task` is the variable with an
    array's task, which has an item of its own. `main` is the path of the program's own file.
    """
    values = {
        "args-file": files.get(ARGS_NAME),
        "kwargs-file": files.get(KWARGS_NAME),
        "callbacks-file": files.get(CALLBACKS_NAME),
        "job-dir": folder,
        "pre-submission-id": submission_id,
        "array-items-file": files.get(ITEMS_NAME),
        "main": main,
        "result-format": call.result_format if call.result_format != "pickle" else "",
    }
    archives = (path for path in files.values() if path.endswith(".zip"))
    options = [
        *((name, shlex.quote(value)) for name, value in values.items() if value),
        *(("sys-path", shlex.quote(path)) for path in (*archives, *sys_path)),
        *(("callback", shlex.quote(name)) for name in call.callbacks),
        *([("array-index", f'"${task}"')] if task and ITEMS_NAME in files else []),
        *([("output-file", output)] if output else []),
        *zip(("stdout-path", "stderr-path"), logs, strict=False),
    ]
    function = f"--module={shlex.quote(call.module)} --function={shlex.quote(call.function)}"
    return " \\\n  ".join(
        (
            f"{start} hpcdash.job.runner {function}",
            *(f"--{name}={value}" for name, value in options),
        )
    )


def call_python(call: Call) -> str:
    """Bash for the interpreter that calls it."""
    return '"$PY_EXEC"' if call.package else shlex.quote(call.python)


def call_package(request: Request, folder: str) -> str:
    """Bash for the batch script that makes the call's venv, exports PY_EXEC, and removes it at the
    end; '' for none.
    """
    call = request.call
    if call is None or not call.package:
        return ""
    wheel = "" if call.source else call.wheel or f"{folder}/{call.package}"
    tasks = request.array.count if request.array else 1
    return (
        f"# {call.package} in this job's own venv, built once before anything starts on the "
        "nodes.\n"
        f"{venv_text(f'{folder}/{_VENV_FOLDER}', call.python, wheel, call.source, tasks)}"
    )


def venv_text(
    folder: str, python: str, wheel: str, source: str, tasks: int, *, stale_seconds: int = 180
) -> str:
    """Return bash for the batch script that makes a venv in `folder` with a wheel in it, or with
    the project in the folder `source`; it sets PY_EXEC, and the last of `tasks` removes the venv.
    """
    return (
        f"PY_EXEC={shlex.quote(python)} hpcdash_root={shlex.quote(folder)}\n"
        f"hpcdash_wheel={shlex.quote(wheel)} hpcdash_source={shlex.quote(source)}\n"
        f"hpcdash_tasks={tasks} hpcdash_stale={stale_seconds}\n"
        f"{shell_text('backends/script/venv.sh')}"
    )


def format_call(call: Call, array: ArrayTasks | None) -> str:
    """`calls train:main with 4 items, a task each`; where an array leaves some out `with items 0-1
    of 4`.
    """
    count = len(call.items)
    if not count:
        return f"calls {call.name}"
    is_each = array is None or array.count == count
    return f"calls {call.name} with " + (
        format_items(count) if is_each else f"items {array} of {count}, one task each"
    )


def format_items(count: int) -> str:
    """`4 items, a task each`."""
    return "1 item, for one task" if count == 1 else f"{count} items, one task each"


def result_path(request: Request, folder: str, task: str = "") -> str:
    """The file its result is written to; N in its name stands for an array's task where that is
    ''.
    """
    name = RESULT_NAMES[request.call.result_format if request.call else "pickle"]
    stem, _, ending = name.rpartition(".")
    return f"{folder}/{stem}-{task or 'N'}.{ending}" if request.array else f"{folder}/{name}"


def format_result_path(request: Request, folder: str) -> str:
    """Return a message with the path of the function's result; '' where no function is called."""
    if request.call is None:
        return ""
    path = result_path(request, folder)
    task_note = " of task N" if request.array else ""
    traceback = f"{path.rpartition('/')[2]}.error"
    return (
        f"the result of {request.call.name} will be in {path}{task_note}, or the traceback in "
        f"{traceback}"
    )


def array_problem(call: Call, array: ArrayTasks) -> str:
    """Return why an array does not fit the call's items; '' where each task has an item."""
    count = len(call.items)
    if not count or max(tasks[-1] for tasks in array.ranges) < count:
        return ""
    last = f"0-{count - 1}" if count > 1 else "0"
    return f"{array} is not within {last}: call.items has {count}, numbered from 0"


def _refuse(request: Request, call: Call, folder: str) -> None:
    if not request.job_library:
        raise UsageError(
            "job_library: [call] needs it to start the function", "Remove job_library."
        )
    if (
        call.package
        and request.container is not None
        and request.container.runtime is not Runtime.NONE
    ):
        raise UsageError(
            "call: a wheel or source is installed with the node's Python, not the container's",
            "Install the package in the image, or pass its folder as sys_path.",
        )
    if request.array is not None and (problem := array_problem(call, request.array)):
        raise UsageError(f"array: {problem}", "Remove array: each item gets a task.")
    if not folder:
        raise UsageError(
            "call: the launch folder for its arguments and result is unknown",
            "Set the launch folder: --storage-root PATH, or storage_root in [launch].",
        )
