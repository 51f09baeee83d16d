"""hpcdash share: a pool of nodes in slices of time, by priority and quota."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_json, print_text, require_prompt, stdout
from hpcdash.config.read import load_settings
from hpcdash.config.settings import PoolSettings
from hpcdash.domain.share import EVERYONE, LEVELS, Priority, parse_priority
from hpcdash.domain.text import align_cells, counted, visible
from hpcdash.domain.units import MINUTE, parse_duration
from hpcdash.errors import EXIT_REFUSED, HpcdashError, UsageError

if TYPE_CHECKING:
    from hpcdash.services.jobs.actions import Report
    from hpcdash.services.session import ClusterSession
    from hpcdash.services.share.state import Pool

_MAX_INTERRUPTIONS = 10

# The coordinator waits as long as its scheduler takes to answer, several times over.
_COMMANDS_PER_MINUTE = 600
_PAUSE_FACTOR = 4.0
# Even if the scheduler is slow, a task requested to suspend is checked again before long.
_MAX_PAUSE_FACTOR = 2.0
# With --for: how long after its grace a suspended task may take to give up its nodes.
_END_SECONDS = 10.0


def run_generate(*, tasks: int, nodes: int, seed: int) -> None:
    """Print a synthetic trace."""
    from hpcdash.services.share.simulation import format_trace, generate_trace

    print_text(format_trace(generate_trace(tasks, nodes, seed)).removesuffix("\n"))


def run_simulate(
    common: CommonOptions,
    *,
    trace: str,
    name: str,
    nodes: int | None,
    quotas: Sequence[str],
    grace: float | None,
    load: float,
    form: str,
) -> None:
    """Print the results of a trace under the rules, first come first served, and on own nodes.

    On own nodes each user has some. The rules are those of a pool of the configuration where one is
    named, overridden by the options.
    """
    from hpcdash.services.share.charts import draw_outcomes, outcome_figures
    from hpcdash.services.share.coordinator import pool_rules
    from hpcdash.services.share.scheduling import PoolRules, Quotas
    from hpcdash.services.share.simulation import (
        BadTrace,
        PoolModel,
        parse_trace,
        simulate,
        simulate_fifo,
        simulate_own_nodes,
    )

    pool = _pool(common, name) if name else None
    nodes = nodes or (pool.nodes if pool is not None else 0)
    if not nodes:
        raise UsageError(
            "the number of nodes is missing", "Use --nodes N, or --pool NAME for a configured pool."
        )
    try:
        with open(0 if trace == "-" else trace, encoding="utf-8", newline="") as file:
            tasks = parse_trace(file)
    except OSError as error:
        raise HpcdashError(
            f"{trace}: {error.strerror or error}", "Use a CSV file, or - for stdin."
        ) from None
    except (BadTrace, UnicodeDecodeError) as error:
        raise UsageError(
            f"{trace}: {error}", "`hpcdash share generate` prints an example trace."
        ) from None
    if not tasks:
        raise UsageError(
            f"{trace} has no tasks", "`hpcdash share generate` prints an example trace."
        )
    rules = PoolRules(Quotas({(EVERYONE, level): nodes for level in LEVELS}), frozenset({EVERYONE}))
    if pool is not None:
        rules = pool_rules(pool)
    limits = dict(rules.quotas.nodes)
    for text in quotas:
        limits.update(_quota(text))
    model = PoolModel(
        nodes,
        Quotas(limits),
        demote_after_seconds=rules.demote_after_seconds,
        grace_seconds=grace if grace is not None else 5.0 if pool is None else pool.grace_seconds,
        load_seconds=load,
        choosers=rules.choosers,
    )
    outcomes = [
        simulate(tasks, model),
        simulate_fifo(tasks, model),
        simulate_own_nodes(tasks, model),
    ]
    if form == "json":
        print_json({"schema": 1, "outcomes": [outcome_figures(one) for one in outcomes]})
        return
    from hpcdash.cli.usage import Screen
    from hpcdash.services.usage.charts import as_ascii

    screen = Screen()
    lines = draw_outcomes(outcomes, screen.width)
    screen.write(lines if screen.has_unicode else as_ascii(lines))
    if outcomes[0].never_run:
        print(
            "hpcdash: tasks that never run request more nodes than exist or than the quota allows",
            file=sys.stderr,
        )


def _quota(text: str) -> dict[tuple[str, Priority], int]:
    """`alice:HIGH=8`; without a user it is every user's."""
    name, _, amount = text.rpartition("=")
    user, _, level = name.rpartition(":")
    try:
        return {(user or EVERYONE, parse_priority(level)): int(amount)}
    except ValueError:
        raise UsageError(
            f"--quota {visible(text)} cannot be read", "Use USER:PRIORITY=NODES, as in *:HIGH=8"
        ) from None


