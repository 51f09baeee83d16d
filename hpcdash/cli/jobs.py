"""Commands that print tables, a job or its script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from hpcdash.assembly import broker_use, build_session, chosen_clusters, connection_pool
from hpcdash.backends.actions import Verb
from hpcdash.backends.job_detail import Activity, JobDetail, Script
from hpcdash.cli.ending import run_async
from hpcdash.cli.nested import current_call
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.tables import print_rows, write_json
from hpcdash.cli.terminal import print_json, print_notes, print_text, stdout
from hpcdash.config.destination import ClusterChoice
from hpcdash.config.read import load_settings
from hpcdash.config.settings import ClusterSettings, Settings
from hpcdash.domain import query
from hpcdash.domain.job_text import Pair
from hpcdash.domain.rfc3339 import format_utc, table_to_json_rows
from hpcdash.domain.schema import ALL_JOBS, JOBS, SCHEMAS, STEPS, public_names
from hpcdash.domain.scripts import script_lines, unified
from hpcdash.domain.spans import LOCAL_ZONE
from hpcdash.domain.tables import ALL_HISTORY, HISTORY, TABLES, Kind, TableSpec
from hpcdash.domain.tables import JOBS as JOBS_TABLE
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age, parse_duration
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.cluster.store import PERSONS_TIMES, RECENT_SECONDS, ClusterStore
from hpcdash.services.jobs.scripts import READ_FROM, fetch_script
from hpcdash.services.session import ClusterSession
from hpcdash.transport.prompter import TerminalPrompter

if TYPE_CHECKING:
    from hpcdash.services.cluster.everywhere import ClusterJobs
    from hpcdash.services.jobs.overview import JobFacts

T = TypeVar("T")
# A script may call hpcdash in a loop.
_REMOVAL_INTERVAL_SECONDS = 60.0


def with_session(
    common: CommonOptions,
    work: Callable[[ClusterSession], Awaitable[T]],
    on_signal: Callable[[int], bool] = lambda number: False,
) -> T:
    """Run `work` on the selected cluster, and close the connection.

    `on_signal` is that of run_async.
    """
    settings = load_settings(common.config)
    clusters = chosen_clusters(common, settings)[:1]

    async def run() -> T:
        async with open_sessions(clusters, settings, common) as [session]:
            try:
                await session.store.resolve_backend()
                done = await work(session)
                if not (common.read_only or settings.read_only):
                    await _remove_finished_folders(session)
                return done
            except asyncio.CancelledError:
                for verb, job_id in session.actions.cut_off:
                    is_submission = verb is Verb.SUBMIT
                    step = "journal --settle" if is_submission else f"show {job_id}"
                    print_notes(f"{verb} {job_id}: outcome unknown. Check with: hpcdash {step}")
                raise

    return run_async(run(), on_signal)


@asynccontextmanager
async def open_sessions(
    clusters: Sequence[ClusterSettings], settings: Settings, choice: ClusterChoice
) -> AsyncIterator[list[ClusterSession]]:
    """Build the sessions of clusters over shared connections, and close them at the end.

    Inside a server they are the server's, which stay open.
    """
    if (call := current_call()) is not None:
        for cluster in clusters:
            if cluster.name not in call.sessions:
                opened = build_session(cluster, call.pool, share=settings.share)
                call.sessions[cluster.name] = opened
        yield [call.sessions[cluster.name] for cluster in clusters]
        return
    pool = connection_pool(TerminalPrompter(), broker_use(choice, settings))
    sessions = [build_session(cluster, pool, share=settings.share) for cluster in clusters]
    try:
        yield sessions
    finally:
        await asyncio.gather(*(session.store.close() for session in sessions))


async def _remove_finished_folders(session: ClusterSession) -> None:
    """Remove expired launch folders, if the cluster was queried anyway."""
    store = session.store
    was_queried = store.probe is not None or any(
        not snapshot.cached for snapshot in store.snapshots.values()
    )
    if was_queried:
        notes = await session.launches.remove_finished_folders(
            every_seconds=_REMOVAL_INTERVAL_SECONDS
        )
        print_notes(*notes)


def parse_age(text: str | None) -> float:
    """Parse the age of --max-age in seconds; raises UsageError."""
    if text is None:
        return RECENT_SECONDS
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--max-age: {error}", "Use 15s or 1m.") from None
    if seconds is None:
        raise UsageError(f"--max-age: {text!r} is not an age", "Use 15s or 1m.")
    return seconds


async def _fetch(store: ClusterStore, kind: Kind, max_age_seconds: float) -> Snapshot:
    """Fetch a table; for nodes and queues also the whole queue, to count their jobs."""
    if kind is Kind.LIMITS:
        from hpcdash.services.usage.limits import fetch_limits

        return await fetch_limits(store, print_notes)
    if kind not in (Kind.NODES, Kind.QUEUES):
        return await store.fetch(kind, max_age_seconds, times=PERSONS_TIMES)
    everyone = store.fetch(Kind.EVERYONE, max_age_seconds, times=PERSONS_TIMES)
    counting = asyncio.create_task(everyone)
    try:
        await store.fetch(kind, max_age_seconds, times=PERSONS_TIMES)
    except HpcdashError:
        counting.cancel()
        raise
    try:
        await counting
    except HpcdashError as error:
        print_notes(f"could not count the jobs: {error.message}")
    return store.snapshots[kind]


def parse_filter(expression: str, kind: Kind) -> query.Filter:
    """Parse a filter with times in this machine's zone. Raises UsageError."""
    return query.parse(expression, SCHEMAS[kind], LOCAL_ZONE)


