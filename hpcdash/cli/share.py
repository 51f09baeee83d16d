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
from hpcdash.domain.spans import LOCAL_ZONE
from hpcdash.domain.text import align_cells, counted, visible
from hpcdash.domain.units import MINUTE, parse_duration
from hpcdash.errors import EXIT_REFUSED, HpcdashError, UsageError

if TYPE_CHECKING:
    from hpcdash.services.jobs.actions import Report
    from hpcdash.services.session import ClusterSession
    from hpcdash.services.share.coordinator import Coordinator
    from hpcdash.services.share.state import Pool

_MAX_INTERRUPTIONS = 10
_COMMANDS_PER_MINUTE = 600
# A slow scheduler is queried less often: the pause is several times its last response time, up to a
# limit, so that suspending tasks are checked in time.
_PAUSE_FACTOR = 4.0
_MAX_PAUSE_FACTOR = 2.0
# With --for: the time after its grace in which a suspended task gives up its nodes.
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

    The rules are those of the configured pool `name`, if any, overridden by the options.
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

    if name:
        pool = _configured_pool(common, name)
        rules = pool_rules(pool)
        nodes = nodes or pool.nodes
        grace = pool.grace_seconds if grace is None else grace
    elif nodes:
        everyone = Quotas({(EVERYONE, level): nodes for level in LEVELS})
        rules = PoolRules(everyone, frozenset({EVERYONE}))
    else:
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
    limits = dict(rules.quotas.nodes)
    for text in quotas:
        limits.update(_parse_quota(text))
    model = PoolModel(
        nodes,
        Quotas(limits),
        demote_after_seconds=rules.demote_after_seconds,
        grace_seconds=5.0 if grace is None else grace,
        load_seconds=load,
        choosers=rules.choosers,
    )
    outcomes = [
        simulate(tasks, model),
        simulate_fifo(tasks, model),
        simulate_own_nodes(tasks, model),
    ]
    if form == "json":
        print_json({"schema": 1, "outcomes": [outcome_figures(outcome) for outcome in outcomes]})
        return
    from hpcdash.cli.usage import Screen
    from hpcdash.services.usage.charts import as_ascii

    screen = Screen()
    lines = draw_outcomes(outcomes, screen.width)
    screen.write(lines if screen.has_unicode else as_ascii(lines))
    if outcomes[0].never_run:
        print(
            "hpcdash: some tasks never run: they request more nodes than the pool has or the "
            "quota allows",
            file=sys.stderr,
        )


def _parse_quota(text: str) -> dict[tuple[str, Priority], int]:
    """Parse `alice:HIGH=8`; without a user it is everyone's."""
    name, _, amount = text.rpartition("=")
    user, _, level = name.rpartition(":")
    try:
        return {(user or EVERYONE, parse_priority(level)): int(amount)}
    except ValueError:
        raise UsageError(
            f"--quota {visible(text)} is not valid", "Use USER:PRIORITY=NODES, such as *:HIGH=8"
        ) from None


def _configured_pool(common: CommonOptions, name: str) -> PoolSettings:
    settings = load_settings(common.config)
    if name not in settings.share:
        raise UsageError(
            f"no [share.{visible(name)}] in the configuration",
            "Define it with nodes = … and quotas.",
        )
    return settings.share[name]


def _parse_limit(text: str) -> int:
    """Parse the duration of --for, in seconds."""
    hint = "Use a duration such as 9m or 1h."
    try:
        seconds = parse_duration(text, bare_unit_seconds=MINUTE)
    except ValueError as error:
        raise UsageError(f"--for {error}", hint) from None
    if not seconds:
        raise UsageError(f"--for {visible(text)} is not a duration", hint)
    return seconds


def run_coordinator(common: CommonOptions, name: str, *, once: bool, limit: str | None) -> None:
    """Coordinate a pool until interrupted, for the duration `limit`, or with `once` until no task
    is about to start or to be suspended.
    """
    from hpcdash.assembly import chosen_site
    from hpcdash.cli.jobs import with_session
    from hpcdash.services.share.coordinator import Coordinator
    from hpcdash.services.share.database import ShareDatabase
    from hpcdash.services.state.folders import pool_folder, with_state_file

    pool = with_state_file(_configured_pool(common, name))
    seconds = inf if limit is None else _parse_limit(limit)
    site = chosen_site(common)
    if site.cluster.transport != "local":
        raise UsageError(
            "a pool must be coordinated on its own cluster, where the task files are",
            "Run it there, with --local.",
        )

    async def work(session: ClusterSession) -> None:
        store = session.store
        await store.open()
        if not store.backend.detail.holds_requeued:
            raise UsageError(
                f"{store.backend.title} does not support shared pools: it cannot requeue and "
                "hold a job"
            )
        if pool.node_list and store.backend.is_embedded:
            raise UsageError(
                "node_list: this machine is the embedded queue's only node", "Remove it."
            )
        if pool.coordinator not in ("", store.user):
            raise UsageError(f"{pool.coordinator} coordinates pool {name}, not {store.user}")
        store.budget.ceiling = max(store.budget.ceiling, _COMMANDS_PER_MINUTE)
        database = ShareDatabase(pool_folder(name))
        try:
            database.acquire(store.clock.now())
            coordinator = Coordinator(
                pool,
                database,
                session.actions,
                lambda text: print(visible(text), flush=True),
                launch=site.launch,
            )
            await _coordinate(coordinator, once=once, seconds=seconds)
        finally:
            database.close()

    with_session(common, work)


