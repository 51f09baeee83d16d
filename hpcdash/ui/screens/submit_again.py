"""What is submitted again from a view: the failed tasks of an array, a task, a job; and how it went, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdash.domain.stakes import count_jobs
from hpcdash.domain.states import ENDED, ENDED_BADLY
from hpcdash.errors import UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.triage import fetch_tasks
from hpcdash.services.submit.plan import Wanted, wanted_of
from hpcdash.ui.views.base import Targets, View
from hpcdash.ui.views.triage import TriageView

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgainChoice:
    """What is wanted again, and what a person should know of the choice."""

    wanted: tuple[Wanted, ...]
    asides: tuple[str, ...] = ()


async def rows_to_submit(view: View, store: ClusterStore) -> AgainChoice | str:
    """What `R` is for in a view; in words where there is nothing. Raises what keeps an array from being looked up."""
    if isinstance(view, TriageView):
        rows = view.rows_to_submit()
        if not rows:
            return "no task failed: mark those to submit again"
        return AgainChoice(wanted_of(rows), _living_words(rows))
    targets = view.targets()
    if not targets.job_ids:
        return "no job is pointed at"
    wanted: list[Wanted] = []
    asides: list[str] = []
    singles: list[Row] = []
    for job_id in targets.job_ids:
        members = [row for row in targets.rows if row["array_id"] == job_id]
        if members or _is_array(job_id, targets):
            one, words = await _of_array(job_id, store)
            wanted.append(one)
            asides += words
        else:
            singles += [row for row in targets.rows if row["id"] == job_id] or [_only(job_id, targets)]
    wanted += wanted_of(singles)
    return AgainChoice(tuple(wanted), (*asides, *_living_words(singles)))


def _is_array(job_id: str, targets: Targets) -> bool:
    return any(row["array_id"] == job_id for row in targets.rows)


def _only(job_id: str, targets: Targets) -> Row:
    """The one row that is shown for an id of another form: a task that still is in its array's record."""
    if len(targets.rows) != 1:
        raise UsageError(f"what job {job_id} is, is not known", "Ask again when the list has it.")
    return targets.rows[0]


async def _of_array(array_id: str, store: ClusterStore) -> tuple[Wanted, list[str]]:
    tasks = await fetch_tasks(store, array_id)
    failed = tuple(row for row in tasks.ended if row["state"] in ENDED_BADLY)
    if failed:
        [wanted] = wanted_of(failed)
        total = count_jobs((*tasks.ended, *tasks.living))
        return wanted, [f"{count_jobs(failed)} of the {total} tasks of array {array_id} failed"]
    every = (*tasks.ended, *tasks.living)
    words = [f"no task of array {array_id} failed: this is the whole array again"]
    return Wanted(array_id, None, every), [*words, *_living_words(every)]


def _living_words(rows: Sequence[Row]) -> tuple[str, ...]:
    living = count_jobs(row for row in rows if row["state"] not in ENDED)
    if not living:
        return ()
    subject = "it has" if count_jobs(rows) == 1 else f"{living} of them have"
    return (f"{subject} not ended: both would run",)
