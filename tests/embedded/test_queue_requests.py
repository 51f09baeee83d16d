"""What the embedded queue reads out of #SBATCH and #PBS lines and of a command line."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from hpcdash.backends.slurm import options as sbatch
from hpcdash.embedded.job import JobDependency, JobSignal, QueueRequest
from hpcdash.embedded.script import ParsedScript, read_dependencies, read_submission
from hpcdash.errors import UsageError
from tests.support.records import for_each

_NOW = 1_790_000_000.0


def read(*lines: str, options: str = "") -> ParsedScript:
    given = sbatch.read_command_line(options.split()).options
    return read_submission("\n".join(["#!/bin/bash", *lines, "true", ""]), given, _NOW)


def request(*lines: str, options: str = "") -> QueueRequest:
    return read(*lines, options=options).request


def test_resources_of_sbatch_are_added_up() -> None:
    asked = request("#SBATCH -n 4 -c 2 --gpus-per-task=1 --mem-per-cpu=2G")
    assert (asked.processes, asked.cpus, asked.gpus, asked.memory_bytes) == (4, 8, 4, 16 << 30)
    assert request("#SBATCH --gres=gpu:a100:2,nvme").gpus == 2
    assert request("#SBATCH --gpus=a100:1,v100:2").gpus == 3
    assert request("#SBATCH --mem=500").memory_bytes == 500 << 20
    assert request("#SBATCH --ntasks=2 --ntasks-per-node=8").cpus == 2
    assert request("#SBATCH --tasks-per-node=8").cpus == 8


def test_the_command_line_goes_before_the_script() -> None:
    asked = request("#SBATCH --time=10 --job-name=a --no-requeue", options="-t 1-0 --requeue")
    assert (asked.limit_seconds, asked.name, asked.requeue) == (86400, "a", True)
    assert request("#SBATCH --time=0").limit_seconds is None


def test_signals_and_dependencies_are_read_as_sbatch_reads_them() -> None:
    assert request("#SBATCH --signal=B:USR1@600").early_signal == JobSignal(10, 600, True)
    assert request("#SBATCH --signal=SIGUSR2").early_signal == JobSignal(12, 60, False)
    assert read_dependencies("afterok:1:2_3,after:4+5") == (
        (
            JobDependency("afterok", 1),
            JobDependency("afterok", 2, 3),
            JobDependency("after", 4, None, 5),
        ),
        False,
    )
    assert read_dependencies("afterany:1?singleton") == (
        (JobDependency("afterany", 1), JobDependency("singleton")),
        True,
    )
    for text in ("afterok", "afterok:x", "sometime:1", "afterok:1,afterok:2?afterok:3", ""):
        with pytest.raises(ValueError, match=r"."):
            read_dependencies(text)


def test_begin_times_are_in_the_future() -> None:
    assert request("#SBATCH --begin=now+90").begin_at == _NOW + 90
    assert request("#SBATCH --begin=now+2hours").begin_at == _NOW + 7200
    assert request("#SBATCH --begin=now").begin_at is None
    over = datetime.fromtimestamp(_NOW - 3600)
    begins = request(f"#SBATCH --begin={over:%H:%M:%S}").begin_at
    assert begins is not None
    assert time.localtime(begins)[3:6] == (over.hour, over.minute, over.second)
    assert _NOW < begins <= _NOW + 86400


def test_a_request_is_the_same_after_it_was_kept() -> None:
    asked = request(
        "#SBATCH -J x --array=1-3%2 --signal=USR1 -d afterok:1?singleton --export=A,B=1 --mem=1G "
        "--comment=\xe9\udcff"
    )
    assert QueueRequest.from_json(asked.to_json()) == asked


def test_pbs_lines_are_read_where_no_sbatch_line_is() -> None:
    reading = read(
        "#PBS -N train -l walltime=01:30:00 -l select=1:ncpus=4:ngpus=1:mem=8gb",
        "#PBS -o node1:/tmp/out.log -j oe -q batch",
        "#PBS -J 1-5%2 -h -r n -A proj",
        "#PBS -W depend=afterok:12.pbs01:13[4].pbs01",
        "#PBS -v A=1,B -V",
    )
    asked = reading.request
    assert asked.is_pbs
    assert (asked.name, asked.limit_seconds, asked.cpus, asked.gpus) == ("train", 5400, 4, 1)
    assert (asked.memory_bytes, asked.stdout, asked.tasks, asked.held) == (
        8 << 30,
        "/tmp/out.log",
        "1-5%2",
        True,
    )
    assert (asked.requeue, asked.account) == (False, "proj")
    assert asked.dependencies == (JobDependency("afterok", 12), JobDependency("afterok", 13, 4))
    assert (asked.exported, asked.variables) == (None, {"A": "1"})
    assert reading.ignored == ("line 3 of the script: -q batch",)


def test_pbs_chunks_are_added_up_and_nodes_are_not() -> None:
    asked = request("#PBS -l select=2:ncpus=3:mem=1gb+1:ncpus=1:ngpus=2")
    assert (asked.cpus, asked.gpus, asked.memory_bytes) == (7, 2, 2 << 30)
    asked = request("#PBS -l nodes=1:ppn=4,walltime=100,mem=2gb")
    assert (asked.cpus, asked.limit_seconds, asked.memory_bytes) == (4, 100, 2 << 30)
    assert request("#PBS -l ncpus=2 -l ngpus=1").gpus == 1
    assert read("#PBS -l select=1:ncpus=2:host=n1,place=free").ignored == (
        "line 2 of the script: -l select=1:ncpus=2:host=n1,place=free",
    )
    with pytest.raises(UsageError, match="2 nodes requested"):
        request("#PBS -l nodes=2:ppn=4")


@for_each(
    ("line", "words"),
    [
        (
            "#PBS -l select=x:ncpus=1",
            "line 2 of the script: -l select=x:ncpus=1: 'x' is not a number of chunks",
        ),
        ("#PBS -l walltime=soon", "line 2 of the script: --time"),
        ("#PBS -N", "line 2 of the script: -N: missing its value"),
        ("#PBS walltime", "line 2 of the script: walltime: not a qsub option"),
        ("#PBS -J 5-1", "empty range"),
        ("#PBS -W depend=beforeok:3", "'beforeok' is not one of"),
    ],
)
def test_pbs_lines_that_cannot_be_read_are_told_with_their_place(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(line)
    assert words in str(caught.value)


def test_pbs_lines_are_comments_beside_sbatch_lines() -> None:
    asked = request("#SBATCH -J slurm", "#PBS -N pbs -l walltime=nonsense")
    assert (asked.name, asked.is_pbs) == ("slurm", False)
