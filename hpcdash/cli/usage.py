"""`hpcdash efficiency` and `hpcdash report`: the usage of finished runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from rich.color import ColorSystem
from rich.style import Style

from hpcdash.cli.history import (
    HistoryOptions,
    fetch_runs,
    fetch_runs_everywhere,
    warn_gaps,
)
from hpcdash.cli.jobs import cluster_entry, warn_rejected, warn_unknown_gpus, with_session
from hpcdash.cli.log import color_system
from hpcdash.cli.options import CommonOptions, named_jobs
from hpcdash.cli.terminal import print_json, print_notes, stdout
from hpcdash.domain import query
from hpcdash.domain.columns import as_array, encode_csv, encode_parquet, without_formulas
from hpcdash.domain.job_ids import parse_array_id
from hpcdash.domain.job_text import state_word
from hpcdash.domain.rfc3339 import format_utc, table_to_json_rows
from hpcdash.domain.schema import RUNS, TEXT
from hpcdash.domain.spans import LOCAL_ZONE, Span
from hpcdash.domain.states import ENDED
from hpcdash.domain.text import cell_width, clip, visible
from hpcdash.domain.units import format_duration, format_memory
from hpcdash.errors import HpcdashError, NoSuchJob, UsageError
from hpcdash.private_files import write_output
from hpcdash.services.cluster.everywhere import join_runs
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.archive import FetchedRuns, RunSelection
from hpcdash.services.usage.efficiency import (
    EFFICIENCY,
    FAIR_USE,
    POOR_USE,
    USES,
    Advice,
    advise,
    compute_efficiency,
    with_use,
)
from hpcdash.services.usage.report import RUN_COLUMNS, build_report, runs_and_notes

if TYPE_CHECKING:
    from hpcdash.services.cluster.store import ClusterStore
    from hpcdash.services.usage.sooner import EarlierStart

UNKNOWN = "-"
REPORT_SINCE = "30d"
_MIN_WIDTH = 60
_WIDTH = 100
_NAME_CELLS = 32
# Pieces of advice that get a start estimate; each needs two commands.
_MAX_STARTS = 3
_STYLES = {
    "title": Style(bold=True),
    "dim": Style(dim=True),
    "value": Style(bold=True),
    "bad": Style(color="red"),
    "warn": Style(color="yellow"),
    "good": Style(color="green"),
    "bar": Style(color="cyan"),
    "bad-bar": Style(color="red"),
    "heat-1": Style(color="blue"),
    "heat-2": Style(color="cyan"),
    "heat-3": Style(color="yellow"),
    "heat-4": Style(color="red"),
}


class Screen:
    """Lines with roles on stdout, in colours if it is a terminal that supports them."""

    def __init__(self) -> None:
        is_terminal = sys.stdout.isatty()
        self._colours: ColorSystem | None = color_system(os.environ) if is_terminal else None
        self.encoding = sys.stdout.encoding or "utf-8"
        self.has_unicode = self.encoding.lower().replace("-", "").startswith("utf")
        self.width = max(_MIN_WIDTH, shutil.get_terminal_size().columns) if is_terminal else _WIDTH

    def write(self, lines: Sequence[Sequence[tuple[str, str]]]) -> None:
        painted = []
        for line in lines:
            text = "".join(self._paint(text, role) for text, role in line)
            painted.append(f"{text.rstrip()}\n")
        sys.stdout.flush()
        sys.stdout.buffer.write("".join(painted).encode(self.encoding, "replace"))
        sys.stdout.buffer.flush()

    def _paint(self, text: str, role: str) -> str:
        style = _STYLES.get(role)
        if self._colours is None or style is None:
            return text
        return style.render(text, color_system=self._colours)


def _write_table(table: pa.Table, form: str, out: Path | None) -> None:
    """Write CSV or Parquet to stdout or a file; a CSV file has no formulas for spreadsheets."""
    columns = []
    for column in table.columns:
        is_coded = pa.types.is_dictionary(column.type)
        columns.append(as_array(column).cast(TEXT) if is_coded else column)
    plain = pa.table(columns, names=table.column_names)
    if form == "csv":
        content = encode_csv(plain if out is None else without_formulas(plain))
    else:
        content = encode_parquet(plain)
    if out is not None:
        _write_file(out, content, "--out")
        return
    if form == "parquet" and sys.stdout.isatty():
        raise UsageError(
            "Parquet cannot be written to a terminal", "Use a file: --out usage.parquet"
        )
    stream = stdout() if form == "csv" else sys.stdout.buffer
    stream.write(content)
    stream.flush()


def _write_file(file: Path, content: bytes, option: str) -> None:
    try:
        write_output(file, content)
    except OSError as error:
        raise HpcdashError(
            f"{file}: {error.strerror or error}", f"Use another file for {option}."
        ) from None


# -- efficiency


def run_efficiency(
    common: CommonOptions,
    jobs: Sequence[str],
    options: HistoryOptions,
    *,
    expression: str,
    mine: bool,
    by: str,
    sooner: bool,
    form: str,
) -> None:
    """Print the use of requested resources, for the given jobs or all that ended in a time span.

    With `sooner` the scheduler estimates how much earlier the jobs of the first advice would start
    with the recommended request.
    """
    requested = query.parse(expression, RUNS, LOCAL_ZONE) if expression else None
    ids = named_jobs(jobs)

    async def work(
        session: ClusterSession,
    ) -> tuple[FetchedRuns, pa.Table, Sequence[Advice], dict[int, EarlierStart], ClusterSession]:
        if ids:
            fetched = await _fetch_jobs(session, ids)
        else:
            fetched = await fetch_runs(session, options, everyone=not mine)
        runs = fetched.table
        if requested is not None:
            runs = query.apply(runs, requested, fetched.taken_at)
        advice = advise(with_use(runs))
        starts = await _fetch_starts(session.store, advice) if sooner else {}
        return fetched, runs, advice, starts, session

    fetched, runs, advice, starts, session = with_session(common, work)
    if requested is not None:
        warn_unknown_gpus(fetched.table, requested, fetched.taken_at)
    warn_gaps(fetched)
    table = compute_efficiency(runs, by=by)
    if form == "json":
        answer = {
            **_envelope(fetched, session),
            "efficiency": table_to_json_rows(table, EFFICIENCY.names),
            "advice": _advice_rows(advice, starts),
        }
        print_json(answer)
    elif form == "csv":
        _write_table(table, "csv", None)
    else:
        _print_efficiency(table, advice, starts, fetched.taken_at)
        if not table.num_rows:
            print(options.format_empty(fetched.table.num_rows, mine=mine), file=sys.stderr)
    if fetched.problem is not None:
        raise fetched.problem


async def _fetch_starts(store: ClusterStore, advice: Sequence[Advice]) -> dict[int, EarlierStart]:
    """Fetch earlier starts for the first advice on the user's own jobs, by the advice's number.

    Errors go to stderr.
    """
    from hpcdash.services.usage.sooner import fetch_earlier_start

    starts: dict[int, EarlierStart] = {}
    for number, one in enumerate(advice):
        is_smaller = one.memory_bytes is not None or one.limit_seconds is not None
        if one.user != store.user or not is_smaller:
            continue
        try:
            starts[number] = await fetch_earlier_start(
                store, one.jobs[0], memory_bytes=one.memory_bytes, limit_seconds=one.limit_seconds
            )
        except HpcdashError as error:
            print_notes(f"no start estimate for {one.name}: {error.message}")
            if isinstance(error, UsageError):
                break
        if len(starts) == _MAX_STARTS:
            break
    return starts


async def _fetch_jobs(session: ClusterSession, ids: Sequence[str]) -> FetchedRuns:
    """Fetch the runs of some finished jobs, and print the unfinished ones.

    Raises NoSuchJob if none is known.
    """
    store = session.store
    await store.open()
    rows = (await store.run_query(store.backend.history.jobs(None, 0, ids))).table.to_pylist()
    if not rows:
        raise NoSuchJob(
            f"{', '.join(map(visible, ids))}: not found in accounting",
            "Check the job ID and the cluster.",
        )
    for row in rows:
        if row["state"] not in ENDED:
            text = (
                f"job {visible(row['id'])} is {state_word(row['state'])}: `hpcdash show` has "
                "its usage so far"
            )
            print_notes(text)
    ended = [row for row in rows if row["state"] in ENDED and row["ends_at"] is not None]
    if not ended:
        raise UsageError(
            "none of these jobs has finished", "Efficiency is available once jobs finish."
        )
    begins = min(int((row["started_at"] or row["ends_at"]).timestamp()) for row in ended)
    ends = max(int(row["ends_at"].timestamp()) for row in ended)
    users = tuple({str(row["user"]) for row in ended if row["user"]})
    # The second in which the last job ended is in the span.
    fetched = await store.archive.fetch_runs(
        Span(begins, ends + 1), RunSelection(everyone=True, users=users)
    )
    runs = fetched.table
    job_ids = pa.array([*ids, *(str(row["id"]) for row in ended)], TEXT)
    plain_ids = [job for job in ids if "_" not in job and "[" not in job]
    array_ids = pa.array(list(map(parse_array_id, plain_ids)), TEXT)
    in_arrays = pc.fill_null(pc.is_in(runs["array_id"], array_ids), False)
    selected = runs.filter(pc.or_(pc.is_in(runs["id"], job_ids), in_arrays))
    return FetchedRuns(
        selected,
        fetched.span,
        fetched.taken_at,
        problem=fetched.problem,
        rejected=fetched.rejected,
    )


def _envelope(fetched: FetchedRuns, session: ClusterSession) -> dict[str, Any]:
    return {
        **session.envelope(fetched.taken_at),
        "rejected_rows": len(fetched.rejected),
        "span": _span(fetched.span),
        "missing": [_span(span) for span in fetched.missing],
    }


def _span(span: Span) -> dict[str, str]:
    return {"since": format_utc(span.since), "until": format_utc(span.until)}


def _advice_rows(
    advice: Sequence[Advice], starts: Mapping[int, EarlierStart] = {}
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(advice):
        row = {
            "name": one.name,
            "user": one.user,
            "runs": one.runs,
            "jobs": list(one.jobs),
            "words": list(one.messages),
            "earlier_seconds": starts[number].earlier_seconds if number in starts else None,
        }
        rows.append(row)
    return rows


def _print_efficiency(
    table: pa.Table, advice: Sequence[Advice], starts: Mapping[int, EarlierStart], now_epoch: float
) -> None:
    rows = table.to_pylist()
    if not rows:
        return
    heads = ["ID", "NAME", "STATE"]
    if any(row["runs"] > 1 for row in rows):
        heads.append("RUNS")
    heads += ["ELAPSED", "TIME", "CPUS", "CPU", "REQUESTED", "MEMORY"]
    if any(row["gpus"] for row in rows):
        heads += ["GPUS", "GPU", "GPU MEM"]
    lines = [[_efficiency_cell(row, head) for head in heads] for row in rows]
    out = _aligned(heads, lines, left={"ID", "NAME", "STATE"})
    if advice:
        out += [[], [("Advice", "title")]]
        for number, one in enumerate(advice):
            out.append([(visible(f"{one.name} ({one.user})"), "value")])
            out += [[(f"  {text}", "")] for text in one.messages]
            if number in starts and (text := starts[number].format(now_epoch)):
                out.append([(f"  {visible(text)}", "")])
    if starts:
        out += [[], [("Commands (nothing was submitted)", "title")]]
        for start in starts.values():
            for option in (start.as_it_was, start.changed):
                out.append([(f"  {visible(option.command)}", "")])
    Screen().write(out)


def _efficiency_cell(row: Mapping[str, Any], head: str) -> tuple[str, str]:
    if head in _USES:
        return use_cell(row[_USES[head]])
    if head == "STATE":
        return (state_word(row["state"]) if row["state"] else "several", "")
    value = row[_COLUMNS.get(head, head.lower())]
    if value is None:
        return UNKNOWN, ""
    if head == "REQUESTED":
        return format_memory(value), ""
    if head == "ELAPSED":
        return format_duration(value), ""
    text = visible(str(value))
    return (clip(text, _NAME_CELLS) if head == "NAME" else text), ""


_USES = dict(zip(("CPU", "MEMORY", "GPU", "GPU MEM", "TIME"), USES, strict=True))
_COLUMNS = {"REQUESTED": "memory_bytes", "ELAPSED": "elapsed_seconds"}


def use_cell(use: float | None) -> tuple[str, str]:
    """`71.2%` and its role: poor use is bad, good use good."""
    if use is None:
        return UNKNOWN, "dim"
    role = "good"
    if use < FAIR_USE:
        role = "bad" if use < POOR_USE else "warn"
    return f"{100 * use:.1f}%", role


def _aligned(
    heads: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]], *, left: set[str]
) -> list[list[tuple[str, str]]]:
    """Align cells below their headings, to the `left` below these ones, else to the right."""
    all_rows = [[(head, "dim") for head in heads], *rows]
    lines: list[list[tuple[str, str]]] = [[] for _ in all_rows]
    for place, head in enumerate(heads):
        width = max(cell_width(row[place][0]) for row in all_rows)
        for line, row in zip(lines, all_rows, strict=True):
            text, role = row[place]
            blanks = " " * (width - cell_width(text))
            line.append((f"{text}{blanks}  " if head in left else f"{blanks}{text}  ", role))
    return lines


# -- report


def run_report(
    common: CommonOptions,
    options: HistoryOptions,
    *,
    expression: str,
    mine: bool,
    by: str | None,
    everywhere: bool,
    form: str,
    out: Path | None,
    page: Path | None,
) -> None:
    """Print a report as a chart, table, JSON, CSV or Parquet, or write it to an HTML `page`.

    With `everywhere` of all configured clusters. `by` is None for the default.
    """
    by = by or ("cluster" if everywhere else "queue")
    if by == "cluster" and not everywhere:
        raise UsageError("--by cluster requires --all-clusters")
    if out is not None and form not in ("csv", "parquet"):
        raise UsageError(
            "--out requires --format csv or parquet",
            "Use --html FILE for a page, or redirect stdout for other formats.",
        )
    requested = query.parse(expression, RUNS, LOCAL_ZONE) if expression else None
    options = replace(options, since=options.since or REPORT_SINCE)
    read = _read_everywhere if everywhere else _read_runs
    source = read(common, options, requested, everyone=not mine)
    report = build_report(source.runs, source.span, source.zone, source.notes)
    if page is not None:
        from hpcdash.services.usage.html_page import report_page

        title = f"Usage on {source.title}"
        written_at = datetime.fromtimestamp(source.taken_at, UTC)
        content = report_page(report, title, source.notes[0], written_at).encode()
        _write_file(page, content, "--html")
        print_notes(f"wrote {page}")
    elif form == "json":
        print_json({**source.envelope, **_report_json(report)})
    elif form in ("csv", "parquet"):
        print_notes(*source.notes)
        _write_table(report.groups[by], form, out)
    elif form == "table":
        _print_group(report, by)
    else:
        _print_chart(report, source.title, by)
    if source.problem is not None:
        raise source.problem


class _ReportSource(Struct, frozen=True):
    """Runs of a report, of one cluster or all, and the keys of its JSON beside the report's own."""

    runs: pa.Table
    span: Span
    zone: tzinfo
    notes: Sequence[str]
    title: str
    taken_at: float
    envelope: Mapping[str, Any]
    problem: HpcdashError | None = None


