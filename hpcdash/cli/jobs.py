"""Tables, one job and its script to stdout, through the same services as the app."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from hpcdash.assembly import build_session, chosen_clusters, connection_pool
from hpcdash.backends.actions import Verb
from hpcdash.backends.job_detail import Activity, JobDetail, Script
from hpcdash.cli.ending import run_async
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.tables import write_csv, write_json, write_table
from hpcdash.cli.terminal import print_json, print_text, stdout
from hpcdash.config.read import load_settings
from hpcdash.domain import query
from hpcdash.domain.job_text import Pair
from hpcdash.domain.rfc3339 import format_utc, table_to_json_rows
from hpcdash.domain.schema import JOBS, SCHEMAS, STEPS, public_names
from hpcdash.domain.scripts import script_lines, unified
from hpcdash.domain.tables import TABLES, Kind, TableSpec
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import READ_FROM, fetch_script
from hpcdash.services.session import ClusterSession
from hpcdash.transport.prompter import TerminalPrompter

if TYPE_CHECKING:
    from hpcdash.services.jobs.overview import JobPicture

T = TypeVar("T")
# A script may query in a loop.
_TIDY_EVERY_SECONDS = 60.0


def with_session(
    common: CommonOptions,
    work: Callable[[ClusterSession], Awaitable[T]],
    on_signal: Callable[[int], bool] = lambda number: False,
) -> T:
    """Run some work on the chosen cluster, and close its connection.

    `on_signal` is that of run_async.
    """
    settings = load_settings(common.config)
    cluster = chosen_clusters(common, settings)[0]

    async def run() -> T:
        session = build_session(cluster, connection_pool(TerminalPrompter()), share=settings.share)
        try:
            await session.store.resolve_backend()
            done = await work(session)
            if not (common.read_only or settings.read_only):
                await _tidy(session)
            return done
        except asyncio.CancelledError:
            _warn_cut_off(session)
            raise
        finally:
            await session.store.close()

    return run_async(run(), on_signal)


def _warn_cut_off(session: ClusterSession) -> None:
    for verb, job_id in session.actions.cut_off:
        step = (
            "hpcdash journal --settle" if verb is Verb.SUBMIT else f"hpcdash show {visible(job_id)}"
        )
        print(
            f"hpcdash: {verb} {visible(job_id)}: outcome unknown. Check with: {step}",
            file=sys.stderr,
        )


async def _tidy(session: ClusterSession) -> None:
    """Remove expired folders of launches, where the cluster was queried anyway."""
    store = session.store
    was_queried = store.probe is not None or any(
        not snapshot.cached for snapshot in store.snapshots.values()
    )
    if was_queried:
        for text in await session.launches.remove_finished_folders(
            every_seconds=_TIDY_EVERY_SECONDS
        ):
            print(f"hpcdash: {visible(text)}", file=sys.stderr)


async def _fetch(store: ClusterStore, kind: Kind) -> Snapshot:
    """Fetch the kind, and for nodes and queues also the whole queue, to count their jobs."""
    if kind is Kind.LIMITS:
        return await _fetch_limits(store)
    if kind not in (Kind.NODES, Kind.QUEUES):
        return await store.fetch(kind)
    counting = asyncio.create_task(store.fetch(Kind.EVERYONE))
    try:
        await store.fetch(kind)
    except HpcdashError:
        # Nobody waits for the jobs of what is not to be had.
        counting.cancel()
        raise
    try:
        await counting
    except HpcdashError as error:
        print(f"hpcdash: could not count the jobs: {visible(error.message)}", file=sys.stderr)
    return store.snapshots[kind]


def parse_filter(expression: str, kind: Kind) -> query.Filter:
    """A filter as a person types it: times are this machine's, as in the dashboard.

    Raises UsageError.
    """
    return query.parse(expression, SCHEMAS[kind], datetime.now().astimezone().tzinfo or UTC)


async def _fetch_limits(store: ClusterStore) -> Snapshot:
    """Fetch the limits, and one's own jobs where only they show how much is used."""
    from hpcdash.services.usage.limits import has_uncounted, with_counted_use

    # Whose jobs and which cluster's limits they are, only the probe tells.
    await store.open()
    snapshot = await store.fetch(Kind.LIMITS)
    mine = None
    if has_uncounted(snapshot.table):
        try:
            mine = (await store.fetch(Kind.MINE)).table
        except HpcdashError as error:
            print(
                f"hpcdash: could not count what your jobs use: {visible(error.message)}",
                file=sys.stderr,
            )
    return replace(snapshot, table=with_counted_use(snapshot.table, mine, None, store.user))


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
    common: CommonOptions, name: str, *, expression: str, form: str, mine: bool = True
) -> None:
    """Rows of a table as text, JSON or CSV on stdout."""
    spec = TABLES[name]
    kind = spec.kind(everyone=not mine)
    requested = parse_filter(expression, kind)

    async def work(session: ClusterSession) -> tuple[Snapshot, str, str, bool]:
        store = session.store
        snapshot = await _fetch(store, kind)
        if name == "shares" and mine:
            own = snapshot.table.filter(snapshot.table["_on_own_path"])
            snapshot = replace(snapshot, table=own)
        lacks_account = (
            name in ("shares", "limits")
            and not snapshot.table.num_rows
            and await _lacks_account(store)
        )
        if lacks_account:
            everyone = "; --all shows all accounts" if name == "shares" else ""
            text = f"{store.user} has no account on {session.name}{everyone}"
            print(f"hpcdash: {visible(text)}", file=sys.stderr)
        return snapshot, session.name, store.backend.name, lacks_account

    snapshot, cluster, backend, lacks_account = with_session(common, work)
    table = query.apply(snapshot.table, requested, snapshot.taken_at)
    warn_unknown_gpus(snapshot.table, requested, snapshot.taken_at)
    for row in snapshot.rejected:
        print(f"hpcdash: a row could not be read: {visible(row)}", file=sys.stderr)
    print_table(spec, replace(snapshot, table=table), form, cluster=cluster, backend=backend)
    if form == "table" and not table.num_rows and not lacks_account:
        all_rows = snapshot.table.num_rows
        print(format_empty(spec, mine=mine, all_rows=all_rows), file=sys.stderr)


