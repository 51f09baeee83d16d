"""Opens the dashboard: on the chosen clusters, on a recorded case, or on a throw-away queue with sample jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from types import FrameType

import platformdirs

from hpcdash.cli.build import (
    build_queue_session,
    build_replay,
    build_session,
    chosen_clusters,
    connection_pool,
    state_root,
    why_this,
)
from hpcdash.cli.ending import EndedBySignal, ends_with_signals, leave_terminal
from hpcdash.cli.options import CommonOptions
from hpcdash.config import Settings, config_path, load_settings, settings_from_text
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.embedded.demo.jobs import FOLDER_PREFIX, READY
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.recorded import find_case
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.session import ClusterSession
from hpcdash.services.state import database
from hpcdash.ui.actions import ACTION_NAMES, remapped
from hpcdash.ui.prompter import UiPrompter

_FALLBACKS = {"pager": ("less", "more"), "editor": ("nano", "vi")}
_VARIABLES = {"pager": ("PAGER",), "editor": ("VISUAL", "EDITOR")}
_END_SECONDS = 20.0


def run_outside(program: str, file: Path) -> str:
    """Run 'pager' or 'editor' on a file and wait for its end; the complaint where that fails, else ''."""
    words = _words_of(program)
    if not words:
        names = " or ".join(f"${name}" for name in _VARIABLES[program])
        return f"no {program} was found; set {names}"
    # less shows colours only when told to, and its own -F would close a short file at once.
    environment = {**os.environ, "LESS": os.environ.get("LESS", "-R").replace("F", "")}
    try:
        status = subprocess.call([*words, str(file)], env=environment)
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    return f"{words[0]} ended with status {status}" if status else ""


def _words_of(program: str) -> list[str]:
    for name in _VARIABLES[program]:
        if os.environ.get(name, "").strip():
            try:
                return shlex.split(os.environ[name])
            except ValueError:
                continue
    return [found for name in _FALLBACKS[program] if (found := shutil.which(name))][:1]


def run_dashboard(common: CommonOptions) -> None:
    """The app on configured clusters, or on this machine's own scheduler."""
    settings = load_settings(common.config, action_names=ACTION_NAMES)
    prompter = UiPrompter()
    zone = UTC if settings.ui.clock == "utc" else None
    pool = connection_pool(prompter)
    sessions = [
        watched(build_session(cluster, pool, zone=zone), settings.watch, state_root(), _WatchFile(common.config))
        for cluster in chosen_clusters(common, settings)
    ]
    # Before the screen is there: what the last run knew is part of the first paint.
    sessions[0].store.load_cached((Kind.MINE,))
    is_first = not os.path.exists(_tour_marker())
    notice = why_this(common, settings)
    run_app(common, settings, sessions, prompter, notice=notice, tour=is_first, tour_ended=note_tour)


class _WatchFile:
    """[watch] of the configuration, read again whenever its file is another one; called, it gives None till then."""

    def __init__(self, named: Path | None) -> None:
        self.path, _ = config_path(named)
        self._named = named
        self._stamp = self._stamped()

    def __call__(self) -> WatchSettings | None:
        """Raises HpcdashError where it cannot be read: once."""
        stamp = self._stamped()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        return load_settings(self._named).watch

    def _stamped(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


def watched(
    session: ClusterSession, watch: WatchSettings, folder: Path, file: _WatchFile | None = None
) -> ClusterSession:
    """With its watchdogs, which begin with what `hpcdash watch` knows (in `folder`) and tell nobody but this screen.

    What is written into `file` counts at once.
    """
    from hpcdash.services.watch.board import WatchBoard
    from hpcdash.services.watch.state import WatchFiles

    files = WatchFiles(folder, session.name)
    if file is None:
        return replace(session, watching=WatchBoard(session.store, watch, files))
    board = WatchBoard(session.store, watch, files, config_file=str(file.path), reread=file)
    return replace(session, watching=board)


def _tour_marker() -> Path:
    """Its being there says that a person has seen the hints."""
    return state_root() / "toured"


def note_tour() -> None:
    """Note that the hints were seen; where that cannot be noted they come once more."""
    marker = _tour_marker()
    with contextlib.suppress(OSError):
        marker.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        marker.touch(mode=0o600)


def run_replay(common: CommonOptions, case_directory: Path, view: str) -> None:
    """The app on a recording."""
    session = build_replay(find_case(case_directory))
    # Nothing answers an action there, and none belongs in the journal.
    common = replace(common, read_only=True)
    settings = load_settings(common.config, action_names=ACTION_NAMES)
    run_app(common, settings, [session], UiPrompter(), view=view, notice="a recording: nothing changes, no watchdogs")


def require_terminal() -> None:
    """Raises UsageError where there is none."""
    # It is drawn on stderr.
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "the dashboard needs a terminal", "One-shot commands do not: hpcdash jobs --format json, hpcdash --help"
        )


