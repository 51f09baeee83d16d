"""`hpcdash replay` without a case."""

from __future__ import annotations

from click.testing import CliRunner

from hpcdash.cli.main import cli


def test_replay_without_a_case_lists_the_shipped_ones_and_what_they_show() -> None:
    answer = CliRunner().invoke(cli, ["replay"])
    assert answer.exit_code == 0
    lines = answer.output.splitlines()
    assert "slurm/empty             a cluster where nobody has a job" in lines
    assert any(line.startswith("pbs/training ") for line in lines)
    assert lines[-1] == "Open one: hpcdash replay slurm/training"
