from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.query import MAX_LENGTH, apply, completions, parse
from hpcdash.domain.schema import JOBS, NODES, QUEUES
from hpcdash.errors import QueryError
from tests.support.records import for_each

NOW = 1_795_239_255
HOUR = 3600
GIB = 1024**3


def jobs() -> pa.Table:
    columns = {
        "id": ["101", "102", "88_3", "88_[4-10%2]", "205"],
        "array_id": [None, None, "88", "88", None],
        "name": ["train_small", "Eval run", "sweep", "sweep", "lr=0.1 (new)"],
        "user": ["ada", "ben", "ada", "ada", None],
        "queue": ["gpu", "cpu", "gpu", "gpu", "debug"],
        "state": ["running", "completed", "running", "pending", "held"],
        "reason": [None, None, None, "Resources", "JobHeldUser"],
        "priority": [10, 20, 30, None, -5],
        "gpus": [1, 0, 4, 8, None],
        "memory_bytes": [16 * GIB, GIB, 64 * GIB, None, 2 * GIB],
        "elapsed_seconds": [90, 4 * HOUR, 10, None, None],
        "limit_seconds": [HOUR, 8 * HOUR, 3 * HOUR, 3 * HOUR, None],
        "submitted_at": [NOW - 60, NOW - 5 * HOUR, NOW - 3 * HOUR, NOW - 3 * HOUR, NOW - 86_400],
        "started_at": [NOW - 30, NOW - 4 * HOUR, NOW - HOUR, None, None],
        "node_list": ["n1", "n[02-04]", "rack1n[1-3,7]", None, None],
        "_number": [101, 102, 88, 88, 205],
    }
    return pa.table(
        {
            name: pa.array(columns.get(name, [None] * 5), JOBS.field(name).type)
            for name in JOBS.names
        },
        schema=JOBS,
    )


def test_a_job_that_asked_for_several_queues_is_in_each_of_them() -> None:
    table = jobs().slice(0, 2)
    queues = pa.array(["gpu,cpu-long", "cpu"], JOBS.field("queue").type)
    table = table.set_column(table.column_names.index("queue"), JOBS.field("queue"), queues)
    expected = {
        "queue:gpu": ["101"],
        "queue:CPU-long": ["101"],
        "queue:cpu": ["102"],
        "queue!:gpu": ["102"],
    }
    assert {expression: matched_jobs(expression, table) for expression in expected} == expected


def test_a_word_finds_a_job_by_its_other_id_too() -> None:
    table = jobs()
    other = pa.array([None, "0a000000", None, None, None], pa.string())
    table = table.set_column(table.column_names.index("_other_id"), JOBS.field("_other_id"), other)
    assert matched_jobs("0a00", table) == ["102"]
    assert matched_jobs("!0a00", table) == ["101", "88_3", "88_[4-10%2]", "205"]


def nodes() -> pa.Table:
    columns = {
        "name": ["n1", "n2", "g1"],
        "state": ["idle", "down", "mixed"],
        "reason": [None, "disk broken", None],
        "queues": [["cpu", "long"], ["cpu"], ["gpu"]],
        "flags": [[], ["maint"], None],
        "features": [["icelake"], None, ["a100", "nvlink"]],
        "load": [0.5, None, 31.25],
    }
    return pa.table(
        {
            name: pa.array(columns.get(name, [None] * 3), NODES.field(name).type)
            for name in NODES.names
        },
        schema=NODES,
    )


def matched_jobs(expression: str, table: pa.Table | None = None) -> list[str]:
    found: list[str] = apply(jobs() if table is None else table, parse(expression, JOBS), NOW)[
        "id"
    ].to_pylist()
    return found


ALL = ["101", "102", "88_3", "88_[4-10%2]", "205"]