async def _coordinate(coordinator: Coordinator, *, once: bool, seconds: float) -> None:
    """Run the steps of a pool, and publish its state, for some time.

    With `once`, return as soon as no task is about to start or to be suspended.
    """
    import asyncio
    import sqlite3

    from hpcdash.services.share.database import PoolHeld

    pool = coordinator.pool
    store = coordinator.actions.store
    interval = pool.poll_seconds or (1.0 if store.backend.is_embedded else 5.0)
    short_interval = min(interval, 0.2 if store.backend.is_embedded else 1.0)
    until = monotonic() + seconds
    problem = ""
    publishing_problem = ""
    while True:
        is_changing = False
        try:
            is_changing = await coordinator.step(is_ending=monotonic() >= until)
            try:
                coordinator.publish()
                publishing_problem = ""
            except HpcdashError as error:
                if error.message != publishing_problem:
                    print(
                        f"hpcdash: {visible(error.message)}. {visible(error.next_step)}",
                        file=sys.stderr,
                    )
                publishing_problem = error.message
            problem = ""
        except PoolHeld:
            raise
        except (HpcdashError, sqlite3.Error) as error:
            # A full disk passes.
            if not isinstance(error, HpcdashError):
                error = HpcdashError(f"{coordinator.database.path}: {error}")
            if once:
                raise error from None
            if error.message != problem:
                print(f"hpcdash: {visible(error.message)}; trying again", file=sys.stderr)
            problem = error.message
        left = until - monotonic()
        # A task that saves now would hold its nodes until a successor comes.
        overtime = pool.grace_seconds + _END_SECONDS if is_changing else 0.0
        if (once and not is_changing) or left <= -overtime:
            return
        slow_pause = _PAUSE_FACTOR * (store.budget.last_seconds or 0.0)
        pause = max(
            short_interval if is_changing else interval,
            min(slow_pause, _MAX_PAUSE_FACTOR * interval),
        )
        await asyncio.sleep(min(pause, left) if left > 0.0 else pause)


def _session_pool(session: ClusterSession, name: str) -> PoolSettings:
    """Return the named pool of a cluster; '' for its only one."""
    pools = {pool.name: pool for pool in session.pools}
    if not name and len(pools) == 1:
        return next(iter(pools.values()))
    if name in pools:
        return pools[name]
    if not pools:
        raise UsageError(
            f"no shared pool on {visible(session.name)}",
            "[share.NAME] in the configuration defines one: docs/share.md.",
        )
    text = f"no pool {visible(name)}" if name else "several pools exist"
    raise UsageError(text, f"Choose one: {', '.join(pools)}.")


def run_show(common: CommonOptions, name: str, *, expression: str, form: str) -> None:
    """Print the published state of a pool: its use, quotas, and the tasks that a filter selects."""
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
        query.parse(expression, arrow_schema(POOL_TASKS), LOCAL_ZONE) if expression else None
    )

    async def work(session: ClusterSession) -> None:
        store = session.store
        await store.open()
        pool = await PoolReader(store, _session_pool(session, name)).read()
        all_tasks = pool.tasks
        if requested is not None:
            selected = query.apply(task_table(all_tasks), requested, store.clock.now())
            ids = set(selected["id"].to_pylist())
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
    """Send a wish of a task's owner to the coordinator, through the scheduler."""
    from hpcdash.cli.actions import exit_status
    from hpcdash.cli.jobs import with_session
    from hpcdash.cli.terminal import is_agreed
    from hpcdash.services.share.state import PoolReader
    from hpcdash.services.share.text import format_interrupted, format_silence, format_task
    from hpcdash.services.share.wishes import Wish, plan_wish

    settings = load_settings(common.config)
    if common.read_only or settings.read_only:
        raise UsageError(f"share {wish} is disabled: hpcdash is read-only")
    try:
        requested = None if priority is None else parse_priority(priority)
    except ValueError as error:
        raise UsageError(f"--to: {error}") from None
    needs_confirmation = not common.yes
    if needs_confirmation:
        require_prompt(f"share {wish}")

    async def work(session: ClusterSession) -> Report | None:
        await session.store.open(force=True)
        pool = await PoolReader(session.store, _session_pool(session, name)).read()
        planned = await plan_wish(session, pool, job_id, Wish(wish), requested)
        if text := format_silence(pool, datetime.fromtimestamp(session.store.clock.now(), UTC)):
            print(f"hpcdash: {text}", file=sys.stderr)
        print(f"{wish} on {visible(session.name)}: {format_task(planned.task)}", file=sys.stderr)
        lines = [planned.question, *planned.outcome]
        if wish != Wish.STOP:
            lines += format_interrupted(planned.interrupted)
        for line in (*lines, *(command.text for command in planned.plan.commands)):
            print(f"  {visible(line)}", file=sys.stderr)
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


def _pool_lines(pool: Pool, user: str, now: datetime) -> Iterator[str]:
    from hpcdash.domain.units import format_age
    from hpcdash.services.share import text

    age = format_age(max(0.0, (now - pool.taken_at).total_seconds()))
    yield f"pool {pool.pool}: {text.format_use(pool)}; {visible(pool.coordinator)}, {age} ago"
    if message := text.format_foreign_jobs(pool):
        yield message
    yield ""
    if users := text.quota_users(pool, user):
        rows = [("QUOTA", *("everyone" if name == EVERYONE else name for name in users))]
        rows += [
            (level, *(text.format_quota(pool, name, level) for name in users))
            for level in text.quota_levels(pool)
        ]
        yield from align_cells(rows)
    else:
        yield "no quotas: this pool runs no tasks"
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
        yield f"{pool.tasks_left_out} more are waiting"
    if interruptions := pool.interruptions()[:_MAX_INTERRUPTIONS]:
        yield from ("", "INTERRUPTED")
        for task, run, ended_at in interruptions:
            time = f"{ended_at.astimezone():%Y-%m-%d %H:%M:%S}"
            yield f"{time}  {text.format_interruption(task, run)}"
