"""Commands that act on jobs, with a confirmation of destructive actions; the journal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.cli.jobs import open_sessions, parse_filter, warn_unknown_gpus, with_session
from hpcdash.cli.options import CommonOptions, named_jobs
from hpcdash.cli.terminal import confirm, print_json, print_notes, print_text, require_prompt
from hpcdash.config.read import load_settings
from hpcdash.config.settings import Settings
from hpcdash.domain import query
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.job_ids import parse_job_number, plain_id
from hpcdash.domain.job_text import state_word
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.states import ACTIVE, ENDED, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import align_cells, clip, counted, visible
from hpcdash.domain.units import DAY
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, UsageError
from hpcdash.services.jobs.action_text import format_impact, format_others, format_pause
from hpcdash.services.jobs.actions import Plan, Report, Row
from hpcdash.services.jobs.rows import ids_in_full
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import journal
from hpcdash.services.state.journal import JournalEntry, JournalUnreadable

_CONFIRMED_VERBS = (Verb.CANCEL, Verb.REQUEUE, Verb.SIGNAL, Verb.DELETE)
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
# Age in seconds; older submissions are not considered.
_MAX_SUBMISSION_AGE = 30 * DAY
# Maximum widths; the last column has no limit.
_MAX_WIDTHS = (19, 20, 17, 40)


class _AllEnded(Exception):
    """Raised if all jobs have ended."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows


class _NoMatch(Exception):
    """Raised if no job matches the filter."""


def refuse_unnamed_cluster(session: ClusterSession, job_ids: Sequence[str]) -> None:
    """Raise UsageError for an ID without a cluster that is also the ID of a job that hpcdash
    submitted to another cluster.
    """
    probe = session.store.probe
    if probe is None or probe.clusters:
        return
    journal = session.actions.journal
    numbers = {parse_job_number(job_id): job_id for job_id in job_ids if not plain_id(job_id)[1]}
    try:
        entries, _ = journal.read()
    except JournalUnreadable:
        return
    for entry in entries:
        is_old = journal.age_seconds(entry) > _MAX_SUBMISSION_AGE
        if is_old or entry.cluster != session.store.name:
            continue
        for outcome in entry.outcomes:
            plain, cluster = plain_id(outcome.new_job)
            job_id = visible(numbers.get(parse_job_number(plain), ""))
            if cluster and job_id:
                raise UsageError(
                    f"job {job_id} is ambiguous: {visible(outcome.new_job)} was submitted from "
                    "here",
                    f"Use {job_id}@{cluster}, or {job_id}@{probe.cluster or 'CLUSTER'} for the job "
                    "of this cluster.",
                )


