"""The journal on stdout: what was done from here and how it ended, as a table or JSON. Asks no cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.cli.build import journal
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.stdout import print_json
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.text import clip, visible, width_of
from hpcdash.services.state.journal import JournalEntry

_HEADINGS = ("WHEN", "CLUSTER", "ACTION", "JOBS", "HOW IT ENDED")
# The last column is as wide as it is.
_WIDEST = (19, 20, 17, 40)


def run_journal(common: CommonOptions, newest: int, form: str, *, settles: bool = False) -> None:
    """The newest actions, newest first, on whichever cluster.

    `settles`: what became of the chosen cluster's submissions is looked for first, where their outcome is unknown.
    """
    if settles:
        _settle(common, newest)
    entries, unreadable = journal().read(newest)
    if unreadable:
        lines = "1 line" if unreadable == 1 else f"{unreadable} lines"
        print(f"hpcdash: {lines} of the journal could not be read", file=sys.stderr)
    if form == "json":
        answer = {"schema": 1, "actions": list(map(_json_action, entries))}
        print_json(answer)
        return
    _write_table([_HEADINGS, *map(_cells, entries)])
    if not entries and sys.stderr.isatty():
        print("nothing was done from here yet", file=sys.stderr)


def _settle(common: CommonOptions, newest: int) -> None:
    from hpcdash.cli.oneshot import with_session
    from hpcdash.services.session import ClusterSession
    from hpcdash.services.submit.recovery import settle_noted, unsettled

    async def work(session: ClusterSession) -> None:
        noted = [one for one in journal().read(newest)[0] if one.state == "unknown" and one.verb == Verb.SUBMIT]
        here = unsettled(journal(), session.name, newest=newest)
        for entry in here:
            for outcome in await settle_noted(session.store, journal(), entry):
                print(f"hpcdash: {visible(outcome.job_id)}: {visible(outcome.words)}", file=sys.stderr)
        if not here:
            print(f"hpcdash: nothing is to be looked for on {visible(session.name)}", file=sys.stderr)
        if left := len([one for one in noted if one.cluster == session.name]) - len(here):
            print(f"hpcdash: {left} cannot be looked for: they have no mark and no name", file=sys.stderr)

    with_session(common, work)


def ended_words(entry: JournalEntry) -> str:
    """How an action ended, in one line; the scheduler's words where it refused."""
    refused = [outcome for outcome in entry.outcomes if outcome.done is False]
    unknown = [outcome for outcome in entry.outcomes if outcome.done is None]
    total = len(entry.outcomes)
    match entry.state:
        case "done" if entry.verb == Verb.SUBMIT:
            return f"done: {', '.join(outcome.words for outcome in entry.outcomes)}"
        case "done" | "running":
            return entry.state
        case "refused":
            return f"refused: {_first_words(refused)}"
        case "partly":
            return f"{total - len(refused)} of {total} done; {refused[0].job_id}: {_first_words(refused)}"
        case _ if unknown:
            return f"outcome unknown: {_first_words(unknown)}"
        case _:
            return "outcome unknown"


def _first_words(outcomes: Sequence[Outcome]) -> str:
    return next((outcome.words for outcome in outcomes if outcome.words), "no reason given")


def _cells(entry: JournalEntry) -> tuple[str, ...]:
    when = datetime.fromtimestamp(entry.at).astimezone()
    return (f"{when:%Y-%m-%d %H:%M:%S}", entry.cluster, entry.verb, " ".join(entry.job_ids), ended_words(entry))


def _write_table(rows: Sequence[tuple[str, ...]]) -> None:
    shown = [
        [*(clip(visible(cell), width) for cell, width in zip(row, _WIDEST, strict=False)), visible(row[-1])]
        for row in rows
    ]
    widths = [max(width_of(row[column]) for row in shown) for column in range(len(_WIDEST))]
    for row in shown:
        cells = [cell + " " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]))


def _json_action(entry: JournalEntry) -> dict[str, object]:
    return {
        "id": entry.action_id,
        "at": format_utc(entry.at),
        "ended_at": None if entry.ended_at is None else format_utc(entry.ended_at),
        "cluster": entry.cluster,
        "user": entry.user,
        "verb": entry.verb,
        "job_ids": entry.job_ids,
        "commands": entry.commands,
        "state": entry.state,
        "outcomes": [
            {"job_id": outcome.job_id, "done": outcome.done, "words": outcome.words} for outcome in entry.outcomes
        ],
    }
