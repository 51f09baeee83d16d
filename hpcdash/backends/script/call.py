"""A function that a job calls: bash that starts its runner, and the files it reads."""

from __future__ import annotations

import shlex

from hpcdash.backends.script.environment import JobEnvironment
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.request import NODE_LAUNCHERS, Call, Launcher, Request, Runtime
from hpcdash.errors import UsageError

ARGS_NAME, KWARGS_NAME, ITEMS_NAME = "call-args.b64", "call-kwargs.b64", "call-items.b64"
CALLBACKS_NAME = "call-callbacks.b64"
# The name of a result, by its format.
RESULT_NAMES = {"pickle": "result.pkl", "json": "result.json"}
# In the launch's folder, for the venv alone.
_VENV_FOLDER = "env"
_SAID = """\
# Calls {function}.
# What it returns is {how} to the output file, of rank N > 0 to FILE.N; of a failure FILE.error (JSON) tells.
"""
_PACKAGE = """\
# {path} in a venv of this job's own, made once, before anything starts on the nodes.
unset PY_EXEC
{lines}
"""
# If a process has no rank, each host would write the same file.
_HOST, _OF_HOST = "host=${NODE_RANK#0}\n", '"${host:+.$host}"'


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
    from hpcdash.job.packaging import RunnerCall

    _refuse(request, call, folder)
    files = {name: f"{folder}/{name}" for name in call_names(call)}
    runner = RunnerCall(
        call.module,
        call.function,
        folder,
        args_file=files.get(ARGS_NAME),
        kwargs_file=files.get(KWARGS_NAME),
        callbacks_file=files.get(CALLBACKS_NAME),
        array_items_file=files.get(ITEMS_NAME),
        pre_submission_id=uid,
        output_file=f"{folder}/{RESULT_NAMES[call.result_format]}",
        task=environment.array_task if request.array is not None else "",
        callbacks=call.callbacks,
        sys_path=(
            *(path for path in files.values() if path.endswith(".zip")),
            *call.sys_path,
            *_work_dir_in_container(request),
        ),
        main=call.main or None,
        result_format=call.result_format if call.result_format != "pickle" else None,
    )
    _, *options = (text if is_shell else shlex.quote(text) for text, is_shell in runner.words())
    if request.launcher in NODE_LAUNCHERS:
        options[0] = "--module" if request.launcher is Launcher.DEEPSPEED else "-m"
        return " \\\n  ".join(
            [" ".join(options[:4]), *options[4:], *_logs(request, folder, environment)]
        )
    python = call_python(call)
    is_shared = not environment.is_inherited and node_count > 1
    if is_shared:
        options = [
            option + _OF_HOST if option.startswith("--output-file=") else option
            for option in options
        ]
    command = " \\\n  ".join(
        [" ".join([python, *options[:4]]), *options[4:], *_logs(request, folder, environment)]
    )
    how = "pickled" if call.result_format == "pickle" else "written as JSON"
    return _SAID.format(function=call.name, how=how) + (_HOST if is_shared else "") + command


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
    from hpcdash.job.packaging import wheel_packaging

    made = wheel_packaging(
        f"{folder}/{_VENV_FOLDER}",
        wheel="" if call.source else call.wheel or f"{folder}/{call.package}",
        source=call.source,
        python=call.python,
        isolated=None,
        array_tasks=request.array.count if request.array else 1,
    )
    return _PACKAGE.format(path=call.package, lines="\n".join(made.lines()))


def format_call(call: Call, array: ArrayTasks | None) -> str:
    """`calls train:main with 4 items, a task each`; where an array leaves some out `with items 0-1
    of 4`.
    """
    count = len(call.items)
    if not count:
        return f"calls {call.name}"
    is_each = array is None or array.count == count
    return f"calls {call.name} with " + (
        format_items(count) if is_each else f"items {array} of {count}, a task each"
    )


def format_items(count: int) -> str:
    """`4 items, a task each`."""
    return "1 item, for one task" if count == 1 else f"{count} items, a task each"


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
    return f"{array} is not within {last}: call.items has {count}, which tasks count from 0"


def _refuse(request: Request, call: Call, folder: str) -> None:
    if not request.job_library:
        raise UsageError(
            "job_library: [call] needs it, for it starts the function", "Leave job_library out."
        )
    if (
        call.package
        and request.container is not None
        and request.container.runtime is not Runtime.NONE
    ):
        raise UsageError(
            "call: the venv of wheel and source is made by the node's Python, not the container's",
            "Install the package in the image, or give its folder as sys_path.",
        )
    if request.array is not None and (problem := array_problem(call, request.array)):
        raise UsageError(f"array: {problem}", "Leave array out for a task for each item.")
    if not folder:
        raise UsageError(
            "call: the launch's folder is not known, where its arguments and its result are to be",
            "Name the folder that holds launches: --storage-root PATH, or storage_root in "
            "[launch].",
        )


def _work_dir_in_container(request: Request) -> tuple[str, ...]:
    """Return the job's folder as a further place of modules, as a container may start elsewhere."""
    return (
        (request.work_dir,)
        if request.container is not None and request.work_dir.startswith("/")
        else ()
    )


def _logs(request: Request, folder: str, environment: JobEnvironment) -> list[str]:
    """The options that name the job's logs, as its script's directives do."""
    name = environment.array_log_name if request.array else environment.log_name
    return [
        f'--{stream}-path="{folder}/{name}.{end}"'
        for stream, end in (("stdout", "out"), ("stderr", "err"))
    ]
