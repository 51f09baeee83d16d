"""A waiting job moves on the real Slurm: between partitions, and to a second cluster, whatever
starts or dies meanwhile.
"""

from __future__ import annotations

import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcdash
from tests.support.program import Program, find_row, program_on_the_spot
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm
CONFIG = """
[clusters.lab]
transport = "local"
[clusters.lab2]
transport = "local"
slurm_cluster = "lab2"
"""
# Runs a program of Slurm's, with something before or after it for one of its commands.
WRAPPER = """#!/bin/sh
case " $* " in *"{matches}"*) is_meant=yes ;; *) is_meant= ;; esac
[ -z "$is_meant" ] || {{ {before}; }}
"{program}" "$@"
status=$?
[ -z "$is_meant" ] || {{ {after}; }}
exit $status
"""
# Ends the hpcdash above, as a machine that fails would.
KILL = """pid=$PPID
until tr '\\0' ' ' <"/proc/$pid/cmdline" | grep -q -- '-m hpcdash'; do
    pid=$(awk '{print $4}' "/proc/$pid/stat")
done
kill -KILL "$pid" """


class Mover:
    """hpcdash of root on both clusters, with a folder of wrappers first on its PATH."""

    def __init__(self, lab: SlurmLab, home: Path) -> None:
        self.lab = lab
        program = program_on_the_spot(lab, home)
        self.bin = home / "bin"
        self.bin.mkdir()
        path = f"{self.bin}:{program.environment['PATH']}"
        self.program = Program(program.home, (), {**program.variables, "PATH": path})
        self.program.config.parent.mkdir(parents=True)
        self.program.config.write_text(CONFIG)
        self.script = home / "train.sh"
        self.script.write_text("#!/bin/sh\n#SBATCH --job-name=train\nsleep 600\n")

    def submit(self, *options: str) -> str:
        """A job that waits, as its partition is down."""
        done = self.program("submit", str(self.script), "--", "-p", "closed", *options)
        assert done.status == 0, done
        job_id = done.text.strip()
        wait_until("the job's submit line", lambda: self._is_recorded(job_id))
        return job_id

    def sbatch(self, *options: str) -> str:
        """A job that waits, which hpcdash did not submit."""
        argv = ("sbatch", "--parsable", "-o", "/dev/null", "-p", "closed", *options)
        return self.lab.admin(*argv, stdin=b"#!/bin/sh\nsleep 600\n").stdout.decode().strip()

    def _is_recorded(self, job_id: str) -> bool:
        sacct = self.lab.admin("sacct", "-n", "-X", "-j", job_id, "-o", "submitline%200")
        return "closed" in sacct.stdout.decode()

    def wrap(self, name: str, matches: str, *, before: str = ":", after: str = ":") -> None:
        real = subprocess.run(("which", name), capture_output=True, text=True, check=True)
        file = self.bin / name
        program = real.stdout.strip()
        text = WRAPPER.format(matches=matches, before=before, after=after, program=program)
        file.write_text(text)
        file.chmod(stat.S_IRWXU)

    def run_until_killed(self, *words: str) -> None:
        """Run until a wrapper kills it; the wrappers are gone then."""
        argv = self.program.argv(*words)
        library = str(Path(hpcdash.__file__).parents[1])
        environment = {**self.program.environment, "PYTHONPATH": library}
        done = subprocess.run(
            argv, env=environment, cwd=self.program.home, capture_output=True, timeout=100
        )
        for file in self.bin.iterdir():
            file.unlink()
        assert done.returncode == -signal.SIGKILL, done

    def state(self, job_id: str, *, there: bool = False) -> str:
        """State and reason of a job; '' where there is none."""
        where = ("-M", "lab2") if there else ()
        words = ("squeue", *where, "-h", "-t", "all", "-j", job_id, "-o", "%T %r")
        found = self.lab.admin(*words, check=False).stdout.decode().strip().splitlines()
        return found[-1] if found and not found[-1].startswith("CLUSTER") else ""

    def copies(self) -> dict[str, str]:
        """States of the jobs on the other cluster that are not over."""
        words = ("squeue", "-M", "lab2", "-h", "-o", "%i|%T|%r|%k")
        lines = self.lab.admin(*words).stdout.decode().splitlines()
        rows = [line.split("|") for line in lines if "|" in line]
        return {number: f"{state} {reason} {comment}" for number, state, reason, comment in rows}


@pytest.fixture
def mover(clean_slurm: SlurmLab, tmp_path: Path) -> Iterator[Mover]:
    clean_slurm.start_other_cluster()
    yield Mover(clean_slurm, tmp_path / "root")
    clean_slurm.admin("scontrol", "update", "partitionname=closed", "state=down")
    clean_slurm.end_other_cluster_jobs()


