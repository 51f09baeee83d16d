"""hpcdash of a person with an account on a PBS cluster: over a real ssh, found by itself, in all
its commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import JobScope
from hpcdash.errors import CommandTimedOut
from hpcdash.transport.ssh import SshTransport
from tests.e2e.conftest import PbsPerson
from tests.support.pbs.over_ssh import HOST
from tests.support.person import Person
from tests.support.program import Program, find_row, home_with, together
from tests.support.screen import dashboard
from tests.support.sshd import until_gone

SETTLED = pbs_backend(Dialect.OPENPBS)
At = Callable[[str], PbsPerson]


@pytest.fixture
def everyday(pbs_cluster: At) -> PbsPerson:
    return pbs_cluster("everyday")


def test_pbs_is_found_without_being_named(everyday: PbsPerson) -> None:
    found = everyday.program("jobs", "--all", "--format", "json").json
    assert found["backend"] == "pbs"
    assert found["rejected_rows"] == 0
    named = everyday.program("--backend", "pbs", "jobs", "--all", "--format", "json").json
    assert named["jobs"] == found["jobs"]


def test_jobs_are_the_caller_s_own_or_everyone_s(everyday: PbsPerson) -> None:
    mine, everyone = everyday.program.rows("jobs"), everyday.program.rows("jobs", "--all")
    assert {row["user"] for row in mine} == {"alice"}
    assert {row["user"] for row in everyone} == {"alice", "bob"}
    training = find_row(everyone, "3.pbs01")
    assert (training["name"], training["queue"], training["gpus"], training["account"]) == (
        "train-llm",
        "gpu",
        1,
        "proj42",
    )


def test_an_array_is_its_running_tasks_and_one_row_for_those_that_wait(everyday: PbsPerson) -> None:
    rows = {
        row["id"]: row for row in everyday.program.rows("jobs") if row["array_id"] == "14[].pbs01"
    }
    assert set(rows) == {"14[3].pbs01", "14[4].pbs01", "14[5].pbs01", "14[6-10].pbs01"}
    waiting = rows.pop("14[6-10].pbs01")
    assert (waiting["state"], waiting["array_task"]) == ("pending", "6-10%3")
    assert {row["state"] for row in rows.values()} == {"running"}


@pytest.mark.parametrize("typed", ["2", "2.pbs01"])
def test_a_job_is_shown_by_its_number_with_or_without_the_server(
    everyday: PbsPerson, typed: str
) -> None:
    shown = everyday.program("show", typed, "--format", "json").json["job"]
    assert (shown["id"], shown["state"], shown["node_list"]) == ("2.pbs01", "running", "cn01")
    assert shown["stdout_path"] == "/home/alice/work/direct.o2"
    assert shown["native"]["Keep_Files"] == "oed"


def test_a_job_that_ended_is_shown_from_the_history(everyday: PbsPerson) -> None:
    shown = everyday.program("show", "18", "--format", "json").json["job"]
    assert (shown["id"], shown["state"], shown["exit_code"], shown["exit_signal"]) == (
        "18.pbs01",
        "failed",
        3,
        0,
    )


def test_a_job_nobody_knows_is_status_1_with_pbs_s_words(everyday: PbsPerson) -> None:
    assert "99999" in everyday.program("show", "99999").refused(1)


def test_nodes_are_vnodes_where_a_host_has_some(everyday: PbsPerson) -> None:
    nodes = {row["name"]: row for row in everyday.program.rows("nodes")}
    assert {"cn01", "cn02", "cn03", "cn04", "gpu01[0]", "gpu01[1]"} <= set(nodes)
    assert (nodes["gpu01[0]"]["gpus"], nodes["gpu01[0]"]["gpus_used"]) == (2, 1)
    assert nodes["cn03"]["reason"] == 'DIMM replacement, ticket #4711; "back on Fri"'
    assert nodes["cn04"]["state"] in ("down", "unknown")


def test_queues_say_which_take_jobs_and_for_how_long(everyday: PbsPerson) -> None:
    queues = {row["name"]: row for row in everyday.program.rows("queues")}
    assert (queues["workq"]["default"], queues["workq"]["limit_seconds"]) == (True, 168 * 3600)
    assert queues["maint"]["available"] is False
    assert queues["gpu"]["jobs_running"] == 1


def test_the_history_tells_how_jobs_ended(everyday: PbsPerson) -> None:
    mine = {row["id"]: row for row in everyday.program.rows("history")}
    assert mine["17.pbs01"]["state"] == "completed"
    assert mine["20.pbs01"]["state"] == "timeout"
    assert mine["24.pbs01"]["state"] == "cancelled"
    assert "18.pbs01" not in mine, "bob's job is not alice's"
    assert "2.pbs01" not in mine, "it still runs"


def test_where_no_history_is_kept_it_says_so(pbs_cluster: At) -> None:
    said = pbs_cluster("history-off").program("history").refused(1)
    assert "not keep" in said


def test_cancelling_names_the_job_to_qdel_once(everyday: PbsPerson) -> None:
    run = everyday.program("--yes", "cancel", "2", "99999")
    assert run.status == 1
    assert "Unknown Job Id" in run.stderr + run.text
    (called,) = everyday.cluster.stand_ins.calls("qdel")
    assert called[-2:] == ["2.pbs01", "99999"] or {"2.pbs01", "2"} & set(called)


def test_another_s_job_is_not_cancelled_and_pbs_s_word_for_it_is_shown(everyday: PbsPerson) -> None:
    run = everyday.program("--yes", "cancel", "3")
    assert run.status == 1
    assert "Unauthorized Request" in run.stderr + run.text


def test_without_a_yes_nothing_is_cancelled(everyday: PbsPerson) -> None:
    everyday.program("cancel", "2").refused(2)
    assert everyday.cluster.stand_ins.calls("qdel") == []


def test_a_log_that_is_on_a_node_s_disk_is_said_to_be_there(everyday: PbsPerson) -> None:
    said = everyday.program("log", "5").stderr
    assert "cn01" in said
    assert "/var/spool/pbs/spool/5.pbs01.OU" in said


def test_the_doctor_finds_everything_it_needs(everyday: PbsPerson) -> None:
    run = everyday.program("doctor", "--format", "json")
    checks = {check["name"]: check for check in json.loads(run.stdout)["checks"]}
    for name in ("connection", "jobs", "nodes", "queues"):
        assert checks[name]["ok"], checks[name]


def test_everything_about_an_absent_server_is_status_3_and_says_what_to_do(pbs_cluster: At) -> None:
    for scene, words in (
        ("server-down", "Connection refused"),
        ("server-unreachable", "No route to host"),
    ):
        # Named: where Slurm's commands are installed too it is not clear whose server is away.
        program = pbs_cluster(scene).program
        kinds = ("jobs", "nodes", "queues", "history")
        for run in together(program, *(("--backend", "pbs", kind) for kind in kinds)):
            said = run.refused(3)
            assert words in said
            assert "the PBS server does not respond" in said


async def test_a_hung_server_is_given_up_in_time_and_no_command_is_left_on_the_login_node(
    pbs_cluster: At,
) -> None:
    person = pbs_cluster("server-hung")
    transport = SshTransport(HOST, Person(), config_path=person.program.home / ".ssh" / "config")
    try:
        for query in (
            SETTLED.queue.jobs(JobScope("alice")),
            SETTLED.queue.nodes(),
            SETTLED.queue.queues(),
        ):
            with pytest.raises(CommandTimedOut):
                await transport.run(query.argv, limit_seconds=1.0)
        # What the server would have been asked hung; what needs no server was answered.
        assert {words[0] for words in person.cluster.stand_ins.calls()} >= {
            "qselect",
            "pbsnodes",
            "qstat",
        }
    finally:
        await transport.close()
    assert await until_gone(str(person.cluster.stand_ins.folder / "standin.py")) == []


def test_one_look_at_the_jobs_is_one_call_of_qstat_for_the_list(everyday: PbsPerson) -> None:
    everyday.program("jobs", "--all")
    lists = [
        words
        for words in everyday.cluster.stand_ins.calls("qstat")
        if "-f" in words and "-B" not in words
    ]
    assert len(lists) <= 2, lists
    assert not [words for words in lists if any(word[0].isdigit() for word in words[1:])], (
        "ids cost a connection each"
    )


@pytest.mark.journey
async def test_a_person_starts_the_dashboard_and_looks_around(everyday: PbsPerson) -> None:
    async with dashboard(everyday.program) as screen:
        text = await screen.until("heldjob")
        assert "train-llm" not in text
        screen.type("m")
        await screen.until(lambda text: "train-llm" in text and "bob" in text)
        screen.type("2")
        await screen.until(lambda text: "gpu01[0]" in text and "DIMM replacement" in text)
        screen.type("3")
        await screen.until(lambda text: "workq" in text and "maint" in text)
        screen.type("4")
        await screen.until(lambda text: "walltime1" in text and "timed out" in text)
        screen.type("1/name:direct\r")
        await screen.until(lambda text: "direct" in text and "heldjob" not in text)
        screen.type("d")
        await screen.until("direct.o2")
        screen.type("q")
        screen.type(":quit\r")
        assert await screen.ended() == 0
        assert b"Traceback" not in screen.raw


def test_odd_names_and_values_are_read_and_shown_without_a_control_byte(pbs_cluster: At) -> None:
    program: Program = pbs_cluster("odd").program
    rows = program.rows("jobs")
    names = {row["id"]: row["name"] for row in rows}
    assert names["39.pbs01"] == "0012"
    assert names["42.pbs01"] == "nan"
    shown = program("jobs")
    assert not [byte for byte in shown.stdout if byte < 32 and byte != 10]


async def test_a_recorded_pbs_opens_as_if_it_were_one(tmp_path: Path) -> None:
    case = Path(__file__).parents[2] / "fixtures" / "pbs" / "23.06" / "everyday"
    async with dashboard(Program(home_with(tmp_path / "home")), "replay", str(case)) as screen:
        await screen.until(
            lambda text: "everyday (recorded)" in text and "held by its owner" in text
        )
        screen.type("4")
        await screen.until(lambda text: "walltime1" in text and "timed out" in text)
        screen.type("\x1b:quit\r")
        assert await screen.ended() == 0
