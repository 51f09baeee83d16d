"""Makes the past of a young cluster longer, so that a recording shows hours and days.

Knows Slurm's fields, no server.

Every time before the recording's clock moves away from it by a factor, with some scatter; run times
follow from the new starts and ends. A job that runs ends at its start plus its limit, which doubles
until that is to come; one that ran into its limit had as much as it ran. Other limits and the
future stay. As the nodes of a throw-away cluster are one machine with one load, each is given that
of its busy CPUs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

from hpcdash.backends.slurm.history import FIELDS
from hpcdash.backends.slurm.jobs import LAYOUT
from hpcdash.backends.slurm.rows import SEPARATOR
from hpcdash.backends.slurm.values import duration_seconds
from hpcdash.backends.tokens import RECORDED_TOKEN

_TOKEN = RECORDED_TOKEN.encode()
_DAY_SECONDS = 86400


def stretched(argv: tuple[str, ...], stdout: bytes, clock: int, factor: float) -> bytes:
    """A command's recorded output (RECORDED_TOKEN in it) with its past `factor` times as long."""

    def moved(moment: int) -> int:
        if moment >= clock:
            return moment
        scatter = zlib.crc32(str(moment).encode()) % max(1, int(factor))
        return clock - int((clock - moment) * factor) + scatter

    if argv[0] == "squeue":
        return _queue(stdout, clock, moved)
    if argv[0] == "sacct" and argv[-1] == "ALL":
        header, _, rows = stdout.partition(b"\n")
        names = [name.decode().lower() for name in header.split(_TOKEN)]
        return header + b"\n" + _history(rows, names, clock, moved)
    if argv[0] == "sacct":
        return _history(stdout, list(FIELDS), clock, moved)
    if argv[0] == "scontrol":
        return _scontrol(stdout, clock, moved)
    if argv[0] == "sinfo":
        stdout = re.sub(
            rb"(?<=\x1f)\d{10}(?=\x1f)", lambda found: b"%d" % moved(int(found.group())), stdout
        )
        return b"\n".join(_loaded(line) for line in stdout.split(b"\n"))
    return stdout


def _loaded(line: bytes) -> bytes:
    """A node's line with a load of 0.85 to 1.04 for each CPU in use; a line that holds no load
    stays.
    """
    found = re.search(rb"\x1f(\d+)/\d+/\d+/\d+\x1f.*\x1f(\d+\.\d\d)\x1f", line)
    if found is None:
        return line
    share = 0.85 + zlib.crc32(line.split(b"\x1f")[0]) % 20 / 100
    return line[: found.start(2)] + b"%.2f" % (int(found.group(1)) * share) + line[found.end(2) :]


