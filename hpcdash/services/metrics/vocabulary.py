"""The words of a training's log: numbers, step words, counts, names of metrics, times."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from math import floor, isfinite, isnan, nan
from typing import NamedTuple

LONGEST_NAME = 80
# A log repeats its names.
_MAX_NAMES = 4096
# A time stands at the beginning of a line, perhaps after a rank or a level.
STAMP_LETTERS = 120

_PLAIN_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
# Lightning's bars pad it: `nan.0`.
NOT_FINITE = r"(?:nan|NaN|NAN|inf|Inf|INF|Infinity)(?:\.0*)?(?![A-Za-z])"
NUMBER = rf"[-+]?(?:{_PLAIN_NUMBER}|{NOT_FINITE})"
# 12.34ms, 10.0GiB(10.5%), 3.2 %, 73.352 sec; then no more of a word, a version, an address, a time
# or a duration.
UNIT = (
    r"(?P<unit>[A-Za-zµ%°][A-Za-z/%µ²]{0,15}(?![\w])|%| "
    r"(?:ms|s|secs?|seconds|[KMGT]i?B|%|it/s|tok/s)(?![\w:=/]))?"
    r"(?:\([^()=:]{0,24}\))?(?![\w]|[.:-]\w|/\d| days?, \d{1,2}:\d)"
)

# The better of two counts has the lower rank.
_STEP_RANKS = {
    "num_updates": 1,
    "iteration": 2,
    "step": 3,
    "_step": 3,
    "timesteps": 3,
    "num_timesteps": 3,
    "total_timesteps": 3,
    "timesteps_total": 3,
    "iter": 4,
    "steps": 5,
    "update": 6,
    "updates": 6,
    "it": 7,
    "batch": 8,
}
_STEP_NAME = re.compile(
    r"(?:train(?:ing|er)?[_/])*(?P<overall>(?:global|acc|completed|finished|current|cur|optimizer)[_/]?)?"
    rf"(?P<word>{'|'.join(_STEP_RANKS)})"
)
STEP_WORD = (
    r"(?:(?:global|acc|cur|current|completed|train(?:ing)?)[_ ])?"
    r"(?:num_updates|iteration|steps?|iter|updates?|it|batch)|globalstep"
)
BATCH_RANK = _STEP_RANKS["batch"]
_EPOCH_NAME = re.compile(r"(?:(?:train(?:ing)?|current|cur)[_/])?epochs?")
_TOKEN_WORDS = {
    "tokens",
    "consumed_tokens",
    "total_tokens",
    "num_tokens",
    "tokens_seen",
    "n_tokens",
    "tokens_total",
    "trained_tokens",
    "num_input_tokens_seen",
    "time/token",
    "throughput/total_tokens",
    "train/num_tokens",
    "train/tokens",
}
_TIME_WORDS = {"time", "timestamp", "_timestamp", "ts", "wall_time"}
_LAST_STEP_WORDS = {
    "last_step",
    "max_steps",
    "total_steps",
    "total_iterations",
    "train_iters",
    "max_iters",
    "total_iters",
    "num_training_steps",
}
_WHO_AND_WHERE = """
rank local_rank global_rank world_size pid gpu gpus node nodes device worker host thread v_num seed port job jobid
job_id version id run run_id attempt line lineno level levelno code exit_code micro_step eta info debug warning error
"""
_NO_METRICS = frozenset(_WHO_AND_WHERE.split())
# Names that only a training writes: with a step beside them they need no further proof.
_KNOWN = re.compile(
    r"loss|(?<![a-z])acc(?:uracy)?(?![a-z])|(?<![a-z])(?:ppl|lr|nll|mse|mae|wer|cer|mfu|bleu|f1|auc|iou|psnr|ssim|elbo|kl)"
    r"(?![a-z])|perplexity|learning.?rate|grad|norm(?![a-z])|reward|entropy|rmse|flops|tokens.?per|samples.?per|samples/s"
    r"|tok/s|rougel?(?![a-z])|(?<![a-z])(?:score|map|miou|dice|return)(?![a-z])|(?<![a-z])rew(?:_|$)|logloss|(?<![a-z])l[12]$|^learn$",
    re.IGNORECASE,
)
_LOSS = re.compile(r"loss|perplexity|ppl|nll|cross[ _]entropy", re.IGNORECASE)
# The factor that mixed precision multiplies a loss with.
_LOSS_SCALE = re.compile(r"loss[ _/-]?scal", re.IGNORECASE)
_SOURCE_FILE = re.compile(r"\.(?:py|pyx|cc?|cpp|cu|cuh|h|hpp|rs|go|jl|f90)$")
_LEVEL = re.compile(r"^(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|NOTICE|TRACE)\b ?[-:]? ?")
_NAME_ENDS = " \t'\"-:;,|>*#"
# Seconds, milliseconds, microseconds, nanoseconds.
_TIME_SCALES = (1.0, 1e3, 1e6, 1e9)
# Zones differ by quarters of an hour, from UTC by 14 hours at most; a file's clock may be a little
# behind.
_ZONE_STEP = 900.0
_MAX_ZONE = 14 * 3600.0
_CLOCKS_APART = 120.0
YEAR_2000 = 946_684_800.0
YEAR_2100 = 4_102_444_800.0
# No epoch and no count of tokens is so large; sums and differences of what is smaller stay finite.
_FARTHEST = 2.0**63
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}

STAMP = re.compile(
    r"(?<![\d.])(\d{4})([-/])(\d{2})([-/])(\d{2})([T ])(\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d{2}:?\d{2})?(?![\d:])"
)


class Position(NamedTuple):
    """The place of a line within its epoch, where only other lines can show what it counts.

    `steps` are those of an epoch, or of the whole training where `may_be_overall`. `epochs` are
    all, None where the line names no number of them; where `is_index` and the first epoch is 0,
    that of the last. `base` is the first epoch that the reading's step assumes; `is_usual` where
    the format's programs all begin there.
    """

    steps: int
    epochs: int | None = None
    base: int = 1
    is_usual: bool = False
    may_be_overall: bool = False
    is_index: bool = False


class Reading(NamedTuple):
    """Content of one line, or one block of lines; missing numbers are nan."""

    format: str
    values: dict[str, float]
    step: float = nan
    epoch: float = nan
    tokens: float = nan
    time: float = nan
    last_step: int | None = None
    position: Position | None = None

    @property
    def has_step(self) -> bool:
        return not isnan(self.step)

    @property
    def has_epoch(self) -> bool:
        return not isnan(self.epoch)

    @property
    def has_place(self) -> bool:
        return self.has_step or self.has_epoch


def parse_number(text: str, unit: str | None = None) -> float:
    """The number of a text that NUMBER matches: `1,234` is 1234, `1.2` with the unit `k` 1200.

    Raises ValueError.
    """
    value = float((text.rstrip(".0") if "n" in text.lower() else text).replace(",", ""))
    return value * _SCALES[unit] if unit in _SCALES else value


@lru_cache(maxsize=_MAX_NAMES)
def tidy_name(raw: str) -> str:
    """A metric's name, "" where it can be none; see the module for the rule."""
    name = " ".join(raw.split()).rsplit(" - ", 1)[-1].strip(_NAME_ENDS)
    name = _LEVEL.sub("", name).strip(_NAME_ENDS)
    if not name or len(name) > LONGEST_NAME or _SOURCE_FILE.search(name) or not name.isprintable():
        return ""
    return name


