"""Reasons in plain words."""

from __future__ import annotations

import json
from pathlib import Path

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.slurm.reasons import SlurmReasons
from tests.support.job_rows import job_row
from tests.support.records import for_each

CASES = sorted(
    (Path(__file__).resolve().parents[3] / "fixtures" / "slurm").glob("*/*/expected.json")
)


@for_each(
    ("reason", "words"),
    [
        ("Resources", "next in line"),
        ("JobHeldUser", "release"),
        ("DependencyNeverSatisfied", "never start"),
        ("ReqNodeNotAvail, UnavailableNodes:g[1-2]", "g[1-2]"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
            "partitions",
            "down, drained",
        ),
        ("QOSMaxCpuPerUserLimit", "CPUs per user"),
        ("QOSMaxJobsPerUserLimit", "its QoS limit on running jobs per user is reached"),
        ("AssocMaxSubmitJobLimit", "its account limit on queued jobs is reached"),
        ("AssocGrpJobsLimit", "the limit of its whole account on running jobs is reached"),
        ("AssocGrpMemLimit", "the limit of its whole account on memory is reached"),
        (
            "AssocMaxCpuPerNode",
            "will not start: requests more CPUs per node than its account limit allows",
        ),
        ("AssocMaxBBPerNode", "more burst buffer per node"),
        ("QOSMinGRES", "requests fewer GPUs or other devices than its QoS limit allows"),
        ("MaxGRESPerAccount", "its QoS limit on GPUs or other devices per account is reached"),
        ("PartitionNodeLimit", "change the node count or the partition"),
        ("ReqNodeNotAvail", "down, drained or reserved"),
        ("ReqNodeNotAvail(Unavailable:n1)", "(n1)"),
        ("ReqNodeNotAvail, Reserved for maintenance", "maintenance"),
        ("ReqNodeNotAvail, May be reserved for other job", "another job"),
        ("RaisedSignal:9(Killed)", "ended by a signal"),
        (
            "Job's QOS not permitted to use this partition (gpu allows a not b)",
            "its QoS may not use this partition",
        ),
        ("QOSMaxGRESPerUser", "GPUs or other devices per user"),
        ("AssocGrpCpuLimit", "its whole account"),
        ("AssocGrpGRESMinutes", "used up"),
        ("QOSMaxWallDurationPerJobLimit", "will not start: requests more time"),
        ("Priority,JobArrayTaskLimit", "jobs with higher priority"),
        ("MaxCpuRunMinsPerUser", "its QoS limit on compute time is used up"),
    ],
)
def test_why_a_job_waits(reason: str, words: str) -> None:
    assert words in SlurmReasons().hint("pending", reason)


