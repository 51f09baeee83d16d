"""Reads the metrics of one line, in each of the formats that trainings write.

Names and numbers (Megatron, DeepSpeed, nanoGPT, fairseq, plain ones): such a line needs a step and, so that prose gives
no series, a name that trainings use or at least two single words with `=` or `:`. Records: a JSON object, a Python dict
as trainers print it, a row of CSV. Progress bars and the lines of blocks: tqdm and Lightning, Keras, Composer, OLMo; a
bar's step counts over all epochs: `Epoch 3: 450/1000` is 3·1000 + 450; Keras' first epoch is 1 and begins at 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from math import nan
from typing import NamedTuple

from hpcdash.services.metrics.vocabulary import (
    NOT_FINITE,
    NUMBER,
    STAMP,
    STEP_WORD,
    UNIT,
    Reading,
    is_known,
    is_loss,
    is_step,
    last_step_of,
    number_of,
    seconds_of_line,
    sort_pairs,
    stamp_seconds,
    step_of,
    step_rank,
    tidy_name,
)

# A line that has none of these, in small letters, is neither a sample nor does it change the meaning of others.
HINTS = (b"step", b"iter", b"update", b"batch", b"epoch", b"it ", b"it=", b"it:", b"%|", b"/?", b"{")

# -- names and numbers

# No longer than a name may be. What a lookahead found is taken whole and never given back: a line of signs
# and letters costs no more than its length.
_LETTERS_OF_WORD = r"[^\W\d][\w/.@%+-]{0,79}"
_BRACKETED = r"\([^()=: ]{1,12}\)"
_FIRST_WORD = rf"(?=(?P<first>{_LETTERS_OF_WORD}))(?P=first)(?:{_BRACKETED})?"
_NEXT_LETTERS = rf"(?=(?P<next>{_LETTERS_OF_WORD}))(?P=next)"
_NEXT_WORD = rf"{_NEXT_LETTERS}(?:{_BRACKETED})?"
_OF = r"(?: ?/ ?(?P<of>\d[\d,]{0,18})(?![\w.]|,\d))?"
# `lm loss: 2.34`, `lr=[5e-05]`, `elapsed time per iteration (ms): 12`.
_SIGNED = re.compile(
    rf"(?<![\w.@])(?<!\d:)(?P<name>{_FIRST_WORD}(?: (?:{_NEXT_LETTERS}|\([^()=:]{{1,12}}\)|-)){{0,5}}?) ?[:=]"
    rf" ?\[{{0,2}}(?P<number>{NUMBER}){_OF}{UNIT}"
)
# `loss 3.2100,` between signs that part a line; and step words and `loss` anywhere.
_SPACED = re.compile(
    rf"(?:^|[|,;:\]]|(?<= -)|(?<=\))) ?(?P<name>{_FIRST_WORD}(?: {_NEXT_WORD}){{0,2}}) (?P<number>{NUMBER})"
    rf"{_OF}{UNIT} ?(?=$|[|,;(]| - |:(?!\d))"
)
_LOOSE = re.compile(
    rf"(?<![\w.@-])(?P<name>{STEP_WORD}|epoch|(?:train_|val_|valid_)?(?:loss|acc|accuracy|ppl)|lr|Acc@\d) "
    rf"(?P<number>{NUMBER}){_OF}{UNIT}",
    re.IGNORECASE,
)
# Epoch: [0][ 10/5005] of PyTorch's ImageNet example; Train Epoch: 1 [6400/60000 (11%)] of its MNIST example.
_EXAMPLE = re.compile(
    r"\bEpoch:? \[? ?(?P<epoch>\d{1,15})\]? ?\[ ?(?P<n>\d{1,15}) ?/ ?(?P<of>\d{1,15})(?: \([\d.]+%\))?\]"
)
# Epoch [1/5], Step [100/600], Loss: 2.2 of the PyTorch tutorials: a step within its epoch.
_TUTORIAL = re.compile(
    r"\bEpoch:? ?\[ ?(?P<epoch>\d{1,15}) ?/ ?\d+\],? ?(?:Step|Batch|Iter|Iteration):? ?"
    r"\[ ?(?P<n>\d{1,15}) ?/ ?(?P<of>\d{1,15})\]",
    re.IGNORECASE,
)
_EPOCH_OF = re.compile(r"\bepoch:? ?\[?(?P<epoch>\d{1,15}) ?/ ?\d+", re.IGNORECASE)
_CALL = re.compile(r"\b[A-Za-z_]\w*\([a-z_]\w*=")
_HINT = re.compile(r"step|iter|update|batch|\bit[ :=]|epoch", re.IGNORECASE)
_TIMERS = re.compile(r"(?:^|[\] ])(?:rank=\d+ )?time \(ms\) \|")
_ADDRESS = re.compile(r"\b\w+://\S*")
# `loss nan lr 0.001`: a word that is a value.
_VALUE_WORD = re.compile(rf"(?<![^\s|,;:(\[-])(?P<name>{_FIRST_WORD}) (?P<value>[-+]?{NOT_FINITE})(?![\w/])")
_LETTERS = re.compile(r"[^\W\d_]")
_MOST_OTHER_LETTERS = 24
_DENSE_NAMES = 2
_MOST_PAIRS = 128


def read_pairs(text: str) -> Reading | None:
    """The reading of a line, None where it holds no step or no metric; blanks in a row must be one already."""
    if not _HINT.search(text) or _TIMERS.search(text) or _CALL.search(text):
        return None
    if "://" in text:
        text = _ADDRESS.sub("…", text)
    text, words = _with_digits(text)
    matches = [found for found in islice(_SIGNED.finditer(text), _MOST_PAIRS) if not _is_source_line(text, found)]
    signed = len(matches)
    for pattern in (_SPACED, _LOOSE):
        for found in islice(pattern.finditer(text), _MOST_PAIRS):
            name = tidy_name(found["name"])
            is_fit = " " not in name or is_known(name.rsplit(" ", 1)[-1]) or step_rank(name) is not None
            if is_fit and not any(found.start("name") < m.end() and m.start("name") < found.end() for m in matches):
                matches.append(found)
    reading = _reading(text, matches, words)
    if reading is None or not reading.values:
        return None
    if any(map(is_known, reading.values)):
        return reading
    return reading if _is_dense(text, matches[:signed], reading) else None


def _with_digits(text: str) -> tuple[str, dict[int, str]]:
    """The text with digits in place of each `nan` and `inf` that is a metric's value, and what stood at their ends.

    The words stay where they are part of a name, as in Megatron's `number of nan iterations: 0`.
    """
    words: dict[int, str] = {}
    lowered = text.lower()
    if "nan" not in lowered and "inf" not in lowered:
        return text, words
    parts: list[str] = []
    edge = 0
    for found in _VALUE_WORD.finditer(text):
        if is_known(found["name"]):
            begin, end = found.span("value")
            parts += (text[edge:begin], "1" * (end - begin))
            words[end], edge = found["value"], end
    return "".join((*parts, text[edge:])), words


def _reading(text: str, matches: list[re.Match[str]], words: Mapping[int, str]) -> Reading | None:
    tutorial = _TUTORIAL.search(text)
    example = tutorial or _EXAMPLE.search(text)
    pairs: list[tuple[str, float]] = []
    last_step: int | None = None
    best: tuple[int, str | None] | None = None
    for found in sorted(matches, key=lambda match: match.start("name")):
        name = tidy_name(found["name"])
        if not name or (example and example.start() <= found.start("name") < example.end()):
            continue
        rank, of = step_rank(name), found["of"]
        value = number_of(words.get(found.end("number"), found["number"]), found["unit"])
        if rank is not None and is_step(value) and (best is None or rank < best[0]):
            best = (rank, of)
            last_step = last_step_of(of) if of else last_step
        elif of and rank is None and name.lower() != "epoch":
            continue
        pairs.append((name, value))
    reading = sort_pairs("pairs", pairs, seconds_of_line(text))
    if example:
        epoch, n, of = int(example["epoch"]), int(example["n"]), int(example["of"])
        from_one = tutorial is not None or (example[0].startswith("Epoch: ") and "[" not in example[0][:8])
        return reading._replace(step=step_of(max(epoch - from_one, 0) * of + n), epoch=float(epoch))
    if best is None:
        return None
    if best[0] == step_rank("batch") and best[1]:
        # A batch is counted within its epoch.
        total = int(best[1].replace(",", ""))
        counted = _EPOCH_OF.search(text)
        epoch = int(counted["epoch"]) - 1 if counted else (int(reading.epoch) if is_step(reading.epoch) else 0)
        return reading._replace(step=step_of(max(epoch, 0) * total + reading.step))
    return reading if last_step is None else reading._replace(last_step=last_step)


def _is_dense(text: str, signed: list[re.Match[str]], reading: Reading) -> bool:
    """Whether a line of unknown names is all names and numbers: `step=10 temperature=3.4 pressure=1.0`."""
    names = [name for name in reading.values if " " not in name]
    if len(names) < _DENSE_NAMES or len(names) < len(reading.values):
        return False
    covered = sum(len(_LETTERS.findall(found[0])) for found in signed)
    return len(_LETTERS.findall(text)) - covered <= _MOST_OTHER_LETTERS


def _is_source_line(text: str, found: re.Match[str]) -> bool:
    """Whether a number is that of a line of a source: `package.module:function:56`."""
    return text[found.start() - 1 : found.start()] == ":" and text[found.end("name") :][:2].rstrip("0123456789") == ":"


# -- records

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
    return reading if has_place or any(is_loss(name) for name in reading.values) else None


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


# -- bars and blocks

# A cursor that goes up a line marks a bar below another; see reader.plain_lines.
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
