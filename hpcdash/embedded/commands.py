"""The embedded queue's command line, as squeue, sbatch and scancel are a scheduler's; prints
JSON.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

from hpcdash.embedded.processes import MARK
from hpcdash.embedded.start import open_folder
from hpcdash.embedded.store import readable
from hpcdash.errors import HpcdashError

Run = Callable[[Path, list[str]], int]
# The module of each command: only that one is loaded, so that the command starts at once.
_MODULES = {
    **dict.fromkeys(
        ("probe", "jobs", "history", "nodes", "queues", "show", "usage", "script", "find"),
        "query_commands",
    ),
    **dict.fromkeys(("submit", "again"), "submit_commands"),
    **dict.fromkeys(
        ("cancel", "hold", "release", "requeue", "suspend", "resume", "signal", "alter"),
        "action_commands",
    ),
    "shell": "shell",
    "supervise": "supervisor",
}
_ADDING_JOBS = frozenset({"submit", "again"})


def main(parts: Sequence[str]) -> int:
    """Run one command: `FOLDER COMMAND [ARGUMENT…]`; returns its exit status."""
    if len(parts) < 2 or not parts[0] or parts[1] not in _MODULES:
        print(f"usage: python -m hpcdash.embedded FOLDER {'|'.join(_MODULES)} …", file=sys.stderr)
        return 2
    module = import_module(f"hpcdash.embedded.{_MODULES[parts[1]]}")
    run: Run = module.COMMANDS[parts[1]]
    folder = Path(os.path.abspath(os.path.expanduser(parts[0])))
    try:
        # Before any file is read: another user's folder may be a trap.
        open_folder(folder, takes_jobs=parts[1] in _ADDING_JOBS)
        return run(folder, list(parts[2:]))
    except HpcdashError as error:
        print(readable(str(error)), file=sys.stderr)
        return error.exit_status


def run_in_own_queue(program: str, parts: Sequence[str]) -> tuple[int, str]:
    """Run a command in the queue of the job that calls this; return its status and its output.

    Exits with an error of `program` outside of the queue's jobs.
    """
    folder = os.environ.get(MARK, "").partition(":")[2]
    if not folder:
        sys.exit(f"{program}: this is not a job of the embedded queue")
    with redirect_stdout(StringIO()) as output:
        status = main([folder, *parts])
    return status, output.getvalue().strip()
