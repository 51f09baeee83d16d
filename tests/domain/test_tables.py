"""Each table is declared once, and the declaration names only what there is."""

from __future__ import annotations

from hpcdash.domain.schema import SCHEMAS, arrow_schema
from hpcdash.domain.tables import TABLES, Kind
from tests.support.records import for_each


@for_each("name", TABLES)
def test_all_names_of_a_table_are_its_columns_or_fields(name: str) -> None:
    spec = TABLES[name]
    columns = {column.name for column in spec.columns}
    assert len(columns) == len(spec.columns)
    assert columns >= {*spec.shown}
    assert {*spec.names} >= {*spec.printed, *spec.whole, *spec.dropped}
    assert {*(spec.printed or spec.shown)} >= {*spec.whole, *spec.dropped}
    assert {column.key for column in spec.columns} >= spec.optional
    assert {*spec.fields} >= {column.total for column in spec.columns if column.total}
    assert {*spec.fields} >= {key for column in spec.columns for key in column.inputs}


@for_each("name", TABLES)
def test_a_table_is_as_wide_in_json_as_its_rows_in_arrow(name: str) -> None:
    spec = TABLES[name]
    assert arrow_schema(spec).names == list(spec.fields)
    assert spec.public_names == [field for field in spec.fields if not field.startswith("_")]


def test_each_snapshot_is_of_one_table() -> None:
    assert set(SCHEMAS) == set(Kind)
    assert TABLES["jobs"].kind() is Kind.MINE
    assert TABLES["jobs"].kind(everyone=True) is Kind.EVERYONE
    assert TABLES["nodes"].kind(everyone=True) is Kind.NODES


def test_a_column_is_found_by_its_name_or_by_its_field() -> None:
    jobs = TABLES["jobs"]
    assert jobs.column("elapsed") == jobs.column("elapsed_seconds")
    assert jobs.column("array_task") is None


def test_rows_are_sorted_by_the_field_of_a_column() -> None:
    jobs, nodes = TABLES["jobs"], TABLES["nodes"]
    assert [jobs.sort_field(name) for name in ("elapsed", "left", "ends_at", "priority")] == [
        "elapsed_seconds",
        "ends_at",
        "ends_at",
        "priority",
    ]
    assert [nodes.sort_field(name) for name in ("cpus", "memory")] == ["cpus", "memory_used_bytes"]
