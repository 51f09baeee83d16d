"""Places that a job could run: a queue with an account and a QoS on a cluster, and when it would
start there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.domain.demand import Demand, join_sentences, unmet
from hpcdash.domain.limits import format_limit, limit_applies
from hpcdash.domain.nodelist import expand
from hpcdash.domain.offers import AccountOffer, Offers, QueueOffer
from hpcdash.domain.room import QueueNodes, Room, find_room
from hpcdash.domain.schema import PLACES
from hpcdash.domain.text import counted
from hpcdash.domain.units import MINUTE, format_span

Row = Mapping[str, Any]
# A shorter time limit than that is no advice.
_SHORTEST_LIMIT_SECONDS = 10 * MINUTE


class Place(Struct, frozen=True):
    """A queue, account and QoS ('': the scheduler's default), and the answer for a job there.

    `accepts`: whether the scheduler would accept and, as far as known, ever start the job; None:
    unknown. `starts_at_epoch` is an estimate by `estimated_by`; `wait_seconds` is the median wait
    of similar jobs and `most_wait_seconds` what 80% of them waited at most. `reason` explains the
    answer, `sooner` what would start sooner. `defaults` counts which of the three are the default.
    `other_accounts` and `other_qos` have the same answer.
    """

    cluster: str
    queue: str
    account: str = ""
    qos: str = ""
    accepts: bool | None = None
    room: Room = Room()
    starts_at_epoch: float | None = None
    estimated_by: str = ""
    wait_seconds: int | None = None
    most_wait_seconds: int | None = None
    defaults: int = 0
    limit_seconds: int | None = None
    reason: str = ""
    sooner: str = ""
    other_accounts: tuple[str, ...] = ()
    other_qos: tuple[str, ...] = ()

    def starts_in(self, now_epoch: float) -> float | None:
        """Return the expected seconds until the start; None: unknown."""
        if self.starts_at_epoch is not None:
            return max(0.0, self.starts_at_epoch - now_epoch)
        if self.wait_seconds is not None:
            return float(self.wait_seconds)
        return None

    def format_start(self, now_epoch: float) -> str:
        """Format the start: `now`, `in 3 h 20 min`, `never`, `?`."""
        if self.accepts is False:
            return "never"
        seconds = self.starts_in(now_epoch)
        if seconds is None:
            return "?"
        return "now" if seconds < MINUTE else f"in {format_span(seconds)}"


def rank(places: Iterable[Place], now_epoch: float) -> list[Place]:
    """Sort places by their expected start; refusals are last."""

    def order(place: Place) -> tuple[int, float, int, int, str, str, str]:
        seconds = place.starts_in(now_epoch)
        if place.accepts is False:
            group = 3
        elif seconds is None:
            group = 2 if place.room.is_free_now is not True else 1
        else:
            group = 0
        # Within a minute, the place with more free nodes is the safer one.
        minutes = 0.0 if seconds is None else seconds // MINUTE
        return (
            group,
            minutes,
            -place.room.free,
            -place.defaults,
            place.queue,
            place.account,
            place.qos,
        )

    return sorted(places, key=order)


class PlaceFinder(Struct, frozen=True):
    """Search on one cluster by what is known of it.

    `limits` are rows of domain.schema.LIMITS with their use, of which those of users other than
    `user` do not count; `nodes` has each queue's.
    """

    cluster: str
    offers: Offers
    limits: Sequence[Row] = ()
    nodes: QueueNodes = QueueNodes()
    user: str = ""

    def find(self, demand: Demand) -> list[Place]:
        """Judge a demand in each queue, with each account and QoS.

        A queue, or an account, that refuses the job whatever else is requested has one place. The
        queues, account and QoS of a demand are the only ones.
        """
        places: list[Place] = []
        for queue in self.offers.queues:
            is_named = queue.name in demand.queues
            # A hidden queue is for people who know its name.
            is_hidden = not queue.is_listed and queue.is_available
            if is_named or not (demand.queues or is_hidden):
                places += self._queue_places(queue, demand)
        return places

    def _queue_places(self, queue: QueueOffer, demand: Demand) -> list[Place]:
        """Judge a demand in a queue, with each account and QoS; equal refusals of all are one."""
        base = Place(
            self.cluster,
            queue.name,
            room=find_room(self.nodes.in_queue(queue.name), demand),
            defaults=int(queue.is_default),
            limit_seconds=queue.limit_seconds,
        )
        if not queue.is_available:
            return [replace(base, accepts=False, reason=queue.closed_reason)]
        # A refusal points to no other queue: they all are in the answer.
        offers = replace(self.offers, queues=(queue,))
        places: list[Place] = []
        for account in _accounts(demand, offers):
            own = []
            for number, qos in enumerate(_qos(demand, account)):
                place = replace(
                    base,
                    account=account.name,
                    qos=qos,
                    defaults=base.defaults + account.is_default + (not number),
                )
                own.append(self._judge(place, demand, offers))
            places += _merge_refusals(own, qos="")
        return _merge_refusals(places, account="", qos="")

    def _judge(self, place: Place, demand: Demand, offers: Offers) -> Place:
        limit_seconds = demand.limit_seconds
        if limit_seconds is None:
            limit_seconds = offers.queue_access(place.queue).default_limit_seconds
        requested = replace(
            demand,
            queues=(place.queue,),
            account=place.account,
            qos=place.qos,
            limit_seconds=limit_seconds,
        )
        refusals = [
            join_sentences(found.text, found.next_step)
            for found in unmet(requested, offers)
            if found.severity == "error"
        ]
        if not refusals and place.room.is_possible is False:
            refusals = [_impossible(place.room, demand)]
        waits: list[str] = []
        if not refusals:
            limits = [row for row in self.limits if self._applies(row, place)]
            refusals, waits = _limit_reasons(requested, limits)
        if refusals:
            return replace(place, accepts=False, reason=refusals[0])
        return replace(place, accepts=True, reason=_accepted(place.room, waits))

    def _applies(self, row: Row, place: Place) -> bool:
        """Return whether a limit holds for a job of the user in a place."""
        if row["scope"] == "account" and row["name"] != place.account:
            # Limits of the accounts above hold, those of the user's other accounts do not.
            return all(row["name"] != account.name for account in self.offers.accounts)
        job = {
            "user": self.user,
            "account": place.account,
            "qos": place.qos,
            "queue": place.queue,
        }
        return limit_applies(row, job)


def _merge_refusals(places: list[Place], **common: str) -> list[Place]:
    """Return one place for several that are refused for the same reason."""
    reasons = {place.reason for place in places if place.accepts is False}
    if len(places) < 2 or len(reasons) != 1 or any(place.accepts for place in places):
        return places
    return [replace(places[0], **common)]


def _accounts(demand: Demand, offers: Offers) -> Sequence[AccountOffer]:
    if demand.account:
        known = [one for one in offers.accounts if one.name == demand.account]
        return known or [AccountOffer(demand.account)]
    return offers.accounts or [AccountOffer("", is_default=True)]


def _qos(demand: Demand, account: AccountOffer) -> Sequence[str]:
    return (demand.qos,) if demand.qos else account.qos or ("",)


def _impossible(room: Room, demand: Demand) -> str:
    if not room.able:
        return "no node can run the job: too few cores, GPUs or memory, or another GPU"
    if demand.nodes:
        return f"only {counted(room.able, 'node')} of {demand.nodes} can run the job"
    return "all nodes together are too small"


def _accepted(room: Room, waits: Sequence[str]) -> str:
    parts = list(waits)
    if room.is_free_now:
        parts.append(f"{counted(room.free, 'node')} {'has' if room.free == 1 else 'have'} room now")
    elif room.shortage:
        parts.append(room.shortage)
    if room.is_possible and room.in_service < room.able:
        parts.append(
            f"{room.able - room.in_service} of {counted(room.able, 'node')} out of service"
        )
    if room.doubt:
        parts.append(room.doubt)
    return "; ".join(parts)


def _limit_reasons(demand: Demand, limits: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Return the limits that a job exceeds by itself, and those that are used up now."""
    never: list[str] = []
    waits: list[str] = []
    for row in limits:
        requested = _requested(demand, str(row["resource"]))
        if requested is None:
            continue
        if requested > row["maximum"]:
            never.append(f"the job would pend forever: {format_limit(row)}")
        elif row["free"] is not None and requested > row["free"]:
            if row["resource"] == "jobs_submitted":
                never.append(f"no more jobs may be queued: {format_limit(row)}")
            else:
                waits.append(format_limit(row))
    return never, waits


def _requested(demand: Demand, resource: str) -> int | None:
    """Return how much of a resource of LIMITS a job takes; None: unknown."""
    if resource.startswith("jobs_"):
        return 1
    nodes = demand.nodes
    memory = demand.memory_per_node_bytes
    amounts = {
        "cpus": demand.cpus,
        "gpus": demand.gpus,
        "nodes": nodes,
        "memory_bytes": None if memory is None or nodes is None else memory * nodes,
        "limit_seconds": demand.limit_seconds,
    }
    if resource in amounts:
        return amounts[resource]
    gpu_type = resource.removeprefix("gres/gpu:")
    if gpu_type != resource:
        return demand.gpus if demand.gpu_type and gpu_type == demand.gpu_type.casefold() else None
    unit, is_minutes, _ = resource.partition("_minutes")
    amount = amounts.get(f"{unit.removesuffix('_run')}s")
    if is_minutes and amount is not None and demand.limit_seconds:
        return amount * demand.limit_seconds // MINUTE
    return None


def find_gap(
    reservations: Iterable[Row], nodes: Sequence[Row], demand: Demand, now_epoch: float
) -> str:
    """Return the time limit with which the job would end before the next reservation of so many of
    its nodes that too few are left; '' where none is in its way.
    """
    if not demand.limit_seconds:
        return ""
    names = {str(node["name"]) for node in nodes}
    starts = []
    for row in reservations:
        if row["allowed"] or row["starts_at"] is None:
            continue
        seconds = row["starts_at"].timestamp() - now_epoch
        if not _SHORTEST_LIMIT_SECONDS < seconds < demand.limit_seconds:
            continue
        reserved = names.intersection(expand(row["node_list"] or ""))
        if len(names) - len(reserved) < (demand.nodes or 1):
            starts.append((seconds, str(row["name"])))
    if not starts:
        return ""
    seconds, name = min(starts)
    return f"a limit under {format_span(seconds)} ends before reservation {name}"


def best_places(offers: Offers) -> Mapping[str, Place]:
    """Return the best answer of each queue for any job of the user."""
    found: dict[str, Place] = {}
    for place in rank(PlaceFinder("", offers).find(Demand()), 0.0):
        found.setdefault(place.queue, place)
    return found


def place_id(place: Place) -> str:
    """Return the identity of a place's row."""
    return "/".join((place.cluster, place.queue, place.account, place.qos))


def places_table(places: Iterable[Place], now_epoch: float) -> pa.Table:
    """Return rows of domain.schema.PLACES, in the order of the places."""
    rows = []
    for place in places:
        starts_at = place.starts_at_epoch
        rows.append(
            {
                "cluster": place.cluster,
                "queue": place.queue,
                "account": place.account or None,
                "qos": place.qos or None,
                "accepts": place.accepts,
                "starts_at": None if starts_at is None else datetime.fromtimestamp(starts_at, UTC),
                "estimated_by": place.estimated_by or None,
                "wait_seconds": place.wait_seconds,
                "most_wait_seconds": place.most_wait_seconds,
                "nodes_free": place.room.free,
                "nodes_in_service": place.room.in_service,
                "nodes_able": place.room.able,
                "limit_seconds": place.limit_seconds,
                "reason": place.reason or None,
                "sooner": place.sooner or None,
                "_start": place.format_start(now_epoch),
                "_account": _with_others(place.account, place.other_accounts),
                "_qos": _with_others(place.qos, place.other_qos),
                "_id": place_id(place),
            }
        )
    return pa.Table.from_pylist(rows, PLACES)


def _with_others(name: str, others: Sequence[str]) -> str:
    return f"{name} +{len(others)}" if others else name


def fold(places: Iterable[Place]) -> list[Place]:
    """Return one place for the QoS, and for the accounts, of a queue that have the same answer.

    It is the first of them with the most defaults.
    """
    by_answer: dict[tuple[object, ...], list[Place]] = {}
    for place in places:
        answer = (place.cluster, place.queue, place.accepts, place.starts_at_epoch, place.reason)
        by_answer.setdefault(answer, []).append(place)
    folded = []
    for group in by_answer.values():
        first = max(group, key=lambda place: place.defaults)
        accounts = dict.fromkeys(place.account for place in group if place.account != first.account)
        qos = dict.fromkeys(place.qos for place in group if place.qos != first.qos)
        folded.append(replace(first, other_accounts=tuple(accounts), other_qos=tuple(qos)))
    return folded
