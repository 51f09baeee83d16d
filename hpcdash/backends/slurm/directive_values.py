"""Words for the values of sbatch's options: times, amounts, arrays, dependencies, signals. Knows no option's name."""

from __future__ import annotations

import re
from collections.abc import Callable

from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.units import DAY, HOUR, MINUTE, parse_duration

Words = Callable[[str | None], str]
_CLOCK = re.compile(r"[0-9][0-9:-]*")
_UNLIMITED = frozenset({"0", "-1", "infinite", "unlimited"})
_ZERO = re.compile(r"0+[KMGT]?", re.IGNORECASE)
_SIGNAL_NAMES = {
    "1": "HUP",
    "2": "INT",
    "3": "QUIT",
    "9": "KILL",
    "10": "USR1",
    "12": "USR2",
    "15": "TERM",
    "18": "CONT",
}
_SIGNAL = re.compile(r"(?:([RrBb]{1,2}):)?(?:SIG)?([A-Za-z0-9]+)(?:@([0-9]+))?", re.IGNORECASE)
# sbatch(1): where no time is given.
_SIGNAL_SECONDS = "60"
_DEPENDENCY_WORDS = {
    "after": "{} began",
    "afterany": "{} ended",
    "afterburstbuffer": "{} and its burst buffer ended",
    "afternotok": "{} failed",
    "afterok": "{} ended well",
}
_MAIL_WORDS = {
    "begin": "it begins",
    "end": "it ends",
    "fail": "it fails",
    "requeue": "it is requeued",
    "invalid_depend": "its dependency can never hold",
    "stage_out": "its files are staged out",
    "time_limit": "its time is over",
    "time_limit_90": "90 % of its time are over",
    "time_limit_80": "80 % of its time are over",
    "time_limit_50": "half of its time is over",
    "array_tasks": "for each task of the array",
}


def duration(value: str | None) -> str:
    """`2:00:00` as `2 h`; '' for no limit; what cannot be read as it is. A bare number counts minutes."""
    text = (value or "").strip()
    if text.lower() in _UNLIMITED:
        return ""
    if not _CLOCK.fullmatch(text):
        return text
    try:
        seconds = parse_duration(text, bare_unit_seconds=MINUTE)
    except ValueError:
        return text
    return _spoken(seconds or 0)


def _spoken(seconds: int) -> str:
    parts = []
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")):
        amount, seconds = divmod(seconds, unit)
        if amount:
            parts.append(f"{amount} {name}")
    return " ".join(parts) or "0 s"


def count_of(one: str, many: str) -> Words:
    """`4 tasks a node`; `1 task a node`."""
    return lambda value: f"{value} {one if value == '1' else many}"


def memory(each: str, *, all_of_it: str) -> Words:
    """`4G of memory a node`; a bare number counts MB, and `all_of_it` says what 0 means."""

    def words(value: str | None) -> str:
        text = (value or "").strip()
        if _ZERO.fullmatch(text):
            return all_of_it
        amount = f"{text}M" if text.isdigit() else text
        return f"{amount} {each}" if each.startswith("of ") else f"{amount} of memory {each}"

    return words


def nodes(value: str | None) -> str:
    """`4 nodes`, `2 to 4 nodes`."""
    text = value or ""
    low, dash, high = text.partition("-")
    if dash and low.isdigit() and high.isdigit() and low != high:
        return f"{low} to {high} nodes"
    return f"{low if low == high else text} {'node' if text in ('1', '1-1') else 'nodes'}"


def tasks(value: str | None) -> str:
    """`array of 10 tasks, one at a time`."""
    text = value or ""
    indices, percent, throttle = text.partition("%")
    try:
        held = parse_tasks(indices)
        many = held.count if held is not None else None
    except ValueError:
        many = None
    words = f"array {indices}" if many is None else f"array of {many} {'task' if many == 1 else 'tasks'}"
    if percent and throttle != "0":
        words += ", one at a time" if throttle == "1" else f", {throttle} at a time"
    return words


