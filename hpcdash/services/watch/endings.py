"""What is true now of what the watchdogs find no more: it is well again, its job is gone, or nobody
looks any more.

Asks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from hpcdash.config.watch_settings import RunningWatch
from hpcdash.domain.alerts import Finding, format_job, shown
from hpcdash.domain.chains import find_chain
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ACTIVE, WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.services.watch.alerts import Ending
from hpcdash.services.watch.facts import Facts
from hpcdash.services.watch.judge import UNREACHABLE, Judge
from hpcdash.services.watch.rules import (
    allocations,
    deadlines,
    failures,
    hanging,
    losses,
    nodes,
    pools,
    running,
    storage,
    successors,
    unseen,
    waiting,
)
from hpcdash.services.watch.rules.rows import rows_where

Row = Mapping[str, Any]
UNWATCHED = Ending(is_watched=False)
_KINDS = {
    "nan": "is a number again",
    "inf": "is finite again",
    "divergence": "no longer diverges",
    "plateau": "is changing again",
    "stall": "has new samples",
}


class Endings(Judge):
    """By the settings and the tables of now."""

    def find_ending(self, finding: Finding) -> Ending:
        """Why something that a rule found is found no more; for what could be looked at."""
        if finding.rule == UNREACHABLE:
            return Ending(f"{self.store.title} is responding again")
        jobs = self._table(self.job_kind)
        endings: Mapping[str, Callable[[Finding, pa.Table], Ending]] = {
            running.RULE: self._running_ending,
            hanging.RULE: self._log_ending,
            losses.RULE: self._loss_ending,
            losses.LATE: self._end_ending,
            deadlines.END: self._saves_ending,
            deadlines.NO_SAVE: self._saves_ending,
            deadlines.GRACE: self._saves_ending,
            waiting.RULE: self._waiting_ending,
            allocations.RULE: self._allocation_ending,
            successors.RULE: self._chain_ending,
            unseen.RULE: self._place_ending,
        }
        if finding.rule in endings:
            return endings[finding.rule](finding, jobs) if jobs is not None else Ending()
        if finding.rule == storage.RULE:
            return self._disk_ending(finding)
        if finding.rule in (nodes.DRAINED, nodes.SPARES):
            return self._nodes_ending(finding)
        if finding.rule == failures.RULE and not self._here(self.settings.failures):
            return UNWATCHED
        if finding.rule in (pools.SILENT, *pools.OF_TASKS):
            return self._pool_ending(finding)
        return Ending()

    def _running_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        for rule in self._here(self.settings.running):
            watch = RunningWatch(rule.meant.name, self._users(rule.meant), rule.severity)
            if running.watch_subject(watch) == finding.subject:
                rows = running.living_rows(jobs, watch)
                break
        else:
            return UNWATCHED
        who = f"job {shown(watch.name)}"
        if not rows:
            return Ending(f"{who} is no longer held: it left the queue")
        active = [row for row in rows if row["state"] in ACTIVE]
        if active:
            return Ending(f"{who} is running again as {shown(active[0]['id'])}")
        is_held = all(row["state"] == JobState.HELD for row in rows)
        return Ending(
            f"{who} is {'in the queue' if is_held else 'pending'} again as {shown(rows[0]['id'])}"
        )

    def _job_ending(self, finding: Finding, jobs: pa.Table, is_meant: bool, words: str) -> Ending:
        """Of what is about a running job."""
        row = _row(jobs, finding.subject)
        who = format_job(finding.subject, finding.name)
        if row is None or row["state"] not in (*ACTIVE, *WAITING):
            return Ending(f"{who} has ended")
        if is_meant:
            return Ending(f"{who}: {words}")
        if row["state"] in ACTIVE:
            return UNWATCHED
        return Ending(f"{who} is no longer running: it is {state_word(str(row['state']))}")

    def _log_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        words = "its log can be read again" if finding.aspect else "its log is growing again"
        return self._job_ending(finding, jobs, finding.subject in self._hung(jobs), words)

    def _loss_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        kind, _, metric = finding.aspect.partition(" ")
        rule = self._trainings(jobs).get(finding.subject)
        if kind not in _KINDS:
            return self._job_ending(finding, jobs, rule is not None, "its log can be read again")
        is_meant = rule is not None and kind in rule[0].watch.kinds
        return self._job_ending(finding, jobs, is_meant, f"{shown(metric)} {_KINDS[kind]}")

    def _end_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        rule = self._trainings(jobs).get(finding.subject)
        is_meant = rule is not None and losses.LIMIT in rule[0].watch.kinds
        return self._job_ending(
            finding, jobs, is_meant, "it will finish in time, or enough successors are queued"
        )

    def _saves_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        meant = {job_id for _, job_id in self._saving(jobs)}
        if finding.rule == deadlines.END:
            return self._job_ending(
                finding, jobs, finding.subject in meant, "it will save before it ends"
            )
        if finding.rule == deadlines.NO_SAVE:
            has_place = any(
                place
                for job_id, (_, place) in self._saved_places(jobs).items()
                if job_id == finding.subject
            )
            return self._job_ending(
                finding, jobs, has_place, "it saved again, or its next save is not overdue"
            )
        task_rows = rows_where(jobs, array_id=(finding.subject,))
        living = (one for one in task_rows if one["state"] in (*ACTIVE, *WAITING))
        row = next(living, None) or _row(jobs, finding.subject)
        who = format_job(finding.subject, finding.name)
        if row is None or row["state"] not in (*ACTIVE, *WAITING):
            return Ending(f"{who} has ended")
        return (
            Ending(f"{who}: there is enough time to save before preemption")
            if row["id"] in meant
            else UNWATCHED
        )

    def _waiting_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        if not self.settings.never_starts:
            return UNWATCHED
        row = _row(jobs, finding.subject)
        who = format_job(finding.subject, finding.name)
        if row is None:
            return Ending(f"{who} is no longer in the queue")
        state = str(row["state"])
        if state not in WAITING:
            return Ending(
                f"{who} {'has started' if state in ACTIVE else f'is {state_word(state)}'}"
            )
        hint = (
            self.store.backend.reasons.hint(state, row["reason"]).partition(";")[0]
            or row["reason"]
            or ""
        )
        return Ending(f"{who} can start after all" + (f": {shown(hint)}" if hint else ""))

    def _allocation_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        return self._job_ending(finding, jobs, True, "its time limit is later now")

    def _chain_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        rules = self._here(self.settings.chains)
        if not rules:
            return UNWATCHED
        first = _row(jobs, finding.subject)
        chain = find_chain(
            finding.subject, self._owned_rows(jobs, first["user"] if first is not None else None)
        )
        active = [row for row in chain.rows if row["state"] in ACTIVE] if chain is not None else []
        if not active:
            return Ending(f"the chain of job {shown(finding.subject)} is no longer running")
        last = active[-1]
        states = (JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED)
        meant = {row["id"] for rule in rules for row in self._rows(jobs, rule.meant, *states)}
        words = f"{format_job(last['id'], last['name'])}: enough successors are queued"
        return Ending(words) if {row["id"] for row in active} & meant else UNWATCHED

    def _pool_ending(self, finding: Finding) -> Ending:
        rules, seen = self._here(self.settings.pools), (self._seen or Facts()).pools
        if not rules or not self.shared:
            return UNWATCHED
        if finding.rule == pools.SILENT:
            is_shared = any(pool.name == finding.subject for pool in self.shared)
            return (
                Ending(f"pool {shown(finding.subject)} is coordinated again")
                if is_shared
                else UNWATCHED
            )
        task = next(
            (task for pool in seen.values() if (task := pool.task(finding.subject)) is not None),
            None,
        )
        who = format_job(finding.subject, finding.name)
        if task is None or not task.is_unfinished:
            return Ending(f"{who} has ended")
        if not any(
            rule.meant.name in ("", task.name) and _has(self._users(rule.meant), task.user)
            for rule in rules
        ):
            return UNWATCHED
        if finding.rule != pools.NO_TURN:
            return Ending(f"{who} saved when it was interrupted")
        return Ending(
            f"{who}: {'its owner has it wait' if task.state == 'paused' else 'it had its turn'}"
        )

    def _disk_ending(self, finding: Finding) -> Ending:
        if all(rule.watch.path != finding.subject for rule in self._here(self.settings.storage)):
            return UNWATCHED
        what = "inodes" if finding.aspect == storage.INODES else "space"
        return Ending(f"{shown(finding.subject)}: enough free {what} again")

    def _place_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        place, watched = finding.subject, self._watched_places(jobs)
        if place == self.store.title:
            return Ending("logs and disks can be checked again") if watched else UNWATCHED
        is_watched = any(unseen.lies_in(path, (place,)) for path in watched)
        return Ending(f"{shown(place)} can be checked again") if is_watched else UNWATCHED

    def _nodes_ending(self, finding: Finding) -> Ending:
        rules, table = self._here(self.settings.nodes), self._table(Kind.NODES)
        if finding.rule == nodes.SPARES:
            is_meant = any(nodes.spares_subject(rule.watch) == finding.subject for rule in rules)
            return Ending("there are enough spare nodes again") if is_meant else UNWATCHED
        found = rows_where(table, name=(finding.subject,)) if table is not None else []
        if not rules:
            return UNWATCHED
        if not found:
            return Ending(f"node {shown(finding.subject)} is no longer listed")
        queues = set(found[0]["queues"] or ())
        if not any(not rule.watch.queues or queues & set(rule.watch.queues) for rule in rules):
            return UNWATCHED
        return Ending(
            f"node {shown(finding.subject)} is back: {state_word(str(found[0]['state']))}"
        )


def _has(users: tuple[str, ...], user: str) -> bool:
    return not users or user in users


def _row(jobs: pa.Table, job_id: str) -> Row | None:
    return next(iter(rows_where(jobs, id=(job_id,))), None)
