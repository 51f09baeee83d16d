"""What sacctmgr says of accounts and QoS, and what sbatch says of a start."""

from __future__ import annotations

import pytest

from hpcdash.backends.slurm.accounts import (
    associations_query,
    parse_associations,
    parse_qos_offers,
    qos_offers_query,
)
from hpcdash.backends.slurm.submit import SlurmSubmit, parse_start_estimate
from hpcdash.backends.submissions import Submission
from hpcdash.domain.offers import AccountOffer, QosOffer
from hpcdash.errors import (
    AccountingUnavailable,
    ControllerDown,
    UnreadableOutput,
    UsageError,
    without_env,
)
from tests.support.records import for_each
from tests.support.slurm_text import answered

SACCTMGR = ("sacctmgr",)


def test_one_s_accounts_are_asked_of_this_cluster_alone() -> None:
    asked = without_env(associations_query("alice", "juno").argv)
    assert asked[:8] == ("sacctmgr", "-n", "-P", "-r", "show", "user", "name=alice", "cluster=juno")
    assert not any(word.startswith("cluster=") for word in associations_query("alice").argv)


def test_the_default_account_comes_first_and_its_default_qos() -> None:
    printed = b"alice|physics|chem||high,normal|normal\nalice|physics|physics||high,low|low\n"
    assert parse_associations(answered(printed, argv=SACCTMGR)).offers == (
        AccountOffer("physics", True, ("low", "high")),
        AccountOffer("chem", False, ("normal", "high")),
    )


def test_an_account_with_an_association_a_partition_is_one_with_the_qos_of_all() -> None:
    printed = b"alice|chem|chem|main|normal|\nalice|chem|chem|gpu|gpu|\n"
    assert parse_associations(answered(printed, argv=SACCTMGR)).offers == (
        AccountOffer("chem", True, ("normal", "gpu"), queues=("gpu", "main")),
    )


def test_an_account_with_an_association_for_all_partitions_may_be_charged_in_any() -> None:
    printed = b"alice|chem|chem||normal|\nalice|chem|chem|gpu|gpu|\n"
    (offer,) = parse_associations(answered(printed, argv=SACCTMGR)).offers
    assert offer.queues == ()


def test_who_has_no_association_on_the_cluster_has_no_account() -> None:
    # What 22.05 prints of a user whose associations are on another one.
    assert parse_associations(answered(b"alice|||||\n", argv=SACCTMGR)).offers == ()
    assert parse_associations(answered(b"", argv=SACCTMGR)).offers == ()


def test_a_row_that_is_none_is_told_and_the_others_stand() -> None:
    parsed = parse_associations(
        answered(b"Welcome | to juno\nalice|chem|chem||normal|\n", argv=SACCTMGR)
    )
    assert [offer.name for offer in parsed.offers] == ["chem"]
    assert parsed.rejected == ("Welcome | to juno",)


def test_what_holds_no_row_at_all_is_no_list_of_accounts() -> None:
    with pytest.raises(UnreadableOutput, match="accounts"):
        parse_associations(answered(b"usage: sacctmgr\n", argv=SACCTMGR))


def test_a_database_that_is_away_is_said_to_be() -> None:
    words = (
        b"sacctmgr: error: slurm_persist_conn_open_without_init: failed to open persistent "
        b"connection"
    )
    with pytest.raises(AccountingUnavailable):
        qos_offers_query().parse(answered(b"", status=1, stderr=words, argv=SACCTMGR))


def test_a_qos_is_read_with_its_limits() -> None:
    printed = (
        b"normal||||||||\nlow|||||||||\n"[:-2] + b"\n"
        b"tiny|00:10:00||||1|||\n"
        b"limited|1-00:00:00|2|cpu=6,gres/gpu=4|cpu=8,gres/gpu=2,mem=4G||cpu=100|50|\n"
        b"high||||||||low,tiny\n"
    )
    offers = {
        offer.name: offer for offer in parse_qos_offers(answered(printed, argv=SACCTMGR)).offers
    }
    assert offers["normal"] == QosOffer("normal")
    assert offers["tiny"] == QosOffer(
        "tiny",
        limit_seconds=600,
        note="jobs can be preempted by high; queued jobs per user: at most 1",
    )
    assert offers["limited"] == QosOffer(
        "limited", 86400, 2, 6, 2, "cpu=100 in total; 50 running jobs in total"
    )


