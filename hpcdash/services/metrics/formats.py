"""Reads the metrics of one line, in each of the formats that trainings write.

Names and numbers (Megatron, DeepSpeed, nanoGPT, fairseq, plain ones): such a line needs a step or
an epoch and, so that prose gives no series, a name that trainings use or, beside a step, two single
words with `=` or `:`. Records: a JSON object, a Python dict as trainers print it, a row of CSV or
of a table. Progress bars and the lines of blocks: tqdm, Rich, Keras, Composer, OLMo. A step within
an epoch is counted over all: `Epoch 3: 450/1000` of a bar is 3·1000 + 450, `Epoch [3][450/1000]` is
2·1000 + 450; what a line leaves open of that is its reading's `position`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from math import nan
from typing import Any, NamedTuple

from hpcdash.services.metrics.vocabulary import (
    BATCH_RANK,
    NOT_FINITE,
    NUMBER,
    STAMP,
    STEP_WORD,
    UNIT,
    Position,
    Reading,
    is_epoch,
    is_known,
    is_loss,
    is_step,
    parse_last_step,
    parse_line_seconds,
    parse_number,
    sort_pairs,
    stamp_seconds,
    step_rank,
    tick_step,
    tidy_name,
)

# A line that has none of these, in small letters, is neither a sample nor does it change the
# meaning of others.
HINTS = (
    b"step",
    b"iter",
    b"update",
    b"batch",
    b"epoch",
    b"it ",
    b"it=",
    b"it:",
    b"%|",
    b"/?",
    b"{",
    b"learn:",
    b"/ | |",
)
# Nor where it has none of these: a place in brackets, a count alone, a record that a terminal's
# width has cut. Each is a few letters, and what must stand there.
PLACES = tuple(
    (letters, re.compile(re.escape(letters) + rest))
    for letters, rest in (
        (b"train", rb"[^\n\[(]{0,40}[\[(]"),
        (b"valid", rb"[^\n\[(]{0,40}[\[(]"),
        (b"][", rb" ?\d"),
        (b"\n[", rb"\d{1,15}(?:\]|, ?\d{1,15}\]) "),
        (b"] [", rb"\d{1,15}\] "),
        (b".py:", rb"\d{1,6}\n"),
    )
)

# A cursor that goes up a line marks a bar below another; see reader.plain_lines.
UP = "\x1f"

# -- names and numbers

# No longer than a name may be. What a lookahead found is taken whole and never given back: a line
# of signs and letters costs no more than its length.
_LETTERS_OF_WORD = r"[^\W\d][\w/.@%+-]{0,79}"
_BRACKETED = r"\([^()=: ]{1,12}\)"
_FIRST_WORD = rf"(?=(?P<first>{_LETTERS_OF_WORD}))(?P=first)(?:'s(?= )|{_BRACKETED})?"
_NEXT_LETTERS = rf"(?=(?P<next>{_LETTERS_OF_WORD}))(?P=next)"
_NEXT_WORD = rf"{_NEXT_LETTERS}(?:{_BRACKETED})?"
_OF = r"(?:(?: ?/ ?| of )(?P<of>\d[\d,]{0,18})(?:\.\d{1,6})?(?![\w.]|,\d))?"
# `lm loss: 2.34`, `lr=[5e-05]`, `elapsed time per iteration (ms): 12`.
_SIGNED = re.compile(
    rf"(?<![\w.@])(?<!\d:)(?P<name>{_FIRST_WORD}(?: "
    rf"(?:{_NEXT_LETTERS}|\([^()=:]{{1,12}}\)|-)){{0,5}}?) ?[:=]"
    rf" ?\[{{0,2}}(?P<number>{NUMBER}){_OF}{UNIT}"
)
# `loss 3.2100,` between signs that part a line; and step words and `loss` anywhere.
_SPACED = re.compile(
    rf"(?:^|[|,;:\]]|(?<= -)|(?<=\))) ?(?P<name>{_FIRST_WORD}(?: {_NEXT_WORD}){{0,2}}) "
    rf"(?P<number>{NUMBER})"
    rf"{_OF}{UNIT} ?(?=$|[|,;(]| - |:(?!\d))"
)
_LOOSE = re.compile(
    rf"(?<![\w.@-])(?P<name>{STEP_WORD}|epoch|(?:history "
    rf"|train_|val_|valid_)?(?:loss|acc|accuracy|ppl)|lr|Acc@\d)"
    rf" (?:is )?(?P<number>{NUMBER}){_OF}{UNIT}",
    re.IGNORECASE,
)
# Of a validation nothing is a step.
_JUDGED = re.compile(r"val|test|eval|dev\b", re.IGNORECASE)
_N_OF = r"\[ ?(?P<n>\d{1,15}) ?/ ?(?P<of>\d{1,15})(?: ?\( ?[\d.]{1,6} ?%\))?\]"
_EPOCHS = r"(?P<epoch>\d{1,15})(?: ?/ ?(?P<epochs>\d{1,15}))?(?: ?\( ?[\d.]{1,6}%\))?"
_MODE = r"(?:\((?P<mode>[a-z]{2,10})\))?"
# An epoch and a place within it: `Epoch [1][50/1000]`, `Train: 0 [ 50/1251 ( 4%)]`, `Epoch [1/5],
# Step [100/600]`.
_PLACE = re.compile(
    rf"(?<![\w.@-])(?P<word>(?:(?:train|test|val) "
    rf")?epoch|train(?:ing)?|test|val(?:id(?:ation)?)?|eval){_MODE}"
    rf"(?P<colon>:?) ?(?P<open>\[?) ?{_EPOCHS} ?\]?[,:]? ?(?:[|-] ?)?"
    rf"(?:(?P<kind>step|batch|iter|iteration):? ?)?{_N_OF}",
    re.IGNORECASE,
)
# In the order in which they are tried, with how good a step `n` of each is, as of step_rank.
_PLACES: tuple[tuple[re.Pattern[str], int], ...] = (
    (_PLACE, 3),
    # `[1/25][300/3183]`.
    (
        re.compile(r"(?<![\w\]])\[ ?(?P<epoch>\d{1,15}) ?/ ?(?P<epochs>\d{1,15}) ?\] ?" + _N_OF),
        3,
    ),
    # `Iter(train) [ 10/1000]`, `Training [ 10/125000]`.
    (
        re.compile(
            r"(?<![\w.@-])(?P<word>step|iter(?:ation)?|train(?:ing)?|test|val(?:id(?:ation)?)?|eval)"
            rf"{_MODE}:? ?{_N_OF}",
            re.IGNORECASE,
        ),
        3,
    ),
    # `200/ 2983 batches`.
    (re.compile(r"(?<![\d/.])(?P<n>\d{1,15}) ?/ ?(?P<of>\d{1,15}) batches\b"), BATCH_RANK),
    # ESPnet's `3epoch:train:101-200batch:150num_updates`.
    (
        re.compile(
            r"\b(?P<epoch>\d{1,15})epoch:(?P<word>train|valid):(?:\d{1,15}-)?"
            r"(?:\d{1,15}batch:(?=\d{1,15}num_updates:))?(?P<n>\d{1,15})(?:batch|num_updates):"
        ),
        3,
    ),
    # WeNet's `TRAIN Batch 3/200`, in epoch 3.
    (
        re.compile(
            r"\b(?:TRAIN|(?P<judged>CV)) (?:\| )?(?:steps/sec [\d.]{1,12}\| )?Batch "
            r"(?P<epoch>\d{1,15})/(?P<n>\d{1,15})"
        ),
        3,
    ),
    # A tutorial's `[3,  200] loss: 2.5`, in epoch 3.
    (
        re.compile(r"(?<![\w\]])\[(?P<epoch>\d{1,15}), ?(?P<n>\d{1,15})\](?= \w{0,12} ?loss)"),
        3,
    ),
    # tqdm in a logger, as Levanter's: numbers from 1000 on are rounded.
    (
        re.compile(
            r"Progress on:[^/]{0,80}? ?\b(?P<n>\d[\d.]{0,14})(?P<n_scale>[kMG]?)it"
            r"/(?P<of>\d[\d.]{0,14})(?P<of_scale>[kMG]?)it rate:"
        ),
        3,
    ),
    # A count alone, `[100] loss=0.5, accuracy=0.9`, behind a logger's own brackets.
    (re.compile(r"\A(?:.{0,120}\] )?\[(?P<n>\d{1,15})\](?= [\w/.-]{1,80}=)"), BATCH_RANK + 1),
    # Of trees: `[10]\ttrain-rmse:0.5` and `10: learn: 0.5`.
    (
        re.compile(r"\A\[(?P<n>\d{1,15})\](?= [\w.@]{1,40}(?:-|'s )[\w@.-]{1,40}: ?[\d.naif-])"),
        BATCH_RANK + 1,
    ),
    (re.compile(r"\A(?P<n>\d{1,15}): (?=learn: )"), BATCH_RANK + 1),
    (
        re.compile(
            r"(?<![\w(])(?P<word>train|valid(?:ation)?|eval|Epoch) "
            r"\((?P<epoch>\d{1,15})/(?P<epochs>\d{1,15})\)"
        ),
        3,
    ),
)
# `Batch [20]`.
_BRACKETED_STEP = re.compile(
    r"\b(?P<word>step|batch|iter(?:ation)?):? ?\[ ?(?P<n>\d{1,15}) ?\]", re.IGNORECASE
)
_CALL = re.compile(r"\b[A-Za-z_]\w*\([a-z_]\w*=")
_HINT = re.compile(
    r"step|iter|update|batch|\bit[ :=]|epoch|train|valid|progress on:|\[\d+(?:/\d+\]\[\d+/\d+|, "
    r"?\d+)?\]|learn:",
    re.IGNORECASE,
)
_EPOCH_OF = re.compile(
    r"\bepochs?:? ?[\[(]?(?P<epoch>\d{1,15})(?: ?/ ?(?P<of>\d{1,15}))?(?![\w.])", re.IGNORECASE
)
_TIMERS = re.compile(r"(?:^|[\] ])(?:rank=\d+ )?time \(ms\) \|")
_ADDRESS = re.compile(r"\b\w+://\S*")
# `loss nan lr 0.001`: a word that is a value.
_VALUE_WORD = re.compile(
    rf"(?<![^\s|,;:(\[-])(?P<name>{_FIRST_WORD}) (?P<value>[-+]?{NOT_FINITE})(?![\w/])"
)
# `loss at step 100: 2.5`; `Epoch #3`.
_AT = re.compile(
    r"(?<![\w.])(?P<name>[A-Za-z]\w{0,39}) at (?P<place>(?:step|iteration|iter|epoch|batch) "
    r"\d{1,15})"
    r"(?P<sign> ?[:=]| is)",
    re.IGNORECASE,
)
_NUMBER_SIGN = re.compile(r"(?<= )#(?=\d)")
# A line of a validation, behind a time and a level.
_JUDGED_LINE = re.compile(
    r"[^A-Za-z]*(?:(?:DEBUG|INFO|WARNING)\b[^A-Za-z]*)?(?:val|valid|validation|validating|test|testing|eval|evaluation|evaluating)"
    r"(?=[\]:|]| (?!-))",
    re.IGNORECASE,
)
_LETTERS = re.compile(r"[^\W\d_]")
_MAX_OTHER_LETTERS = 24
_DENSE_NAMES = 2
_MAX_PAIRS = 128


def read_pairs(text: str) -> Reading | None:
    """The reading of a line, None where it holds no step or no metric; blanks in a row must be one
    already.
    """
    if not _HINT.search(text) or _TIMERS.search(text) or _CALL.search(text):
        return None
    if "://" in text:
        text = _ADDRESS.sub("…", text)
    if " at " in text:
        text = _AT.sub(r"\g<place>, \g<name>\g<sign>", text)
    if "#" in text:
        text = _NUMBER_SIGN.sub("", text)
    text, texts = _with_digits(text)
    signed = []
    for match in islice(_SIGNED.finditer(text), _MAX_PAIRS):
        # The number of a line of a source: `package.module:function:56`.
        sign = text[match.end("name") :][:2].rstrip("0123456789")
        if sign != ":" or text[match.start() - 1 : match.start()] != ":":
            signed.append(match)
    matches = list(signed)
    for pattern in (_SPACED, _LOOSE):
        for match in islice(pattern.finditer(text), _MAX_PAIRS):
            name = tidy_name(match["name"])
            is_fit = (
                " " not in name or is_known(name.rsplit(" ", 1)[-1]) or step_rank(name) is not None
            )
            # A name begins behind a dash, as in `Metrics (step 100) - NLL Loss: 2.5`.
            is_apart = not any(
                match.start("name") < other.end()
                and other.start("name") + other["name"].rfind(" - ") + 1 < match.end()
                for other in matches
            )
            if is_fit and is_apart:
                matches.append(match)
    reading = _reading(text, matches, texts)
    if reading is None or not reading.values:
        return None
    is_sample = any(map(is_known, reading.values)) or (
        reading.has_step and _is_dense(text, signed, reading)
    )
    return reading if is_sample else None


def _with_digits(text: str) -> tuple[str, dict[int, str]]:
    """The text with digits in place of each `nan` and `inf` that is a metric's value, and what
    stood at their ends.

    The words stay where they are part of a name, as in Megatron's `number of nan iterations: 0`.
    """
    texts: dict[int, str] = {}

    def with_digits(match: re.Match[str]) -> str:
        value = match["value"]
        if not is_known(match["name"]):
            return match[0]
        texts[match.end()] = value
        return match[0].removesuffix(value) + "1" * len(value)

    lowered = text.lower()
    if "nan" in lowered or "inf" in lowered:
        text = _VALUE_WORD.sub(with_digits, text)
    return text, texts


class _Place(NamedTuple):
    """The part of a line from `begin` to `end` that has its step and epoch; None for what it lacks.

    `base` and the rest are as those of Position. `rank` is how good a step `n` is, as of step_rank.
    """

    begin: int
    end: int
    n: int | None
    of: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    base: int = 1
    is_usual: bool = False
    may_be_overall: bool = False
    rank: int = 3
    is_judged: bool = False


def _build_place(match: re.Match[str], rank: int) -> _Place:
    """`Epoch [1][50/1000]` is of mmdet, whose first epoch is 1, `Epoch: [0][50/1000]` of PyTorch's
    ImageNet example and what was made of it, whose first is 0, as timm's `Train: 0 [50/1000 (5%)]`.
    """
    groups = match.groupdict("")

    def count(name: str) -> int | None:
        digits = groups.get(name)
        return round(parse_number(digits, groups.get(f"{name}_scale"))) if digits else None

    word = groups.get("word", "").lower()
    mode = groups.get("mode", "")
    kind = groups.get("kind", "").lower()
    has_colon = bool(groups.get("colon"))
    has_bracket = bool(groups.get("open"))
    is_imagenet = word == "epoch" and (has_bracket or bool(mode))
    is_timm = word == "train" and has_colon and not has_bracket
    is_usual = (is_imagenet or is_timm) and not groups.get("epochs") and not kind
    is_judged = any(map(_JUDGED.match, (word, mode))) or bool(groups.get("judged"))
    return _Place(
        *match.span(),
        n=count("n"),
        of=count("of"),
        epoch=count("epoch"),
        epochs=count("epochs"),
        base=0 if is_usual and has_colon else 1,
        is_usual=is_usual,
        may_be_overall=kind not in ("", "batch"),
        rank=rank,
        is_judged=is_judged,
    )


def _reading(text: str, matches: list[re.Match[str]], texts: Mapping[int, str]) -> Reading | None:
    places = (
        _build_place(match, rank)
        for pattern, rank in _PLACES
        if (match := pattern.search(text)) is not None
    )
    place = next(places, None)
    # By the best name of a step.
    named: _Place | None = None
    pairs: list[tuple[str, float]] = []
    epochs: str | None = None
    for match in sorted(matches, key=lambda pair: pair.start("name")):
        name = tidy_name(match["name"])
        if not name or (place and place.begin <= match.start("name") < place.end):
            continue
        rank = step_rank(name)
        of = match["of"]
        if name == "ep" and text[match.start() - 1 : match.start()] == "[":
            name = "epoch"
        value = parse_number(texts.get(match.end("number"), match["number"]), match["unit"])
        if is_epoch(name):
            epochs = of
        elif rank is not None and is_step(value):
            if named is None or rank < named.rank:
                last_step = parse_last_step(of) if of else None
                named = _Place(0, 0, int(value), last_step, rank=rank)
        elif of and rank is None:
            continue
        pairs.append((name, value))
    reading = sort_pairs("pairs", pairs, parse_line_seconds(text))
    if not reading.has_epoch and (counted := _EPOCH_OF.search(text)):
        reading = reading._replace(epoch=float(counted["epoch"]))
        epochs = counted["of"]
    if place is None and named is None and (bracketed := _BRACKETED_STEP.search(text)):
        rank = step_rank(bracketed["word"]) or BATCH_RANK
        named = _Place(0, 0, int(bracketed["n"]), rank=rank)
    beside = None if named is None or place is None else named.rank
    place = place or named
    if place is None:
        return reading if reading.has_epoch else None
    if place.of is not None and _JUDGED_LINE.match(text):
        place = place._replace(is_judged=True)
    if place.epoch is None and is_step(reading.epoch):
        # Iterations are counted on over the epochs by some, within each by others; batches within
        # each.
        place = place._replace(
            epoch=int(reading.epoch),
            epochs=parse_last_step(epochs) if epochs else None,
            may_be_overall=place.rank < BATCH_RANK,
        )
    return _placed(reading, place, beside)


def _placed(reading: Reading, place: _Place, rank: int | None) -> Reading | None:
    """The reading at its place; `rank` is that of a step beside it, None where it has none."""
    if place.epoch is not None:
        reading = reading._replace(epoch=float(place.epoch))
    if place.is_judged or place.n is None:
        return reading._replace(step=nan) if reading.has_epoch else None
    of = place.of
    epoch = place.epoch
    if rank is not None and (rank < 2 or of is None):
        # `Acc_iter 50` beside `Train: 1/3 [49/323]` counts on.
        if of is None or place.epochs is None:
            return reading
        return reading._replace(last_step=parse_last_step(str(of * place.epochs)))
    if of and epoch is not None and place.rank > 1:
        position = Position(of, place.epochs, place.base, place.is_usual, place.may_be_overall)
        return reading._replace(
            step=tick_step(max(epoch - place.base, 0) * of + place.n), position=position
        )
    is_final = of is not None and place.rank < BATCH_RANK
    if of and place.rank == BATCH_RANK:
        # Whether these are batches of an epoch, other lines show: they have as many.
        reading = reading._replace(position=Position(of))
    return reading._replace(
        step=tick_step(place.n), last_step=of if is_final else reading.last_step
    )


def _is_dense(text: str, signed: list[re.Match[str]], reading: Reading) -> bool:
    """Whether a line of unknown names is all names and numbers: `step=10 temperature=3.4
    pressure=1.0`.
    """
    names = [name for name in reading.values if " " not in name]
    if len(names) < _DENSE_NAMES or len(names) < len(reading.values):
        return False
    covered = sum(len(_LETTERS.findall(match[0])) for match in signed)
    return len(_LETTERS.findall(text)) - covered <= _MAX_OTHER_LETTERS


# What Rich writes into a file has 80 columns; at the right stands the place in the source.
_CUT_RECORD = re.compile(
    r"(?:\[[^\]]{1,40}\])? ?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<text>.{0,400}) "
    r"[\w.<>-]{1,60}\.py:\d{1,6}"
)


def read_record(text: str) -> tuple[str, str] | None:
    """Read the beginning of a record that continues in the lines below: the sign that these begin
    with, and its text; None if it ends with its line. TFLearn writes two lines a step.
    """
    if ".py:" in text[-11:] and (match := _CUT_RECORD.fullmatch(text)):
        return " ", match["text"]
    text = text.lstrip(UP)
    return ("|", text) if text.startswith("Training Step: ") and " | " in text else None


# -- records

# What comes before a record: ranks, times, levels.
_LONGEST_PREFIX = 200
_MAX_COLUMNS = 256
_ITEM = re.compile(
    rf"'(?P<name>[^'{{}}]{{1,80}})': "
    rf"?(?:np\.float(?:32|64)\()?'?(?P<number>{NUMBER})\)?'?(?=[,}} ])"
)
_FIELD_NAME = re.compile(r"[A-Za-z_][\w /.()%@-]{0,79}")
_LOWER_NAN = re.compile(r"(?<=[: ])(-?)(nan|inf)(?=[,} ])")
_EXACT_NUMBER = re.compile(NUMBER)
# `3/10`.
_PART = re.compile(r"(?P<n>\d{1,15})/(?P<of>\d{1,15})")


def read_dict(text: str) -> tuple[Reading, str] | None:
    """A dict of a trainer as `{'loss': 2.1, 'epoch': 0.1}`, and what stands before it; None where
    there is none.
    """
    start = text.find("{'")
    if start < 0 or start > _LONGEST_PREFIX or "}" not in text:
        return None
    pairs = _named_numbers(_ITEM.finditer(text, start))
    # `step 10: {'loss': 2.5}`.
    before = _named_numbers(_LOOSE.finditer(text, 0, start))
    pairs += [(name, value) for name, value in before if _is_place(name)]
    reading = sort_pairs("dict", pairs, parse_line_seconds(text))
    is_metric = any(map(is_known, reading.values)) or any(
        name.startswith(("train_", "eval_")) for name in reading.values
    )
    return (reading, text[:start]) if reading.has_place and is_metric else None


def _named_numbers(matches: Iterable[re.Match[str]]) -> list[tuple[str, float]]:
    """The names and numbers of matches, scaled by the group `unit` of those that have it."""
    pairs = []
    for match in matches:
        if name := tidy_name(match["name"]):
            unit = match["unit"] if "unit" in match.re.groupindex else None
            pairs.append((name, parse_number(match["number"], unit)))
    return pairs


def read_json(text: str) -> Reading | None:
    """A JSON object with a step or an epoch, one level of objects in it read too (`eval/loss`)."""
    start = text.find('{"')
    if start < 0 or start > _LONGEST_PREFIX or not text.rstrip().endswith("}"):
        return None
    pairs: list[tuple[str, float]] = []
    for key, value in _parse_json(text[start:]).items():
        inner = value if isinstance(value, dict) else {"": value}
        for name, item in inner.items():
            name = tidy_name(f"{key}/{name}" if inner is value else key)
            number: float | None = None
            if isinstance(item, str) and _EXACT_NUMBER.fullmatch(item):
                number = parse_number(item)
            elif isinstance(item, int | float) and not isinstance(item, bool):
                # 1e400 written as digits is no float.
                is_huge = isinstance(item, int) and abs(item) >= 1e300
                number = nan if is_huge else float(item)
            if name and number is not None:
                pairs.append((name, number))
    reading = sort_pairs("json", pairs, parse_line_seconds(text))
    if not any(map(is_known, reading.values)):
        return None
    return reading if reading.has_place or any(map(is_loss, reading.values)) else None


def _parse_json(text: str) -> dict[str, Any]:
    """Parse an object, in which numbers may be written `nan` and `inf`, as C prints them; {} where
    it is none.
    """
    for is_lenient in (False, True):
        with suppress(ValueError, RecursionError):
            record: dict[str, Any] = json.loads(
                _LOWER_NAN.sub(_json_name, text) if is_lenient else text
            )
            return record
    return {}


def _json_name(match: re.Match[str]) -> str:
    return "NaN" if match[2] == "nan" else f"{match[1]}Infinity"


def read_header(text: str) -> tuple[str, ...] | None:
    """The names of a CSV's columns, where a line is such a header: one is a step or an epoch, and
    one a metric.
    """
    if text.count(",") >= _MAX_COLUMNS:
        return None
    has_commas = "," in text
    names = tuple(field.strip(' "') for field in (text.split(",") if has_commas else text.split()))
    metric_count = sum(map(is_known, names))
    if not metric_count or not any(map(_is_place, names)):
        return None
    # Without commas it may be prose.
    is_table = has_commas or (_is_place(names[0]) and metric_count > 1)
    is_distinct = len(set(names)) == len(names)
    return names if is_table and is_distinct and all(map(_FIELD_NAME.fullmatch, names)) else None


def _is_place(name: str) -> bool:
    return step_rank(name) is not None or is_epoch(name)


def read_row(text: str, header: tuple[str, ...]) -> Reading | None:
    """The row of a table under its header, None where the line is none; an empty field says
    nothing.
    """
    fields = text.split(",") if "," in text else text.split()
    if len(fields) != len(header):
        return None
    pairs: list[tuple[str, float]] = []
    time = nan
    for name, raw in zip(header, fields, strict=True):
        field = raw.strip(' "')
        if not field:
            continue
        if _EXACT_NUMBER.fullmatch(field):
            pairs.append((name, parse_number(field)))
        elif stamp := STAMP.fullmatch(field):
            time = stamp_seconds(stamp)
        elif (part := _PART.fullmatch(field)) and is_epoch(name):
            pairs.append((name, float(part["n"])))
        elif _is_place(name) or is_known(name):
            return None
    reading = sort_pairs("csv", pairs, time)
    return reading if reading.values else None


# -- bars and blocks

_BAR = re.compile(
    r"(?P<before>.{0,160}?) ?(?P<percent>\d{1,3})%\|(?P<drawn>[^|]{0,400})\| ?"
    r"(?P<n>\d{1,15})/(?P<of>\d{1,15})(?P<exact> )\[(?P<inside>[^\]]{0,4000})\]?(?P<after>.*)"
)
_EPOCH_OF_BAR = re.compile(
    r"\bepoch[ :=#]*\[?(?P<epoch>\d{1,15})(?!\d)(?: ?/ "
    r"?(?P<of>\d{1,15}))?|^(?P<first>\d{1,9})\|(?P<step>\d{1,15})\|",
    re.IGNORECASE,
)
_POSTFIX = re.compile(
    rf"(?:^|, ?)(?P<name>[^\W\d][^=:,]{{0,79}})(?:=|: "
    rf"?)(?P<number>{NUMBER})(?P<unit>[kKMB%]?)(?=,|$)"
)
_JUDGING_WORD = r"(?:val|valid\w{0,8}|eval\w{0,8}|test\w{0,3}|sanity|infer\w{0,6}|predict\w{0,4})"
_LAST_WORD = re.compile(r"([A-Za-z_]+):? ?$")
# Of Rich, as Lightning draws it: the last of 0 … 9 is 9 of 9.
_RICH_BAR = re.compile(
    r"Epoch (?P<epoch>\d{1,15})/(?P<epochs>-?\d{1,15}) [━╸╺ ]*(?P<n>\d{1,15})/(?P<of>\d{1,15}) "
    r"\d{1,4}:\d\d:\d\d • [\d:-]{1,12} (?P<rest>.*)"
)
_PER_STEP = re.compile(r"(?:it/s|s/it)(?:,|$)")
_UNKNOWN_END = re.compile(r"\| ?\d+/\? \[\d")
# A blank has one place to be in, lest each doubles the ways to fail.
_RANKS = r"(?:\d{1,5}:|\[[^\]]{1,40}\]:?|\([^)]{1,60}\)| )*"
_RANKS_ONLY = re.compile(_RANKS)
# The first word of a bar, or the last.
_JUDGING = re.compile(
    rf"{_RANKS}{_JUDGING_WORD}(?=[ :]|$)|.{{0,160}}(?<=[ (]){_JUDGING_WORD}\)?:? ?$", re.IGNORECASE
)

_KERAS_EPOCH = re.compile(r"(?:\d{1,5}: )?Epoch (?P<epoch>\d{1,15})/\d+ ?")
_KERAS = re.compile(
    r"(?:\d{1,5}: )? ?(?P<n>\d{1,15})/(?P<of>\d{1,15}|Unknown) "
    r"(?:\[[=>. ]*\]|[━╺╸ ]*(?=\d| -)|(?=-)) ?(?:- )?(?P<rest>.*)"
)
_KERAS_ITEM = re.compile(
    rf"(?:^|- )(?P<name>[^\W\d][\w/@. -]{{0,79}}?): (?P<number>{NUMBER})(?= |$)"
)

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


_TIME = r"(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?[:,]? ?(?:- )?)?"
# `Learning iteration 10/1500` of rsl_rl.
_ITERATION_HEAD = re.compile(
    r" (?:[a-z]{1,12} )?iteration (?P<step>\d{1,15})/(?P<of>\d{1,15})", re.IGNORECASE
)
_EPOCH_HEAD = re.compile(rf"{_TIME}Epoch:? (?P<epoch>\d{{1,15}}):? ?", re.IGNORECASE)
_STAMPED_BODY = re.compile(
    rf"{_TIME}(?P<name>[^\W\d][\w/.-]{{0,39}}(?: [a-z]{{1,20}}){{0,2}}?)(?: ?[:=] ?| "
    rf")(?P<number>{NUMBER})(?P<unit>%?)"
)
_SECTION = re.compile(r"\| [A-Za-z][\w -]{0,40}/ \| \| ?")
_ROW = re.compile(
    rf"\| (?P<name>[A-Za-z][\w/ .%()-]{{0,79}}?) \| (?P<number>{NUMBER})(?P<unit>%?) \| ?"
)


class Bar(NamedTuple):
    """A progress bar: its progress, and the values beside it.

    `is_training`: it counts a trainer's steps.
    """

    key: tuple[float, int, int]
    reading: Reading | None
    is_training: bool
    after: str
    before: str = ""


_ENDLESS = Bar((nan, 0, 0), None, False, "")


def read_bar(text: str) -> Bar | None:
    """The last painted bar of tqdm in a line, or one of Rich; None where there is none."""
    if "%|" not in text:
        if "•" in text and (rich := _RICH_BAR.fullmatch(text)):
            return _rich_bar(rich)
        return _ENDLESS if "/?" in text and _UNKNOWN_END.search(text) else None
    match = _BAR.match(text)
    if match is None:
        return None
    n = int(match["n"])
    of = int(match["of"])
    # Of 450/1000 the bar must say 45 %: other programs draw bars too.
    if not of or n > of or abs(100 * n / of - int(match["percent"])) > 1.5:
        return None
    before = match["before"]
    inside = match["inside"]
    after = match["after"].strip(UP + " ")
    # Some print it before the bar, some after it.
    pairs = [*_named_numbers(_POSTFIX.finditer(inside)), *_known_pairs(before)]
    if not after.startswith("{"):
        pairs += _known_pairs(after)
    reading = sort_pairs("bar", pairs, parse_line_seconds(before))
    counted = _EPOCH_OF_BAR.search(before)
    epoch = None
    epochs = None
    if counted is not None:
        epoch = int(counted["first"] or counted["epoch"])
        epochs = parse_last_step(counted["of"]) if counted["of"] else None
        if counted["step"]:
            reading = reading._replace(step=tick_step(int(counted["step"])))
    is_training = (
        not text.rstrip().endswith(UP)
        and bool(_PER_STEP.search(inside))
        and bool(_RANKS_ONLY.fullmatch(before))
    )
    bar = Bar((nan if epoch is None else float(epoch), n, of), None, is_training, after, before)
    if not reading.values or _JUDGING.match(before):
        return bar
    if epoch is None:
        word = _LAST_WORD.search(before)
        if word is not None and step_rank(word[1]) is not None:
            reading = reading._replace(last_step=of)
        if not reading.has_step:
            reading = reading._replace(step=tick_step(n))
        return bar._replace(key=(-1.0, n, of), reading=reading)
    if not reading.has_step:
        is_usual = "v_num=" in inside
        position = Position(of, epochs, 0 if epochs is None else 1, is_usual)
        reading = _at_position(reading, epoch, n, position)
    return bar._replace(reading=reading._replace(epoch=float(epoch)))


def _at_position(reading: Reading, epoch: int, n: int, position: Position) -> Reading:
    """The reading of a bar at `n` of an epoch; `Epoch 3` is mostly the fourth, `Epoch 3/10` the
    third.
    """
    step = tick_step(max(epoch - position.base, 0) * position.steps + n)
    return reading._replace(step=step, epoch=float(epoch), position=position)


def _rich_bar(match: re.Match[str]) -> Bar | None:
    epoch = int(match["epoch"])
    n = int(match["n"])
    of = int(match["of"])
    reading = sort_pairs("bar", _known_pairs(match["rest"]))
    if not reading.values or not of:
        return None
    is_endless = match["epochs"].startswith("-")
    last_step = None if is_endless else parse_last_step(str((int(match["epochs"]) + 1) * of))
    reading = reading._replace(
        step=tick_step(epoch * of + n), epoch=float(epoch), last_step=last_step
    )
    return Bar((float(epoch), n, of), reading, False, "")


def parse_bar_row(bar: Bar, header: tuple[str, ...]) -> Bar | None:
    """A bar behind the row of a table, as YOLO's, with what its row says; None where it is none."""
    fields = bar.before.strip(": ")
    reading = read_row(fields, header)
    part = _PART.fullmatch(fields.partition(" ")[0])
    _, n, of = bar.key
    if reading is None or part is None or not is_epoch(header[0]) or not of:
        return None
    epoch = int(part["n"])
    # YOLOv5 calls the last of 300 299 of 299, YOLOv8 300 of 300.
    position = Position(of, int(part["of"]), is_index=True)
    reading = _at_position(reading._replace(format="bar"), epoch, n, position)
    return bar._replace(key=(float(epoch), n, of), reading=reading)


