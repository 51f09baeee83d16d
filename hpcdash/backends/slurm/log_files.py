"""Paths of a Slurm job's output: resolved by scontrol, or the patterns of command line and script.

Resolves a pattern's fields from a job's details; reads no file and no script itself.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence

from hpcdash.backends.base import LogsPart
from hpcdash.backends.job_detail import JobDetail, LogFiles, OtherLog, Script
from hpcdash.backends.options import Option, last_value
from hpcdash.backends.output_patterns import (
    PathFacts,
    default_pattern,
    finish_shown,
    output_path,
    paths_as_shown,
    shown_is_doubtful,
)
from hpcdash.backends.queries import Native, Query, Row
from hpcdash.backends.rank_logs import rank_logs_query
from hpcdash.backends.slurm.clusters import ClusterPart
from hpcdash.backends.slurm.options import read_directives, read_submit_line
from hpcdash.domain import nodelist

_NULL = "(null)"
_INTERACTIVE = frozenset({"srun", "salloc"})
_INTERACTIVE_NOTE = "started by srun or salloc: the output went to that terminal"


def find_last_value(native: Native, key: str) -> str | None:
    """The last value of a key: scontrol prints the paths after every text a person may have
    chosen.
    """
    value = native.get(key)
    number = 2
    while (following := native.get(f"{key} {number}")) is not None:
        value = following
        number += 1
    return None if value in (None, "", _NULL) else value


def path_facts(row: Row, native: Native) -> PathFacts:
    """Return the values of a pattern's fields, from a job's row and its native record.

    The row is one of domain.schema.JOBS, the record an answer of scontrol or sacct.
    """
    array_id = row["array_id"]
    task = str(row["array_task"] or "")
    is_array = array_id is not None
    task = task if task.isdigit() else ""
    # The batch script, and with it the log, is the leader's of a heterogeneous job.
    leader, _, component = row["id"].partition("+")
    number = leader if component else native.get("JobId") or native.get("JobIDRaw") or ""
    nodes = native.get("BatchHost") or ("" if component not in ("", "0") else row["node_list"])
    try:
        node = next(iter(nodelist.expand(nodes or "")), "").partition(".")[0]
    except ValueError:
        node = ""
    # Tasks that wait share one record; each gets a number of its own when it starts.
    shares_record = is_array and (not task or not native.get("ArrayTaskId", task).isdigit())
    return PathFacts(
        job_number="" if shares_record else number,
        work_dir=row["work_dir"] or "",
        user=row["user"] or "",
        name=row["name"],
        node=node,
        array_id=array_id or "",
        task=task,
        is_array=is_array,
    )


def _shown_paths(native: Native) -> tuple[str | None, str | None]:
    """scontrol's paths of stdout and stderr.

    From 26.05 on an empty one of stderr is that of stdout.
    """
    stdout = find_last_value(native, "StdOut")
    return stdout, find_last_value(native, "StdErr") or stdout


def shown_files(row: Row, native: Native) -> tuple[str | None, str | None]:
    """Return the final paths of stdout and stderr that scontrol reports; None where it does not."""
    if "JobId" not in native:
        return None, None
    facts = path_facts(row, native)
    stdout, stderr = _shown_paths(native)
    return (
        finish_shown(stdout, facts) if stdout else None,
        finish_shown(stderr, facts) if stderr else None,
    )


def submitted_file(detail: JobDetail) -> str | None:
    """Return the file from which a job's script was submitted; None where it is unknown."""
    native = detail.native
    row = detail.row
    if "JobId" in native:
        # The script's own arguments follow it.
        command = (find_last_value(native, "Command") or "").partition(" ")[0]
        return command if command.startswith("/") and native.get("BatchFlag") != "0" else None
    given, rest = _submit_options(row, native, None)
    names = {one.name for one in given}
    if not rest or "wrap" in names or _is_interactive(native):
        return None
    if rest[0].startswith("/"):
        return rest[0]
    # Relative to where sbatch was called, which is the job's folder unless that was chosen.
    return None if "chdir" in names or not row["work_dir"] else f"{row['work_dir']}/{rest[0]}"


def _is_interactive(native: Native) -> bool:
    if "JobId" in native:
        return native.get("BatchFlag") == "0"
    return os.path.basename(native.get("SubmitLine", "").partition(" ")[0]) in _INTERACTIVE


def _files_shown(row: Row, native: Native, facts: PathFacts, script: Script | None) -> LogFiles:
    stdout, stderr = shown_files(row, native)
    notes: list[str] = []
    if script is not None:
        requested = read_directives(script.text).options
        patterns = [value for name in ("output", "error") if (value := last_value(requested, name))]
        shown_stdout, shown_stderr = _shown_paths(native)
        stdout = _settled(shown_stdout, stdout, patterns, facts, notes)
        stderr = _settled(shown_stderr, stderr, patterns, facts, notes)
    if (
        stdout is not None
        and facts.is_array
        and not facts.job_number
        and "%a" not in stdout
        and not facts.task
    ):
        notes.append("if the pattern has %j, each task writes to its own file, named at its start")
    return LogFiles(stdout, None if stderr == stdout else stderr, "; ".join(dict.fromkeys(notes)))


