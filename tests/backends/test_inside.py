"""A command on each node of a running job: the scripts for a node and the way there, run here, and
their frames.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.inside import (
    Frames,
    InsideCommand,
    InsideStep,
    NodeOutput,
    exactly,
    held,
)
from hpcdash.backends.pbs import inside as pbs
from hpcdash.backends.slurm import inside as slurm
from hpcdash.errors import UsageError
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

ROW: dict[str, Any] = {"id": "12", "nodes": 2, "gpus": 0, "node_list": "n[1-2]", "work_dir": "/"}


def run_on_node(command: InsideCommand, folder: Path, **variables: str) -> list[NodeOutput]:
    """The frames of a command on this machine, as a step has it run there."""
    words = command.arguments("hpcdash-t", str(folder), as_job=False)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HPCDASH_NODE": "n1",
        **variables,
    }
    ended = subprocess.run(
        held(120, "sh", "-c", *words),
        capture_output=True,
        check=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    frames = Frames("hpcdash-t")
    frames.feed(ended.stdout)
    return list(frames.outputs.values())


def test_a_command_s_bytes_and_exit_status_come_back_as_they_were(tmp_path: Path) -> None:
    script = r"printf 'a\000b\033[1m\nno end'; printf '\nhpcdash-t n2 - =0\n' >&2; pwd; exit 7"
    [output] = run_on_node(InsideCommand(("sh", "-c", script)), tmp_path)
    assert (output.node, output.status) == ("n1", 7)
    assert output.output == f"a\0b\x1b[1m\nno end\nhpcdash-t n2 - =0\n{tmp_path}\n".encode()


def test_no_word_of_a_command_is_read_by_a_shell(tmp_path: Path) -> None:
    words = ("$(touch hit)", "a'b\"c", "; touch hit", "-n", "*", "new\nline")
    [output] = run_on_node(InsideCommand(("printf", "%s|", *words)), tmp_path)
    assert output.output.decode() == "".join(f"{word}|" for word in words)
    assert list(tmp_path.iterdir()) == []


def test_each_gpu_is_the_only_one_its_command_sees_and_odd_names_are_left_out(
    tmp_path: Path,
) -> None:
    command = InsideCommand(
        ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; [ "$CUDA_VISIBLE_DEVICES" != 1 ]'),
        each_gpu=True,
    )
    outputs = run_on_node(
        command, tmp_path, CUDA_VISIBLE_DEVICES="0,1,$(touch hit),GPU-ab:c,`touch hit`"
    )
    assert sorted((one.gpu, one.output, one.status) for one in outputs) == [
        ("0", b"0\n", 0),
        ("1", b"1\n", 1),
        ("GPU-ab:c", b"GPU-ab:c\n", 0),
    ]
    assert list(tmp_path.iterdir()) == []
    [none] = run_on_node(command, tmp_path, PATH="/usr/bin:/bin", CUDA_VISIBLE_DEVICES="")
    assert "no GPU" in none.problem


def test_a_command_is_ended_at_its_time_limit_and_its_output_kept(tmp_path: Path) -> None:
    [output] = run_on_node(InsideCommand(("sh", "-c", "echo up; sleep 1000"), seconds=1), tmp_path)
    assert (output.output, output.status) == (b"up\n", 124)


def test_a_command_ends_by_itself_though_what_it_leaves_behind_holds_its_output(
    tmp_path: Path,
) -> None:
    [output] = run_on_node(
        InsideCommand(("sh", "-c", "sleep 1000 & echo $!; exit 3"), seconds=600), tmp_path
    )
    assert output.status == 3
    assert "background process" in output.problem
    os.kill(int(output.output), signal.SIGTERM)


def test_a_command_ends_when_nobody_reads_it(tmp_path: Path) -> None:
    """As where hpcdash was killed: its side of the pipe is closed, and nothing signals what
    runs.
    """
    words = InsideCommand(("sh", "-c", "echo $$; exec sleep 1000"), seconds=600).arguments(
        "hpcdash-t", "/", as_job=False
    )
    process = subprocess.Popen(
        held(600, "sh", "-c", *words),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    process.stdout.close()
    assert process.wait() is not None
    group = ["pgrep", "-g", str(process.pid)]
    wait_until(
        "all of it to end",
        lambda: not subprocess.run(group, capture_output=True, check=False).stdout,
    )


def test_frames_are_read_however_they_come_and_nothing_else_is_taken_for_one() -> None:
    text = (
        b"welcome\nhpcdash-t n1 - .YQ==\nhpcdash-u n1 - =3\nhpcdash-t n2 0 .Yg==\nhpcdash-t n1 - "
        b".!!!\nhpcdash-t n1\n"
        b"hpcdash-t n1 - =0\nhpcdash-t n2 0 =x\nhpcdash-t n3 - !ssh: no route\nhpcdash-t n1 - "
        b"?\xff\n"
    )
    for size in (1, 7, len(text)):
        frames = Frames("hpcdash-t")
        ended = [
            one for at in range(0, len(text), size) for one in frames.feed(text[at : at + size])
        ]
        assert ended == [
            NodeOutput("n1", "", b"a", 0),
            NodeOutput("n2", "0", b"b", None),
            NodeOutput("n3", "", b"", None, "ssh: no route"),
        ]


def test_slurm_is_given_the_command_as_words_of_their_own() -> None:
    words = ("printf", "'; touch /tmp/hit; '", "$HOME")
    step = slurm.inside_step(ROW, InsideCommand(words))
    assert step.nodes == ("n1", "n2")
    assert step.argv[-3:] == words


def over_ssh(
    row: dict[str, Any], command: InsideCommand, folder: Path, ssh: str
) -> tuple[InsideStep, list[NodeOutput]]:
    """What the nodes answer where `ssh` is the program that leads to them."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{ssh}")
    program.chmod(0o755)
    step = pbs.inside_step(row, command)
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(folder)}
    ended = subprocess.run(
        step.argv, capture_output=True, check=True, env=environment, stdin=subprocess.DEVNULL
    )
    frames = Frames(step.token)
    frames.feed(ended.stdout)
    return step, sorted(frames.outputs.values(), key=lambda one: one.node)


