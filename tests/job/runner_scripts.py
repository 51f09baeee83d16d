"""Scripts of a runner's call, as a batch script has it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hpcdash.backends.script.call import (
    ARGS_NAME,
    CALLBACKS_NAME,
    ITEMS_NAME,
    runner_command,
)
from hpcdash.domain.request import Call


def call_text(
    function: str,
    folder: str,
    *,
    args_file: str = "",
    callbacks_file: str = "",
    items_file: str = "",
    output: str = "",
    task: str = "",
    sys_path: Sequence[str] = (),
) -> str:
    """Bash that calls `module:function` in a folder; `output` is the path of its result."""
    module, _, name = function.partition(":")
    files = {ARGS_NAME: args_file, CALLBACKS_NAME: callbacks_file, ITEMS_NAME: items_file}
    path = shlex.quote(output)
    if task:
        stem, _, ending = output.rpartition(".")
        path = f'{shlex.quote(f"{stem}-")}"${task}".{ending}'
    return runner_command(
        '"$PY_EXEC" -m',
        Call(module, name),
        folder,
        {name: file for name, file in files.items() if file},
        main="",
        submission_id="",
        sys_path=sys_path,
        output=path if output else "",
        task=task,
    )


def runner_script(
    call: str,
    python: str,
    python_path: Sequence[str],
    *,
    wrap: Sequence[str] = (),
    venv: str = "",
) -> str:
    """Bash that calls it, by `python` or in the Python that `venv` makes, behind the words `wrap`."""
    return "\n".join((*runner_lines(python, python_path, venv), " ".join((*wrap, call)), ""))


def runner_lines(python: str, python_path: Sequence[str], venv: str = "") -> tuple[str, ...]:
    """What stands before the runner's command."""
    path = shlex.quote(":".join(python_path))
    return (
        f'export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        venv or f"PY_EXEC={shlex.quote(python)}",
    )