def _read_runs(
    common: CommonOptions,
    options: HistoryOptions,
    requested: query.Filter | None,
    *,
    everyone: bool,
) -> _ReportSource:
    async def work(session: ClusterSession) -> tuple[FetchedRuns, ClusterSession]:
        columns = RUN_COLUMNS if requested is None else RUNS.names
        fetched = await fetch_runs(
            session, options, everyone=everyone, with_running=True, columns=columns
        )
        return fetched, session

    fetched, session = with_session(common, work)
    warn_rejected(fetched.rejected)
    runs, notes = _selected(fetched, session, options, requested, everyone=everyone)
    return _ReportSource(
        runs=runs,
        span=fetched.span,
        zone=session.zone or LOCAL_ZONE,
        notes=notes,
        title=session.store.title,
        taken_at=fetched.taken_at,
        envelope=_envelope(fetched, session),
        problem=fetched.problem,
    )


def _read_everywhere(
    common: CommonOptions,
    options: HistoryOptions,
    requested: query.Filter | None,
    *,
    everyone: bool,
) -> _ReportSource:
    """Read the runs of all configured clusters; one that does not answer is in the notes.

    Raises the first cluster's error if none answered.
    """
    columns = RUN_COLUMNS if requested is None else RUNS.names
    answers = fetch_runs_everywhere(
        common, options, everyone=everyone, with_running=True, columns=columns
    )
    tables = []
    whose: dict[str, None] = {}
    notes: list[str] = []
    entries = []
    spans = []
    taken_at = 0.0
    for answer in answers:
        name = answer.session.name
        fetched = answer.value
        error = answer.error if fetched is None else fetched.problem
        entry = cluster_entry(answer.session, error)
        entries.append(entry)
        if error is not None:
            notes.append(f"{name} is {'missing' if fetched is None else 'incomplete'}")
        if fetched is None:
            continue
        entry["taken_at"] = format_utc(fetched.taken_at)
        entry["rejected_rows"] = len(fetched.rejected)
        entry["missing"] = [_span(span) for span in fetched.missing]
        runs, own_notes = _selected(fetched, answer.session, options, requested, everyone=everyone)
        tables.append((name, runs))
        whose[own_notes[0]] = None
        notes += [f"{name}: {note}" for note in own_notes[1:]]
        spans.append(fetched.span)
        taken_at = max(taken_at, fetched.taken_at)
    if not tables:
        raise next(answer.error for answer in answers if answer.error is not None)
    span = Span(min(one.since for one in spans), max(one.until for one in spans))
    title = f"all clusters ({', '.join(answer.session.name for answer in answers)})"
    envelope = {"clusters": entries, "span": _span(span)}
    notes = ["; ".join(whose), *notes]
    return _ReportSource(
        runs=join_runs(tables),
        span=span,
        zone=LOCAL_ZONE,
        notes=notes,
        title=title,
        taken_at=taken_at,
        envelope=envelope,
    )


