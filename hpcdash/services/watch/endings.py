"""Endings of findings that disappeared: resolved, the job ended, or no longer watched.

Queries nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from hpcdash.config.watch_settings import RunningWatch
from hpcdash.domain.alerts import Finding, format_job, shown
from hpcdash.domain.chains import find_chain
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ACTIVE, WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.services.watch import judge
from hpcdash.services.watch.alerts import Ending
from hpcdash.services.watch.facts import Facts
from hpcdash.services.watch.judge import Judge
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
        """Return the ending of a finding that is found no more, if its subject was checked."""
        match finding.rule:
            case judge.UNREACHABLE:
                return Ending(f"{self.store.title} is responding again")
            case storage.RULE:
                rules = self._here(self.settings.storage)
                if all(rule.watch.path != finding.subject for rule in rules):
                    return UNWATCHED
                what = "inodes" if finding.aspect == storage.INODES else "space"
                return Ending(f"{shown(finding.subject)}: enough free {what} again")
            case nodes.DRAINED | nodes.SPARES:
                return self._nodes_ending(finding)
            case failures.RULE:
                return Ending() if self._here(self.settings.failures) else UNWATCHED
            case pools.SILENT | pools.NO_TURN | pools.UNSAVED | pools.SLOW:
                return self._pool_ending(finding)
        if (jobs := self._table(self.job_kind)) is None:
            return Ending()
        match finding.rule:
            case running.RULE:
                return self._running_ending(finding, jobs)
            case waiting.RULE:
                return self._waiting_ending(finding, jobs)
            case successors.RULE:
                return self._chain_ending(finding, jobs)
            case unseen.RULE:
                return self._place_ending(finding, jobs)
            case deadlines.GRACE:
                return self._grace_ending(finding, jobs)
            case (
                allocations.RULE
                | hanging.RULE
                | deadlines.END
                | deadlines.NO_SAVE
                | losses.RULE
                | losses.LATE
            ):
                return self._job_ending(finding, jobs)
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

    def _job_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        """Return the ending of a finding about a running job."""
        row = _row(jobs, finding.subject)
        who = format_job(finding.subject, finding.name)
        if row is None or row["state"] not in (*ACTIVE, *WAITING):
            return Ending(f"{who} has ended")
        is_selected, text = self._job_text(finding, jobs)
        if is_selected:
            return Ending(f"{who}: {text}")
        if row["state"] in ACTIVE:
            return UNWATCHED
        return Ending(f"{who} is no longer running: it is {state_word(str(row['state']))}")

    def _job_text(self, finding: Finding, jobs: pa.Table) -> tuple[bool, str]:
        """Return whether a rule selects the job of a finding, and the end of its problem as
        text.
        """
        subject = finding.subject
        match finding.rule:
            case allocations.RULE:
                return True, "its time limit is later now"
            case hanging.RULE:
                text = "its log can be read again" if finding.aspect else "its log is growing again"
                return subject in self._hung(jobs), text
            case deadlines.END:
                return subject in self._saving(jobs), "it will save before it ends"
            case deadlines.NO_SAVE:
                saving = self._saving(jobs).get(subject)
                has_place = saving is not None and bool(self._save_place(*saving))
                return has_place, "it saved again, or its next save is not overdue"
        training = self._trainings(jobs).get(subject)
        kinds = () if training is None else training[0].watch.kinds
        if finding.rule == losses.LATE:
            text = "it will finish in time, or enough successors are queued"
            return losses.LIMIT in kinds, text
        kind, _, metric = finding.aspect.partition(" ")
        if kind not in _KINDS:
            return training is not None, "its log can be read again"
        return kind in kinds, f"{shown(metric)} {_KINDS[kind]}"

    def _grace_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        task_rows = rows_where(jobs, array_id=(finding.subject,))
        living = (one for one in task_rows if one["state"] in (*ACTIVE, *WAITING))
        row = next(living, None) or _row(jobs, finding.subject)
        who = format_job(finding.subject, finding.name)
        if row is None or row["state"] not in (*ACTIVE, *WAITING):
            return Ending(f"{who} has ended")
        if row["id"] not in self._saving(jobs):
            return UNWATCHED
        return Ending(f"{who}: there is enough time to save before preemption")

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
        selected = {row["id"] for rule in rules for row in self._rows(jobs, rule.meant, *states)}
        text = f"{format_job(last['id'], last['name'])}: enough successors are queued"
        return Ending(text) if {row["id"] for row in active} & selected else UNWATCHED

    def _pool_ending(self, finding: Finding) -> Ending:
        rules = self._here(self.settings.pools)
        seen = (self._seen or Facts()).pools
        if not rules or not self.shared:
            return UNWATCHED
        if finding.rule == pools.SILENT:
            is_shared = any(pool.name == finding.subject for pool in self.shared)
            text = f"pool {shown(finding.subject)} is coordinated again"
            return Ending(text) if is_shared else UNWATCHED
        task = next(filter(None, (pool.task(finding.subject) for pool in seen.values())), None)
        who = format_job(finding.subject, finding.name)
        if task is None or not task.is_unfinished:
            return Ending(f"{who} has ended")
        if not any(
            pools.is_selected(task, self._users(rule.meant), rule.meant.name) for rule in rules
        ):
            return UNWATCHED
        if finding.rule != pools.NO_TURN:
            return Ending(f"{who} saved when it was interrupted")
        return Ending(
            f"{who}: {'its owner has it wait' if task.state == 'paused' else 'it had its turn'}"
        )

    def _place_ending(self, finding: Finding, jobs: pa.Table) -> Ending:
        place = finding.subject
        watched = self._watched_places(jobs)
        if place == self.store.title:
            return Ending("logs and disks can be checked again") if watched else UNWATCHED
        is_watched = any(unseen.lies_in(path, (place,)) for path in watched)
        return Ending(f"{shown(place)} can be checked again") if is_watched else UNWATCHED

    def _nodes_ending(self, finding: Finding) -> Ending:
        rules = self._here(self.settings.nodes)
        table = self._table(Kind.NODES)
        if finding.rule == nodes.SPARES:
            is_selected = any(nodes.spares_subject(rule.watch) == finding.subject for rule in rules)
            return Ending("there are enough spare nodes again") if is_selected else UNWATCHED
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


def _row(jobs: pa.Table, job_id: str) -> Row | None:
    return next(iter(rows_where(jobs, id=(job_id,))), None)