# -- sbatch --test-only

STARTS = (
    b"sbatch: Job 10 to start at 1795275305 using 3 processors on nodes g[1-2] in partition gpu\n"
)


def test_a_start_is_asked_with_the_options_of_a_submission_and_submits_nothing() -> None:
    argv = SlurmSubmit().start_estimate(Submission(b"#!/bin/sh\n", "job.sh", ("-p", "gpu"))).argv
    at = argv.index("sbatch")
    assert argv[at : at + 4] == ("sbatch", "--test-only", "-p", "gpu")
    assert "SLURM_TIME_FORMAT=%s" in argv[:at]
    assert not any(word.startswith("--comment") for word in argv)


def test_options_that_are_none_are_refused_before_anything_is_asked() -> None:
    with pytest.raises(UsageError):
        SlurmSubmit().start_estimate(Submission(b"#!/bin/sh\n", "job.sh", ("gpu",)))


@for_each("starts", [STARTS, STARTS.replace(b" using", b" a using")])
def test_a_start_is_read_from_stderr(starts: bytes) -> None:
    estimate = parse_start_estimate(
        answered(b"", stderr=b"sbatch: cli_filter says hello\n" + starts)
    )
    assert (estimate.starts_at_epoch, estimate.cpus, estimate.node_list, estimate.queue) == (
        1795275305.0,
        3,
        "g[1-2]",
        "gpu",
    )
    assert estimate.refusal == estimate.hint == ""


def test_a_start_by_the_clock_there_is_told_in_words() -> None:
    estimate = parse_start_estimate(
        answered(b"", stderr=STARTS.replace(b"1795275305", b"2026-11-21T15:35:05"))
    )
    assert estimate.starts_at_epoch is None
    assert "2026-11-21T15:35:05" in estimate.hint


@for_each(
    ("script", "options", "note"),
    [
        (b"#!/bin/sh\n#SBATCH --hold\n", (), "held"),
        (b"#!/bin/sh\n", ("-d", "afterok:1"), "depends on other jobs"),
        (b"#!/bin/sh\n#SBATCH -a 1-9\n", (), "the first array task"),
    ],
)
def test_what_slurm_does_not_count_is_told(
    script: bytes, options: tuple[str, ...], note: str
) -> None:
    assert (
        note
        in SlurmSubmit()
        .start_estimate(Submission(script, "job.sh", options))
        .parse(answered(b"", stderr=STARTS))
        .hint
    )


def test_a_refusal_is_an_answer_with_its_words_and_a_hint() -> None:
    words = (
        b"sbatch: error: invalid partition specified: nosuch\nallocation failure: Invalid "
        b"partition name specified\n"
    )
    estimate = parse_start_estimate(answered(b"", status=1, stderr=words))
    assert (
        estimate.refusal == "invalid partition specified: nosuch; Invalid partition name specified"
    )
    assert estimate.hint == "no such partition"
    assert estimate.starts_at_epoch is None


def test_an_unknown_option_is_a_refusal_without_its_advice_to_read_the_help() -> None:
    words = b"sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information\n"
    assert (
        parse_start_estimate(answered(b"", status=255, stderr=words)).refusal
        == "unrecognized option '--bogus'"
    )


def test_a_controller_that_is_down_is_no_refusal() -> None:
    words = b"allocation failure: Unable to contact slurm controller (connect failure)\n"
    with pytest.raises(ControllerDown):
        parse_start_estimate(answered(b"", status=1, stderr=words))


def test_a_quiet_sbatch_is_no_refusal() -> None:
    estimate = parse_start_estimate(answered(b""))
    assert (estimate.refusal, estimate.starts_at_epoch) == ("", None)
    assert "no start" in estimate.hint
