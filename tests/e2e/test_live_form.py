"""The form in a terminal, on a real Slurm over a real sshd: what is typed is asked about, submitted, and runs."""

from __future__ import annotations

from tests.e2e.program import Program
from tests.e2e.screen import dashboard
from tests.support.slurm import SlurmLab


async def test_a_person_types_a_job_sees_when_it_would_start_and_submits_it(
    over_ssh: Program, slurm_lab: SlurmLab
) -> None:
    async with dashboard(over_ssh) as screen:
        await screen.until(lambda text: f"{slurm_lab.alice}@lab-alice" in text and "connected" in text)
        screen.type("n")
        await screen.until("what it gets")
        screen.type("typed in a form\thostname\t\t\tmain\t1\t\tcpu\t\t\t\t30")
        await screen.until("has no unit")
        screen.type("m")
        await screen.until("1 CPU for 30 min")
        await screen.until("the scheduler's own estimate")
        screen.type("\x0a")
        await screen.until("what runs, 2 commands")
        screen.type("y")
        await screen.until(f"its logs will be in /home/{slurm_lab.alice}/hpcdash/launches/typedinaform-")
        await screen.until(
            lambda text: any("typedinaform" in line and "completed" in line for line in text.splitlines()), 60
        )
        screen.type("\x11")
        assert b"Traceback" not in screen.raw
