"""`hpcdash cancel` and its like on a login node of a PBS: what is said before, and what PBS is asked to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.program import Program, home_with
from tests.support.pbs import StandIns


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    return StandIns.install(tmp_path / "pbs", "everyday")


@pytest.fixture
def program(tmp_path: Path, stand_ins: StandIns) -> Program:
    variables = {"PATH": f"{stand_ins.path}:/usr/bin:/bin", "PBS_CONF_FILE": "/dev/null"}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "pbs"), variables)


@pytest.mark.parametrize("typed", ["12", "12[]", "12.pbs01"])
def test_tasks_that_ended_are_not_counted_among_those_that_are_cancelled(
    program: Program, stand_ins: StandIns, typed: str
) -> None:
    done = program("cancel", "--yes", typed)
    assert (done.status, done.text) == (0, "12[].pbs01  cancelled\n")
    assert "cancel on local: 3 jobs of alice (3 running)\n  7 of the same ended already\n" in done.stderr
    assert stand_ins.calls("qdel") == [["qdel", "12[].pbs01"]]


def test_of_what_has_all_ended_it_is_said_how(program: Program) -> None:
    assert "hold on local: 1 job of alice (1 cancelled)\n" in program("hold", "24").stderr


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("hold", "14[6]"), ["qhold", "14[6].pbs01"]),
        (("release", "14[6]"), ["qrls", "14[6].pbs01"]),
        (("hold", "14[6-8]"), ["qhold", "14[6-8].pbs01"]),
        (("hold", "14[6-10]"), ["qhold", "14[6-10].pbs01"]),
        (("alter", "14[6]", "--time", "1h"), ["qalter", "-l", "walltime=01:00:00", "14[6].pbs01"]),
        (("alter", "14[6]", "--queue", "debug"), ["qmove", "debug", "14[6].pbs01"]),
        (("alter", "14[6]", "--throttle", "2"), ["qalter", "-Wmax_run_subjobs=2", "14[6].pbs01"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_for_a_task_that_was_named_its_array_is_not_taken_but_named(
    program: Program, stand_ins: StandIns, words: tuple[str, ...], asked: list[str]
) -> None:
    refused = program(*words, "--yes")
    assert refused.status == 1
    assert stand_ins.calls(asked[0]) == [asked]
    said = "refused: Invalid request (PBS does this to whole arrays only: name 14[].pbs01)\n"
    assert refused.text == f"{asked[-1]}  {said}"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("hold", "14"), ["qhold", "14[].pbs01"]),
        (("alter", "14[]", "--throttle", "2"), ["qalter", "-Wmax_run_subjobs=2", "14[].pbs01"]),
        (("cancel", "14[6]"), ["qdel", "14[6].pbs01"]),
        (("cancel", "14[3-8]"), ["qdel", "14[3-8].pbs01"]),
        (("signal", "USR1", "14[3]"), ["qsig", "-s", "USR1", "14[3].pbs01"]),
        (("signal", "USR1", "14[]"), ["qsig", "-s", "USR1", "14[].pbs01"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_was_named_is_what_is_touched(
    program: Program, stand_ins: StandIns, words: tuple[str, ...], asked: list[str]
) -> None:
    done = program(*words, "--yes")
    assert (done.status, done.text.split()[0]) == (0, asked[-1])
    assert stand_ins.calls(asked[0]) == [asked]


def test_a_signal_to_tasks_that_wait_is_answered_though_pbs_answers_for_no_range(program: Program) -> None:
    refused = program("signal", "USR1", "14[6-8]", "--yes")
    assert refused.status == 1
    assert refused.text == "14[6-8].pbs01  refused: 14[6].pbs01: Request invalid for state of job\n"
    refused = program("signal", "USR1", "14[5-6]", "--yes")
    assert refused.text == "14[5-6].pbs01  refused: 14[6].pbs01: Request invalid for state of job; done for 1 of 2\n"


@pytest.fixture
def lost(stand_ins: StandIns) -> StandIns:
    """A job, 177, runs on a node that is down."""
    stand_ins.play("node-failed")
    nodes = stand_ins.folder / "scene" / "nodes.dsv"
    nodes.write_bytes(nodes.read_bytes().replace(b"state=free", b"state=down", 1))
    return stand_ins


def test_a_job_on_a_node_that_is_down_is_marked(program: Program, lost: StandIns) -> None:
    (job,) = program("jobs", "--all", "--filter", "id:177", "--format", "json").json["jobs"]
    assert (job["state"], job["reason"]) == ("running", None)
    (job,) = program("jobs", "--filter", "id:177", "--format", "json").json["jobs"]
    assert (job["state"], job["reason"]) == ("running", "cn01, cn02 are down")
    assert "(cn01, cn02 are down)" in program("jobs").text
    assert "cn01, cn02 are down" in program("show", "177").text
    assert ["pbsnodes", "-F", "dsv", "cn01", "cn02"] in [
        [word for word in words if not word.startswith(("-D", "\x1e"))] for words in lost.calls("pbsnodes")
    ]


def test_what_cannot_be_ended_on_its_node_is_cancelled_by_force(program: Program, lost: StandIns) -> None:
    refused = program("cancel", "177", "--yes")
    assert refused.status == 1
    assert refused.text.startswith("177.pbs01  refused: Server could not connect to MOM (its node does not answer; ")
    assert "cancel --force removes it from the queue" in refused.text
    done = program("cancel", "177", "--yes", "--force")
    assert (done.status, done.text) == (0, "177.pbs01  cancelled\n")
    assert "by force: what still runs on a node that does not answer is not ended" in done.stderr
    assert lost.calls("qdel") == [["qdel", "177.pbs01"], ["qdel", "-W", "force", "177.pbs01"]]


def test_tasks_of_an_array_that_is_held_are_held_in_what_is_said_before(program: Program, stand_ins: StandIns) -> None:
    subjobs = stand_ins.folder / "scene" / "subjobs.dsv"
    subjobs.write_bytes(subjobs.read_bytes().replace(b"Hold_Types=n", b"Hold_Types=u"))
    assert "release on local: 1 job of alice (1 held)" in program("release", "14[6]").stderr


def test_an_unknown_job_is_told_as_unknown_where_no_history_is_kept(program: Program, stand_ins: StandIns) -> None:
    stand_ins.play("history-off")
    refused = program("cancel", "99999", "--yes")
    assert (refused.status, refused.text) == (1, "99999  refused: Unknown Job Id\n")
    assert "not in the queue: 99999" in refused.stderr
    shown = program("show", "99999").refused(1)
    assert shown.startswith("hpcdash: PBS does not know this job")
    assert "its history cannot be asked: this PBS server keeps no history" in shown


def test_what_a_filter_matches_is_listed_asked_about_and_cancelled(program: Program, stand_ins: StandIns) -> None:
    refused = program("cancel", "--filter", "state:pending")
    assert (refused.status, stand_ins.calls("qdel")) == (2, [])
    assert "asks first, and there is no terminal to ask on" in refused.stderr
    done = program("cancel", "--filter", "state:pending", "--yes")
    shown = program("jobs", "--filter", "state:pending", "--format", "csv").text.splitlines()[1:]
    ids = [line.partition(",")[0] for line in shown]
    assert ids
    assert stand_ins.calls("qdel") == [["qdel", *ids]]
    assert [line.split()[0] for line in done.text.splitlines()] == ids
    assert all(f"\n  {job_id}" in done.stderr for job_id in ids)


@pytest.mark.parametrize("verb", ["hold", "release"])
def test_other_verbs_ask_too_where_a_filter_chooses(program: Program, stand_ins: StandIns, verb: str) -> None:
    assert program(verb, "--filter", "state:pending").status == 2
    assert stand_ins.calls("qhold") + stand_ins.calls("qrls") == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("cancel", "--filter", "name:nobody-has-it", "--yes"), 1, "none of your jobs in the queue matches"),
        (("cancel", "12", "--filter", "state:pending"), 2, "both jobs and --filter are given"),
        (("hold",), 2, "no job is named"),
        (("hold", "12", "--all"), 2, "--all goes with --filter"),
        (("cancel", "--filter", "colour:red", "--yes"), 2, "there is no column colour"),
    ],
    ids=["no match", "both", "neither", "all alone", "a bad filter"],
)
def test_a_filter_that_chooses_nothing_or_not_alone_changes_nothing(
    program: Program, stand_ins: StandIns, words: tuple[str, ...], status: int, said: str
) -> None:
    done = program(*words)
    assert (done.status, done.text) == (status, "")
    assert said in done.stderr
    assert stand_ins.calls("qdel") + stand_ins.calls("qhold") == []