def _selected(
    fetched: FetchedRuns,
    session: ClusterSession,
    options: HistoryOptions,
    requested: query.Filter | None,
    *,
    everyone: bool,
) -> tuple[pa.Table, list[str]]:
    """Return the runs that match a filter, and notes on them."""
    select = None
    if requested is not None:
        select = partial(query.apply, requested=requested, now_epoch=fetched.taken_at)
    is_others = everyone or bool(options.user)
    return runs_and_notes(fetched, everyone=is_others, user=session.store.user, select=select)


def _report_json(report: Any) -> dict[str, Any]:
    def rows(table: pa.Table) -> Any:
        return table_to_json_rows(table, table.column_names)

    answer: dict[str, Any] = {"notes": list(report.notes), "total": dict(report.total)}
    for name, table in report.groups.items():
        answer[f"by_{name}"] = rows(table)
    answer["waits"] = rows(report.waits)
    # JSON has no nan.
    held = [[None if isnan(hours) else hours for hours in row] for row in report.load.held.tolist()]
    answer["load"] = {"unit": report.load.unit, "held": held}
    answer["wasteful"] = rows(report.wasteful)
    answer["advice"] = _advice_rows(report.advice)
    return answer


def _print_chart(report: Any, cluster: str, by: str) -> None:
    from hpcdash.services.usage.charts import as_ascii, draw_report, format_report_span

    screen = Screen()
    title = f"{visible(cluster)}, {format_report_span(report)}"
    notes = [((visible(note), "dim"),) for note in report.notes]
    lines = [((title, "title"),), *notes, (), *draw_report(report, screen.width, by)]
    screen.write(lines if screen.has_unicode else as_ascii(lines))


