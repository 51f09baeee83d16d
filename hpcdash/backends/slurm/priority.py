"""What a waiting Slurm job's priority is made of, from sprio (priority/multifactor). Knows no other job's."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.failures import require_success, unreadable
from hpcdash.backends.slurm.jobs import queue_id

# The points a factor gives, and which part that is of the most it can give. Source: sprio(1).
_FACTORS = (
    ("age", "%A", "%a"),
    ("association", "%B", "%b"),
    ("fair share", "%F", "%f"),
    ("job size", "%J", "%j"),
    ("partition", "%P", "%p"),
    ("QoS", "%Q", "%q"),
)
# The sum, what the site adds, what TRES give (words), and the nice value, which is taken off.
_REST = ("%Y", "%S", "%T", "%N")
_FORMAT = "|".join((*_REST, *(letter for _, points, part in _FACTORS for letter in (points, part))))
_NONE = ("", "(null)")
TOTAL = "priority"


def priority_query(job_id: str) -> Query[Mapping[str, str]]:
    """sprio for one job, or for the pending tasks of an array, which share theirs."""
    array_id = queue_id(job_id).partition("_")[0].partition("+")[0]
    return Query(slurm("sprio", "-h", "-j", array_id, "-o", _FORMAT), parse_priority, cap_bytes=TEXT_BYTES)


def parse_priority(answer: Answer) -> Mapping[str, str]:
    """Factor → its points, with the part of its most; {} for a job that takes no part in the contest for nodes.

    Where priorities are not multifactor sprio says so and there is nothing to tell. Factors that give nothing and can
    give nothing are left out.
    """
    said = (answer.stdout + answer.stderr).decode("utf-8", "replace")
    if "priority/multifactor" in said or "Unable to find jobs" in said:
        return {}
    require_success(answer)
    line = next((line for line in answer.stdout.decode("utf-8", "replace").splitlines() if line.strip()), "")
    if not line:
        return {}
    values = [value.strip() for value in line.split("|")]
    if len(values) != len(_REST) + 2 * len(_FACTORS):
        raise unreadable(answer, "priorities")
    total, site, tres, nice = values[: len(_REST)]
    words = {TOTAL: total}
    for (name, _, _), points, part in zip(_FACTORS, values[len(_REST) :: 2], values[len(_REST) + 1 :: 2], strict=True):
        if _number(points) or _number(part):
            words[name] = f"{points} ({_percent(part)} of its most)"
    if tres not in _NONE:
        words["resources"] = tres
    if _number(site):
        words["site"] = site
    if _number(nice):
        words["nice"] = f"{-_number(nice):.0f}, as it was asked for" if _number(nice) > 0 else f"+{-_number(nice):.0f}"
    return words


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _percent(part: str) -> str:
    percent = 100 * _number(part)
    return f"{percent:.0f} %" if percent >= 1 or not percent else "< 1 %"
