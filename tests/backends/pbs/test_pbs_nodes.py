"""What pbsnodes says of nodes and vnodes, in DSV, in text, and as Torque prints it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.nodes import node_state, nodes_query, parse_nodes
from hpcdash.backends.queries import ParsedTable
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain import schema
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import ControllerDown, HpcdashError, UnreadableOutput
from hpcdash.recorded import find_token
from tests.backends.pbs.test_pbs_records import SCENES, TORQUE, mutations
from tests.support.records import for_each
from tests.support.slurm_text import answered

GIB = 1 << 30
TOKEN = RECORDED_TOKEN
NODE = {
    "Mom": "n1",
    "ntype": "PBS",
    "state": "free",
    "resources_available.arch": "linux",
    "resources_available.host": "n1",
    "resources_available.mem": "4gb",
    "resources_available.ncpus": "4",
    "resources_available.vnode": "n1",
    "resources_assigned.mem": "0kb",
    "resources_assigned.ncpus": "0",
    "resv_enable": "True",
}


def parsed(raw: bytes, dialect: Dialect = Dialect.OPENPBS, **ended: Any) -> ParsedTable:
    return parse_nodes(answered(raw, argv=("pbsnodes",), **ended), dialect=dialect, token=TOKEN)


def fetch_rows(raw: bytes, dialect: Dialect = Dialect.OPENPBS) -> dict[str, dict[str, Any]]:
    found = parsed(raw, dialect)
    assert found.rejected == ()
    assert found.table.schema == schema.NODES
    return {row["name"]: row for row in table_to_json_rows(found.table, found.table.column_names)}


def printed(name: str = "n1", **said: str | None) -> bytes:
    """A vnode as pbsnodes prints it, with attributes changed or (None) left out; `__` stands for a
    dot.
    """
    fields = {
        **NODE,
        **{key.replace("__", "."): value for key, value in said.items()},
        "sharing": "default_shared",
    }
    parts = [
        f"Name={name}",
        *(f"{key}={value}" for key, value in fields.items() if value is not None),
    ]
    return TOKEN.join(parts).encode() + b"\n"


def node(**said: str | None) -> dict[str, Any]:
    (row,) = fetch_rows(printed(**said)).values()
    return row


def scene(name: str, file: str = "vnodes.dsv") -> bytes:
    return (SCENES / name / file).read_bytes().replace(b"@@", TOKEN.encode())


@pytest.mark.parametrize("name", ["everyday", "odd"])
def test_the_recorded_nodes(name: str) -> None:
    nodes = fetch_rows(scene(name))
    assert list(nodes) == ["cn01", "cn02", "cn03", "cn04", "gpu01[0]", "gpu01[1]"]
    assert {row["name"]: row["state"] for row in nodes.values()} == {
        "cn01": "allocated",
        "cn02": "mixed",
        "cn03": "drained",
        "cn04": "down",
        "gpu01[0]": "mixed",
        "gpu01[1]": "idle",
    }
    assert nodes["gpu01[0]"] == {
        "name": "gpu01[0]",
        "state": "mixed",
        "native_state": "free",
        "flags": [],
        "reason": None,
        "reason_by": None,
        "reason_since": None,
        "queues": None,
        "cpus": 16,
        "cpus_used": 15,
        "gpus": 2,
        "gpus_used": 1,
        "gpu_type": "a100",
        "memory_bytes": 64 * GIB,
        "memory_used_bytes": 9 * GIB,
        "load": None,
        "features": [],
        "jobs": 11,
    }
    assert nodes["cn03"]["reason"] == 'DIMM replacement, ticket #4711; "back on Fri"'
    assert nodes["cn03"]["reason_since"] == "2026-11-21T03:59:00Z"


def test_a_cray_s_accelerators_are_gpus() -> None:
    found = node(resources_available__naccelerators="4", resources_assigned__naccelerators="3")
    assert (found["gpus"], found["gpus_used"]) == (4, 3)
    both = node(resources_available__ngpus="2", resources_available__naccelerators="4")
    assert both["gpus"] == 2


def test_text_says_what_dsv_says() -> None:
    assert fetch_rows(scene("older", "vnodes.txt"), Dialect.PBS_TEXT) == fetch_rows(
        scene("everyday")
    )


def test_the_resources_of_a_divided_host_are_counted_once() -> None:
    by_vnode = fetch_rows(scene("everyday")).values()
    by_host = fetch_rows(scene("everyday", "nodes.dsv")).values()
    for key in ("cpus", "cpus_used", "gpus", "gpus_used", "memory_bytes", "memory_used_bytes"):
        assert sum(row[key] or 0 for row in by_vnode) == sum(row[key] or 0 for row in by_host), key


def test_a_divided_host_that_kept_resources_is_a_row_too() -> None:
    raw = printed() + printed("n1[0]", resources_available__vnode="n1[0]")
    assert list(fetch_rows(raw)) == ["n1", "n1[0]"]
    emptied = printed(resources_available__ncpus="0", resources_available__mem="0b")
    assert list(fetch_rows(emptied + printed("n1[0]"))) == ["n1[0]"]
    assert list(fetch_rows(emptied)) == ["n1"]


def test_a_node_that_failed_keeps_its_job_and_says_since_when() -> None:
    failed = fetch_rows(scene("node-failed"))["cn02"]
    assert (failed["state"], failed["jobs"], failed["cpus_used"]) == ("down", 1, 1)
    assert failed["reason"] == "node down: communication closed"
    assert failed["reason_since"] == "2026-11-21T04:17:19Z"


def test_a_node_that_never_came_up_has_unknown_resources() -> None:
    never = fetch_rows(scene("everyday"))["cn04"]
    assert (never["native_state"], never["flags"]) == ("state-unknown,down", ["state_unknown"])
    assert [never[key] for key in ("cpus", "gpus", "gpus_used", "gpu_type", "memory_bytes")] == [
        None
    ] * 5
    assert never["jobs"] == 0


def test_a_job_on_several_slots_is_one_job_and_tasks_are_jobs_of_their_own() -> None:
    assert node(jobs="3.s/0,3.s/1,12[4].s/2,12[5].s/3")["jobs"] == 3
    assert node(jobs="3.s/0, 3.s/1")["jobs"] == 1
    assert node()["jobs"] == 0


def test_a_good_node_has_no_date_of_a_reason() -> None:
    good = node(last_state_change_time="1795233540", comment="new disk")
    assert (good["reason"], good["reason_since"]) == ("new disk", None)
    assert node(state="offline", last_state_change_time="<various>")["reason_since"] is None


def test_a_node_bound_to_a_queue_names_it() -> None:
    assert node(queue="gpu")["queues"] == ["gpu"]
    assert node()["queues"] is None


def test_a_site_s_own_resources_are_features_where_they_are_no_amounts() -> None:
    row = node(
        resources_available__bigmem="True",
        resources_available__old="False",
        resources_available__cputype="milan",
        resources_available__scratch="2tb",
        resources_available__licenses="5",
        resources_available__gputype="h100",
    )
    assert row["features"] == ["bigmem", "cputype=milan"]
    assert row["gpu_type"] == "h100"


@for_each(
    ("native", "has_jobs", "state", "flags"),
    [
        ("free", False, "idle", []),
        ("free", True, "mixed", []),
        ("job-busy", True, "allocated", []),
        ("job-exclusive", True, "allocated", []),
        ("job-exclusive,resv-exclusive", True, "allocated", ["resv_exclusive"]),
        ("resv-exclusive", False, "reserved", ["resv_exclusive"]),
        ("busy", True, "allocated", ["busy"]),
        ("offline", False, "drained", ["offline"]),
        ("offline", True, "draining", ["offline"]),
        ("offline,job-busy", True, "draining", ["offline"]),
        ("offline_by_mom", False, "drained", ["offline_by_mom"]),
        ("down", True, "down", []),
        ("down,offline", False, "down", ["offline"]),
        ("Stale", False, "down", ["stale"]),
        ("state-unknown", False, "unknown", ["state_unknown"]),
        ("state-unknown,down", False, "down", ["state_unknown"]),
        ("provisioning", False, "planned", ["provisioning"]),
        ("wait-provisioning,offline", False, "drained", ["wait_provisioning", "offline"]),
        ("sleep", False, "idle", ["sleep"]),
        ("maintenance", False, "reserved", ["maint"]),
        ("unresolvable", False, "down", ["unresolvable"]),
        ("reserve", False, "reserved", ["reserve"]),
        ("job-sharing", True, "mixed", []),
        ("time-shared", False, "idle", ["time_shared"]),
        ("<various>", True, "unknown", ["various"]),
        ("", False, "unknown", []),
    ],
)
def test_states(native: str, has_jobs: bool, state: str, flags: list[str]) -> None:
    assert node_state(native, has_jobs=has_jobs) == (state, flags)


def test_a_node_without_a_state_is_unknown() -> None:
    row = node(state=None)
    assert (row["state"], row["native_state"]) == ("unknown", None)


def test_a_comment_of_several_lines_is_one_reason() -> None:
    nodes = fetch_rows(printed(comment="one\nName=n9\ntwo") + printed("n2"))
    assert list(nodes) == ["n1", "n2"]
    assert nodes["n1"]["reason"] == "one\nName=n9\ntwo"
    assert nodes["n1"]["cpus"] == 4


def test_torque_s_nodes() -> None:
    nodes = fetch_rows((TORQUE / "pbsnodes-a.txt").read_bytes(), Dialect.TORQUE)
    assert {name: row["state"] for name, row in nodes.items()} == {
        **dict.fromkeys(("g01", "g02", "n01", "n07"), "mixed"),
        **dict.fromkeys(("n02", "n06"), "allocated"),
        **dict.fromkeys(("n04", "n05", "n08"), "down"),
        "n03": "drained",
    }
    used = [(name, row["jobs"], row["cpus_used"]) for name, row in nodes.items() if row["jobs"]]
    assert used == [("g01", 1, 4), ("g02", 1, 1), ("n01", 1, 2), ("n02", 3, 8), ("n07", 1, 2)]
    assert {row["cpus"] for row in nodes.values()} == {8}
    first = nodes["g01"]
    assert (first["gpus"], first["gpus_used"], first["gpu_type"]) == (2, 1, "Tesla V100-SXM2-32GB")
    assert (first["load"], first["memory_bytes"], first["features"]) == (
        3.91,
        64 * GIB,
        ["gpu", "v100"],
    )
    assert nodes["n05"]["reason"] == "no power: see <ticket> 4711 & ask"
    assert nodes["n04"]["memory_bytes"] is None


def test_a_torque_node_with_more_jobs_than_can_be_counted_is_rejected_and_the_others_stand() -> (
    None
):
    raw = (
        b"n1\n     state = free\n     np = 8\n     jobs = 0-9223372036854775806/12.s, 0-9/13.s\n\n"
    )
    read = parsed(
        raw + b"n2\n     state = free\n     np = 8\n     jobs = 0-3/12.s\n\n", Dialect.TORQUE
    )
    assert read.table["name"].to_pylist() == ["n2"]
    assert read.rejected == ("a node whose job count is out of range: n1",)


def test_each_dialect_asks_in_its_own_way() -> None:
    asked = {dialect: nodes_query(dialect).argv[3:] for dialect in Dialect}
    assert asked[Dialect.OPENPBS][:-1] == ("pbsnodes", "-av", "-F", "dsv", "-D")
    assert find_token(nodes_query(Dialect.OPENPBS).argv) != find_token(
        nodes_query(Dialect.OPENPBS).argv
    )
    assert asked[Dialect.PBS_TEXT] == ("pbsnodes", "-av")
    assert asked[Dialect.TORQUE] == ("pbsnodes", "-a")


def test_a_server_without_nodes_has_none() -> None:
    assert parsed(b"", stderr=b"pbsnodes: No nodes found\n").table.num_rows == 0
    assert parsed(b"", status=1, stderr=b"pbsnodes: Server has no node list\n").table.num_rows == 0


def test_a_server_that_is_down_is_no_empty_list() -> None:
    with pytest.raises(ControllerDown) as caught:
        parsed(b"", status=1, stderr=b"pbsnodes: cannot connect to server pbs01, error=15010\n")
    assert caught.value.argv == ("pbsnodes", "-av")


def test_something_else_is_unreadable() -> None:
    with pytest.raises(UnreadableOutput):
        parsed(b"usage: pbsnodes [-a]\n")


@pytest.mark.parametrize(
    ("dialect", "raw"),
    [
        (Dialect.OPENPBS, scene("everyday")[:4000]),
        (Dialect.PBS_TEXT, scene("older", "vnodes.txt")[:4000]),
        (Dialect.TORQUE, (TORQUE / "pbsnodes-a.txt").read_bytes()),
    ],
    ids=str,
)
@given(draw=st.data(), status=st.sampled_from([0, 0, 0, 1]))
def test_broken_output_is_read_or_refused_with_an_error_of_ours(
    dialect: Dialect, raw: bytes, draw: st.DataObject, status: int
) -> None:
    with suppress(HpcdashError):
        table = parsed(draw.draw(mutations(raw)), dialect, status=status).table
        table_to_json_rows(table, table.column_names)