def warn_unknown_gpus(table: pa.Table, requested: query.Filter, taken_at: float) -> None:
    """Print on stderr how many rows a filter on GPUs could not judge."""
    if text := query.format_unknown_gpus(query.count_unknown_gpus(table, requested, taken_at)):
        print(f"hpcdash: {text}", file=sys.stderr)


def print_table(
    spec: TableSpec, snapshot: Snapshot, form: str, *, cluster: str, backend: str
) -> None:
    """A snapshot as a table, JSON or CSV on stdout."""
    table = snapshot.table
    taken_at = snapshot.taken_at
    if form == "json":
        write_json(
            spec,
            table,
            stdout(is_json=True),
            cluster=cluster,
            backend=backend,
            taken_at=taken_at,
            rejected_rows=len(snapshot.rejected),
        )
    elif form == "csv":
        write_csv(spec.public_names, table, stdout())
    else:
        width = shutil.get_terminal_size().columns if os.isatty(sys.stdout.fileno()) else None
        write_table(
            spec,
            table,
            sys.stdout.buffer,
            utc_now=taken_at,
            width=width,
            encoding=sys.stdout.encoding,
        )


def format_empty(
    spec: TableSpec, *, mine: bool, all_rows: int, span: str = "the last 7 days"
) -> str:
    """Return why a table has no rows, and what to do; `span` is that of ended jobs."""
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
            whose, everyone = (" of yours", "; --all shows everyone's") if mine else ("", "")
            return f"No job{whose} ended in {span}. An earlier --since goes further back{everyone}."
    return spec.empty


def run_show(common: CommonOptions, job: str, form: str, *, steps: bool = False) -> None:
    """Print one job with its request, use, reason and the scheduler's facts, as groups or JSON.

    `steps`: print all of its steps, and only them in a table.
    """
    from hpcdash.services.jobs.overview import JobPicture, Part
    from hpcdash.services.jobs.page import format_step, job_groups

    async def work(session: ClusterSession) -> tuple[JobPicture, JobDetail, ClusterSession]:
        store = session.store
        picture = JobPicture(
            store, job, state_folder=session.actions.journal.path.parent, debug=common.debug
        )
        await picture.fetch()
        if picture.detail is None:
            raise picture.errors[Part.DETAIL]
        return picture, picture.detail, session

    picture, detail, session = with_session(common, work)
    taken_at = session.store.clock.now()
    if form == "json":
        # For a whole array, the common values of its tasks; the details are those of one task.
        whole = (
            pa.Table.from_pylist([dict(picture.row or {})], JOBS)
            if picture.is_whole_array
            else detail.job
        )
        shown = table_to_json_rows(whole, public_names(JOBS))[0]
        shown["native"] = dict(detail.native)
        shown["usage"] = picture.usage
        answer = {
            "schema": 1,
            **session.envelope(taken_at),
            "rejected_rows": 0,
            "job": shown,
            "failure": _failure(picture),
            "waits": picture.waits,
            "launch": None if picture.launched is None else picture.launched.for_json(),
        }
        if picture.activity is not None:
            answer["activity"] = _activity(picture.activity)
        if steps:
            answer["steps"] = (
                [] if picture.steps is None else table_to_json_rows(picture.steps, STEPS.names)
            )
        print_json(answer)
        return
    if steps:
        if picture.steps is None or not picture.steps.num_rows:
            raise picture.errors.get(Part.STEPS) or HpcdashError(
                f"no steps are recorded for job {visible(picture.job_id)}",
                "A job has steps once it has started.",
            )
        named = [*map(format_step, picture.steps.to_pylist())]
        _print_pairs(f"Steps of job {picture.job_id}", named)
        return
    for group in job_groups(picture, datetime.fromtimestamp(taken_at, UTC), signs={}):
        _print_pairs(group.title, [(entry.label, entry.text) for entry in group.entries])
    if (failure := picture.failure) is not None and failure.excerpt is not None:
        above = [("", failure.excerpt.above), ("", "…")] if failure.excerpt.above else []
        lines = [("", line) for line in failure.excerpt.lines]
        _print_pairs(f"End of {failure.stream}", [*above, *lines])
    _print_pairs("Raw scheduler output", list(detail.native.items()))