async def _lacks_account(store: ClusterStore) -> bool:
    """Return whether jobs are charged to accounts and the user has none."""
    probe = await store.open()
    accounts = store.backend.policy.associations(store.user, probe.cluster)
    if accounts is None:
        return False
    try:
        return not (await store.run_query(accounts)).offers
    except HpcdashError:
        return False


def run_table(
    common: CommonOptions,
    name: str,
    *,
    expression: str,
    form: str,
    mine: bool = True,
    max_age_seconds: float = RECENT_SECONDS,
) -> None:
    """Print the rows of a table as text, JSON or CSV.

    Another program's table is as good if it is no older than `max_age_seconds`.
    """
    spec = TABLES[name]
    kind = spec.kind(everyone=not mine)
    requested = parse_filter(expression, kind)

    async def work(session: ClusterSession) -> tuple[Snapshot, ClusterSession, bool]:
        store = session.store
        snapshot = await _fetch(store, kind, max_age_seconds)
        if name == "shares" and mine:
            own = snapshot.table.filter(snapshot.table["_on_own_path"])
            snapshot = replace(snapshot, table=own)
        lacks_account = False
        if name in ("shares", "limits") and not snapshot.table.num_rows:
            lacks_account = await _lacks_account(store)
        if lacks_account:
            hint = "; --all shows all accounts" if name == "shares" else ""
            print_notes(f"{store.user} has no account on {session.name}{hint}")
        return snapshot, session, lacks_account

    snapshot, session, lacks_account = with_session(common, work)
    table = query.apply(snapshot.table, requested, snapshot.taken_at)
    warn_unknown_gpus(snapshot.table, requested, snapshot.taken_at)
    warn_rejected(snapshot.rejected)
    age = session.store.answer_ages.get(kind, 0.0)
    if age >= 1 and sys.stderr.isatty() and sys.stdout.isatty():
        print_notes(f"as of {format_age(age)} ago, from another window; --max-age 0 queries again")
    print_table(spec, replace(snapshot, table=table), form, session)
    if form == "table" and not table.num_rows and not lacks_account:
        text = format_empty(spec, mine=mine, all_rows=snapshot.table.num_rows)
        print(text, file=sys.stderr)


