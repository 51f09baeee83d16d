"""A job that is submitted once more can be had to wait for another, in its scheduler's own
words.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.appending import appended
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.backends.submissions import Submission, SubmitCommand

OPENPBS, TORQUE = pbs_backend(Dialect.OPENPBS), pbs_backend(Dialect.TORQUE)


def words_after(
    backend: Any, argv: tuple[str, ...], after: str, array: str = ""
) -> tuple[str, ...] | None:
    """The command that waits for a job, with what this backend says for that."""
    phrased = backend.submit.submission(
        Submission(b"#!/bin/sh\n", "x", array=array, after=(after,))
    )
    found = appended(
        SubmitCommand(ActionCommand(argv, ("1",), partial(lambda answer: ()))), phrased
    )
    return None if found is None else found.command.argv


def test_sbatch_waits_instead_of_for_what_it_waited_for_then() -> None:
    argv = ("env", "-u", "X", "sbatch", "--mem=4G", "--dependency=", "--comment=hpcdash:1")
    found = words_after(SLURM, argv, "12")
    assert found == (
        "env",
        "-u",
        "X",
        "sbatch",
        "--dependency=afterany:12",
        "--mem=4G",
        "--comment=hpcdash:1",
    )


def test_an_array_s_own_tasks_stay_unless_others_are_named() -> None:
    argv = ("sbatch", "--array=1-10%1")
    assert words_after(SLURM, argv, "12") == (
        "sbatch",
        "--dependency=afterany:12",
        "--array=1-10%1",
    )
    assert words_after(SLURM, argv, "12", "1-3%1") == (
        "sbatch",
        "--array=1-3%1",
        "--dependency=afterany:12",
    )


def test_the_script_s_own_arguments_stay_where_they_are() -> None:
    argv = ("sh", "-c", 'cat | "$@"', "sh", "sbatch", "--mem=4G", "/dev/stdin", "-J", "fast")
    found = words_after(SLURM, argv, "12", "1-3%1")
    assert found is not None
    assert found[4:] == (
        *("sbatch", "--array=1-3%1", "--dependency=afterany:12"),
        *("--mem=4G", "/dev/stdin", "-J", "fast"),
    )


@pytest.mark.parametrize(
    "folder", [(), ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", "/home/a")]
)
def test_qsub_waits_and_keeps_its_other_attributes(folder: tuple[str, ...]) -> None:
    argv = (
        *folder,
        "qsub",
        "-f",
        "-W",
        "umask=22",
        "-W",
        "depend=afterok:1.s",
        "-J",
        "1-4%1",
        "-N",
        "job",
    )
    assert words_after(OPENPBS, argv, "12[].s", "1-3%1") == (
        *folder,
        *("qsub", "-f", "-J", "1-3%1", "-W", "depend=afterany:12[].s"),
        *("-W", "umask=22", "-N", "job"),
    )


def test_torque_has_words_of_its_own_for_arrays() -> None:
    found = words_after(TORQUE, ("qsub", "-t", "1-4", "-N", "job"), "12[].s", "1-3%1")
    assert found == ("qsub", "-t", "1-3%1", "-W", "depend=afteranyarray:12[].s", "-N", "job")


def test_where_neither_is_called_it_cannot_be_said() -> None:
    assert words_after(embedded_backend(("queue",)), ("queue", "again", "12"), "12") is None