def _print_group(report: Any, by: str) -> None:
    """Print all rows of a grouping, and the total."""
    from hpcdash.services.usage.charts import format_hours, format_wait, percent

    def cells(key: str, row: Mapping[str, Any]) -> dict[str, str]:
        texts = {
            by.upper(): clip(visible(key), _NAME_CELLS),
            "GPU_H": format_hours(row["gpu_seconds"]),
            "CPU_H": format_hours(row["cpu_seconds"]),
        }
        for name in ("jobs", "failed", "requeued", "running"):
            if name != "running" or report.total["running"]:
                texts[name.upper()] = str(row[name])
        texts["LOST_GPU_H"] = format_hours(row["failed_gpu_seconds"])
        texts["LOST_CPU_H"] = format_hours(row["failed_cpu_seconds"])
        for unit in ("gpu", "cpu"):
            measured = row[f"measured_{unit}_seconds"]
            used = measured - row[f"unused_{unit}_seconds"]
            texts[f"{unit.upper()}_USE"] = percent(used, measured)
        texts["WAITED_H"] = format_hours(row["wait_seconds"])
        texts["MEDIAN"] = format_wait(row["wait_median_seconds"])
        texts["80%_IN"] = format_wait(row["wait_p80_seconds"])
        return texts

    total = cells("total", report.total)
    lines = []
    for row in report.groups[by].to_pylist():
        lines.append([(text or UNKNOWN, "") for text in cells(row["key"], row).values()])
    lines.append([(text or UNKNOWN, "value") for text in total.values()])
    print_notes(*report.notes)
    Screen().write(_aligned(list(total), lines, left={by.upper()}))
    if report.is_empty:
        print(
            "Nothing ran in this interval. Use an earlier --since, or --all for everyone's jobs.",
            file=sys.stderr,
        )
