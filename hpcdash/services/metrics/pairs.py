"""Reads the step and the metrics of one line of names and numbers: Megatron, DeepSpeed, nanoGPT, fairseq, plain ones.

A line needs a step and, so that prose gives no series, a name that trainings use or at least two single words with `=`
or `:`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice

from hpcdash.services.metrics.vocabulary import (
    NOT_FINITE,
    NUMBER,
    STEP_WORD,
    UNIT,
    Reading,
    is_known,
    is_step,
    last_step_of,
    number_of,
    seconds_of_line,
    sort_pairs,
    step_of,
    step_rank,
    tidy_name,
)

# What a line of this kind holds, in small letters; each kind names its own.
HINTS = (b"step", b"iter", b"update", b"batch", b"epoch", b"it ", b"it=", b"it:")
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
