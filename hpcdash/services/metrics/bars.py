"""Reads progress bars and blocks of lines: tqdm and Lightning, Keras, Composer, OLMo. Knows one line at a time.

A bar's step counts over all epochs: `Epoch 3: 450/1000` is 3·1000 + 450; Keras' first epoch is 1 and begins at 0.
"""

from __future__ import annotations

import re
from math import nan
from typing import NamedTuple

from hpcdash.services.metrics.vocabulary import (
    NUMBER,
    UNIT,
    Reading,
    last_step_of,
    number_of,
    seconds_of_line,
    sort_pairs,
    step_of,
    tidy_name,
)

HINTS = (b"%|", b"/?", b"epoch")
# A cursor that goes up a line marks a bar below another; see metric_text.
UP = "\x1f"
_BAR = re.compile(
    r"(?P<before>.{0,160}?) ?(?P<percent>\d{1,3})%\|(?P<drawn>[^|]{0,400})\| ?"
    r"(?P<n>\d{1,15})/(?P<of>\d{1,15})(?P<exact> )\[(?P<inside>[^\]]{0,4000})\]?(?P<after>.*)"
)
_EPOCH_OF_BAR = re.compile(r"\bepoch[ :=]*\[?(?P<epoch>\d{1,15})(?!\d)(?P<of> ?/ ?\d+)?", re.IGNORECASE)
_POSTFIX = re.compile(rf"(?:^|, ?)(?P<name>[^\W\d][^=,]{{0,79}})=(?P<number>{NUMBER})(?P<unit>[kKMB%]?)(?=,|$)")
_PER_STEP = re.compile(r"(?:it/s|s/it)(?:,|$)")
_UNKNOWN_END = re.compile(r"\| ?\d+/\? \[\d")
_RANKS_ONLY = re.compile(r"(?:\d{1,5}: ?|\[[^\]]{1,40}\]:? ?| )*")

_KERAS_EPOCH = re.compile(r"(?:\d{1,5}: )?Epoch (?P<epoch>\d{1,15})/\d+ ?")
_KERAS = re.compile(
    r"(?:\d{1,5}: )? ?(?P<n>\d{1,15})/(?P<of>\d{1,15}|Unknown) "
    r"(?:\[[=>. ]*\]|[━╺╸ ]*(?=\d| -)|(?=-)) ?(?:- )?(?P<rest>.*)"
)
_KERAS_ITEM = re.compile(rf"(?:^|- )(?P<name>[^\W\d][\w/@. -]{{0,79}}?): (?P<number>{NUMBER})(?= |$)")

_COMPOSER_HEAD = re.compile(
    r".{0,160}?\[(?:epoch=(?P<epoch>\d{1,15})(?!\d)[^\]\[]{0,40}\]\[)?"
    r"batch=(?P<step>\d[\d,]{0,18})/(?P<of>\d[\d,]{0,18})\]: ?"
)
_OLMO_HEAD = re.compile(
    r".{0,160}?\[step=(?P<step>\d[\d,]{0,18})(?:/(?P<of>\d[\d,]{0,18}))?"
    r"(?:,epoch=(?P<epoch>\d{1,15}))?(?:,eta=[^\]]{1,40})?\] ?"
)
_BODY = re.compile(
    rf"(?:\d{{1,5}}: ?)? (?:(?:Train|Eval) (?=[\w/.-]+: ))?(?P<name>[^\W\d][^=:]{{0,79}})(?:=|: )"
    rf"(?P<number>{NUMBER}){UNIT} ?"
)


class Bar(NamedTuple):
    """A progress bar: how far it is, and what it says beside. `is_training` tells the bar of a trainer's steps."""

    key: tuple[float, int, int]
    reading: Reading | None
    is_training: bool
    after: str


_ENDLESS = Bar((nan, 0, 0), None, False, "")


def read_bar(text: str) -> Bar | None:
    """The last painted bar of tqdm in a line, None where there is none."""
    if "%|" not in text:
        return _ENDLESS if "/?" in text and _UNKNOWN_END.search(text) else None
    found = _BAR.match(text)
    if found is None:
        return None
    n, of = int(found["n"]), int(found["of"])
    # Of 450/1000 the bar must say 45 %: other programs draw bars too.
    if not of or n > of or abs(100 * n / of - int(found["percent"])) > 1.5:
        return None
    before, inside = found["before"], found["inside"]
    pairs = [
        (name, number_of(item["number"], item["unit"]))
        for item in _POSTFIX.finditer(inside)
        if (name := tidy_name(item["name"]))
    ]
    counted = _EPOCH_OF_BAR.search(before)
    epoch = int(counted["epoch"]) if counted else None
    earlier = 0 if epoch is None or counted is None else max(0, epoch - 1 if counted["of"] else epoch)
    reading = sort_pairs("bar", pairs, seconds_of_line(before))
    key = (nan if epoch is None else float(epoch), n, of)
    is_training = not _is_nested(text) and bool(_PER_STEP.search(inside)) and bool(_RANKS_ONLY.fullmatch(before))
    after = found["after"].strip(UP + " ")
    if not reading.values:
        return Bar(key, None, is_training, after)
    step = reading.step if reading.step == reading.step else step_of(earlier * of + n)
    if epoch is not None:
        reading = reading._replace(epoch=float(epoch))
    return Bar((key[0] if epoch is not None else -1.0, n, of), reading._replace(step=step), is_training, after)


def _is_nested(text: str) -> bool:
    return text.rstrip().endswith(UP)


def read_keras_epoch(text: str) -> int | None:
    """The number of `Epoch 3/10` alone in a line, None where the line is none."""
    found = _KERAS_EPOCH.fullmatch(text) if "Epoch " in text else None
    return int(found["epoch"]) if found else None


def read_keras(text: str) -> tuple[int, int | None, Reading] | None:
    """A bar of Keras: batch, batches in all (None: not known yet), and a reading whose step is not yet set."""
    found = _KERAS.fullmatch(text) if ": " in text and "/" in text else None
    if found is None:
        return None
    items = _KERAS_ITEM.finditer(found["rest"])
    pairs = [(name, number_of(item["number"])) for item in items if (name := tidy_name(item["name"])) and name != "ETA"]
    reading = sort_pairs("keras", pairs)
    if not reading.values:
        return None
    return int(found["n"]), None if found["of"] == "Unknown" else int(found["of"]), reading


def read_block_head(text: str) -> Reading | None:
    """The first line of a block: `[batch=100/1000]:` of Composer, `[step=100/739328,epoch=1]` of OLMo."""
    if not text.rstrip().endswith(("]", "]:")):
        return None
    found = _COMPOSER_HEAD.fullmatch(text) or _OLMO_HEAD.fullmatch(text)
    if found is None:
        return None
    of, epoch = found["of"], found["epoch"]
    return Reading(
        "block",
        {},
        step_of(number_of(found["step"])),
        float(epoch) if epoch else nan,
        nan,
        seconds_of_line(text),
        last_step_of(of) if of else None,
    )


def read_block_line(text: str) -> tuple[str, float] | None:
    """One line within a block: indented, a name and a number alone."""
    found = _BODY.fullmatch(text)
    if found is None or not (name := tidy_name(found["name"])):
        return None
    return name, number_of(found["number"], found["unit"])
