"""An embedded queue with many tasks: nothing in it may cost more for each of them than it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab
from tests.support.waiting import wait_until


def _memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_ten_thousand_waiting_tasks_are_handed_in_listed_and_cancelled(queue: QueueLab) -> None:
    number = queue.submit("true", "--array=1-10000", "--hold")
    after = queue.submit("true", f"--dependency=afterany:{number}")
    assert len(queue.rows("jobs")) == 10001
    assert queue.act("cancel", number)[0]["done"]
    assert queue.ended(after).state == "completed"


@pytest.mark.parametrize("tasks", [100, pytest.param(2000, marks=pytest.mark.long)])
def test_a_supervisor_does_not_grow_with_the_tasks_it_ran(queue: QueueLab, tasks: int) -> None:
    queue.set_slots(cpus=2, gpus=0)
    number = queue.submit("exit 0", f"--array=1-{tasks}", "--output=none")
    wait_until("the first fifty", lambda: queue.store.pending_count() < tasks - 50)
    before = _memory_bytes(queue.supervisor)
    wait_until("all but the last", lambda: queue.store.pending_count() == 0, tasks)
    queue.ended(f"{number}_{tasks}")
    wait_until("the last", lambda: not queue.store.has_work())
    assert {job.state for job in queue.store.jobs()} == {"completed"}
    assert _memory_bytes(queue.supervisor) - before < 3 << 20
