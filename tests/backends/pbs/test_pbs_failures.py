"""How PBS fails, in the words that OpenPBS 23.06 and others say, and what a person is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.dialects import pbs
from hpcdash.backends.pbs.errors import failure, has_no_history, require_success
from hpcdash.backends.queries import unreadable
from hpcdash.errors import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    AccountingUnavailable,
    CommandError,
    CommandMissing,
    CommandTimedOut,
    ControllerDown,
    NoConfiguration,
    NoSuchJob,
    SchedulerRefused,
)
from hpcdash.transport.base import CommandResult
from tests.support.records import for_each

_USAGE = "usage: qsub [-a date_time] [-A account_string] [-c interval]\n       qsub --version\n"
# (command, exit status, its own words, what that is, words of the message)
HEARD = [
    ("qstat", 153, "qstat: Unknown Job Id 99999.pbs01", NoSuchJob, "no longer knows"),
    ("qdel", 153, "qdel: Unknown Job Id 99999[]", NoSuchJob, "no longer knows"),
    (
        "qstat",
        1,
        "qstat: illegally formed job identifier: 1.nosuchserver",
        NoSuchJob,
        "no longer knows",
    ),
    (
        "qstat",
        35,
        "qstat: 17.pbs01 Job has finished, use -x or -H to obtain historical job information",
        NoSuchJob,
        "has ended",
    ),
    ("qdel", 35, "qdel: Job has finished 17.pbs01", NoSuchJob, "has ended"),
    (
        "qdel",
        55,
        "qdel: Request invalid for finished array subjob 12[1].pbs01",
        NoSuchJob,
        "has ended",
    ),
    ("qdel", 159, "qdel: Unauthorized Request  2.pbs01", SchedulerRefused, "denied permission"),
    ("qsub", 159, "qsub: Unauthorized Request ", SchedulerRefused, "denied permission"),
    (
        "qsig",
        168,
        "qsig: Request invalid for state of job 4.pbs01",
        SchedulerRefused,
        "current state",
    ),
    (
        "qalter",
        167,
        "qalter: Cannot modify attribute while job running  Resource_List.select 34.pbs01",
        SchedulerRefused,
        "current state",
    ),
    ("qhold", 156, "qhold: Invalid request 20217[3].pbs01", SchedulerRefused, "for these jobs"),
    ("qstat", 170, "qstat: Unknown queue destination nosuchq", SchedulerRefused, "no such queue"),
    ("qsub", 173, "qsub: Queue is not enabled", SchedulerRefused, "not accepting jobs"),
    (
        "qsub",
        188,
        "qsub: Job violates queue and/or server resource limits",
        SchedulerRefused,
        "exceeds the limits of the queue",
    ),
    (
        "qsub",
        38,
        "qsub: would exceed queue generic's per-user limit",
        SchedulerRefused,
        "your limit in this queue",
    ),
    (
        "qsub",
        3,
        "qsub: Array job exceeds server or queue size limit",
        SchedulerRefused,
        "exceeds the limits",
    ),
    ("qsub", 187, "qsub: Unknown resource: foo", SchedulerRefused, "no such resource"),
    (
        "qsub",
        166,
        "qsub: Illegal attribute or resource value Resource_List.walltime",
        SchedulerRefused,
        "cannot parse a value",
    ),
    ("qsub", 241, "qsub: node(s) specification error", SchedulerRefused, "cannot parse a value"),
    (
        "qsub",
        5,
        'qsub: "-lresource=" cannot be used with "select" or "place", resource is: ncpus',
        SchedulerRefused,
        "cannot parse a value",
    ),
    ("qsub", 2, f"qsub: illegal -J value\n{_USAGE}", SchedulerRefused, "rejected an option"),
    ("qsub", 2, f"qsub: invalid option -- '-'\n{_USAGE}", SchedulerRefused, "rejected an option"),
    (
        "qstat",
        2,
        "qstat: conflicting options.\nusage: \nqstat [-f] [-J]",
        SchedulerRefused,
        "rejected an option",
    ),
    ("qsub", 1, "qsub: script contains cr, lf", SchedulerRefused, "Windows"),
    ("qsig", 165, "qsig: Unknown/illegal signal name 2.pbs01", SchedulerRefused, "no such signal"),
    ("pbsnodes", 1, "Node: nosuch,  Error: Unknown node ", SchedulerRefused, "no such node"),
    (
        "qstat",
        255,
        "Connection refused\nqstat: cannot connect to server pbs01 (errno=15010)",
        ControllerDown,
        "does not respond",
    ),
    (
        "qdel",
        162,
        "Connection refused\nCouldn't connect to cluster: pbs01",
        ControllerDown,
        "does not respond",
    ),
    (
        "pbsnodes",
        1,
        "No route to host\npbsnodes: cannot connect to server pbs01, error=15010",
        ControllerDown,
        "does not respond",
    ),
    (
        "qstat",
        255,
        "pbs_iff: cannot connect to host\npbs_iff: cannot connect to host\nauth: error returned: "
        "-1\n"
        "auth: Unable to authenticate connection (pbs01:15001)\nqstat: cannot connect to server "
        "pbs01 (errno=-1)",
        ControllerDown,
        "cannot authenticate",
    ),
    (
        "qstat",
        255,
        "Unknown Host.\nqstat: cannot connect to server pbs01 (errno=15008)",
        ControllerDown,
        "cannot resolve the configured",
    ),
    (
        "qstat",
        1,
        "pbsconf error: pbs conf variables not found:  PBS_HOME PBS_EXEC \nqstat: cannot connect "
        "to server  (errno=0)",
        NoConfiguration,
        "no PBS configuration",
    ),
    (
        "qstat",
        36,
        "qstat: PBS is not configured to maintain job history 17.pbs01",
        AccountingUnavailable,
        "does not keep job history",
    ),
    (
        "qstat",
        153,
        "qstat: PBS is not configured to maintain job history 17.pbs01\nqstat: Unknown Job Id "
        "17.pbs01",
        NoSuchJob,
        "no longer knows",
    ),
    ("qstat", 127, "env: ‘qstat’: No such file or directory", CommandMissing, "not on the PATH"),
    # Torque.
    ("qstat", 153, "qstat: Unknown Job Id Error 12.trq", NoSuchJob, "no longer knows"),
    (
        "qstat",
        1,
        "Cannot connect to default server host 'trq' - check pbs_server daemon and/or trqauthd.\n"
        "qstat: cannot connect to server trq (errno=111) Connection refused",
        ControllerDown,
        "does not respond",
    ),
    (
        "qstat",
        1,
        "socket_connect_unix failed: 15137\n"
        "qstat: cannot connect to server (null) (errno=15137) could not connect to trqauthd",
        ControllerDown,
        "cannot authenticate",
    ),
    (
        "qstat",
        1,
        "qstat: cannot connect to server trq (errno=15007) Unauthorized Request",
        ControllerDown,
        "cannot authenticate",
    ),
]


def said(command: str, status: int, words: str) -> CommandResult:
    return CommandResult(pbs(command, "-f"), status, b"", words.encode(), 0.0)


@for_each(("command", "status", "words", "kind", "message"), HEARD)
def test_what_pbs_was_heard_to_say(
    command: str, status: int, words: str, kind: type[CommandError], message: str
) -> None:
    error = failure(said(command, status, words))
    assert type(error) is kind
    assert message in error.message
    assert error.next_step
    assert "{name}" not in f"{error.message}{error.next_step}"
    assert (error.status, error.output) == (status, words.strip())
    unreachable = issubclass(kind, (ControllerDown, CommandMissing))
    assert error.exit_status == (EXIT_UNREACHABLE if unreachable else EXIT_REFUSED)


@for_each(
    ("status", "kind"),
    [
        (153, NoSuchJob),
        (35, NoSuchJob),
        (159, SchedulerRefused),
        (162, ControllerDown),
        (255, ControllerDown),
        (36, AccountingUnavailable),
        (124, CommandTimedOut),
        (1, SchedulerRefused),
    ],
)
def test_where_there_are_no_words_the_exit_status_tells(
    status: int, kind: type[CommandError]
) -> None:
    assert type(failure(said("qstat", status, ""))) is kind


def test_words_tell_more_than_the_exit_status() -> None:
    # Torque's 15018 is a bad state, and 15020 an unknown queue.
    assert (
        "current state"
        in failure(said("qsig", 170, "qsig: Request invalid for state of job 4.trq")).message
    )
    assert type(failure(said("qstat", 255, "Undefined subroutine called"))) is SchedulerRefused


def test_what_a_job_says_of_itself_is_no_message_of_pbs() -> None:
    stdout = b"Job Id: 1.pbs01\n    comment = Unknown Job Id 2.pbs01, Connection refused\n"
    assert type(failure(CommandResult(pbs("qstat"), 1, stdout, b"", 0.0))) is SchedulerRefused
    assert (
        type(failure(CommandResult(pbs("qstat"), 1, stdout, b"Connection refused\n", 0.0)))
        is ControllerDown
    )
    assert (
        type(failure(CommandResult(pbs("qstat"), 1, b"qstat: Unknown Job Id 2.pbs01\n", b"", 0.0)))
        is NoSuchJob
    )


def test_a_server_that_hangs_is_no_refusal() -> None:
    error = failure(CommandResult(pbs("timeout", "10", "qstat"), 124, b"", b"", 10.0), ("qstat",))
    assert type(error) is CommandTimedOut
    assert error.exit_status == EXIT_UNREACHABLE


def test_history_that_is_off_is_told_though_qstat_ends_well() -> None:
    off = CommandResult(
        pbs("qstat", "-x"), 0, b"", b"qstat: PBS is not configured to maintain job history \n", 0.0
    )
    require_success(off)
    assert has_no_history(off)
    assert type(failure(off)) is AccountingUnavailable
    assert not has_no_history(CommandResult(pbs("qstat", "-x"), 0, b"", b"", 0.0))


def test_where_a_script_ran_the_command_is_the_one_a_person_knows() -> None:
    answer = CommandResult(
        pbs("sh", "-c", "qstat -f | sed …", "sh"), 127, b"", b"sh: 1: qstat: not found", 0.0
    )
    error = failure(answer, ("qstat", "-f"))
    assert error.message == "qstat is not on the PATH here"
    assert "command: qstat -f" in error.evidence
    assert "sed" not in str(error)


def test_what_was_cut_at_our_cap_is_no_failure() -> None:
    require_success(
        CommandResult(pbs("qstat"), 141, b"Job Id: 1.pbs01\n", b"", 0.0, truncated=True)
    )
    with pytest.raises(CommandError):
        require_success(CommandResult(pbs("qstat"), 141, b"", b"", 0.0))


def test_what_is_no_list_says_what_it_printed() -> None:
    error = unreadable(
        CommandResult(pbs("sh", "-c", "…"), 0, b"Welcome to juno!\n", b"", 0.0),
        "jobs",
        ("qstat", "-f"),
    )
    assert error.message == "qstat printed something that is not a list of jobs"
    assert "Welcome to juno!" in str(error)


@given(st.binary(max_size=300), st.integers(-15, 255))
def test_no_words_are_beyond_it(words: bytes, status: int) -> None:
    error = failure(CommandResult(("sh",), status, b"", words, 0.0), ("qstat",))
    assert isinstance(error, CommandError)
    assert error.message
