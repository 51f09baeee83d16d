"""A node's own disk that only a program named ssh leads to, and a scheduler that says so.

For tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcdash.backends.base import LogsPart
from hpcdash.backends.job_detail import JobDetail, LogFiles, Script
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain.states import ENDED, WAITING
from tests.support.parts import fixed_backend

NOTE = "the scheduler keeps the log on cn01 until the job ends"
REACHES = 'for last; do :; done\nexec sh -c "$last"\n'
REFUSES = 'echo "maya@cn01: Permission denied (publickey,password)." >&2\nexit 255\n'


class Node(LogsPart):
    """A folder that is the node's disk, and the ssh that leads there."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "12.pbs01.OU"
        self.last = folder / "job.out"
        self.note = NOTE
        self._ssh = folder / "bin" / "ssh"
        self._ssh.parent.mkdir()
        self.calls = folder / "calls"
        self.ssh_does(REACHES)

    def ssh_does(self, script: str) -> None:
        fresh = self._ssh.with_name("fresh")
        fresh.write_text(f'#!/bin/sh\necho "$@" >>{self.calls}\n{script}')
        fresh.chmod(0o755)
        fresh.rename(self._ssh)

    def files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        if detail.job["state"][0].as_py() in ENDED | WAITING:
            return LogFiles(str(self.last), None)
        return LogFiles(str(self.log), None, self.note, "cn01")


def make_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """The node; every job writes there from now on, and this machine's ssh is the node's."""
    made = Node(folder)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")

    monkeypatch.setattr("tests.ui.logs.log_stage.BACKEND", fixed_backend(BACKEND, logs=made))
    monkeypatch.setattr("hpcdash.services.logs.file.NODE_PAUSE_SECONDS", 0.05)
    return made
