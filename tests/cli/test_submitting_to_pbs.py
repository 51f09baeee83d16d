"""`hpcdash submit` and `script` on a login node of a PBS: what is said, what qsub is called with, what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.program import Program, home_with
from tests.support.pbs import StandIns

SCRIPT = b"#!/bin/bash\n#PBS -l walltime=60 -v A=1\nsleep 1 # \xff\n"
LIVE_LOG = "its output stays on the execution host until it ends; with -k oed it is read while the job runs"


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns.install(tmp_path / "pbs", "everyday")


@pytest.fixture
def program(tmp_path: Path, stand_ins: StandIns) -> Program:
    variables = {"PATH": f"{stand_ins.path}:/usr/bin:/bin", "PBS_CONF_FILE": "/dev/null"}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "pbs"), variables)


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "run a.sh"
    file.write_bytes(SCRIPT)
    return str(file)


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    file = tmp_path / "train.toml"
    file.write_text(f'command = "train"\nslots = 4\nqueue = "gpu"\nsite.storage_root = "{tmp_path}/launches"\n')
    return str(file)


def marked(words: list[str]) -> list[str]:
    """qsub's words with our mark as the tests know it."""
    return [f"HPCDASH_MARK=…{word[31:]}" if word.startswith("HPCDASH_MARK=hpcdash:") else word for word in words]


def test_the_id_is_printed_and_the_command_and_advice_are_said_beside_it(
    program: Program, stand_ins: StandIns, script: str
) -> None:
    done = program("submit", script, "--", "-q", "gpu")
    assert (done.status, done.text) == (0, "35.pbs01\n")
    assert f"hpcdash: {LIVE_LOG}\n" in done.stderr
    assert "hpcdash: it is called run_a.sh, as PBS takes no other letters" in done.stderr
    assert "submit on local: qsub -f -q gpu -N run_a.sh -v HPCDASH_MARK=hpcdash:" in done.stderr
    [called] = stand_ins.calls("qsub")
    assert marked(called) == ["qsub", "-f", "-q", "gpu", "-N", "run_a.sh", "-v", "HPCDASH_MARK=…,A=1"]


def test_an_array_has_its_id_in_full(program: Program, script: str) -> None:
    assert program("submit", script, "--array", "1-3", "--", "-k", "oed").text == "35[].pbs01\n"
    assert program("script", "35[2]").stdout == SCRIPT


def test_a_dry_run_submits_and_keeps_nothing(program: Program, stand_ins: StandIns, script: str) -> None:
    done = program("submit", script, "--dry-run", "--after", "12", "--hold")
    assert done.text.startswith("qsub -f -W 'depend=afterany:12[].pbs01' -h -N run_a.sh -v HPCDASH_MARK=hpcdash:")
    assert stand_ins.calls("qsub") == []
    assert not list(program.home.rglob("scripts"))


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("12", "12[].pbs01"),
        ("12[]", "12[].pbs01"),
        ("9,12", "9.pbs01:12[].pbs01"),
        ("20", "20.pbs01"),
        ("999", "999"),
    ],
)
def test_a_job_to_wait_for_is_named_as_pbs_names_it(program: Program, script: str, typed: str, named: str) -> None:
    """PBS takes 12 for a job it does not know where that is the array 12[], and ends what waits for it at once."""
    told = program("submit", script, "--dry-run", "--after", typed).text
    assert f"depend=afterany:{named}" in told.replace("'", "").split()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--after", "12[3]"), "PBS lets a job wait for no task of an array"),
        (("--array", "1-3,7"), "Submit these one after the other: 1-3, 7."),
        (("--", "-I"), "asks for a terminal"),
        (("--", "--", "first"), "-v NAME=VALUE"),
        (("--", "--foo"), "--foo is no option of qsub"),
    ],
)
def test_what_pbs_cannot_do_is_refused_before_it_is_asked(
    program: Program, stand_ins: StandIns, script: str, words: tuple[str, ...], told: str
) -> None:
    assert told in program("submit", script, *words).refused(2)
    assert stand_ins.calls("qsub") == []


@pytest.mark.parametrize("asked", ["35", "35.pbs01"])
def test_a_script_that_was_submitted_from_here_is_shown_byte_by_byte(program: Program, script: str, asked: str) -> None:
    program("submit", script)
    shown = program("script", asked)
    assert (shown.status, shown.stdout, shown.stderr) == (0, SCRIPT, "")


def test_its_directives_are_explained(program: Program, script: str) -> None:
    program("submit", script)
    explained = program("script", "35", "--explain").stdout.split(b"\n")
    assert explained[1:3] == [b"#PBS -l walltime=60 -v A=1", b"#   ^ time limit 1 min; sets A"]


def test_two_kept_scripts_are_compared(program: Program, script: str) -> None:
    program("submit", script)
    Path(script).write_bytes(SCRIPT.replace(b"walltime=60", b"walltime=90"))
    program("submit", script)
    difference = program("script", "36", "--diff", "35").stdout.split(b"\n")
    assert difference[:2] == [b"--- job 35", b"+++ job 36"]
    assert b"-#PBS -l walltime=60 -v A=1" in difference
    assert b"+#PBS -l walltime=90 -v A=1" in difference


