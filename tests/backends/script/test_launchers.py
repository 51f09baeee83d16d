"""What starts the ranks: the generated bash run with a stand-in for each program."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.pbs.script import ENVIRONMENT as PBS
from hpcdash.backends.pbs.script import fanout as pbs_fanout
from hpcdash.backends.pbs.script import preamble as pbs_preamble
from hpcdash.backends.script.body import START, Place
from hpcdash.backends.script.launchers import start_commands
from hpcdash.backends.slurm.script import ENVIRONMENT as SLURM
from hpcdash.backends.slurm.script import SRUN_OPTIONS
from hpcdash.backends.slurm.script import fanout as slurm_fanout
from hpcdash.backends.slurm.script import preamble as slurm_preamble
from hpcdash.domain.request import Call, EarlySignal, Launcher, Request
from hpcdash.errors import UsageError
from tests.support.records import for_each
from tests.support.scripts import Scheduler, batch_script

pytestmark = pytest.mark.system
_ECHO = '#!/bin/bash\necho "$(basename "$0")" "$@"\n'
_SRUN = (
    '#!/bin/bash\necho "$@" > srun_words\nwhile [[ $1 == --* ]]; do shift; '
    'done\nSLURM_PROCID=1 exec "$@"\n'
)
_TMRSH = '#!/bin/bash\nshift\nexec env -i PATH="$PATH" HOME="$HOME" "$@"\n'
TORCHRUN = (
    "torchrun --nnodes=2 --nproc-per-node=4 --node-rank={} --master-addr=n1 "
    "--master-port=20012 train.py a b"
)
ACCELERATE = (
    "accelerate launch --num_machines=2 --num_processes=8 --machine_rank={}"
    " --main_process_ip=n1 --main_process_port=20012 train.py a b"
)
COMMAND = "train.py 'a b'"


def run(
    folder: Path, script: str, hosts: str = "n1\nn2\n", **variables: str
) -> subprocess.CompletedProcess[str]:
    programs = {
        "srun": _SRUN,
        "pbs_tmrsh": _TMRSH,
        "scontrol": "#!/bin/bash\nprintf 'n1\\nn2\\n'\n",
    }
    for name, text in (
        programs
        | dict.fromkeys(("torchrun", "accelerate", "python", "mpirun", "horovodrun"), _ECHO)
    ).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "nodes").write_text(hosts)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PBS_NODEFILE": str(folder / "nodes"),
        "PBS_JOBID": "12[3].server",
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
        **variables,
    }
    return subprocess.run(
        ["bash", "-c", script], env=environment, cwd=folder, capture_output=True, text=True
    )


def slurm(
    launcher: Launcher, command: str, nodes: int | None = 2, signal: EarlySignal | None = None
) -> str:
    start = start_commands(launcher, command, 4, signal=signal, environment=SLURM)
    fanout = slurm_fanout(
        ("bash", "-c", start.line),
        {},
        tasks_per_node=start.tasks_per_node,
        srun_options=() if launcher is Launcher.PLAIN else SRUN_OPTIONS,
    )
    return slurm_preamble(launcher, nodes) + fanout + START


def pbs(launcher: Launcher, command: str, slots_a_chunk: int = 4, lines_a_chunk: int = 1) -> str:
    words = ("bash", "-c", start_commands(launcher, command, slots_a_chunk, environment=PBS).line)
    fanout = pbs_fanout(words, {}, slots_a_chunk=slots_a_chunk, lines_a_chunk=lines_a_chunk)
    return fanout + pbs_preamble(launcher) + START


LAUNCHERS = pytest.mark.parametrize(
    ("launcher", "words"),
    [(Launcher.TORCHRUN, TORCHRUN), (Launcher.ACCELERATE, ACCELERATE)],
    ids=lambda v: str(v)[:10],
)


@LAUNCHERS
def test_slurm_expands_the_rank_on_the_node(launcher: Launcher, words: str, tmp_path: Path) -> None:
    ended = run(tmp_path, slurm(launcher, COMMAND))
    assert ended.stdout == words.format(1) + "\n", ended.stderr
    assert all(option in (tmp_path / "srun_words").read_text() for option in SRUN_OPTIONS)


@LAUNCHERS
def test_pbs_gives_each_host_its_rank_and_one_address(
    launcher: Launcher, words: str, tmp_path: Path
) -> None:
    ended = run(tmp_path, pbs(launcher, COMMAND))
    assert sorted(ended.stdout.splitlines()) == [words.format(0), words.format(1)], ended.stderr


def test_srun_starts_a_task_for_each_rank(tmp_path: Path) -> None:
    assert (
        run(tmp_path, slurm(Launcher.SRUN, 'echo "$SLURM_PROCID $MASTER_ADDR"')).stdout == "1 n1\n"
    )
    words = (tmp_path / "srun_words").read_text()
    assert "--ntasks=8 --ntasks-per-node=4 --wait=60 --kill-on-bad-exit=1" in words


def test_a_plain_command_that_ends_sooner_on_one_node_does_not_end_the_others(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, slurm(Launcher.PLAIN, "echo x")).stdout == "x\n"
    assert "--wait" not in (tmp_path / "srun_words").read_text()


@pytest.mark.parametrize(("asked", "status"), [(2, 0), (3, 1), (1, 1), (None, 0)])
def test_a_job_with_other_nodes_than_asked_for_is_not_started(
    asked: int | None, status: int, tmp_path: Path
) -> None:
    ended = run(tmp_path, slurm(Launcher.PLAIN, "echo started", asked))
    assert (ended.returncode, "started\n" in ended.stdout) == (status, status == 0)


def test_chunks_that_pbs_puts_on_one_host_are_ranks_of_that_host(tmp_path: Path) -> None:
    ended = run(tmp_path, pbs(Launcher.TORCHRUN, "train.py", 1), "n1\nn2\nn1\nn1\n")
    asked = sorted(ended.stdout.splitlines())
    assert [words.split()[1:4] for words in asked] == [
        ["--nnodes=2", "--nproc-per-node=1", "--node-rank=1"],
        ["--nnodes=2", "--nproc-per-node=3", "--node-rank=0"],
    ]


def test_a_chunk_of_several_mpi_processes_is_one_chunk(tmp_path: Path) -> None:
    ended = run(tmp_path, pbs(Launcher.ACCELERATE, "train.py", 4, 8), "n1\n" * 8 + "n2\n" * 8)
    assert ended.stdout.count("--num_processes=8 ") == 2, ended.stderr


def test_accelerate_is_not_started_on_hosts_of_different_numbers(tmp_path: Path) -> None:
    ended = run(tmp_path, pbs(Launcher.ACCELERATE, "train.py", 1), "n1\nn2\nn1\n")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "(2 1), which accelerate cannot use" in ended.stderr


def _deepspeed_words(said: str) -> list[tuple[dict[str, list[int]], list[str]]]:
    """What deepspeed's launcher was told on each node."""
    found = []
    for line in sorted(said.splitlines()):
        words = line.split()
        world = words[3].removeprefix("--world_info=")
        found.append((json.loads(base64.urlsafe_b64decode(world)), [*words[:3], *words[4:]]))
    return found


