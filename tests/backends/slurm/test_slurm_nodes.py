"""What sinfo's rows mean, of nodes and of partitions."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdash.backends.slurm import nodes, queues
from hpcdash.backends.slurm.states import node_state
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import UnreadableOutput
from tests.support.records import for_each
from tests.support.slurm_text import NODE, QUEUE, TOKEN, answered, printed_row


def read_nodes(*rows: dict[str, str | bytes]) -> list[dict[str, Any]]:
    raw = b"".join(printed_row(nodes.LAYOUT, {**NODE, **row}) for row in rows)
    table = nodes.parse_nodes(answered(raw, argv=("sinfo",)), token=TOKEN).table
    return table_to_json_rows(table, table.column_names)


def read_queues(*rows: dict[str, str | bytes]) -> list[dict[str, Any]]:
    raw = b"".join(printed_row(queues.LAYOUT, {**QUEUE, **row}) for row in rows)
    table = queues.parse_queues(answered(raw, argv=("sinfo",)), token=TOKEN).table
    return table_to_json_rows(table, table.column_names)


def test_a_drained_node_says_why_by_whom_and_since_when() -> None:
    (node,) = read_nodes(
        {
            "statecomplete": "idle+drain",
            "timestamp": "1795242122",
            "user": "root",
            "reason": "Xid 79 (ticket #1234)",
        }
    )
    assert node["state"] == "drained"
    assert node["flags"] == ["drain"]
    assert (node["reason"], node["reason_by"], node["reason_since"]) == (
        "Xid 79 (ticket #1234)",
        "root",
        "2026-11-21T06:22:02Z",
    )


def test_a_node_without_a_reason_has_none() -> None:
    (node,) = read_nodes({})
    assert (node["reason"], node["reason_by"], node["reason_since"]) == (None, None, None)


def test_a_reason_that_reads_none_is_a_reason_when_somebody_gave_it() -> None:
    (node,) = read_nodes({"reason": "none", "user": "root", "timestamp": "1795242122"})
    assert (node["reason"], node["reason_by"]) == ("none", "root")


def test_a_reason_forges_no_node() -> None:
    rows = read_nodes(
        {"reason": b"two\nlines \x1f\x1e\nn9\x1fmain \xff", "user": "root"}, {"nodelist": "g2"}
    )
    assert [node["name"] for node in rows] == ["g1", "g2"]
    assert rows[0]["reason"] == "two\nlines \x1f\x1e\nn9\x1fmain \ufffd"


def test_a_node_of_two_partitions_is_one_node() -> None:
    (node,) = read_nodes({"partition": "gpu*"}, {"partition": "staff"})
    assert node["queues"] == ["gpu", "staff"]


def test_what_of_a_node_is_in_use() -> None:
    (node,) = read_nodes({})
    assert (node["cpus"], node["cpus_used"]) == (8, 6)
    assert (node["gpus"], node["gpus_used"], node["gpu_type"]) == (4, 2, "a100")
    assert (node["memory_bytes"], node["memory_used_bytes"]) == (16000 << 20, 4296 << 20)


@for_each(
    ("text", "count", "kind"),
    [
        ("gpu:4", 4, None),
        ("gpu:a100:4", 4, "a100"),
        ("gpu:a100:4(S:0-1),gpu:v100:2", 6, "a100,v100"),
        ("shard:8,gpu:h100:2", 2, "h100"),
        ("gpu:(null):0(IDX:N/A)", 0, None),
        ("(null)", 0, None),
        (None, 0, None),
    ],
)
def test_how_many_gpus_a_gres_list_holds(text: str | None, count: int, kind: str | None) -> None:
    assert nodes.gpu_gres(text) == (count, kind)


@for_each(
    ("word", "state"),
    [
        ("idle", "idle"),
        ("mixed", "mixed"),
        ("allocated", "allocated"),
        ("completing", "mixed"),
        ("idle+completing", "mixed"),
        ("allocated+drain", "draining"),
        ("mixed+drain", "draining"),
        ("idle+drain", "drained"),
        ("idle+completing+drain", "draining"),
        ("idle+completing+fail", "draining"),
        ("idle+fail", "down"),
        ("allocated+fail+not_responding", "draining"),
        ("idle+blocked", "reserved"),
        ("mixed+blocked", "mixed"),
        ("idle+cloud+powered_down", "idle"),
        ("idle+external", "idle"),
        ("mixed+planned", "mixed"),
        ("down+not_responding", "down"),
        ("down*", "down"),
        ("idle+reserved", "reserved"),
        ("idle+maint", "reserved"),
        ("idle+planned", "planned"),
        ("unknown", "unknown"),
        ("frobnicated", "unknown"),
    ],
)
def test_slurm_s_words_for_the_states_of_nodes(word: str, state: str) -> None:
    assert node_state(word)[0] == state


def test_a_load_that_is_not_known_is_null() -> None:
    assert read_nodes({"cpusload": "N/A"})[0]["load"] is None


def test_a_partition_is_summed_over_its_groups_of_nodes() -> None:
    (queue,) = read_queues(
        {"partition": "gpu*"},
        {
            "partition": "gpu*",
            "nodeaiot": "0/0/3/3",
            "cpusstate": "0/0/24/24",
            "nodes": "3",
            "gresused": "gpu:0",
        },
    )
    assert queue == {
        "name": "gpu",
        "available": True,
        "default": True,
        "limit_seconds": 172800,
        "nodes": 5,
        "nodes_idle": 1,
        "nodes_down": 3,
        "cpus": 40,
        "cpus_used": 6,
        "gpus": 20,
        "gpus_used": 4,
        "jobs_running": None,
        "jobs_pending": None,
        "_cpus_down": 24,
        "_gpus_down": 12,
        **dict.fromkeys(("_standing", "_note", "_opens_at", "_server_note")),
    }


@pytest.mark.parametrize(
    "large",
    [
        {"cpusstate": "9223372036854775807/0/0/9223372036854775807"},
        {
            "nodeaiot": "0/0/0/999999999",
            "gres": ",".join(f"gpu:k{kind}:999999999" for kind in range(20)),
        },
    ],
)
def test_a_partition_with_more_than_can_be_counted_is_rejected_and_the_others_stand(
    large: dict[str, str],
) -> None:
    good = {"partition": "cpu"}
    raw = b"".join(printed_row(queues.LAYOUT, {**QUEUE, **row}) for row in (good, large, large))
    parsed = queues.parse_queues(answered(raw, argv=("sinfo",)), token=TOKEN)
    assert "cpu" in parsed.table["name"].to_pylist()
    assert parsed.rejected
    assert all(
        words.startswith("a partition with a count out of range: gpu up")
        for words in parsed.rejected
    )


def test_a_partition_without_a_limit_has_none() -> None:
    assert read_queues({"time": "infinite"})[0]["limit_seconds"] is None


@for_each("word", ["down", "drain", "inact"])
def test_a_partition_that_is_not_up_is_not_available(word: str) -> None:
    assert read_queues({"available": word})[0]["available"] is False


def test_other_text_is_no_list_of_nodes() -> None:
    for parse in (nodes.parse_nodes, queues.parse_queues):
        with pytest.raises(UnreadableOutput):
            parse(
                answered(b"sinfo 3.1 - a system information tool\n", argv=("sinfo",)), token=TOKEN
            )
