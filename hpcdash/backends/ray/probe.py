"""Detection of a Ray dashboard, and its version."""

from __future__ import annotations

import re

from hpcdash.backends.base import Probe, ProbePart
from hpcdash.backends.queries import PROBE_BYTES, Answer, Query, require_whole
from hpcdash.backends.ray.responses import decode, require_success, table, text, unreadable
from hpcdash.errors import SchedulerRefused

_OLDEST = (2, 9)


def _parse_probe(answer: Answer) -> Probe:
    require_whole(answer)
    [response] = require_success(answer)
    reported = table(decode(answer, response))
    version = text(reported.get("ray_version"))
    if version is None:
        raise unreadable(answer, "this is not a Ray dashboard")
    numbers = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST:
        raise SchedulerRefused(
            f"Ray {version} is too old", "hpcdash needs Ray 2.9 or later.", argv=answer.argv
        )
    return Probe(
        # Ray has no accounts: all jobs are everyone's.
        user="",
        version=f"Ray {version}",
        cluster=text(reported.get("session_name")) or "",
        clock_epoch_seconds=response.epoch_seconds,
        has_accounting=True,
        controller_answers=True,
    )


class RayProbe(ProbePart):
    """Detects Ray by its dashboard."""

    needs_answer = True

    def query(self) -> Query[Probe]:
        return Query(("GET", "/api/version"), _parse_probe, cap_bytes=PROBE_BYTES)
