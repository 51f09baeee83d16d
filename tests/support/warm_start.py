"""Starts hpcdash in new processes that need not import it: each is forked from one that has.

The imports are paid once a session instead of at each of hundreds of calls. Every call still has a
process, a session, an environment, a working directory and standard streams of its own, and ends as
the program ends.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

_IMPORTED = (
    "asyncssh",
    "hpcdash.backends.embedded.backend",
    "hpcdash.backends.pbs.backend",
    "hpcdash.backends.slurm.backend",
    "hpcdash.backends.slurm.lint",
    "hpcdash.backends.slurm.script",
    "hpcdash.cli.actions",
    "hpcdash.assembly",
    "hpcdash.cli.commands",
    "hpcdash.cli.dashboard",
    "hpcdash.cli.history",
    "hpcdash.cli.jobs",
    "hpcdash.cli.log",
    "hpcdash.cli.main",
    "hpcdash.cli.metrics",
    "hpcdash.cli.submit",
    "hpcdash.cli.usage",
    "hpcdash.services.state.recents",
    "hpcdash.services.submit.launched_job",
    "hpcdash.services.submit.queues",
    "hpcdash.transport.ssh",
    "hpcdash.ui.app",
    "hpcdash.ui.handlers",
    "hpcdash.ui.jobs.overview",
    "pyarrow.acero",
    "pyarrow.compute",
    "textual.drivers.linux_driver",
    "zoneinfo",
)
_ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
# What Python, the C library and what is imported read before anything of ours does: who sets
# another one needs a start from nothing.
_READ_AT_START = (
    "LANG",
    "LC_",
    "PYTHON",
    "LD_",
    "TEXTUAL_",
    "ESCDELAY",
    "TERM_PROGRAM",
    "OPENBLAS_",
)
_LONGEST_BYTES = 1 << 20


def is_warm(environment: Mapping[str, str]) -> bool:
    """Whether a call in this environment may be forked."""
    read = {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}
    return read == _ENVIRONMENT


# ctrl+c reaches the whole foreground of a terminal; a forked call is in a session of its own.
_COMMAND = """
import json, os, signal, socket, sys

connection = socket.socket(socket.AF_UNIX)
while True:
    try:
        connection.connect(PATH)
        break
    except OSError:
        if not os.path.isdir(os.path.dirname(PATH)):
            raise
call = {"words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}
socket.send_fds(connection, [json.dumps(call).encode()], [0, 1, 2])
connection.shutdown(socket.SHUT_WR)
answers = connection.makefile()
pid = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
status = int(answers.readline())
sys.exit(status if status >= 0 else 128 - status)
"""


class WarmProcess:
    """One call, as subprocess.Popen has a process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("rb", buffering=0)
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended; raises subprocess.TimeoutExpired."""
        if (status := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send it, unless it has ended: whoever forked it waits for it, and its status comes a
        moment later.
        """
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            self.returncode = int(self._answers.readline())
            self._connection.close()
        return self.returncode


class WarmStart:
    """Calls of `python -m hpcdash`; the process they are forked from ends with this one."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hpcdash-warm-")
        self._path = str(Path(self._folder.name) / "socket")
        self._process = subprocess.Popen(
            (sys.executable, "-m", "tests.support.warm_start", self._path),
            cwd=Path(__file__).parents[2],
            env={"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT},
            stdin=subprocess.PIPE,
        )
        atexit.register(self._end)

    def run(
        self, words: tuple[str, ...], environment: Mapping[str, str], folder: Path
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `python -m hpcdash WORDS` to its end with no terminal anywhere."""
        nothing = os.open(os.devnull, os.O_RDWR)
        pipes = os.pipe(), os.pipe()
        try:
            program = self.start(
                words, environment, folder, (nothing, *(theirs for _, theirs in pipes))
            )
        finally:
            for theirs in (nothing, *(theirs for _, theirs in pipes)):
                os.close(theirs)
        with ThreadPoolExecutor(2) as pool:
            outputs = [pool.submit(_read_all, ours) for ours, _ in pipes]
            try:
                stdout, stderr = (output.result() for output in outputs)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                raise
            return subprocess.CompletedProcess(words, program.wait(), stdout, stderr)

    def start(
        self,
        words: tuple[str, ...],
        environment: Mapping[str, str],
        folder: Path,
        streams: tuple[int, int, int],
    ) -> WarmProcess:
        """`python -m hpcdash WORDS`; the first of its streams is its terminal, if it is one."""
        call = json.dumps(
            {"words": words, "environment": dict(environment), "folder": str(folder)}
        ).encode()
        connection = self._connection()
        socket.send_fds(connection, [call], list(streams))
        connection.shutdown(socket.SHUT_WR)
        return WarmProcess(connection)

    def write_command(self, path: Path) -> None:
        """Write an `hpcdash` for a shell's PATH; it has the streams, environment and folder of its
        caller.
        """
        path.write_text(f"#!{sys.executable} -SIE\nPATH = {self._path!r}\n{_COMMAND}")
        path.chmod(0o700)

    def _connection(self) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._path)
                return connection
            except OSError:
                connection.close()
                if self._process.poll() is not None:
                    raise
                time.sleep(0.01)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._folder.cleanup()


@cache
def warm_start() -> WarmStart:
    """The session's."""
    return WarmStart()


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as stream:
        return stream.read()


def _serve(path: str) -> list[str]:
    """Fork a process for each call. Comes back in those alone, with the words of the call."""
    for name in _IMPORTED:
        importlib.import_module(name)
    # What was imported stays as it is: its pages are shared as long as nobody looks for garbage in
    # them.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    while True:
        # Whoever started this holds the other end of stdin, until killed at the latest.
        if sys.stdin in select.select([listening, sys.stdin], [], [])[0]:
            os._exit(0)
        connection, _ = listening.accept()
        if os.fork():
            connection.close()
            continue
        listening.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        call, streams, _, _ = socket.recv_fds(connection, _LONGEST_BYTES, 3)
        while more := connection.recv(_LONGEST_BYTES):
            call += more
        program = os.fork()
        if not program:
            connection.close()
            return _become(json.loads(call), streams)
        for stream in streams:
            os.close(stream)
        connection.sendall(b"%d\n" % program)
        _, status = os.waitpid(program, 0)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)


def _become(call: dict[str, object], streams: list[int]) -> list[str]:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # As Python has it where it starts on a terminal.
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.chdir(str(call["folder"]))
    os.environ.clear()
    os.environ.update(call["environment"])  # type: ignore[arg-type]
    time.tzset()
    # The one of this process, which is looked up at the first temporary file.
    tempfile.tempdir = None
    return list(call["words"])  # type: ignore[call-overload]


def _end(status: int) -> None:
    """End as Python does, without taking all that was imported apart: a third of the time of a
    short call.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # What nobody awaited, or closed, says so now.
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.argv[1:] = _serve(sys.argv[1])
    try:
        runpy.run_module("hpcdash", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        # The end of a session hangs up its terminal with what was printed and not yet read: there
        # no sooner than usual.
        if not isinstance(end.code, int) or os.isatty(0):
            raise
        _end(end.code)
