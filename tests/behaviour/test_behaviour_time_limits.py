"""What becomes of a job that runs out of its time, on the embedded queue and on Slurm alike.

Looked at last.
"""

from __future__ import annotations

from tests.behaviour.clusters import ENDED, Cluster

# Slurm looks twice a minute, and gives five seconds between TERM and KILL.


async def test_a_job_over_its_time_gets_its_early_signal_and_is_ended(cluster: Cluster) -> None:
    row = await cluster.wait(cluster.first_job, ENDED)
    assert (row["state"], row["reason"]) == ("timeout", "TimeLimit")
    log = (await cluster.log(cluster.first_job)).splitlines()
    assert [line for line in log if line in ("up", "USR1", "TERM")] == ["up", "USR1", "TERM"]
    assert (row["exit_code"], row["exit_signal"]) == (5, 0)
