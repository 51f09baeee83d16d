"""Tries how a program suspends, on any machine: `python -m hpcdash.job.simulation --suspend-after
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

_LOOK_EVERY_SECONDS = 0.05
LOOKED_SUFFIX = ".looked"
# Between TERM and KILL.
_TERM_SECONDS = 2.0
NODE = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_IP": "127.0.0.1", "MASTER_PORT": "2222"}


def main(argv: Sequence[str] | None = None) -> int:
    """The program's exit status if it ends before; 0 where it saved in time, 1 where it had to be
    ended.
    """
    parser = argparse.ArgumentParser(
        prog="python -m hpcdash.job.simulation", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--suspend-after",
        type=float,
        metavar="SECONDS",
        help="when to ask it to suspend (default: never)",
    )
    add(
        "--grace",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="seconds it may then take to save (default: 5)",
    )
    add("--import", type=float, default=60.0, metavar="SECONDS", dest="imports",
        help="seconds from its start to its first check for the command (default: 60)")  # fmt: skip
    add("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args(argv)
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        parser.error("nothing to run")
    with tempfile.TemporaryDirectory(prefix="hpcdash-suspend-") as folder:
        return _simulate(
            program,
            os.path.join(folder, "suspend"),
            options.suspend_after,
            options.grace,
            options.imports,
        )


def _simulate(
    program: Sequence[str], command: str, after: float | None, grace: float, imports: float
) -> int:
    ready, looked = command + READY_SUFFIX, command + LOOKED_SUFFIX
    open(command, "wb").close()
    given = {**os.environ, **NODE, SUSPEND: command, SUSPEND_READY: ready, SUSPEND_LOOKED: looked}
    try:
        process = subprocess.Popen(program, env=given, start_new_session=True)
    except OSError as error:
        return _report(f"{program[0]} cannot be started: {error.strerror}", 127)
    # A signal that ends this must end all processes it has started.
    signal.signal(signal.SIGTERM, _end)
    started_at = monotonic()
    try:
        if not _waited(lambda: process.poll() is not None or os.path.exists(ready), after):
            _report("asking the program to suspend")
            with open(command, "wb") as file:
                file.write(b"suspend\n")
            queried_at = monotonic()
            if why := _why_late(process, command, started_at, grace, imports):
                return _report(
                    f"the program did not suspend within {grace:g} s and was terminated: {why}", 1
                )
            if process.returncode is None:
                return _report(f"suspended {monotonic() - queried_at:.1f} s after it was asked", 0)
        elif process.returncode is None:
            return _report("suspended on its own", 0)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode
    finally:
        _end_session(process)


def _why_late(
    process: subprocess.Popen[bytes], command: str, started_at: float, grace: float, imports: float
) -> str:
    """Wait for the program's end or its go_suspend(), like the pool; return why it has to be ended.

    '' for these. A program that still imports is waited for: in a pool it would lose nothing.
    """
    queried_at = monotonic()
    seen_at = None
    has_looked = os.path.exists(command + LOOKED_SUFFIX)
    while process.poll() is None and not os.path.exists(command + READY_SUFFIX):
        now = monotonic()
        if not has_looked and os.path.exists(command + LOOKED_SUFFIX):
            has_looked, queried_at = True, now
        if seen_at is None and os.path.exists(command + SEEN_SUFFIX):
            seen_at = now
        deadline = suspend_deadline(queried_at, seen_at, grace)
        if now >= (deadline if has_looked else max(deadline, started_at + imports)):
            if seen_at is not None:
                return "it saw the command but did not call go_suspend"
            return f"it {'did not look' if has_looked else 'never looked'} for the command"
        sleep(_LOOK_EVERY_SECONDS)
    return ""


def _waited(is_so: Callable[[], bool], seconds: float | None) -> bool:
    """Whether it became so in time; without a time, once it is."""
    until = None if seconds is None else monotonic() + seconds
    while not is_so():
        if until is not None and monotonic() >= until:
            return False
        sleep(_LOOK_EVERY_SECONDS)
    return True


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        if number == signal.SIGTERM:
            _waited(lambda: process.poll() is not None, _TERM_SECONDS)
    process.wait()


def _report(text: str, status: int = 0) -> int:
    print(f"hpcdash: {text}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
