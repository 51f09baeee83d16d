"""The dashboard on the chosen clusters, or on a recorded case."""

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
    broker_use,
    build_replay,
    build_session,
    chosen_clusters,
    connection_pool,
    default_cluster_note,
    is_first_start,
)
from hpcdash.cli.debug_log import log_traceback
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
    """Run 'pager' or 'editor' on a file until it exits; return its error, '' after success."""
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
    return f"{parts[0]} exited with status {status}" if status else ""


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
    """Open the app on configured clusters or this machine's scheduler; without, `first_start`."""
    settings = load_settings(common.config, action_names=ACTION_NAMES, check=key_problems)
    if is_first_start(common, settings):
        first_start(common, settings)
        return
    prompter = UiPrompter()
    notice = default_cluster_note(common, settings)
    pool = connection_pool(prompter, broker_use(common, settings))
    leave_app(asyncio.run(open_dashboard(common, settings, pool, prompter, notice=notice)))


async def open_dashboard(
    common: CommonOptions,
    settings: Settings,
    pool: ConnectionPool,
    prompter: UiPrompter,
    *,
    notice: str,
) -> HpcdashApp:
    """Run the app on the chosen clusters over the connections of `pool`, and return it."""
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
    # Before the first paint, which has what the last run knew.
    sessions[0].store.load_cached((Kind.MINE,))
    is_new = not _tour_marker().exists()
    return await show_app(
        common, settings, sessions, prompter, notice=notice, tour=is_new, tour_ended=note_tour
    )


class _ConfigFile:
    """The configuration file, read again after each change; its error is raised once."""

    def __init__(self, option: Path | None) -> None:
        self.path, _ = config_path(option)
        self._option = option
        self._stamp = self._read_stamp()

    def settings(self) -> Settings | None:
        """Return the settings after a change, else None. Raises ConfigError."""
        if not self._has_changed():
            return None
        return load_settings(self._option, action_names=ACTION_NAMES, check=key_problems)

    def watch(self) -> WatchSettings | None:
        """Return [watch] after a change, else None. Raises HpcdashError."""
        return load_settings(self._option).watch if self._has_changed() else None

    def _has_changed(self) -> bool:
        """Return whether the file differs from the last one; a missing file, as during a save, does
        not.
        """
        stamp = self._read_stamp()
        if stamp in (self._stamp, ()):
            return False
        self._stamp = stamp
        return True

    def _read_stamp(self) -> tuple[int, ...]:
        try:
            status = self.path.stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode, status.st_uid


def watched(
    session: ClusterSession, watch: WatchSettings, folder: Path, file: _ConfigFile | None = None
) -> ClusterSession:
    """Add watchdogs, which start with the state of `hpcdash watch` (in `folder`).

    They notify only this screen. Changes of `file` apply at once.
    """
    from hpcdash.services.watch.board import WatchBoard
    from hpcdash.services.watch.state import WatchFiles

    board = WatchBoard(
        session.store,
        watch,
        WatchFiles(folder, session.name),
        shared=session.pools,
        config_file="" if file is None else str(file.path),
        reread=(lambda: None) if file is None else file.watch,
    )
    return replace(session, watching=board)


def _tour_marker() -> Path:
    """Return the file whose existence means that a person has seen the hints."""
    return state_root() / "toured"


def note_tour() -> None:
    """Note that the hints were seen; if that fails they are shown once more."""
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
    """Open the app on a recording."""
    session = build_replay(find_case(case_directory))
    # Actions have no effect there, and do not belong in the journal.
    common = replace(common, read_only=True)
    settings = load_settings(common.config, action_names=ACTION_NAMES, check=key_problems)
    notice = "recording: read-only, no watchdogs"
    leave_app(
        asyncio.run(show_app(common, settings, [session], UiPrompter(), view=view, notice=notice))
    )


def require_terminal() -> None:
    """Raise UsageError if there is neither a terminal nor a browser."""
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
                secret.variable
                for notice in settings.watch.notices
                for secret in notice.secrets.values()
            ),
            settings=settings,
            reread=_ConfigFile(common.config).settings,
            metric_patterns=settings.metrics.patterns,
            run_outside=run_outside,
            notice=notice,
            tour=tour,
            tour_ended=tour_ended,
            note_error=log_traceback if common.debug else lambda error: None,
            notify=settings.ui.notify,
        )

    app = await _run(sessions[0], make)
    write_choices(state_root(), app.choices)
    return app


def theme_folders() -> list[Path]:
    """Return the folders of a person's own themes."""
    return [platformdirs.user_config_path("hpcdash") / "themes"]


def leave_app(app: TerminalApp) -> None:
    """Raise EndedBySignal, or the app's own error, if that ended it."""
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
    """Run the app that `make` builds, and return it."""
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
    """Enable collection, except of objects loaded so far, which live as long as the app."""
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
