"""Commands that act on PBS jobs, and what the answers mean for each job; the bytes are OpenPBS
23.06's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
from hpcdash.backends.pbs.actions import PbsActions
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.errors import UsageError, without_env
from hpcdash.services.jobs.rows import ids_in_full
from hpcdash.transport.base import CommandResult
from hpcdash.transport.shell import remote_command
from tests.support.records import for_each

OPENPBS, OLD, TORQUE = Dialect.OPENPBS, Dialect.PBS_TEXT, Dialect.TORQUE


def commands(
    verb: str,
    *job_ids: str,
    dialect: Dialect = OPENPBS,
    signal: str = "",
    recipient: str = "",
    changes: Mapping[str, str] | None = None,
) -> tuple[ActionCommand, ...]:
    return PbsActions(dialect).commands(
        ActionRequest(Verb(verb), job_ids, signal, recipient, changes or {})
    )


def lines(made: tuple[ActionCommand, ...]) -> list[str]:
    return [" ".join(without_env(command.argv)) for command in made]


def answered(
    command: ActionCommand, stderr: bytes, status: int, stdout: bytes = b""
) -> dict[str, Any]:
    outcomes = command.read(CommandResult(command.argv, status, stdout, stderr, 0.01))
    assert tuple(outcome.job_id for outcome in outcomes) == command.job_ids
    return {outcome.job_id: (outcome.done, outcome.text) for outcome in outcomes}


# -- what is asked


def test_jobs_tasks_and_arrays_are_cancelled_in_one_command() -> None:
    (command,) = commands(
        "cancel", "12", "0.pbs01", "13[].pbs01", "14[3].pbs01", "15[6-10].pbs01", "12"
    )
    assert lines((command,)) == ["qdel 12 0.pbs01 13[].pbs01 14[3].pbs01 15[6-10].pbs01"]
    assert command.argv[:3] == ("env", "LC_ALL=C", "TZ=UTC")


def test_tasks_with_commas_between_them_are_an_argument_each_as_pbs_takes_no_comma() -> None:
    assert lines(commands("cancel", "12[1,3,5-7].pbs01")) == [
        "qdel 12[1].pbs01 12[3].pbs01 12[5-7].pbs01"
    ]
    assert lines(commands("cancel", "12[1-9:2]")) == ["qdel 12[1-9:2]"]


def test_a_task_is_not_cancelled_a_second_time_with_its_array() -> None:
    (command,) = commands("cancel", "12[].pbs01", "12[3].pbs01", "12[6-10].pbs01")
    assert lines((command,)) == ["qdel 12[].pbs01"]
    assert command.job_ids == ("12[].pbs01", "12[3].pbs01", "12[6-10].pbs01")


@for_each(
    ("verb", "line"),
    [
        ("hold", "qhold 4"),
        ("release", "qrls 4"),
        ("requeue", "qrerun 4"),
        ("suspend", "qsig -s suspend 4"),
        ("resume", "qsig -s resume 4"),
    ],
)
def test_each_verb_has_its_command(verb: str, line: str) -> None:
    assert lines(commands(verb, "4")) == [line]


def test_a_signal_is_named_as_people_name_it_and_sent_to_tasks_too() -> None:
    assert lines(commands("signal", "2", "12[1].pbs01", signal="sigusr1")) == [
        "qsig -s USR1 2 12[1].pbs01"
    ]
    assert lines(commands("signal", "2", signal="10")) == ["qsig -s 10 2"]


@for_each(
    "signal", ["suspend", "resume", "admin-suspend", "FOO", "", "0", "65", "-9", "9 9", "USR1 4"]
)
def test_what_is_no_signal_is_refused_with_those_there_are(signal: str) -> None:
    with pytest.raises(UsageError, match="USR1"):
        commands("signal", "2", signal=signal)


@for_each("recipient", ["batch", "full", "0"])
def test_pbs_signals_no_part_of_a_job(recipient: str) -> None:
    with pytest.raises(UsageError, match="all processes"):
        commands("signal", "2", signal="USR1", recipient=recipient)


@for_each(
    ("verb", "changes", "line"),
    [
        ("hold", {}, "qhold"),
        ("release", {}, "qrls"),
        ("alter", {"time": "1h"}, "qalter -l walltime=01:00:00"),
        ("alter", {"queue": "gpu"}, "qmove gpu"),
        ("alter", {"throttle": "2"}, "qalter -Wmax_run_subjobs=2"),
    ],
)
@for_each("job_id", ["12[3].pbs01", "12[6-7].pbs01"])
def test_what_was_named_is_asked_for_and_pbs_refuses_tasks_itself(
    verb: str, changes: dict[str, str], line: str, job_id: str
) -> None:
    (command,) = commands(verb, job_id, changes=changes)
    assert lines((command,)) == [f"{line} {job_id}"]
    program = line.split()[0].encode()
    assert answered(command, program + b": Invalid request " + job_id.encode() + b"\n", 156) == {
        job_id: (False, "Invalid request (PBS supports this only for whole arrays: use 12[].pbs01)")
    }


def test_a_whole_array_that_is_refused_is_not_told_to_be_named() -> None:
    (command,) = commands("alter", "12[].pbs01", changes={"queue": "gpu"})
    assert answered(command, b"qmove: Invalid request 12[].pbs01\n", 156) == {
        "12[].pbs01": (False, "Invalid request")
    }


def test_several_tasks_are_signalled_one_by_one_as_pbs_may_not_answer_for_a_range() -> None:
    (command,) = commands("signal", "12[2-4].pbs01", signal="USR1")
    assert lines((command,)) == ["qsig -s USR1 12[2].pbs01 12[3].pbs01 12[4].pbs01"]
    refused = b"qsig: Request invalid for state of job 12[3].pbs01\n"
    assert answered(command, refused, 168) == {
        "12[2-4].pbs01": (False, "12[3].pbs01: Request invalid for state of job; done for 2 of 3")
    }
    assert lines(commands("suspend", "12[2-3]")) == ["qsig -s suspend 12[2] 12[3]"]
    assert lines(commands("requeue", "12[2-3]")) == ["qrerun 12[2-3]"]
    with pytest.raises(UsageError, match="At most 1000 at a time"):
        commands("signal", "12[1-2000]", signal="USR1")


# -- a node that does not answer


def test_a_job_whose_node_does_not_answer_may_be_cancelled_by_force() -> None:
    (command,) = commands("cancel", "7.pbs01")
    (outcome,) = command.read(
        CommandResult((), 222, b"", b"qdel: Server could not connect to MOM 7.pbs01\n", 0.1)
    )
    assert (outcome.done, outcome.can_force) == (False, True)
    assert outcome.text.startswith(
        "Server could not connect to MOM (the node does not respond; cancel --force"
    )
    request = ActionRequest(Verb.CANCEL, ("7.pbs01", "8[2].pbs01"), force=True)
    assert lines(PbsActions(OPENPBS).commands(request)) == ["qdel -W force 7.pbs01 8[2].pbs01"]
    assert lines(PbsActions(TORQUE).commands(request)) == ["qdel -p 7.pbs01 8[2].pbs01"]


def test_what_the_server_noted_though_the_node_does_not_answer_is_not_called_refused() -> None:
    for verb, program, changes in (("hold", "qhold", {}), ("alter", "qalter", {"time": "1h"})):
        (command,) = commands(verb, "7.pbs01", changes=changes)
        said = f"{program}: Server could not connect to MOM 7.pbs01\n".encode()
        done, words = answered(command, said, 222)["7.pbs01"]
        assert done is None
        assert words.endswith("(the node does not respond; the server recorded the change)")


# -- what is changed


def test_a_change_is_one_qalter_and_a_queue_a_qmove() -> None:
    changes = {"time": "1-12:00:00", "nice": "100", "queue": "debug", "throttle": "3"}
    assert lines(commands("alter", "14[].pbs01", changes=changes)) == [
        "qalter -l walltime=36:00:00 -p -100 14[].pbs01",
        "qmove debug 14[].pbs01",
        "qalter -Wmax_run_subjobs=3 14[].pbs01",
    ]


def test_a_throttle_is_an_arrays() -> None:
    made = commands("alter", "14[].pbs01", "15", "16[2].pbs01", changes={"throttle": "3"})
    assert lines(made) == ["qalter -Wmax_run_subjobs=3 14[].pbs01 15[] 16[2].pbs01"]
    with pytest.raises(UsageError, match=r"throttle: 12\[3\] is an array task") as told:
        commands("alter", "12[3]", dialect=TORQUE, changes={"throttle": "3"})
    assert told.value.next_step == "Use its array: 12[]"


@for_each(
    ("changes", "words"),
    [
        ({"time": "+1h"}, "does not accept relative changes"),
        ({"time": "-30m"}, "does not accept relative changes"),
        ({"time": "unlimited"}, "does not support unlimited"),
        ({"time": "0"}, "is not a limit"),
        ({"time": "soon"}, "is not a duration"),
        ({"nice": "1025"}, "negated PBS priority"),
        ({"nice": "-1024"}, "negated PBS priority"),
        ({"nice": "x"}, "not a whole number"),
        ({"queue": "a,b"}, "exactly one queue"),
        ({"queue": "--version"}, "is not a valid name"),
        ({"queue": ""}, "is not a valid name"),
        ({"throttle": "0"}, "cannot remove an array's limit"),
        ({"throttle": "-1"}, "cannot remove an array's limit"),
        ({"qos": "high"}, "time, queue, nice, throttle"),
        ({}, "nothing to change"),
    ],
)
def test_what_cannot_be_changed_is_said_before_anything_runs(
    changes: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as told:
        commands("alter", "4", changes=changes)
    assert words in str(told.value)


def test_each_kind_of_pbs_says_what_can_be_changed() -> None:
    assert PbsActions(OPENPBS).alterable == ("time", "queue", "nice", "throttle")
    assert PbsActions(OLD).alterable == ("time", "queue", "nice")
    with pytest.raises(UsageError, match="throttle"):
        commands("alter", "4[]", dialect=OLD, changes={"throttle": "3"})


# -- Torque


def test_torque_takes_some_tasks_of_an_array_by_an_option() -> None:
    ids = ("12[6-10,12].srv", "13.srv", "14[3].srv")
    assert lines(commands("cancel", *ids, dialect=TORQUE)) == [
        "qdel -t 6-10,12 12[].srv",
        "qdel 13.srv 14[3].srv",
    ]
    assert lines(commands("hold", ids[0], dialect=TORQUE)) == ["qhold -t 6-10,12 12[].srv"]
    assert lines(commands("alter", "12[].srv", dialect=TORQUE, changes={"throttle": "5"})) == [
        "qalter -t %5 12[].srv"
    ]


def test_torque_signals_tasks_one_by_one() -> None:
    assert lines(commands("signal", "12[6-7].srv", dialect=TORQUE, signal="USR1")) == [
        "qsig -s USR1 12[6].srv 12[7].srv"
    ]
    with pytest.raises(UsageError, match="2000 tasks"):
        commands("requeue", "12[1-2000].srv", dialect=TORQUE)


def test_torques_words_are_read() -> None:
    (command,) = commands("cancel", "12.srv", "13.srv", "14.srv", dialect=TORQUE)
    said = (
        b"qdel: Unknown Job Id Error 12.srv\n"
        b"qdel: Request invalid for state of job MSG=invalid state for job - COMPLETE 13.srv\n"
    )
    assert answered(command, said, 170) == {
        "12.srv": (False, "Unknown Job Id Error"),
        "13.srv": (False, "Request invalid for state of job MSG=invalid state for job - COMPLETE"),
        "14.srv": (True, ""),
    }


# -- many jobs


@for_each("verb", ["hold", "release", "requeue", "suspend"])
def test_many_jobs_leave_ports_to_others(verb: str) -> None:
    made = commands(verb, *(f"{number}.pbs01" for number in range(1000)))
    assert max(len(command.job_ids) for command in made) <= 50
    assert (made[0].pause_seconds, len(made)) == (0, 20)
    began, ends = 0.0, []
    for command in made:
        began += command.pause_seconds
        ends.append((began, len(command.job_ids)))
    most = max(sum(jobs for at, jobs in ends if start <= at < start + 60) for start, _ in ends)
    assert most <= 250


def test_few_jobs_wait_for_nothing() -> None:
    made = commands("hold", *(f"{number}.pbs01" for number in range(200)))
    assert [command.pause_seconds for command in made] == [0, 0, 0, 0]


def test_qdel_takes_hundreds_at_once_and_only_an_old_one_is_slowed() -> None:
    made = commands("cancel", *(f"{number}.pbs01" for number in range(1000)))
    assert [len(command.job_ids) for command in made] == [200] * 5
    assert all(command.pause_seconds == 0 for command in made)
    assert without_env(made[0].argv)[0] == "qdel"
    assert without_env(made[1].argv)[:2] == ("sh", "-c")
    assert {without_env(command.argv)[2] for command in made[1:]} == {without_env(made[1].argv)[2]}
    (first, *_) = commands("cancel", *(f"{number}.srv" for number in range(1000)), dialect=OLD)
    assert len(first.job_ids) == 50


# -- what the answers mean


@for_each(
    ("verb", "job_id", "stderr", "status", "done", "words"),
    [
        ("cancel", "25.pbs01", b"", 0, True, ""),
        ("cancel", "0.pbs01", b"", 0, True, ""),
        ("cancel", "12[5-7].pbs01", b"", 0, True, ""),
        ("cancel", "17.pbs01", b"qdel: Job has finished 17.pbs01\n", 35, False, "Job has finished"),
        (
            "cancel",
            "2.pbs01",
            b"qdel: Unauthorized Request  2.pbs01\n",
            159,
            False,
            "Unauthorized Request",
        ),
        (
            "cancel",
            "12[1].pbs01",
            b"qdel: Request invalid for finished array subjob 12[1].pbs01\n",
            55,
            False,
            "Request invalid for finished array subjob",
        ),
        ("cancel", "99999", b"qdel: Unknown Job Id 99999\n", 153, False, "Unknown Job Id"),
        (
            "cancel",
            "99999.pbs01",
            b"qdel: Unknown Job Id 99999.pbs01\n",
            153,
            False,
            "Unknown Job Id",
        ),
        ("cancel", "20217", b"qdel: Unknown Job Id 20217\n", 153, False, "Unknown Job Id"),
        (
            "cancel",
            "1.nosuchserver",
            b"qdel: illegally formed job identifier: 1.nosuchserver\n",
            1,
            False,
            "illegally formed job identifier",
        ),
        ("cancel", "99999[]", b"qdel: Unknown Job Id 99999[]\n", 153, False, "Unknown Job Id"),
        (
            "cancel",
            "12[999]",
            b"qdel: Invalid request 12[999].pbs01\n",
            156,
            False,
            "Invalid request",
        ),
        ("hold", "4", b"", 0, True, ""),
        (
            "hold",
            "4",
            b"qhold: Unauthorized Request  4.pbs01\n",
            159,
            False,
            "Unauthorized Request",
        ),
        (
            "release",
            "6",
            b"qrls: Unauthorized Request  6.pbs01\n",
            159,
            False,
            "Unauthorized Request (not your job or not your hold; ask the site's operators)",
        ),
        ("requeue", "22", b"", 0, True, ""),
        (
            "requeue",
            "34.pbs01",
            b"qrerun: Unauthorized Request  34.pbs01\n",
            159,
            False,
            "Unauthorized Request (only operators can requeue jobs)",
        ),
        (
            "requeue",
            "6",
            b"qrerun: Request invalid for state of job 6.pbs01\n",
            168,
            False,
            "Request invalid for state of job",
        ),
        ("suspend", "23.pbs01", b"", 0, True, ""),
        (
            "suspend",
            "23.pbs01",
            b"qsig: Unauthorized Request  23.pbs01\n",
            159,
            False,
            "Unauthorized Request (only operators can suspend jobs)",
        ),
        (
            "resume",
            "23",
            b"qsig: Unauthorized Request  23.pbs01\n",
            159,
            False,
            "Unauthorized Request (only operators can resume jobs)",
        ),
        ("signal", "1.pbs01", b"", 0, True, ""),
        (
            "signal",
            "2",
            b"qsig: Unauthorized Request  2.pbs01\n",
            159,
            False,
            "Unauthorized Request",
        ),
        (
            "signal",
            "2",
            b"qsig: Unknown/illegal signal name 2.pbs01\n",
            165,
            False,
            "Unknown/illegal signal name",
        ),
        (
            "signal",
            "20217[5].pbs01",
            b"qsig: Request invalid for state of job 20217[5].pbs01\n",
            168,
            False,
            "Request invalid for state of job",
        ),
        ("signal", "99999", b"qsig: Unknown Job Id 99999.pbs01\n", 153, False, "Unknown Job Id"),
        (
            "alter",
            "34.pbs01",
            b"qalter: Cannot modify attribute while job running  Resource_List.select 34.pbs01\n",
            167,
            False,
            "Cannot modify attribute while job running Resource_List.select",
        ),
        (
            "alter",
            "34.pbs01",
            b"qalter: Unauthorized Request  34.pbs01\n",
            159,
            False,
            "Unauthorized Request (only operators can raise a running job's limit or change other "
            "users' jobs)",
        ),
        (
            "cancel",
            "2",
            b"Connection refused\nCouldn't connect to cluster: pbs01\n",
            162,
            False,
            "Couldn't connect to cluster: pbs01",
        ),
        *(
            (
                verb,
                "2",
                (
                    f"Connection refused\n{program}: cannot connect to server pbs01 (errno=15010)\n"
                ).encode(),
                162,
                False,
                "cannot connect to server pbs01 (errno=15010)",
            )
            for verb, program in (
                ("hold", "qhold"),
                ("release", "qrls"),
                ("requeue", "qrerun"),
                ("signal", "qsig"),
                ("alter", "qalter"),
            )
        ),
        # A server that hangs, and a command that somebody ended.
        ("hold", "2", b"", 124, None, "stopped before it answered"),
        ("cancel", "2", b"", 137, None, "stopped before it answered"),
        ("cancel", "2", b"", 143, None, "stopped before it answered"),
        ("cancel", "2", b"", 255, None, "stopped before it answered"),
        ("hold", "2", b"qhold: End of File 2.pbs01\n", 150, None, "End of File"),
        (
            "hold",
            "2",
            b"qhold: Server returned error 15031 for job 2.pbs01\n",
            183,
            None,
            "Server returned error 15031",
        ),
        ("hold", "2", b"sh: qhold: not found\n", 127, False, "qhold: command not found"),
        ("hold", "15007", b"qhold: Error 15007\n", 159, False, "Error 15007"),
    ],
)
def test_what_was_said_of_one_job(
    verb: str, job_id: str, stderr: bytes, status: int, done: bool | None, words: str
) -> None:
    (command,) = commands(
        verb, job_id, signal="USR1", changes={"time": "1h"} if verb == "alter" else {}
    )
    assert answered(command, stderr, status) == {job_id: (done, words)}


def test_several_ids_have_one_status_and_a_line_for_each_that_failed() -> None:
    (command,) = commands("cancel", "99999", "3", "17", "12[8]")
    said = (
        b"qdel: Unknown Job Id 99999\nqdel: Unauthorized Request  3.pbs01\nqdel: Job has "
        b"finished 17.pbs01\n"
    )
    assert answered(command, said, 35) == {
        "99999": (False, "Unknown Job Id"),
        "3": (False, "Unauthorized Request"),
        "17": (False, "Job has finished"),
        "12[8]": (True, ""),
    }


def test_a_queue_that_takes_no_jobs_refuses_each() -> None:
    (command,) = commands("alter", "4", "33.pbs01", changes={"queue": "maint"})
    said = b"qmove: Queue is not enabled 4.pbs01\nqmove: Unknown queue 33.pbs01\n"
    assert answered(command, said, 170) == {
        "4": (False, "Queue is not enabled"),
        "33.pbs01": (False, "Unknown queue"),
    }
    assert answered(command, b"qmove: Queue type not set for queue 'maint'\n", 0)["4"][0] is False


def test_an_array_that_has_begun_stays_in_its_queue() -> None:
    (command,) = commands("alter", "20217[].pbs01", changes={"queue": "debug"})
    said = b"qmove: Request invalid for state of job 20217[].pbs01\n"
    assert answered(command, said, 168) == {
        "20217[].pbs01": (
            False,
            "Request invalid for state of job (the job has started and cannot change queue)",
        )
    }


def test_a_range_of_tasks_of_which_one_is_refused_says_which() -> None:
    (command,) = commands("cancel", "12[5-7].pbs01", "12[9].pbs01")
    said = b"qdel: Request invalid for state of job 12[6].pbs01\n"
    assert answered(command, said, 168) == {
        "12[5-7].pbs01": (False, "12[6].pbs01: Request invalid for state of job"),
        "12[9].pbs01": (True, ""),
    }


def test_where_ports_run_out_midway_it_is_not_known_which_jobs_were_held() -> None:
    (command,) = commands("hold", "1.pbs01", "2.pbs01", "3.pbs01")
    line = b"qhold: cannot connect to server pbs01 (errno=15010)\n"
    told = answered(command, line * 2, 162)
    assert {done for done, _ in told.values()} == {None}
    assert "for 2 of 3 jobs" in told["1.pbs01"][1]
    assert {done for done, _ in answered(command, line * 3, 162).values()} == {False}


def test_a_value_that_qalter_refuses_at_once_changed_nothing() -> None:
    (command,) = commands("alter", "1.pbs01", "2.pbs01", changes={"nice": "5"})
    said = (
        b"qalter: illegal -p value\nusage: qalter [-a date_time]\n\t[-P project_name] "
        b"job_identifier...\n"
    )
    assert answered(command, said, 2) == {
        "1.pbs01": (False, "illegal -p value"),
        "2.pbs01": (False, "illegal -p value"),
    }


def test_a_server_named_with_its_domain_is_the_same() -> None:
    (command,) = commands("cancel", "12.pbs01", "13.pbs01")
    said = b"qdel: Unknown Job Id 12.pbs01.example.org\n"
    assert answered(command, said, 153) == {
        "12.pbs01": (False, "Unknown Job Id"),
        "13.pbs01": (True, ""),
    }


# -- any request, any answer

IDS = st.one_of(
    st.integers(0, 10**12 - 1).map(str),
    st.builds(
        "{}{}{}".format,
        st.integers(0, 40),
        st.sampled_from(["", "[]", "[3]", "[6-10]", "[1,3,5-9]", "[1-9:2]", "_4", "_[4-6%2]"]),
        st.sampled_from(["", ".pbs01", ".pbs01.example.org"]),
    ),
    st.text(max_size=12),
    st.sampled_from(
        ["--version", "-h", "12 -x", "12;ls", "$(x)", "12.-a", "all", "12\n13", "@srv", "12@srv"]
    ),
)
REQUESTS = st.builds(
    ActionRequest,
    st.sampled_from([verb for verb in Verb if verb is not Verb.SUBMIT]),
    st.lists(IDS, min_size=1, max_size=6).map(tuple),
    st.sampled_from(["USR1", "9"]),
    st.just(""),
    st.sampled_from(
        [
            {"time": "1h"},
            {"nice": "5"},
            {"queue": "q"},
            {"throttle": "3"},
            {"time": "2h", "queue": "q"},
        ]
    ),
)
SAID = st.sampled_from(
    [
        b"qdel: Unknown Job Id 12\n",
        b"qhold: Invalid request 3[3].pbs01\n",
        b"qhold: cannot connect to server pbs01 (errno=15010)\n",
        b"qsig: End of File 7.pbs01\n",
        b"usage: qalter\n",
        b"\xff\xfe [",
    ]
)

# What a request of these is made of, but for its ids; 9 is both.
OPTIONS = (
    "qdel qhold qrls qrerun qsig qalter qmove -s USR1 suspend resume -l walltime=01:00:00 "
    "walltime=02:00:00 -p -5 q"
    " -Wmax_run_subjobs=3 -t %3 -h u"
)
OPTION_WORDS = frozenset(OPTIONS.split())
ID_WORD = re.compile(r"[0-9]+(\[[0-9]*(-[0-9]+(:[0-9]+)?)?\])?(\.[A-Za-z0-9][A-Za-z0-9._-]*)?")


@given(
    st.sampled_from(Dialect),
    REQUESTS,
    st.binary(max_size=60),
    st.lists(SAID, max_size=4),
    st.integers(0, 255),
)
def test_every_request_gives_each_job_one_outcome_and_no_id_becomes_an_option(
    dialect: Dialect, request: ActionRequest, noise: bytes, said: list[bytes], status: int
) -> None:
    try:
        made = PbsActions(dialect).commands(request)
    except UsageError:
        return
    heard: set[str] = set()
    for command in made:
        assert remote_command(command.argv, limit_seconds=command.limit_seconds)
        words = without_env(command.argv)
        after_options = (
            words[3:] if words[0] == "sh" else [word for word in words if word not in OPTION_WORDS]
        )
        after_t = words[words.index("-t") + 1] if "-t" in words else ""
        for word in after_options:
            assert word == "qdel" or word == after_t or ID_WORD.fullmatch(word)
        outcomes = command.read(CommandResult(command.argv, status, noise, b"".join(said), 0.01))
        assert tuple(outcome.job_id for outcome in outcomes) == command.job_ids
        heard.update(command.job_ids)
    assert heard == set(request.job_ids)


def test_what_is_no_job_id_is_refused_with_the_place() -> None:
    for text in ("--version", "-x", "12;ls", "all", "12@srv", "12[", "12+1"):
        with pytest.raises(UsageError, match=r"is not a (PBS )?job ID"):
            commands("cancel", "4", text)


# -- which rows ids mean


def rows(*records: tuple[str, str | None, str, int]) -> list[dict[str, Any]]:
    made = [
        {
            "id": job_id,
            "array_id": array_id,
            "array_task": job_id.partition("[")[2].partition("]")[0] or None,
            "state": state,
            "_number": int(job_id.split(".")[0].split("[")[0].split("_")[0].split("+")[0]),
            "_tasks": tasks,
        }
        for job_id, array_id, state, tasks in records
    ]
    random.Random(4).shuffle(made)
    return made


ARRAY = rows(
    ("12[3].pbs01", "12[].pbs01", "running", 1),
    ("12[6-10].pbs01", "12[].pbs01", "pending", 5),
    ("15.pbs01", None, "running", 1),
)


def test_a_bare_number_is_the_job_or_the_array_that_the_queue_has() -> None:
    assert ids_in_full(["12", "15", "12[3]", "99", "12[7]"], ARRAY) == (
        "12[].pbs01",
        "15.pbs01",
        "12[3].pbs01",
        "99",
        "12[7].pbs01",
    )


def test_slurms_ids_stay_as_they_are_typed() -> None:
    slurm = rows(
        ("65+0", None, "running", 1), ("65+1", None, "running", 1), ("12_3", "12", "running", 1)
    )
    assert ids_in_full(["65", "12", "12_3", "12_[3-5]"], slurm) == ("65", "12", "12_3", "12_[3-5]")