def _pool(common: CommonOptions, name: str) -> PoolSettings:
    settings = load_settings(common.config)
    if name not in settings.share:
        raise UsageError(
            f"there is no [share.{visible(name)}] in the configuration",
            "Define it with nodes = … and quotas.",
        )
    return settings.share[name]


def _seconds(text: str) -> int:
    try:
        seconds = parse_duration(text, bare_unit_seconds=MINUTE)
    except ValueError as error:
        raise UsageError(f"--for {error}", "Use a duration such as 9m or 1h.") from None
    if not seconds:
        raise UsageError(
            f"--for {visible(text)} is not a duration", "Use a duration such as 9m or 1h."
        )
    return seconds


def run_coordinator(common: CommonOptions, name: str, *, once: bool, limit: str | None) -> None:
    """Coordinate a pool until interrupted, for some time, or until no task is about to start or to
    be suspended.
    """
    import asyncio
    import sqlite3
    from pathlib import Path

    from hpcdash.assembly import chosen_site
    from hpcdash.cli.jobs import with_session
    from hpcdash.services.share.coordinator import Coordinator
    from hpcdash.services.share.database import PoolHeld, ShareDatabase
    from hpcdash.services.share.state import PUBLISH_SECONDS, publish
    from hpcdash.services.state.folders import pool_folder, with_state_file

    pool = with_state_file(_pool(common, name))
    seconds = None if limit is None else _seconds(limit)
    site = chosen_site(common)
    if site.cluster.transport != "local":
        raise UsageError(
            "a pool is coordinated on its own cluster, where its tasks' files are",
            "Add --local there.",
        )

    async def work(session: ClusterSession) -> None:
        store = session.store
        await store.open()
        if not store.backend.detail.holds_requeued:
            raise UsageError(
                f"{store.backend.title} cannot share a pool: it cannot requeue and hold a job"
            )
        if pool.node_list and store.backend.is_embedded:
            raise UsageError(
                "node_list: this machine is the embedded queue's only node", "Remove it."
            )
        if pool.coordinator not in ("", store.user):
            raise UsageError(
                f"{pool.coordinator} coordinates pool {name}, and this is {store.user}"
            )
        store.budget.ceiling = max(store.budget.ceiling, _COMMANDS_PER_MINUTE)
        every = pool.poll_seconds or (1.0 if store.backend.is_embedded else 5.0)
        soon = min(every, 0.2 if store.backend.is_embedded else 1.0)
        database = ShareDatabase(pool_folder(name))
        published_at = 0.0
        changes = -1
        message = ""
        failing = ""

        def print_pool() -> None:
            nonlocal published_at, changes, message
            now = store.clock.now()
            if database.changes == changes and 0 <= now - published_at < PUBLISH_SECONDS:
                return
            state = coordinator.state()
            try:
                publish(state, Path(pool.state_file))
            except HpcdashError as error:
                if error.message != message:
                    print(
                        f"hpcdash: {visible(error.message)}. {visible(error.next_step)}",
                        file=sys.stderr,
                    )
                message = error.message
            published_at = now
            changes = database.changes

        try:
            database.acquire(store.clock.now())
            coordinator = Coordinator(
                pool,
                database,
                session.actions,
                lambda text: print(visible(text), flush=True),
                launch=site.launch,
            )
            until = monotonic() + (inf if seconds is None else seconds)
            while True:
                is_changing = False
                try:
                    is_changing = await coordinator.step(is_ending=monotonic() >= until)
                    print_pool()
                    failing = ""
                except PoolHeld:
                    raise
                except (HpcdashError, sqlite3.Error) as error:
                    # A full disk passes.
                    failure = (
                        error
                        if isinstance(error, HpcdashError)
                        else HpcdashError(f"{database.path}: {error}")
                    )
                    if once:
                        raise failure from None
                    if failure.message != failing:
                        print(f"hpcdash: {visible(failure.message)}; trying again", file=sys.stderr)
                    failing = failure.message
                left = until - monotonic()
                # A task that saves now would hold its nodes until a successor comes.
                if (once and not is_changing) or left <= (
                    -pool.grace_seconds - _END_SECONDS if is_changing else 0.0
                ):
                    return
                # A busy scheduler is queried less often.
                slower = min(
                    _PAUSE_FACTOR * (store.budget.last_seconds or 0.0), _MAX_PAUSE_FACTOR * every
                )
                pause = max(soon if is_changing else every, slower)
                await asyncio.sleep(min(pause, left) if left > 0.0 else pause)
        finally:
            database.close()

    with_session(common, work)


