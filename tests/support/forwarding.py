"""`hpcdash forward` in a process, and a web server for its far end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.program import Program
from tests.support.slurm.layout import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
# A web server of a job's, on the node's loopback, that prints its address as Jupyter does.
SERVER = """#!/bin/sh
cd "$(mktemp -d)" || exit
echo "hello from $SLURM_JOB_ID" >index.html
echo "    http://127.0.0.1:{port}/lab?token=0123456789abcdef"
exec {python} -u -m http.server --bind 127.0.0.1 {port}
"""


def server(port: int) -> str:
    return SERVER.format(port=port, python=sys.executable if os.getuid() else "python3")


class Forwarding:
    """`hpcdash forward` that runs: its lines on stdout, and all of stderr so far."""

    def __init__(self, program: Program, folder: Path, *words: str) -> None:
        self._errors = folder / f"forward-{free_port()}.err"
        self.process = subprocess.Popen(
            program.argv("forward", *words),
            env={"PYTHONPATH": str(ROOT), **program.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors.open("wb"),
            cwd=program.home,
            text=True,
        )

    @property
    def stderr(self) -> str:
        return self._errors.read_text()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.stderr
        return line

    def ended(self) -> int:
        wait_until("its end", lambda: self.process.poll() is not None, lambda: self.stderr)
        return int(self.process.returncode)


@contextmanager
def forwarding(program: Program, folder: Path, *words: str) -> Iterator[Forwarding]:
    one = Forwarding(program, folder, *words)
    try:
        yield one
    finally:
        one.process.send_signal(signal.SIGINT)
        one.process.wait()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())