def run_everywhere(
    common: CommonOptions,
    spec: TableSpec,
    *,
    expression: str,
    form: str,
    mine: bool,
    max_age_seconds: float = RECENT_SECONDS,
) -> None:
    """Print the jobs of all configured clusters as one table: ALL_JOBS or ALL_HISTORY.

    Exits with the status of an unreachable cluster if none answered.
    """
    from hpcdash.services.cluster.everywhere import fetch_everywhere, join_jobs

    requested = query.parse(expression, ALL_JOBS, LOCAL_ZONE)
    source = HISTORY if spec is ALL_HISTORY else JOBS_TABLE
    kind = source.kind(everyone=not mine)

    async def fetch(sessions: Sequence[ClusterSession]) -> list[ClusterJobs]:
        return await fetch_everywhere(sessions, kind, max_age_seconds)

    answers = on_all_clusters(common, fetch)
    now = max(answer.session.store.clock.now() for answer in answers)
    tables = []
    entries = []
    for answer in answers:
        snapshot = answer.snapshot
        entry = cluster_entry(answer.session, answer.error, now)
        if snapshot is not None:
            tables.append((answer.session.name, snapshot.table))
            entry["taken_at"] = format_utc(snapshot.taken_at)
            entry["rejected_rows"] = len(snapshot.rejected)
        if answer.error is not None:
            age = "" if snapshot is None else format_age(now - snapshot.taken_at)
            old = f"; showing jobs from {age} ago" if age else ""
            print_notes(f"{answer.session.name}: {answer.error.message}{old}")
        entries.append(entry)
    table = query.apply(join_jobs(tables), requested, now)
    print_everywhere(spec, table, entries, form, now)
    exit_if_none_answered([answer.error for answer in answers])


def on_all_clusters(
    common: CommonOptions, work: Callable[[Sequence[ClusterSession]], Awaitable[T]]
) -> T:
    """Run `work` on all configured clusters, or on the selected one."""
    settings = load_settings(common.config)
    clusters = chosen_clusters(common, settings)

    async def run() -> T:
        async with open_sessions(clusters, settings, common) as sessions:
            return await work(sessions)

    return run_async(run())


def cluster_entry(
    session: ClusterSession, error: HpcdashError | None, taken_at: float | None = None
) -> dict[str, Any]:
    """Return a cluster's entry in JSON: when it answered, or why it did not."""
    return {
        "cluster": session.name,
        "backend": session.store.backend.name,
        "taken_at": None if error is not None or taken_at is None else format_utc(taken_at),
        "rejected_rows": 0,
        "problem": None if error is None else error.message,
    }


def print_everywhere(
    spec: TableSpec, table: pa.Table, clusters: Sequence[Mapping[str, Any]], form: str, now: float
) -> None:
    """Print jobs of several clusters as text, JSON or CSV."""
    if form == "json":
        rows = table_to_json_rows(table, spec.public_names)
        print_json({"clusters": clusters, "jobs": rows})
    else:
        print_rows(spec, table, form, utc_now=now)


def exit_if_none_answered(errors: Sequence[HpcdashError | None]) -> None:
    """Exit with the first error's status if every cluster has one."""
    failed = [error for error in errors if error is not None]
    if len(failed) == len(errors):
        sys.exit(failed[0].exit_status)


def warn_rejected(rows: Iterable[str]) -> None:
    """Print the rows that could not be read to stderr."""
    print_notes(*(f"unreadable row: {row}" for row in rows))


def warn_unknown_gpus(table: pa.Table, requested: query.Filter, taken_at: float) -> None:
    """Print the number of rows that a filter on GPUs could not check to stderr."""
    print_notes(query.format_unknown_gpus(query.count_unknown_gpus(table, requested, taken_at)))


def print_table(spec: TableSpec, snapshot: Snapshot, form: str, session: ClusterSession) -> None:
    """Print a snapshot of a cluster's table as aligned text, JSON or CSV."""
    if form != "json":
        print_rows(spec, snapshot.table, form, utc_now=snapshot.taken_at)
        return
    write_json(
        spec,
        snapshot.table,
        stdout(is_json=True),
        cluster=session.name,
        backend=session.store.backend.name,
        taken_at=snapshot.taken_at,
        rejected_rows=len(snapshot.rejected),
    )


