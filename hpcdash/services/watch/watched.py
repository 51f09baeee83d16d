"""Jobs, logs and places that the rules of one cluster select, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.config.settings import PoolSettings
from hpcdash.config.watch_settings import (
    HangingRule,
    JobSelector,
    LossesRule,
    SavesRule,
    StorageRule,
    WatchSettings,
)
from hpcdash.domain.columns import as_array
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.units import MINUTE
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.submit.launch_records import LaunchedCheckpoints
from hpcdash.services.watch.disks import DiskUsage
from hpcdash.services.watch.facts import Facts
from hpcdash.services.watch.rules.rows import Row, rows_where
from hpcdash.services.watch.state import WatchState

R = TypeVar("R", bound=Any)
LogRule = HangingRule | LossesRule
# Older observations of logs, saves and disks do not describe the present.
FRESH_SECONDS = 2.0 * MINUTE


class WatchedJobs:
    """Jobs of a snapshot, and by their ids those that rules select: the first rule, and the row."""

    def __init__(self, table: pa.Table, settings: WatchSettings, user: str) -> None:
        self.table = table
        self.settings = settings
        self._user = user

    def rows(self, selector: JobSelector, *states: JobState) -> list[Row]:
        requested: dict[str, Sequence[str]] = {"state": states}
        if selector.name:
            requested["name"] = (selector.name,)
        if users := selector.selected_users(self._user):
            requested["user"] = users
        return rows_where(self.table, **requested)

    def find(self, job_id: str) -> Row | None:
        return next(iter(rows_where(self.table, id=(job_id,))), None)

    def owned_by(self, user: str | None) -> pa.Table:
        """Return the jobs of a user, of everyone if None or ''."""
        if not user:
            return self.table
        users = as_array(self.table["user"]).cast(pa.string())
        return self.table.filter(pc.equal(users, user))

    def _select(self, rules: Iterable[R], *states: JobState) -> dict[str, tuple[R, Row]]:
        selected: dict[str, tuple[R, Row]] = {}
        for rule in rules:
            for row in self.rows(rule.selector, *states):
                selected.setdefault(str(row["id"]), (rule, row))
        return selected

    @cached_property
    def growing(self) -> dict[str, tuple[HangingRule, Row]]:
        """The running jobs whose logs must grow."""
        return self._select(self.settings.hanging, JobState.RUNNING)

    @cached_property
    def trainings(self) -> dict[str, tuple[LossesRule, Row]]:
        """The running jobs whose metrics are watched."""
        return self._select(self.settings.losses, JobState.RUNNING)

    @cached_property
    def saving(self) -> dict[str, tuple[SavesRule, Row]]:
        """The jobs whose saves are watched."""
        states = (JobState.RUNNING, JobState.PENDING, JobState.HELD)
        return self._select(self.settings.saves, *states)

    @property
    def logged(self) -> list[tuple[str, LogRule]]:
        """The jobs whose logs are watched, with their rules; those that must grow come first."""
        return [
            (job_id, rule)
            for selected in (self.growing, self.trainings)
            for job_id, (rule, _) in selected.items()
        ]


class Watched:
    """Rules of one cluster, and what is known of what they watch.

    `state` is what was known before, `shared` are the pools that are shared there.
    """

    def __init__(
        self,
        store: ClusterStore,
        settings: WatchSettings,
        state: WatchState | None = None,
        *,
        shared: Sequence[PoolSettings] = (),
    ) -> None:
        self.store = store
        self.shared = tuple(shared)
        self.state = state or WatchState()
        launches = None if store.scripts is None else store.scripts.folder.parent
        self.launched = LaunchedCheckpoints(launches, store.name)
        self._jobs: WatchedJobs | None = None
        self.take_settings(settings)

    def take_settings(self, settings: WatchSettings) -> None:
        """Judge by other settings from now on; the next check queries what they need besides."""
        self.settings = settings.on_cluster(self.store.name)
        # Those of the last check beside the snapshots. Ages count from the query; freshness from
        # the answer: du alone may take minutes.
        self.checked = Facts()
        self.checked_at = 0.0
        self.answered_at = -inf

    @property
    def is_fresh(self) -> bool:
        """Whether the last check's facts describe the present."""
        return self.store.clock.now() - self.answered_at <= FRESH_SECONDS

    @property
    def facts(self) -> Facts:
        """Facts of the last check, while they are fresh."""
        return self.checked if self.is_fresh else Facts()

    @property
    def job_kind(self) -> Kind:
        """Scope of the jobs to know: one's own, or everyone's if a rule is about another user."""
        settings = self.settings
        rules: tuple[Any, ...] = (
            *settings.running,
            *settings.hanging,
            *settings.losses,
            *settings.chains,
            *settings.saves,
        )
        is_own = {self.store.user}.issuperset
        return Kind.MINE if all(is_own(rule.selector.users) for rule in rules) else Kind.EVERYONE

    @property
    def kinds(self) -> frozenset[Kind]:
        """The tables that the rules stand on, without the history."""
        return frozenset((self.job_kind, *((Kind.NODES,) if self.settings.nodes else ())))

    def table(self, kind: Kind) -> pa.Table | None:
        """Return the table that this run received, unless an error followed."""
        snapshot = self.store.snapshots.get(kind)
        if snapshot is None or snapshot.cached or kind in self.store.errors:
            return None
        return snapshot.table

    @property
    def jobs(self) -> WatchedJobs | None:
        table = self.table(self.job_kind)
        if table is None:
            return None
        known = self._jobs
        if known is None or known.table is not table or known.settings is not self.settings:
            self._jobs = known = WatchedJobs(table, self.settings, self.store.user)
        return known

    def log_paths(self, job_id: str, rule: LogRule) -> list[str]:
        """Return a job's log paths: the file that its rule names, else its own output if known."""
        if rule.log:
            return [rule.log.replace("{id}", job_id)]
        return self.state.log_files.get(job_id, [])

    def log_host(self, job_id: str, rule: LogRule) -> str:
        """Return the node whose own disk a job's log is on, '' for one that the login node has."""
        return "" if rule.log else self.state.hosts.get(job_id, "")

    def unseen_log(self, job_id: str, rule: LogRule) -> str:
        """Return the reason that a job's log cannot be checked, '' for none."""
        return "" if rule.log else self.state.unseen.get(job_id, "")

    def save_place(self, rule: SavesRule, row: Row) -> str:
        """Return where a job's saves are searched: as its rule says, else as its launch from here
        does; '' if neither does.
        """
        place = (rule.saved or rule.checkpoints).replace("{id}", str(row["id"]))
        if not place and row["state"] == JobState.RUNNING:
            place = self.launched.folder(row)
        return place

    def places(self, jobs: WatchedJobs) -> set[str]:
        """Return the paths and patterns that rules check on the login node."""
        places = {rule.path for rule in self.settings.storage}
        places |= {self.save_place(rule, row) for rule, row in jobs.saving.values()} - {""}
        for job_id, rule in jobs.logged:
            if not self.log_host(job_id, rule):
                places |= set(self.log_paths(job_id, rule))
        return places

    def disk_usage(self, rule: StorageRule, facts: Facts) -> DiskUsage | None:
        """Return the quota tool's figures and df's, or, of a folder with limits of its own, what du
        counted last.
        """
        if not rule.counts_by_du:
            check = facts.disks.get(rule.path)
            return None if check is None else check.usage
        stored = self.state.disks.get(rule.path)
        if stored is None or (stored.counted_bytes is None and stored.counted_inodes is None):
            return None
        return DiskUsage(
            "du",
            rule.path,
            bytes_used=stored.counted_bytes,
            inodes_used=stored.counted_inodes,
        )
