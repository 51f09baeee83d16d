"""Generated batch scripts, by the scheduler they are for."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from hpcdash.backends.pbs import lint as pbs_lint
from hpcdash.backends.pbs import script as pbs_script
from hpcdash.backends.script.body import BatchScript, Place
from hpcdash.backends.slurm import lint as slurm_lint
from hpcdash.backends.slurm import script as slurm_script
from hpcdash.domain.demand import Demand, LintFinding
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import Request


class Scheduler(StrEnum):
    SLURM = "slurm"
    PBS = "pbs"


def batch_script(scheduler: Scheduler, request: Request, place: Place, **more: Any) -> BatchScript:
    writer = slurm_script if scheduler is Scheduler.SLURM else pbs_script
    return writer.batch_script(request, place, **more)


def lint_script(
    script: bytes, scheduler: str, offers: Offers, over: tuple[str, ...] = ()
) -> tuple[LintFinding, ...]:
    return (slurm_lint if scheduler == "slurm" else pbs_lint).lint_script(script, offers, over)


def script_demand(script: bytes, scheduler: str, over: tuple[str, ...] = ()) -> Demand:
    return (slurm_lint if scheduler == "slurm" else pbs_lint).script_demand(script, over)
