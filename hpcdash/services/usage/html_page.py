"""A report as one page of HTML that needs nothing else: no script, no font, no picture from
elsewhere.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np

from hpcdash.domain.text import visible
from hpcdash.domain.units import format_count
from hpcdash.services.usage.charts import (
    format_hours,
    format_report_span,
    format_wait,
    percent,
    rounded,
)
from hpcdash.services.usage.report import GROUPINGS, OF_TIME, WAIT_LABELS, WEEKDAYS, UsageReport

_SHOWN_ROWS = 12
_MAX_ROWS = 200
# Of the drawings, in their own units.
_WIDE = 1000
_HIGH = 220
# The browser itself keeps the page from loading or running anything, whatever a job is called.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --ink: #1d2433; --dim: #667085; --line: #e4e7ec;
  --bar: #2563eb; --bad: #d92d20; --heat: 37, 99, 235; }
@media (prefers-color-scheme: dark) { :root { --back: #0e1116; --card: #171b22; --ink: #e6e9ef; --dim: #98a2b3;
  --line: #2a303b; --bar: #6ea8fe; --bad: #ff7a70; --heat: 110, 168, 254; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 24px; margin: 0; letter-spacing: -.01em; } h2 { font-size: 16px; margin: 0 0 12px; }
.sub { color: var(--dim); margin: 4px 0 20px; }
.columns { columns: 2 480px; column-gap: 16px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px;
  margin: 0 0 16px; overflow: auto; break-inside: avoid; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin-bottom: 16px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 12px 14px; }
.tile b { display: block; font-size: 22px; font-weight: 650; letter-spacing: -.02em; }
.tile span { color: var(--dim); font-size: 13px; } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th { color: var(--dim); font-weight: 500; text-align: right; padding: 4px 8px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th.text, td.text { text-align: left; } td.text { max-width: 360px; overflow: hidden; text-overflow: ellipsis; }
td.bar { width: 24%; min-width: 64px; }
td.bar i { display: block; height: 10px; border-radius: 3px; background: var(--bar); }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 13px; }
.good-bar { fill: var(--bar); } .bad-bar { fill: var(--bad); } .rule { stroke: var(--line); }
.key { color: var(--dim); font-size: 13px; font-weight: 400; margin-left: 12px; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 5px 0 10px; }
.notes { color: var(--dim); font-size: 13px; margin-top: 18px; }
details { margin-top: 10px; } summary { color: var(--dim); cursor: pointer; font-size: 14px; }
ul { margin: 4px 0 12px; padding-left: 20px; } .who { color: var(--dim); font-weight: 400; }
@media print { body { background: #fff; } .card, .tile { break-inside: avoid; } }
"""


def report_page(
    report: UsageReport, title: str, subtitle: str = "", written_at: datetime | None = None
) -> str:
    """Build the page; all texts are made visible and escaped."""
    parts = [
        _tiles(report),
        _over_time(report),
        "<div class=columns>",
        *(_group(report, name) for name in GROUPINGS if name not in OF_TIME),
        _load(report),
        _waits(report),
        _waste(report),
        _advice(report),
        *(_group(report, name) for name in OF_TIME),
        "</div>",
    ]
    if report.is_empty:
        parts = ["<div class=card>Nothing ran in this interval.</div>"]
    notes = [f"{note.rstrip('.')}." for note in report.notes]
    notes.append(
        "Hours are those allocated within the interval; runs that started before or ended after "
        "it count in part. CPU time excludes suspended time. Failed: failed, timed out, out of "
        "memory or node failure."
    )
    if written_at is not None:
        local = written_at.astimezone(report.zone)
        notes.append(f"Generated {local:%Y-%m-%d %H:%M %Z} by hpcdash.")
    heading = format_report_span(report)
    if subtitle:
        heading += f" · {subtitle}"
    content = "\n".join(filter(None, parts))
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style></head>\n<body><main>\n"
        f"<h1>{_text(title)}</h1>\n<p class=sub>{_text(heading)}</p>\n"
        f"{content}\n<p class=notes>{_text(' '.join(notes))}</p>\n</main></body></html>\n"
    )


def _text(text: object) -> str:
    return html.escape(visible(str(text)), quote=True)


def _card(title: str, inside: str, key: str = "") -> str:
    return f"<section class=card><h2>{_text(title)}{key}</h2>{inside}</section>"


