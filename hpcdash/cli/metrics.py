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
from msgspec.structs import replace
from rich.color import ColorSystem
from rich.style import Style

from hpcdash.assembly import chosen_clusters
from hpcdash.cli.ending import ends_silently
from hpcdash.cli.jobs import with_session
from hpcdash.cli.log import color_system, report
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import ByteStream, stdout
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
MIN_WIDTH, LARGEST_WIDTH = 40, 240
# Rows of a chart: of a single one, of each of several, and of each where the screen has few.
_HEIGHT, _SMALL_HEIGHT, _MIN_HEIGHT = 18, 12, 7
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
            "Parquet cannot be written to a terminal", "Give --out FILE, or redirect stdout."
        )
    settings = load_settings(common.config)
    patterns = settings.metrics.patterns
    if not job and chosen_clusters(common, settings)[0].transport == "local":
        file = str(Path(file).expanduser().absolute())

    async def work(session: ClusterSession) -> None:
        is_chart = form == "chart"
        points = EXACT_POINTS if is_chart else EXPORTED_POINTS
        run = WatchedRun(session.store, job, patterns=patterns, file=file, exact_points=points)
        output = _Output(session, run, form, requested, out, log)
        if follow and form == "csv" and out is None:
            output.rows = ComingRows()
        await run.open()
        with _progress_line() as progressed:
            if follow:
                await _until_over(run, output)
            is_whole = await run.read_whole(
                lambda: progressed(run), CHART_SECONDS if is_chart and not follow else None
            )
        read = run.progress
        if not is_whole and run.run.names:
            report(
                f"the newest {_size(read.read_bytes)} of {_size(read.total_bytes)} were read; "
                "--format csv reads all"
            )
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
        is_log: bool,
    ) -> None:
        self._session = session
        self._run = run
        self._form = form
        self._requested = requested
        self._out = out
        self._is_log = is_log
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
            report(run.problem)
        if self.rows is not None and self.rows.has_begun:
            self.write_new(is_end=True)
            return
        content = self._content(self._names())
        if self._out is None:
            if self._form == "chart":
                # The colours are ours, and the text was made visible.
                out: ByteStream = sys.stdout.buffer
            else:
                out = stdout(is_json=self._form == "json")
            out.write(content)
            out.flush()
            return
        try:
            write_output(self._out, content)
        except OSError as error:
            raise HpcdashError(
                f"{self._out}: {error.strerror or error}", "Give --out another file."
            ) from None

    def write_new(self, *, is_end: bool = False) -> None:
        """The rows that are whole and were not written yet; none before all that was there at first
        is read.
        """
        run = self._run.run
        if (
            self.rows is None
            or not run.names
            or not (self.rows.has_begun or is_end or self._run.progress.is_whole)
        ):
            return
        with contextlib.suppress(HpcdashError):
            names = self._names()
            for text in self.rows.left_out(run, names):
                report(text)
            out = stdout()
            out.write(self.rows.new_rows(run, names, is_end=is_end))
            out.flush()

    def redraw(self) -> None:
        """The chart as it is now, in place of the one before."""
        if self._run.run.names:
            with contextlib.suppress(HpcdashError):
                content = self._chart(self._names(), shutil.get_terminal_size().lines)
                sys.stdout.buffer.write(_CLEAR.encode() + content)
                sys.stdout.buffer.flush()

    def _content(self, names: list[str]) -> bytes:
        run = self._run
        if self._form == "json":
            return as_json(run.run, names, run.named_source, self._session.envelope())
        if self._form == "csv":
            table = run.run.table(names)
            # In a file no title is a formula to a spreadsheet.
            return encode_csv(table if self._out is None else without_formulas(table))
        if self._form == "parquet":
            return encode_parquet(run.run.table(names))
        return self._chart(names)

    def _chart(self, names: list[str], rows: int | None = None) -> bytes:
        run = self._run
        size = shutil.get_terminal_size()
        lines = self._printer.lines(
            run.run, names, run.job_facts(), size.columns, rows, log_y=self._is_log
        )
        text = "\n".join((visible(run.title), *lines, ""))
        if not self._printer.has_unicode:
            text = text.replace("→", "->")
        return text.encode(sys.stdout.encoding or "utf-8", "replace")

    def _names(self) -> list[str]:
        """The requested metrics, else all of them; for a chart, the most telling ones."""
        run = self._run.run
        if not self._requested:
            if self._form != "chart":
                return list(run.names)
            return shown_by_default(run)
        return [_named(word, run.names) for word in dict.fromkeys(self._requested)]