def run_app(
    common: CommonOptions,
    settings: Settings,
    sessions: list[ClusterSession],
    prompter: UiPrompter,
    *,
    view: str = "jobs",
    notice: str = "",
    tour: bool = False,
    tour_ended: Callable[[], None] = lambda: None,
) -> None:
    """The app, until the person leaves it; `notice` is said once it is there, `tour` begins with hints."""
    require_terminal()
    from hpcdash.ui.app import HpcdashApp

    app = HpcdashApp(
        sessions,
        actions=remapped(settings.keys, str(settings.file or "")),
        theme=settings.theme,
        theme_folders=[platformdirs.user_config_path("hpcdash") / "themes"],
        read_only=common.read_only or settings.read_only,
        columns=settings.ui.columns,
        sort=settings.ui.sort,
        fold_arrays=settings.ui.fold_arrays,
        prompter=prompter,
        first_view=view,
        aliases=settings.aliases,
        metric_patterns=settings.metrics.patterns,
        run_outside=run_outside,
        notice=notice,
        tour=tour,
        tour_ended=tour_ended,
        note_error=_noted if common.debug else lambda error: None,
    )
    # stderr is the screen now.
    database.listen(lambda words: app.notify(words, severity="warning", markup=False, timeout=15))
    with ends_with_signals(app):
        app.run()
    if app.ended_by is not None:
        if app.ended_by == signal.SIGHUP:
            leave_terminal()
        raise EndedBySignal(app.ended_by)
    if app.crash is not None:
        raise app.crash


def _noted(error: Exception) -> Path | None:
    from hpcdash.cli.ending import log_traceback

    return log_traceback(error)


# What the demonstration's watchdogs look after: one of its jobs hangs, a training has a spike, another is too long.
WATCHED = """
[watch]
every_seconds = 60
[[watch.hanging]]
name = "allreduce-bench"
limit_seconds = 20
[[watch.losses]]
[[watch.trains]]
name = "train-7b"
[[watch.saves]]
name = "train-7b"
interval_seconds = "10m"
save_seconds = 40
[watch.failures]
"""


def run_demo(common: CommonOptions) -> None:
    """Fill a queue, show it, and take it away again."""
    settings = load_settings(common.config, action_names=ACTION_NAMES)
    require_terminal()
    with demonstration() as folder:
        run_app(common, settings, [demo_session(folder)], UiPrompter(), tour=True)


def demo_session(folder: Path) -> ClusterSession:
    """The demonstration's queue with its watchdogs; what they remember is gone with its folder."""
    session = build_queue_session(folder / "queue", name="demo", state_folder=folder)
    return watched(session, settings_from_text(WATCHED, folder / "demo").watch, folder)


@contextmanager
def demonstration() -> Iterator[Path]:
    """A filled queue in a folder of its own; gone afterwards, even where this program is killed."""
    folder, lock = _locked_folder()
    undertaker = subprocess.Popen(
        [sys.executable, "-P", "-m", "hpcdash.embedded.demo", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,
    )
    os.close(lock)
    assert undertaker.stdin is not None
    assert undertaker.stdout is not None
    try:
        # A terminal that is closed ends this program as ctrl+q does.
        signal.signal(signal.SIGHUP, _end)
        signal.signal(signal.SIGTERM, _end)
        # What takes longest to load is loaded while the queue is filled.
        import hpcdash.ui.app  # noqa: F401

        said = undertaker.stdout.readline().decode("utf-8", "replace").strip()
        if said != READY:
            raise HpcdashError(said or "the demonstration's queue does not start")
        yield folder
    finally:
        undertaker.stdin.close()
        undertaker.stdout.close()
        undertaker.wait(_END_SECONDS)


def _locked_folder() -> tuple[Path, int]:
    """A fresh folder and its lock: whoever finds it without one knows that nobody takes it away any more."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another demonstration came before the lock, and takes the folder away.
            os.close(lock)
        except OSError:
            # A file system without locks: there folders that are left stay.
            return folder, lock
        else:
            return folder, lock


def _end(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        leave_terminal()
    raise EndedBySignal(number)
