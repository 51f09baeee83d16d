"""What starts the ranks: the generated bash run with a stand-in for each program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcdash.errors import UsageError
from hpcdash.launch.fanout import START, pbs_fanout, slurm_fanout
from hpcdash.launch.launchers import SRUN_OPTIONS, pbs_preamble, slurm_preamble, start_of
from hpcdash.launch.request import EarlySignal, Launcher

_ECHO = '#!/bin/bash\necho "$(basename "$0")" "$@"\n'
_SRUN = '#!/bin/bash\necho "$@" > srun_words\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_PROCID=1 exec "$@"\n'
_TMRSH = '#!/bin/bash\nshift\nexec env -i PATH="$PATH" "$@"\n'
TORCHRUN = "torchrun --nnodes=2 --nproc-per-node=4 --node-rank={} --master-addr=n1 --master-port=20012 train.py a b"
ACCELERATE = (
    "accelerate launch --num_machines=2 --num_processes=8 --machine_rank={}"
    " --main_process_ip=n1 --main_process_port=20012 train.py a b"
)
COMMAND = "train.py 'a b'"


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    programs = {"srun": _SRUN, "pbs_tmrsh": _TMRSH, "scontrol": "#!/bin/bash\nprintf 'n1\\nn2\\n'\n"}
    for name, text in (programs | {"torchrun": _ECHO, "accelerate": _ECHO}).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "nodes").write_text("n2\nn1\nn1\n")
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PBS_NODEFILE": str(folder / "nodes"),
        "PBS_JOBID": "12[3].server",
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    return subprocess.run(
        ["bash", "-c", script], env=environment, cwd=folder, capture_output=True, text=True, timeout=20
    )


def slurm(launcher: Launcher, command: str, nodes: int | None = 2, signal: EarlySignal | None = None) -> str:
    start = start_of(launcher, command, 4, signal=signal)
    fanout = slurm_fanout(
        ("bash", "-c", start.line), {}, tasks_per_node=start.tasks_per_node, srun_options=start.srun_options
    )
    return slurm_preamble(launcher, nodes) + fanout + START


def pbs(launcher: Launcher, command: str, nodes: int | None = 2) -> str:
    return pbs_fanout(("bash", "-c", start_of(launcher, command, 4).line), {}) + pbs_preamble(launcher, nodes) + START


LAUNCHERS = pytest.mark.parametrize(
    ("launcher", "words"), [(Launcher.TORCHRUN, TORCHRUN), (Launcher.ACCELERATE, ACCELERATE)], ids=lambda v: str(v)[:10]
)


@LAUNCHERS
def test_slurm_expands_the_rank_on_the_node(launcher: Launcher, words: str, tmp_path: Path) -> None:
    ended = run(tmp_path, slurm(launcher, COMMAND))
    assert ended.stdout == words.format(1) + "\n", ended.stderr
    assert all(option in (tmp_path / "srun_words").read_text() for option in SRUN_OPTIONS)


@LAUNCHERS
def test_pbs_gives_each_host_its_rank_and_one_address(launcher: Launcher, words: str, tmp_path: Path) -> None:
    ended = run(tmp_path, pbs(launcher, COMMAND))
    assert sorted(ended.stdout.splitlines()) == [words.format(0), words.format(1)], ended.stderr


def test_srun_starts_a_task_for_each_rank(tmp_path: Path) -> None:
    assert run(tmp_path, slurm(Launcher.SRUN, 'echo "$SLURM_PROCID $MASTER_ADDR"')).stdout == "1 n1\n"
    words = (tmp_path / "srun_words").read_text()
    assert "--ntasks=8 --ntasks-per-node=4 --wait=60 --kill-on-bad-exit=1" in words


def test_a_plain_command_that_ends_sooner_on_one_node_does_not_end_the_others(tmp_path: Path) -> None:
    assert run(tmp_path, slurm(Launcher.PLAIN, "echo x")).stdout == "x\n"
    assert "--wait" not in (tmp_path / "srun_words").read_text()


@pytest.mark.parametrize("script", [slurm, pbs], ids=["slurm", "pbs"])
@pytest.mark.parametrize(("asked", "status"), [(2, 0), (3, 1), (1, 1), (None, 0)])
def test_a_job_with_other_nodes_than_asked_for_is_not_started(
    script: object, asked: int | None, status: int, tmp_path: Path
) -> None:
    assert callable(script)
    ended = run(tmp_path, script(Launcher.PLAIN, "echo started", asked))
    assert (ended.returncode, "started\n" in ended.stdout) == (status, status == 0)


def test_torchrun_outlives_a_signal_that_is_for_its_ranks(tmp_path: Path) -> None:
    script = slurm(Launcher.TORCHRUN, "train.py", signal=EarlySignal("USR1", 600))
    assert "trap '\"'\"''\"'\"' USR1\nexec torchrun" in script
    assert run(tmp_path, script).stdout.startswith("torchrun")


def test_srun_is_no_launcher_of_pbs() -> None:
    with pytest.raises(UsageError, match="srun"):
        pbs_preamble(Launcher.SRUN, 1)


def test_an_empty_command_is_refused() -> None:
    with pytest.raises(UsageError, match="command"):
        start_of(Launcher.PLAIN, "  ", 1)