def _tiles(report: UsageReport) -> str:
    total = report.total
    unit = report.unit.lower()
    measured = total[f"measured_{unit}_seconds"]
    use = percent((measured or 0) - (total[f"unused_{unit}_seconds"] or 0), measured)
    lost = total[f"failed_{unit}_seconds"]
    failed_share = percent(total["failed"], total["jobs"]) or "0%"
    lost_share = percent(lost, total[f"{unit}_seconds"]) or "0%"
    figures = [
        ("CPU hours", format_hours(total["cpu_seconds"]), ""),
        ("finished jobs", format_count(total["jobs"] or 0), ""),
        (f"failed, {failed_share}", format_count(total["failed"] or 0), "bad"),
        (f"{report.unit} hours lost to failures, {lost_share}", format_hours(lost), "bad"),
        ("requeued", format_count(total["requeued"] or 0), ""),
        (f"measured {report.unit} use", use or "unknown", ""),
        ("median wait", format_wait(total["wait_median_seconds"]) or "-", ""),
        ("total hours waited", format_hours(total["wait_seconds"]), ""),
    ]
    if total["running"]:
        figures.insert(2, ("still running", format_count(total["running"]), ""))
    if report.unit == "GPU":
        figures.insert(0, ("GPU hours", format_hours(total["gpu_seconds"]), ""))
    tiles = (
        f"<div class=tile><b{' class=bad' if role and value != '0' else ''}>{_text(value)}</b>"
        f"<span>{_text(name)}</span></div>"
        for name, value, role in figures
    )
    return f"<div class=tiles>{''.join(tiles)}</div>"


def _over_time(report: UsageReport) -> str:
    """Bars of days, or of weeks where there are more than a quarter of a year's."""
    grouping = "day" if report.groups["day"].num_rows <= 100 else "week"
    unit = report.unit.lower()
    rows = report.groups[grouping].to_pylist()
    most = max((row[f"{unit}_seconds"] for row in rows), default=0)
    if not most:
        return ""
    left = 64
    bottom = 26
    step = (_WIDE - left) / len(rows)
    inside = []
    for part in (0.0, 0.5, 1.0):
        y = 10 + _HIGH * (1 - part)
        inside.append(f"<line class=rule x1={left} x2={_WIDE} y1={y:.1f} y2={y:.1f} />")
        inside.append(
            f"<text x={left - 8} y={y + 4:.1f} text-anchor=end>{format_hours(most * part)}</text>"
        )
    last_label = -100.0
    for number, row in enumerate(rows):
        held = row[f"{unit}_seconds"]
        failed = min(row[f"failed_{unit}_seconds"], held)
        x = left + number * step
        reported = (
            f"{row['key']}: {format_hours(held)} {report.unit} hours, {row['jobs']} jobs, "
            f"{row['failed']} failed"
        )
        wide = max(step * 0.78, 0.8)
        bars = ""
        for name, begin, amount in (
            ("good-bar", 0, held - failed),
            ("bad-bar", held - failed, failed),
        ):
            if amount:
                high = _HIGH * amount / most
                y = 10 + _HIGH * (1 - begin / most) - high
                bars += (
                    f"<rect class={name} x={x:.1f} y={y:.1f} width={wide:.1f} height={high:.1f} "
                    "rx=1.5 />"
                )
        inside.append(f"<g><title>{_text(reported)}</title>{bars}</g>")
        if x - last_label > 70 and x < _WIDE - 40:
            day = date.fromisoformat(row["key"])
            inside.append(f"<text x={x:.1f} y={_HIGH + bottom + 2}>{day:%b} {day.day}</text>")
            last_label = x
    key = _key(("var(--bar)", "succeeded"), ("var(--bad)", "failed"))
    drawing = f"<svg viewBox='0 0 {_WIDE} {_HIGH + bottom + 10}' role=img>{''.join(inside)}</svg>"
    return _card(f"{report.unit} hours per {grouping}", drawing, key)


def _key(*entries: tuple[str, str]) -> str:
    parts = (f"<i style='background:{colour}'></i>{_text(name)}" for colour, name in entries)
    return f"<span class=key>{''.join(parts)}</span>"


def _group(report: UsageReport, name: str) -> str:
    unit = report.unit.lower()
    rows = [
        row
        for row in report.groups[name].to_pylist()
        if row["jobs"] or row["cpu_seconds"] or row["started"]
    ]
    if name in OF_TIME:
        rows.reverse()
    most = max((row[f"{unit}_seconds"] for row in rows), default=0)
    heads = [*(["GPU h"] if unit == "gpu" else []), "CPU h", "jobs", "failed", "use", "median wait"]
    body = []
    for row in rows[:_MAX_ROWS]:
        measured = row[f"measured_{unit}_seconds"]
        figures = [
            *([format_hours(row["gpu_seconds"])] if unit == "gpu" else []),
            format_hours(row["cpu_seconds"]),
            format_count(row["jobs"]),
            percent(row["failed"], row["jobs"]),
            percent(measured - row[f"unused_{unit}_seconds"], measured) if measured else "",
            format_wait(row["wait_median_seconds"]),
        ]
        bar = f"<i style='width:{100 * row[f'{unit}_seconds'] / most if most else 0:.1f}%'></i>"
        key = _text(row["key"])
        body.append([f"<td class=text title='{key}'>{key}</td><td class=bar>{bar}</td>", figures])
    if not body:
        return ""
    return _card(f"By {name}", _folded([name, ""], heads, body, len(rows)))


