"""`hpcdash metrics`: a job's loss and other metrics, drawn once or written for machines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import pyarrow.compute as pc
from rich.color import ColorSystem
from rich.style import Style

from hpcdash.assembly import chosen_clusters
from hpcdash.cli.ending import ends_silently
from hpcdash.cli.jobs import with_session
from hpcdash.cli.log import color_system
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import ByteStream, print_notes, stdout
from hpcdash.config.metric_patterns import EXAMPLE, EXAMPLE_LINE
from hpcdash.config.problems import did_you_mean
from hpcdash.config.read import load_settings
from hpcdash.domain.columns import encode_csv, encode_parquet, without_formulas
from hpcdash.domain.job_ids import BadJobId, parse_job_id
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.private_files import write_output
from hpcdash.services.metrics.charts.curves import ChartRequest, ChartRun
from hpcdash.services.metrics.charts.draw import draw
from hpcdash.services.metrics.charts.state import ChartState, Line
from hpcdash.services.metrics.facts import RunFacts, RunReader, find_broken
from hpcdash.services.metrics.findings import format_number, format_step
from hpcdash.services.metrics.joined import JoinedRun, whole_numbers
from hpcdash.services.metrics.pace import JobFacts, format_lost_time, metric_quantity
from hpcdash.services.metrics.run import WatchedRun
from hpcdash.services.metrics.series import (
    EXACT_POINTS,
    EXPORTED_POINTS,
    MINUS_INF,
    NAN,
    PLUS_INF,
    Series,
)
from hpcdash.services.metrics.spikes import FEWEST_POINTS
from hpcdash.services.metrics.vocabulary import is_loss
from hpcdash.services.session import ClusterSession

# A chart is drawn of what can be read in this time.
CHART_SECONDS = 15.0
_REDRAW_SECONDS = 1.0
_CLEAR = "\x1b[H\x1b[2J"
MIN_WIDTH = 40
LARGEST_WIDTH = 240
# Rows of a chart: of a single one, of each of several, and of each where the screen has few.
_HEIGHT = 18
_SMALL_HEIGHT = 12
_MIN_HEIGHT = 7
_TWO_BESIDE_FROM = 110
# Most metrics drawn by default.
MAX_SHOWN = 4
_STYLES = {
    "title": Style(bold=True),
    "axis": Style(dim=True),
    "restart": Style(dim=True),
    "run-0": Style(color="cyan"),
    "raw-0": Style(color="cyan", dim=True),
    "again-0": Style(color="cyan", dim=True),
    "warning": Style(color="yellow", bold=True),
    "bad": Style(color="red", bold=True),
}
_PLAIN_LETTERS = str.maketrans({"→": ">", "–": "-", "…": "."})


def run_metrics(
    common: CommonOptions,
    *,
    job: str,
    form: str,
    requested: tuple[str, ...],
    file: str,
    follow: bool,
    out: Path | None,
    log: bool = False,
) -> None:
    """Read a job's metrics, with `follow` until it ends, and print or write them to `out`; `log`
    scales a chart's y.

    `job` '' with a `file`: that of no job. Raises UsageError for what is neither.
    """
    _require_job(job, file)
    if form == "parquet" and out is None and sys.stdout.isatty():
        raise UsageError(
            "Parquet cannot be written to a terminal", "Use --out FILE, or redirect stdout."
        )
    settings = load_settings(common.config)
    patterns = settings.metrics.patterns
    if not job and chosen_clusters(common, settings)[0].transport == "local":
        file = str(Path(file).expanduser().absolute())

    async def work(session: ClusterSession) -> None:
        is_chart = form == "chart"
        points = EXACT_POINTS if is_chart else EXPORTED_POINTS
        run = WatchedRun(session.store, job, patterns=patterns, file=file, exact_points=points)
        output = _Output(session, run, form, requested, out)
        output.is_log = log
        if follow and form == "csv" and out is None:
            output.rows = ComingRows()
        await run.open()
        with _progress_line(run) as progressed:
            if follow:
                await _until_over(run, output)
            is_limited = is_chart and not follow
            is_whole = await run.read_whole(progressed, CHART_SECONDS if is_limited else None)
        if not is_whole and run.run.names:
            print_notes(f"read only the newest {_format_progress(run)}; --format csv reads all")
        await asyncio.to_thread(output.write)

    async def guarded(session: ClusterSession) -> None:
        try:
            await work(session)
        except (HpcdashError, OSError, click.Abort):
            raise
        except Exception as error:  # a log may hold anything
            text = f"hpcdash could not read this: {type(error).__name__}: {error}"
            where = (
                "The traceback is in its log file."
                if common.debug
                else "--debug writes the traceback to its log file."
            )
            raise HpcdashError(text, where) from error

    with ends_silently() if follow else contextlib.nullcontext():
        with_session(common, guarded)


class _Output:
    """Destination and format of the metrics."""

    def __init__(
        self,
        session: ClusterSession,
        run: WatchedRun,
        form: str,
        requested: tuple[str, ...],
        out: Path | None,
    ) -> None:
        self._session = session
        self._run = run
        self._form = form
        self._requested = requested
        self._out = out
        self.is_log = False
        # Set when rows are written as they come.
        self.rows: ComingRows | None = None
        self.is_screen = form == "chart" and out is None and sys.stdout.isatty()
        encoding = (sys.stdout.encoding or "utf-8").lower().replace("-", "")
        self._printer = ChartPrinter(
            color_system(os.environ) if self.is_screen else None,
            has_unicode=encoding.startswith("utf"),
        )

    def write(self) -> None:
        """Write the metrics; raises HpcdashError without metrics, or without the requested one."""
        run = self._run
        if not run.run.names:
            raise HpcdashError(_nothing(run), _next_step(run, self._session.name))
        if run.problem:
            print_notes(run.problem)
        if self.rows is not None and self.rows.has_begun:
            self.write_new(is_end=True)
            return
        content = self._content(self._names())
        if self._out is not None:
            try:
                write_output(self._out, content)
            except OSError as error:
                raise HpcdashError(
                    f"{self._out}: {error.strerror or error}", "Choose a different file for --out."
                ) from None
        elif self._form == "chart":
            # The colours are ours, and the text was made visible.
            _print(sys.stdout.buffer, content)
        else:
            _print(stdout(is_json=self._form == "json"), content)

    def write_new(self, *, is_end: bool = False) -> None:
        """The rows that are whole and were not written yet; none before all that was there at first
        is read.
        """
        run = self._run.run
        rows = self.rows
        if rows is None or not run.names:
            return
        if rows.has_begun or is_end or self._run.progress.is_whole:
            with contextlib.suppress(HpcdashError):
                names = self._names()
                for text in rows.left_out(run, names):
                    print_notes(text)
                _print(stdout(), rows.new_rows(run, names, is_end=is_end))

    def redraw(self) -> None:
        """The chart as it is now, in place of the one before."""
        if self._run.run.names:
            with contextlib.suppress(HpcdashError):
                content = self._chart(self._names(), shutil.get_terminal_size().lines)
                _print(sys.stdout.buffer, _CLEAR.encode() + content)

    def _content(self, names: list[str]) -> bytes:
        run = self._run.run
        match self._form:
            case "json":
                return as_json(run, names, self._run.named_source, self._session.envelope())
            case "csv":
                table = run.table(names)
                # In a file no title is a formula to a spreadsheet.
                return encode_csv(table if self._out is None else without_formulas(table))
            case "parquet":
                return encode_parquet(run.table(names))
            case _:
                return self._chart(names)

    def _chart(self, names: list[str], rows: int | None = None) -> bytes:
        run = self._run
        columns = shutil.get_terminal_size().columns
        lines = self._printer.lines(
            run.run, names, run.job_facts(), columns, rows, log_y=self.is_log
        )
        text = "\n".join((visible(run.title), *lines, ""))
        if not self._printer.has_unicode:
            text = text.replace("→", "->")
        return text.encode(sys.stdout.encoding or "utf-8", "replace")

    def _names(self) -> list[str]:
        """The requested metrics, else all of them; for a chart, the most telling ones."""
        run = self._run.run
        if self._requested:
            return [_named(word, run.names) for word in dict.fromkeys(self._requested)]
        return shown_by_default(run) if self._form == "chart" else list(run.names)


def _print(stream: ByteStream, content: bytes) -> None:
    stream.write(content)
    stream.flush()


def _require_job(job: str, file: str) -> None:
    if not job and not file:
        raise UsageError(
            "no job or file given", "hpcdash metrics 17, or hpcdash metrics --file train.log"
        )
    try:
        if job:
            parse_job_id(job)
    except BadJobId:
        if not file and any(sign in job for sign in "./~"):
            text = shlex.join(("hpcdash", "metrics", "--file", job))
            raise UsageError(
                f"{job!r} is not a job ID", f"For the metrics in a file: {text}"
            ) from None


def _named(word: str, names: tuple[str, ...]) -> str:
    """The metric of that name, else the only one that has the word in it; raises HpcdashError."""
    if word in names:
        return word
    folded = word.casefold()
    alike = [name for name in names if name.casefold() == folded]
    alike = alike or [name for name in names if folded in name.casefold()]
    if len(alike) == 1:
        return alike[0]
    known = ", ".join(visible(name) for name in names)
    raise HpcdashError(f"no metric {word!r}{did_you_mean(word, names)}", f"Available: {known}.")


async def _until_over(run: WatchedRun, output: _Output) -> None:
    """Follow until the job has ended; on a screen the chart is drawn as it grows."""
    woken = asyncio.Event()
    following = asyncio.create_task(run.follow(woken.set))
    reported = ""
    try:
        if output.is_screen:
            await asyncio.to_thread(output.redraw)
        await asyncio.to_thread(output.write_new)
        while not run.is_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REDRAW_SECONDS):
                    await woken.wait()
            if following.done():
                following.result()
            if run.problem != reported:
                reported = run.problem
                if reported:
                    print_notes(reported)
            is_new = woken.is_set()
            woken.clear()
            if is_new and output.is_screen:
                await asyncio.to_thread(output.redraw)
                await asyncio.sleep(_REDRAW_SECONDS)
            elif is_new:
                await asyncio.to_thread(output.write_new)
    finally:
        await run.close()
        following.cancel()
        await asyncio.wait({following})
    if output.is_screen:
        sys.stdout.write(_CLEAR)


@contextlib.contextmanager
def _progress_line(run: WatchedRun) -> Iterator[Callable[[], None]]:
    """Progress on a stderr that is a terminal, shown after one second."""
    shown_at = 0.0
    due_at = time.monotonic() + 1.0

    def show() -> None:
        nonlocal shown_at, due_at
        now = time.monotonic()
        if now >= due_at and sys.stderr.isatty():
            shown_at = now
            due_at = now + 0.5
            sys.stderr.write(f"\rreading {_format_progress(run)}\x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown_at:
            sys.stderr.write("\r\x1b[K")


def _format_progress(run: WatchedRun) -> str:
    progress = run.progress
    return f"{_size(progress.bytes_read)} of {_size(progress.total_bytes)}"


_CUSTOM_FORMAT = (
    f"To read lines in another format, such as {EXAMPLE_LINE!r}, add this to "
    f"config.toml:\n\n{EXAMPLE}"
)


def _nothing(run: WatchedRun) -> str:
    if not run.job_id:
        return f"No metrics found: {visible(run.problem) or f'{visible(run.title)} is empty'}."
    return f"Job {run.job_id} has no metrics: {visible(run.problem) or 'its log is empty'}."


def _next_step(run: WatchedRun, where: str) -> str:
    if not run.job_id:
        if run.has_files:
            return _CUSTOM_FORMAT
        return f"Check the path: hpcdash looks for it on {visible(where)}."
    state = None if run.row is None else run.row["state"]
    if state in WAITING:
        return f"The job is {state}: its metrics appear once it runs. -f waits for it."
    if state not in ENDED:
        return (
            "The job may not have written any metrics yet: -f waits for them. --file reads a "
            "separate metrics file."
        )
    if not run.has_files:
        return "Was it moved or deleted? --file names another file."
    return f"--file reads a metrics file. {_CUSTOM_FORMAT}"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def as_json(
    run: JoinedRun,
    names: Sequence[str],
    named_source: Callable[[str], str],
    envelope: Mapping[str, Any],
) -> bytes:
    """The contract's object and a newline.

    y is null where nan or inf stood, whose x are under `nan` and `inf`.

    `exact` is false where old points were folded into means, for a log of very many.
    """
    series = [_object(run.series(name, run.axes(name)[0]), named_source(name)) for name in names]
    return msgspec.json.encode({"schema": 1, **envelope, "series": series}) + b"\n"


def _object(series: Series, source: str) -> dict[str, Any]:
    # Nan is null in msgspec's JSON.
    return {
        "name": series.name,
        "x": whole_numbers(series.x).tolist(),
        "y": np.where(np.isfinite(series.values), series.mean, np.nan).tolist(),
        "source": source,
        "axis": series.axis,
        "exact": series.exact,
        "nan": whole_numbers(series.x[series.odd & NAN > 0]).tolist(),
        "inf": whole_numbers(series.x[series.odd & (PLUS_INF | MINUS_INF) > 0]).tolist(),
    }


class ComingRows:
    """Gives what is new of the wide table: its columns are the metrics of its first rows.

    The newest row waits for the next one, as another metric of its step may follow; the end brings
    it.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._axis = ""
        self._last: float | None = None
        self._attempts = 1
        self._announced: set[str] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the titles were given."""
        return bool(self._names)

    def new_rows(self, run: JoinedRun, names: Sequence[str], *, is_end: bool = False) -> bytes:
        """Return the CSV rows to write now, with the titles before the first row."""
        axis = run.axes()[0]
        is_first = not self.has_begun
        if not is_first and axis != self._axis:
            return b""
        table = run.table(self._names or list(names))
        if not is_end:
            table = table.slice(0, max(0, table.num_rows - 1))
        if self._last is not None:
            table = table.filter(pc.greater(table[axis], self._last))
        if not table.num_rows:
            return b""
        if is_first:
            self._names = list(names)
            self._axis = axis
        self._last = table[axis][-1].as_py()
        return encode_csv(table, has_titles=is_first)

    def left_out(self, run: JoinedRun, names: Sequence[str]) -> list[str]:
        """Return messages, each once, on metrics that are missing from the rows."""
        if not self.has_begun:
            self._attempts = max(1, len(run.attempts))
            return []
        messages = []
        late = [name for name in names if name not in {*self._names, *self._announced}]
        if late:
            self._announced.update(late)
            came = ", ".join(map(visible, late))
            messages.append(
                f"{came} appeared later and has no column; run again without -f to include it"
            )
        if len(run.attempts) > self._attempts:
            self._attempts = len(run.attempts)
            messages.append(
                f"the run restarted: repeated rows up to {self._axis} {self._last:g} are skipped"
            )
        if run.axes()[0] != self._axis and self._axis not in self._announced:
            self._announced.add(self._axis)
            messages.append(
                f"the log no longer reports {self._axis}: output stopped; run it again with -f"
            )
        return messages


def shown_by_default(run: JoinedRun) -> list[str]:
    """The losses; where there is none, what is neither a pace nor a place."""
    names = list(run.names)
    losses = sorted((name for name in names if is_loss(name)), key=lambda name: (len(name), name))
    others = [name for name in names if metric_quantity(name) is None]
    return (losses or others or names)[:MAX_SHOWN]


class ChartPrinter:
    """Prints the charts of one run, and what they show; `colours` None is none."""

    def __init__(self, colours: ColorSystem | None, *, has_unicode: bool) -> None:
        self.has_unicode = has_unicode
        self._colours = colours
        self._reader = RunReader()

    def lines(
        self,
        run: JoinedRun,
        names: Sequence[str],
        job: JobFacts,
        columns: int,
        rows: int | None = None,
        *,
        log_y: bool = False,
    ) -> list[str]:
        """A chart a metric, two beside each other where there is room, on a screen of so many
        `columns` and `rows` (None: no limit), metrics along another axis below; then a line a
        metric, and one each on the end and the pace against the limit, and on restarts.
        """
        names_by_axis: dict[str, list[str]] = {}
        for name in names:
            names_by_axis.setdefault(run.axes(name)[0], []).append(name)
        texts = {}
        shown = []
        for axis, alike in names_by_axis.items():
            # A chart that is printed shows no stall.
            facts = self._reader.read(run, alike, axis, JobFacts(job.now))
            for name in alike:
                texts[name] = _metric_text(name, run.series(name, axis), facts)
            shown.append(ChartRun("A", "", run, facts.marks, axis))
        parts = [
            *(texts[name] for name in names),
            *(f"{visible(name)}: {finding.text}" for name, finding in find_broken(run, names)),
            "; ".join(self._reader.read_course(run, job, names[0])),
            format_lost_time(run.lost_time()),
        ]
        parts = [part for part in parts if part]
        width = min(max(columns, MIN_WIDTH), LARGEST_WIDTH)
        beside = 2 if width >= _TWO_BESIDE_FROM else 1
        # Charts below each other, by axis.
        downs = [-(-len(alike) // beside) for alike in names_by_axis.values()]
        height = _HEIGHT if sum(downs) == 1 else _SMALL_HEIGHT
        if rows is not None:
            room = rows - len(parts) - 2
            height = max(_MIN_HEIGHT, min(height, room // sum(downs)))
        # Without colours a smooth curve would look like the curve it smooths.
        smoothing = "none" if self._colours is None else "auto"
        lines: list[str] = []
        for chart, down in zip(shown, downs, strict=True):
            alike = names_by_axis[chart.marks_axis]
            # No panel is the one that keys act on.
            state = ChartState(tuple(alike), chart.marks_axis, log_y, smoothing, panel=-1)
            is_ascii = not self.has_unicode
            request = ChartRequest((chart,), state, width, height * down, is_ascii=is_ascii)
            lines += map(self._painted, draw(request).lines)
        return [*lines, *parts]

    def _painted(self, line: Line) -> str:
        if self._colours is None:
            text = "".join(piece for piece, _ in line).rstrip()
        else:
            text = "".join(
                _STYLES.get(name, Style()).render(piece, color_system=self._colours)
                for piece, name in line
            )
        return text if self.has_unicode else text.translate(_PLAIN_LETTERS)


def _metric_text(name: str, series: Series, facts: RunFacts) -> str:
    """The last value of a metric, its spikes and nan; '' where it has no values."""
    if not len(series):
        return ""
    value = float(series.values[-1])
    x = float(series.x[-1])
    messages = [f"{visible(name)} {format_number(value)} at {series.axis} {format_step(x)}"]
    findings = facts.findings[name]
    if is_loss(name):
        spikes = [finding.text for finding in findings if finding.kind in ("spike", "divergence")]
        if np.isfinite(series.values).sum() < FEWEST_POINTS:
            messages.append("too few points to detect anomalies")
        if spikes:
            more = f" (the newest of {len(spikes)})" if len(spikes) > 1 else ""
            messages.append(spikes[-1] + more)
        messages += [finding.text for finding in findings if finding.kind == "plateau"]
    messages += [finding.text for finding in findings if finding.kind in ("nan", "inf")]
    return "; ".join(messages)
