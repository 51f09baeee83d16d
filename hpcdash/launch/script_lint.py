"""What is wrong with a batch script as bytes: its form, its directives, and what they ask for. Pure: asks nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Literal

from hpcdash.backends.options import Option
from hpcdash.backends.pbs import options as qsub
from hpcdash.backends.slurm import options as sbatch
from hpcdash.domain.demand import Demand, Finding, unmet
from hpcdash.domain.offers import Offers
from hpcdash.launch.script_demand import is_pbs_time, is_slurm_time, pbs_demand, slurm_demand

Dialect = Literal["slurm", "pbs"]
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_PROGRAM = {"slurm": "sbatch", "pbs": "qsub"}
_MAGIC = {"slurm": sbatch.MAGIC, "pbs": qsub.MAGIC}
# Of a long script, so many lines are named.
_MOST_LINES_NAMED = 5
# Directives are looked for only this far, as where they are explained.
_MOST_LINES_READ = 2000
_MOST_FINDINGS = 50
# A word that begins with a dash of another kind, or stands in quotes of print.
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_QUOTES = "\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb"
_BLANKS = "\u00a0\u2007\u202f\u200b\ufeff"
_ODD = re.compile(f"[{_DASHES}{_QUOTES}{_BLANKS}]")
_ODD_OPTION = re.compile(rf"(?:^|\s)([{_DASHES}]+[A-Za-z])")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|^~")


def lint_script(script: bytes, directives: Dialect, offers: Offers, over: Sequence[str] = ()) -> tuple[Finding, ...]:
    """What is wrong with a batch script as bytes: those that stop it and those that may, errors first. Raises nothing.

    `over` are options on the command line, which take the place of the script's own. `field` is `line 7` where a line
    has it, and for what is said over it `queue`, `time` or `extra_args`. Of many findings the first 50 are given.
    """
    text = script.decode("utf-8", "surrogateescape")
    lines = text.split("\n")[:_MOST_LINES_READ]
    found = list(_form(script, directives))
    if not script.strip():
        return tuple(found)
    found += _typographic(lines, _MAGIC[directives])
    # A character of print in an option is told once.
    told = {one.field for one in found}
    module = sbatch if directives == "slurm" else qsub
    given = module.read_directives("\n".join(lines)).given
    odd = (one for option in given for one in _option(option, directives) if one.field not in told)
    found += islice(odd, _MOST_FINDINGS)
    found += _not_read(lines, directives)
    found += _of_others(lines, directives, has_own=bool(given))
    found += unmet(script_demand(script, directives, over), offers)
    return tuple(sorted(found, key=lambda one: one.severity != "error")[:_MOST_FINDINGS])


def script_demand(script: bytes, directives: Dialect, over: Sequence[str] = ()) -> Demand:
    """What a script asks for with its own directives, and what is said over them."""
    text = "\n".join(script.decode("utf-8", "surrogateescape").split("\n")[:_MOST_LINES_READ])
    module = sbatch if directives == "slurm" else qsub
    given = [option for option in module.read_directives(text).given if not option.problem]
    said = [option for option in module.read_command_line(over).given if not option.problem]
    if directives == "slurm":
        demand, names = slurm_demand((*given, *said)), {option.name for option in said}
    else:
        # Of a script's resources the first counts, of all else the last.
        resources = [option for option in said if option.name == "l"]
        demand = pbs_demand((*resources, *given, *(option for option in said if option.name != "l")))
        names = set(qsub.settings(said, in_script=False))
    if not names:
        return demand
    places = {"queues": "queue"} if names & {"partition", "q"} else {}
    places |= {"limit_seconds": "time"} if names & {"time", "l.walltime"} else {}
    others = dict.fromkeys(field.name for field in fields(Demand) if field.name not in demand.where)
    return replace(demand, where={**dict.fromkeys(others, "extra_args"), **demand.where, **places})


def _form(script: bytes, directives: Dialect) -> Iterator[Finding]:
    program = _PROGRAM[directives]
    if not script.strip():
        yield Finding("error", "", "the script is empty", f"{program} refuses it." if directives == "slurm" else "")
        return
    bom = next((bom for bom in _BOMS if script.startswith(bom)), b"")
    if bom:
        kind = "UTF-8" if len(bom) == 3 else "UTF-16"
        words = f"it begins with a byte-order mark ({kind})"
        yield Finding("error", "line 1", words, "Save it as UTF-8 without one.")
    elif b"\x00" in script:
        yield Finding("error", "", "it holds NUL bytes: it is no text", f"{program} takes scripts, not programs.")
    elif not script.startswith(b"#!"):
        if directives == "slurm":
            words = "its first line is no #!: sbatch refuses it"
        else:
            words = "its first line is no #!: your login shell runs it"
        first = re.search(rb"(?m)^[ \t]*#!", script)
        where = "The #! has to be its very first bytes." if first else "Begin it with #!/bin/bash"
        yield Finding("error" if directives == "slurm" else "warning", "line 1", words, where)
    if crlf := script.count(b"\r\n"):
        all_of = "its lines end" if crlf >= script.count(b"\n") else f"{crlf} of its lines end"
        words = "sbatch refuses it" if directives == "slurm" else "the shell there takes the CR for a part of each word"
        yield Finding("error", "", f"{all_of} in CRLF, as on Windows: {words}", "sed -i 's/\\r$//' FILE mends it.")


def _typographic(lines: Sequence[str], magic: str) -> Iterator[Finding]:
    """Dashes, quotes and blanks of print, which documents and chats put in place of those of a keyboard."""
    named = 0
    for number, line in enumerate(lines, start=1):
        is_directive = line.lstrip().startswith(magic)
        if line.lstrip().startswith("#") and not is_directive:
            continue
        odd = _ODD.search(line) if is_directive else _ODD_OPTION.search(line)
        if odd is None:
            continue
        named += 1
        if named > _MOST_LINES_NAMED:
            return
        letter = odd[odd.lastindex or 0][0]
        kind, meant = _kind(letter)
        words = f"{kind} of print ({letter if kind != 'a blank' else f'U+{ord(letter):04X}'}) where {meant} is meant"
        yield Finding("error" if is_directive else "warning", f"line {number}", words, "Type it anew.")


def _kind(letter: str) -> tuple[str, str]:
    if letter in _DASHES:
        return "a dash", "-"
    return ("a quote", "\" or '") if letter in _QUOTES else ("a blank", "a plain one")


def _option(option: Option, directives: Dialect) -> Iterator[Finding]:
    program, place = _PROGRAM[directives], f"line {option.line}"
    if option.problem == "unknown" and directives == "slurm":
        near = difflib.get_close_matches(option.written.lstrip("-")[:60], sbatch.OPTIONS, n=1, cutoff=0.75)
        words = f"sbatch has no option {option.written}"
        if near:
            yield Finding("error", place, words, f"Did you mean --{near[0]}?")
        else:
            yield Finding("warning", place, words, "It refuses the script, unless a plugin of this site takes it.")
    elif option.problem:
        yield Finding("error", place, f"{option.written}: {option.problem}", f"{program} refuses the script.")
    elif directives == "slurm":
        yield from _slurm_value(option, place)
    elif option.name == "l":
        for name, amount in qsub.resources(option.value or ""):
            if name == "walltime" and not is_pbs_time(amount):
                yield Finding("error", place, f"walltime={amount} is no time", "Write hours:minutes:seconds.")


def _slurm_value(option: Option, place: str) -> Iterator[Finding]:
    if option.name == "time" and not is_slurm_time(option.value or ""):
        words = f"{option.value!r} is no time to sbatch: it takes no units"
        yield Finding("error", place, words, "Write minutes, hours:minutes:seconds or days-hours.")
    elif option.value and (found := _VARIABLE.search(option.value)):
        words = f"sbatch fills in no variables: {found[0]} stays as it is in --{option.name}"
        yield Finding("warning", place, words, "Write it out, or give the option on the command line.")


def _not_read(lines: Sequence[str], directives: Dialect) -> Iterator[Finding]:
    """Directives behind the first command, and those that are written so that they do not count."""
    magic, first = _MAGIC[directives], _first_command(lines, directives)
    named = 0
    for number, line in enumerate(lines, start=1):
        text = line.lstrip()
        place = f"line {number}"
        if named >= _MOST_LINES_NAMED:
            return
        if text.startswith(magic) and first and number > first:
            named += 1
            words = f"not read: line {first} before it is a command"
            yield Finding("warning", place, words, "Move it to the top.")
        elif text.startswith(magic) and text != line and directives == "slurm":
            named += 1
            yield Finding("warning", place, f"not read: {magic} has to begin the line", "Remove the blanks before it.")
        elif text[: len(magic)].upper() == magic and not text.startswith(magic) and text[len(magic) :].startswith(" -"):
            named += 1
            yield Finding("warning", place, f"not read: {text[: len(magic)]} is not {magic}", "Write it in capitals.")


def _first_command(lines: Sequence[str], directives: Dialect) -> int:
    """The number of the line that ends the directives, 0 for none."""
    for number, line in enumerate(lines, start=1):
        is_label = directives == "pbs" and line.startswith(":")
        if line.strip() and not line.lstrip().startswith("#") and not is_label:
            return number
    return 0


def _of_others(lines: Sequence[str], directives: Dialect, *, has_own: bool) -> Iterator[Finding]:
    other: Dialect = "pbs" if directives == "slurm" else "slurm"
    first = next((number for number, line in enumerate(lines, start=1) if line.startswith(f"{_MAGIC[other]} ")), 0)
    if not first:
        return
    if directives == "slurm":
        # Seen on 22.05: beside #SBATCH lines too.
        words = "#PBS lines are for PBS: sbatch follows some of them, and leaves out the rest"
        step = "Write #SBATCH lines instead." if not has_own else "Remove them, or give --ignore-pbs."
        yield Finding("warning", f"line {first}", words, step)
        return
    words = "#SBATCH lines are for Slurm: qsub takes them for comments"
    if has_own:
        yield Finding("warning", f"line {first}", words, "")
    else:
        yield Finding("error", f"line {first}", f"{words}, and there is no #PBS line", "Write #PBS lines instead.")