@lru_cache(maxsize=_MAX_NAMES)
def is_known(name: str) -> bool:
    """Whether a name is one of those that trainings give their metrics."""
    return _KNOWN.search(name) is not None


def is_loss(name: str) -> bool:
    """Whether a metric of that name should fall."""
    return _LOSS.search(name) is not None and _LOSS_SCALE.search(name) is None


def step_rank(name: str) -> int | None:
    """Rank a name as the name of a step, 0 the best; None if it is not one."""
    return _rank(_key(name))


@lru_cache(maxsize=_MAX_NAMES)
def _rank(key: str) -> int | None:
    match = _STEP_NAME.fullmatch(key)
    if match is None:
        return None
    rank = _STEP_RANKS[match["word"]]
    return 0 if match["overall"] and rank < BATCH_RANK else rank


def is_epoch(name: str) -> bool:
    """Whether the name is that of an epoch."""
    return _EPOCH_NAME.fullmatch(_key(name)) is not None


def is_step(value: float) -> bool:
    """Whether a number can be a step."""
    return isfinite(value) and value >= 0 and value == int(value) and value < 2**53


def parse_line_seconds(text: str) -> float:
    """Epoch seconds of the time that stands at the beginning of a line, nan where none does; no
    zone counts as UTC.
    """
    match = STAMP.search(text, 0, STAMP_LETTERS)
    return nan if match is None else stamp_seconds(match)


