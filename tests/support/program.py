"""Runs the real hpcdash in a process of its own, as a person's shell would, with a home of its
own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from tests.support.slurm import SlurmLab
from tests.support.warm_start import is_warm, warm_start


class Run(Struct, frozen=True):
    """How one call ended."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout as the one JSON object it must be, of a call that went well and had nothing to
        complain of.
        """
        assert (self.status, self.stderr) == (0, ""), self
        found = json.loads(self.stdout.decode("utf-8", "strict"))
        assert isinstance(found, dict)
        return found

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "strict")

    def refused(self, status: int) -> str:
        """What it said on stderr, of a call that ended with `status` and printed no data."""
        assert self.status == status, self
        assert self.stdout == b"", self
        assert self.stderr.startswith(("hpcdash: ", "Usage: ", "Error: ")), self
        assert "Traceback" not in self.stderr, self
        assert "hpcdash itself" not in self.stderr, self
        return self.stderr


class Program(Struct, frozen=True):
    """hpcdash in `home`, where its configuration, cache, logs and .ssh are; `before` are options of
    every call.
    """

    home: Path
    before: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the environment the tests run in but its PATH."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "HPCDASH_CACHE": str(self.home / "cache"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.variables,
        }

    @property
    def config(self) -> Path:
        """The configuration it reads by default."""
        return self.home / "config" / "hpcdash" / "config.toml"

    def argv(self, *words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "hpcdash", *self.before, *words)

    def __call__(self, *words: str, **variables: str) -> Run:
        """Run to the end, with no terminal anywhere."""
        argv = self.argv(*words)
        environment = {**self.environment, **variables}
        if is_warm(environment):
            ended = warm_start().run((*self.before, *words), environment, self.home)
        else:
            ended = subprocess.run(
                argv,
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
            )
        run = Run(argv, ended.returncode, ended.stdout, ended.stderr.decode("utf-8", "replace"))
        assert "Traceback" not in run.stderr, run
        return run

    def rows(self, kind: str, *words: str) -> list[dict[str, Any]]:
        """The rows of `hpcdash KIND --format json`, of which none was rejected."""
        answer = self(kind, "--format", "json", *words).json
        assert answer["rejected_rows"] == 0, answer
        found: list[dict[str, Any]] = answer["jobs" if kind == "history" else kind]
        return found


def together(program: Program, *calls: Sequence[str]) -> list[Run]:
    """Several calls at once, as far as there are cores; their ends in the order of the calls."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda words: program(*words), calls))


def home_with(folder: Path, ssh_config: str | None = None) -> Path:
    """A new home; `ssh_config` becomes its ~/.ssh/config."""
    ssh = folder / ".ssh"
    ssh.mkdir(parents=True)
    ssh.chmod(0o700)
    if ssh_config is not None:
        (ssh / "config").write_text(ssh_config)
    return folder


def program_over_ssh(lab: SlurmLab, home: Path) -> Program:
    """hpcdash of a person whose account on the lab is alice's."""
    return Program(home_with(home, lab.ssh_config.read_text()), ("--ssh", "lab-alice"))


def program_on_the_spot(lab: SlurmLab, home: Path) -> Program:
    """hpcdash on the lab itself, as root. A lab with the Slurm of another Debian skips the test."""
    if lab.settings.root:
        pytest.skip(f"Slurm's commands on this machine are not those of {lab.settings.root}")
    return Program(home_with(home), ("--local",), lab.env)


def find_row(rows: Sequence[dict[str, Any]], job_id: str) -> dict[str, Any]:
    """The one row of a job."""
    found = [row for row in rows if row["id"] == job_id]
    assert len(found) == 1, (job_id, [row["id"] for row in rows])
    return found[0]
