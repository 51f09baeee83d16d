"""Which nodes are to be checked, and what is remembered of them and their GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdash.errors import UsageError
from hpcdash.services.submit.node_checks import NodeCheckRecords, select_nodes

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
    of_queue = select_nodes("gpu", ROWS, "")
    assert [row["name"] for row in of_queue.nodes] == ["n1", "n3"]
    assert (of_queue.queue, of_queue.left_out) == ("gpu", ("n2 is allocated",))
    named = select_nodes("n[2-3],n2", ROWS, "long")
    assert ([row["name"] for row in named.nodes], named.queue) == (["n2", "n3"], "long")


@pytest.mark.parametrize("where", ["n9", "n[1-", "--yes", "$(id)", "n[1-2000]"])
def test_what_names_no_nodes_is_refused(where: str) -> None:
    with pytest.raises(UsageError):
        select_nodes(where, ROWS, "")


def test_a_card_is_known_again_in_another_node_and_a_node_that_is_well_again_is_not_told(tmp_path: Path) -> None:
    records = NodeCheckRecords(tmp_path, "lab")
    assert (records.findings(0.0), records.known_gpus([UUID], 0.0)) == ({}, {})
    records.note_lines(
        [
            f"n1: gpus: {UUID} {OTHER}",
            f"n1: hpcdash: the cuda check failed: {UUID}: \x1b[2Jbad",
            "n2: hpcdash: the disk check failed: /tmp has 3 MiB left",
            "n2: hpcdash: the clock check failed: it is 90 s off",
        ],
        1000.0,
    )
    assert records.known_gpus([UUID, OTHER], 1060.0) == {
        UUID: f"found before, 1 min ago on n1: cuda: {UUID}: ␛[2Jbad",
    }
    assert records.findings(1060.0) == {
        "n1": f"cuda check failed 1 min ago: {UUID}: ␛[2Jbad",
        "n2": "clock check failed 1 min ago: it is 90 s off; disk check failed 1 min ago: /tmp has 3 MiB left",
    }
    records.note_lines(["n2: check disk: ok: /tmp", "n2: check clock: ok", f"n7: gpus: {UUID}"], 2000.0)
    # What is older comes late.
    records.note_lines(["n2: hpcdash: the clock check failed: it is 90 s off"], 1500.0)
    assert set(records.findings(2000.0)) == {"n1"}
    assert NodeCheckRecords(tmp_path, "lab").known_gpus([UUID], 2000.0)[UUID].startswith("found before, ")
    assert NodeCheckRecords(tmp_path, "other").findings(0.0) == {}
