"""Opens the dashboard: on the chosen clusters, or on a recorded case."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import platformdirs
from msgspec.structs import replace

from hpcdash.assembly import (
    build_replay,
    build_session,
    chosen_clusters,
    connection_pool,
    default_cluster_note,
    is_first_start,
)
from hpcdash.cli.ending import EndedBySignal, ends_with_signals, leave_terminal
from hpcdash.cli.options import CommonOptions
from hpcdash.config.read import config_path, load_settings
from hpcdash.config.settings import DEFAULT_THEME, Settings
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import align_cells
from hpcdash.errors import UsageError
from hpcdash.private_files import make_folder
from hpcdash.recorded import find_case, shipped_cases
from hpcdash.services.session import ClusterSession
from hpcdash.services.state import database
from hpcdash.services.state.choices import Choices, choices_file, read_choices, write_choices
from hpcdash.services.state.folders import state_root
from hpcdash.ui.actions import ACTION_NAMES, configured, key_problems
from hpcdash.ui.prompter import UiPrompter

if TYPE_CHECKING:
    from hpcdash.transport.pool import ConnectionPool
    from hpcdash.ui.app import HpcdashApp
    from hpcdash.ui.terminal_app import TerminalApp

# By then the first table is on the screen.
_START_SECONDS = 2.0
_FALLBACKS = {"pager": ("less", "more"), "editor": ("nano", "vi")}
_VARIABLES = {"pager": ("PAGER",), "editor": ("VISUAL", "EDITOR")}


def run_outside(program: str, file: Path) -> str:
    """Run 'pager' or 'editor' on a file and wait for its end; the complaint where that fails, else
    ''.
    """
    parts = _command_arguments(program)
    if not parts:
        names = " or ".join(f"${name}" for name in _VARIABLES[program])
        return f"no {program} was found; set {names}"
    # less shows colours only with an option, and its own -F would close a short file at once.
    environment = {**os.environ, "LESS": os.environ.get("LESS", "-R").replace("F", "")}
    try:
        status = subprocess.call([*parts, str(file)], env=environment)
    except OSError as error:
        return f"{parts[0]}: {error.strerror}"
    return f"{parts[0]} ended with status {status}" if status else ""


def _command_arguments(program: str) -> list[str]:
    for name in _VARIABLES[program]:
        if os.environ.get(name, "").strip():
            try:
                return shlex.split(os.environ[name])
            except ValueError:
                continue
    return [found for name in _FALLBACKS[program] if (found := shutil.which(name))][:1]


def run_dashboard(
    common: CommonOptions, first_start: Callable[[CommonOptions, Settings], None]
) -> None:
    """The app on configured clusters, or on this machine's own scheduler; without either,
    `first_start`.
    """
    settings = load_settings(common.config, action_names=ACTION_NAMES, check=key_problems)
    if is_first_start(common, settings):
        first_start(common, settings)
        return
    prompter = UiPrompter()
    notice = default_cluster_note(common, settings)
    leave_app(
        asyncio.run(
            open_dashboard(common, settings, connection_pool(prompter), prompter, notice=notice)
        )
    )


async def open_dashboard(
    common: CommonOptions,
    settings: Settings,
    pool: ConnectionPool,
    prompter: UiPrompter,
    *,
    notice: str,
) -> HpcdashApp:
    """The app on the chosen clusters, over the connections of `pool`, once a person left it."""
    zone = UTC if settings.ui.clock == "utc" else None
    sessions = [
        watched(
            build_session(cluster, pool, zone=zone, share=settings.share),
            settings.watch,
            state_root(),
            _ConfigFile(common.config),
        )
        for cluster in chosen_clusters(common, settings)
    ]
    # Before the screen is there: what the last run knew is part of the first paint.
    sessions[0].store.load_cached((Kind.MINE,))
    is_new = not _tour_was_seen()
    return await show_app(
        common, settings, sessions, prompter, notice=notice, tour=is_new, tour_ended=note_tour
    )


class _ConfigFile:
    """The configuration, read again whenever its file is another one; till then there is None."""

    def __init__(self, named: Path | None) -> None:
        self.path, _ = config_path(named)
        self._named = named
        self._stamp = self._stamped()

    def settings(self) -> Settings | None:
        """Raises ConfigError where it cannot be used: once."""
        if not self._has_changed():
            return None
        return load_settings(self._named, action_names=ACTION_NAMES, check=key_problems)

    def watch(self) -> WatchSettings | None:
        """[watch] of it. Raises HpcdashError where it cannot be read: once."""
        return load_settings(self._named).watch if self._has_changed() else None

    def _has_changed(self) -> bool:
        """Whether it is another one than last time; one that is gone, as while it is saved, is
        not.
        """
        stamp = self._stamped()
        if stamp in (self._stamp, ()):
            return False
        self._stamp = stamp
        return True

    def _stamped(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid


def watched(
    session: ClusterSession, watch: WatchSettings, folder: Path, file: _ConfigFile | None = None
) -> ClusterSession:
    """Add watchdogs, which start with the state of `hpcdash watch` (in `folder`).

    They notify only this screen. Changes of `file` apply at once.
    """
    from hpcdash.services.watch.board import WatchBoard
    from hpcdash.services.watch.state import WatchFiles

    files = WatchFiles(folder, session.name)
    if file is None:
        return replace(
            session, watching=WatchBoard(session.store, watch, files, shared=session.pools)
        )
    board = WatchBoard(
        session.store,
        watch,
        files,
        shared=session.pools,
        config_file=str(file.path),
        reread=file.watch,
    )
    return replace(session, watching=board)


def _tour_was_seen() -> bool:
    return os.path.exists(_tour_marker())


def _tour_marker() -> Path:
    """Return the file whose existence means that a person has seen the hints."""
    return state_root() / "toured"


def note_tour() -> None:
    """Note that the hints were seen; where that cannot be noted they come once more."""
    marker = _tour_marker()
    with contextlib.suppress(OSError):
        make_folder(marker.parent)
        marker.touch(mode=0o600)


def list_cases() -> None:
    """Print the shipped recordings, and how to open one."""
    cases = shipped_cases()
    print(*align_cells(list(cases.items())), sep="\n")
    print(f"\nOpen one: hpcdash replay {max(name for name in cases if name.endswith('training'))}")


def run_replay(common: CommonOptions, case_directory: Path, view: str) -> None:
    """The app on a recording."""
    session = build_replay(find_case(case_directory))
    # Actions have no effect there, and do not belong in the journal.
    common = replace(common, read_only=True)
    settings = load_settings(common.config, action_names=ACTION_NAMES, check=key_problems)
    notice = "a recording: nothing changes, no watchdogs"
    leave_app(
        asyncio.run(show_app(common, settings, [session], UiPrompter(), view=view, notice=notice))
    )


def require_terminal() -> None:
    """Raises UsageError where there is none and no browser either."""
    if os.environ.get("TEXTUAL_DRIVER"):
        return
    # It is drawn on stderr.
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "the dashboard needs a terminal",
            "One-shot commands do not: hpcdash jobs --format json, hpcdash --help",
        )


async def show_app(
    common: CommonOptions,
    settings: Settings,
    sessions: list[ClusterSession],
    prompter: UiPrompter,
    *,
    view: str = "jobs",
    notice: str = "",
    tour: bool = False,
    tour_ended: Callable[[], None] = lambda: None,
) -> HpcdashApp:
    """Run the app until the person leaves it, and return it.

    `notice` is shown once it has started, `tour` begins with hints.
    """
    require_terminal()
    _import_grouping()

    def make(app: type[HpcdashApp]) -> HpcdashApp:
        return app(
            sessions,
            actions=configured(settings),
            theme=settings.theme,
            theme_folders=theme_folders(),
            read_only=common.read_only or settings.read_only,
            columns=settings.ui.columns,
            sort=settings.ui.sort,
            fold_arrays=settings.ui.fold_arrays,
            prompter=prompter,
            choices=_read_choices(settings),
            first_view=view,
            aliases=settings.aliases,
            filters=settings.filters,
            withheld=frozenset(
                secret.variable for one in settings.watch.notices for secret in one.secrets.values()
            ),
            settings=settings,
            reread=_ConfigFile(common.config).settings,
            metric_patterns=settings.metrics.patterns,
            run_outside=run_outside,
            notice=notice,
            tour=tour,
            tour_ended=tour_ended,
            note_error=_noted if common.debug else lambda error: None,
            notify=settings.ui.notify,
        )

    app = await _run(sessions[0], make)
    write_choices(state_root(), app.choices)
    return app


def theme_folders() -> list[Path]:
    """Return the folders of a person's own themes."""
    return [platformdirs.user_config_path("hpcdash") / "themes"]


