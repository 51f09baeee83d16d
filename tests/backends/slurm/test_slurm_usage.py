"""What sstat, sacct, sprio, sacctmgr and scontrol say of a job's use, its priority and its
rules.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from hpcdash.backends.job_detail import Usage
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.slurm.policy import parse_priority, parse_qos, parse_queue_rules
from hpcdash.backends.slurm.usage import (
    NO_STEP_NOTE,
    RUNNING_NOTE,
    clock_seconds,
    parse_ended,
    parse_running,
)
from hpcdash.errors import (
    AccountingUnavailable,
    CommandError,
    ControllerDown,
    SchedulerRefused,
    UnreadableOutput,
    without_env,
)
from tests.support.job_rows import job_row
from tests.support.records import for_each
from tests.support.slurm_text import answered

ASKED = Usage(cpus=4, elapsed_seconds=100, requested_memory_bytes=1 << 30, gpus=0)
BATCH = (
    "1.batch|1|n1|cpu=00:00:27,energy=0,fs/disk=48616,mem=316664K,pages=3,vmem=374960K|"
    "cpu=00:00:27,energy=0,fs/disk=48616,mem=367864K,pages=3|energy=0,fs/disk=52428801|367864K\n"
)
QOS = (
    "normal||cluster|00:00:00|||||||\n"
    "low||requeue|00:05:00|||||||\n"
    "tiny||cluster|00:00:00|00:10:00|||1|||\n"
    "limited||cluster|00:00:00||cpu=6|2||||\n"
    "high|low,scavenger|cluster|00:00:00|||||||\n"
)


def row(**known: Any) -> dict[str, Any]:
    numbers = {"cpus": 4, "elapsed_seconds": 100, "memory_bytes": 4 << 30, "nodes": 2, "gpus": 0}
    return job_row(
        "7",
        **{
            "state": "running",
            "started_at": datetime(2026, 11, 21, tzinfo=UTC),
            **numbers,
            **known,
        },
    )


def running(stdout: str, stderr: str = "", asked: Usage = ASKED) -> Usage:
    return parse_running(
        answered(stdout.encode(), argv=("sstat",), stderr=stderr.encode()), requested=asked
    )


def ended(*lines: str) -> Usage:
    return parse_ended(answered("".join(f"{line}\n" for line in lines).encode(), argv=("sacct",)))


@for_each(
    ("text", "seconds"),
    [
        ("00:00.123", 0.123),
        ("00:10.909", 10.909),
        ("1-02:03:04", 93784),
        ("213503982334-14:25:51", None),
        ("", None),
    ],
)
def test_a_cpu_time_is_read_in_each_of_slurm_s_ways(text: str, seconds: float | None) -> None:
    assert clock_seconds(text) == (seconds and pytest.approx(seconds))


def test_a_running_job_s_steps_tell_cpu_time_memory_and_disk() -> None:
    usage = running(BATCH)
    assert (usage.cpu_seconds, usage.memory_peak_bytes) == (27, 367864 * 1024)
    assert (usage.disk_read_bytes, usage.disk_written_bytes) == (48616, 52428801)
    assert (usage.cpus, usage.elapsed_seconds, usage.note) == (4, 100, RUNNING_NOTE)


def test_the_peak_of_a_task_counts_where_the_last_sample_of_all_is_less() -> None:
    # 22.05 prints the sum of the last sample: a script whose program ended holds 3 MB, and held 20.
    usage = running("27.batch|1|n1|cpu=00:00:00,mem=3152K|mem=20460K|fs/disk=1|20460K\n")
    assert usage.memory_peak_bytes == 20460 * 1024


def test_memory_is_that_of_a_node_and_tasks_on_it_count_together() -> None:
    usage = running("8.0|8|n[1-4]|cpu=01:00:00,mem=4G|mem=1G||1G\n")
    assert usage.memory_peak_bytes == 2 << 30


def test_steps_of_srun_that_run_together_count_together_and_the_batch_shell_alone() -> None:
    lines = [f"9.{name}|1|n1|cpu=00:01:00,mem=1G|||1G\n" for name in ("batch", "0", "1")]
    assert running("".join(lines)).memory_peak_bytes == 2 << 30


def test_gpu_use_is_the_share_of_all_gpus_and_none_where_it_is_not_accounted() -> None:
    line = "9.0|1|g1|cpu=00:01:00,gres/gpumem=12G,gres/gpuutil=174,mem=1G|||1G\n"
    usage = running(line, asked=Usage(gpus=2))
    assert (usage.gpu_percent, usage.gpu_memory_peak_bytes) == (87, 12 << 30)
    assert running(BATCH).gpu_percent is None


def test_what_a_running_job_of_somebody_else_uses_is_refused() -> None:
    words = (
        "sstat: error: slurm_job_step_stat: there was an error with the request to g1 rc = "
        "Invalid user id\n"
    )
    with pytest.raises(SchedulerRefused, match="only to its owner"):
        running("", words)


def test_a_job_between_steps_uses_what_is_not_known() -> None:
    usage = running("", "sstat: error: No steps running for job 51\n")
    assert (usage.cpu_seconds, usage.cpus, usage.note) == (None, 4, NO_STEP_NOTE)


def test_an_absent_controller_is_no_job_without_steps() -> None:
    with pytest.raises(CommandError):
        running("", "sstat: error: couldn't get steps for job 30\n")


def test_a_line_of_another_format_is_unreadable() -> None:
    with pytest.raises(UnreadableOutput):
        running("Welcome to the cluster|x\n")


def test_an_ended_job_s_use_is_that_of_its_steps() -> None:
    usage = ended(
        "2||1|1795253398|1795253409|11|2|billing=2,cpu=2,mem=500M,node=1|00:10.909||||",
        "2.batch|1|1|1795253398|1795253409|11|2|cpu=2,mem=500M,node=1|00:05.925|cpu=00:00:05,fs/disk=77224,mem=112048K"
        "|mem=112048K|fs/disk=1079|112048K",
        "2.0|1|1|1795253404|1795253409|5|2|cpu=2,mem=500M,node=1|00:04.983|fs/disk=44118,mem=59292K|mem=59292K"
        "|fs/disk=1|59292K",
    )
    assert usage.cpu_seconds == pytest.approx(10.909)
    assert (usage.cpus, usage.elapsed_seconds, usage.requested_memory_bytes) == (2, 11, 500 << 20)
    assert (usage.memory_peak_bytes, usage.disk_read_bytes) == (112048 * 1024, 77224 + 44118)


def test_steps_that_ran_one_after_the_other_do_not_count_together() -> None:
    whole = "3||1|100|200|100|1|mem=4G|00:10.000||||"
    first = "3.0|1|1|100|150|50|1||00:05.000|mem=1G|mem=1G||1G"
    after, beside = (
        "3.1|1|1|150|200|50|1||00:05.000|mem=1G|mem=1G||1G",
        "3.1|1|1|120|200|80|1||0|mem=1G|mem=1G||1G",
    )
    assert ended(whole, first, after).memory_peak_bytes == 1 << 30
    assert ended(whole, first, beside).memory_peak_bytes == 2 << 30


def test_without_a_gathering_plugin_nothing_is_known_rather_than_nought() -> None:
    usage = ended(
        "4||2|100|200|100|8|cpu=8,gres/gpu=2,mem=8G|00:00:00||||",
        "4.batch|1|1|100|200|100|8||00:00:00||||",
    )
    assert (usage.cpu_seconds, usage.memory_peak_bytes, usage.disk_read_bytes) == (None, None, None)
    assert (usage.cpus, usage.gpus, usage.requested_memory_bytes) == (8, 2, 4 << 30)


def test_sstat_is_asked_of_what_runs_and_sacct_of_what_ended() -> None:
    asked = BACKEND.detail.usage(row())
    past = BACKEND.detail.usage(row(state="failed"))
    assert asked is not None
    assert past is not None
    assert without_env(asked.argv)[:6] == ("sstat", "-a", "-n", "-P", "-j", "7")
    assert without_env(past.argv)[:4] == ("sacct", "-n", "-P", "-j")


@pytest.mark.parametrize("job_id", ["6_1", "25+1"])
def test_a_task_and_a_component_are_asked_for_by_a_number_of_their_own(job_id: str) -> None:
    # sstat takes both for the job before the sign.
    asked = BACKEND.detail.usage(row(id=job_id))
    assert asked is not None
    words = without_env(asked.argv)
    assert (words[:2], words[3:5]) == (("sh", "-c"), ("sh", job_id))


@for_each("known", [{"state": "pending"}, {"started_at": None}, {"id": "6_[3-9]", "_tasks": 7}])
def test_what_has_not_started_uses_nothing(known: dict[str, Any]) -> None:
    assert BACKEND.detail.usage(row(**known)) is None


def test_a_priority_is_told_by_factor_with_the_part_of_its_most() -> None:
    line = (
        b"2318|0||0|2|0.0020|0|0.0000000|2000|0.2000000|167|0.1666667|100|0.1000000|50|0.0100000\n"
    )
    words = parse_priority(answered(line, argv=("sprio",)))
    assert words["priority"] == "2318"
    assert words["fair share"] == "2000 (20% of max)"
    assert words["age"] == "2 (< 1% of max)"
    assert "association" not in words
    assert "nice" not in words


def test_a_nice_value_is_taken_off() -> None:
    line = b"933|0||5000|0|0|0|0|5000|0.5|333|0.3|100|0.1|500|0.1\n"
    assert parse_priority(answered(line, argv=("sprio",)))["nice"].startswith("-5000")


@for_each(
    "words",
    [
        b"",
        b"Unable to find jobs matching user/id(s) specified\n",
        b"You are not running a supported priority plugin\n(priority/basic).\nOnly "
        b"'priority/multifactor' is supported",
    ],
)
def test_a_job_that_is_not_ranked_has_no_factors(words: bytes) -> None:
    assert parse_priority(answered(words, argv=("sprio",))) == {}
    assert parse_priority(answered(b"", argv=("sprio",), stderr=words)) == {}


def test_a_priority_asked_of_an_absent_controller_is_an_error() -> None:
    said = (
        b"Couldn't get priority factors from controller: Unable to contact slurm controller "
        b"(connect failure)"
    )
    with pytest.raises(ControllerDown):
        parse_priority(answered(b"", argv=("sprio",), status=255, stderr=said))


def test_a_qos_says_who_may_take_its_jobs_places_and_how() -> None:
    words = parse_qos(answered(QOS.encode(), argv=("sacctmgr",)), qos="low")
    assert words == {
        "may be preempted by": "high",
        "a preempted job": "is put back into the queue",
        "grace time": "5:00",
    }


@for_each(
    ("qos", "words"),
    [
        ("normal", {}),
        ("nosuch", {}),
        ("limited", {"limit per user": "cpu=6", "running jobs per user": "2"}),
        ("tiny", {"longest time": "00:10:00", "jobs per user": "1"}),
        ("high", {"may preempt": "low, scavenger"}),
    ],
)
def test_a_qos_tells_its_limits_and_nothing_that_is_not_set(
    qos: str, words: dict[str, str]
) -> None:
    assert parse_qos(answered(QOS.encode(), argv=("sacctmgr",)), qos=qos) == words


def test_without_accounting_there_is_no_qos_to_tell() -> None:
    said = (
        b"You are not running a supported accounting_storage plugin\nOnly "
        b"'accounting_storage/slurmdbd' is supported"
    )
    with pytest.raises(AccountingUnavailable):
        parse_qos(answered(b"", argv=("sacctmgr",), status=1, stderr=said), qos="low")


def test_a_partition_says_what_becomes_of_a_job_that_makes_way() -> None:
    shown = (
        b"PartitionName=main\n   GraceTime=300 Hidden=NO\n   OverTimeLimit=NONE "
        b"PreemptMode=%s\n   State=UP\n"
    )
    said = parse_queue_rules(answered(shown % b"REQUEUE", argv=("scontrol",)))
    assert said == {
        "a preempted job": "is put back into the queue",
        "grace time": "5:00",
    }
    assert parse_queue_rules(answered(shown % b"OFF", argv=("scontrol",))) == {}