def _known_pairs(text: str) -> list[tuple[str, float]]:
    """Names that trainings use and their numbers, around a bar."""
    if ": " not in text and "=" not in text and "oss " not in text:
        return []
    pairs = _named_numbers(_SIGNED.finditer(text))
    known = [pair for pair in pairs if is_known(pair[0]) or step_rank(pair[0]) is not None]
    if known:
        return known
    pairs = _named_numbers(_LOOSE.finditer(text))
    return [pair for pair in pairs if is_known(pair[0])]


def read_keras_epoch(text: str) -> int | None:
    """The number of `Epoch 3/10` alone in a line, None where the line is none."""
    match = _KERAS_EPOCH.fullmatch(text) if "Epoch " in text else None
    return int(match["epoch"]) if match else None


def read_keras(text: str) -> Bar | None:
    """A bar of Keras, whose epoch and step are not yet set; of 0 batches where their number is
    unknown.
    """
    match = _KERAS.fullmatch(text) if ": " in text and "/" in text else None
    if match is None:
        return None
    pairs = _named_numbers(_KERAS_ITEM.finditer(match["rest"]))
    reading = sort_pairs("keras", (pair for pair in pairs if pair[0] != "ETA"))
    if not reading.values:
        return None
    of = 0 if match["of"] == "Unknown" else int(match["of"])
    return Bar((nan, int(match["n"]), of), reading, False, "")


