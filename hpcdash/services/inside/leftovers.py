"""Leftovers: processes of the user's finished jobs on the nodes of a running job."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from msgspec import Struct

from hpcdash.backends.inside import InsideCommand, NodeOutput
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.shell_files import shell_text

# Maximum number of processes to end at once, for the limit of a command's arguments.
MAX_ENDED = 400
_SCRIPT = "export LC_ALL=C\nexec 2>/dev/null\n" + shell_text(
    "backends/job_processes.sh", "services/inside/leftovers.sh"
)
_LEFT = re.compile(r"left by job (\d+), which has ended: (\d+/\d+): (.*)")


class Leftover(Struct, frozen=True):
    """Process of a finished job on a node; `process` is its PID and start tick: `4711/88212`."""

    node: str
    process: str
    job: str
    command: str


LIST_LEFTOVERS = InsideCommand(("sh", "-c", _SCRIPT, "leftovers", "list", ""))


async def list_command(store: ClusterStore) -> InsideCommand:
    """Build the command that lists leftovers.

    Queries which of the user's jobs are unfinished; raises the errors of that query.
    """
    return InsideCommand(("sh", "-c", _SCRIPT, "leftovers", "list", await _numbers(store)))


async def end_command(store: ClusterStore, chosen: Sequence[Leftover]) -> InsideCommand:
    """Build the command that ends leftover processes, unless they have changed.

    It sends TERM, and KILL five seconds later.
    """
    chosen = chosen[:MAX_ENDED]
    processes: list[str] = []
    for one in chosen:
        processes += [one.node, one.process]
    numbers = await _numbers(store)
    return InsideCommand(
        ("sh", "-c", _SCRIPT, "leftovers", "end", numbers, *processes),
        title=f"kill {len(chosen)} leftover processes",
    )


async def _numbers(store: ClusterStore) -> str:
    """Fetch the numbers of the user's unfinished jobs and arrays."""
    numbers = set()
    for row in (await store.fetch(Kind.MINE)).table.select(["id", "state"]).to_pylist():
        number = re.match(r"\d+", str(row["id"]))
        if number is not None and row["state"] not in ENDED:
            numbers.add(number[0])
    return " ".join(sorted(numbers))


def read_leftovers(outputs: Collection[NodeOutput]) -> tuple[Leftover, ...]:
    """Parse the lists of leftovers from each node that answered."""
    found = []
    for output in outputs:
        for line in output.output.decode("utf-8", "replace").split("\n"):
            if output.status == 0 and (match := _LEFT.fullmatch(line)):
                found.append(Leftover(output.node, match[2], match[1], match[3]))
    return tuple(found)
