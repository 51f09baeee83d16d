"""Which of qsub's options a person may give besides a request, and which the request alone says. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpcdash.domain import qsub
from hpcdash.launch.directive_words import pbs_word, whole_options
from hpcdash.launch.refusals import raise_for

# What a request's fields say, or what would keep a batch job from being one. -G and --version are of other qsubs.
RESERVED = frozenset("cCeGhIjJkoqrRSuvVWXz")
_PLACES = {
    "J": "array",
    "h": "hold",
    "q": "queue",
    "r": "requeue",
    "v": "environment",
    "V": "environment",
    "W": "after, for what the job waits for",
    "e": "work_dir: the log is in the launch's own folder",
    "o": "work_dir: the log is in the launch's own folder",
}


def pbs_extra_options(extra_args: Iterable[str]) -> tuple[str, ...]:
    """A person's own options as they were written, each once, in order; without -l, which the select takes up.

    Raises UsageError naming all options that are the request's to say, wherever they stand: `-A acct   -I`.
    """
    kept: dict[str, None] = {}
    refused: list[tuple[str, str]] = []
    for text in whole_options(extra_args, qsub.read_directive, pbs_word):
        if not text.isprintable():
            refused.append((f"{text!r} in extra_args holds what cannot stand in one line", "Write one option an item."))
            continue
        for word in text.split():
            if word in ("--", "--version"):
                refused.append((f"{word} is not for extra_args: it would end qsub's options", "Leave it out."))
        read = qsub.read_directive(text)
        for option in read.given:
            letter = option.name or option.written.lstrip("-")[:1]
            if letter in RESERVED:
                place = _PLACES.get(letter)
                step = f"Its field is {place}." if place else "A job from here cannot have it."
                refused.append((f"-{letter} is not for extra_args: the request says it itself", step))
            elif option.problem:
                refused.append((f"{option.written} is {option.problem} to qsub", "Its options: man qsub."))
            elif option.name != "l":
                kept[" ".join(pbs_word("extra_args", word) for word in option.words)] = None
        if read.script:
            refused.append((f"{read.script[0]!r} in extra_args is no option of qsub", "Write one option an item."))
    raise_for(refused)
    return tuple(kept)
