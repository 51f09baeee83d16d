"""`hpcdash metrics`: a job's loss and other metrics, drawn once or written for machines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdash.cli.build import chosen_clusters
from hpcdash.cli.ending import ends_silently
from hpcdash.cli.jobs import with_session
from hpcdash.cli.log import color_system, report
from hpcdash.cli.metric_output import as_json, wide_table
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
from hpcdash.services.metrics.run import WatchedRun
from hpcdash.services.metrics.series import EXACT_POINTS
from hpcdash.services.session import ClusterSession

if TYPE_CHECKING:
    from hpcdash.cli.metric_output import ComingRows
    from hpcdash.services.metrics.throughput import PaceGrowth

# Up to this many points are written as in the log; beyond, the oldest are folded.
EXPORTED_POINTS = 5_000_000
# A chart is drawn of what can be read in this time.
CHART_SECONDS = 15.0
_REDRAW_SECONDS = 1.0
_CLEAR = "\x1b[H\x1b[2J"


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
            from hpcdash.cli.metric_output import ComingRows

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
                f"--format csv reads all"
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
        # Growth observed so far; created when a chart is drawn.
        self._growth: PaceGrowth | None = None
        # Set when rows are written as they come.
        self.rows: ComingRows | None = None
        self.is_screen = form == "chart" and out is None and sys.stdout.isatty()

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
            table = wide_table(run.run, names)
            # In a file no title is a formula to a spreadsheet.
            return encode_csv(table if self._out is None else without_formulas(table))
        if self._form == "parquet":
            return encode_parquet(wide_table(run.run, names))
        return self._chart(names)

    def _chart(self, names: list[str], rows: int | None = None) -> bytes:
        # Drawing modules are not needed for the other forms.
        from hpcdash.cli.metric_output import Paper, chart_text, job_facts, meaning
        from hpcdash.services.metrics.throughput import PaceGrowth

        run = self._run
        encoding = sys.stdout.encoding or "utf-8"
        self._growth = self._growth or PaceGrowth()
        now = self._session.store.clock.now()
        job = job_facts(run.row or {}, now, is_array=run.is_array, is_whole=run.progress.is_whole)
        parts = meaning(run.run, names, job, self._growth)
        paper = Paper(
            shutil.get_terminal_size().columns,
            None if rows is None else rows - len(parts) - 2,
            color_system(os.environ) if self.is_screen else None,
            encoding.lower().replace("-", "").startswith("utf"),
        )
        text = chart_text(run.run, names, paper, log_y=self._is_log)
        content = "\n".join((visible(run.title), text, *parts, ""))
        return content.replace("→", "->" if not paper.has_unicode else "→").encode(
            encoding, "replace"
        )

    def _names(self) -> list[str]:
        """The requested metrics, else all of them; for a chart, the most telling ones."""
        run = self._run.run
        if not self._requested:
            if self._form != "chart":
                return list(run.names)
            from hpcdash.cli.metric_output import shown_by_default

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
        self._next, self.is_shown = now + 0.5, True
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
