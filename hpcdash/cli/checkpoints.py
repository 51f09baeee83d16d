"""`hpcdash checkpoints`: the cost of saving for a training, as lines or JSON.

Queries no cluster, reads no file.
"""

from __future__ import annotations

from hpcdash.cli.terminal import print_json, print_notes
from hpcdash.domain.checkpoints import CheckpointPlan
from hpcdash.domain.units import HOUR, parse_duration
from hpcdash.errors import UsageError

EXAMPLE = "hpcdash checkpoints --days 90 --every 3h --save 40s --tb 2.3"


def run_checkpoints(
    *, days: float | None, every: str | None, save: str | None, tb: float | None, form: str
) -> None:
    """Print the plan's figures; `every` counts in hours and `save` in seconds where no unit is
    written.
    """
    if days is None or every is None or save is None:
        given = {"--days": days, "--every": every, "--save": save}
        missing = " and ".join(option for option, value in given.items() if value is None)
        raise UsageError(f"the estimate needs {missing}", EXAMPLE)
    plan = CheckpointPlan(days, _seconds("--every", every, HOUR), _seconds("--save", save, 1), tb)
    if not plan.saves:
        print_notes(
            f"--days {days:g} ends before the first save (--every {every}): nothing would be "
            "saved; save more often, or at the end"
        )
    if form == "json":
        answer = {
            "days": plan.days,
            "interval_seconds": plan.interval_seconds,
            "save_seconds": plan.save_seconds,
            "save_tb": plan.save_tb,
            "saves": plan.saves,
            "hours_lost": plan.hours_lost,
            "percent_lost": plan.percent_lost,
            "tb_per_day": plan.tb_per_day,
            "tb_in_all": plan.tb_in_all,
        }
        print_json(answer)
        return
    for label, value, unit in _lines(plan):
        print(f"{label:<13} {value:>10} {unit}".rstrip())


def _lines(plan: CheckpointPlan) -> list[tuple[str, str, str]]:
    lines = [
        ("saves", f"{plan.saves}", ""),
        ("time lost", f"{plan.hours_lost:.2f}", "h"),
        ("share of time", f"{plan.percent_lost:.2f}", "%"),
    ]
    if plan.tb_per_day is not None and plan.tb_in_all is not None:
        lines.append(("written daily", f"{plan.tb_per_day:.2f}", "TB"))
        lines.append(("written total", f"{plan.tb_in_all:.2f}", "TB"))
    return lines


def _seconds(option: str, text: str, bare_unit_seconds: int) -> float:
    try:
        seconds = parse_duration(text, bare_unit_seconds=bare_unit_seconds)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if seconds is None:
        raise UsageError(
            f"{option}: {text!r} is not a finite duration", "Use a duration such as 3h or 40s."
        )
    return float(seconds)
