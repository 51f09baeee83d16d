"""Opens the dashboard: on the chosen clusters, or on a recorded case."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import platformdirs

from hpcdash.cli.build import build_replay, build_session, chosen_clusters, connection_pool, why_this
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.outside import run_outside
from hpcdash.config import Settings, load_settings
from hpcdash.errors import UsageError
from hpcdash.recorded import find_case
from hpcdash.stores.snapshots import Kind
from hpcdash.ui.actions import ACTION_NAMES, remapped
from hpcdash.ui.prompter import UiPrompter
from hpcdash.ui.session import ClusterSession


def run_dashboard(common: CommonOptions) -> None:
    """The app on configured clusters, or on this machine's own scheduler."""
    settings = load_settings(common.config, action_names=ACTION_NAMES)
    prompter = UiPrompter()
    zone = UTC if settings.ui.clock == "utc" else None
    pool = connection_pool(prompter)
    sessions = [build_session(cluster, pool, zone=zone) for cluster in chosen_clusters(common, settings)]
    # Before the screen is there: what the last run knew is part of the first paint.
    sessions[0].store.load_cached((Kind.MINE,))
    run_app(common, settings, sessions, prompter, notice=why_this(common, settings))


def run_replay(common: CommonOptions, case_directory: Path, view: str) -> None:
    """The app on a recording."""
    session = build_replay(find_case(case_directory))
    # Nothing answers an action there, and none belongs in the journal.
    common = replace(common, read_only=True)
    run_app(common, load_settings(common.config, action_names=ACTION_NAMES), [session], UiPrompter(), view=view)


def require_terminal() -> None:
    """Raises UsageError where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
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
) -> None:
    """The app, until the person leaves it; `notice` is said once it is there, `tour` begins with hints."""
    require_terminal()
    from hpcdash.ui.app import HpcdashApp

    HpcdashApp(
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
        run_outside=run_outside,
        notice=notice,
        tour=tour,
    ).run()
