"""A run of the tests: the number, accounts, temporary folder and processes that are its own.

Runs go side by side.

The pytest that was called forks. The child runs the tests. The parent adopts every orphan; when a
worker is killed, it ends what that worker started; at the end it ends everything, and removes the
accounts, sudo rules and folder of the run. What is left of a run whose parent was killed too, the
next run removes.
"""

from __future__ import annotations

import ctypes
import fcntl
import grp
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

_PREFIX = "hpcdash-test-"
# In the environment of all that a run starts: its number, and its first process.
_NUMBER = "HPCDASH_TEST_RUN"
_PARENT = "HPCDASH_TEST_PARENT"
# A file in the run's folder, with the worker's pid at its end.
_WORKER = "worker-"
_MAX_RUNS = 100
_RULES = Path("/etc/sudoers.d")
# Where tests make folders, named as accounts are, above which all is root's alone.
ROOTS_FOLDER = Path("/var/lib")
_LOOK_SECONDS = 2.0
_END_SECONDS = 15.0
# useradd(8): longer names are refused.
_LONGEST_NAME = 32
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000


def begin() -> None:
    """Have the tests run in a child of this process, which ends what they leave; comes back in the
    child alone.
    """
    if sys.platform != "linux" or _NUMBER in os.environ:
        os.environ.setdefault(_NUMBER, str(os.getpid()))
        return
    number, lock, folder = _free_number()
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getpid()
    tests = os.fork()
    if tests:
        _keep(tests, number)
    lock.close()
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # What a test mounts is gone with its processes. Only root may.
    if _libc().unshare(_CLONE_NEWNS) == 0:
        _libc().mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    # pytest keeps the folders of its last runs by itself.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ.update({_NUMBER: str(number), _PARENT: str(parent), "TMPDIR": str(folder)})
    tempfile.tempdir = None


def begin_worker() -> None:
    """Have what this worker of xdist starts end with it, and itself with the pytest that started
    it.
    """
    if _PARENT in os.environ:
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        Path(tempfile.gettempdir(), f"{_WORKER}{os.getpid()}").touch()


def name(label: str) -> str:
    """What an account, a group or a folder of this run is called, so that it is removed with the
    run.
    """
    found = f"{_PREFIX}{os.environ[_NUMBER]}-{label}"
    assert len(found) <= _LONGEST_NAME, found
    return found


def account(label: str, *options: str) -> str:
    """This run's account of that label, made with these options of useradd if there is none.

    Needs root.
    """
    wanted = name(label)
    with locked_accounts():
        try:
            pwd.getpwnam(wanted)
        except KeyError:
            # "*" is no password that fits, yet does not lock the account: a key still opens it.
            subprocess.run(
                ["useradd", "-p", "*", *options, wanted], check=True, capture_output=True
            )
    return wanted


def people() -> tuple[str, str]:
    """The accounts of this run's labs, with homes and bash: alice's and bob's. Needs root."""
    return account("alice", "-m", "-s", "/bin/bash"), account("bob", "-m", "-s", "/bin/bash")


def group(label: str) -> str:
    """The name of this run's group of that label, made if there is none. Needs root."""
    wanted = name(label)
    with locked_accounts():
        try:
            grp.getgrnam(wanted)
        except KeyError:
            subprocess.run(["groupadd", wanted], check=True, capture_output=True)
    return wanted


def processes() -> list[psutil.Process]:
    """All processes of this run; of the machine, where the run has no parent or uses a lab that is
    kept.
    """
    parent = os.environ.get(_PARENT)
    if parent is None or "HPCDASH_SLURM_LAB" in os.environ:
        return list(psutil.process_iter())
    return psutil.Process(int(parent)).children(recursive=True)


def _free_number() -> tuple[int, socket.socket, Path]:
    """The lowest number that no run has, its lock, and its folder; what is left of runs that were
    killed is removed.
    """
    for stale in sorted(_left_numbers()):
        with suppress(OSError), _lock(stale):
            _end_stale(stale)
    for number in range(_MAX_RUNS):
        with suppress(OSError):
            lock = _lock(number)
            folder = _folder(number)
            # Somebody else's, where it is there still.
            folder.mkdir(mode=0o755)
            return number, lock, folder
    raise RuntimeError(f"{_MAX_RUNS} runs of the tests have a folder in {tempfile.gettempdir()}")


