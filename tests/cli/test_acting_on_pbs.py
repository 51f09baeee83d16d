"""`hpcdash cancel` and its like on a login node of a PBS: what is said before, and what PBS is asked to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.program import Program, home_with
from tests.support.pbs import StandIns


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns.install(tmp_path / "pbs", "everyday")


@pytest.fixture
def program(tmp_path: Path, stand_ins: StandIns) -> Program:
    variables = {"PATH": f"{stand_ins.path}:/usr/bin:/bin", "PBS_CONF_FILE": "/dev/null"}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "pbs"), variables)


@pytest.mark.parametrize("typed", ["12", "12[]", "12.pbs01"])
def test_tasks_that_ended_are_not_counted_among_those_that_are_cancelled(
    program: Program, stand_ins: StandIns, typed: str
) -> None:
    done = program("cancel", "--yes", typed)
    assert (done.status, done.text) == (0, "12[].pbs01  cancelled\n")
    assert "cancel on local: 3 jobs of alice (3 running)\n  7 of the same ended already\n" in done.stderr
    assert stand_ins.calls("qdel") == [["qdel", "12[].pbs01"]]


def test_of_what_has_all_ended_it_is_said_how(program: Program) -> None:
    assert "hold on local: 1 job of alice (1 cancelled)\n" in program("hold", "24").stderr
