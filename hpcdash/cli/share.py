"""hpcdash share: a pool of nodes in slices of time, by priority and quota."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_json, print_text
from hpcdash.config.read import load_settings
from hpcdash.config.settings import PoolSettings
from hpcdash.domain.share import EVERYONE, LEVELS, Priority, parse_priority
from hpcdash.domain.text import visible
from hpcdash.domain.units import MINUTE, parse_duration
from hpcdash.errors import HpcdashError, UsageError

if TYPE_CHECKING:
    from hpcdash.services.session import ClusterSession

# The coordinator waits as long as its scheduler takes to answer, several times over.
_COMMANDS_PER_MINUTE = 600
_PAUSE_FACTOR = 2.0


def run_generate(*, tasks: int, nodes: int, seed: int) -> None:
    """Print a trace made up of tasks as a group's trainings."""
    from hpcdash.services.share.simulation import format_trace, generate_trace

    print_text(format_trace(generate_trace(tasks, nodes, seed)).removesuffix("\n"))


def run_simulate(*, trace: str, nodes: int, quotas: Sequence[str], grace: float, load: float, form: str) -> None:
    """Print what a trace comes to under the rules, first come first served, and on nodes of each user's own."""
    from hpcdash.services.share.charts import draw_outcomes, outcome_figures
    from hpcdash.services.share.scheduling import Quotas
    from hpcdash.services.share.simulation import (
        BadTrace,
        PoolModel,
        parse_trace,
        simulate,
        simulate_fifo,
        simulate_own_nodes,
    )

    try:
        with open(0 if trace == "-" else trace, encoding="utf-8", newline="") as file:
            tasks = parse_trace(file)
    except OSError as error:
        raise HpcdashError(f"{trace}: {error.strerror or error}", "Name a CSV file, or - for stdin.") from None
    except (BadTrace, UnicodeDecodeError) as error:
        raise UsageError(f"{trace}: {error}", "`hpcdash share generate` prints a trace to begin with.") from None
    if not tasks:
        raise UsageError(f"{trace} has no tasks", "`hpcdash share generate` prints a trace to begin with.")
    limits: dict[tuple[str, Priority], int] = {(EVERYONE, level): nodes for level in LEVELS}
    for text in quotas:
        limits.update(_quota(text))
    model = PoolModel(nodes, Quotas(limits), grace_seconds=grace, load_seconds=load)
    outcomes = [simulate(tasks, model), simulate_fifo(tasks, model), simulate_own_nodes(tasks, model)]
    if form == "json":
        print_json({"schema": 1, "outcomes": [outcome_figures(one) for one in outcomes]})
        return
    from hpcdash.cli.usage import Screen
    from hpcdash.services.usage.charts import as_ascii

    screen = Screen()
    lines = draw_outcomes(outcomes, screen.width)
    screen.write(lines if screen.has_unicode else as_ascii(lines))
    if outcomes[0].never_run:
        print("hpcdash: tasks that never run ask for more than the nodes or the quota gives", file=sys.stderr)


def _quota(text: str) -> dict[tuple[str, Priority], int]:
    """`alice:HIGH=8`; without a user it is every user's."""
    name, _, amount = text.rpartition("=")
    user, _, level = name.rpartition(":")
    try:
        return {(user or EVERYONE, parse_priority(level)): int(amount)}
    except ValueError:
        raise UsageError(
            f"--quota {visible(text)} cannot be read", "Write USER:PRIORITY=NODES, as in *:HIGH=8"
        ) from None


def _pool(common: CommonOptions, name: str) -> PoolSettings:
    settings = load_settings(common.config)
    if name not in settings.share:
        raise UsageError(f"there is no [share.{visible(name)}] in the configuration", "It says nodes = … and quotas.")
    return settings.share[name]


def _seconds(text: str) -> int:
    try:
        seconds = parse_duration(text, bare_unit_seconds=MINUTE)
    except ValueError as error:
        raise UsageError(f"--for {error}", "Write 9m, or 1h.") from None
    if not seconds:
        raise UsageError(f"--for {visible(text)} is not an amount of time", "Write 9m, or 1h.")
    return seconds


