"""The text of the job that stands in for cron: for Slurm, for PBS, run by sh with stand-ins for
PBS's commands.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from hpcdash.backends.embedded.backend import EmbeddedScripts
from hpcdash.backends.registry import load_backend
from hpcdash.backends.script.cron import (
    CronJob,
    interval_label,
    label_in,
    watch_script,
)
from hpcdash.domain.units import DAY, HOUR, MINUTE
from hpcdash.errors import UsageError
from tests.support.records import for_each

SHELLS = ["sh", "bash"]


def script_of(job: CronJob, scheduler: str) -> str:
    if scheduler == "local":
        return EmbeddedScripts(job.program).cron_script(job)
    return load_backend(scheduler).scripts.cron_script(job)


@for_each(
    ("seconds", "label"),
    [
        (HOUR, "hourly"),
        (DAY, "daily"),
        (7 * DAY, "weekly"),
        (15 * MINUTE, "15m"),
        (2, "2s"),
        (2 * DAY, "2d"),
        (90, "90s"),
    ],
)
def test_an_interval_has_a_label_that_its_name_gives_back(seconds: int, label: str) -> None:
    job = CronJob(seconds, "/work/ada/cron")
    assert (interval_label(seconds), job.label, label_in(job.name), label_in(f"{job.name}.sh")) == (
        label,
    ) * 4
    assert len(job.name) <= 15
    assert job.scripts_folder == f"/work/ada/cron/cron.{label}"


@for_each("name", ["hourly", "hpcdash-", "hpcdash-x", "hpcdash-1h;rm", "hpcdash-0s", "xhpcdash-1h"])
def test_other_names_have_none(name: str) -> None:
    assert label_in(name) is None


@pytest.mark.system
@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "local"])
@pytest.mark.parametrize("shell", SHELLS)
def test_it_is_a_script_that_shells_read_without_set_e(scheduler: str, shell: str) -> None:
    text = script_of(
        CronJob(HOUR, "/w/cron", program=("/usr/bin/python3", "-m", "q", "/q u")), scheduler
    )
    assert (
        subprocess.run([shell, "-n"], input=text.encode(), capture_output=True, check=True).stderr
        == b""
    )
    assert not re.search(r"set\s+-\w*e", text)
    assert "@" not in text.replace("$@", "")


def test_for_slurm_no_two_run_at_once_and_options_are_directives() -> None:
    text = script_of(CronJob(HOUR, "/w/cron", ("--partition=cpu", "--account=lab")), "slurm")
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        "#SBATCH --job-name=hpcdash-hourly",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --time=00:30:00",
        "#SBATCH --output=/w/cron/outputs/hourly/%j.out",
        "#SBATCH --dependency=singleton",
        "#SBATCH --partition=cpu",
        "#SBATCH --account=lab",
    ]


@for_each("folder", ["cron", "/w/my cron", "/w/100%", "/w/a'b", "/w/a\nb"])
def test_a_folder_that_a_directive_cannot_hold_is_refused(folder: str) -> None:
    with pytest.raises(UsageError):
        script_of(CronJob(HOUR, folder), "slurm")


def test_an_option_does_not_become_a_line_of_the_script() -> None:
    with pytest.raises(UsageError):
        script_of(CronJob(HOUR, "/w", ("--partition=cpu\nrm -rf /",)), "pbs")


@pytest.mark.system
def test_a_round_of_the_watchdogs_keeps_words_together(tmp_path: Path) -> None:
    text = watch_script(("/bin/echo", "it's a", "$HOME"), {"PYTHONPATH": "/a b"})
    ran = subprocess.run(["sh", "-c", text], capture_output=True, check=True)
    assert ran.stdout == b"it's a $HOME\n"


class Pbs:
    """qselect and qsub on a PATH: `waiting` and `running` are ids they tell; what is submitted is
    noted.
    """

    def __init__(self, folder: Path) -> None:
        self.job = CronJob(HOUR, str(folder / "cron"))
        for path in (
            self.job.scripts_folder,
            self.job.output_folder,
            str(folder / "cron" / "scheduler"),
        ):
            Path(path).mkdir(parents=True)
        self.text = script_of(self.job, "pbs")
        Path(self.job.script_path).write_text(self.text)
        self.submitted, self._folder = folder / "submitted", folder
        self.message_lines(waiting="", running="7.pbs")
        self._program("qsub", f'printf "%s\\n" "$*" >> {self.submitted}; echo 8.pbs')

    def message_lines(self, *, waiting: str, running: str) -> None:
        named = '*"-N hpcdash-hourly -s'
        body = (
            f'case "$*" in {named} HQW") echo "{waiting}" ;; {named} R") echo "{running}" ;; esac'
        )
        self._program("qselect", body)

    def script(self, name: str, body: str) -> None:
        path = Path(self.job.scripts_folder) / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, job_id: str = "7.pbs") -> str:
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "PBS_JOBID": job_id}
        ran = subprocess.run(
            ["sh"], input=self.text.encode(), capture_output=True, env=variables, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
        return ran.stdout.decode()

    def asked(self) -> list[str]:
        return self.submitted.read_text().splitlines() if self.submitted.exists() else []

    def _program(self, name: str, body: str) -> None:
        path = self._folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)


@pytest.fixture
def pbs(tmp_path: Path) -> Pbs:
    return Pbs(tmp_path)


@pytest.mark.system
def test_on_pbs_it_submits_itself_for_an_hour_later_before_its_scripts(pbs: Pbs) -> None:
    pbs.script("a", f"cp {pbs.submitted} {pbs.submitted}.then; exit 4")
    pbs.script("b", "echo well")
    pbs.script("c.pbs", "never run here")
    said = pbs.run()
    first, second = pbs.asked()
    option, moment, path = first.split()
    assert (option, path, second) == ("-a", pbs.job.script_path, f"{pbs.job.scripts_folder}/c.pbs")
    assert time.mktime(time.strptime(moment, "%Y%m%d%H%M.%S")) == pytest.approx(
        time.time() + HOUR, abs=30
    )
    assert Path(f"{pbs.submitted}.then").read_text().splitlines() == [first]
    assert f"exit status 4: {pbs.job.scripts_folder}/a" in said
    assert "well\n" in said


@pytest.mark.system
def test_on_pbs_where_one_waits_no_second_is_submitted(pbs: Pbs) -> None:
    pbs.message_lines(waiting="8.pbs", running="7.pbs")
    pbs.script("b", "echo well")
    said = pbs.run()
    assert pbs.asked() == []
    assert "already pending: 8.pbs" in said
    assert "well\n" in said


@pytest.mark.system
def test_on_pbs_the_younger_of_two_leaves_the_scripts_and_comes_again(pbs: Pbs) -> None:
    pbs.message_lines(waiting="", running="6.pbs 7.pbs")
    pbs.script("b", "echo well")
    said = pbs.run()
    assert len(pbs.asked()) == 1
    assert "well" not in said
    assert "well" in pbs.run("6.pbs")


@pytest.mark.system
def test_moved_away_it_does_nothing_more(pbs: Pbs) -> None:
    pbs.script("b", "echo well")
    Path(pbs.job.script_path).unlink()
    assert pbs.run() == f"{pbs.job.script_path} no longer exists: stopping\n"
    assert pbs.asked() == []
