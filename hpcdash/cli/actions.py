"""Commands that act on jobs, with a confirmation where they destroy; and the journal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.cli.jobs import parse_filter, warn_unknown_gpus, with_session
from hpcdash.cli.options import CommonOptions, named_jobs
from hpcdash.cli.terminal import is_agreed, print_json, print_text
from hpcdash.config.read import load_settings
from hpcdash.domain import query
from hpcdash.domain.job_ids import parse_job_number, plain_id
from hpcdash.domain.job_text import state_word
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.states import ACTIVE, ENDED, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import align_cells, clip, visible
from hpcdash.domain.units import DAY
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, Declined, UsageError
from hpcdash.services.jobs.action_text import format_impact, format_others, format_pause
from hpcdash.services.jobs.actions import Plan, Report, Row
from hpcdash.services.jobs.rows import ids_in_full
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import journal
from hpcdash.services.state.journal import JournalEntry, JournalUnreadable

_ASKED_FOR = (Verb.CANCEL, Verb.REQUEUE, Verb.SIGNAL, Verb.DELETE)
_PAST = {
    Verb.CANCEL: "cancelled",
    Verb.HOLD: "held",
    Verb.RELEASE: "released",
    Verb.REQUEUE: "requeued",
    Verb.SUSPEND: "suspended",
    Verb.RESUME: "resumed",
    Verb.SIGNAL: "signalled",
    Verb.ALTER: "altered",
    Verb.DELETE: "deleted",
}
_MAX_COMMANDS_SHOWN = 10
_MAX_JOBS_LISTED = 20
_COMMAND_LETTERS = 1000
_HEADINGS = ("WHEN", "CLUSTER", "ACTION", "JOBS", "OUTCOME")
# The last column is as wide as it is.
_WIDEST = (19, 20, 17, 40)


class _AllEnded(Exception):
    """All of the jobs have ended."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows


class _NoMatch(Exception):
    """No job in the queue matches the filter."""


# Older submissions count as forgotten.
_REMEMBERED_SECONDS = 30 * DAY


def refuse_unnamed_cluster(session: ClusterSession, job_ids: Sequence[str]) -> None:
    """Raise UsageError for an id without a cluster that a job submitted from here has on another
    cluster.
    """
    numbers = {parse_job_number(job_id): job_id for job_id in job_ids if not plain_id(job_id)[1]}
    try:
        entries, _ = session.actions.journal.read()
    except JournalUnreadable:
        return
    for entry in entries:
        if (
            entry.cluster != session.store.name
            or session.actions.journal.age_seconds(entry) > _REMEMBERED_SECONDS
        ):
            continue
        for outcome in entry.outcomes:
            plain, cluster = plain_id(outcome.new_job)
            job_id = numbers.get(parse_job_number(plain), "")
            if (
                not cluster
                or not job_id
                or session.store.probe is None
                or session.store.probe.clusters
            ):
                continue
            raise UsageError(
                f"job {visible(job_id)} is ambiguous: {visible(outcome.new_job)} was submitted "
                "from here",
                f"Write {visible(job_id)}@{cluster}, or "
                f"{visible(job_id)}@{session.store.probe.cluster or 'CLUSTER'} for the job of this "
                "cluster.",
            )


