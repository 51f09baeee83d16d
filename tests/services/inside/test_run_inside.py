"""Commands in running jobs: whose they may be, how equal answers are folded, and where ranks stand
together.
"""

from __future__ import annotations

from typing import Any

import pytest

from hpcdash.backends.inside import InsideCommand, NodeOutput
from hpcdash.errors import HpcdashError, SchedulerRefused, UsageError
from hpcdash.services.inside.ready import read_command
from hpcdash.services.inside.run import (
    InsideAnswer,
    fetch_inside_row,
    for_json,
    format_answer,
    run_inside,
)
from hpcdash.services.inside.stacks import format_stack_places, read_stack_places
from tests.support.job_rows import job_row
from tests.support.scripted_cluster import Cluster

ROW: dict[str, Any] = {"id": "12", "nodes": 3, "node_list": "n[1-3]", "work_dir": "/", "gpus": None}
COMMAND = InsideCommand(("uptime",), 60)


def of(*outputs: NodeOutput) -> InsideAnswer:
    return InsideAnswer(COMMAND, outputs)


def test_equal_answers_stand_together_under_their_nodes() -> None:
    answer = of(
        *(NodeOutput(f"n{number}", "", b"up\n", 0) for number in range(1, 5)),
        NodeOutput("n5", "", b"up\n", 3),
        NodeOutput("n6", "", b"a\x1b[2J\x07b\n", 124),
        NodeOutput("n7", problem="no answer (n7: \x1b[31mgone)"),
    )
    shown = list(format_answer(answer))
    assert [title for title, _ in shown[:3]] == [
        "n[1-4] (4)",
        "n5 · exit 3",
        "n6 · ended at the time limit of 60 s",
    ]
    assert shown[0][1] == ("up",)
    assert "\x1b" not in str(shown)
    assert answer.has_failed
    assert not of(NodeOutput("n1", "", b"", 0)).has_failed
    assert [one["exit"] for one in for_json(answer)] == [0, 0, 0, 0, 3, 124, None]


def test_gpus_are_told_with_their_nodes() -> None:
    answer = of(*(NodeOutput(node, gpu, b"", 0) for node in ("n1", "n2") for gpu in ("0", "1")))
    assert [title for title, _ in format_answer(answer)] == ["n[1-2]: GPU 0,1 (4)"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (job_row("12", state="running", user="bob", node_list="n1"), "job 12 belongs to bob"),
        (
            job_row("12", state="running", user="alice", node_list="n1") | {"_tasks": 3},
            "12 is an array",
        ),
    ],
)
async def test_a_job_that_is_no_one_s_own_or_is_many_is_refused(
    cluster: Cluster, row: dict[str, Any], words: str
) -> None:
    await cluster.store.open()
    with pytest.raises(HpcdashError, match=words):
        await fetch_inside_row(cluster.store, "12", row)
    with pytest.raises(UsageError, match="matches several jobs"):
        await fetch_inside_row(cluster.store, "12_[1-3]")


async def test_a_node_that_does_not_answer_is_told_beside_those_that_do(cluster: Cluster) -> None:
    await cluster.store.open()

    def answered(command: Any) -> tuple[int, bytes, bytes]:
        token = next(word for word in command.words if word.startswith("hpcdash-"))
        frames = f"{token} n1 - .b2sK\n{token} n1 - =0\n{token} n3 - .cGFydAo=\n"
        return 1, frames.encode(), b"srun: error: n2: task 1: launch failed\n"

    cluster.transport.answers["sh*"] = answered
    answer = await run_inside(cluster.store, ROW, COMMAND)
    assert [(one.node, one.output, one.status) for one in answer.outputs] == [
        ("n1", b"ok\n", 0),
        ("n2", b"", None),
        ("n3", b"part\n", None),
    ]
    assert "launch failed" in answer.outputs[1].problem
    assert "cut off at the time limit" in answer.outputs[2].problem


async def test_what_the_scheduler_refuses_is_raised_in_its_words(cluster: Cluster) -> None:
    await cluster.store.open()
    cluster.transport.answers["sh*"] = (
        1,
        b"\n",
        b"srun: error: Unable to create step: Access/permission denied",
    )
    with pytest.raises(SchedulerRefused, match="cannot start a step in this job") as refused:
        await run_inside(cluster.store, ROW, COMMAND)
    assert "Access/permission denied" in refused.value.output
    aborted = b"srun: Job step aborted: Waiting up to 7 seconds for job step to finish.\n"
    cluster.transport.answers["sh*"] = (0, b"\n", aborted)
    with pytest.raises(SchedulerRefused, match="The job ended while the command ran"):
        await run_inside(cluster.store, ROW, COMMAND)


def dumped(rank: int, *frames: str) -> str:
    """As py-spy 0.3.14 prints a process with a thread beside its main one."""
    shown = "".join(f"    {frame}\n" for frame in frames)
    head = (
        f"process 9{rank}, rank {rank}: python train.py\nProcess 9{rank}: python "
        "train.py\nPython v3.11.7\n\n"
    )
    return (
        f'{head}Thread 7 (idle): "pin_memory"\n    wait (threading.py:320)\nThread 8 (active): '
        f'"MainThread"\n{shown}'
    )


def test_ranks_that_stand_in_one_place_are_told_together_and_the_odd_ones_first_to_look_at() -> (
    None
):
    reduce = "all_reduce (torch/distributed/distributed_c10d.py:2050)"
    outputs = [
        NodeOutput(
            "n1",
            "",
            "".join(dumped(rank, reduce, "main (train.py:9)") for rank in range(4)).encode(),
            0,
        ),
        NodeOutput(
            "n2", "", (dumped(4, reduce) + dumped(5, "read (\x1b[2Jdata.py:3)")).encode(), 0
        ),
    ]
    lines = format_stack_places(read_stack_places(outputs))
    assert lines[0] == f"5 of 6 in {reduce}: ranks 0-4"
    assert lines[1].startswith("1 of 6 in read (")
    assert lines[1].endswith(": rank 5")
    assert lines[2] == "stacks differ: check rank 5 first"
    assert "\x1b" not in "".join(lines)
    assert format_stack_places(read_stack_places(outputs[:0])) == []


def test_a_typed_command_is_split_into_words_and_its_options_taken() -> None:
    assert read_command("--each-gpu --timeout 5m sh -c 'a; b'") == InsideCommand(
        ("sh", "-c", "a; b"), 300, True
    )
    assert read_command("-- --each-gpu") == InsideCommand(("--each-gpu",))
    for line in ("", "  ", "--timeout 2h x", "--timeout", "echo 'a"):
        with pytest.raises(UsageError):
            read_command(line)
