"""The first start, without a cluster or scheduler: offers hosts, tries, saves and opens one."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

from msgspec.structs import replace

from hpcdash.assembly import build_session, chosen_clusters, connection_pool
from hpcdash.backends.registry import NAMES
from hpcdash.cli.dashboard import leave_app, open_dashboard, require_terminal, theme_folders
from hpcdash.cli.doctor import check_cluster
from hpcdash.cli.ending import ends_with_signals
from hpcdash.cli.options import CommonOptions
from hpcdash.config.destination import parse_ssh_destination
from hpcdash.config.document import shown_path
from hpcdash.config.local_schedulers import no_scheduler_reason
from hpcdash.config.read import config_path, load_settings
from hpcdash.config.settings import Settings
from hpcdash.config.write import write_cluster
from hpcdash.domain.checks import Check
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.state.choices import read_choices
from hpcdash.services.state.folders import state_root
from hpcdash.transport.base import Health
from hpcdash.transport.pool import ConnectionPool
from hpcdash.ui.actions import ACTION_NAMES, key_problems
from hpcdash.ui.cluster.first_start import FirstStartApp, JobsPlace
from hpcdash.ui.prompter import UiPrompter
from hpcdash.ui.terminal_app import TerminalApp

# Characters that are invalid in a cluster's name in the configuration.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME_LETTERS = 64


def run_first_start(common: CommonOptions, settings: Settings) -> None:
    """Have a person choose where their jobs are, and open the dashboard there."""
    require_terminal()
    app = asyncio.run(_choose_and_open(common, settings))
    leave_app(app)
    if isinstance(app, FirstStartApp) and app.chosen is not None:
        from hpcdash.cli.demo import run_demo

        run_demo(common)


async def _choose_and_open(common: CommonOptions, settings: Settings) -> TerminalApp:
    """Return the last app: the dashboard, or the first start's if it ended or chose the demo."""
    hosts, problem = _known_hosts()
    prompter = UiPrompter()
    started: list[_Trial] = []

    def start_trial(host: str, checks: list[Check]) -> _Trial:
        started.append(_Trial(host, checks, common, settings, prompter))
        return started[-1]

    file = shown_path(config_path(common.config)[0])
    notes = [f"No cluster is configured yet: {no_scheduler_reason()}."]
    if problem:
        notes.append(problem)
    themes = (read_choices(state_root()).theme, settings.theme)
    app = FirstStartApp(
        hosts, notes, start_trial, prompter=prompter, theme_folders=theme_folders(), themes=themes
    )
    with ends_with_signals(app):
        await app.run_async()
    choice = app.chosen
    if choice is None or app.ended_by is not None or choice.place is JobsPlace.DEMO:
        for trial in started:
            await trial.close()
        return app
    if choice.place is JobsPlace.HOST:
        # Its connection is open: no second prompt for the second factor.
        trial = started[-1]
        pool = trial.pool
        fields = trial.fields
        name = trial.cluster_name
        unsaved = replace(common, ssh=choice.host)
    else:
        pool = connection_pool(prompter)
        fields = {"transport": "local"}
        name = "local"
        unsaved = replace(common, local=True)
    try:
        write_cluster(config_path(common.config)[0], name, fields)
        stored = load_settings(common.config, action_names=ACTION_NAMES, check=key_problems)
    except HpcdashError as error:
        return await open_dashboard(
            unsaved, settings, pool, prompter, notice=f"This cluster was not saved: {error}"
        )
    return await open_dashboard(
        common,
        stored,
        pool,
        prompter,
        notice=f"added {name} to {file}; hpcdash now opens it by default",
    )


def _known_hosts() -> tuple[dict[str, str], str]:
    """Return the named hosts of ~/.ssh/config with their addresses, and an error message or ''."""
    from hpcdash.transport.ssh_config import named_hosts

    try:
        found = named_hosts()
    except HpcdashError as error:
        return {}, str(error)
    hosts = {}
    for host, address in found.items():
        with suppress(ValueError):
            parse_ssh_destination(host)
            hosts[host] = address
    return hosts, ""


class _Trial:
    """Trial of a host: its connection, and its entry in the configuration."""

    def __init__(
        self,
        host: str,
        checks: list[Check],
        common: CommonOptions,
        settings: Settings,
        prompter: UiPrompter,
    ) -> None:
        self.host = host
        self.pool: ConnectionPool = connection_pool(prompter)
        self._checks = checks
        self._common = replace(common, ssh=host)
        self._settings = settings
        self._prompter = prompter
        self._store: ClusterStore | None = None

    @property
    def health(self) -> Health:
        return self._store.transport.health if self._store is not None else Health()

    async def run(self) -> bool:
        """Check the cluster with `check_cluster`, over a new connection each time.

        Raises UsageError for an invalid destination.
        """
        await self.close()
        self.pool = connection_pool(self._prompter)
        (cluster,) = chosen_clusters(self._common, self._settings)
        self._store = build_session(cluster, self.pool).store
        return await check_cluster(self._store, self._checks.append)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

    @property
    def fields(self) -> dict[str, str]:
        """Return the keys of [clusters.NAME] with the scheduler that was found."""
        assert self._store is not None
        backend = self._store.backend.name
        return {"ssh": self.host} | ({"backend": backend} if backend in NAMES else {})

    @property
    def cluster_name(self) -> str:
        """Return a Host of ~/.ssh/config unchanged; for an address the scheduler's name of the
        cluster, else the host.
        """
        destination = parse_ssh_destination(self.host)
        is_alias = self.host == destination.host and "." not in self.host
        probe = self._store.probe if self._store is not None else None
        found = (not is_alias and probe is not None and probe.cluster) or destination.host
        return _NOT_IN_NAMES.sub("-", found).strip("._-")[:_MAX_NAME_LETTERS] or "cluster"