def test_between_two_partitions_a_job_keeps_its_id(mover: Mover) -> None:
    job_id = mover.submit()
    moved = mover.program("move", job_id, "--queue", "main", "--format", "json")
    assert moved.status == 0, moved
    row = find_row(mover.program.rows("jobs"), job_id)
    assert row["queue"] == "main"
    wait_until("the job to run", lambda: mover.state(job_id).startswith("RUNNING"))


def test_to_another_cluster_a_copy_runs_and_the_job_has_never_started(mover: Mover) -> None:
    job_id = mover.submit()
    refused = mover.program("move", job_id, "--to", "lab2", "--queue", "main")
    assert "move needs confirmation" in refused.refused(2)
    moved = mover.program("--yes", "move", job_id, "--to", "lab2", "--queue", "main")
    assert moved.status == 0, moved
    assert mover.state(job_id).startswith("CANCELLED")
    [(number, state)] = mover.copies().items()
    assert moved.text == f"{job_id}  moved: now job {number}@lab2\n"
    assert f"replaces={job_id}@lab" in state
    wait_until("the copy to run", lambda: "RUNNING" in mover.copies()[number])
    elapsed = mover.lab.admin("sacct", "-n", "-X", "-j", job_id, "-o", "elapsedraw")
    assert elapsed.stdout.split() == [b"0"]


def test_a_refusal_there_leaves_the_job_pending_here(mover: Mover) -> None:
    job_id = mover.submit()
    moved = mover.program("--yes", "move", job_id, "--to", "lab2", "--queue", "nosuch")
    assert moved.status == 1, moved
    assert "nothing was moved: lab2 refused the copy: invalid partition" in moved.text.lower()
    assert mover.state(job_id).startswith("PENDING")
    assert "JobHeldUser" not in mover.state(job_id)
    assert mover.copies() == {}


def test_a_job_that_starts_between_the_look_and_the_hold_runs_on_as_before(mover: Mover) -> None:
    job_id = mover.submit()
    starts = (
        "scontrol=$(PATH=${PATH#*:} command -v scontrol); "
        '"$scontrol" update partitionname=closed state=up; '
        f"until squeue -h -j {job_id} -t R -o %i | grep -q .; do sleep 0.1; done"
    )
    mover.wrap("scontrol", " hold ", before=starts)
    moved = mover.program("--yes", "move", job_id, "--to", "lab2", "--queue", "main")
    assert moved.status == 1, moved
    assert f"job {job_id} on lab is running, released" in moved.text
    shown = mover.lab.admin("scontrol", "show", "job", job_id).stdout.decode()
    assert "JobState=RUNNING" in shown
    assert "Priority=0 " not in shown
    assert mover.copies() == {}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("program", "matches"),
    [
        ("scontrol", " hold "),
        ("sbatch", " --hold "),
        ("scancel", " -v "),
        ("scontrol", " release "),
    ],
)
def test_after_a_kill_at_a_step_one_of_both_is_left_and_the_next_start_says_which(
    mover: Mover, program: str, matches: str, when: str
) -> None:
    job_id = mover.submit()
    kill = {when: KILL}
    mover.wrap(program, matches, **kill)
    mover.run_until_killed("--yes", "move", job_id, "--to", "lab2", "--queue", "main")
    entries = mover.program("journal", "--format", "json").json["actions"]
    assert [entry["state"] for entry in entries if entry["verb"] == "move"] == ["unknown"]
    told = mover.program("--cluster", "lab", "journal", "--settle")
    assert told.status == 0, told
    assert f"the move of job {job_id} to lab2 at " in told.stderr
    copies = mover.copies()
    if matches in (" hold ", " --hold "):
        assert "nothing was moved: it was interrupted" in told.stderr
        assert mover.state(job_id).startswith("PENDING")
        assert "JobHeldUser" not in mover.state(job_id)
        assert copies == {}
    else:
        assert "moved: now job" in told.stderr
        assert mover.state(job_id).startswith("CANCELLED")
        [state] = copies.values()
        assert "JobHeldUser" not in state


def test_a_heterogeneous_job_and_a_job_of_sbatch_are_refused(mover: Mover) -> None:
    number = mover.sbatch()
    moved = mover.program("--yes", "move", number, "--to", "lab2")
    assert "it was not submitted with hpcdash" in moved.refused(1)
    pair = mover.sbatch(":", "-p", "closed")
    moved = mover.program("--yes", "move", pair, "--to", "lab2")
    assert "heterogeneous" in moved.refused(1)
    assert mover.state(number).startswith("PENDING")