def newest_stamp(text: str) -> tuple[float, bool] | None:
    """Return the time of the last line that begins with one, and whether it bears a zone.

    The time is as `parse_line_seconds` returns it; None if no line begins with a time.
    """
    for line in reversed(text.splitlines()):
        if (match := STAMP.search(line, 0, STAMP_LETTERS)) is not None and isfinite(
            seconds := stamp_seconds(match)
        ):
            return seconds, match[11] is not None
    return None


def zone_behind_seconds(stamped_at: float, modified_at: float) -> float:
    """Return how many seconds a zone is behind UTC (negative: ahead), in whole quarters of an hour.

    A stamp without a zone counts as UTC, and a file was modified soon after its last stamp. 0 if
    the difference is not that of a zone.
    """
    behind = _ZONE_STEP * floor((modified_at - stamped_at + _CLOCKS_APART) / _ZONE_STEP)
    return behind if -_MAX_ZONE <= behind <= _MAX_ZONE else 0.0


def epoch_seconds(value: float) -> float:
    """Epoch seconds of a time in seconds, milli-, micro- or nanoseconds, told apart by its size;
    nan of one that is not between the years 2000 and 2100.
    """
    return next(
        (value / scale for scale in _TIME_SCALES if YEAR_2000 <= value / scale < YEAR_2100), nan
    )


def stamp_seconds(match: re.Match[str]) -> float:
    """Epoch seconds of what STAMP matched, nan where there is no such day between the years 2000
    and 2100.
    """
    year, _, month, _, day, _, hour, minute, second, fraction, zone = match.groups()
    if not 2000 <= int(year) < 2100:
        return nan
    try:
        moment = datetime.fromisoformat(f"{year}-{month}-{day}T{hour}:{minute}:{second}+00:00")
    except ValueError:
        return nan
    seconds = moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    if zone and zone != "Z":
        ahead = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= ahead if zone[0] == "+" else -ahead
    return seconds


def sort_pairs(format_name: str, pairs: Iterable[tuple[str, float]], time: float = nan) -> Reading:
    """The pairs of a line by what they are: step, epoch, tokens, time, and the metrics."""
    values: dict[str, float] = {}
    step = epoch = tokens = nan
    best = 99
    last_step: int | None = None
    for name, value in pairs:
        key = _key(name)
        rank = _rank(key)
        if rank is not None:
            if is_step(value) and rank < best:
                step = value
                best = rank
        elif _EPOCH_NAME.fullmatch(key):
            epoch = value if abs(value) < _FARTHEST else epoch
        elif key in _TOKEN_WORDS:
            tokens = value if abs(value) < _FARTHEST else tokens
        elif key in _TIME_WORDS and value > 1e9:
            seconds = epoch_seconds(value)
            time = seconds if isfinite(seconds) else time
        elif key in _LAST_STEP_WORDS:
            last_step = int(value) if is_step(value) else last_step
        elif key not in _NO_METRICS:
            values[name] = value
    return Reading(
        format_name, values, step=step, epoch=epoch, tokens=tokens, time=time, last_step=last_step
    )


def _key(name: str) -> str:
    return name.lower().replace(" ", "_").replace("-", "_")


def tick_step(count: float) -> float:
    """A count as a step, nan where it can be none."""
    return float(count) if is_step(count) else nan


def parse_last_step(digits: str) -> int | None:
    """The final step of at most 19 digits and commas, None where it can be none."""
    value = int(digits.replace(",", ""))
    return value if is_step(value) else None
