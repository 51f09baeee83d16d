"""The commands that stand in for PBS's answer with what was recorded, and with nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.pbs import SCENES, StandIns
from tests.support.pbs.standin import NOT_RECORDED
from tests.support.records import for_each

pytestmark = pytest.mark.system
# As OpenPBS 23.06.06 said it: qsub's options, its exit status, the first line of its words.
QSUB_REFUSALS: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("-J", "1-3", "-r", "n"), 2, "qsub:  cannot submit non-rerunable Array Job"),
    (("-r", "n", "-J", "1-3"), 2, "qsub:  cannot submit non-rerunable Array Job"),
    (("-r", "x"), 2, "qsub: illegal -r value"),
    (("-J", "5"), 2, "qsub: illegal -J value"),
    (("-J", "5-1"), 2, "qsub: illegal -J value"),
    (("-J", "1-1"), 2, "qsub: illegal -J value"),
    (("-J", "1,3,5"), 2, "qsub: illegal -J value"),
    (("-J", "1-99999999"), 3, "qsub: Array job exceeds server or queue size limit"),
    (("-N", "x:y"), 2, "qsub: illegal -N value"),
    (("-a", "99"), 2, "qsub: illegal -a value"),
    (("-p", "5000"), 2, "qsub: illegal -p value"),
    (("-k", "d"), 2, "qsub: illegal -k value"),
    (("-j", "x"), 2, "qsub: illegal -j value"),
    (("-m", "x"), 2, "qsub: illegal -m value"),
    (("-m", "j"), 1, "qsub: mail option 'j' can not be used without array job"),
    (("-Z",), 2, "qsub: invalid option -- 'Z'"),
    (("-t", "1-3"), 2, "qsub: invalid option -- 't'"),
    (("--foo",), 2, "qsub: invalid option -- '-'"),
    (
        ("-l", "select=1:ncpus=2", "-l", "ncpus=2"),
        5,
        'qsub: "-lresource=" cannot be used with "select" or "place", resource is: ncpus',
    ),
    (("-l", "nodes=2", "-l", "select=1"), 6, "qsub: Cannot be used with select or place: nodes"),
    (("-l", "nodes=1:ppn=4:gpus=1"), 241, "qsub: node(s) specification error"),
    (("-l", "select=1:foo=3"), 187, "qsub: Unknown resource: foo"),
    (("-l", "foo=3"), 187, "qsub: Unknown resource Resource_List.foo"),
    (("-l", "select=x:y"), 166, "qsub: Illegal attribute or resource value Resource_List.select"),
    (
        ("-l", "select=2:bigmem"),
        166,
        "qsub: Illegal attribute or resource value Resource_List.select",
    ),
    (("-l", "select=0"), 166, "qsub: Illegal attribute or resource value"),
    (("-l", "select=1:ncpus=abc"), 166, "qsub: Illegal attribute or resource value select.ncpus"),
    (
        ("-l", "walltime=abc"),
        166,
        "qsub: Illegal attribute or resource value Resource_List.walltime",
    ),
    (("-l", "place=foo"), 166, "qsub: Illegal attribute or resource value Resource_List.place"),
    (
        ("-l", "place=pack:scatter"),
        166,
        "qsub: Illegal attribute or resource value Resource_List.place",
    ),
    (
        ("-l", "place=scatter:excl:shared"),
        166,
        "qsub: Illegal attribute or resource value Resource_List.place",
    ),
    (("-l", "place=group=nores"), 187, "qsub: Unknown resource Resource_List.place"),
    (("-W", "foo"), 2, "qsub: illegal -W value"),
    (("-W", "umask=x"), 2, "qsub: illegal -W value"),
    (("-W", "sandbox=foo"), 2, "qsub: illegal -W value"),
    (("-W", "block=maybe"), 2, "qsub: illegal -W value"),
    (("-W", "depend=foo:1"), 2, "qsub: illegal -W value"),
    (("-W", "depend=afterok:12[4]"), 2, "cannot have dependancy on subjob or range"),
    (("-W", "foo=bar"), 154, "qsub: Error (15002) submitting job"),
    (("-W", "group_list=nosuch"), 197, "qsub: Bad GID for job execution"),
    (("-W", "max_run_subjobs=2"), 127, "qsub: Attribute has to be set on an array job"),
    (("-v", 'A="b'), 1, "qsub: cannot send environment with the job"),
    (("-v", 'A=b"c'), 1, "qsub: cannot send environment with the job"),
    (("-v", "A=b,UNSET_HERE"), 1, "qsub: cannot send environment with the job"),
)
OF_QUEUES: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("-q", "nosuch"), 170, "qsub: Unknown queue"),
    (("-q", "maint"), 173, "qsub: Queue is not enabled"),
    (("-q", "bobonly"), 159, "qsub: Unauthorized Request "),
    (
        ("-q", "debug", "-l", "walltime=10:00:00"),
        188,
        "qsub: Job violates queue and/or server resource limits",
    ),
    (
        ("-q", "debug", "-l", "select=1:ncpus=8"),
        188,
        "qsub: Job violates queue and/or server resource limits",
    ),
)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    return StandIns.install(tmp_path_factory.mktemp("pbs") / "here", "everyday")


def run(stand_ins: StandIns, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        words, env=stand_ins.environment, stdin=subprocess.DEVNULL, capture_output=True
    )


def test_the_list_of_jobs_is_the_recorded_one_but_for_the_delimiter(stand_ins: StandIns) -> None:
    recorded = (SCENES / "everyday" / "jobs.dsv").read_bytes()
    assert run(stand_ins, "qstat", "-f", "-F", "dsv", "-D", "@@").stdout == recorded
    assert run(stand_ins, "qstat", "-f", "-F", "dsv", "-D", "\x1eab").stdout == recorded.replace(
        b"@@", b"\x1eab"
    )


@for_each(
    "words",
    [
        ("qstat",),
        ("qstat", "-a"),
        ("qstat", "-f", "-F", "json"),
        ("qstat", "-u", "alice", "-f"),
        ("pbsnodes", "-aSj"),
    ],
    ids=" ".join,
)
def test_what_was_not_recorded_is_refused(stand_ins: StandIns, words: tuple[str, ...]) -> None:
    refused = run(stand_ins, *words)
    assert (refused.returncode, refused.stdout) == (NOT_RECORDED, b"")
    assert refused.stderr.startswith(b"not recorded: ")


@for_each(
    ("words", "status", "said"),
    [
        (("qstat", "-f", "-F", "dsv", "99999"), 153, b"qstat: Unknown Job Id 99999.pbs01\n"),
        (
            ("qstat", "-f", "-F", "dsv", "17"),
            35,
            b"qstat: 17.pbs01 Job has finished, use -x or -H to obtain historical job "
            b"information\n",
        ),
        (("qdel", "99999"), 153, b"qdel: Unknown Job Id 99999\n"),
        (("qdel", "3"), 159, b"qdel: Unauthorized Request  3.pbs01\n"),
        (("qdel", "17.pbs01"), 35, b"qdel: Job has finished 17.pbs01\n"),
        (
            ("qdel", "12[1].pbs01"),
            55,
            b"qdel: Request invalid for finished array subjob 12[1].pbs01\n",
        ),
        (("qdel", "12[999]"), 156, b"qdel: Invalid request 12[999].pbs01\n"),
        (("qdel", "12[5-7].pbs01"), 0, b""),
        (("qsig", "-s", "FOO", "2"), 165, b"qsig: Unknown/illegal signal name 2.pbs01\n"),
        (("qsig", "-s", "USR1", "4"), 168, b"qsig: Request invalid for state of job 4.pbs01\n"),
        (("qsig", "-s", "suspend", "23.pbs01"), 159, b"qsig: Unauthorized Request  23.pbs01\n"),
        (
            ("qsig", "-s", "USR1", "14[6]"),
            168,
            b"qsig: Request invalid for state of job 14[6].pbs01\n",
        ),
        (("qsig", "-s", "USR1", "14[3-8]"), 0, b""),
        (("qsig", "-s", "USR1", "14[]"), 0, b""),
        (("qsig", "-s", "USR1", "14[99]"), 153, b"qsig: Unknown Job Id 14[99].pbs01\n"),
        (("qrerun", "6"), 159, b"qrerun: Unauthorized Request  6.pbs01\n"),
        (("qrerun", "14[3-4]"), 159, b"qrerun: Unauthorized Request  14[3-4].pbs01\n"),
        (("qhold", "14[6]"), 156, b"qhold: Invalid request 14[6].pbs01\n"),
        (("qhold", "14[6-8]"), 156, b"qhold: Invalid request 14[6-8].pbs01\n"),
        (("qhold", "14[]"), 0, b""),
        (("qrls", "14[6]"), 156, b"qrls: Invalid request 14[6].pbs01\n"),
        (
            ("qalter", "-l", "walltime=1:0:0", "14[6]"),
            156,
            b"qalter: Invalid request 14[6].pbs01\n",
        ),
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


def submitted(
    stand_ins: StandIns, tmp_path: Path, *words: str, script: str = "true\n"
) -> subprocess.CompletedProcess[bytes]:
    file = tmp_path / "ok.sh"
    file.write_text(script)
    variables = {**stand_ins.environment, "SET": "x"}
    command = ("qsub", *words, str(file))
    return subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True)


@for_each(
    ("words", "status", "said"),
    [*QSUB_REFUSALS, *OF_QUEUES],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_qsub_refuses_what_a_real_one_refused_in_its_words(
    stand_ins: StandIns, tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    refused = submitted(stand_ins, tmp_path, *words)
    lines = refused.stderr.decode().split("\n")
    assert (refused.returncode, lines[0], refused.stdout) == (status, said, b"")
    assert any(line.startswith("usage: qsub") for line in lines) is (status == 2)


def test_qsub_refuses_a_name_that_is_too_long(stand_ins: StandIns, tmp_path: Path) -> None:
    assert submitted(stand_ins, tmp_path, "-N", "x" * 230).returncode == 0
    refused = submitted(stand_ins, tmp_path, "-N", "x" * 231)
    assert (refused.returncode, refused.stderr) == (2, b"qsub: Job name is too long \n")


@for_each(
    ("directives", "words", "said"),
    [
        (
            "#PBS -r n",
            ("-J", "1-3"),
            "qsub:  cannot submit non-rerunable Array Job\nqsub: directive error: -r n \n",
        ),
        (
            "#PBS -J 1-3 -r n",
            (),
            "qsub:  cannot submit non-rerunable Array Job\nqsub: directive error: -J 1-3 -r n \n",
        ),
        (
            "#PBS -J 1-3",
            ("-r", "n"),
            "qsub:  cannot submit non-rerunable Array Job\nqsub: directive error: -J 1-3 \n",
        ),
        ("#PBS -Z foo", (), "qsub: invalid option -- 'Z'\nqsub: directive error: -Z foo \n"),
        ("#PBS nonsense", (), "qsub: directive error: nonsense \n"),
        ('#PBS -N "a', (), "qsub: unmatched \n"),
    ],
)
def test_qsub_refuses_a_directive_by_its_line(
    stand_ins: StandIns, tmp_path: Path, directives: str, words: tuple[str, ...], said: str
) -> None:
    refused = submitted(stand_ins, tmp_path, *words, script=f"#!/bin/sh\n{directives}\ntrue\n")
    assert (refused.returncode, refused.stderr.decode(), refused.stdout) == (1, said, b"")


@for_each(
    ("words", "script"),
    [
        (("-J", "1-3", "-r", "y"), ""),
        (("-J", "1-10%0"), ""),
        (("-J", "1-4:2%1"), ""),
        (("-r", "y", "-J", "1-3"), "#PBS -r n"),
        (("-q", "stopped"), ""),
        (("-l", "select=2:ncpus=1", "-l", "place=scatter:excl"), ""),
        (("-l", "select=1:ngpus=1:ompthreads=2:mpiprocs=2:host=gpu01"), ""),
        (("-l", "nodes=2:ppn=4,walltime=1:00:00"), ""),
        (("-l", "ngpus=2"), ""),
        (("-W", "depend=afterok:99999,umask=022", "-W", "group_list=alice"), ""),
        (("-W", "depend=afterany:12[].pbs01:13"), ""),
        (("-W", "sandbox=PRIVATE"), ""),
        (("-k", "oed"), ""),
        (("-v", "A=1,B=x\\,y,SET,E="), ""),
        (("-N", "1a", "-A", "two words", "-P", "p q"), ""),
        ((), "true\n#PBS -Z"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_qsub_takes_what_a_real_one_took(
    stand_ins: StandIns, tmp_path: Path, words: tuple[str, ...], script: str
) -> None:
    taken = submitted(stand_ins, tmp_path, *words, script=f"#!/bin/sh\n{script}\ntrue\n")
    assert (taken.returncode, taken.stderr) == (0, b"")
    assert taken.stdout.endswith(b"[].pbs01\n" if "-J" in words else b".pbs01\n")


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
