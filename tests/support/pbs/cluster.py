"""Puts the stand-ins of a scene into a folder, and tells what they were called with."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.pbs import standin

SCENES = Path(__file__).resolve().parents[3] / "fixtures" / "pbs" / "23.06" / "scenes"
COMMANDS = (*standin.PROGRAMS, "date", "id")


@dataclass(frozen=True, slots=True)
class StandIns:
    """The commands of one scene in `folder`, which anyone may read and run."""

    folder: Path

    @classmethod
    def install(cls, folder: Path, scene: str) -> StandIns:
        """Fill a new folder; its `bin` is what goes first on PATH."""
        there = cls(folder)
        there.path.mkdir(parents=True)
        shutil.copy(Path(standin.__file__), folder / "standin.py")
        there.play(scene)
        for name in COMMANDS:
            program = there.path / name
            program.write_text(f'#!/bin/sh\nexec python3 -I "{folder}/standin.py" {name} "$@"\n')
            program.chmod(0o755)
        there.called.touch()
        there.called.chmod(0o666)
        for made in (folder, *folder.rglob("*")):
            if made != there.called:
                made.chmod(0o755)
        return there

    def play(self, scene: str) -> None:
        """Let them answer as another scene does."""
        stage = self.folder / "scene"
        shutil.rmtree(stage, ignore_errors=True)
        shutil.copytree(SCENES / scene, stage)
        for made in (stage, *stage.iterdir()):
            made.chmod(0o755)

    def let_act(self) -> None:
        """Have their server carry out what it takes, in the list of jobs."""
        file = self.folder / "scene" / "scene.json"
        file.write_text(json.dumps({**self.settings, "acts": True}), "utf-8")

    @property
    def path(self) -> Path:
        return self.folder / "bin"

    @property
    def called(self) -> Path:
        return self.folder / "called"

    @property
    def settings(self) -> dict[str, Any]:
        """What the scene says of itself: user, clock and whether its server answers."""
        found: dict[str, Any] = json.loads(
            (self.folder / "scene" / "scene.json").read_text("utf-8")
        )
        return found

    @property
    def environment(self) -> dict[str, str]:
        """What is set for those who use them here."""
        return {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}"}

    def calls(self, *programs: str) -> list[list[str]]:
        """Every call up to now, program first; of these programs only, where any is named."""
        found = [json.loads(line) for line in self.called.read_text("utf-8").splitlines()]
        return [words for words in found if not programs or words[0] in programs]