def run_action(
    common: CommonOptions,
    verb: str,
    jobs: Sequence[str],
    *,
    signal: str = "",
    recipient: str = "",
    changes: Mapping[str, str] | None = None,
    expression: str = "",
    everyone: bool = False,
    chain: bool = False,
    force: bool = False,
    form: str,
) -> None:
    """Act on jobs, with `chain` on all of the chains they belong to.

    `force` is that of ActionRequest.

    With a filter's `expression` it acts on the matching jobs, one's own or `everyone`'s, and always
    confirms. Ends the process with 1 where a job was refused or none matches, with 3 where an
    outcome is unknown.
    """
    settings = load_settings(common.config)
    if common.read_only or settings.read_only:
        source = "--read-only" if common.read_only else f"read_only in {settings.file}"
        raise UsageError(f"{verb} is refused: hpcdash is read-only ({source})")
    job_ids = named_jobs(jobs)
    is_for_ended = verb == Verb.DELETE
    kinds = (Kind.HISTORY, Kind.HISTORY_EVERYONE) if is_for_ended else (Kind.MINE, Kind.EVERYONE)
    kind = kinds[everyone]
    matching_rows = parse_filter(expression, kind)
    _refuse_ambiguous(job_ids, expression, everyone=everyone)
    request = ActionRequest(Verb(verb), job_ids, signal, recipient, dict(changes or {}), force)
    needs_confirmation = (request.verb in _ASKED_FOR or bool(expression)) and not common.yes
    can_prompt = sys.stdin.isatty() and sys.stderr.isatty()

    async def work(session: ClusterSession) -> tuple[Report, ClusterSession]:
        session.actions.plan(request if job_ids else replace(request, job_ids=("1",)))
        if needs_confirmation and not can_prompt:
            raise UsageError(
                f"{verb} needs confirmation, but there is no terminal",
                "Use --yes to skip the question.",
            )
        await session.store.open(force=True)
        refuse_unnamed_cluster(session, job_ids)
        requested = job_ids
        if expression:
            snapshot = await session.store.fetch(kind)
            matching = query.apply(snapshot.table, matching_rows, snapshot.taken_at)
            warn_unknown_gpus(snapshot.table, matching_rows, snapshot.taken_at)
            states = ENDED if is_for_ended else ACTIVE | WAITING
            requested = tuple(row["id"] for row in matching.to_pylist() if row["state"] in states)
            if not requested:
                raise _NoMatch
        if chain:
            from hpcdash.cli.chains import chain_ids

            requested = await chain_ids(session, verb, requested)
        rows = await session.actions.fetch_rows(requested)
        has_ended = bool(rows) and all(row["state"] in ENDED for row in rows)
        if request.verb is Verb.CANCEL and has_ended and not _unknown(requested, rows):
            raise _AllEnded(rows)
        plan = session.actions.plan(replace(request, job_ids=ids_in_full(requested, rows)), rows)
        checkpoints: Mapping[str, str] = {}
        warnings: Sequence[str] = ()
        if request.verb is Verb.REQUEUE:
            checkpoints, warnings = await _requeue_facts(plan, session)
        _announce(plan, session, checkpoints)
        if expression:
            _list_jobs(plan.rows)
        for warning in warnings:
            print(f"hpcdash: {visible(warning)}", file=sys.stderr)
        if needs_confirmation and not await is_agreed():
            raise Declined
        return await session.actions.run(plan), session

    try:
        report, session = with_session(common, work)
    except _AllEnded as ended:
        print(
            f"{verb}: nothing was sent: already finished: {format_jobs(ended.rows)}",
            file=sys.stderr,
        )
        sys.exit(EXIT_REFUSED)
    except _NoMatch:
        whose = "no job" if everyone else "none of your jobs"
        where = "in the history" if is_for_ended else "in the queue"
        print(f"{whose} {where} matches {visible(expression)}; nothing was done", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    if report.journal_problem:
        print(f"hpcdash: {visible(report.journal_problem)}", file=sys.stderr)
    if form == "json":
        _write_json(report, session)
    else:
        _write_table(report)
    sys.stdout.flush()
    status = exit_status(report.outcomes)
    if status:
        sys.exit(status)


def _refuse_ambiguous(job_ids: Sequence[str], expression: str, *, everyone: bool) -> None:
    """Raise UsageError unless either job IDs or a filter is given."""
    if job_ids and expression:
        raise UsageError("job IDs and --filter cannot be combined", "Give one or the other.")
    if everyone and not expression:
        raise UsageError(
            "--all needs --filter", "Add --filter EXPR to select among everyone's jobs."
        )
    if not job_ids and not expression:
        raise UsageError(
            "specify a job",
            "Give job IDs or a filter: --filter 'state:pending name:sweep'.",
        )


def _list_jobs(rows: Sequence[Row]) -> None:
    """Print the jobs that a filter found to stderr, one line per job."""
    for row in rows[:_MAX_JOBS_LISTED]:
        name = clip(visible(str(row["name"] or "")), 40)
        print(
            f"  {visible(str(row['id'])):<14} {state_word(str(row['state'])):<10} {name}",
            file=sys.stderr,
        )
    if len(rows) > _MAX_JOBS_LISTED:
        print(f"  … and {len(rows) - _MAX_JOBS_LISTED} more", file=sys.stderr)


def exit_status(outcomes: Sequence[Outcome]) -> int:
    ways = {outcome.done for outcome in outcomes}
    if None in ways:
        return EXIT_UNREACHABLE
    return EXIT_REFUSED if False in ways else 0


def _unknown(job_ids: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The ids that no row is of."""
    known = {row[name] for row in rows for name in ("id", "_number", "_other_id")}
    return [
        one for one in job_ids if one not in known and int(parse_job_number(one) or -1) not in known
    ]


def _announce(plan: Plan, session: ClusterSession, checkpoints: Mapping[str, str]) -> None:
    """Print a plan to stderr: action, jobs with owners and states, cost, and the commands."""
    verb = plan.request.verb
    rows = plan.rows
    # Finished jobs can only be requeued or deleted.
    if verb not in (Verb.REQUEUE, Verb.DELETE):
        rows = tuple(row for row in rows if row["state"] in ACTIVE | WAITING) or rows
    print(f"{verb} on {visible(session.name)}: {format_jobs(rows)}", file=sys.stderr)
    if ended := sum(row["_tasks"] or 1 for row in plan.rows) - sum(
        row["_tasks"] or 1 for row in rows
    ):
        print(f"  {ended} already finished (skipped)", file=sys.stderr)
    if unknown := _unknown(plan.request.job_ids, plan.rows):
        print(
            f"  not in the queue: {visible(clip(', '.join(unknown), _COMMAND_LETTERS))}",
            file=sys.stderr,
        )
    if others := format_others(rows, session.store.user or ""):
        print(f"  ! {others}", file=sys.stderr)
    has_recipients = session.actions.can_signal_parts
    for text in format_impact(
        replace(plan, rows=rows), has_recipients=has_recipients, checkpoints=checkpoints
    ):
        print(f"  {text}", file=sys.stderr)
    if plan.request.force:
        print("  forced: processes on nodes that do not respond keep running", file=sys.stderr)
    for command in plan.commands[:_MAX_COMMANDS_SHOWN]:
        print(f"  {clip(visible(command.text), _COMMAND_LETTERS)}", file=sys.stderr)
    if len(plan.commands) > _MAX_COMMANDS_SHOWN:
        print(f"  … and {len(plan.commands) - _MAX_COMMANDS_SHOWN} more commands", file=sys.stderr)
    if plan.pause_seconds:
        print(f"  {format_pause(plan)}", file=sys.stderr)


async def _requeue_facts(
    plan: Plan, session: ClusterSession
) -> tuple[Mapping[str, str], Sequence[str]]:
    """Return the checkpoints that jobs resume from, and warnings.

    They are refusals by the scheduler, and kill switches that would end jobs as they start again.
    """
    from hpcdash.services.jobs.requeue import fetch_refusal, fetch_switch_warnings, requeue_facts

    facts = await requeue_facts(session.store, session.actions.journal.path.parent, plan.rows)
    found = (
        await fetch_refusal(session.store, plan.rows),
        *await fetch_switch_warnings(session.store, facts),
    )
    return facts.checkpoints, tuple(filter(None, found))


def format_jobs(rows: Sequence[Row]) -> str:
    """Format `12 jobs of alice, 1 of bob (2 running, 11 pending)`; tasks count as jobs.

    Without owners where no owner is known.
    """
    users: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for row in rows:
        count = row["_tasks"] or 1
        users[str(row["user"] or "")] += count
        states[str(row["state"])] += count
    if not users:
        return "no job in the queue"
    [(owner, most), *others] = users.most_common()
    whose = [
        f"{most} {'job' if most == 1 else 'jobs'}" + (f" of {visible(owner)}" if owner else "")
    ]
    whose += [f"{count} of {visible(user) or 'an unknown user'}" for user, count in others]
    how = ", ".join(f"{count} {state_word(state)}" for state, count in states.most_common())
    return f"{', '.join(whose)} ({how})"


def _write_table(report: Report) -> None:
    past = _PAST[report.plan.request.verb]
    rows = []
    for outcome in report.outcomes:
        text = visible(outcome.text)
        if outcome.done:
            message = f"{past}: {text}" if text else past
        else:
            message = f"{'unknown' if outcome.done is None else 'refused'}: {text}"
        rows.append((outcome.job_id, message))
    print_text("".join(f"{line}\n" for line in align_cells(rows)))


def _write_json(report: Report, session: ClusterSession) -> None:
    results: list[dict[str, Any]] = [
        {"job_id": outcome.job_id, "done": outcome.done, "words": outcome.text}
        for outcome in report.outcomes
    ]
    answer = {
        "schema": 1,
        **session.envelope(),
        "verb": str(report.plan.request.verb),
        "results": results,
    }
    print_json(answer)


def run_journal(common: CommonOptions, newest: int, form: str, *, settles: bool = False) -> None:
    """Print the newest actions on all clusters, newest first.

    `settles`: first find the outcome of the chosen cluster's submissions where it is unknown.
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
    rows = [
        (*(clip(visible(cell), width) for cell, width in zip(row, _WIDEST, strict=False)), row[-1])
        for row in (_HEADINGS, *map(_cells, entries))
    ]
    print(*align_cells(rows), sep="\n")
    if not entries:
        print("No actions yet: nothing was submitted or changed from here.", file=sys.stderr)


def _settle(common: CommonOptions, newest: int) -> None:
    from hpcdash.cli.jobs import with_session
    from hpcdash.services.submit.recovery import reconcile_noted, unsettled

    async def work(session: ClusterSession) -> None:
        noted = [
            one
            for one in journal().read(newest)[0]
            if one.state == "unknown" and one.verb == Verb.SUBMIT
        ]
        here = unsettled(journal(), session.name, newest=newest)
        for entry in here:
            for outcome in await reconcile_noted(session.store, journal(), entry):
                print(
                    f"hpcdash: {visible(outcome.job_id)}: {visible(outcome.text)}", file=sys.stderr
                )
        if not here:
            print(f"hpcdash: no unknown submissions on {visible(session.name)}", file=sys.stderr)
        if left := len([one for one in noted if one.cluster == session.name]) - len(here):
            print(
                f"hpcdash: {left} cannot be looked up: no mark or name was recorded",
                file=sys.stderr,
            )

    with_session(common, work)


def format_end(entry: JournalEntry) -> str:
    """Return the end of an action in one line, with the scheduler's message where it refused."""
    refused = [outcome for outcome in entry.outcomes if outcome.done is False]
    unknown = [outcome for outcome in entry.outcomes if outcome.done is None]
    total = len(entry.outcomes)
    match entry.state:
        case "done" if entry.verb == Verb.SUBMIT:
            return f"done: {', '.join(outcome.text for outcome in entry.outcomes)}"
        case "done" | "running":
            return entry.state
        case "refused":
            return f"refused: {_first_message(refused)}"
        case "partly":
            return (
                f"{total - len(refused)} of {total} done; {refused[0].job_id}: "
                f"{_first_message(refused)}"
            )
        case _ if unknown:
            return f"outcome unknown: {_first_message(unknown)}"
        case _:
            return "outcome unknown"


def _first_message(outcomes: Sequence[Outcome]) -> str:
    return next((outcome.text for outcome in outcomes if outcome.text), "no reason given")


def _cells(entry: JournalEntry) -> tuple[str, ...]:
    when = datetime.fromtimestamp(entry.at).astimezone()
    return (
        f"{when:%Y-%m-%d %H:%M:%S}",
        entry.cluster,
        entry.verb,
        " ".join(entry.job_ids),
        format_end(entry),
    )


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
            {"job_id": outcome.job_id, "done": outcome.done, "words": outcome.text}
            for outcome in entry.outcomes
        ],
    }
