"""Asks how QoS and queues preempt their jobs, and how long these may save before.

The scheduler's answers are kept for hours: sites change them seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcdash.backends.queries import Query
from hpcdash.domain.units import HOUR, parse_duration
from hpcdash.errors import HpcdashError
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.job_words import PREEMPTED_BY
from hpcdash.stores.watch_state import QosState, WatchState
from hpcdash.watch.rules.deadlines import first_queue

EVERY_SECONDS = 6.0 * HOUR


async def ask_grace(store: ClusterStore, state: WatchState, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Learn into `state` what becomes of jobs (rows of domain.schema.JOBS) when others need their place.

    Gives what could not be asked, in words.
    """
    every, backend = list(rows), store.backend
    names = {str(row["qos"] or "") for row in every} - {""}
    problems = await _ask(store, "QoS", names, backend.qos_query, state.qos)
    queues = {first_queue(row) for row in every} - {""}
    return problems + await _ask(store, "queue", queues, backend.preemption_query, state.queues)


async def _ask(
    store: ClusterStore,
    what: str,
    names: Iterable[str],
    query_of: Callable[[str], Query[Mapping[str, str]] | None],
    kept: dict[str, QosState],
) -> list[str]:
    now = store.clock.now()
    problems = []
    for name in sorted(names):
        known = kept.get(name)
        query = query_of(name)
        if query is None or (known is not None and now - known.asked_at < EVERY_SECONDS):
            continue
        try:
            kept[name] = qos_state(await store.ask(query), now)
        except HpcdashError as error:
            problems.append(f"{what} {name} could not be asked: {error.message}")
    return problems


def qos_state(words: Mapping[str, str], now: float) -> QosState:
    """What Backend.qos_query tells of a QoS (preemption_query: of a queue), in figures: what becomes of a job that
    makes way, after how long, and whether there is anyone to make way for."""
    making_way = words.get("a job that makes way", "")
    grace = words.get("time to save first", "")
    mode = ",".join(
        mode
        for mode, said in (("cancel", "cancelled"), ("requeue", "put back"), ("suspend", "suspended"))
        if said in making_way
    )
    return QosState(now, mode, _grace_seconds(grace), PREEMPTED_BY in words)


def _grace_seconds(words: str) -> float | None:
    if words in ("", "none"):
        return 0.0 if words else None
    try:
        found = parse_duration(words)
    except ValueError:
        return None
    return None if found is None else float(found)
