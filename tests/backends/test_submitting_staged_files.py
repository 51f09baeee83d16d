"""How each scheduler is handed a script that is in a file on the login node, as oneself and through
sudo.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcdash.backends.base import Backend
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.backends.submissions import Submission
from hpcdash.errors import UsageError, without_env
from tests.support.records import for_each

FILE = "/jobs/one-1/batch.sh"
STAGED = Submission(
    b"#!/bin/bash\n#SBATCH --job-name=one\n#PBS -N one\n", "one", mark="hpcdash:1", file=FILE
)
EMBEDDED = embedded_backend(("queue",))
PBS, TORQUE = map(pbs_backend, (Dialect.OPENPBS, Dialect.TORQUE))


@for_each(
    ("backend", "argv"),
    [
        (SLURM, ("sbatch", "--comment=hpcdash:1", FILE)),
        (EMBEDDED, ("queue", "submit", "--token", "hpcdash:1", "--named", "one", FILE)),
        (PBS, ("qsub", "-f", "-v", "HPCDASH_MARK=hpcdash:1", FILE)),
        (TORQUE, ("qsub", "-v", "HPCDASH_MARK=hpcdash:1", FILE)),
    ],
    ids=["slurm", "embedded", "openpbs", "torque"],
)
def test_the_file_is_named_in_place_of_stdin(backend: Backend, argv: tuple[str, ...]) -> None:
    assert without_env(backend.submit.submission(STAGED).command.argv) == argv


def test_a_script_that_pbs_would_not_give_back_comes_along_to_be_kept() -> None:
    assert PBS.submit.submission(STAGED).command.stdin == STAGED.script
    assert SLURM.submit.submission(STAGED).command.stdin is None


def test_arguments_of_a_script_follow_its_file() -> None:
    given = replace(STAGED, arguments=("--lr", "0.1"))
    assert without_env(SLURM.submit.submission(given).command.argv)[-3:] == (FILE, "--lr", "0.1")
    assert EMBEDDED.submit.submission(given).command.argv[-3:] == (FILE, "--lr", "0.1")


@pytest.mark.parametrize(
    ("backend", "argv"),
    [
        (SLURM, ("/opt/sbatch", "--comment=hpcdash:1", FILE)),
        # -v is a word of the command's own: sudo lets no variable through.
        (PBS, ("/opt/qsub", "-f", "-v", "HPCDASH_MARK=hpcdash:1", FILE)),
    ],
    ids=["slurm", "openpbs"],
)
def test_as_another_it_goes_through_sudo_by_the_command_s_own_path(
    backend: Backend, argv: tuple[str, ...]
) -> None:
    command = backend.submit.submission(replace(STAGED, run_as="alice", program=argv[0])).command
    assert command.argv == ("sudo", "-n", "-u", "alice", *argv)


@for_each("backend", [SLURM, PBS, EMBEDDED], ids=["slurm", "openpbs", "embedded"])
def test_what_cannot_be_submitted_as_another_is_refused(backend: Backend) -> None:
    with pytest.raises(UsageError):
        backend.submit.submission(replace(STAGED, file="", run_as="alice"))