def test_of_another_job_it_is_said_that_pbs_gives_no_script_back(program: Program) -> None:
    refused = program("script", "2").refused(1)
    assert "PBS gives no script back, not even to a job's owner" in refused
    assert "submitted from /home/alice/work/sleep.sh" in refused


def test_where_nothing_can_be_kept_the_job_is_submitted_and_that_is_said(program: Program, script: str) -> None:
    """Its folder cannot be made: a file is in the way."""
    state = program.home / "state" / "hpcdash"
    state.mkdir(parents=True)
    (state / "scripts").write_bytes(b"")
    done = program("submit", script)
    assert (done.status, done.text) == (0, "35.pbs01\n")
    assert "hpcdash: its script could not be kept here: " in done.stderr


@pytest.mark.parametrize("content", [b"hostname\n", b"#PBS -l walltime=60\nsleep 1\n"])
def test_a_script_without_an_interpreter_is_the_login_shell_s(
    program: Program, stand_ins: StandIns, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "plain.sh"
    file.write_bytes(content)
    done = program("submit", str(file), "--", "-k", "oed")
    assert (done.status, done.text) == (0, "35.pbs01\n")
    assert "hpcdash: its first line is no #!: your login shell runs it\n" in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the script is empty"),
        (b"\x7fELF\0\0", "it holds NUL bytes"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "byte-order mark"),
        (b"hostname\r\n", "CRLF"),
    ],
)
def test_what_no_shell_could_run_is_refused(
    program: Program, stand_ins: StandIns, tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "odd.sh"
    file.write_bytes(content)
    assert words in program("submit", str(file)).refused(2)
    assert stand_ins.calls("qsub") == []


def test_a_server_that_is_down_is_no_refusal(
    program: Program, stand_ins: StandIns, script: str, request_file: str
) -> None:
    stand_ins.play("server-down")
    for file in (script, request_file):
        done = program("submit", file)
        assert (done.status, done.text) == (3, "")
        assert "cannot connect to server pbs01" in done.stderr


# -- requests

TOLD = "has GPUs is not told"


def with_attribute(stand_ins: StandIns, attribute: str, *, file: str = "queues", name: str = "gpu") -> None:
    """Say more of a queue, or of the server."""
    listed = stand_ins.folder / "scene" / f"{file}.dsv"
    lines = listed.read_text().splitlines(keepends=True)
    head = ("Server: pbs01" if file == "server" else f"Queue: {name}") + "@@"
    listed.write_text("".join(line.replace(head, f"{head}{attribute}@@", 1) for line in lines))


def test_gpus_come_with_their_node_s_share_of_cpus_and_logs_are_written_at_once(
    program: Program, request_file: str
) -> None:
    done = program("submit", request_file, "--dry-run")
    assert "\n#PBS -l select=4:ngpus=1:ncpus=8\n" in done.text
    assert "\n#PBS -k oed\n" in done.text
    assert "hpcdash: 8 CPUs with each GPU, a node's share; cpus_per_gpu sets another number\n" in done.stderr
    assert LIVE_LOG not in done.stderr
    assert TOLD not in done.stderr


@pytest.mark.parametrize(
    ("attribute", "file", "select", "words"),
    [
        ("default_chunk.ncpus=12", "queues", "4:ngpus=1", "queue gpu gives each chunk 12 CPUs"),
        ("resources_max.ncpus=10", "queues", "4:ngpus=1:ncpus=2", "as many as queue gpu allows"),
        ("resources_max.ncpus=7", "server", "4:ngpus=1:ncpus=1", "1 CPU with each GPU, as many as queue gpu allows"),
        ("resources_max.ncpus=3", "queues", "4:ngpus=1", "no CPUs are asked for with the GPUs"),
        ("resources_max.ngpus=0", "queues", "4:ncpus=1", ""),
    ],
    ids=["given", "allowed", "allowed by the server", "less than one a GPU", "no GPUs"],
)
def test_what_the_queue_gives_and_allows_counts_over_the_node_s_share(
    program: Program, stand_ins: StandIns, request_file: str, attribute: str, file: str, select: str, words: str
) -> None:
    with_attribute(stand_ins, attribute, file=file)
    done = program("submit", request_file, "--dry-run")
    assert f"\n#PBS -l select={select}\n" in done.text
    assert words in done.stderr
    assert TOLD not in done.stderr


def test_a_routing_queue_allows_what_the_queues_behind_it_do(
    program: Program, stand_ins: StandIns, request_file: str
) -> None:
    with_attribute(stand_ins, "resources_max.ncpus=8", name="workq")
    Path(request_file).write_text(Path(request_file).read_text().replace('"gpu"', '"route"'))
    assert "\n#PBS -l select=4:ngpus=1:ncpus=2\n" in program("submit", request_file, "--dry-run").text


def test_where_no_node_has_gpus_slots_are_cpus(program: Program, stand_ins: StandIns, request_file: str) -> None:
    for name in ("nodes", "vnodes"):
        listed = stand_ins.folder / "scene" / f"{name}.dsv"
        listed.write_text("".join(line for line in listed.read_text().splitlines(keepends=True) if "ngpus" not in line))
    done = program("submit", request_file, "--dry-run")
    assert "\n#PBS -l select=4:ncpus=1\n" in done.text
    assert TOLD not in done.stderr
