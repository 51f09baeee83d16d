"""A report as lines and as a page: they fit, say what is so without colours, and let no name out of
its place.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

from rich.cells import cell_len

from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.services.usage.charts import Line, as_ascii, draw_report
from hpcdash.services.usage.html_page import report_page
from hpcdash.services.usage.report import GROUPINGS, UsageReport, build_report
from tests.support.job_rows import build_table, run_row
from tests.support.records import for_each

DAY, GIB = 86_400, 1 << 30
BEGIN = int(datetime(2026, 11, 2, tzinfo=UTC).timestamp())
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' style='background:url(//evil.example/x)",
    "\x1b[31mred\x1b[0m\x07",
    "a\nb\tc\r",
    "‮gpj.exe",
    "漢字テスト" * 9,
    "=cmd|' /C calc'!A0",
    "]]></style><style>*{display:none}",
    "{{7*7}}",
)


def report_of(
    names: tuple[str, ...] = ("train", "eval"), *, days: int = 14, gpus: int = 2
) -> UsageReport:
    """Two runs a day, one of which fails; each name is a user, account and queue too."""
    rows: list[dict[str, Any]] = []
    for number in range(2 * max(days, len(names))):
        name = names[number % len(names)]
        begin = BEGIN + (number // 2) % days * DAY + 3600 * (number % 7)
        rows.append(
            run_row(
                str(number),
                "failed" if number % 3 == 1 else "completed",
                **dict.fromkeys(("name", "user", "account", "queue"), name),
                cpus=8,
                gpus=gpus,
                gpu_use=0.3 if gpus else None,
                cpu_seconds_used=9000.0,
                memory_bytes=64 * GIB,
                memory_peak_bytes=3 * GIB,
                elapsed_seconds=7200,
                limit_seconds=DAY,
                submitted_at=datetime.fromtimestamp(begin - 60 * number, UTC),
                started_at=datetime.fromtimestamp(begin, UTC),
                ends_at=datetime.fromtimestamp(begin + 7200, UTC),
            )
        )
    return build_report(
        build_table(*rows, schema=RUNS), Span(BEGIN, BEGIN + days * DAY), UTC, ("Your own jobs",)
    )


def plain_text(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@for_each("width", [40, 80, 150, 200])
@for_each("days", [1, 14, 61, 400])
def test_lines_fit_the_width_at_any_span(width: int, days: int) -> None:
    report = report_of(HOSTILE, days=days)
    for by in ("queue", "day", "week"):
        for line in plain_text(draw_report(report, width, by, 60)):
            assert cell_len(line.rstrip()) <= max(width, 60), line
            # Nothing that a terminal obeys or that turns the rest around.
            assert not [
                letter for letter in line if unicodedata.category(letter) in ("Cc", "Cf")
            ], line


def test_what_is_drawn_says_it_without_colours() -> None:
    lines = plain_text(draw_report(report_of(), 100))
    titles = [
        line
        for line in lines
        if line.startswith(("GPU hours per day", "By queue", "Concurrent GPUs", "Most wasted"))
    ]
    assert [title.split("  ")[0] for title in titles] == [
        "GPU hours per day",
        "By queue",
        "Concurrent GPUs by hour",
        "Most wasted",
    ]
    # Failures are another sign, the most that was held is the darkest.
    chart = lines[lines.index(titles[0]) + 1 : lines.index(titles[0]) + 10]
    assert any("▒" in line for line in chart)
    assert any("█" in line for line in chart)
    assert "Nov 2" in lines[lines.index(titles[0]) + 10]
    bars = [line.count("█") for line in lines if line.startswith(("train ", "eval "))][:2]
    assert bars[0] == bars[1] > 20
    assert all(line.isascii() for line in plain_text(as_ascii(draw_report(report_of(), 100))))


def test_without_gpus_it_is_about_cpus_and_of_nothing_it_says_so() -> None:
    assert any(
        line.startswith("CPU hours per day")
        for line in plain_text(draw_report(report_of(gpus=0), 100))
    )
    empty = build_report(RUNS.empty_table(), Span(BEGIN, BEGIN + DAY), UTC)
    assert plain_text(draw_report(empty, 100))[-1] == "Nothing ran in this interval."
    assert "Nothing ran in this interval." in report_page(empty, "Usage of juno")


class _Page(HTMLParser):
    """Which elements and attributes there are, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.text = ""
        self.depth = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_name_gets_out_of_its_place_in_the_page() -> None:
    harmless, hostile = (
        _Page(report_page(report_of(names), names[0], names[0])) for names in (("a", "b"), HOSTILE)
    )
    # What others wrote makes no element and no attribute that is not there without it.
    assert hostile.elements == harmless.elements | {"details", "summary"} & hostile.elements
    assert hostile.attributes == harmless.attributes
    assert not hostile.elements & {"script", "img", "link", "iframe", "a", "form", "object", "base"}
    assert not hostile.attributes & {"src", "href", "onerror", "onclick", "onload"}
    assert "<script>alert(1)</script>" in hostile.text
    assert "␛[31mred␛[0m␇" in hostile.text
    # The one style sheet is the page's own, and nothing is loaded from anywhere.
    style = next(value for value in hostile.values if value.startswith("default-src"))
    assert style.startswith("default-src 'none'")
    drawn = [
        value
        for value in hostile.values
        if ("url(" in value or "//" in value) and "evil.example" not in value
    ]
    assert drawn == []


def test_the_page_has_every_grouping_and_what_the_lines_say() -> None:
    page = _Page(
        report_page(
            report_of(), "Usage of juno", "everyone's jobs", datetime(2026, 11, 20, tzinfo=UTC)
        )
    )
    for name in GROUPINGS:
        assert f"By {name}" in page.text
    for words in (
        "GPU hours per day",
        "Usage of juno",
        "2026-11-02 to 2026-11-15",
        "requested 64G, peak 3G in",
        "weekday",
    ):
        assert words in page.text
