"""Jobs in words: their states, how they ended, and a whole job in groups for reading."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from hpcdash.domain.exits import exit_words
from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.domain.units import format_age, format_duration, format_memory

Pair = tuple[str, str]
_SHORT: dict[str, str] = {
    JobState.OUT_OF_MEMORY: "out of mem",
    JobState.NODE_FAILED: "node fail",
    JobState.TIMEOUT: "timed out",
}


def state_word(state: str) -> str:
    """A state in at most ten letters: `out_of_memory` is `out of mem`."""
    return _SHORT.get(state) or state.replace("_", " ")


def clock_words(at: float, zone: tzinfo | None) -> str:
    """`10:22:05` of an instant in epoch seconds."""
    return f"{datetime.fromtimestamp(at, UTC).astimezone(zone):%H:%M:%S}"


def ended_words(row: Mapping[str, Any]) -> str:
    """'signal 9', 'exit 3', or the scheduler's reason; '' where the state says it all."""
    if row["exit_signal"]:
        return f"signal {row['exit_signal']}"
    if row["exit_code"]:
        return f"exit {row['exit_code']}"
    return str(row["reason"]) if row["reason"] else ""


def queue_note(row: Mapping[str, Any], now: float) -> str:
    """What else becomes of a job in a queue of domain.schema.QUEUES, at an epoch second; '' for nothing. Hostile."""
    note, opens_at = str(row["_note"] or ""), row["_opens_at"]
    if opens_at is not None and opens_at.timestamp() > now:
        note = f"{note}, in {format_age(opens_at.timestamp() - now)}"
    return "; ".join(filter(None, (note, row["_server_note"])))


def grouped(
    row: Mapping[str, Any], now: datetime, hint: str, *, sign: str = "", zone: tzinfo | None = None
) -> list[tuple[str, list[Pair]]]:
    """What the schema knows of a job, in groups of (label, words); what is unknown is left out.

    `hint` is the reason in plain words; times are in `zone` (None: this machine's). The words are hostile still.
    """
    state = str(row["state"])

    def when(value: datetime | None) -> str:
        if value is None:
            return ""
        seconds = (now - value).total_seconds()
        relative = f"{format_duration(abs(seconds))} {'ago' if seconds >= 0 else 'from now'}"
        return f"{value.astimezone(zone):%Y-%m-%d %H:%M:%S}  ({relative})"

    def known(value: object) -> str:
        return "" if value is None else str(value)

    def joined(*parts: object) -> str:
        return " / ".join(str(part) for part in parts if part)

    native = known(row["native_state"])
    end = exit_words(state, row["exit_code"], row["exit_signal"])
    said = "" if native.lower() in ("", state) else f"  ({native})"
    elapsed, limit = row["elapsed_seconds"], row["limit_seconds"]
    run = format_duration(elapsed) if elapsed is not None and (elapsed or state not in WAITING) else ""
    if run and limit:
        run += f" of {format_duration(limit)}  ({100 * elapsed // limit} %)"
    groups: list[tuple[str, list[Pair]]] = [
        (
            "job",
            [
                ("id", known(row["id"])),
                ("name", known(row["name"])),
                ("array", f"task {row['array_task']} of array {row['array_id']}" if row["array_id"] else ""),
                ("state", f"{sign} {state_word(state)}{said}".strip()),
                ("reason", known(row["reason"])),
                ("that is", hint),
                ("ended with", "" if end in (hint, state_word(state)) else end),
                ("owner", joined(row["user"], row["account"])),
                ("queue", joined(row["queue"], row["qos"])),
                ("priority", known(row["priority"])),
                ("comment", known(row["comment"])),
            ],
        ),
        (
            "time",
            [
                ("submitted", when(row["submitted_at"])),
                ("eligible", when(row["eligible_at"])),
                ("may start", when(row["_expected_start_at"]) if state in WAITING else ""),
                ("started", when(row["started_at"])),
                # Of an array that waits the tasks that ran have such times.
                ("ended" if state in ENDED else "ends by", "" if state in WAITING else when(row["ends_at"])),
                ("ran", run),
                ("limit", format_duration(limit) if limit and not run else ""),
            ],
        ),
        (
            "resources",
            [
                ("nodes", " ".join(part for part in (known(row["nodes"]), row["node_list"]) if part)),
                ("CPUs", known(row["cpus"])),
                ("GPUs", known(row["gpus"] or None)),
                ("memory", "" if row["memory_bytes"] is None else format_memory(row["memory_bytes"])),
            ],
        ),
        (
            "files",
            [
                ("directory", known(row["work_dir"])),
                ("stdout", known(row["stdout_path"])),
                ("stderr", known(row["stderr_path"])),
            ],
        ),
    ]
    return [(title, [pair for pair in pairs if pair[1]]) for title, pairs in groups if any(value for _, value in pairs)]
