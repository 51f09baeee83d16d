"""Puts commands that answer as Torque's into a folder that goes first on PATH, and tells what they
were called with.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdash.backends.actions import ActionCommand
from hpcdash.transport.base import CommandResult
from tests.support.pbs import torque_standin

PRINTED = Path(__file__).resolve().parents[3] / "fixtures" / "pbs" / "torque-6.1" / "printed"
PROGRAMS = (
    "qstat",
    "pbsnodes",
    "qsub",
    "qdel",
    "qhold",
    "qrls",
    "qrerun",
    "qalter",
    "qsig",
    "qmove",
    "qselect",
)
USER = "maya"
_LIMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class TorqueSite:
    """The commands in `folder`."""

    folder: Path

    @classmethod
    def install(cls, folder: Path) -> TorqueSite:
        """Fill a folder; its `bin` is what goes first on PATH."""
        there = cls(folder)
        there.path.mkdir(parents=True)
        shutil.copytree(PRINTED, folder / "printed")
        program = Path(torque_standin.__file__).read_text("utf-8")
        (folder / "standin.py").write_text(program, "utf-8")
        for name in PROGRAMS:
            file = there.path / name
            file.write_text(
                f'#!/bin/sh\nexec python3 -I "{folder}/standin.py" "{folder}/printed" {name} "$@"\n'
            )
            file.chmod(0o755)
        # Who asks, and when: the machine's own would tell of the tester.
        person = f'[ "$1" != -Gn ] && echo {USER} || echo {USER} users'
        for name, words in {"id": person, "date": f"echo {torque_standin.CLOCK}"}.items():
            file = there.path / name
            file.write_text(f"#!/bin/sh\n{words}\n")
            file.chmod(0o755)
        return there

    @property
    def path(self) -> Path:
        return self.folder / "bin"

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": f"{self.path}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
        }

    def run(self, argv: tuple[str, ...], stdin: bytes | None = None) -> CommandResult:
        """A command as a transport would run it."""
        done = subprocess.run(
            argv,
            env=dict(self.environment),
            cwd=self.folder,
            input=stdin or b"",
            capture_output=True,
        )
        return CommandResult(argv, done.returncode, done.stdout, done.stderr, 0.02)

    def act(self, command: ActionCommand) -> CommandResult:
        return self.run(command.argv, command.stdin)

    @property
    def called(self) -> list[tuple[list[str], dict[str, Any]]]:
        """(program and words, what else: stdin and folder) of each call that was no question, in
        order.
        """
        file = self.folder / "printed" / "called"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return [(words, more) for *words, more in map(json.loads, lines)]
