"""Arrays of tasks, on the embedded queue and on Slurm alike: their ids, some of their tasks, how
many run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.behaviour.clusters import ENDED, Cluster

# Tells how many of its array run, itself included, and goes on when it may.
COUNTING = """
touch "on.$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID"
set -- on.$SLURM_ARRAY_JOB_ID.*
echo $#
until [ -e "go.$SLURM_ARRAY_JOB_ID" ]; do sleep 0.05; done
rm "on.$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID"
"""


async def states_once(
    cluster: Cluster, array: str, holds: Callable[[dict[int, str]], object]
) -> dict[int, str]:
    """The states of an array's tasks once something holds of them."""
    told: dict[int, str] = {}

    async def look() -> dict[int, str] | None:
        told.clear()
        told.update(await cluster.task_states(array))
        return dict(told) if holds(told) else None

    found: dict[int, str] = await cluster.until(
        look, lambda: f"the tasks of {array}; they are {told}"
    )
    return found


async def wait_for_files(cluster: Cluster, pattern: str, wanted: int) -> None:
    async def look() -> bool | None:
        return len(list(cluster.work.glob(pattern))) == wanted or None

    await cluster.until(look, lambda: f"{wanted} files {pattern}")


async def test_a_task_has_the_arrays_number_and_its_own(cluster: Cluster) -> None:
    array = await cluster.submit(
        "echo task $SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID", array="0,2-3", name="sweep"
    )
    rows = await cluster.all_ended(f"{array}_0", f"{array}_2", f"{array}_3")
    names = ("id", "array_id", "array_task", "name", "state", "exit_code")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (f"{array}_0", array, "0", "sweep", "completed", 0),
        (f"{array}_2", array, "2", "sweep", "failed", 2),
        (f"{array}_3", array, "3", "sweep", "failed", 3),
    ]
    place = await cluster.place(f"{array}_2")
    assert place.files.stdout == f"{cluster.work}/slurm-{array}_2.out"
    assert await cluster.log(f"{array}_2") == "task 2\n"


async def test_no_more_tasks_run_at_once_than_the_throttle_lets(cluster: Cluster) -> None:
    array = await cluster.submit(COUNTING, "-o", "counted.%A.%a", array="1-4%2")
    states = await states_once(
        cluster, array, lambda told: list(told.values()).count("running") == 2
    )
    assert states == {1: "running", 2: "running", 3: "pending", 4: "pending"}
    waiting = (await cluster.tasks(array))[4]
    assert (waiting["array_id"], waiting["reason"]) == (array, "JobArrayTaskLimit")
    await wait_for_files(cluster, f"on.{array}.*", 2)
    await cluster.do("alter", array, throttle="3")
    states = await states_once(
        cluster, array, lambda told: list(told.values()).count("running") == 3
    )
    assert states == {1: "running", 2: "running", 3: "running", 4: "pending"}
    await wait_for_files(cluster, f"on.{array}.*", 3)
    (cluster.work / f"go.{array}").touch()
    states = await states_once(cluster, array, lambda told: set(told.values()) <= ENDED)
    assert states == dict.fromkeys(range(1, 5), "completed")
    counts = [int((cluster.work / f"counted.{array}.{task}").read_text()) for task in range(1, 5)]
    assert (max(counts[:2]), counts[2]) == (2, 3)
    assert counts[3] <= 3


async def test_some_tasks_are_cancelled_and_the_others_are_not(cluster: Cluster) -> None:
    held, array = await asyncio.gather(
        cluster.submit("true", array="0-9", held=True),
        cluster.submit("until [ -e go.$SLURM_ARRAY_JOB_ID ]; do sleep 0.05; done", array="1-4"),
    )
    await cluster.do("cancel", f"{held}_[3-5]", f"{held}_8")
    states = await cluster.task_states(held)
    assert {task for task, state in states.items() if state == "held"} == {0, 1, 2, 6, 7, 9}
    assert {task for task, state in states.items() if state == "cancelled"} <= {3, 4, 5, 8}
    await cluster.do("cancel", held)
    await states_once(cluster, held, lambda told: set(told.values()) == {"cancelled"})
    await states_once(cluster, array, lambda told: set(told.values()) == {"running"})
    await cluster.do("cancel", f"{array}_[2-3]")
    (cluster.work / f"go.{array}").touch()
    states = await states_once(cluster, array, lambda told: set(told.values()) <= ENDED)
    assert states == {1: "completed", 2: "cancelled", 3: "cancelled", 4: "completed"}


async def test_some_tasks_are_held_and_others_run(cluster: Cluster) -> None:
    first = await cluster.submit("true", held=True)
    array, held = await asyncio.gather(
        cluster.submit("true", array="0-5", after=(first,)),
        cluster.submit("true", array="0-3", held=True),
    )
    await cluster.do("hold", f"{array}_[3-4]")
    await cluster.do("release", first, f"{held}_[1-2]")
    states = await states_once(
        cluster, array, lambda told: list(told.values()).count("completed") == 4
    )
    assert states == {
        0: "completed",
        1: "completed",
        2: "completed",
        3: "held",
        4: "held",
        5: "completed",
    }
    states = await states_once(
        cluster, held, lambda told: list(told.values()).count("completed") == 2
    )
    assert states == {0: "held", 1: "completed", 2: "completed", 3: "held"}
    await cluster.do("release", f"{array}_3", f"{array}_4")
    await states_once(cluster, array, lambda told: set(told.values()) == {"completed"})
    await cluster.do("alter", f"{held}_[3]", time="10")
    assert {task: row["limit_seconds"] == 600 for task, row in (await cluster.tasks(held)).items()}[
        3
    ]
    await cluster.do("cancel", held)
