"""Which of qsub's options a person may give besides a request, and which the request alone says. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpcdash.backends.script.body import raise_for
from hpcdash.domain import qsub
from hpcdash.launch.directive_words import pbs_word, whole_options

# What a request's fields say, or what would keep a batch job from being one. -G and --version are of other qsubs.
RESERVED = frozenset("cCeGhIjJkoqrRSuvVXz")
_PLACES = {
    "J": "array",
    "h": "hold",
    "q": "queue",
    "r": "requeue",
    "v": "environment",
    "V": "environment",
    "k": "keep_files",
    "e": "work_dir: the log is in the launch's own folder",
    "o": "work_dir: the log is in the launch's own folder",
}

# Attributes of -W that the request says itself, most of which qsub sets anew after them, by the field in their place.
_OWN_ATTRIBUTES = {
    "account_name": "account",
    "array_indices_submitted": "array",
    "depend": "after",
    "error_path": _PLACES["e"],
    "hold_types": "hold",
    "job_name": "name",
    "keep_files": "keep_files",
    "max_run_subjobs": "array, as in 1-10%2",
    "output_path": _PLACES["o"],
    "project": "project",
    "rerunable": "requeue",
    "variable_list": "environment",
    **dict.fromkeys(
        ("block", "checkpoint", "interactive", "join_path", "remove_files", "shell_path_list", "user_list"), ""
    ),
}


def pbs_attributes(attributes: Iterable[str], extra_args: Iterable[str]) -> tuple[str, ...]:
    """The -W options of a request's attributes and of those among its extra_args, one each; the last of a name counts.

    The umask is 0022 where neither says it. Raises UsageError naming all that are the request's to say.
    """
    refused: list[tuple[str, str]] = []
    texts = [("attributes", text) for text in attributes]
    for text in whole_options(extra_args, qsub.read_directive, pbs_word):
        texts += [("extra_args", one.value or "") for one in qsub.read_directive(text).given if one.name == "W"]
    found: dict[str, tuple[str, str]] = {"umask": ("", "0022")}
    for field, text in texts:
        named = qsub.attributes(text)
        if not named:
            refused.append((f"{field}: -W {text} is no NAME=VALUE", "As in umask=027."))
        for name, value in named:
            if name.lower() in _OWN_ATTRIBUTES:
                place = _OWN_ATTRIBUTES[name.lower()]
                step = f"Its field is {place}." if place else "A job from here cannot have it."
                refused.append((f"{field}: -W {name}= is the request's to say", step))
            elif found.get(name, ("",))[0] not in ("", field):
                refused.append((f"-W {name}= is not for extra_args: attributes says it", "Leave one of the two out."))
            found[name] = (field, value)
    raise_for(refused)
    return tuple(f"-W {pbs_word(field, f'{name}={value}')}" for name, (field, value) in found.items())


def pbs_extra_options(extra_args: Iterable[str]) -> tuple[str, ...]:
    """A person's own options as they were written, each once, in order; without -l, which the select takes up, and -W.

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
            elif option.name not in ("l", "W"):
                kept[" ".join(pbs_word("extra_args", word) for word in option.words)] = None
        if read.script:
            refused.append((f"{read.script[0]!r} in extra_args is no option of qsub", "Write one option an item."))
    raise_for(refused)
    return tuple(kept)
