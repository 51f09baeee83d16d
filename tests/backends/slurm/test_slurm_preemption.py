"""Which partitions go before which, and how long a job has to save, as scontrol and sacctmgr of
Slurm say it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpcdash.backends.slurm.policy import parse_preemption, parse_qos
from hpcdash.transport.base import CommandResult

PARTITIONS = """PreemptType             = preempt/{kind}
PartitionName=main
   GraceTime=30 Hidden=NO
   PriorityJobFactor=10 PriorityTier=1 RootOnly=NO
   OverTimeLimit=NONE PreemptMode=CANCEL
PartitionName=urgent
   GraceTime=0 Hidden=NO
   PriorityJobFactor=10 PriorityTier=5 RootOnly=NO
   OverTimeLimit=NONE PreemptMode=REQUEUE
"""


def answer(text: str) -> CommandResult:
    return CommandResult(("scontrol",), 0, text.encode(), b"", 0.1)


def of(queue: str, kind: str = "partition_prio") -> Mapping[str, str]:
    return parse_preemption(answer(PARTITIONS.format(kind=kind)), queue=queue)


def test_jobs_of_a_lower_tier_make_way_where_partitions_preempt() -> None:
    assert of("main") == {
        "may be preempted by": "urgent",
        "a preempted job": "is cancelled",
        "grace time": "0:30",
    }
    assert "may be preempted by" not in of("urgent")
    assert of("gone") == {}


def test_where_qos_preempt_a_partition_says_how_but_not_that() -> None:
    assert of("main", "qos") == {
        "a preempted job": "is cancelled",
        "grace time": "0:30",
    }


@pytest.mark.parametrize(("mode", "way"), [("cancel", "is cancelled"), ("cluster", None)])
def test_the_grace_of_a_qos_is_its_own_whosever_mode_it_has(mode: str, way: str | None) -> None:
    text = f"low||{mode}|00:02:00|||||||\nhigh|low|cluster|00:00:00|||||||\n"
    words = parse_qos(answer(text), qos="low")
    assert (words["may be preempted by"], words.get("a preempted job")) == ("high", way)
    assert words["grace time"] == "2:00"
    assert "grace time" not in parse_qos(answer(text), qos="high")
