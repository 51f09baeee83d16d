"""The records of the state database, and the SQL that writes each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from hpcdash.domain.job_ids import parse_job_number

# SQL and its values.
Statement = tuple[str, tuple[Any, ...]]


def free_name(path: Path, ending: str) -> Path:
    """PATH.ENDING, or the first of PATH.ENDING-2, -3 … that is not there."""
    found, number = path.with_name(f"{path.name}.{ending}"), 1
    while os.path.lexists(found):
        number += 1
        found = path.with_name(f"{path.name}.{ending}-{number}")
    return found


class LaunchRecord(Struct, frozen=True):
    """One launch.

    `job_id` is '' where the scheduler's answer was lost; `at` is when, in epoch seconds.

    `folder` there holds it, and `sums` tells that folder from any other; `keep` and `run_as` are as
    in Site. `tasks` are how many jobs it is, `request` is the text of its request, '' where there
    was none.
    """

    folder: str
    sums: str
    job_id: str
    name: str
    keep: str
    run_as: str
    tasks: int
    at: float
    request: str = ""


LAUNCH_FIELDS = LaunchRecord.__struct_fields__
LAUNCH_COLUMNS = ", ".join(LAUNCH_FIELDS)


def launched_statement(cluster: str, record: LaunchRecord) -> Statement:
    """Build the statement that stores a launch, once."""
    marks = ", ".join("?" * len(LAUNCH_FIELDS))
    sql = (
        f"INSERT OR IGNORE INTO launches (cluster, number, {LAUNCH_COLUMNS}) VALUES (?, ?, {marks})"
    )
    return sql, (
        cluster,
        parse_job_number(record.job_id),
        *(getattr(record, name) for name in LAUNCH_FIELDS),
    )


def code_state_statement(cluster: str, folder: str, text: str) -> Statement:
    """Build the statement that stores the state of the code that a launch was made from."""
    return "INSERT OR REPLACE INTO code_states VALUES (?, ?, ?)", (cluster, folder, text)


# Of a folder that is kept for some days: `completed EPOCH_SECONDS`.
COMPLETED = "completed "


def ended_statement(cluster: str, folder: str, folder_state: str) -> Statement:
    """Build the statement that notes that a folder is removed, or why it stays."""
    sql = "UPDATE launches SET folder_state = ? WHERE cluster = ? AND folder = ?"
    sql += f" AND (folder_state = '' OR folder_state LIKE '{COMPLETED}%')"
    return sql, (folder_state or "stays", cluster, folder)


def switch_statement(
    cluster: str, kind: str, user: str, name: str, number: str, path: str, at: float
) -> Statement:
    """Build the statement that stores the path named for a job; '': none any more."""
    sql = (
        "INSERT OR IGNORE INTO switches (cluster, kind, user, name, number, path, at) VALUES "
        "(?, ?, ?, ?, ?, ?, ?)"
    )
    return sql, (cluster, kind, user, name, number, path, at)


def mark_statement(
    cluster: str, kind: str, path: str, job_id: str, sizes: Mapping[str, int], at: float
) -> Statement:
    """Build the statement that stores the sizes of logs, unless a later time is stored."""
    sql = (
        "INSERT INTO log_marks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (cluster, kind, path) DO "
        "UPDATE"
        " SET job_id = excluded.job_id, sizes = excluded.sizes, at = excluded.at WHERE excluded.at "
        ">= at"
    )
    return sql, (cluster, kind, path, job_id, json.dumps(dict(sizes)), at)


class Recent(msgspec.Struct, frozen=True):
    """Stored submission, with `at` in epoch seconds. Invalid UTF-8 in `text` is U+FFFD."""

    cluster: str
    name: str
    text: str
    kind: Literal["request", "script"]
    at: float


def recent_statement(recent: Recent) -> Statement:
    """Build the statement that stores a submission, once."""
    sql = "INSERT OR REPLACE INTO recents (cluster, name, text, kind, at) VALUES (?, ?, ?, ?, ?)"
    return sql, (recent.cluster, recent.name, recent.text, recent.kind, recent.at)