@for_each(
    ("expression", "expected"),
    [
        ("", ALL),
        ("   ", ALL),
        ("TRAIN", ["101"]),
        ("ada", ["101", "88_3", "88_[4-10%2]"]),
        ("88_", ["88_3", "88_[4-10%2]"]),
        ("gpu sweep", ["88_3", "88_[4-10%2]"]),
        ("gpu and sweep", ["88_3", "88_[4-10%2]"]),
        ("train or eval", ["101", "102"]),
        ("ada (train or state:pending)", ["101", "88_[4-10%2]"]),
        ("ada !sweep", ["101"]),
        ("not ada", ["102", "205"]),
        ("not(ada or ben)", ["205"]),
        ("!!ben", ["102"]),
        ('"eval run"', ["102"]),
        ('"lr=0.1"', ["205"]),
        ("tr*small", ["101"]),
        ("state:running", ["101", "88_3"]),
        ("state:run", ["101", "88_3"]),
        ("state:RUN,pend", ["101", "88_3", "88_[4-10%2]"]),
        ('state:"run"', []),
        ("state:Running,PENDING", ["101", "88_3", "88_[4-10%2]"]),
        ("state!:running", ["102", "88_[4-10%2]", "205"]),
        ("status=held", ["205"]),
        ("state: held", ["205"]),
        ("state : held", ["205"]),
        ("limit !: 3h", ["101", "102", "205"]),
        ("name:sweep", ["88_3", "88_[4-10%2]"]),
        ("name:swee", []),
        ("name:swee*", ["88_3", "88_[4-10%2]"]),
        ("name:*_small", ["101"]),
        ("name:train%small", []),
        ('name:"eval run",sweep', ["102", "88_3", "88_[4-10%2]"]),
        ("name:lr=0.1*(new)", ["205"]),
        ('name~"\\(new\\)$"', ["205"]),
        ("name~^(train|eval)", ["101", "102"]),
        ("(name~^(train|eval))", ["101", "102"]),
        ("name!~e", ["101"]),
        ("user:none", ["205"]),
        ("user!:none", ["101", "102", "88_3", "88_[4-10%2]"]),
        ('user:"none"', []),
        ("reason:none,Resources", ["101", "102", "88_3", "88_[4-10%2]"]),
        ("partition:GPU", ["101", "88_3", "88_[4-10%2]"]),
        ("gpus>1", ["88_3", "88_[4-10%2]"]),
        ("gpus >= 1", ["101", "88_3", "88_[4-10%2]"]),
        ("gpu:0,4", ["102", "88_3"]),
        ("gpus!=0", ["101", "88_3", "88_[4-10%2]", "205"]),
        ("gpus:none", ["205"]),
        ("priority<0", ["205"]),
        ("priority:-5", ["205"]),
        ("limit>2h", ["102", "88_3", "88_[4-10%2]"]),
        ("limit<=1:00:00", ["101"]),
        ("limit_seconds=3600", ["101"]),
        ("limit:unlimited", ["205"]),
        ("elapsed>1m time<1h", ["101"]),
        ("memory>=16G", ["101", "88_3"]),
        ("memory_bytes:1G", ["102"]),
        ("mem<1.5g", ["102"]),
        ("submitted>2h ago", ["101"]),
        ("submitted > 2 hours ago", ["101"]),
        ("submitted_at>-4h gpus>1", ["88_3", "88_[4-10%2]"]),
        ("started>-2h", ["101", "88_3"]),
        ("started:today", ["101", "102", "88_3"]),
        ("submitted<2026-11-21 00:30", ["205"]),
        ("submitted:2026-11-20,2026-11-21", ALL),
        ("started:none", ["88_[4-10%2]", "205"]),
        ("array:88", ["88_3", "88_[4-10%2]"]),
        ("id:88", ["88_3", "88_[4-10%2]"]),
        ("id:88_3", ["88_3"]),
        ("id:88_[4-10%2]", ["88_[4-10%2]"]),
        ("id>100", ["101", "102", "205"]),
        ("node:n03", ["102"]),
        ("node:n3", []),
        ("node:RACK1N7,n1", ["101", "88_3"]),
        ("node:rack*", ["88_3"]),
        ("node:n[02-04]", ["102"]),
    ],
)
def test_a_filter_on_jobs_matches(expression: str, expected: list[str]) -> None:
    assert sorted(matched_jobs(expression)) == sorted(expected)