def refuse_read_only(
    common: CommonOptions, settings: Settings, command: str, next_step: str = ""
) -> None:
    """Raise UsageError if an option or the configuration makes hpcdash read-only."""
    if common.read_only or settings.read_only:
        source = "--read-only" if common.read_only else f"read_only in {settings.file}"
        raise UsageError(f"{command} is disabled: hpcdash is read-only ({source})", next_step)


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
    """Act on jobs; with `chain`, on all jobs of their chains.

    A filter `expression` selects among the user's or `everyone`'s jobs, and always needs
    confirmation. Exits with 1 if a job was refused or none matches, with 3 if an outcome is
    unknown.
    """
    settings = load_settings(common.config)
    refuse_read_only(common, settings, verb)
    job_ids = named_jobs(jobs)
    if verb == Verb.DELETE:
        kind = Kind.HISTORY_EVERYONE if everyone else Kind.HISTORY
    else:
        kind = Kind.EVERYONE if everyone else Kind.MINE
    # The filter must be valid before anything is sent.
    parse_filter(expression, kind)
    _refuse_ambiguous(job_ids, expression, everyone=everyone)
    request = ActionRequest(
        Verb(verb),
        job_ids,
        signal=signal,
        recipient=recipient,
        changes=dict(changes or {}),
        force=force,
    )
    needs_confirmation = (request.verb in _CONFIRMED_VERBS or bool(expression)) and not common.yes

    async def work(session: ClusterSession) -> tuple[Report, ClusterSession]:
        session.actions.plan(request if job_ids else replace(request, job_ids=("1",)))
        if needs_confirmation:
            require_prompt(verb)
        await session.store.open(force=True)
        refuse_unnamed_cluster(session, job_ids)
        requested = job_ids
        if expression:
            requested = await _fetch_matching(session, request.verb, kind, expression)
        if chain:
            from hpcdash.cli.chains import chain_ids

            requested = await chain_ids(session, verb, requested)
        plan = await announce(session, request, requested, is_listed=bool(expression))
        if needs_confirmation:
            await confirm()
        return await session.actions.run(plan), session

    try:
        report, session = with_session(common, work)
    except _AllEnded as ended:
        jobs_text = format_jobs(ended.rows)
        print(f"{verb}: nothing to do; already finished: {jobs_text}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    except _NoMatch:
        whose = "no job" if everyone else "none of your jobs"
        where = "in the history" if verb == Verb.DELETE else "in the queue"
        print(f"{whose} {where} matches {visible(expression)}; nothing was done", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    _print_report(report, session, form)
    sys.stdout.flush()
    if status := exit_status(report.outcomes):
        sys.exit(status)


def _refuse_ambiguous(job_ids: Sequence[str], expression: str, *, everyone: bool) -> None:
    """Raise UsageError unless either job IDs or a filter is given."""
    if job_ids and expression:
        raise UsageError("job IDs and --filter cannot be combined", "Use one or the other.")
    if everyone and not expression:
        raise UsageError(
            "--all needs --filter", "Add --filter EXPR to select among everyone's jobs."
        )
    if not job_ids and not expression:
        raise UsageError(
            "no job specified",
            "Specify job IDs or a filter: --filter 'state:pending name:sweep'.",
        )


async def _fetch_matching(
    session: ClusterSession, verb: Verb, kind: Kind, expression: str
) -> tuple[str, ...]:
    """Fetch the IDs of the matching jobs that a verb can act on; raises _NoMatch for none."""
    snapshot = await session.store.fetch(kind)
    requested = parse_filter(expression, kind)
    matching = query.apply(snapshot.table, requested, snapshot.taken_at)
    warn_unknown_gpus(snapshot.table, requested, snapshot.taken_at)
    states = ENDED if verb is Verb.DELETE else ACTIVE | WAITING
    ids = tuple(row["id"] for row in matching.to_pylist() if row["state"] in states)
    if not ids:
        raise _NoMatch
    return ids


def outcome_entries(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """Return the JSON of outcomes, by job."""
    return [
        {"job_id": outcome.job_id, "done": outcome.done, "words": outcome.text}
        for outcome in outcomes
    ]


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """Return 3 if an outcome is unknown, else 1 if one was refused, else 0."""
    done = {outcome.done for outcome in outcomes}
    if None in done:
        return EXIT_UNREACHABLE
    return EXIT_REFUSED if False in done else 0


def _find_unknown(job_ids: Sequence[str], rows: Sequence[Row], own_cluster: str) -> list[str]:
    """Return the IDs without a row; those without a Slurm cluster are of `own_cluster`."""

    def numbered(job_id: str) -> tuple[int, str]:
        return int(parse_job_number(job_id) or -1), plain_id(job_id)[1] or own_cluster

    known = {row[name] for row in rows for name in ("id", "_other_id")}
    numbers = {numbered(str(row["id"])) for row in rows}
    return [job_id for job_id in job_ids if job_id not in known and numbered(job_id) not in numbers]


def _own_cluster(session: ClusterSession) -> str:
    probe = session.store.probe
    return probe.cluster if probe is not None else ""


async def announce(
    session: ClusterSession, request: ActionRequest, job_ids: Sequence[str], *, is_listed: bool
) -> Plan:
    """Plan a request for jobs, and print the plan to stderr; `is_listed`: a line per job.

    Raises _AllEnded if all jobs to cancel have ended.
    """
    rows = await session.actions.fetch_rows(job_ids)
    own_cluster = _own_cluster(session)
    has_ended = bool(rows) and all(row["state"] in ENDED for row in rows)
    if request.verb is Verb.CANCEL and has_ended and not _find_unknown(job_ids, rows, own_cluster):
        raise _AllEnded(rows)
    plan = session.actions.plan(replace(request, job_ids=ids_in_full(job_ids, rows)), rows)
    checkpoints: Mapping[str, str] = {}
    warnings: Sequence[str] = ()
    if request.verb is Verb.REQUEUE:
        from hpcdash.services.jobs import requeue

        folder = session.actions.journal.path.parent
        facts = await requeue.requeue_facts(session.store, folder, rows)
        checkpoints = facts.checkpoints
        refusal = await requeue.fetch_refusal(session.store, rows)
        warnings = (refusal, *await requeue.fetch_switch_warnings(session.store, facts))
    for line in _format_plan(plan, session, checkpoints):
        print(line, file=sys.stderr)
    if is_listed:
        for row in rows[:_MAX_JOBS_LISTED]:
            name = clip(visible(str(row["name"] or "")), 40)
            state = state_word(str(row["state"]))
            print(f"  {visible(str(row['id'])):<14} {state:<10} {name}", file=sys.stderr)
        if len(rows) > _MAX_JOBS_LISTED:
            print(f"  … and {len(rows) - _MAX_JOBS_LISTED} more", file=sys.stderr)
    print_notes(*warnings)
    return plan


def _format_plan(
    plan: Plan, session: ClusterSession, checkpoints: Mapping[str, str]
) -> Iterator[str]:
    """Yield lines on a plan: action, jobs with owners and states, effect, commands."""
    verb = plan.request.verb
    rows = plan.rows
    # Finished jobs can only be requeued or deleted.
    if verb not in (Verb.REQUEUE, Verb.DELETE):
        rows = tuple(row for row in rows if row["state"] in ACTIVE | WAITING) or rows
    yield f"{verb} on {visible(session.name)}: {format_jobs(rows)}"
    if ended := count_jobs(plan.rows) - count_jobs(rows):
        yield f"  {ended} already finished (skipped)"
    if unknown := _find_unknown(plan.request.job_ids, plan.rows, _own_cluster(session)):
        yield f"  not in the queue: {visible(clip(', '.join(unknown), _COMMAND_LETTERS))}"
    if others := format_others(rows, session.store.user or ""):
        yield f"  ! {others}"
    effects = format_impact(
        replace(plan, rows=rows),
        has_recipients=session.actions.can_signal_parts,
        checkpoints=checkpoints,
    )
    for text in effects:
        yield f"  {text}"
    if plan.request.force:
        yield "  forced: processes on nodes that do not respond keep running"
    for command in plan.commands[:_MAX_COMMANDS_SHOWN]:
        yield f"  {clip(visible(command.text), _COMMAND_LETTERS)}"
    if (left := len(plan.commands) - _MAX_COMMANDS_SHOWN) > 0:
        yield f"  … and {left} more commands"
    if plan.pause_seconds:
        yield f"  {format_pause(plan)}"


def format_jobs(rows: Sequence[Row]) -> str:
    """Format `12 jobs of alice, 1 of bob (2 running, 11 pending)`; tasks count as jobs.

    Unknown owners are omitted.
    """
    users: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for row in rows:
        count = row["_tasks"] or 1
        users[str(row["user"] or "")] += count
        states[str(row["state"])] += count
    if not users:
        return "no jobs in the queue"
    [(owner, most), *others] = users.most_common()
    parts = [f"{counted(most, 'job')} owned by {visible(owner)}" if owner else counted(most, "job")]
    parts += [f"{count} by {visible(user) or 'an unknown user'}" for user, count in others]
    counts = ", ".join(f"{count} {state_word(state)}" for state, count in states.most_common())
    return f"{', '.join(parts)} ({counts})"


def report_json(report: Report, session: ClusterSession) -> dict[str, object]:
    """Return the JSON of a finished action."""
    verb = str(report.plan.request.verb)
    return {**session.envelope(), "verb": verb, "results": outcome_entries(report.outcomes)}


def _print_report(report: Report, session: ClusterSession, form: str) -> None:
    print_notes(report.journal_problem)
    verb = report.plan.request.verb
    if form == "json":
        print_json(report_json(report, session))
        return
    past = _PAST[verb]
    rows = []
    for outcome in report.outcomes:
        text = visible(outcome.text)
        if outcome.done:
            message = f"{past}: {text}" if text else past
        else:
            message = f"{'unknown' if outcome.done is None else 'refused'}: {text}"
        rows.append((outcome.job_id, message))
    print_text("".join(f"{line}\n" for line in align_cells(rows)))


def run_journal(common: CommonOptions, newest: int, form: str, *, settles: bool = False) -> None:
    """Print the newest actions on all clusters, newest first.

    `settles`: first look up the unknown outcomes of submissions to the selected cluster.
    """
    if settles:
        _settle(common, newest)
    entries, unreadable = journal().read(newest)
    if unreadable:
        print_notes(f"{counted(unreadable, 'line')} of the journal could not be read")
    if form == "json":
        print_json({"actions": list(map(_json_action, entries))})
        return
    rows = []
    for cells in (_HEADINGS, *map(_cells, entries)):
        clipped = [
            clip(visible(cell), width) for cell, width in zip(cells, _MAX_WIDTHS, strict=False)
        ]
        rows.append((*clipped, cells[-1]))
    print(*align_cells(rows), sep="\n")
    if not entries:
        print("No actions yet. Submissions and changes to jobs are listed here.", file=sys.stderr)


def _settle(common: CommonOptions, newest: int) -> None:
    from hpcdash.services.submit.recovery import reconcile_noted, unsettled

    async def work(session: ClusterSession) -> None:
        moves = await _settle_moves(common, session)
        print_notes(*moves)
        unknown = 0
        for entry in journal().read(newest)[0]:
            is_submission = entry.cluster == session.name and entry.verb == Verb.SUBMIT
            if is_submission and entry.state == "unknown":
                unknown += 1
        entries = unsettled(journal(), session.name, newest=newest)
        for entry in entries:
            for outcome in await reconcile_noted(session.store, journal(), entry):
                print_notes(f"{outcome.job_id}: {outcome.text}")
        if not entries and not moves:
            print_notes(f"no submissions or moves with unknown outcome on {session.name}")
        if left := unknown - len(entries):
            print_notes(f"{left} cannot be looked up: no mark or name was recorded")

    with_session(common, work)


async def _settle_moves(common: CommonOptions, session: ClusterSession) -> list[str]:
    """Settle the interrupted moves of a cluster's jobs, over sessions of the other clusters."""
    from hpcdash.services.submit.moves import interrupted_moves, settle_moves

    settings = load_settings(common.config)
    names = {
        entry.move.cluster for entry, _ in interrupted_moves(journal(), session.name) if entry.move
    }
    others = [
        settings.clusters[name] for name in names - {session.name} if name in settings.clusters
    ]
    async with open_sessions(others, settings, common) as sessions:
        for one in sessions:
            await one.store.resolve_backend()
        by_name = {one.name: one for one in (*sessions, session)}
        may_act = not (common.read_only or settings.read_only)
        return await settle_moves(session, by_name.get, print_notes, may_act=may_act)


def format_end(entry: JournalEntry) -> str:
    """Format the outcome of an action in one line, with the scheduler's message if it refused."""
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
        "outcomes": outcome_entries(entry.outcomes),
    }