def _folded(
    texts: Sequence[str], heads: Sequence[str], rows: Sequence[Sequence[Any]], count: int
) -> str:
    """A table of the first rows, and one that opens of those that follow; `count` may be more than
    there are.
    """
    table = _table(texts, heads, rows[:_SHOWN_ROWS])
    if count <= _SHOWN_ROWS:
        return table
    rest = _table(texts, heads, rows[_SHOWN_ROWS:])
    left_out = f"<p class=notes>and {count - len(rows)} more</p>" if count > len(rows) else ""
    return (
        f"{table}<details><summary>{count - _SHOWN_ROWS} more</summary>{rest}{left_out}</details>"
    )


def _table(texts: Sequence[str], heads: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    """A row is what begins it, as HTML, and figures."""
    head = "".join(f"<th class=text>{_text(name)}</th>" for name in texts)
    head += "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{begin}{''.join(f'<td>{_text(figure)}</td>' for figure in figures)}</tr>"
        for begin, figures in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _load(report: UsageReport) -> str:
    most = report.load.largest
    if not most:
        return ""
    left = 44
    cell = 39
    high = 30
    inside = []
    for hour in range(0, 24, 3):
        inside.append(f"<text x={left + hour * cell} y=14>{hour:02}:00</text>")
    for day, name in enumerate(WEEKDAYS):
        y = 22 + day * high
        inside.append(f"<text x=0 y={y + 20}>{name}</text>")
        for hour in range(24):
            held = float(report.load.held[day, hour])
            if not np.isfinite(held):
                continue
            reported = f"{name} {hour:02}:00: {rounded(held)} {report.unit}s"
            inside.append(
                f"<rect x={left + hour * cell} y={y} width={cell - 2} height={high - 2} rx=3 "
                f"style='fill:rgba(var(--heat),{0.08 + 0.92 * held / most:.2f})'>"
                f"<title>{_text(reported)}</title></rect>"
            )
    drawing = (
        f"<svg viewBox='0 0 {left + 24 * cell} {24 + 7 * high}' role=img>{''.join(inside)}</svg>"
    )
    key = f"<span class=key>darkest: {rounded(most)}</span>"
    return _card(f"Concurrent {report.unit}s by weekday and hour", drawing, key)


def _waits(report: UsageReport) -> str:
    if not report.waits.num_rows:
        return ""
    counts = [
        sum(report.waits[f"waits_{number}"].to_pylist()) for number in range(len(WAIT_LABELS))
    ]
    most = max(counts)
    all_runs = sum(counts)
    bars = [
        [
            f"<td class=text>{_text(label)}</td><td class=bar><i "
            f"style='width:{100 * count / most:.1f}%'></i></td>",
            [format_count(count), percent(count, all_runs)],
        ]
        for label, count in zip(WAIT_LABELS, counts, strict=True)
    ]
    rows = sorted(report.waits.to_pylist(), key=lambda row: -row["started"])[:_MAX_ROWS]
    body = [
        [
            f"<td class=text>{_text(row['queue'])}</td><td class=text>{_text(row['size'])}</td>",
            [
                format_count(row["started"]),
                *(format_wait(row[f"wait_{name}_seconds"]) for name in _QUANTILES),
            ],
        ]
        for row in rows
    ]
    table = _folded(
        ["queue", "size"],
        ["runs", "median", "80% within", "95% within", "longest"],
        body,
        len(body),
    )
    return _card(
        "Queue wait (from eligible to started)",
        _table(["wait", ""], ["runs", ""], bars) + table,
    )


_QUANTILES = ("median", "p80", "p95", "longest")


def _waste(report: UsageReport) -> str:
    rows = report.wasteful.to_pylist()
    body = [
        [
            f"<td class=text title='{_text(row['name'] or '')}'>{_text(row['name'] or '')}</td>"
            f"<td class=text>{_text(row['user'] or '')}</td>",
            [
                format_count(row["runs"]),
                f"{format_hours(row['unused_gpu_seconds'])} "
                f"{percent(row['unused_gpu_seconds'], row['gpu_seconds'])}"
                if row["gpu_seconds"]
                else "",
                f"{format_hours(row['unused_cpu_seconds'])} "
                f"{percent(row['unused_cpu_seconds'], row['cpu_seconds'])}",
                format_hours(row["unused_memory_gib_seconds"]),
            ],
        ]
        for row in rows
    ]
    if not body:
        return ""
    heads = ["runs", "GPU h unused", "CPU h unused", "GiB h unused"]
    return _card("Most wasted, as measured", _table(["name", "user"], heads, body))


def _advice(report: UsageReport) -> str:
    items = []
    for advice in report.advice:
        text = "".join(f"<li>{_text(line)}</li>" for line in advice.messages)
        items.append(
            f"<b>{_text(advice.name)}</b> <span "
            f"class=who>{_text(advice.user)}</span><ul>{text}</ul>"
        )
    return _card("Advice", "".join(items)) if items else ""