@pytest.mark.parametrize("scheduler", Scheduler)
def test_deepspeed_is_told_of_all_nodes_without_ssh(scheduler: Scheduler, tmp_path: Path) -> None:
    ended = run(tmp_path, _script(scheduler, Launcher.DEEPSPEED, "deepspeed train.py --stage 3"))
    world = {"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3]}
    module = ["python", "-m", "deepspeed.launcher.launch"]
    ranks = [1] if scheduler is Scheduler.SLURM else [0, 1]
    assert _deepspeed_words(ended.stdout) == [
        (
            world,
            [
                *module,
                f"--node_rank={rank}",
                "--master_addr=n1",
                "--master_port=20012",
                "train.py",
                "--stage",
                "3",
            ],
        )
        for rank in ranks
    ], ended.stderr


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (Launcher.MPIRUN, "mpirun -n 8 ./a.out -x"),
        (Launcher.HOROVODRUN, "horovodrun -np 8 -H n1:4,n2:4 ./a.out -x"),
    ],
)
def test_what_starts_ranks_on_all_nodes_is_started_once(
    scheduler: Scheduler, launcher: Launcher, words: str, tmp_path: Path
) -> None:
    for signal in (None, EarlySignal("USR1", 60, batch_only=True)):
        text = _script(scheduler, launcher, "./a.out -x", signal)
        ended = run(tmp_path, text, "n1\n" * 4 + "n2\n" * 4)
        assert ended.stdout.splitlines() == [words], ended.stderr
        assert not (tmp_path / "srun_words").exists()
    if launcher is Launcher.HOROVODRUN and scheduler is Scheduler.SLURM:
        with pytest.raises(UsageError, match="slots_per_node"):
            batch_script(scheduler, Request(command="a", slots=8, launcher=launcher), Place("u"))


