"""Which nodes are to be checked, and what is remembered of them and their GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.script.node_checks import CheckResult
from hpcdash.errors import UsageError
from hpcdash.services.submit.launch_records import LaunchRecords
from hpcdash.services.submit.node_checks import select_nodes
from hpcdash.services.submit.node_findings import (
    CheckFindings,
    NodeCheckRecords,
    SubmittedCheck,
    format_results,
)
from tests.support.records import for_each

UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
OTHER = "GPU-ffffffff-0000-1111-2222-333344445555"


def node(name: str, state: str = "idle", *queues: str) -> dict[str, Any]:
    return {"name": name, "state": state, "queues": list(queues), "gpus": 4}


ROWS = [
    node("n1", "idle", "gpu"),
    node("n2", "allocated", "gpu"),
    node("n3", "idle", "gpu", "long"),
    node("n4", "down"),
]


def test_of_a_queue_the_idle_nodes_are_meant_and_named_ones_whatever_they_do() -> None:
    queue_rows = select_nodes("gpu", ROWS, "")
    assert [row["name"] for row in queue_rows.nodes] == ["n1", "n3"]
    assert (queue_rows.queue, queue_rows.skipped) == ("gpu", ("n2 is allocated",))
    named = select_nodes("n[2-3],n2", ROWS, "long")
    assert ([row["name"] for row in named.nodes], named.queue) == (["n2", "n3"], "long")
    # PBS binds no nodes to queues: any of them may run its jobs.
    unbound = select_nodes(
        "workq",
        [node("n1"), node("n2", "down"), node("n3", "idle", "other")],
        "",
        ["workq", "other"],
    )
    assert ([row["name"] for row in unbound.nodes], unbound.queue) == (["n1"], "workq")


@for_each("where", ["n9", "n[1-", "--yes", "$(id)", "n[1-2000]"])
def test_what_names_no_nodes_is_refused(where: str) -> None:
    with pytest.raises(UsageError):
        select_nodes(where, ROWS, "")


def words_of(records: NodeCheckRecords, now: float) -> dict[str, tuple[str, str]]:
    return {node: (found.summary, found.format(now)) for node, found in records.findings().items()}


def test_a_card_is_known_again_in_another_node_and_a_node_that_is_well_again_says_so(
    tmp_path: Path,
) -> None:
    records = NodeCheckRecords(tmp_path, "lab")
    assert (records.findings(), records.known_gpus(0.0)) == ({}, {})
    records.note_lines(
        [
            f"n1: gpus: {UUID} {OTHER}",
            f"n1: hpcdash: the cuda check failed: {UUID}: \x1b[2Jbad",
            "n2: hpcdash: the disk check failed: /tmp has 3 MiB left",
            "n2: hpcdash: the clock check failed: it is 90 s off",
        ],
        1000.0,
    )
    known = {UUID: f"found before, 1 min ago on n1: cuda: {UUID}: ␛[2Jbad"}
    assert records.known_gpus(1060.0) == known
    assert words_of(records, 1060.0) == {
        "n1": ("cuda failed", f"cuda check failed 1 min ago: {UUID}: ␛[2Jbad"),
        "n2": (
            "clock, disk failed",
            "clock check failed 1 min ago: it is 90 s off; disk check failed 1 min ago: /tmp has 3 "
            "MiB left",
        ),
    }
    records.note_lines(
        ["n2: check disk: ok: /tmp", "n2: check clock: ok", f"n7: gpus: {UUID}"], 2000.0
    )
    # What is older comes late.
    records.note_lines(["n2: hpcdash: the clock check failed: it is 90 s off"], 1500.0)
    assert words_of(records, 2060.0)["n2"] == ("ok", "checked 1 min ago: clock, disk ok")
    again = CheckFindings([CheckResult("n7", "cuda", "failed", f"{UUID}: bad")], {}, "12")
    assert records.note(again, 1060.0) == known
    assert NodeCheckRecords(tmp_path, "other").findings() == {}


def test_a_check_is_read_once_and_of_nodes_that_say_nothing_nothing_is_remembered(
    tmp_path: Path,
) -> None:
    records = NodeCheckRecords(tmp_path, "lab")
    assert records.unread() == ()
    check = SubmittedCheck("12", ("n1", "gpu[0]"), ("disk", "clock"))
    records.submitted(check)
    assert records.unread() == (check,)
    assert LaunchRecords(tmp_path, "lab").unread_checks() == {"12"}
    records.note(CheckFindings([CheckResult("n1", "disk", "unknown", "no output")], {}, "12"), 1.0)
    assert (records.unread(), records.findings()) == ((), {})


def test_what_is_wrong_is_told_by_node_and_many_nodes_are_counted() -> None:
    results = [CheckResult(f"n{at}", "disk", "failed", "full") for at in range(5)]
    well = [CheckResult("n9", "disk", "ok", ""), CheckResult("n9", "cuda", "skipped", "")]
    assert format_results(well, {}) == "all OK"
    assert format_results([*results[:1], CheckResult("n0", "clock", "unknown", "?")], {}) == (
        "n0: disk failed: full; clock is unknown: ?"
    )
    assert format_results(results, {}).endswith("n2: disk failed: full · and 2 more nodes")
