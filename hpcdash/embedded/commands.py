"""The embedded queue's command line: what a scheduler's squeue, sbatch, scancel … are to it.

Prints JSON.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from hpcdash.embedded.start import open_folder
from hpcdash.embedded.store import readable
from hpcdash.errors import HpcdashError

Run = Callable[[Path, list[str]], int]
# Module of each command, as a function of the command's name; each is loaded alone, to start at
# once.
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
_TAKING_JOBS = frozenset({"submit", "again"})


def main(parts: Sequence[str]) -> int:
    """Run one command: `FOLDER COMMAND [ARGUMENT…]`; returns its exit status."""
    if len(parts) < 2 or not parts[0] or parts[1] not in _MODULES:
        print(f"usage: python -m hpcdash.embedded FOLDER {'|'.join(_MODULES)} …", file=sys.stderr)
        return 2
    module = import_module(f"hpcdash.embedded.{_MODULES[parts[1]]}")
    run: Run = module.COMMANDS[parts[1]]
    folder = Path(os.path.abspath(os.path.expanduser(parts[0])))
    try:
        # Before anything in it is read: in another user's folder it may be a trap.
        open_folder(folder, takes_jobs=parts[1] in _TAKING_JOBS)
        return run(folder, list(parts[2:]))
    except HpcdashError as error:
        print(readable(str(error)), file=sys.stderr)
        return error.exit_status
