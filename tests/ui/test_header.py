"""The lines over the jobs: which gauges fit, what is counted, what is said of the scheduler
itself.
"""

from __future__ import annotations

from msgspec.structs import replace

from hpcdash.services.cluster.summary import QueueUse
from hpcdash.ui.cluster.header import header_content

GPU = QueueUse("gpu", "GPU", 30, 40, 4, 1, "", 2)
CPU = QueueUse("cpu", "CPU", None, 640, 0, 0, "closed", 0)
OWN = (("running", 3), ("pending", 12))


def test_a_gauge_has_what_is_used_of_all_and_the_nodes_that_are_down() -> None:
    [line] = header_content((GPU, CPU), OWN, 120).plain.splitlines()
    assert line.startswith("gpu ━━━━━━━")
    assert " 30/40 GPU ▼1   cpu (closed) 640 CPU " in line
    assert line.endswith("▸ 3 running  ◦ 12 pending")
    assert len(line) == 120


def test_a_closed_queue_called_closed_has_its_name_and_its_state_apart() -> None:
    [line] = header_content((replace(CPU, name="closed"),), OWN, 120).plain.splitlines()
    assert line.startswith("closed (closed) 640 CPU ")


def test_what_does_not_fit_is_counted() -> None:
    [line] = header_content((GPU, CPU, CPU), OWN, 70).plain.splitlines()
    assert "30/40" in line
    assert "+2 queues" in line


def test_a_queue_named_after_its_resource_has_no_unit() -> None:
    line = header_content((replace(GPU, name="TPU"),), (), 120).plain
    assert line.startswith("TPU ━")
    assert line.endswith(" 30/40 ▼1")


def test_a_scheduler_that_starts_nothing_is_said_first() -> None:
    note = "scheduling is off on this server: jobs do not start"
    content = header_content((GPU,), OWN, 160, note)
    assert content.plain.startswith(f"{note}   gpu ")
    assert any(span.style == "$text-warning" and span.start == 0 for span in content.spans)
