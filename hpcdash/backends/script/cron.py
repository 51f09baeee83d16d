"""The text of a job that stands in for cron: it submits itself again, then runs every script of a
folder. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from msgspec import Struct

from hpcdash.domain.units import DAY, HOUR, MINUTE
from hpcdash.errors import UsageError
from hpcdash.shell_files import shell_text

LIMIT_SECONDS = 30 * MINUTE
_NAMED = {HOUR: "hourly", DAY: "daily", 7 * DAY: "weekly"}
_INTERVALS = {"hourly": "1h", "daily": "1d", "weekly": "7d"}
_LABEL = re.compile(r"hourly|daily|weekly|[1-9][0-9]{0,5}[smhd]")


class CronJob(Struct, frozen=True):
    """A job that comes again every `every_seconds`, and its places below `folder`, an absolute path
    on the cluster.

    `options` are the scheduler's, a directive each; `program` is the argv before the embedded
    queue's commands.
    """

    every_seconds: int
    folder: str
    options: tuple[str, ...] = ()
    program: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """hourly, daily, weekly, or the interval: 15m, 90s."""
        return interval_label(self.every_seconds)

    @property
    def name(self) -> str:
        """Name of the job; at most 15 letters, the limit of some PBS versions."""
        return job_name(self.label)

    @property
    def script_path(self) -> str:
        """The job's own script: moved away it is taken out."""
        return f"{self.folder}/scheduler/{self.name}.sh"

    @property
    def scripts_folder(self) -> str:
        """Folder of the scripts that it runs."""
        return f"{self.folder}/cron.{self.label}"

    @property
    def output_folder(self) -> str:
        return f"{self.folder}/outputs/{self.label}"


def parse_interval(label: str) -> str:
    """A label as `--every` takes it: 1h of hourly, 15m as it is."""
    return _INTERVALS.get(label, label)


def interval_label(every_seconds: int) -> str:
    """The shortest way to write an interval, that is also a folder's name."""
    if named := _NAMED.get(every_seconds):
        return named
    for unit, letter in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if every_seconds % unit == 0:
            return f"{every_seconds // unit}{letter}"
    return f"{every_seconds}s"


def job_name(label: str) -> str:
    return f"hpcdash-{label}"


def label_in(name: str) -> str | None:
    """The label of a job's or script's name; None for one of another kind."""
    label = name.removesuffix(".sh").removeprefix("hpcdash-")
    return label if name.startswith("hpcdash-") and _LABEL.fullmatch(label) else None


def cron_script(job: CronJob, directives: Iterable[str], functions: str) -> str:
    """Return the script; raises UsageError for what no script can hold.

    `functions` is shell that defines `waiting`, which prints the IDs of the job's pending
    successors, `submit_again`, which submits it for `$every` seconds from now, `hand_in FILE`,
    which submits a script, and `elder`, which succeeds where the job before still runs.
    """
    if not job.folder.startswith("/"):
        raise UsageError(
            f"{job.folder!r} is not an absolute path", "A job may start in any folder."
        )
    for word in (job.folder, *job.options, *job.program):
        if not word.isprintable():
            raise UsageError(f"{word!r} contains unprintable characters", "Choose another one.")
    if re.search(r"[\s%\\'\"]", job.folder):
        raise UsageError(
            f"{job.folder!r}: schedulers do not accept blanks, quotes, % or \\ in an output's path",
            "Choose another.",
        )
    head = "\n".join(("#!/bin/sh", *directives))
    values = {
        "self": job.script_path,
        "scripts": job.scripts_folder,
        "outputs": job.output_folder,
        "name": job.name,
        "every": str(job.every_seconds),
    }
    assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    return f"{head}\n{_COMMENT}{assigned}\n{functions}{shell_text('backends/script/cron.sh')}"


_COMMENT = """
# Resubmits itself, then runs every script in a folder. To stop it, move this file away.
"""


def watch_script(argv: tuple[str, ...], variables: Mapping[str, str]) -> str:
    """A script that runs one round of the watchdogs; `variables` are set for it."""
    text = " ".join(map(shlex.quote, argv))
    settings = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())
    )
    return f"#!/bin/sh\n{settings}exec {text}\n"