def run_sooner(common: CommonOptions, job: str, form: str) -> None:
    """Print when a pending job would start unchanged, shorter and on fewer nodes.

    The commands that were used are printed too.
    """
    from hpcdash.services.usage.sooner import StartOption, fetch_start_options

    async def work(session: ClusterSession) -> tuple[list[StartOption], ClusterSession]:
        return await fetch_start_options(session.store, job), session

    options, session = with_session(common, work)
    now = session.store.clock.now()
    if form == "table":
        _print_pairs(
            f"Job {job} would start", [(option.change, option.format(now)) for option in options]
        )
        _print_pairs(
            "Commands (nothing was submitted)", [("", option.command) for option in options]
        )
        return
    starts = [
        {
            "change": option.change,
            "starts_at": None
            if option.estimate.starts_at_epoch is None
            else format_utc(option.estimate.starts_at_epoch),
            "node_list": option.estimate.node_list or None,
            "refusal": option.estimate.refusal or None,
            "estimated_by": option.estimator,
            "command": option.command,
        }
        for option in options
    ]
    print_json({"schema": 1, **session.envelope(now), "rejected_rows": 0, "starts": starts})


def _activity(activity: Activity) -> dict[str, object]:
    """Return the activity of a job's program, for JSON."""
    return {
        "counts": [
            {
                "kind": one.kind,
                "name": one.name,
                "states": [
                    {"words": text, "state": state, "count": count}
                    for text, state, count in one.states
                ],
                "restarts": one.restarts,
            }
            for one in activity.counts
        ],
        "failures": [{"name": name, "why": why} for name, why in activity.failures],
        "problems": list(activity.notes),
    }


def _failure(picture: JobPicture) -> dict[str, object] | None:
    """Return the cause of a job's failure according to its log, for JSON.

    None for any other job.
    """
    from hpcdash.services.jobs.overview import Part

    failure = picture.failure
    error = picture.errors.get(Part.LOG)
    if failure is None:
        return (
            None
            if error is None
            else {"line": None, "rank": None, "stream": None, "lines": [], "problem": error.message}
        )
    excerpt = failure.excerpt
    cause = None if excerpt is None else excerpt.cause
    return {
        "line": None if cause is None else cause.line,
        "rank": int(cause.rank) if cause is not None and cause.rank else None,
        "stream": None if excerpt is None else failure.stream,
        "lines": [] if excerpt is None else list(excerpt.lines),
        "problem": failure.problem or None,
    }


def _print_pairs(title: str, pairs: list[Pair]) -> None:
    """Remarks, which have no label, stand at the indent."""
    print(visible(title))
    width = max(12, *(len(label) for label, _ in pairs)) + 2
    for label, value in pairs:
        print(f"  {visible(label):<{width}}{visible(value)}" if label else f"  {visible(value)}")


def run_script(common: CommonOptions, *, job: str, diff: str | None, explain: bool) -> None:
    """Print the script, or a unified difference from the script of `diff` to that of `job`.

    A pipe gets the bytes as they were submitted, a terminal what cannot harm it; `explain` adds a
    comment line below each directive.
    """

    async def work(session: ClusterSession) -> tuple[list[Script], ClusterSession]:
        requested = [job] if diff is None else [diff, job]
        return list(
            await asyncio.gather(*(fetch_script(session.store, one) for one in requested))
        ), session

    scripts, session = with_session(common, work)
    for one, script in zip([job] if diff is None else [diff, job], scripts, strict=True):
        if script.source.startswith(READ_FROM):
            print(f"hpcdash: {visible(one)}: {visible(script.source)}", file=sys.stderr)
    if diff is not None:
        names = (f"job {visible(diff)}", f"job {visible(job)}")
        text = "".join(f"{line}\n" for line in unified(scripts[0].text, scripts[1].text, names))
    elif explain:
        text = _explained(scripts[0], session)
    else:
        text = scripts[0].text
    print_text(text)


def _explained(script: Script, session: ClusterSession) -> str:
    """Return the script with a comment below each directive that explains its request."""
    explained = script_lines(script.text, session.store.backend.scripts.explain)
    lines = script.text.split("\n")
    shown = []
    for at, line in enumerate(lines):
        shown.append(line)
        if at < len(explained) and explained[at].note:
            shown.append(f"#   ^ {explained[at].note}")
    return "\n".join(shown)
