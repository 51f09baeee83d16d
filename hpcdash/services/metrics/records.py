"""Reads the metrics of one line that is a record: a JSON object, a Python dict as trainers print it, a row of CSV."""

from __future__ import annotations

import json
import re
from math import nan

from hpcdash.services.metrics.vocabulary import (
    NUMBER,
    STAMP,
    Reading,
    is_known,
    number_of,
    seconds_of_line,
    sort_pairs,
    stamp_seconds,
    step_rank,
    tidy_name,
)

HINTS = (b"{",)
# What comes before a record: ranks, times, levels.
_LONGEST_PREFIX = 200
_MOST_COLUMNS = 256
_ITEM = re.compile(rf"'(?P<name>[^'{{}}]{{1,80}})': ?(?:np\.float(?:32|64)\()?'?(?P<number>{NUMBER})\)?'?(?=[,}} ])")
_FIELD_NAME = re.compile(r"[A-Za-z_][\w /.()%@-]{0,79}")
_LOWER_NAN = re.compile(r"(?<=[: ])(-?)(nan|inf)(?=[,} ])")
_EXACT_NUMBER = re.compile(NUMBER)


def read_dict(text: str) -> tuple[Reading, str] | None:
    """A dict of a trainer as `{'loss': 2.1, 'epoch': 0.1}`, and what stands before it; None where there is none."""
    start = text.find("{'")
    if start < 0 or start > _LONGEST_PREFIX or "}" not in text:
        return None
    pairs = [(name, number_of(f["number"])) for f in _ITEM.finditer(text, start) if (name := tidy_name(f["name"]))]
    reading = sort_pairs("dict", pairs, seconds_of_line(text))
    has_place = reading.step == reading.step or reading.epoch == reading.epoch
    is_metric = any(map(is_known, reading.values)) or any(
        name.startswith(("train_", "eval_")) for name in reading.values
    )
    return (reading, text[:start]) if has_place and is_metric else None


def read_json(text: str) -> Reading | None:
    """A JSON object with a step or an epoch, one level of objects in it read too (`eval/loss`)."""
    start = text.find('{"')
    if start < 0 or start > _LONGEST_PREFIX or not text.rstrip().endswith("}"):
        return None
    try:
        record = json.loads(text[start:])
    except (ValueError, RecursionError):
        record = _with_nan(text[start:])
    if record is None:
        return None
    pairs: list[tuple[str, float]] = []
    time = seconds_of_line(text)
    for key, value in record.items():
        if isinstance(value, dict):
            pairs += _json_pairs({f"{key}/{inner}": each for inner, each in value.items()})
        else:
            pairs += _json_pairs({key: value})
    reading = sort_pairs("json", pairs, time)
    if not any(map(is_known, reading.values)):
        return None
    has_place = reading.step == reading.step or reading.epoch == reading.epoch
    return reading if has_place or any("loss" in name.lower() for name in reading.values) else None


def _with_nan(text: str) -> dict[str, object] | None:
    """A JSON object in which numbers may be written `nan` and `inf`, as C prints them."""
    if not _LOWER_NAN.search(text):
        return None
    try:
        record = json.loads(_LOWER_NAN.sub(lambda found: "NaN" if found[2] == "nan" else f"{found[1]}Infinity", text))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _json_pairs(record: dict[str, object]) -> list[tuple[str, float]]:
    pairs: list[tuple[str, float]] = []
    for key, value in record.items():
        name = tidy_name(key)
        if not name or isinstance(value, bool):
            continue
        if isinstance(value, (int, float)):
            # 1e400 written as digits is no float.
            pairs.append((name, float(value) if abs(value) < 1e300 or isinstance(value, float) else nan))
        elif isinstance(value, str) and _EXACT_NUMBER.fullmatch(value):
            pairs.append((name, number_of(value)))
    return pairs


def read_header(text: str) -> tuple[str, ...] | None:
    """The names of a CSV's columns, where a line is such a header: one is a step or an epoch, and one a metric."""
    if "," not in text or text.count(",") >= _MOST_COLUMNS:
        return None
    names = tuple(field.strip(' "') for field in text.split(","))
    if not all(_FIELD_NAME.fullmatch(name) for name in names) or len(set(names)) < len(names):
        return None
    has_place = any(step_rank(name) is not None or name.lower() == "epoch" for name in names)
    return names if has_place and any(map(is_known, names)) else None


def read_row(text: str, header: tuple[str, ...]) -> Reading | None:
    """The row of a CSV under its header, None where the line is none; an empty field says nothing."""
    fields = text.split(",")
    if len(fields) != len(header):
        return None
    pairs: list[tuple[str, float]] = []
    time = nan
    for name, raw in zip(header, fields, strict=True):
        field = raw.strip(' "')
        if not field:
            continue
        if _EXACT_NUMBER.fullmatch(field):
            pairs.append((name, number_of(field)))
        elif stamp := STAMP.fullmatch(field):
            time = stamp_seconds(stamp)
        elif step_rank(name) is not None or is_known(name):
            return None
    reading = sort_pairs("csv", pairs, time)
    return reading if reading.values else None
