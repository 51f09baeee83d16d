"""Whatever bytes a field holds or a line loses, no row is forged and nothing but an HpcdashError is
raised.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcdash.backends.queries import Answer, ParsedTable
from hpcdash.backends.slurm import detail, history, jobs, nodes, probe, queues, rows
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import HpcdashError
from hpcdash.recorded import find_token
from tests.support.records import for_each
from tests.support.slurm_text import (
    NODE,
    QUEUE,
    TOKEN,
    answered,
    history_text,
    printed_row,
    queue_text,
)

ANY_BYTES = st.binary(max_size=60).map(
    lambda raw: raw.replace(b"\0", b"").replace(TOKEN.encode(), b"")
)
SHAPES = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"\x1f",
        b"\x1e",
        b"\x1eabcDEF012",
        b"\n999\x1fforged\x1fbob",
        b'"',
        b"\xff",
        b"\xc3",
        b"\x1b[2J",
    ]
)
HOSTILE = st.one_of(
    ANY_BYTES, st.lists(st.one_of(SHAPES, ANY_BYTES), max_size=5).map(b"".join)
).map(lambda raw: raw.replace(b"\0", b"").replace(TOKEN.encode(), b""))
FIELDS = st.fixed_dictionaries(
    {"name": HOSTILE, "comment": HOSTILE, "workdir": HOSTILE, "reason": HOSTILE}
)
THREE_JOBS = queue_text(
    {"jobarrayid": "1"},
    {
        "jobarrayid": "2_[3-10%1]",
        "arraytaskid": "3-10%1",
        "state": "PENDING",
        "reason": "JobHeldUser",
        "name": "a\nb",
    },
    {"jobarrayid": "3", "state": "FAILED", "exit_code": "768"},
)
THREE_PAST_JOBS = history_text(
    {"jobid": "1"}, {"jobid": "2_4", "jobname": "a\nb"}, {"jobid": "3", "state": "FAILED"}
)


@pytest.fixture(params=[7, 64, 1000, 1 << 20], ids=lambda size: f"chunks-of-{size}")
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr(rows, "_CHUNK_BYTES", size)
    return size


def decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


@given(first=FIELDS, second=FIELDS)
def test_any_bytes_in_a_person_s_fields_come_back_and_forge_nothing(
    first: dict[str, bytes], second: dict[str, bytes]
) -> None:
    raw = queue_text(
        {"jobarrayid": "1", **first}, {"jobarrayid": "2", **second}, {"jobarrayid": "3"}
    )
    for size in (11, 1 << 20):
        columns = with_chunks(size, raw)
        assert columns.table["jobarrayid"].to_pylist() == ["1", "2", "3"]
        assert columns.rejected == ()
        for name in FIELDS_OF_A_PERSON:
            expected = [decoded(first[name]), decoded(second[name])]
            assert columns.table[name].to_pylist()[:2] == expected


FIELDS_OF_A_PERSON = ("name", "comment", "workdir", "reason")


def with_chunks(size: int, raw: bytes) -> rows.Columns:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_CHUNK_BYTES", size)
        columns = rows.read_rows(raw, TOKEN, jobs.LAYOUT)
    assert columns is not None
    return columns


@given(name=HOSTILE, comment=HOSTILE, workdir=HOSTILE)
def test_any_bytes_in_sacct_s_fields_come_back_and_forge_nothing(
    name: bytes, comment: bytes, workdir: bytes
) -> None:
    raw = history_text(
        {"jobid": "1", "jobname": name, "comment": comment, "workdir": workdir}, {"jobid": "2"}
    )
    parsed = history.parse_history(answered(raw, argv=("sacct",)), token=TOKEN)
    table = parsed.table.sort_by("id")
    assert table["id"].to_pylist() == ["1", "2"]
    assert parsed.rejected == ()
    assert table["name"][0].as_py() == decoded(name)
    assert table["comment"][0].as_py() == (decoded(comment) or None)
    assert table["work_dir"][0].as_py() == (decoded(workdir) or None)


def test_rows_are_the_same_in_chunks_of_any_size(chunk_bytes: int) -> None:
    columns = rows.read_rows(THREE_JOBS * 20, TOKEN, jobs.LAYOUT)
    assert columns is not None
    assert columns.table["jobarrayid"].to_pylist() == ["1", "2_[3-10%1]", "3"] * 20
    assert columns.table["name"].to_pylist() == ["train", "a\nb", "train"] * 20
    assert columns.rejected == ()


def test_a_bad_row_is_one_rejected_row_in_chunks_of_any_size(chunk_bytes: int) -> None:
    bad = queue_text({"jobarrayid": "66"}).replace(b"\x1fgpu\x1f", b"\x1f", 1)
    columns = rows.read_rows(THREE_JOBS + bad + THREE_JOBS, TOKEN, jobs.LAYOUT)
    assert columns is not None
    assert columns.table["jobarrayid"].to_pylist() == ["1", "2_[3-10%1]", "3"] * 2
    assert len(columns.rejected) == 1


@for_each("first", [b"", b"\n", b"\n\n"])
def test_an_only_row_without_its_first_fields_is_rejected(first: bytes) -> None:
    _, _, fields = THREE_JOBS.partition(TOKEN.encode())
    row, _, _ = fields.partition(b"\n")
    parsed = jobs.parse_jobs(answered(first + TOKEN.encode() + row + b"\n"), token=TOKEN)
    assert parsed.table.num_rows == 0
    assert parsed.rejected == ("a row without its first fields",)


def test_other_output_of_many_megabytes_is_refused_in_memory_of_its_own_size() -> None:
    raw = b"not a row of anything at all\n" * 700_000
    tracemalloc.start()
    try:
        assert rows.read_rows(raw, TOKEN, jobs.LAYOUT) is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(raw) / 2


def mutations(raw: bytes) -> st.SearchStrategy[bytes]:
    """`raw` cut, with bytes changed, taken out, put in or doubled."""
    place = st.integers(0, len(raw))
    edit = st.tuples(
        place, place, st.one_of(ANY_BYTES, SHAPES, st.just(TOKEN.encode()), st.just(b"9" * 25))
    )

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        changed = raw
        for start, length, new in edits:
            at = start % (len(changed) + 1)
            changed = changed[:at] + new + changed[at + length % 12 :]
        return changed

    return st.one_of(
        place.map(lambda end: raw[:end]),
        st.lists(edit, min_size=1, max_size=6).map(apply),
        ANY_BYTES,
    )


def read_or_refused(
    parse: Callable[[Answer], ParsedTable], answer: Answer
) -> ParsedTable | HpcdashError:
    try:
        return parse(answer)
    except HpcdashError as error:
        return error


NODE_LINE = printed_row(
    nodes.LAYOUT, {**NODE, "statecomplete": "idle+drain", "user": "root", "timestamp": "1795242122"}
)
QUEUE_LINE = printed_row(queues.LAYOUT, QUEUE)
# Whose parser, what it reads, how many tokens a row has.
PARSERS: dict[str, tuple[Callable[[Answer], ParsedTable], bytes, int]] = {
    "jobs": (partial(jobs.parse_jobs, token=TOKEN), THREE_JOBS, 5),
    "history": (
        partial(history.parse_history, token=TOKEN, ended_only=False),
        THREE_PAST_JOBS,
        len(history.FIELDS) - 1,
    ),
    "nodes": (partial(nodes.parse_nodes, token=TOKEN), NODE_LINE * 3, 2),
    "queues": (partial(queues.parse_queues, token=TOKEN), QUEUE_LINE * 3, 1),
}


@pytest.mark.parametrize("kind", list(PARSERS))
@given(draw=st.data(), status=st.sampled_from([0, 0, 0, 1]), truncated=st.booleans())
def test_broken_output_is_refused_or_read_with_no_more_rows_than_its_tokens(
    kind: str, draw: st.DataObject, status: int, truncated: bool
) -> None:
    parse, text, tokens_a_row = PARSERS[kind]
    raw = draw.draw(mutations(text))
    answer = replace(answered(raw, status=status, argv=("squeue",)), truncated=truncated)
    read = read_or_refused(parse, answer)
    if isinstance(read, HpcdashError):
        assert read.next_step
    else:
        assert read.table.num_rows <= raw.count(TOKEN.encode()) // tokens_a_row
        table_to_json_rows(read.table, read.table.column_names)


PROBE_TEXT = (
    b"user=alice\nclock=1795242122\ncommand=squeue=/usr/bin/squeue\nversion=slurm "
    b"22.05.8\nping=x UP\n"
)
SHOWN_TEXT = (
    b"JobId=30 JobName=a\n   UserId=alice(1)\n   NumNodes=1 NumCPUs=4\n   StdOut=/x\n   Power=\n\n"
    b"JobId=31 JobName=b\n   UserId=bob(2)\n"
)


@given(raw=mutations(PROBE_TEXT))
def test_a_broken_probe_raises_nothing_else(raw: bytes) -> None:
    with suppress(HpcdashError):
        probe.parse_probe(answered(raw, argv=("sh",)))


@given(raw=mutations(SHOWN_TEXT))
def test_a_broken_detail_raises_nothing_else(raw: bytes) -> None:
    row = jobs.parse_jobs(answered(queue_text({"name": "a\n   JobName=b"})), token=TOKEN).table
    with suppress(HpcdashError):
        detail.SlurmDetail().join(row, detail.parse_native(answered(raw, argv=("scontrol",))))


def test_each_poll_has_a_token_of_its_own() -> None:
    tokens = {find_token(nodes.nodes_query().argv) for _ in range(50)} | {
        fresh_token() for _ in range(50)
    }
    assert len(tokens) == 100