def clock_text(seconds: int) -> str:
    """[D-]HH:MM:SS"""
    days, rest = divmod(seconds, _DAY_SECONDS)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def _retime(row: dict[str, str], clock: int, moved: Callable[[int], int]) -> None:
    """Row keys: state, submit, eligible, start, end, elapsed and limit (seconds as text); changed
    in place.
    """
    ran = row["state"] not in {"PENDING"} and row["start"].isdigit()
    running = row["state"] in {"RUNNING", "SUSPENDED"}
    for key in ("submit", "eligible", "start"):
        if row[key].isdigit():
            row[key] = str(moved(int(row[key])))
    if not ran:
        return
    if running:
        row["elapsed"] = str(clock - int(row["start"]))
        if row["limit"].isdigit():
            limit = int(row["limit"])
            while int(row["start"]) + limit <= clock:
                limit *= 2
            row["limit"] = str(limit)
            row["end"] = str(int(row["start"]) + limit)
    elif row["end"].isdigit():
        row["end"] = str(moved(int(row["end"])))
        row["elapsed"] = str(int(row["end"]) - int(row["start"]))
        if row["state"] == "TIMEOUT":
            row["limit"] = str(int(row["elapsed"]) // 60 * 60)


def _queue(stdout: bytes, clock: int, moved: Callable[[int], int]) -> bytes:
    names = LAYOUT.plain
    per_row = len(LAYOUT.hostile) + 1
    pieces = stdout.split(_TOKEN)
    for index in range(0, len(pieces) - 1, per_row):
        start = pieces[index][:1] == b"\n"
        values = dict(zip(names, pieces[index].decode().lstrip("\n").split(SEPARATOR), strict=True))
        limit = duration_seconds(values["timelimit"])
        row = {
            "state": values["state"],
            "submit": values["submittime"],
            "eligible": values["eligibletime"],
            "start": values["starttime"],
            "end": values["endtime"],
            "elapsed": str(duration_seconds(values["timeused"]) or 0),
            "limit": "" if limit is None else str(limit),
        }
        _retime(row, clock, moved)
        values |= {
            "submittime": row["submit"],
            "eligibletime": row["eligible"],
            "starttime": row["start"],
            "endtime": row["end"],
            "timeused": clock_text(int(row["elapsed"]))
            if int(row["elapsed"])
            else values["timeused"],
        }
        if row["limit"] != ("" if limit is None else str(limit)):
            values["timelimit"] = clock_text(int(row["limit"]))
        pieces[index] = b"\n" * start + SEPARATOR.join(values.values()).encode()
    return _TOKEN.join(pieces)


def _history(rows: bytes, names: list[str], clock: int, moved: Callable[[int], int]) -> bytes:
    out = []
    at = {name: index for index, name in enumerate(names)}
    pieces = rows.split(_TOKEN)
    between = len(names) - 1
    # The last field of a row and the first of the next share a piece.
    flat: list[bytes] = []
    for index, piece in enumerate(pieces):
        if index % between == 0 and 0 < index < len(pieces) - 1:
            last, _, first = piece.rpartition(b"\n")
            flat += [last + b"\n", first]
        else:
            flat.append(piece)
    for begin in range(0, len(flat) - between, len(names)):
        fields = [
            field.decode("utf-8", "surrogateescape") for field in flat[begin : begin + len(names)]
        ]
        minutes = fields[at["timelimitraw"]]
        row = {
            "state": fields[at["state"]].split(" ")[0],
            "submit": fields[at["submit"]],
            "eligible": fields[at["eligible"]],
            "start": fields[at["start"]],
            "end": fields[at["end"]],
            "elapsed": fields[at["elapsedraw"]],
            "limit": str(int(minutes) * 60) if minutes.isdigit() else "",
        }
        _retime(row, clock, moved)
        if row["state"] in {"RUNNING", "SUSPENDED"}:
            row["end"] = "Unknown"
        new = {
            "submit": row["submit"],
            "eligible": row["eligible"],
            "start": row["start"],
            "end": row["end"],
            "elapsedraw": row["elapsed"],
            "elapsed": clock_text(int(row["elapsed"] or 0)),
            "timelimitraw": str(int(row["limit"]) // 60) if row["limit"] else minutes,
        }
        if row["limit"]:
            new["timelimit"] = clock_text(int(row["limit"]))
        if "cputimeraw" in at and fields[at["ncpus"]].isdigit():
            cpu_seconds = int(row["elapsed"] or 0) * int(fields[at["ncpus"]])
            new |= {"cputimeraw": str(cpu_seconds), "cputime": clock_text(cpu_seconds)}
        for name, text in new.items():
            if name in at:
                fields[at[name]] = text
        out.append(_TOKEN.join(field.encode("utf-8", "surrogateescape") for field in fields))
    return b"".join(out)


def _scontrol(stdout: bytes, clock: int, moved: Callable[[int], int]) -> bytes:
    text = stdout.decode("utf-8", "surrogateescape")

    def value(key: str) -> str:
        found = re.search(rf"\b{key}=(\S+)", text)
        return found.group(1) if found else ""

    limit = duration_seconds(value("TimeLimit"))
    row = {
        "state": value("JobState"),
        "submit": value("SubmitTime"),
        "eligible": value("EligibleTime"),
        "start": value("StartTime"),
        "end": value("EndTime"),
        "elapsed": str(duration_seconds(value("RunTime")) or 0),
        "limit": "" if limit is None else str(limit),
    }
    _retime(row, clock, moved)
    new = {
        "SubmitTime": row["submit"],
        "EligibleTime": row["eligible"],
        "StartTime": row["start"],
        "EndTime": row["end"],
        "RunTime": clock_text(int(row["elapsed"])),
        "TimeLimit": clock_text(int(row["limit"])) if row["limit"] else value("TimeLimit"),
    }
    for key in ("AccrueTime", "LastSchedEval", "PreemptEligibleTime"):
        if value(key).isdigit():
            new[key] = str(moved(int(value(key))))
    for key, replacement in new.items():
        text = re.sub(rf"\b{key}=\S+", f"{key}={replacement}", text, count=1)
    return text.encode("utf-8", "surrogateescape")