def _require_job(job: str, file: str) -> None:
    if not job and not file:
        raise UsageError(
            "no job or file given", "hpcdash metrics 17, or hpcdash metrics --file train.log"
        )
    try:
        if job:
            parse_job_id(job)
    except BadJobId:
        is_path_like = not file and any(sign in job for sign in "./~")
        if is_path_like:
            text = shlex.join(("hpcdash", "metrics", "--file", job))
            raise UsageError(
                f"{job!r} is not a job", f"For the metrics in a file: {text}"
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
                    report(reported)
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


class _Progress:
    """Progress on a stderr that is a terminal, shown after one second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1.0
        self.is_shown = False

    def __call__(self, run: WatchedRun) -> None:
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next = now + 0.5
        self.is_shown = True
        read = run.progress
        sys.stderr.write(f"\rreading {_size(read.read_bytes)} of {_size(read.total_bytes)}\x1b[K")
        sys.stderr.flush()


@contextlib.contextmanager
def _progress_line() -> Iterator[_Progress]:
    progress = _Progress()
    try:
        yield progress
    finally:
        if progress.is_shown:
            sys.stderr.write("\r\x1b[K")


_CUSTOM_FORMAT = (
    f"Lines of another format, as {EXAMPLE_LINE!r}, are read once config.toml has:\n\n{EXAMPLE}"
)


def _nothing(run: WatchedRun) -> str:
    if not run.job_id:
        return f"No metrics found: {visible(run.problem) or f'{visible(run.title)} is empty'}."
    return f"Job {run.job_id} has no metrics: {visible(run.problem) or 'its log is empty'}."


def _next_step(run: WatchedRun, where: str) -> str:
    if not run.job_id:
        if not run.has_files:
            return f"Check the path: hpcdash looks for it on {visible(where)}."
        return _CUSTOM_FORMAT
    state = None if run.row is None else run.row["state"]
    if state in WAITING:
        return f"The job is {state}: its metrics appear once it runs. -f waits for it."
    if state not in ENDED:
        return (
            "The job may not have written any metrics yet: -f waits for it. --file reads a "
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
    answer = {
        "schema": 1,
        **envelope,
        "series": [
            _object(run.series(name, run.axes(name)[0]), named_source(name)) for name in names
        ],
    }
    return msgspec.json.encode(answer) + b"\n"


def _object(series: Series, source: str) -> dict[str, Any]:
    finite = np.isfinite(series.values)
    y: list[float | None] = series.mean.tolist()
    for place in np.flatnonzero(~finite).tolist():
        y[place] = None
    return {
        "name": series.name,
        "x": whole_numbers(series.x).tolist(),
        "y": y,
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
        if self.has_begun and axis != self._axis:
            return b""
        table = run.table(self._names or list(names))
        if not is_end:
            table = table.slice(0, max(0, table.num_rows - 1))
        if self._last is not None:
            table = table.filter(pc.greater(table[axis], self._last))
        if not table.num_rows:
            return b""
        is_first = not self.has_begun
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
        if late := [
            name for name in names if name not in self._names and name not in self._announced
        ]:
            self._announced.update(late)
            came = ", ".join(visible(name) for name in late)
            messages.append(
                f"{came} appeared later and has no column; run again without -f to include it"
            )
        if len(run.attempts) > self._attempts:
            self._attempts = len(run.attempts)
            messages.append(
                f"it restarted: repeated rows up to {self._axis} {self._last:g} are skipped"
            )
        if run.axes()[0] != self._axis and self._axis not in self._announced:
            self._announced.add(self._axis)
            messages.append(
                f"the log no longer counts in {self._axis}: nothing more is written; start again "
                "with -f"
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
        by_axis: dict[str, list[str]] = {}
        for name in names:
            by_axis.setdefault(run.axes(name)[0], []).append(name)
        charts: list[ChartRequest] = []
        width = min(max(columns, MIN_WIDTH), LARGEST_WIDTH)
        texts = {}
        for axis, alike in by_axis.items():
            # A chart that is printed shows no stall.
            facts = self._reader.read(run, alike, axis, JobFacts(job.now))
            for name in alike:
                texts[name] = _metric_text(name, run.series(name, axis), facts)
            # Without colours a smooth curve would look like the curve it smooths.
            smoothing = "none" if self._colours is None else "auto"
            # No panel is the one that keys act on.
            state = ChartState(tuple(alike), axis, log_y, smoothing, panel=-1)
            chart = ChartRun("A", "", run, facts.marks, axis)
            charts.append(ChartRequest((chart,), state, width, 0, is_ascii=not self.has_unicode))
        parts = [texts[name] for name in names if texts[name]]
        parts += [f"{visible(name)}: {finding.text}" for name, finding in find_broken(run, names)]
        parts.append("; ".join(self._reader.read_course(run, job, names[0])))
        parts.append(format_lost_time(run.lost_time()))
        parts = [part for part in parts if part]
        beside = 2 if width >= _TWO_BESIDE_FROM else 1
        downs = [-(-len(alike) // beside) for alike in by_axis.values()]
        height = _HEIGHT if sum(downs) == 1 else _SMALL_HEIGHT
        if rows is not None:
            room = rows - len(parts) - 2
            height = max(_MIN_HEIGHT, min(height, room // sum(downs)))
        lines: list[str] = []
        for request, down in zip(charts, downs, strict=True):
            picture = draw(replace(request, height=height * down))
            lines += map(self._painted, picture.lines)
        return [*lines, *parts]

    def _painted(self, line: Line) -> str:
        if self._colours is None:
            text = "".join(message for message, _ in line).rstrip()
        else:
            text = "".join(
                _STYLES.get(name, Style()).render(message, color_system=self._colours)
                for message, name in line
            )
        return text if self.has_unicode else text.translate(_PLAIN_LETTERS)


def _metric_text(name: str, series: Series, facts: RunFacts) -> str:
    """The last value of a metric, its spikes and nan; '' where it has no values."""
    if not len(series):
        return ""
    value = float(series.values[-1])
    x = float(series.x[-1])
    messages = [f"{visible(name)} {format_number(value)} at {series.axis} {format_step(x)}"]
    found = facts.findings[name]
    if is_loss(name):
        spikes = [one.text for one in found if one.kind in ("spike", "divergence")]
        if np.isfinite(series.values).sum() < FEWEST_POINTS:
            messages.append("too few points to detect anomalies")
        if spikes:
            more = f" (the newest of {len(spikes)})" if len(spikes) > 1 else ""
            messages.append(spikes[-1] + more)
        messages += [one.text for one in found if one.kind == "plateau"]
    messages += [one.text for one in found if one.kind in ("nan", "inf")]
    return "; ".join(messages)