@pytest.mark.parametrize(
    ("line", "slow"),
    [
        ("", ""),
        ('bash -c "$command" &\n', 'bash -c "$command" &\nsleep 1\n'),
        (
            "mpirun -n 8",
            'kill -s USR1 "$HPCDASH_SHELL"; read -t 0.5 <> "$WAITS"; TOLD=1 mpirun -n 8',
        ),
    ],
    ids=["running", "just forked", "before its first process"],
)
def test_an_early_signal_reaches_what_started_the_ranks(
    line: str, slow: str, tmp_path: Path
) -> None:
    text = _script(
        Scheduler.SLURM, Launcher.MPIRUN, "./a.out", EarlySignal("USR1", 60, batch_only=True)
    )
    assert line in text
    text = text.replace(line, slow) if line else text
    os.mkfifo(tmp_path / "waits")
    (tmp_path / "mpirun-real").write_text(
        "#!/bin/bash\ntrap 'echo told; exit 0' USR1\n"
        '[ -n "$TOLD" ] || kill -s USR1 "$HPCDASH_SHELL"\nwhile :; do sleep 0.1; done\n'
    )
    (tmp_path / "mpirun-real").chmod(0o755)
    shell = f"export HPCDASH_SHELL=$$ WAITS={tmp_path}/waits\n"
    ended = run(tmp_path, shell + text.replace("mpirun -n 8", "./mpirun-real"))
    assert (ended.returncode, ended.stdout) == (0, "told\n"), ended.stderr


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize(
    ("launcher", "started"),
    [
        (Launcher.TORCHRUN, "-m torch.distributed.run"),
        (Launcher.ACCELERATE, "-m accelerate.commands.launch"),
        (Launcher.DEEPSPEED, "-m deepspeed.launcher.launch"),
    ],
)
def test_a_call_is_started_by_a_launcher_as_a_module(
    scheduler: Scheduler, launcher: Launcher, started: str, tmp_path: Path
) -> None:
    call = Call("lab.train", "main", python=str(tmp_path / "python"))
    request = Request(call=call, slots=8, slots_per_node=4, launcher=launcher, limit_seconds=600)
    ended = run(tmp_path, batch_script(scheduler, request, Place("1a2b", str(tmp_path))).text)
    module = "--module" if launcher is Launcher.DEEPSPEED else "-m"
    lines = ended.stdout.splitlines()
    assert lines, ended.stderr
    for line in lines:
        assert line.startswith(f"python {started} "), line
        assert (
            f" {module} hpcdash.job.runner --module=lab.train --function=main --job-dir={tmp_path} "
            in line
        )


def _script(
    scheduler: Scheduler, launcher: Launcher, command: str, signal: EarlySignal | None = None
) -> str:
    request = Request(
        command=command,
        slots=8,
        slots_per_node=4,
        launcher=launcher,
        signal=signal,
        limit_seconds=600,
    )
    return batch_script(scheduler, request, Place("u")).text


def test_each_task_of_a_pbs_array_meets_on_a_port_of_its_own(tmp_path: Path) -> None:
    said = pbs(Launcher.PLAIN, 'echo "$MASTER_PORT"')
    ports = {
        run(tmp_path, said, "n1\n", PBS_ARRAY_INDEX=task).stdout.strip() for task in ("1", "2")
    }
    assert ports == {"20013", "20014"}


@pytest.mark.parametrize("launcher", [Launcher.TORCHRUN, Launcher.ACCELERATE])
def test_python_before_the_script_is_left_out_and_told(launcher: Launcher) -> None:
    start = start_commands(launcher, "python3 -u train.py --lr 1", 4, environment=SLURM)
    assert start.line.endswith("\n  train.py --lr 1")
    assert "python3 -u is removed" in " ".join(start.notes)
    assert start_commands(launcher, "train.py", 4, environment=SLURM).notes == ()


