"""What is said beside an empty table."""

from hpcdash.cli.jobs import _format_nothing


def test_an_empty_table_says_why_it_is_empty() -> None:
    assert _format_nothing("jobs", mine=True, all_rows=0) == "no job of yours in the queue; --all shows everyone's"
    assert _format_nothing("history", mine=True, all_rows=0).startswith("no job of yours ended in the last 7 days")
    assert _format_nothing("jobs", mine=False, all_rows=12) == "none of 12 rows matches the filter"
    assert _format_nothing("nodes", mine=True, all_rows=0) == "nothing"