def leave_app(app: TerminalApp) -> None:
    """Raises EndedBySignal, or the error of its own, that ended an app."""
    if app.ended_by is not None:
        if app.ended_by == signal.SIGHUP:
            leave_terminal()
        raise EndedBySignal(app.ended_by)
    if app.crash is not None:
        raise app.crash


def _import_grouping() -> None:
    """Import pyarrow.acero, which groups rows, without pyarrow.dataset.

    pyarrow would load pyarrow.dataset if it could: file systems and Parquet, 20 MB.
    """
    if "pyarrow.dataset" not in sys.modules:
        sys.modules["pyarrow.dataset"] = None  # type: ignore[assignment]  # how Python marks what is not there
        try:
            import_module("pyarrow.acero")
        finally:
            del sys.modules["pyarrow.dataset"]


async def _run(first: ClusterSession, make: Callable[[type[HpcdashApp]], HpcdashApp]) -> HpcdashApp:
    """The app, once it has ended."""
    if Kind.MINE not in first.store.snapshots:
        # There is nothing to show: the cluster answers while the interface is imported.
        first.poller.start()
    app = make((await asyncio.to_thread(import_module, "hpcdash.ui.app")).HpcdashApp)
    asyncio.get_running_loop().call_later(_START_SECONDS, _collect_garbage)
    # stderr is the screen now.
    database.listen(lambda text: app.notify(text, severity="warning", markup=False, timeout=15))
    with ends_with_signals(app):
        await app.run_async()
    return app


def _collect_garbage() -> None:
    """Collect from now on, but not what is loaded already, which lives as long as the app."""
    gc.freeze()
    gc.enable()


def _read_choices(settings: Settings) -> Choices:
    """Return the choices made on the screen; a configuration file written later has precedence."""
    choices = read_choices(state_root())
    try:
        is_later = settings.file is not None and (
            settings.file.stat().st_mtime > choices_file(state_root()).stat().st_mtime
        )
    except OSError:
        return choices
    if not is_later:
        return choices
    return msgspec.structs.replace(
        choices,
        theme="" if settings.theme != DEFAULT_THEME else choices.theme,
        columns={
            view: names
            for view, names in choices.columns.items()
            if view not in settings.ui.columns
        },
        sort={view: name for view, name in choices.sort.items() if view not in settings.ui.sort},
        fold_arrays=choices.fold_arrays if settings.ui.fold_arrays else None,
    )


def _noted(error: Exception) -> Path | None:
    from hpcdash.cli.debug_log import log_traceback

    return log_traceback(error)