def _pool_here(session: ClusterSession, name: str) -> PoolSettings:
    """The pool of a name, '' for the only one."""
    pools = {one.name: one for one in session.pools}
    if not name and len(pools) == 1:
        return next(iter(pools.values()))
    if name in pools:
        return pools[name]
    if not pools:
        raise UsageError(
            f"no shared pool on {visible(session.name)}",
            "[share.NAME] in the configuration defines one: docs/share.md.",
        )
    text = f"there is no pool {visible(name)}" if name else "there are several pools"
    raise UsageError(text, f"Choose one: {', '.join(pools)}.")


def run_show(common: CommonOptions, name: str, *, expression: str, form: str) -> None:
    """Print the published state of a pool: load, quotas, and the tasks that a filter selects."""
    from msgspec import to_builtins
    from msgspec.structs import replace

    from hpcdash.cli.jobs import with_session
    from hpcdash.cli.tables import write_csv
    from hpcdash.domain import query
    from hpcdash.domain.schema import arrow_schema
    from hpcdash.services.share.state import PoolReader
    from hpcdash.services.share.table import POOL_TASKS, task_table
    from hpcdash.services.share.text import format_silence

    requested = (
        query.parse(expression, arrow_schema(POOL_TASKS), datetime.now().astimezone().tzinfo or UTC)
        if expression
        else None
    )

    async def work(session: ClusterSession) -> None:
        store = session.store
        await store.open()
        pool = await PoolReader(store, _pool_here(session, name)).read()
        all_tasks = pool.tasks
        if requested is not None:
            left = query.apply(task_table(all_tasks), requested, store.clock.now())
            ids = set(left["id"].to_pylist())
            pool = replace(pool, tasks=tuple(task for task in all_tasks if task.id in ids))
        now = datetime.fromtimestamp(store.clock.now(), UTC)
        if form == "json":
            print_json(
                {
                    "schema": 1,
                    "cluster": session.name,
                    "backend": store.backend.name,
                    **to_builtins(pool),
                }
            )
        elif form == "csv":
            write_csv(POOL_TASKS.public_names, task_table(pool.tasks), stdout())
        else:
            print_text("\n".join(_pool_lines(pool, store.user, now)) + "\n")
        if form == "table" and not pool.tasks:
            print(
                f"None of {counted(len(all_tasks), 'task')} matches the filter."
                if all_tasks
                else 'The pool has no tasks. A request with share = "NORMAL" is submitted as one.',
                file=sys.stderr,
            )
        if text := format_silence(pool, now):
            print(f"hpcdash: {text}", file=sys.stderr)

    with_session(common, work)


