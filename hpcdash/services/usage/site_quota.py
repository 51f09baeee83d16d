"""A site's own quota command: its output as a table with a heading, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hpcdash.backends.queries import Answer, Query
from hpcdash.domain.text import decode, visible
from hpcdash.domain.units import parse_memory
from hpcdash.errors import CommandError, UnreadableOutput, excerpt

_LIMIT_SECONDS = 30.0
_MAX_BYTES = 1 << 20
_MAX_ROWS = 1000
# Headings of the table, and the keys of JSON.
_COLUMNS = {
    "path": "path",
    "used": "used_bytes",
    "limit": "limit_bytes",
    "files": "used_inodes",
    "max_files": "limit_inodes",
    "owner": "owner",
    "name": "name",
}
_AMOUNTS = ("used_bytes", "limit_bytes")
_HELP = (
    "Expected a heading `path used limit [files max_files owner name]` and a line for each quota, "
    "`-` for none, or a JSON list of objects with path, used_bytes and limit_bytes."
)


class SiteQuota(Struct, frozen=True):
    """Quota of a path; None: unreported, or no limit."""

    path: str
    used_bytes: int | None = None
    limit_bytes: int | None = None
    used_inodes: int | None = None
    limit_inodes: int | None = None
    owner: str | None = None
    name: str | None = None


def quota_query(command: tuple[str, ...]) -> Query[tuple[SiteQuota, ...]]:
    """Query the quotas; parse raises CommandError if the command failed, UnreadableOutput with the
    line for other output.
    """

    def parse(answer: Answer) -> tuple[SiteQuota, ...]:
        if answer.status != 0:
            raise CommandError(
                "the site's quota command failed",
                "Check quota_command in the cluster's table.",
                argv=command,
                status=answer.status,
                output=excerpt(answer.stderr or answer.stdout),
            )
        return parse_quotas(decode(answer.stdout), command)

    return Query(command, parse, _LIMIT_SECONDS, command, _MAX_BYTES)


def parse_quotas(text: str, command: tuple[str, ...]) -> tuple[SiteQuota, ...]:
    """Parse JSON or a table; raises UnreadableOutput with the command and the line."""
    found = _from_json(text, command) if text.lstrip()[:1] in ("[", "{") else None
    if found is None:
        found = _from_table(text, command)
    return tuple(found[:_MAX_ROWS])


def _from_table(text: str, command: tuple[str, ...]) -> list[SiteQuota]:
    heading: list[str] = []
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split()
        if not cells or cells[0].startswith("#"):
            continue
        if not heading:
            heading = [cell.lower() for cell in cells]
            unknown = [name for name in heading if name not in _COLUMNS]
            if unknown or "path" not in heading or "used" not in heading:
                problem = f"no column {unknown[0]!r}" if unknown else "no column path or used"
                raise _unreadable(problem, number, line, command)
            continue
        if len(cells) != len(heading):
            problem = f"{len(cells)} columns, the heading has {len(heading)}"
            raise _unreadable(problem, number, line, command)
        row = {_COLUMNS[name]: cell for name, cell in zip(heading, cells, strict=True)}
        try:
            found.append(_quota({name: None if one == "-" else one for name, one in row.items()}))
        except ValueError as error:
            raise _unreadable(str(error), number, line, command) from None
    if not heading:
        raise _unreadable("no output", 1, "", command)
    return found


def _from_json(text: str, command: tuple[str, ...]) -> list[SiteQuota]:
    try:
        document = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        lines = text.splitlines()
        shown = lines[line - 1] if line <= len(lines) else ""
        raise _unreadable(f"not JSON: {error}", line, shown, command) from None
    rows = document.get("storage") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise _unreadable("no list of quotas", 1, text.splitlines()[0], command)
    found = []
    for number, row in enumerate(rows, 1):
        shown = json.dumps(row)
        try:
            if not isinstance(row, dict):
                raise ValueError("not an object")
            found.append(_quota(row))
        except ValueError as error:
            raise _unreadable(f"entry {number}: {error}", None, shown, command) from None
    return found


def _quota(row: Mapping[str, Any]) -> SiteQuota:
    """Build a quota; raises ValueError with the problem."""
    path = row.get("path")
    if not isinstance(path, str) or not path.startswith("/"):
        raise ValueError(f"path {path!r} is not absolute")
    for name in ("owner", "name"):
        if not isinstance(row.get(name), str | None):
            raise ValueError(f"{name} {row[name]!r} is not a text")
    return SiteQuota(
        path,
        used_bytes=_number("used_bytes", row.get("used_bytes")),
        limit_bytes=_number("limit_bytes", row.get("limit_bytes")),
        used_inodes=_number("used_inodes", row.get("used_inodes")),
        limit_inodes=_number("limit_inodes", row.get("limit_inodes")),
        owner=row.get("owner"),
        name=row.get("name"),
    )


def _number(name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and name in _AMOUNTS:
        return parse_memory(value)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not 0 <= value < 1 << 62:  # type: ignore[operator]
        raise ValueError(f"{name} {value!r} is not a whole number from 0")
    return value  # type: ignore[return-value]


def _unreadable(
    problem: str, number: int | None, line: str, command: tuple[str, ...]
) -> UnreadableOutput:
    at = "" if number is None else f"line {number}: "
    return UnreadableOutput(
        f"the output of the site's quota command cannot be read: {at}{problem}",
        _HELP,
        argv=command,
        output=visible(line[:400]),
    )
