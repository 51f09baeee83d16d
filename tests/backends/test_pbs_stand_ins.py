"""The commands that stand in for PBS's answer with what was recorded, and with nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.pbs import SCENES, StandIns
from tests.support.pbs.standin import NOT_RECORDED


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    return StandIns.install(tmp_path_factory.mktemp("pbs") / "here", "everyday")


def run(stand_ins: StandIns, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, env=stand_ins.environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)


def test_the_list_of_jobs_is_the_recorded_one_but_for_the_delimiter(stand_ins: StandIns) -> None:
    recorded = (SCENES / "everyday" / "jobs.dsv").read_bytes()
    assert run(stand_ins, "qstat", "-f", "-F", "dsv", "-D", "@@").stdout == recorded
    assert run(stand_ins, "qstat", "-f", "-F", "dsv", "-D", "\x1eab").stdout == recorded.replace(b"@@", b"\x1eab")


@pytest.mark.parametrize(
    "words",
    [("qstat",), ("qstat", "-a"), ("qstat", "-f", "-F", "json"), ("qstat", "-u", "alice", "-f"), ("pbsnodes", "-aSj")],
    ids=" ".join,
)
def test_what_was_not_recorded_is_refused(stand_ins: StandIns, words: tuple[str, ...]) -> None:
    refused = run(stand_ins, *words)
    assert (refused.returncode, refused.stdout) == (NOT_RECORDED, b"")
    assert refused.stderr.startswith(b"not recorded: ")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("qstat", "-f", "-F", "dsv", "99999"), 153, b"qstat: Unknown Job Id 99999.pbs01\n"),
        (
            ("qstat", "-f", "-F", "dsv", "17"),
            35,
            b"qstat: 17.pbs01 Job has finished, use -x or -H to obtain historical job information\n",
        ),
        (("qdel", "99999"), 153, b"qdel: Unknown Job Id 99999\n"),
        (("qdel", "3"), 159, b"qdel: Unauthorized Request  3.pbs01\n"),
        (("qdel", "17.pbs01"), 35, b"qdel: Job has finished 17.pbs01\n"),
        (("qdel", "12[1].pbs01"), 55, b"qdel: Request invalid for finished array subjob 12[1].pbs01\n"),
        (("qdel", "12[999]"), 156, b"qdel: Invalid request 12[999].pbs01\n"),
        (("qdel", "12[5-7].pbs01"), 0, b""),
        (("qsig", "-s", "FOO", "2"), 165, b"qsig: Unknown/illegal signal name 2.pbs01\n"),
        (("qsig", "-s", "USR1", "4"), 168, b"qsig: Request invalid for state of job 4.pbs01\n"),
        (("qsig", "-s", "suspend", "23.pbs01"), 159, b"qsig: Unauthorized Request  23.pbs01\n"),
        (("qsig", "-s", "USR1", "14[6]"), 168, b"qsig: Request invalid for state of job 14[6].pbs01\n"),
        (("qsig", "-s", "USR1", "14[3-8]"), 0, b""),
        (("qsig", "-s", "USR1", "14[]"), 0, b""),
        (("qsig", "-s", "USR1", "14[99]"), 153, b"qsig: Unknown Job Id 14[99].pbs01\n"),
        (("qrerun", "6"), 159, b"qrerun: Unauthorized Request  6.pbs01\n"),
        (("qrerun", "14[3-4]"), 159, b"qrerun: Unauthorized Request  14[3-4].pbs01\n"),
        (("qhold", "14[6]"), 156, b"qhold: Invalid request 14[6].pbs01\n"),
        (("qhold", "14[6-8]"), 156, b"qhold: Invalid request 14[6-8].pbs01\n"),
        (("qhold", "14[]"), 0, b""),
        (("qrls", "14[6]"), 156, b"qrls: Invalid request 14[6].pbs01\n"),
        (("qalter", "-l", "walltime=1:0:0", "14[6]"), 156, b"qalter: Invalid request 14[6].pbs01\n"),
        (("qalter", "-Wmax_run_subjobs=2", "14[6]"), 156, b"qalter: Invalid request 14[6].pbs01\n"),
        (("qmove", "debug", "14[6]"), 156, b"qmove: Invalid request 14[6].pbs01\n"),
        (("qdel", "12[1,3]"), 1, b"qdel: illegally formed job identifier: 12[1,3]\n"),
        (("qdel", "14[9-12]"), 0, b""),
        (("qmove", "nosuch", "4"), 170, b"qmove: Unknown queue 4.pbs01\n"),
        (("qmove", "maint", "4"), 173, b"qmove: Queue is not enabled 4.pbs01\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals_have_the_recorded_status_and_words(
    stand_ins: StandIns, words: tuple[str, ...], status: int, said: bytes
) -> None:
    refused = run(stand_ins, *words)
    assert (refused.returncode, refused.stderr) == (status, said)


def test_a_signal_to_a_range_in_which_no_task_runs_is_never_answered(stand_ins: StandIns) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(("qsig", "-s", "USR1", "14[6-8]"), env=stand_ins.environment, timeout=2)


def test_subjobs_are_in_the_list_only_where_asked_for(stand_ins: StandIns) -> None:
    plain = run(stand_ins, "qstat", "-f", "-F", "dsv").stdout
    with_subjobs = run(stand_ins, "qstat", "-t", "-f", "-F", "dsv").stdout
    assert b"Job Id: 14[].pbs01" in plain
    assert b"Job Id: 14[3].pbs01" not in plain
    assert b"Job Id: 14[3].pbs01" in with_subjobs


def test_a_scene_is_changed_while_they_stand(tmp_path: Path) -> None:
    stand_ins = StandIns.install(tmp_path / "here", "server-down")
    assert run(stand_ins, "qstat", "-f", "-F", "dsv").returncode == 255
    stand_ins.play("history-off")
    asked = run(stand_ins, "qstat", "-x", "-f", "-F", "dsv")
    assert (asked.returncode, asked.stdout) == (0, b"")
    assert asked.stderr == b"qstat: PBS is not configured to maintain job history \n"
    assert [words[:2] for words in stand_ins.calls("qstat")] == [["qstat", "-f"], ["qstat", "-x"]]
