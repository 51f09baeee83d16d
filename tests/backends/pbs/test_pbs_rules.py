"""What a job's priority is made of and what a queue allows, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.rules import PbsPolicy, priority_query
from hpcdash.backends.queries import Query
from hpcdash.domain.offers import QueueLimits
from hpcdash.errors import CommandError, NoSuchJob, SchedulerRefused, UnreadableOutput
from hpcdash.transport.base import CommandResult

_DEBUG = {
    "queue_type": "Execution",
    "Priority": "150",
    "max_queued": "[u:PBS_GENERIC=3]",
    "resources_max.ncpus": "4",
    "resources_max.mem": "64gb",
    "resources_max.walltime": "00:30:00",
    "resources_min.walltime": "00:01:00",
    "resources_default.walltime": "00:10:00",
    "enabled": "True",
    "started": "True",
}


def asked(query: Query[Mapping[str, str]] | None) -> Query[Mapping[str, str]]:
    assert query is not None
    return query


def find_token(query: Query[Any]) -> str:
    return query.argv[query.argv.index("-D") + 1]


def answered(
    query: Query[Mapping[str, str]], head: str, attributes: Mapping[str, str]
) -> Mapping[str, str]:
    token = find_token(query)
    line = token.join((head, *(f"{name}={value}" for name, value in attributes.items())))
    return query.parse(CommandResult(query.argv, 0, f"{line}\n".encode(), b"", 0.0))


def rules(attributes: Mapping[str, str]) -> Mapping[str, str]:
    return answered(
        asked(PbsPolicy(Dialect.OPENPBS).queue_rules("debug")), "Queue: debug", attributes
    )


def priority(attributes: Mapping[str, str]) -> Mapping[str, str]:
    return answered(
        asked(priority_query(Dialect.OPENPBS, "12.pbs01")), "Job Id: 12.pbs01", attributes
    )


@pytest.mark.parametrize("dialect", [Dialect.OPENPBS, Dialect.PBS_TEXT])
def test_what_queues_give_and_allow_is_read_for_all_of_them_at_once(dialect: Dialect) -> None:
    query = PbsPolicy(dialect).queue_limits()
    assert query is not None
    records = {
        "Queue: gpu": {
            "queue_type": "Execution",
            "default_chunk.ncpus": "8",
            "resources_max.ncpus": "64",
        },
        "Queue: nogpu": {"queue_type": "Execution", "resources_max.ngpus": "0"},
        "Queue: route": {"queue_type": "Route", "route_destinations": "gpu,nogpu@pbs01"},
        "Server: pbs01": {
            "server_state": "Active",
            "default_chunk.ncpus": "1",
            "resources_max.ncpus": "128",
        },
    }
    if dialect is Dialect.OPENPBS:
        token = query.argv[-1]
        lines = [
            token.join((head, *(f"{name}={value}" for name, value in said.items())))
            for head, said in records.items()
        ]
    else:
        lines = [
            "\n".join((head, *(f"    {name} = {value}" for name, value in said.items()), ""))
            for head, said in records.items()
        ]
    found = query.parse(CommandResult(query.argv, 0, "\n".join((*lines, "")).encode(), b"", 0.0))
    assert found == {
        "gpu": QueueLimits(chunk_cpus=8, most_cpus=64),
        "nogpu": QueueLimits(most_gpus=0),
        "route": QueueLimits(destinations=("gpu", "nogpu")),
        "": QueueLimits(chunk_cpus=1, most_cpus=128),
    }
    with pytest.raises(CommandError):
        query.parse(
            CommandResult(
                query.argv, 255, b"", b"qstat: cannot connect to server pbs01 (errno=15010)\n", 0.0
            )
        )


def test_where_there_are_no_chunks_no_queue_is_asked_for_them() -> None:
    assert PbsPolicy(Dialect.TORQUE).queue_limits() is None


def test_a_queues_limits_are_told() -> None:
    assert rules(_DEBUG) == {
        "longest time": "30:00",
        "limit per job": "4 CPUs, 64G of memory",
        "shortest time": "1:00",
        "default time limit": "10:00",
        "jobs per user": "3",
        "queue priority": "150 (its jobs may preempt other jobs)",
    }


def test_limits_are_told_by_whose_they_are() -> None:
    assert rules(
        {
            "max_run": '[u:PBS_GENERIC=3],[u:alice=5],[g:"m '
            'l"=10],[p:PBS_GENERIC=7],[o:PBS_ALL=100]',
            "max_run_res.ngpus": "[u:PBS_GENERIC=4]",
            "max_run_res.mem": "[u:PBS_GENERIC=64gb]",
        }
    ) == {
        "running jobs per user": "3",
        "running jobs of alice": "5",
        "running jobs of group m l": "10",
        "running jobs per project": "7",
        "total running jobs": "100",
        "running limit per user": "4 GPUs, 64G of memory",
    }


def test_a_queue_that_is_closed_or_for_some_says_so() -> None:
    assert rules({"enabled": "False", "started": "False"}) == {
        "accepts jobs": "not now",
        "starts jobs": "not now",
    }
    assert rules({"acl_user_enable": "True", "acl_users": "bob,carl", "acl_groups": "ml"}) == {
        "only for users": "bob, carl"
    }
    assert rules({"queue_type": "Route", "route_destinations": "workq,gpu"}) == {
        "routes jobs to": "workq, gpu"
    }
    assert rules({"queue_type": "Execution", "enabled": "True", "started": "True"}) == {}


def test_torques_limits_are_its_own_and_in_text() -> None:
    query = asked(PbsPolicy(Dialect.TORQUE).queue_rules("batch"))
    assert query.argv[-4:] == ("qstat", "-Q", "-f", "batch")
    text = (
        b"Queue: batch\n    queue_type = Execution\n    max_user_run = 8\n    max_user_queuable = "
        b"20\n"
        b"    resources_max.walltime = 72:00:00\n    enabled = True\n    started = True\n\n"
    )
    assert query.parse(CommandResult(query.argv, 0, text, b"", 0.0)) == {
        "longest time": "3d00h",
        "running jobs per user": "8",
        "jobs per user": "20",
    }


def test_why_a_waiting_job_is_where_it_is() -> None:
    assert priority(
        {
            "Priority": "100",
            "eligible_time": "01:10:51",
            "accrue_type": "1",
            "run_count": "3",
            "estimated.exec_vnode": "(cn01:ncpus=4)+(gpu01[0]:ncpus=1)",
        }
    ) == {
        "requested": "+100 (qsub -p)",
        "counted wait": "for 1:10:51",
        "wait": "not counted now: the owner is at a limit, or the job cannot start yet",
        "may run on": "cn01, gpu01",
        "started": "3 times",
    }


def test_no_words_of_a_priority_look_like_points() -> None:
    # What begins with a number is shown with its share of a sum.
    for words in priority(
        {"Priority": "7", "eligible_time": "10:00:00", "run_count": "1"}
    ).values():
        assert not words[0].isdigit()


def test_what_waits_of_an_array_is_asked_for_as_its_array() -> None:
    assert asked(priority_query(Dialect.OPENPBS, "12[6-10].pbs01")).argv[-1] == "12[].pbs01"
    assert asked(priority_query(Dialect.OPENPBS, "12[6].pbs01")).argv[-1] == "12[6].pbs01"


def test_each_question_has_a_token_of_its_own() -> None:
    assert find_token(asked(priority_query(Dialect.OPENPBS, "1.a"))) != find_token(
        asked(priority_query(Dialect.OPENPBS, "1.a"))
    )


def test_what_is_hidden_is_not_told_and_what_fails_is_an_error() -> None:
    query = asked(priority_query(Dialect.OPENPBS, "12.pbs01"))
    assert query.parse(CommandResult(query.argv, 0, b"", b"", 0.0)) == {}
    with pytest.raises(NoSuchJob):
        query.parse(CommandResult(query.argv, 153, b"", b"qstat: Unknown Job Id 12.pbs01\n", 0.0))
    with pytest.raises(UnreadableOutput, match="not a list of jobs"):
        query.parse(CommandResult(query.argv, 0, b"Welcome!\n", b"", 0.0))
    rules = asked(PbsPolicy(Dialect.OPENPBS).queue_rules("nosuch"))
    with pytest.raises(SchedulerRefused) as raised:
        rules.parse(
            CommandResult(rules.argv, 170, b"", b"qstat: Unknown queue destination nosuch\n", 0.0)
        )
    assert "command: qstat -Q -f nosuch" in str(raised.value)


@given(
    st.sampled_from(list(Dialect)), st.binary(max_size=200), st.integers(0, 300), st.integers(0, 2)
)
def test_what_was_cut_or_garbled_is_read_or_an_error(
    dialect: Dialect, noise: bytes, cut: int, status: int
) -> None:
    query = PbsPolicy(dialect).queue_rules("debug")
    if query is None:
        return
    token = find_token(query).encode() if dialect is Dialect.OPENPBS else b"\n    "
    whole = (
        b"Queue: debug"
        + b"".join(token + f"{name}={value}".encode() for name, value in _DEBUG.items())
        + b"\n"
    )
    for stdout in (whole[:cut] + noise, whole[:cut] + b"\n", noise + whole):
        try:
            words = query.parse(CommandResult(query.argv, status, stdout, noise, 0.0))
        except CommandError:
            continue
        assert all(value for value in words.values())