def run_wish(
    common: CommonOptions, wish: str, job_id: str, *, name: str, priority: str | None
) -> None:
    """Send a request to the coordinator on behalf of a task's owner, through the scheduler."""
    from hpcdash.cli.actions import exit_status
    from hpcdash.cli.jobs import with_session
    from hpcdash.cli.terminal import is_agreed
    from hpcdash.services.share.state import PoolReader
    from hpcdash.services.share.text import format_interrupted, format_silence, format_task
    from hpcdash.services.share.wishes import Wish, plan_wish

    settings = load_settings(common.config)
    if common.read_only or settings.read_only:
        raise UsageError(f"share {wish} is refused: hpcdash is read-only")
    requested = None if priority is None else _priority(priority)
    needs_confirmation = not common.yes
    if needs_confirmation:
        require_prompt(f"share {wish}")

    async def work(session: ClusterSession) -> Report | None:
        await session.store.open(force=True)
        pool = await PoolReader(session.store, _pool_here(session, name)).read()
        planned = await plan_wish(session, pool, job_id, Wish(wish), requested)
        if text := format_silence(pool, datetime.fromtimestamp(session.store.clock.now(), UTC)):
            print(f"hpcdash: {text}", file=sys.stderr)
        task = pool.task(job_id)
        subject = format_task(task) if task is not None else visible(job_id)
        print(f"{wish} on {visible(session.name)}: {subject}", file=sys.stderr)
        is_stop = wish == Wish.STOP
        for text in (
            planned.question,
            *planned.outcome,
            *(() if is_stop else format_interrupted(planned.interrupted)),
        ):
            if text:
                print(f"  {visible(text)}", file=sys.stderr)
        for command in planned.plan.commands:
            print(f"  {visible(command.text)}", file=sys.stderr)
        if needs_confirmation and not await is_agreed():
            return None
        return await session.actions.run(planned.plan)

    report = with_session(common, work)
    if report is None:
        print("nothing was done", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    if report.journal_problem:
        print(f"hpcdash: {visible(report.journal_problem)}", file=sys.stderr)
    for outcome in report.outcomes:
        message = {True: "requested", False: "refused", None: "unknown"}[outcome.done]
        print(
            f"{visible(outcome.job_id)}  {wish} "
            f"{message}{': ' if outcome.text else ''}{visible(outcome.text)}"
        )
    if status := exit_status(report.outcomes):
        sys.exit(status)


def _priority(text: str) -> Priority:
    try:
        return parse_priority(text)
    except ValueError as error:
        raise UsageError(f"--to: {error}") from None


def _pool_lines(pool: Pool, user: str, now: datetime) -> Iterator[str]:
    from hpcdash.domain.units import format_age
    from hpcdash.services.share import text

    age = format_age(max(0.0, (now - pool.taken_at).total_seconds()))
    yield f"pool {pool.pool}: {text.format_use(pool)}; {visible(pool.coordinator)}, {age} ago"
    if message := text.format_outsiders(pool):
        yield message
    users = text.quota_users(pool, user)
    rows = [("QUOTA", *("everyone" if one == EVERYONE else one for one in users))]
    rows += [
        (level, *(text.format_quota(pool, one, level) for one in users))
        for level in text.quota_levels(pool)
    ]
    yield from ("", *align_cells(rows)) if users else ("", "no quota: this pool does not run tasks")
    rows = [
        (
            "ID",
            "USER",
            "NAME",
            "NODES",
            "PRIORITY",
            "STATE",
            "TURN",
            "DEMOTION",
            "SUSPENDED",
            "LABELS",
            "WHY",
        )
    ]
    for task in pool.tasks:
        rows.append(
            (
                task.id,
                task.user,
                task.name,
                str(task.nodes),
                text.format_level(task),
                task.state,
                text.format_turn(task),
                text.format_demotion(task, now),
                str(task.suspended or ""),
                ", ".join(task.labels),
                task.why,
            )
        )
    if pool.tasks:
        yield from ("", *align_cells(rows))
    if pool.tasks_left_out:
        yield f"{pool.tasks_left_out} more wait behind these"
    if interruptions := pool.interruptions()[:_MAX_INTERRUPTIONS]:
        yield from ("", "INTERRUPTED")
        for task, run in interruptions:
            at = run.ended_at or task.submitted_at
            yield f"{at.astimezone():%Y-%m-%d %H:%M:%S}  {text.format_interruption(task, run)}"