def _lock(number: int) -> socket.socket:
    """Held until its process ends; raises OSError where another one has it."""
    lock = socket.socket(socket.AF_UNIX)
    lock.bind(f"\0{_PREFIX}{number}")
    return lock


def _folder(number: int) -> Path:
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{number}"


def _left_numbers() -> set[int]:
    names = [entry.pw_name for entry in pwd.getpwall()] + [
        entry.gr_name for entry in grp.getgrall()
    ]
    names += [path.name for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")]
    found = (re.match(rf"{_PREFIX}(\d{{1,2}})(?:-|$)", name) for name in names)
    return {int(match[1]) for match in found if match}


def _keep(tests: int, number: int) -> NoReturn:
    """Wait for the tests and clean up after them; end as they ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda number, _: os.kill(tests, number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        lineage = _Lineage(_folder(number))
        status: int | None = None
        while status is None:
            signal.sigtimedwait({signal.SIGCHLD}, _LOOK_SECONDS)
            status = _reap(tests)
            lineage.look()
        _end_all(lambda: [process.pid for process in psutil.Process().children(recursive=True)])
        _remove(number)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _reap(tests: int) -> int | None:
    """Take note of all that have ended; the status of the tests, once they have."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == tests:
                return ended[1]
    return None


class _Lineage:
    """Which worker has started what, so that this ends with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: dict[psutil.Process, set[psutil.Process]] = {}

    def look(self) -> None:
        for path in self._folder.glob(f"{_WORKER}*"):
            path.unlink()
            with suppress(psutil.NoSuchProcess):
                self._workers[psutil.Process(int(path.name.removeprefix(_WORKER)))] = set()
        for worker, started in tuple(self._workers.items()):
            with suppress(psutil.NoSuchProcess):
                if worker.status() != psutil.STATUS_ZOMBIE:
                    started.update(worker.children(recursive=True))
                    continue
            del self._workers[worker]
            for process in started:
                with suppress(psutil.NoSuchProcess):
                    for one in (process, *process.children(recursive=True)):
                        one.kill()


def _end_stale(number: int) -> None:
    """End what is left of a run that was killed with its parent."""
    accounts = {
        entry.pw_uid for entry in pwd.getpwall() if entry.pw_name.startswith(f"{_PREFIX}{number}-")
    }
    _end_all(lambda: _marked(number, accounts))
    _remove(number)


def _remove(number: int) -> None:
    """Remove the accounts, groups, rules of sudo and the folder of a run."""
    names = [
        entry.pw_name for entry in pwd.getpwall() if entry.pw_name.startswith(f"{_PREFIX}{number}-")
    ]
    if os.getuid() == 0:
        for rules in _RULES.glob(f"{_PREFIX}{number}-*"):
            rules.unlink()
        with locked_accounts():
            for name in names:
                subprocess.run(["userdel", "-r", "-f", name], check=False, capture_output=True)
            for name in [
                entry.gr_name
                for entry in grp.getgrall()
                if entry.gr_name.startswith(f"{_PREFIX}{number}-")
            ]:
                subprocess.run(["groupdel", name], check=False, capture_output=True)
    for folder in (_folder(number), *ROOTS_FOLDER.glob(f"{_PREFIX}{number}-*")):
        shutil.rmtree(folder, ignore_errors=True)


def _marked(number: int, accounts: Iterable[int]) -> Iterator[int]:
    """Processes with the run's number in their environment, its folder among their words, or an
    account of its own.
    """
    words = (b"%s=%d\0" % (_NUMBER.encode(), number), os.fsencode(_folder(number)) + b"/")
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            told = [
                Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("environ", "cmdline")
            ]
            is_marked = any(word in text for word in words for text in told)
            if process.pid != os.getpid() and (is_marked or process.uids().real in accounts):
                yield process.pid


def _end_all(find: Callable[[], Iterable[int]]) -> None:
    """KILL until none is found; those that nobody can end are left after a while."""
    deadline = time.monotonic() + _END_SECONDS
    while (found := list(find())) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@contextmanager
def locked_accounts() -> Iterator[None]:
    """One at a time: useradd gives up where another one is at work."""
    etc = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(etc, fcntl.LOCK_EX)
        yield
    finally:
        os.close(etc)