def read_block_head(text: str) -> Reading | None:
    """The first line of a block: `[batch=100/1000]:` of Composer, `[step=100/739328,epoch=1]` of
    OLMo, `Epoch 3` alone, or `| time/ | |` of a table.
    """
    if "poch" in text and (alone := _EPOCH_HEAD.fullmatch(text)):
        return Reading("block", {}, epoch=float(alone["epoch"]), time=parse_line_seconds(text))
    if "teration " in text and (match := _ITERATION_HEAD.fullmatch(text)):
        return Reading(
            "block", {}, tick_step(int(match["step"])), last_step=parse_last_step(match["of"])
        )
    if text.startswith("| ") and _SECTION.fullmatch(text):
        return Reading("block", {})
    if not text.rstrip().endswith(("]", "]:")):
        return None
    match = _COMPOSER_HEAD.fullmatch(text) or _OLMO_HEAD.fullmatch(text)
    if match is None:
        return None
    return Reading(
        "block",
        {},
        step=tick_step(parse_number(match["step"])),
        epoch=float(match["epoch"] or nan),
        time=parse_line_seconds(text),
        last_step=parse_last_step(match["of"]) if match["of"] else None,
    )


def read_block_line(text: str) -> tuple[str, float] | None:
    """One line within a block: indented, or behind a time, or a row of a table, a name and a number
    alone; ("", nan) of a table's section.
    """
    if text.startswith("| "):
        if _SECTION.fullmatch(text):
            return "", nan
        match = _ROW.fullmatch(text)
    else:
        match = _BODY.fullmatch(text) or _STAMPED_BODY.fullmatch(text)
        if match is not None and match.re is _STAMPED_BODY and not is_known(match["name"]):
            return None
    if match is None or not (name := tidy_name(match["name"])):
        return None
    return name, parse_number(match["number"], match["unit"])