def _folder(name: str) -> Path:
    from hpcdash.cli.build import state_root

    return state_root() / "share" / name


def run_coordinator(common: CommonOptions, name: str, *, once: bool, limit: str | None) -> None:
    """Coordinate a pool until interrupted, for some time, or until no task is about to start or to be suspended."""
    import asyncio

    from hpcdash.cli.build import chosen_site
    from hpcdash.cli.jobs import with_session
    from hpcdash.services.share.coordinator import Coordinator
    from hpcdash.services.share.database import PoolHeld, ShareDatabase

    pool = _pool(common, name)
    seconds = None if limit is None else _seconds(limit)
    site = chosen_site(common)
    if site.cluster.transport != "local":
        raise UsageError("a pool is coordinated on its cluster: files of its tasks are there", "Add --local there.")

    async def work(session: ClusterSession) -> None:
        store = session.store
        await store.open()
        if store.backend.detail.task_refusal is None:
            raise UsageError(f"{store.backend.title} shares no pool: it does not put a job back and hold it")
        store.budget.ceiling = max(store.budget.ceiling, _COMMANDS_PER_MINUTE)
        every = pool.poll_seconds or (1.0 if store.backend.is_embedded else 5.0)
        soon = min(every, 0.2 if store.backend.is_embedded else 1.0)
        database = ShareDatabase(_folder(name))
        try:
            database.acquire(store.clock.now())
            coordinator = Coordinator(
                pool,
                database,
                session.actions,
                lambda words: print(visible(words), flush=True),
                launch=site.launch,
            )
            until = None if seconds is None else monotonic() + seconds
            while True:
                is_changing = False
                began = monotonic()
                try:
                    is_changing = await coordinator.step()
                except PoolHeld:
                    raise
                except HpcdashError as error:
                    if once:
                        raise
                    print(f"hpcdash: {visible(error.message)}; trying again", file=sys.stderr)
                if (once and not is_changing) or (until is not None and monotonic() >= until):
                    return
                # A busy scheduler is asked less often.
                pause = max(soon if is_changing else every, _PAUSE_FACTOR * (monotonic() - began))
                await asyncio.sleep(pause if until is None else max(0.0, min(pause, until - monotonic())))
        finally:
            database.close()

    with_session(common, work)


def run_show(common: CommonOptions, name: str, form: str) -> None:
    """The tasks of a pool."""
    from hpcdash.domain.rfc3339 import format_utc
    from hpcdash.services.share.database import NAME, ShareDatabase

    pool = _pool(common, name)
    if not (_folder(name) / NAME).exists():
        raise UsageError(f"pool {name} has had no coordinator here", f"hpcdash share run {name}")
    database = ShareDatabase(_folder(name))
    tasks = database.tasks()
    if form == "json":

        def moment(at: float | None) -> str | None:
            return None if at is None else format_utc(at)

        rows = [
            {
                "id": one.id,
                "user": one.user,
                "name": one.name,
                "nodes": one.nodes,
                "priority": Priority(one.priority).name,
                "level": None if one.level is None else Priority(one.level).name,
                "state": one.state,
                "words": one.words,
                "suspended": one.suspended,
                "runs": [
                    {"run": run, "level": level.name, "started_at": moment(start), "ended_at": moment(end), "how": how}
                    for run, level, start, end, how in database.runs(one.id)
                ],
            }
            for one in tasks
        ]
        print_json({"schema": 1, "pool": name, "nodes": pool.nodes, "tasks": rows})
    else:
        lines = [("ID", "USER", "NAME", "NODES", "PRIORITY", "STATE", "SUSPENDED")]
        for one in tasks:
            level = Priority(one.priority if one.level is None else one.level).name
            lines.append((one.id, one.user, one.name, str(one.nodes), level, one.state, str(one.suspended)))
        widths = [max(len(visible(line[at])) for line in lines) for at in range(len(lines[0]))]
        for line in lines:
            cells = [f"{visible(cell):<{size}}" for cell, size in zip(line, widths, strict=True)]
            print_text("  ".join(cells).rstrip() + "\n")
    database.close()