# Source: squeue(1), JOB REASON CODES; the second part are those of the sources of 22.05 to 25.05
# that it leaves out.
CODES = """
AccountingPolicy AccountNotAllowed AssocGrpBB AssocGrpBBMinutes AssocGrpBBRunMinutes AssocGrpBilling
AssocGrpBillingMinutes AssocGrpBillingRunMinutes AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpCpuLimit
AssocGrpEnergy AssocGrpEnergyMinutes AssocGrpGRES AssocGrpGRESMinutes AssocGrpGRESRunMinutes AssocGrpJobsLimit
AssocGrpLicense AssocGrpMemLimit AssocGrpMemMinutes AssocGrpMemRunMinutes AssocGrpNodeLimit AssocGrpNodeMinutes
AssocGrpSubmitJobsLimit AssocGrpUnknown AssocGrpWallLimit AssociationJobLimit AssociationResourceLimit
AssociationTimeLimit AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBillingPerJob AssocMaxCPUMinutesPerJobLimit
AssocMaxCpuPerJobLimit AssocMaxCpuPerNode AssocMaxGRESPerJob AssocMaxJobsLimit AssocMaxMemPerJob
AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit AssocMaxWallDurationPerJobLimit BadConstraints BeginTime
BurstBufferOperation BurstBufferResources BurstBufferStageIn Cleaning DeadLine Dependency DependencyNeverSatisfied
FedJobLock FrontEndDown InactiveLimit InvalidAccount InvalidQOS JobArrayTaskLimit JobHeldAdmin JobHeldUser
JobHoldMaxRequeue JobLaunchFailure Licenses MaxBBPerAccount MaxBillingPerAccount MaxCpuPerAccount MaxGRESPerAccount
MaxJobsPerAccount MaxMemPerLimit MaxMemoryPerAccount MaxNodePerAccount MaxSubmitJobsPerAccount NodeDown
NonZeroExitCode OutOfMemory PartitionConfig PartitionDown PartitionInactive PartitionNodeLimit PartitionTimeLimit
Priority Prolog QOSGrpCpuLimit QOSGrpGRES QOSGrpNodeLimit QOSJobLimit QOSMaxBillingPerJob QOSMaxCpuPerUserLimit
QOSMaxGRESMinutesPerJob QOSMinCpuNotSatisfied QOSMinGRES QOSNotAllowed QOSResourceLimit QOSTimeLimit
QOSUsageThreshold ReqNodeNotAvail Reservation ReservationDeleted ReservationInvalid Resources SchedDefer
SystemFailure TimeLimit

Constraints MaxBBRunMinsPerAccount MaxBBRunMinsPerUser MaxBillingRunMinsPerAccount MaxBillingRunMinsPerUser
MaxCpuRunMinsPerAccount MaxCpuRunMinsPerUser MaxEnergyRunMinsPerAccount MaxEnergyRunMinsPerUser
MaxGRESRunMinsPerAccount MaxGRESRunMinsPerUser MaxLicenseRunMinsPerAccount MaxLicenseRunMinsPerUser
MaxMemoryRunMinsPerAccount MaxMemoryRunMinsPerUser MaxNodeRunMinsPerAccount MaxNodeRunMinsPerUser MaxPoweredUpNodes
MaxUnknownRunMinsPerAccount MaxUnknownRunMinsPerUser MpiPortsBusy PowerNotAvail PowerReserved QOSGrpJobsLimit
RaisedSignal
"""


@for_each("code", CODES.split())
def test_every_documented_reason_has_a_hint(code: str) -> None:
    hint = SlurmReasons().hint("pending", code)
    assert hint
    assert not any(
        wrong in hint
        for wrong in ("many memory", "many time are", "many energy", "much CPUs", "nodes on one")
    )


def test_a_word_we_do_not_know_gets_no_words_of_ours() -> None:
    assert SlurmReasons().hint("pending", "FluxCapacitor") == ""
    assert SlurmReasons().hint("running", None) == ""


def test_every_reason_that_was_recorded_has_a_hint() -> None:
    silent = {
        (row["state"], row["reason"])
        for file in CASES
        for row in json.loads(file.read_text("utf-8")).get("jobs_and_ended", ())
        if row["reason"] is not None and not BACKEND.reasons.hint(row["state"], row["reason"])
    }
    assert silent == set()


@for_each(
    ("reason", "words"),
    [
        ("Resources", "next in line for 8 GPUs on 2 nodes"),
        ("Priority", "other jobs go first"),
        ("QOSMaxGRESPerUser", "QoS limit: GPUs"),
        ("AssocGrpCpuLimit", "account limit: CPUs"),
        ("QOSMaxJobsPerUserLimit", "QoS limit: running jobs"),
        ("ReqNodeNotAvail, UnavailableNodes:g2", "nodes are down or reserved"),
        ("ReqNodeNotAvail(Reserved for maintenance)", "its nodes are due for maintenance soon"),
        ("JobHeldUser", "held by its owner"),
        # The dependency and the time say more than these.
        ("Dependency", ""),
        ("BeginTime", ""),
    ],
)
def test_a_wait_has_a_short_text_for_a_table(reason: str, words: str) -> None:
    row = job_row("1", "pending", reason=reason, gpus=8, nodes=2, cpus=16)
    assert SlurmReasons().short(row) == words