def format_empty(
    spec: TableSpec, *, mine: bool, all_rows: int, span: str = "the last 7 days"
) -> str:
    """Format the reason that a table has no rows, and the next step.

    `span` is the time of the finished jobs.
    """
    if all_rows:
        return f"None of {counted(all_rows, 'row')} matches the filter."
    match spec.name, mine:
        case "jobs", True:
            return "You have no jobs. hpcdash submit submits one; --all shows everyone's."
        case "jobs", False:
            return "The queue has no jobs. hpcdash submit submits one."
        case "shares", True:
            return "You have no fair share here. --all shows all accounts."
        case "history", _:
            jobs = "None of your jobs" if mine else "No jobs"
            everyone = "; --all shows everyone's" if mine else ""
            return f"{jobs} ended in {span}. An earlier --since shows older jobs{everyone}."
    return spec.empty


def run_show(common: CommonOptions, job: str, form: str, *, steps: bool = False) -> None:
    """Print a job with its request, usage, reason and native facts, as text or JSON.

    With `steps`, JSON has all of its steps, too, and the text has only them.
    """
    from hpcdash.services.jobs.overview import JobFacts, Part
    from hpcdash.services.jobs.page import format_step, job_groups

    async def work(session: ClusterSession) -> tuple[JobFacts, JobDetail, ClusterSession]:
        folder = session.actions.journal.path.parent
        facts = JobFacts(session.store, job, state_folder=folder, debug=common.debug)
        await facts.fetch()
        if facts.detail is None:
            raise facts.errors[Part.DETAIL]
        return facts, facts.detail, session

    facts, detail, session = with_session(common, work)
    taken_at = session.store.clock.now()
    if form == "json":
        print_json(_job_answer(facts, detail, session.envelope(taken_at), has_steps=steps))
        return
    if steps:
        if facts.steps is None or not facts.steps.num_rows:
            raise facts.errors.get(Part.STEPS) or HpcdashError(
                f"no steps recorded for job {visible(facts.job_id)}",
                "A job has steps once it has started.",
            )
        named = [*map(format_step, facts.steps.to_pylist())]
        _print_pairs(f"Steps of job {facts.job_id}", named)
        return
    for group in job_groups(facts, datetime.fromtimestamp(taken_at, UTC), signs={}):
        _print_pairs(group.title, [(entry.label, entry.text) for entry in group.entries])
    if (failure := facts.failure) is not None and failure.excerpt is not None:
        lines = list(failure.excerpt.lines)
        if failure.excerpt.above:
            lines[:0] = [failure.excerpt.above, "…"]
        _print_pairs(f"End of {failure.stream}", [("", line) for line in lines])
    _print_pairs("Raw scheduler output", list(detail.native.items()))


def _job_answer(
    facts: JobFacts, detail: JobDetail, envelope: dict[str, Any], *, has_steps: bool
) -> dict[str, Any]:
    """Build the JSON of a job; of a whole array, with the common values of its tasks."""
    table = detail.job
    if facts.is_whole_array:
        table = pa.Table.from_pylist([dict(facts.row or {})], JOBS)
    job = table_to_json_rows(table, public_names(JOBS))[0]
    job["native"] = dict(detail.native)
    job["usage"] = facts.usage
    answer = {
        **envelope,
        "rejected_rows": 0,
        "job": job,
        "failure": _failure(facts),
        "waits": facts.waits,
        "launch": None if facts.launched is None else facts.launched.for_json(),
    }
    if facts.activity is not None:
        answer["activity"] = _activity(facts.activity)
    if has_steps:
        steps = facts.steps
        answer["steps"] = [] if steps is None else table_to_json_rows(steps, STEPS.names)
    return answer