@for_each(
    ("expression", "expected"),
    [
        ("cpu", ["n1", "n2"]),
        ("broken", ["n2"]),
        ("a100", ["g1"]),
        ("queues:cpu", ["n1", "n2"]),
        ("queue:long,gpu", ["n1", "g1"]),
        ("queues!:cpu", ["g1"]),
        ("features~^nv", ["g1"]),
        ("features:a*", ["g1"]),
        ("flags:none", ["n1", "g1"]),
        ("flags:maint", ["n2"]),
        ("load>0.5", ["g1"]),
        ("load:0.5", ["n1"]),
        ("load:none", ["n2"]),
        ("!down", ["n1", "g1"]),
        ("node:g1", ["g1"]),
    ],
)
def test_a_filter_on_nodes_matches(expression: str, expected: list[str]) -> None:
    assert apply(nodes(), parse(expression, NODES), NOW)["name"].to_pylist() == expected


@for_each(
    ("expression", "expected"),
    [("default:yes", ["a"]), ("default:no", ["b"]), ("queue:b", ["b"]), ("default:none", ["c"])],
)
def test_a_filter_on_queues_matches(expression: str, expected: list[str]) -> None:
    columns = {"name": ["a", "b", "c"], "default": [True, False, None]}
    queues = pa.table(
        {
            name: pa.array(columns.get(name, [None] * 3), QUEUES.field(name).type)
            for name in QUEUES.names
        }
    )
    assert apply(queues, parse(expression, QUEUES), NOW)["name"].to_pylist() == expected


@for_each(
    ("expression", "position", "words"),
    [
        ("usr:ada", 0, "did you mean user?"),
        ("ada stat:running", 4, "did you mean state?"),
        ("qqqq:1", 0, "no column qqqq"),
        ("limit>", 6, "a value is missing after limit>"),
        ("(limit>)", 7, "a value is missing after limit>"),
        ("ada limit>2x", 10, "'2x' is not a duration"),
        ("memory>lots", 7, "'lots' is not an amount of memory"),
        ("gpus:1,many", 7, "'many' is not a count"),
        ("submitted>2h", 10, "'2h' is not a time"),
        ("state:a,,b", 8, "a value is missing here"),
        ("gpus>1,2", 7, "accepts only one value"),
        ("gpus>none", 5, "cannot be ordered"),
        ("limit>unlimited", 6, "unlimited cannot be compared"),
        ("user>a", 5, "cannot be ordered"),
        ("name~(", 5, "regular expression"),
        ("name~[z-a]", 5, "regular expression"),
        ("gpus~1", 5, "is for text"),
        ("(ada", 0, "unclosed parenthesis"),
        ("ada)", 3, "unmatched closing parenthesis"),
        ("()", 1, "missing condition before this"),
        ("ada or", 6, "missing condition here"),
        ("or ada", 0, "missing condition before this"),
        ("ada and or ben", 8, "missing condition before this"),
        ("!", 1, "missing condition here"),
        ('name:"a', 5, "unclosed quote"),
        ("> 5", 0, "a column is missing before this"),
        ("(:x)", 1, "a column is missing before this"),
        ("(" * 50, 41, "nested at most"),
    ],
)
def test_a_bad_filter_says_where_it_is_bad(expression: str, position: int, words: str) -> None:
    with pytest.raises(QueryError) as refused:
        parse(expression, JOBS)
    assert words in refused.value.short
    assert refused.value.position == position
    assert refused.value.expression == expression


def test_a_switch_is_yes_or_no() -> None:
    with pytest.raises(QueryError, match="neither yes nor no"):
        parse("default:maybe", QUEUES)


def test_a_filter_too_long_to_be_one_is_refused() -> None:
    with pytest.raises(QueryError):
        parse("a " * MAX_LENGTH, JOBS)


FRAGMENTS = st.sampled_from(
    [
        *'*()![]:,\\"\0\ud800',
        *(
            "ada",
            "train",
            "not",
            "or",
            "and",
            "none",
            "state:running",
            "name~",
            "^a.*b$",
            "2h",
            "ago",
        ),
        *("limit>2h", "gpus>=", "1,2", "submitted<", "node:n[1-3]", "key:v"),
    ]
)
EXPRESSIONS = (
    st.text()
    | st.lists(FRAGMENTS | st.text(max_size=3), max_size=8).map(" ".join)
    | st.lists(FRAGMENTS, max_size=8).map("".join)
)


