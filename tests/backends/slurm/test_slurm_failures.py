"""How Slurm fails, in the words that Slurm 22.05 was heard to say, and what a person is told to
do.
"""

from __future__ import annotations

from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure
from hpcdash.errors import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    AccountingUnavailable,
    CommandError,
    CommandMissing,
    ControllerDown,
    NoConfiguration,
    NoSuchJob,
    SchedulerRefused,
    program_name,
    readable_command,
)
from tests.support.records import for_each
from tests.support.slurm_text import answered

HEARD = [
    (
        "squeue",
        1,
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        ControllerDown,
    ),
    (
        "sinfo",
        1,
        "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
        ControllerDown,
    ),
    ("squeue", 1, "slurm_load_jobs error: Socket timed out on send/recv operation", ControllerDown),
    (
        "squeue",
        1,
        "squeue: error: s_p_parse_file: cannot stat file /nonexistent: No such file or directory, "
        "retrying in 1sec up "
        "to 60sec\nsqueue: error: ClusterName needs to be specified\n"
        "squeue: fatal: Unable to process configuration file",
        NoConfiguration,
    ),
    (
        "squeue",
        1,
        "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\nsqueue: error: "
        "fetch_config: DNS "
        "SRV lookup failed\nsqueue: error: _establish_config_source: failed to fetch "
        "config\nsqueue: fatal: Could not "
        "establish a configuration source",
        NoConfiguration,
    ),
    ("squeue", 1, "slurm_load_jobs error: Protocol authentication error", ControllerDown),
    (
        "sacct",
        1,
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent "
        "connection to "
        "host:127.0.0.1:16819: Connection refused\nsacct: error: Sending PersistInit msg: "
        "Connection refused\n"
        "sacct: error: Problem talking to the database: Connection refused",
        AccountingUnavailable,
    ),
    ("sacct", 1, "sacct: error: Socket timed out on send/recv operation", AccountingUnavailable),
    ("sacct", 1, "Slurm accounting storage is disabled", AccountingUnavailable),
    ("scontrol", 1, "slurm_load_jobs error: Invalid job id specified", NoSuchJob),
    ("squeue", 1, "slurm_load_jobs error: Invalid job id specified", NoSuchJob),
    ("scontrol", 1, "Job 65_25 not found", NoSuchJob),
    ("sacct", 1, "sacct: fatal: Bad job/step specified: abc", NoSuchJob),
    ("squeue", 127, "env: ‘squeue’: No such file or directory", CommandMissing),
    ("sacct", 1, 'sacct: error: Invalid field requested: "restarts"', SchedulerRefused),
    ("squeue", 1, "squeue: error: No cluster 'lab2' known by database.", SchedulerRefused),
]


@for_each(("name", "status", "words", "kind"), HEARD)
def test_each_failure_has_its_kind_its_evidence_and_a_next_step(
    name: str, status: int, words: str, kind: type[CommandError]
) -> None:
    error = failure(answered(status=status, stderr=words.encode(), argv=slurm(name, "-h")))
    assert type(error) is kind
    assert error.next_step
    assert error.status == status
    assert words.removeprefix("sacct: error: ") in str(error)
    assert f"command: {name} -h" in error.evidence


def test_an_unknown_failure_has_the_command_s_own_words_in_its_message() -> None:
    words = b"scontrol: error: first\nscontrol: error: Bad \x1b[2Jargument"
    error = failure(answered(status=1, stderr=words, argv=("scontrol",)))
    assert error.message == "scontrol failed: Bad \u241b[2Jargument"
    assert str(error).count("Bad") == 2, "the whole output has two lines"
    only = failure(answered(status=1, stderr=b"scontrol: error: Bad argument", argv=("scontrol",)))
    assert str(only).count("Bad argument") == 1


def test_a_missing_configuration_is_not_told_as_a_controller_that_is_down() -> None:
    error = failure(
        answered(status=1, stderr=b"squeue: fatal: Could not establish a configuration source")
    )
    assert "configuration" in error.message
    assert "SLURM_CONF" in error.next_step


def test_no_accounting_differs_from_accounting_that_is_down() -> None:
    none = failure(
        answered(status=1, stderr=b"Slurm accounting storage is disabled", argv=("sacct",))
    )
    down = failure(
        answered(status=1, stderr=b"sacct: error: Problem talking to the database", argv=("sacct",))
    )
    assert none.message != down.message
    assert "does not keep history" in none.message


def test_a_cluster_that_cannot_be_asked_ends_a_command_differently_from_one_that_refuses() -> None:
    down = failure(
        answered(status=1, stderr=b"Unable to contact slurm controller (connect failure)")
    )
    refused = failure(answered(status=1, stderr=b"Access/permission denied"))
    assert (down.exit_status, refused.exit_status) == (EXIT_UNREACHABLE, EXIT_REFUSED)


def test_words_on_stdout_count_where_stderr_is_empty() -> None:
    assert type(failure(answered(b"Invalid job id specified\n", status=1))) is NoSuchJob


def test_bytes_that_are_no_text_fail_as_well() -> None:
    assert "\ufffd" in failure(answered(status=1, stderr=b"\xff\xfe")).output


def test_commands_run_without_the_settings_that_change_their_output() -> None:
    argv = slurm("squeue", "-h")
    assert argv[0] == "env"
    for name in (
        "SQUEUE_FORMAT",
        "SQUEUE_SORT",
        "SQUEUE_STATES",
        "SINFO_FORMAT",
        "SACCT_FORMAT",
        "SLURM_CLUSTERS",
    ):
        assert argv[argv.index(name) - 1] == "-u"
    assert {"LC_ALL=C", "SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0"} <= set(argv)
    assert argv[-2:] == ("squeue", "-h")
    assert "SLURM_CONF" not in argv


def test_the_program_of_a_command_is_the_word_a_person_knows() -> None:
    assert program_name(slurm("sacct", "-n")) == "sacct"
    assert program_name(("squeue",)) == "squeue"


def test_a_command_is_told_without_the_random_separators_of_its_fields() -> None:
    argv = (
        "env",
        "LC_ALL=C",
        "sacct",
        "-X",
        "--delimiter=\x1evLvOcH5TNO",
        "-o",
        "jobid:\x1evLvOcH5TNO,state:\x1evLvOcH5TNO",
    )
    assert readable_command(argv) == "sacct -X '--delimiter=…' -o 'jobid:…,state:…'"
