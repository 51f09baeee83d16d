"""Processes that a person's ended jobs left on the nodes of a running one: found, shown, ended
where that is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from msgspec import Struct

from hpcdash.backends.inside import InsideCommand, NodeOutput
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.shell_files import shell_text

# So many are ended at once; the arguments of a command have a limit.
MAX_ENDED = 400
_SCRIPT = "export LC_ALL=C\nexec 2>/dev/null\n" + shell_text(
    "backends/job_processes.sh", "services/inside/leftovers.sh"
)
_LEFT = re.compile(r"left by job (\d+), which has ended: (\d+/\d+): (.*)")


class Leftover(Struct, frozen=True):
    """A process that `job` had started on a node: its number and its start in ticks of that
    machine, `4711/88212`.
    """

    node: str
    process: str
    job: str
    command: str


LIST_LEFTOVERS = InsideCommand(("sh", "-c", _SCRIPT, "leftovers", "list", ""))


async def list_command(store: ClusterStore) -> InsideCommand:
    """The command that lists them.

    Queries which of the user's jobs are unfinished; raises if the cluster cannot tell.
    """
    return InsideCommand(("sh", "-c", _SCRIPT, "leftovers", "list", await _numbers(store)))


async def end_command(store: ClusterStore, chosen: Sequence[Leftover]) -> InsideCommand:
    """Build the command that ends leftover processes if they are unchanged.

    It sends TERM, and KILL five seconds after.
    """
    where = [word for one in chosen[:MAX_ENDED] for word in (one.node, one.process)]
    title = f"end {len(where) // 2} left processes"
    return InsideCommand(
        ("sh", "-c", _SCRIPT, "leftovers", "end", await _numbers(store), *where), title=title
    )


async def _numbers(store: ClusterStore) -> str:
    """The numbers of jobs, those of arrays and of jobs with several parts among them."""
    table = (await store.fetch(Kind.MINE)).table.select(["id", "state"])
    living = (row["id"] for row in table.to_pylist() if row["state"] not in ENDED)
    return " ".join(sorted({number[0] for one in living if (number := re.match(r"\d+", str(one)))}))


def read_leftovers(outputs: Collection[NodeOutput]) -> tuple[Leftover, ...]:
    """Parse the lists of leftovers from each node that answered."""
    found = []
    for output in outputs:
        for line in output.output.decode("utf-8", "replace").split("\n"):
            if output.status == 0 and (match := _LEFT.fullmatch(line)):
                found.append(Leftover(output.node, match[2], match[1], match[3]))
    return tuple(found)
