"""Reads the command line a job was submitted with out of Slurm's records, which keep no quotes. Pure; knows no action.

SubmitLine of the accounting (20.11 and later) joins the words with blanks. Texts that are known otherwise (the job's
name, comment, folder, what was wrapped; the script and its arguments, of a job the controller still has) tell where
such a blank was inside a word.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdash.backends.job_detail import Script
from hpcdash.backends.options import CommandLine, Option, last_value
from hpcdash.backends.slurm.options import read_command_line

_WRAPPED = "# This script was created by sbatch --wrap.\n"
_NULL = "(null)"
_SUFFIXES = (".sh", ".bash", ".sbatch", ".batch", ".slurm", ".slm", ".job", ".py", ".pl", ".csh", ".zsh")
# Stands for a blank inside a word.
_BLANK = "\x00"


@dataclass(frozen=True, slots=True)
class SubmitLine:
    """What sbatch was given: its options, and the script with its arguments (() where it came on stdin or wrapped).

    `is_certain` is false where the script's name may be another word than the one taken for it.
    """

    options: tuple[Option, ...]
    script: tuple[str, ...] = ()
    is_certain: bool = True


def read_submit_line(
    line: str, row: Mapping[str, Any], script: Script | None, command: str | None = None
) -> SubmitLine | None:
    """The words of a SubmitLine; None where it is none of sbatch's.

    `command` is what scontrol shows as Command: the script and its arguments, '(null)' of a job that had no such file,
    None where that is not known.
    """
    # The script is often in the job's folder, and so are other files.
    for text, times in ((row["name"], 1), (row["comment"], 1), (_wrapped(script), 1), (row["work_dir"], -1)):
        if text and " " in text.strip():
            line = line.replace(text, text.replace(" ", _BLANK), times)
    words = line.split(" ")
    if os.path.basename(words[0]) != "sbatch":
        return None
    words = words[1:]
    read = read_command_line(words)
    usual = len(words) - len(read.script)
    is_certain = True
    if command is not None:
        begin = _script_begins(words, command)
    else:
        is_sure = not read.script or _is_path(read.script[0], row["name"])
        begin = usual if is_sure else _named_script(words, usual, row["name"], read.options)
    if begin is None:
        begin, is_certain = usual, False
    options = tuple(map(_whole_option, _options(words[:begin])))
    return SubmitLine(options, tuple(map(_whole, words[begin:])), is_certain)


def _script_begins(words: Sequence[str], command: str) -> int | None:
    """Which word is the script's name: from it on the words are those of Command, which may name it by a full path."""
    if command == _NULL:
        return len(words)
    for at in range(len(words)):
        rest = _whole(" ".join(words[at:]))
        if command == rest or command.endswith(f"/{rest}"):
            return at
    return None


def _is_path(word: str, name: str | None) -> bool:
    """Whether a word surely is the script's, and not the rest of a value with blanks."""
    script = _whole(word)
    return "/" in script or script == name or script.endswith(_SUFFIXES)


def _named_script(words: Sequence[str], begin: int, name: str | None, given: Sequence[Option]) -> int | None:
    """Which word from `begin` on a job has its name from: the script's file gives it where no option does."""
    if not name or last_value(given, "job-name") is not None:
        return None
    return next((at for at in range(begin, len(words)) if os.path.basename(_whole(words[at])) == name), None)


def _options(words: Sequence[str]) -> tuple[Option, ...]:
    """Options alone: a word among them that is none goes on the value before it."""
    joined = list(words)
    while True:
        read: CommandLine = read_command_line(joined)
        if not read.script:
            return read.given
        at = len(joined) - len(read.script)
        last = read.given[-1] if read.given else None
        if at == 0 or last is None:
            return read.given
        if last.problem == "unknown" and "=" not in joined[at - 1]:
            # A plugin's option with its value in a word of its own: made one word, it is passed on as it is.
            joined[at - 1 : at + 1] = [f"{joined[at - 1]}={joined[at]}"]
        else:
            joined[at - 1 : at + 1] = [f"{joined[at - 1]}{_BLANK}{joined[at]}"]


def _whole(word: str) -> str:
    return word.replace(_BLANK, " ")


def _whole_option(option: Option) -> Option:
    value = None if option.value is None else _whole(option.value)
    return Option(
        option.name, value, _whole(option.written), tuple(map(_whole, option.words)), option.line, option.problem
    )


def _wrapped(script: Script | None) -> str | None:
    """What --wrap was given, of a script that sbatch made of it."""
    if script is None or _WRAPPED not in script.text:
        return None
    return script.text.partition(_WRAPPED)[2].strip("\n")
