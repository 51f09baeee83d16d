"""Tests how a program suspends, on any machine: `python -m hpcdash.job.simulation --suspend-after
60 python train.py`.

The program runs as on the only node of a task of a shared pool, and is asked to suspend after so
many seconds, as the pool's coordinator asks. Run it again to see that it resumes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from time import monotonic, sleep

from hpcdash.job.suspend import (
    READY_SUFFIX,
    SEEN_SUFFIX,
    SUSPEND,
    SUSPEND_LOOKED,
    SUSPEND_READY,
    suspend_deadline,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

_CHECK_SECONDS = 0.05
LOOKED_SUFFIX = ".looked"
# Time between TERM and KILL.
_TERM_SECONDS = 2.0
NODE = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_IP": "127.0.0.1", "MASTER_PORT": "2222"}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if the program saved in time, 1 if it had to be ended, else its own exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hpcdash.job.simulation", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--suspend-after",
        type=float,
        metavar="SECONDS",
        help="when to request suspension (default: never)",
    )
    add(
        "--grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="seconds allowed for saving (default: 5)",
    )
    add("--import", type=float, default=60.0, metavar="SECONDS", dest="imports",
        help="seconds from the start to the first check for the command (default: 60)")  # fmt: skip
    add("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args(argv)
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        parser.error("nothing to run")
    with tempfile.TemporaryDirectory(prefix="hpcdash-suspend-") as folder:
        return _simulate(program, os.path.join(folder, "suspend"), options)


def _simulate(program: Sequence[str], command: str, options: argparse.Namespace) -> int:
    ready = command + READY_SUFFIX
    open(command, "wb").close()
    environment = {
        **os.environ,
        **NODE,
        SUSPEND: command,
        SUSPEND_READY: ready,
        SUSPEND_LOOKED: command + LOOKED_SUFFIX,
    }
    try:
        process = subprocess.Popen(program, env=environment, start_new_session=True)
    except OSError as error:
        return _report(f"{program[0]} cannot be started: {error.strerror}", 127)
    # A signal that ends this process must end all processes that it started.
    signal.signal(signal.SIGTERM, _exit)
    import_deadline = monotonic() + options.imports
    try:
        if not _wait_until(
            lambda: process.poll() is not None or os.path.exists(ready), options.suspend_after
        ):
            _report("requesting suspension of the program")
            with open(command, "wb") as file:
                file.write(b"suspend\n")
            requested_at = monotonic()
            if reason := _wait_for_suspension(process, command, options.grace, import_deadline):
                return _report(
                    f"the program did not suspend within {options.grace:g} s and was terminated: "
                    f"{reason}",
                    1,
                )
            if process.returncode is None:
                return _report(f"suspended {monotonic() - requested_at:.1f} s after the request")
        elif process.returncode is None:
            return _report("suspended on its own")
        return process.returncode if process.returncode >= 0 else 128 - process.returncode
    finally:
        _end_session(process)


def _wait_for_suspension(
    process: subprocess.Popen[bytes], command: str, grace_seconds: float, import_deadline: float
) -> str:
    """Wait, like the pool, for the program's end or its go_suspend().

    Returns '' for these, else the reason to end the program. A program that has not checked for the
    command may still import until `import_deadline`: in a pool it would lose nothing.
    """
    requested_at = monotonic()
    seen_at = None
    has_checked = os.path.exists(command + LOOKED_SUFFIX)
    while process.poll() is None and not os.path.exists(command + READY_SUFFIX):
        now = monotonic()
        if not has_checked and os.path.exists(command + LOOKED_SUFFIX):
            has_checked = True
            requested_at = now
        if seen_at is None and os.path.exists(command + SEEN_SUFFIX):
            seen_at = now
        deadline = suspend_deadline(requested_at, seen_at, grace_seconds)
        if now >= (deadline if has_checked else max(deadline, import_deadline)):
            if seen_at is not None:
                return "it saw the command but did not call go_suspend"
            return f"it {'did not check' if has_checked else 'never checked'} for the command"
        sleep(_CHECK_SECONDS)
    return ""


def _wait_until(is_reached: Callable[[], bool], limit_seconds: float | None) -> bool:
    """Wait until a condition is true; return False after `limit_seconds` (None: no limit)."""
    deadline = None if limit_seconds is None else monotonic() + limit_seconds
    while not is_reached():
        if deadline is not None and monotonic() >= deadline:
            return False
        sleep(_CHECK_SECONDS)
    return True


def _exit(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        if number == signal.SIGTERM:
            _wait_until(lambda: process.poll() is not None, _TERM_SECONDS)
    process.wait()


def _report(text: str, status: int = 0) -> int:
    print(f"hpcdash: {text}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
