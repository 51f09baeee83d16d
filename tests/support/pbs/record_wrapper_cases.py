"""Asks what was printed by Slurm's commands by Torque's names all that hpcdash asks, and keeps it
as replayable cases.

    python -m tests.support.pbs.record_wrapper_cases

The scenes are those of record_wrappers, which needs a Slurm; this needs none. Read the difference
of expected.json before keeping it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcdash.backends.pbs.backend import BACKEND, pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import JobScope
from hpcdash.transport.base import CommandResult
from tests.support.pbs import wrappers_standin
from tests.support.pbs.asker import Asker
from tests.support.pbs.record_wrappers import PRINTED
from tests.support.record_case import write_case, write_expected
from tests.support.record_pbs_case import case_questions, fetch_rows

USER = "maira"
PROGRAMS = ("qstat", "qsub", "qdel", "qhold", "qrls", "qrerun", "qalter", "pbsnodes")
_LIMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene of record_wrappers, and the case that is made of it."""

    name: str
    case: str
    about: str
    # When it was recorded, by the login node's clock.
    clock: int
    has_details: bool = False


SCENES = (
    Scene(
        "everyday",
        "wrappers",
        "Slurm asked by Torque's commands: a job of nearly every state",
        1795265920,
        True,
    ),
    Scene(
        "hostile",
        "wrappers-hostile",
        "Slurm asked by Torque's commands: names meant to forge rows",
        1795265980,
    ),
    Scene(
        "controller-down",
        "wrappers-down",
        "Slurm asked by Torque's commands, while slurmctld is gone",
        1795265900,
    ),
)


@dataclass(frozen=True, slots=True)
class Printers:
    """Commands in `folder` that print one scene."""

    folder: Path

    @classmethod
    def install(cls, folder: Path, scene: Scene) -> Printers:
        """Fill a new folder; its `bin` is what goes first on PATH."""
        there = cls(folder)
        there.path.mkdir(parents=True)
        shutil.copy(wrappers_standin.__file__, folder / "standin.py")
        programs = {
            # How the probe knows whose qstat it is.
            name: f'#!/bin/sh\n# Slurm\nexec python3 -I "{folder}/standin.py" '
            f'"{PRINTED / scene.name}" {name} "$@"\n'
            for name in PROGRAMS
        }
        programs |= {"id": f"#!/bin/sh\necho {USER}\n", "date": f"#!/bin/sh\necho {scene.clock}\n"}
        for name, text in programs.items():
            (there.path / name).write_text(text)
            (there.path / name).chmod(0o755)
        return there

    @property
    def path(self) -> Path:
        return self.folder / "bin"

    def run(self, argv: tuple[str, ...]) -> CommandResult:
        """A command as a transport would run it."""
        environment = {"PATH": f"{self.path}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_SECONDS,
        )
        return CommandResult(argv, done.returncode, done.stdout, done.stderr, 0.05)


def record(scene: Scene, folder: Path) -> Path:
    """Ask everything of one scene; the folder of its case."""
    printers = Printers.install(folder, scene)
    recorder = Asker(printers.run, str(printers.path), "/usr/bin")
    recorder.ask("probe", "probe.sh", BACKEND.probe.query())
    backend = pbs_backend(Dialect.SLURM_WRAPPERS)
    tables = {
        stem: recorder.ask(stem, file, query) for stem, file, query in case_questions(backend, USER)
    }
    for row in fetch_rows(tables["jobs-all-ended"]) if scene.has_details else ():
        job_id = str(row["id"])
        recorder.ask(
            f"jobs/{job_id}-row", "job-row.sh", backend.queue.jobs(JobScope(job_ids=(job_id,)))
        )
        recorder.ask(f"jobs/{job_id}-native", "native.sh", backend.detail.native(job_id))
    directory = PRINTED.parent / scene.case
    shutil.rmtree(directory, ignore_errors=True)
    write_case(
        directory, scene.about, USER, scene.clock, recorder.commands.values(), backend=BACKEND.name
    )
    write_expected(directory)
    return directory


def main() -> None:
    shutil.rmtree(PRINTED.parent / "words", ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="hpcdash-wrappers-") as folder:
        for scene in SCENES:
            print(record(scene, Path(folder) / scene.name))


if __name__ == "__main__":
    main()