@given(EXPRESSIONS)
def test_every_text_is_a_filter_or_a_query_error(text: str) -> None:
    for schema, table in ((JOBS, jobs()), (NODES, nodes())):
        try:
            wanted = parse(text, schema)
        except QueryError as error:
            position = error.position
            assert 0 <= position <= len(text)
            continue
        mask = wanted.mask(table, NOW)
        assert mask.type == pa.bool_()
        assert len(mask) == table.num_rows
        assert mask.null_count == 0


@given(EXPRESSIONS)
def test_not_is_the_complement(text: str) -> None:
    try:
        wanted, opposite = parse(text, JOBS), parse(f"!({text})", JOBS)
    except QueryError:
        return
    table = jobs()
    assert [not hit for hit in wanted.mask(table, NOW).to_pylist()] == opposite.mask(
        table, NOW
    ).to_pylist()


@for_each(
    "expression",
    [
        "ada",
        "state:running",
        "node:n03",
        "limit>2h",
        "name~e",
        "started:today",
        "queue:none",
        "!gpu",
    ],
)
def test_a_table_in_pieces_or_empty_is_filtered_alike(expression: str) -> None:
    table = jobs()
    pieces = pa.concat_tables([table.slice(0, 2), table.slice(2, 0), table.slice(2)])
    assert matched_jobs(expression, pieces) == matched_jobs(expression)
    assert matched_jobs(expression, table.slice(0, 0)) == []
    assert matched_jobs(expression, JOBS.empty_table()) == []
    assert matched_jobs(expression, table.slice(1, 3)) == [
        job for job in matched_jobs(expression) if job in ALL[1:4]
    ]


@for_each(
    ("expression", "expected"),
    [
        ("id:6", ["6.pbs01"]),
        ("id:6.pbs01", ["6.pbs01"]),
        ('id:"6"', []),
        ("id:14", ["14[].pbs01", "14[3].pbs01"]),
        ("id:14[]", ["14[].pbs01"]),
        ("id:14[3]", ["14[3].pbs01"]),
        ("id:14,6", ["6.pbs01", "14[].pbs01", "14[3].pbs01"]),
        ("id!:6", ["60.pbs01", "14[].pbs01", "14[3].pbs01"]),
        ("array:14", ["14[].pbs01", "14[3].pbs01"]),
    ],
)
def test_an_id_without_a_server_is_that_of_any(expression: str, expected: list[str]) -> None:
    ids = ["6.pbs01", "60.pbs01", "14[].pbs01", "14[3].pbs01"]
    arrays = [None, None, "14[].pbs01", "14[].pbs01"]
    known = {"id": ids, "array_id": arrays}
    columns = {
        name: pa.array(known.get(name, [None] * 4), JOBS.field(name).type) for name in JOBS.names
    }
    assert (
        apply(pa.table(columns, schema=JOBS), parse(expression, JOBS), NOW)["id"].to_pylist()
        == expected
    )


def test_a_column_the_table_lacks_is_null() -> None:
    table = jobs().drop_columns(["gpus", "reason"])
    assert matched_jobs("gpus>0", table) == []
    assert matched_jobs("gpus:none reason:none", table) == ALL


def test_a_prefix_is_completed_to_keys_and_values() -> None:
    assert completions("sta", JOBS) == ["state:", "started_at:"]
    assert completions("ada state:run", JOBS) == ["ada state:running"]
    assert completions("state:running,pend", JOBS) == ["state:running,pending"]
    assert completions("(que", JOBS) == ["(queue:"]
    assert completions("user:", JOBS, jobs()) == ["user:ada", "user:ben"]
    assert completions("default:", QUEUES) == ["default:yes", "default:no"]
    assert completions("nosuch:x", JOBS) == []
    assert completions("a " * (MAX_LENGTH // 2) + "user:", JOBS, jobs()) == []


@given(EXPRESSIONS)
def test_every_text_has_completions_or_none(text: str) -> None:
    assert all(completed for completed in completions(text, JOBS, jobs()))