def _settled(
    shown: str | None, finished: str | None, patterns: list[str], facts: PathFacts, notes: list[str]
) -> str | None:
    """A path that may stand for several patterns, by the script's own where one of them is shown
    like it.
    """
    if shown is None or not shown_is_doubtful(shown, facts):
        return finished
    for pattern in patterns:
        by_release = paths_as_shown(pattern, facts)
        if shown in by_release:
            return output_path(pattern, facts, with_modulo=shown not in by_release[:-1])
    if "\\" in shown:
        notes.append(
            "a guess: Slurm does not expand a pattern with a backslash, but shows it expanded"
        )
        return output_path(shown, facts)
    return finished


def _past_log_files(row: Row, native: Native, facts: PathFacts, script: Script | None) -> LogFiles:
    on_line, _ = _submit_options(row, native, script)
    in_script = read_directives(script.text).options if script else ()
    output, output_from = _chosen("output", on_line, in_script)
    error, error_from = _chosen("error", on_line, in_script)
    stdout = output_path(output or default_pattern(facts), facts)
    stderr = output_path(error, facts) if error else None
    note = _note(native, script, {output_from, error_from if error else output_from})
    return LogFiles(stdout, None if stderr == stdout else stderr, note)


def _chosen(
    name: str, on_line: Sequence[Option], in_script: Sequence[Option]
) -> tuple[str | None, str]:
    for given, source in ((on_line, "line"), (in_script, "script")):
        if (value := last_value(given, name)) is not None:
            return value, source
    return None, "default"


def _note(native: Native, script: Script | None, sources: set[str]) -> str:
    parts = []
    if "line" in sources:
        parts.append("from the command line, which Slurm stores without quotes")
    if "script" in sources and script is not None:
        parts.append(f"from the #SBATCH lines of the script ({script.source})")
    if "default" in sources:
        silent = f", because the script ({script.source}) sets none" if script is not None else ""
        parts.append(f"Slurm's default name{silent}")
    note = ", ".join(parts)
    missing = [
        text
        for text, is_missing in (
            ("the script", script is None),
            ("the command line", not native.get("SubmitLine")),
        )
        if is_missing
    ]
    if missing and sources != {"line"}:
        return (
            f"{note}; {' and '.join(missing)}, which may set another path, "
            f"{'is' if len(missing) == 1 else 'are'} no longer available"
        )
    return note if sources == {"line"} else f"{note}; unless SBATCH_OUTPUT was set"


def _submit_options(
    row: Row, native: Native, script: Script | None
) -> tuple[Sequence[Option], Sequence[str]]:
    """Return the options of sbatch's command line, and the arguments from the script's name on."""
    line = read_submit_line(native.get("SubmitLine", ""), row, script)
    return (line.options, line.script) if line else ((), ())


class SlurmLogs(ClusterPart, LogsPart):
    """Logs of Slurm, by scontrol's paths or the patterns of the script."""

    def files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        detail = self.clusters.plain_detail(detail)
        row = detail.row
        native = detail.native
        if _is_interactive(native):
            return LogFiles(None, None, _INTERACTIVE_NOTE)
        facts = path_facts(row, native)
        if "JobId" in native:
            return _files_shown(row, native, facts, script)
        if reported := find_last_value(native, "StdOut"):
            error = find_last_value(native, "StdErr")
            stdout = output_path(reported, facts, with_modulo=True)
            stderr = output_path(error, facts, with_modulo=True) if error else None
            return LogFiles(stdout, None if stderr == stdout else stderr)
        return _past_log_files(row, native, facts, script)

    def needs_script(self, detail: JobDetail) -> bool:
        """True where scontrol's path may stand for several patterns, and for jobs that only the
        accounting knows.
        """
        detail = self.clusters.plain_detail(detail)
        native = detail.native
        row = detail.row
        if _is_interactive(native):
            return False
        if "JobId" in native:
            facts = path_facts(row, native)
            return any(path and shown_is_doubtful(path, facts) for path in _shown_paths(native))
        if find_last_value(native, "StdOut"):
            return False
        given, _ = _submit_options(row, native, None)
        return last_value(given, "output") is None or last_value(given, "error") is None

    def others(self, detail: JobDetail, files: LogFiles) -> Query[tuple[OtherLog, ...]] | None:
        return rank_logs_query(self.clusters.plain_detail(detail), files)
