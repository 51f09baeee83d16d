"""Launches requested over HTTP, in the state database: one per key, also after a crash."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.services.state.database import StateDatabase
from hpcdash.services.submit.launch_records import LaunchRecord

# On all clusters; the oldest launches are forgotten with their keys.
MAX_SERVED = 5000


class Stage(StrEnum):
    """Known stage of a launch."""

    # Its job may or may not exist.
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    ENDED = "ended"
    # Its key stays used.
    DELETED = "deleted"


class ServedLaunch(Struct, frozen=True, kw_only=True):
    """A launch.

    `client` is the name of its token, `key` that client's key for it, None for none. `digest`
    identifies the request, `mark` is in its job's comment. `tasks` counts its jobs by state once
    they have ended. `text` has the notes on its submission.
    """

    launch_id: str
    client: str
    key: str | None
    account: str
    at: float
    stage: Stage
    digest: str
    mark: str
    record: LaunchRecord
    text: str = ""
    tasks: Mapping[str, int] = {}
    exit_code: int | None = None
    exit_signal: int | None = None

    @property
    def job_id(self) -> str:
        return self.record.job_id


class ServedLaunches:
    """Launches of one cluster. Each method raises StateUnusable."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self._database = StateDatabase(folder)
        self._cluster = cluster

    def add(self, launch: ServedLaunch) -> bool:
        """Add a launch; return False if its client has used its key already."""
        sql = "INSERT OR IGNORE INTO served_launches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        too_old = (
            "DELETE FROM served_launches WHERE rowid <= (SELECT max(rowid) FROM "
            "served_launches) - ?"
        )
        values = (
            launch.launch_id,
            self._cluster,
            launch.client,
            launch.key,
            launch.account,
            launch.at,
            launch.stage.value,
            _content(launch),
            launch.record.request,
        )
        return self._database.write((too_old, (MAX_SERVED,)), (sql, values)) > 0

    def update(self, launch: ServedLaunch) -> None:
        """Store the present state of a launch."""
        sql = "UPDATE served_launches SET stage = ?, content = ? WHERE id = ?"
        self._database.write((sql, (launch.stage.value, _content(launch), launch.launch_id)))

    def mark_deleted(self, launch: ServedLaunch) -> None:
        """Mark a launch as deleted and remove its request; its key stays used."""
        sql = "UPDATE served_launches SET stage = ?, content = ?, request = '' WHERE id = ?"
        deleted = replace(launch, stage=Stage.DELETED)
        self._database.write((sql, (deleted.stage.value, _content(deleted), launch.launch_id)))

    def forget(self, launch: ServedLaunch) -> None:
        """Remove a launch that was certainly not submitted: its key may be used again."""
        self._database.write(("DELETE FROM served_launches WHERE id = ?", (launch.launch_id,)))

    def find(self, launch_id: str) -> ServedLaunch | None:
        found = self._read("id = ?", launch_id)
        return found[0] if found else None

    def find_by_key(self, client: str, key: str) -> ServedLaunch | None:
        found = self._read("client = ? AND key = ?", client, key)
        return found[0] if found else None

    def account_launches(self, accounts: Collection[str], most: int) -> list[ServedLaunch]:
        """Return the launches of these accounts that are not deleted, the newest first."""
        marks = ", ".join("?" * len(accounts))
        return self._read(f"account IN ({marks}) AND stage != 'deleted'", *accounts, most=most)

    def launches_in_stage(self, stage: Stage) -> list[ServedLaunch]:
        return self._read("stage = ?", stage.value)

    def request(self, launch: ServedLaunch) -> str:
        """Return the text of a launch's request."""
        rows = self._database.read(
            "SELECT request FROM served_launches WHERE id = ?", launch.launch_id
        )
        return "".join(text for (text,) in rows)

    def _read(self, condition: str, *values: str, most: int = MAX_SERVED) -> list[ServedLaunch]:
        sql = (
            f"SELECT content FROM served_launches WHERE cluster = ? AND {condition} ORDER BY at "
            "DESC LIMIT ?"
        )
        rows = self._database.read(sql, self._cluster, *values, most)
        return [msgspec.json.decode(content, type=ServedLaunch) for (content,) in rows]


def _content(launch: ServedLaunch) -> str:
    # The request has a column of its own: lists are read without it.
    without_request = replace(launch, record=replace(launch.record, request=""))
    return msgspec.json.encode(without_request).decode()
