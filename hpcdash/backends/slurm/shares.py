"""Shares of the cluster by user and account, and their use: sshare. Runs nothing.

sshare takes no separator but `|`. All names in its output were chosen by administrators; a row with
another number of fields is rejected.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    Native,
    ParsedTable,
    Query,
    decoded,
    unreadable,
)
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import accounting_unavailable, require_success
from hpcdash.backends.slurm.values import piped_rows
from hpcdash.domain import schema
from hpcdash.domain.columns import digits

_FIELDS = (
    "Account",
    "User",
    "Partition",
    "RawShares",
    "NormShares",
    "RawUsage",
    "NormUsage",
    "EffectvUsage",
    "FairShare",
    "LevelFS",
)
# Message of sshare, with exit status 0 or 1, where jobs are not ranked by several factors.
_NO_SHARES = ("priority/multifactor", "not running a supported priority plugin")
_NO_SHARES_STEP = "Jobs start in the order in which they were submitted (priority/basic)."


def shares_query(user: str) -> Query[ParsedTable]:
    """Return the query for all accounts and one user ('': the caller).

    The controller sends the shares of no other user.
    """
    whose = ("-u", user) if user else ()
    argv = slurm("sshare", "-h", "-P", "-m", *whose, "-o", ",".join(_FIELDS))
    return Query(argv, partial(parse_shares, user=user), cap_bytes=TEXT_BYTES)


def parse_shares(answer: Answer, *, user: str = "") -> ParsedTable:
    """Rows of domain.schema.SHARES in sshare's order, each account after its parent; `user` '':
    every user is own.
    """
    message = decoded(answer.stdout + answer.stderr)
    if any(text in message for text in _NO_SHARES):
        raise accounting_unavailable(
            answer, "this cluster does not use fair share", _NO_SHARES_STEP
        )
    require_success(answer)
    reported, rejected = piped_rows(decoded(answer.stdout), _FIELDS)
    rows = [_row(row, user) for row in reported if row["Account"].strip()]
    if rejected and not rows:
        raise unreadable(answer, "shares")
    if not rows:
        # Without accounting sshare prints nothing, and succeeds.
        raise accounting_unavailable(answer)
    _mark_own_paths(rows)
    return ParsedTable(pa.Table.from_pylist(rows, schema.SHARES), rejected)


def _row(reported: Native, user: str) -> dict[str, Any]:
    account = reported["Account"].strip()
    name = reported["User"] or None
    partition = reported["Partition"] or None
    depth = len(reported["Account"]) - len(reported["Account"].lstrip(" "))
    return {
        "account": account,
        "user": name,
        "partition": partition,
        # 'parent' for one that has its parent's.
        "raw_shares": digits(reported["RawShares"]),
        # The root has no parent, and 0 there.
        "normalized_shares": _decimal(reported["NormShares"]) if depth else None,
        "raw_usage": digits(reported["RawUsage"]),
        "normalized_usage": _decimal(reported["NormUsage"]),
        "effective_usage": _decimal(reported["EffectvUsage"]),
        "fair_share": _decimal(reported["FairShare"]),
        "level_fair_share": _decimal(reported["LevelFS"]),
        "own": name is not None and name == (user or name),
        "_id": "/".join(part for part in (account, name, partition) if part),
        "_depth": depth,
        "_on_own_path": False,
    }


def _decimal(text: str) -> float | None:
    """A number, `inf` too; None for anything else."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number or number < 0 else number


def _mark_own_paths(rows: list[dict[str, Any]]) -> None:
    """A row's parents are the nearest rows before it that are less deep."""
    above: list[dict[str, Any]] = []
    for row in rows:
        while above and above[-1]["_depth"] >= row["_depth"]:
            above.pop()
        above.append(row)
        if row["own"]:
            for one in above:
                one["_on_own_path"] = True
