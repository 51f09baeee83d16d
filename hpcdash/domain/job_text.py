"""Text on jobs: their states, how they ended, exit codes and signals."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_age, format_duration, format_memory, format_span

Pair = tuple[str, str]
_SHORT: dict[str, str] = {
    JobState.OUT_OF_MEMORY: "out of mem",
    JobState.NODE_FAILED: "node fail",
    JobState.TIMEOUT: "timed out",
}
# A shell adds this to the number of the signal that ended its command.
_SHELL_SIGNAL = 128
# Slurm's own, where the signal of a job is expected. Source: slurm_errno.h, and what its 22.05
# prints.
_OUTPUT_NOT_WRITABLE = 53
_OUT_OF_MEMORY = 125
_CODES = {
    2: "wrong usage, or a shell syntax error",
    126: "a command could not be executed: is it a program, and executable?",
    127: "a command was not found: a module not loaded, an environment not active, a typo?",
}
_STATES: dict[str, str] = {
    JobState.TIMEOUT: "hit its time limit",
    JobState.OUT_OF_MEMORY: "used more memory than it requested",
    JobState.PREEMPTED: "preempted by a job with higher priority",
    JobState.NODE_FAILED: "one of its nodes failed",
    JobState.CANCELLED: "cancelled",
    JobState.GONE: "not found in the queue or in accounting",
}


def state_word(state: str) -> str:
    """Format a state in at most ten letters: `out_of_memory` is `out of mem`."""
    return _SHORT.get(state) or state.replace("_", " ")


def format_requested(row: Mapping[str, Any]) -> str:
    """Format the resources that a row of domain.schema.JOBS requested: `16 GPUs on 2 nodes`."""
    nodes = row["nodes"] or 0
    gpus = row["gpus"] or 0
    cpus = row["cpus"] or 0
    parts = [counted(gpus, "GPU") if gpus else counted(cpus, "CPU")] if gpus or cpus else []
    parts += [counted(nodes, "node")] if nodes > 1 or not parts else []
    return " on ".join(parts)


def format_clock_time(at: float, zone: tzinfo | None) -> str:
    """Format an instant in epoch seconds as `10:22:05`."""
    return f"{datetime.fromtimestamp(at, UTC).astimezone(zone):%H:%M:%S}"


def format_end(row: Mapping[str, Any]) -> str:
    """Format 'signal 9', 'exit 3', 'over 16G', or the scheduler's reason; '' if the state is
    enough.
    """
    if row["state"] == JobState.OUT_OF_MEMORY:
        is_one_limit = row["memory_bytes"] and row["nodes"] == 1
        return f"over {format_memory(row['memory_bytes'])}" if is_one_limit else ""
    if row["state"] == JobState.TIMEOUT:
        return ""
    if row["exit_signal"]:
        return f"signal {row['exit_signal']}"
    if row["exit_code"]:
        return f"exit {row['exit_code']}"
    return str(row["reason"]) if row["reason"] else ""


def format_exit_status(row: Mapping[str, Any]) -> str:
    """Format the exit code of a job, or the signal that ended it; '' if both are unknown."""
    if row["exit_signal"]:
        return f"signal {row['exit_signal']}"
    return "" if row["exit_code"] is None else str(row["exit_code"])


def format_where(row: Mapping[str, Any]) -> str:
    """Format the nodes of a job, or in parentheses the reason; both if its node is down."""
    nodes = row["node_list"]
    reason = row["reason"]
    if nodes and row["state"] != JobState.RUNNING:
        return str(nodes)
    return " ".join(filter(None, (nodes, reason and f"({reason})")))


def queue_note(row: Mapping[str, Any], now: float) -> str:
    """Return the notes on a queue of domain.schema.QUEUES and its server, '' for none.

    `now` is an epoch second. Hostile.
    """
    note = str(row["_note"] or "")
    opens_at = row["_opens_at"]
    if opens_at is not None and opens_at.timestamp() > now:
        note = f"{note}, in {format_age(opens_at.timestamp() - now)}"
    return "; ".join(filter(None, (note, row["_server_note"])))


def field_groups(
    row: Mapping[str, Any],
    now: datetime,
    hint: str,
    *,
    estimator: str = "the scheduler",
    sign: str = "",
    zone: tzinfo | None = None,
) -> list[tuple[str, list[Pair]]]:
    """Return the known fields of a job in groups of (label, text); unknown fields are left out.

    `hint` explains the reason, `estimator` is who estimates when the job starts; times are in
    `zone` (None: this machine's). The text is still hostile.
    """
    state = str(row["state"])

    def when(column: str) -> str:
        value = row[column]
        if value is None:
            return ""
        seconds = (now - value).total_seconds()
        span = format_span(abs(seconds))
        relative = f"{span} ago" if seconds >= 0 else f"in {span}"
        return f"{value.astimezone(zone):%Y-%m-%d %H:%M:%S}  ({relative})"

    def known(column: str) -> str:
        return "" if row[column] is None else str(row[column])

    def joined(*columns: str) -> str:
        return " / ".join(str(row[column]) for column in columns if row[column])

    end = format_exit(state, row["exit_code"], row["exit_signal"])
    native = known("native_state")
    message = "" if native.lower() in ("", state) else f"  ({native})"
    array = f"task {row['array_task']} of array {row['array_id']}" if row["array_id"] else ""
    elapsed = row["elapsed_seconds"]
    limit = row["limit_seconds"]
    is_waiting = state in WAITING
    has_run = elapsed is not None and bool(elapsed or not is_waiting)
    run = format_duration(elapsed) if has_run else ""
    if run and limit:
        run += f" of {format_duration(limit)}  ({100 * elapsed // limit}%)"
    end_label = "ended" if state in ENDED else "ends by"
    estimate = when("_expected_start_at") if is_waiting else ""
    groups = {
        "job": {
            "id": known("id"),
            "name": known("name"),
            "array": array,
            "state": f"{sign} {state_word(state)}{message}".strip(),
            "reason": known("reason"),
            "explanation": hint,
            "ended with": "" if end in (hint, state_word(state)) else end,
            "owner": joined("user", "account"),
            "queue": joined("queue", "qos"),
            "priority": known("priority"),
            "comment": known("comment"),
        },
        "time": {
            "submitted": when("submitted_at"),
            "eligible": when("eligible_at"),
            "may start": f"{estimate}; {estimator}'s estimate" if estimate else "",
            "started": when("started_at"),
            # Of a pending array the tasks that ran have such times.
            end_label: "" if is_waiting else when("ends_at"),
            "ran": run,
            "limit": format_duration(limit) if limit and not run else "",
        },
        "resources": {
            "nodes": f"{known('nodes')} {known('node_list')}".strip(),
            "CPUs": known("cpus"),
            "GPUs": known("gpus") if row["gpus"] else "",
            "memory": "" if row["memory_bytes"] is None else format_memory(row["memory_bytes"]),
        },
        "files": {
            "directory": known("work_dir"),
            "stdout": known("stdout_path"),
            "stderr": known("stderr_path"),
        },
    }
    known_groups = []
    for title, fields in groups.items():
        pairs = [pair for pair in fields.items() if pair[1]]
        if pairs:
            known_groups.append((title, pairs))
    return known_groups


_SIGNALS: dict[int, str] = {
    signal.SIGHUP: "the terminal or session closed",
    signal.SIGINT: "interrupted",
    signal.SIGQUIT: "received SIGQUIT",
    signal.SIGILL: "illegal instruction: built for another CPU type?",
    signal.SIGTRAP: "stopped by a trap",
    signal.SIGABRT: "aborted: a failed assertion or an uncaught error",
    signal.SIGBUS: "bus error: a mapped file shrank, or the disk is full",
    signal.SIGFPE: "arithmetic error, such as a division by zero",
    signal.SIGKILL: "killed outright, often for using too much memory",
    signal.SIGUSR1: "unhandled signal",
    signal.SIGSEGV: "segmentation fault (invalid memory access)",
    signal.SIGUSR2: "unhandled signal",
    signal.SIGPIPE: "wrote to a closed pipe",
    signal.SIGALRM: "the alarm timer expired",
    signal.SIGTERM: "terminated on request",
    signal.SIGXCPU: "used up its CPU time limit",
    signal.SIGXFSZ: "exceeded the file size limit",
}


def signal_name(number: int) -> str:
    """Return 'KILL' for 9; '' for a number that is no signal."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return ""


def format_exit(state: str, exit_code: int | None, exit_signal: int | None) -> str:
    """Explain a state of domain.states with its exit code and signal.

    '' for a job that is unfinished or completed well. For example `exit 137: ended by signal 9
    (KILL): killed outright, often for using too much memory`.
    """
    if state not in ENDED:
        return ""
    if state in _STATES and not (state == JobState.CANCELLED and exit_code):
        return _STATES[state]
    if exit_signal:
        return _format_signal(exit_signal)
    if not exit_code:
        return (
            "" if state == JobState.COMPLETED or exit_code is None else "exit 0, but the job failed"
        )
    number = exit_code - _SHELL_SIGNAL
    if number > 0 and signal_name(number):
        return f"exit {exit_code}: a command was killed by {_format_signal(number)}"
    text = _CODES.get(exit_code)
    return f"exit {exit_code}: {text}" if text else f"exit {exit_code}"


def _format_signal(number: int) -> str:
    if number == _OUTPUT_NOT_WRITABLE:
        return (
            "the output could not be written: check that the folder exists, is writable and "
            "within quota"
        )
    if number == _OUT_OF_MEMORY:
        return "used more memory than it requested"
    name = signal_name(number)
    meaning = _SIGNALS.get(number, "") if name else ""
    return f"signal {number}" + (f" ({name})" if name else "") + (f": {meaning}" if meaning else "")