def test_pbs_goes_to_each_node_by_ssh_and_says_which_it_did_not_reach(tmp_path: Path) -> None:
    # Words after `--`: the host, then what is run there.
    ssh = (
        'while [ "$1" != -- ]; do shift; done\nhost=$2\nshift 2\n'
        '[ "$host" != n2 ] || { echo "ssh: connect to host n2: No route to host" >&2; exit 255; '
        '}\nexec "$@"\n'
    )
    command = InsideCommand(("printf", "%s|", "it's", "$(touch hit)"))
    row = ROW | {"id": "12[3].s", "node_list": "n[1-3]", "work_dir": f"{tmp_path}/a b'c"}
    step, outputs = over_ssh(row, command, tmp_path, ssh)
    assert [(one.node, one.output, one.status) for one in outputs] == [
        ("n1", b"it's|$(touch hit)|", 0),
        ("n2", b"", None),
        ("n3", b"it's|$(touch hit)|", 0),
    ]
    assert "No route to host" in outputs[1].problem
    assert step.skipped == ()


def test_pbs_goes_to_32_nodes_and_to_none_with_an_odd_name() -> None:
    step = pbs.inside_step(ROW | {"node_list": "n[1-40]"}, InsideCommand(("true",)))
    assert (len(step.nodes), step.skipped) == (32, tuple(f"n{number}" for number in range(33, 41)))
    for node_list in ("-oProxyCommand=x", "n1;id", "root@n1", "", None):
        with pytest.raises(UsageError):
            pbs.inside_step(ROW | {"node_list": node_list}, InsideCommand(("true",)))


def test_a_text_is_found_as_it_is_written() -> None:
    assert exactly("/a+b (c)/[d].e") == r"/a\+b \(c\)/\[d\]\.e"