def run_sooner(common: CommonOptions, job: str, form: str) -> None:
    """Print when a pending job would start unchanged, shorter and on fewer nodes.

    The commands that were used are printed, too.
    """
    from hpcdash.services.usage.sooner import StartOption, fetch_start_options

    async def work(session: ClusterSession) -> tuple[list[StartOption], ClusterSession]:
        return await fetch_start_options(session.store, job), session

    options, session = with_session(common, work)
    now = session.store.clock.now()
    if form == "table":
        starts = [(option.change, option.format(now)) for option in options]
        _print_pairs(f"Job {job} would start", starts)
        commands = [("", option.command) for option in options]
        _print_pairs("Commands (nothing was submitted)", commands)
        return
    answers = []
    for option in options:
        estimate = option.estimate
        starts_at = estimate.starts_at_epoch
        start = {
            "change": option.change,
            "starts_at": None if starts_at is None else format_utc(starts_at),
            "node_list": estimate.node_list or None,
            "refusal": estimate.refusal or None,
            "estimated_by": option.estimator,
            "command": option.command,
        }
        answers.append(start)
    print_json({**session.envelope(now), "rejected_rows": 0, "starts": answers})


def _activity(activity: Activity) -> dict[str, object]:
    """Return the activity of a job's program, for JSON."""
    counts = []
    for entry in activity.counts:
        states = [
            {"words": text, "state": state, "count": count} for text, state, count in entry.states
        ]
        counts.append(
            {"kind": entry.kind, "name": entry.name, "states": states, "restarts": entry.restarts}
        )
    return {
        "counts": counts,
        "failures": [{"name": name, "why": why} for name, why in activity.failures],
        "problems": list(activity.notes),
    }


def _failure(facts: JobFacts) -> dict[str, object] | None:
    """Return the cause of a failed job according to its log, for JSON; None for any other job."""
    from hpcdash.services.jobs.overview import Part

    failure = facts.failure
    error = facts.errors.get(Part.LOG)
    if failure is None and error is None:
        return None
    answer: dict[str, object] = {"line": None, "rank": None, "stream": None, "lines": []}
    if failure is None:
        answer["problem"] = error.message if error is not None else None
        return answer
    excerpt = failure.excerpt
    if excerpt is not None:
        answer["stream"] = failure.stream
        answer["lines"] = list(excerpt.lines)
        if (cause := excerpt.cause) is not None:
            answer["line"] = cause.line
            answer["rank"] = int(cause.rank) if cause.rank else None
    answer["problem"] = failure.problem or None
    return answer


def _print_pairs(title: str, pairs: list[Pair]) -> None:
    """Print a title and labelled values; a note without a label is at the indent."""
    print(visible(title))
    width = max(12, *(len(label) for label, _ in pairs)) + 2
    for label, value in pairs:
        print(f"  {visible(label):<{width}}{visible(value)}" if label else f"  {visible(value)}")


def run_script(common: CommonOptions, *, job: str, diff: str | None, explain: bool) -> None:
    """Print the script, or a unified difference from the script of `diff` to that of `job`.

    Output to a pipe is as submitted, output to a terminal is made safe. `explain` adds a comment
    below each directive.
    """
    job_ids = [job] if diff is None else [diff, job]

    async def work(session: ClusterSession) -> tuple[list[Script], ClusterSession]:
        scripts = await asyncio.gather(*(fetch_script(session.store, job_id) for job_id in job_ids))
        return scripts, session

    scripts, session = with_session(common, work)
    for job_id, script in zip(job_ids, scripts, strict=True):
        if script.source.startswith(READ_FROM):
            print_notes(f"{job_id}: {script.source}")
    if diff is not None:
        names = (f"job {visible(diff)}", f"job {visible(job)}")
        text = "".join(f"{line}\n" for line in unified(scripts[0].text, scripts[1].text, names))
    elif explain:
        text = _explained(scripts[0], session)
    else:
        text = scripts[0].text
    print_text(text)


def _explained(script: Script, session: ClusterSession) -> str:
    """Add a comment below each directive that explains it."""
    explained = script_lines(script.text, session.store.backend.scripts.explain)
    notes = [line.note for line in explained]
    shown = []
    for at, line in enumerate(script.text.split("\n")):
        shown.append(line)
        if at < len(notes) and notes[at]:
            shown.append(f"#   ^ {notes[at]}")
    return "\n".join(shown)
