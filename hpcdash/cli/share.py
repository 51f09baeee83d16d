"""hpcdash share: a pool of nodes in slices of time, by priority and quota."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcdash.cli.terminal import print_json, print_text
from hpcdash.domain.share import EVERYONE, LEVELS, Priority, parse_priority
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError


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