def dependencies(value: str | None) -> str:
    """`starts after job 41 ended well and job 42 ended`."""
    text = value or ""
    joined = " or " if "?" in text else " and "
    conditions = [one for one in re.split(r"[,?]", text) if one]
    return "starts " + joined.join(_condition(one) for one in conditions) if conditions else "starts after nothing"


def _condition(condition: str) -> str:
    kind, _, ids = condition.partition(":")
    if kind.lower() == "singleton":
        return "after one's earlier jobs of this name ended"
    jobs = ids.split(":")
    if kind.lower() == "aftercorr":
        return f"each task after the same task of {_jobs(jobs)} ended well"
    template = _DEPENDENCY_WORDS.get(kind.lower())
    if template is None or not ids:
        return f"after {condition}"
    if kind.lower() == "after" and "+" in ids:
        return " and ".join(
            f"{minutes} min after job {job} began" if plus else f"after job {job} began"
            for job, plus, minutes in (one.partition("+") for one in jobs)
        )
    return "after " + template.format(_jobs(jobs))


def _jobs(ids: list[str]) -> str:
    return f"{'job' if len(ids) == 1 else 'jobs'} {', '.join(ids)}"


def signal(value: str | None) -> str:
    """`sends USR1 to the batch shell 600 s before the limit`."""
    found = _SIGNAL.fullmatch(value or "")
    if found is None:
        return f"sends signal {value}"
    flags, name, seconds = found.groups()
    whom = "the batch shell" if "B" in (flags or "").upper() else "its steps"
    name = _SIGNAL_NAMES.get(name, name.upper())
    words = f"sends {name} to {whom} {seconds or _SIGNAL_SECONDS} s before the limit"
    return f"{words}, or before a reservation takes its nodes" if "R" in (flags or "").upper() else words


def gres(kind: str, each: str) -> Words:
    """`8 GPUs a node`, `2 GPUs (a100) a node and 4 shard a node`; `kind` where the value does not name it."""

    def words(value: str | None) -> str:
        parts = [_resource(one, kind) for one in (value or "").split(",") if one]
        if parts == ["none"]:
            return "no GRES"
        return " and ".join(f"{part}{each}" for part in parts)

    return words


def _resource(text: str, kind: str) -> str:
    fields = re.split(r"[:=/]", text.removeprefix("gres/").removeprefix("gres:"))
    if text.lower() == "none":
        return "none"
    if not kind:
        kind, *fields = fields
        kind = "GPU" if kind.lower() == "gpu" else kind
    count = fields.pop() if fields and re.fullmatch(r"[0-9]+[kKmMgG]?", fields[-1]) else "1"
    plural = "s" if kind == "GPU" and count != "1" else ""
    typed = f" ({':'.join(fields)})" if fields else ""
    return f"{count} {kind}{plural}{typed}"


def mail_events(value: str | None) -> str:
    """`mail when it begins or fails`."""
    names = [name.lower() for name in (value or "").split(",") if name]
    if "none" in names:
        return "no mail"
    if "all" in names:
        return "mail whenever something happens"
    return "mail when " + " or ".join(_MAIL_WORDS.get(name, name.upper()) for name in names)


def export(value: str | None) -> str:
    """What of the environment goes along."""
    names = [name for name in (value or "").split(",") if name]
    kinds = {name.upper() for name in names}
    rest = ", ".join(name for name in names if name.upper() not in ("ALL", "NONE", "NIL"))
    if kinds & {"NONE", "NIL"}:
        return "takes nothing of one's environment along"
    if "ALL" in kinds:
        return f"takes one's environment along, and {rest}" if rest else "takes one's environment along"
    return f"takes of one's environment only {rest}"


def cpu_frequency(value: str | None) -> str:
    """`CPU frequency 2400000 to 3000000 kHz`; words such as high, low and performance as they are."""
    text = value or ""
    low, dash, high = text.partition("-")
    if dash and low.isdigit():
        return f"CPU frequency {low} to {high}"
    return f"CPU frequency {text}"


def switches(value: str | None) -> str:
    """`under at most 1 switch, waits 1 h for that`."""
    count, at, wait = (value or "").partition("@")
    words = f"under at most {count} {'switch' if count == '1' else 'switches'}"
    return f"{words}, waits {duration(wait)} for that" if at else words