@for_each(
    ("command", "line"),
    [
        ("torchrun train.py --lr 1", "  train.py --lr 1"),
        ("python3.11 -u -m pkg.train", "  -m pkg.train"),
        ("FOO=1 python train.py", "  train.py"),
        ("source venv/bin/activate && python train.py", "  train.py"),
        ("module load cuda\nsource venv/bin/activate\npython train.py --lr 1", "  train.py --lr 1"),
        ("python train.py && python eval.py", "  train.py && python eval.py"),
    ],
)
def test_a_launcher_stands_where_the_command_starts_python(command: str, line: str) -> None:
    start = start_commands(Launcher.TORCHRUN, command, 4, environment=SLURM)
    before = command[: command.find("python" if "python" in command else "torchrun")]
    assert start.line.startswith(f"{before}torchrun \\\n")
    assert start.line.endswith(f"\n{line}")
    assert len(start.notes) == 1


def test_what_is_no_program_of_python_is_told_of_and_several_are_refused() -> None:
    (no_python,) = start_commands(Launcher.TORCHRUN, "bash run.sh", 4, environment=SLURM).notes
    assert "torchrun starts only Python programs: it treats bash" in no_python
    with pytest.raises(UsageError, match="starts one Python program"):
        start_commands(
            Launcher.ACCELERATE, "cd there; python a.py; python b.py", 4, environment=SLURM
        )


@for_each(
    ("command", "told"),
    [
        ("torchrun train.py", True),
        ("cd x && accelerate launch train.py", True),
        ("torchrun --nnodes=2 --node-rank=$SLURM_PROCID train.py", False),
        ("python train.py", False),
    ],
)
def test_a_launcher_alone_on_each_node_is_told_of(command: str, told: bool) -> None:
    request = Request(command=command, slots=4, slots_per_node=2)
    words = "and trains separately"
    place = Place("1a2b3c4d")
    assert (words in " ".join(batch_script(Scheduler.SLURM, request, place).warnings)) == told
    assert words not in " ".join(
        batch_script(Scheduler.SLURM, replace(request, slots=2), place).warnings
    )


def test_what_cannot_work_with_a_launcher_is_told() -> None:
    (ends,) = start_commands(
        Launcher.TORCHRUN, "train.py", 4, signal=EarlySignal("TERM", 60), environment=SLURM
    ).notes
    assert "TERM ends torchrun" in ends
    (uneven,) = start_commands(
        Launcher.ACCELERATE, "train.py", None, ranks=8, environment=SLURM
    ).notes
    assert "slots_per_node" in uneven


@pytest.mark.parametrize(
    "command", ["sleep 0.5; echo went on", 'sh -c "sleep 0.5; echo went on"; true']
)
def test_a_signal_for_the_programs_does_not_end_the_shell_that_runs_them(
    command: str, tmp_path: Path
) -> None:
    line = start_commands(
        Launcher.PLAIN, command, 1, signal=EarlySignal("USR1", 60), environment=SLURM
    ).line
    kill = (
        "sleep 0.1; kill -s USR1 $pid; wait $pid; status=$?; while kill -0 $pid; do wait $pid; "
        "done; exit 0"
    )
    ended = run(tmp_path, f"bash -c {shlex.quote(line)} & pid=$!; {kill}")
    assert "went on" in ended.stdout


def test_torchrun_outlives_a_signal_that_is_for_its_ranks(tmp_path: Path) -> None:
    script = slurm(Launcher.TORCHRUN, "train.py", signal=EarlySignal("USR1", 600))
    assert "trap '\"'\"''\"'\"' USR1\ntorchrun" in script
    assert run(tmp_path, script).stdout.startswith("torchrun")


def test_srun_is_no_launcher_of_pbs() -> None:
    with pytest.raises(UsageError, match="srun"):
        pbs_preamble(Launcher.SRUN)


def test_an_empty_command_is_refused() -> None:
    with pytest.raises(UsageError, match="command"):
        start_commands(Launcher.PLAIN, "  ", 1, environment=SLURM)
