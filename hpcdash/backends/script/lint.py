"""Lint of a batch script's bytes for any scheduler: its form, and directives that are not read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.options import Option, ParsedCommandLine
from hpcdash.domain.demand import Demand, LintFinding, unmet
from hpcdash.domain.offers import Offers
from hpcdash.domain.units import parse_memory

# A request's script is a command of the batch script.
_DIRECTIVES = ("#SBATCH", "#PBS")
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
# Most lines of a long script that are named.
_MAX_LINES_NAMED = 5
# Directives are searched only this far, like in their explanation.
_MAX_LINES_READ = 2000
_MAX_FINDINGS = 50
# A word that begins with a dash of another kind, or stands in quotes of print.
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_ODD_BLANK = "an unusual space"
_QUOTES = "\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb"
_BLANKS = "\u00a0\u2007\u202f\u200b\ufeff"
_ODD = re.compile(f"[{_DASHES}{_QUOTES}{_BLANKS}]")
_Severity = Literal["error", "warning"]
_ODD_OPTION = re.compile(rf"(?:^|\s)([{_DASHES}]+[A-Za-z])")


class ScriptRules(Struct, frozen=True):
    """Rules of one scheduler for scripts.

    `option_findings` are for a directive's option that it takes, `unknown` for one that it does not
    know (None: it refuses the script). `foreign_magic` begins the directives of another scheduler,
    on which `foreign` and, beside directives of its own, `foreign_beside` are the finding:
    severity, text and step. `not_taken` is the message on a script without #!, `crlf` on one with
    line ends of Windows, `empty` on an empty one. Directives may follow lines that begin with
    `comments`; with `begins_line` a directive has to begin its own.
    """

    program: str
    magic: str
    read_directives: Callable[[str], ParsedCommandLine]
    demand: Callable[[bytes, Sequence[str]], Demand]
    option_findings: Callable[[Option, str], Iterator[LintFinding]]
    foreign_magic: str
    foreign: tuple[_Severity, str, str]
    foreign_beside: tuple[_Severity, str, str]
    not_taken: tuple[_Severity, str]
    crlf: str
    unknown: Callable[[Option, str], LintFinding] | None = None
    empty: str = ""
    comments: tuple[str, ...] = ("#",)
    begins_line: bool = True


def lint(
    script: bytes, rules: ScriptRules, offers: Offers, over: Sequence[str] = ()
) -> tuple[LintFinding, ...]:
    """Return the findings on a batch script, errors before warnings. Raises nothing.

    `over` are options on the command line, which replace the script's own. `field` is `line 7`
    where a line has the option, and `queue`, `time` or `extra_args` for an option of `over`. Of
    many findings the first 50 are returned.
    """
    lines = directive_part(script).split("\n")
    found = list(_form(script, rules))
    if not script.strip():
        return tuple(found)
    found += islice(_typographic(lines, rules.magic), _MAX_LINES_NAMED)
    # A typographic character in an option is reported once.
    reported = {one.field for one in found}
    given = rules.read_directives("\n".join(lines)).given
    odd = (one for option in given for one in _option(option, rules) if one.field not in reported)
    found += islice(odd, _MAX_FINDINGS)
    found += islice(_not_read(lines, rules), _MAX_LINES_NAMED)
    if number := first_line_with(lines, rules.foreign_magic):
        severity, text, step = rules.foreign_beside if given else rules.foreign
        found.append(LintFinding(severity, f"line {number}", text, step))
    found += unmet(rules.demand(script, over), offers)
    return tuple(sorted(found, key=lambda one: one.severity != "error")[:_MAX_FINDINGS])


def directive_part(script: bytes) -> str:
    """Return the lines of a script that may have directives."""
    return "\n".join(script.decode("utf-8", "surrogateescape").split("\n")[:_MAX_LINES_READ])


def _form(script: bytes, rules: ScriptRules) -> Iterator[LintFinding]:
    if not script.strip():
        yield LintFinding("error", "", "the script is empty", rules.empty)
        return
    bom = next((bom for bom in _BOMS if script.startswith(bom)), b"")
    if bom:
        kind = "UTF-8" if len(bom) == 3 else "UTF-16"
        text = f"the script starts with a byte-order mark ({kind})"
        yield LintFinding("error", "line 1", text, "Save it as UTF-8 without one.")
    elif b"\x00" in script:
        yield LintFinding(
            "error",
            "",
            "the script contains NUL bytes: it is not text",
            f"{rules.program} takes scripts, not programs.",
        )
    elif not script.startswith(b"#!"):
        severity, text = rules.not_taken
        first = re.search(rb"(?m)^[ \t]*#!", script)
        where = "#! must be at the very start." if first else "Start it with #!/bin/bash."
        yield LintFinding(severity, "line 1", f"the first line is not #!: {text}", where)
    if crlf := script.count(b"\r\n"):
        all_of = "lines end" if crlf >= script.count(b"\n") else f"{crlf} lines end"
        yield LintFinding(
            "error",
            "",
            f"{all_of} in CRLF, as on Windows: {rules.crlf}",
            "sed -i 's/\\r$//' FILE fixes it.",
        )


def _typographic(lines: Sequence[str], magic: str) -> Iterator[LintFinding]:
    """Dashes, quotes and blanks of print, which documents and chats put in place of those of a
    keyboard.
    """
    for number, line in enumerate(lines, start=1):
        is_directive = line.lstrip().startswith(magic)
        if line.lstrip().startswith("#") and not is_directive:
            continue
        odd = _ODD.search(line) if is_directive else _ODD_OPTION.search(line)
        if odd is None:
            continue
        letter = odd[odd.lastindex or 0][0]
        kind, usual = _kind(letter)
        shown = letter if kind != _ODD_BLANK else f"U+{ord(letter):04X}"
        yield LintFinding(
            "error" if is_directive else "warning",
            f"line {number}",
            f"{kind} ({shown}) instead of {usual}",
            "Type it again.",
        )


def _kind(letter: str) -> tuple[str, str]:
    if letter in _DASHES:
        return "a typographic dash", "-"
    return ("a typographic quote", "\" or '") if letter in _QUOTES else (_ODD_BLANK, "a plain one")


def _option(option: Option, rules: ScriptRules) -> Iterator[LintFinding]:
    place = f"line {option.line}"
    if not option.problem:
        yield from rules.option_findings(option, place)
    elif option.problem == "unknown" and rules.unknown is not None:
        yield rules.unknown(option, place)
    else:
        text = f"{option.written}: {option.problem}"
        yield LintFinding("error", place, text, f"{rules.program} rejects the script.")


def _not_read(lines: Sequence[str], rules: ScriptRules) -> Iterator[LintFinding]:
    """Directives behind the first command, and those that are written so that they do not count."""
    magic = rules.magic
    labels = tuple(letter for letter in rules.comments if letter != "#")
    first = 0
    for number, line in enumerate(lines, start=1):
        text = line.lstrip()
        word = text[: len(magic)]
        problem = step = ""
        if word == magic and first:
            problem = f"ignored: after a command (line {first})"
            step = "Move it to the top."
        elif word == magic and text != line and rules.begins_line:
            problem = f"{magic} must start the line"
            step = "Remove the spaces before it."
        elif text.startswith(f"# {magic[1:]} -"):
            problem = "there is a space after #"
            step = "Remove it, or use ## instead."
        elif word != magic and word.upper() == magic and text[len(magic) :].startswith(" -"):
            problem = f"{word} is not {magic}"
            step = "Use capitals."
        elif text and not text.startswith("#") and not (labels and line.startswith(labels)):
            first = first or number
        if problem:
            yield LintFinding("warning", f"line {number}", f"ignored: {problem}", step)


def unread_directives(script: bytes) -> str:
    """A warning about a request's script that has directives of its own; '' for none."""
    lines = directive_part(script).split("\n")
    found = [(number, magic) for magic in _DIRECTIVES if (number := first_line_with(lines, magic))]
    if not found:
        return ""
    number, magic = min(found)
    return (
        f"script: {magic} lines, from line {number} on, are ignored: the request's keys replace "
        "them"
    )


def first_line_with(lines: Sequence[str], magic: str) -> int:
    """The number of the first line that another scheduler would read, 0 for none."""
    return next(
        (number for number, line in enumerate(lines, start=1) if line.startswith(f"{magic} ")), 0
    )


# -- amounts in options


def demand_places(
    sources: Mapping[str, Iterable[str]], given: Mapping[str, Option]
) -> dict[str, str]:
    """`line 7` for each field of a demand whose options, by `sources`, a script gives on a line."""
    found = {}
    for part, names in sources.items():
        line = next((given[name].line for name in names if name in given), 0)
        if line:
            found[part] = f"line {line}"
    return found


def parse_count(text: str) -> int | None:
    """None for what is no count of at most nine digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def parse_bytes(text: str, bare_unit_bytes: int) -> int | None:
    """None for what is no amount of memory; a number without a unit counts in `bare_unit_bytes`."""
    try:
        return parse_memory(text, bare_unit_bytes=bare_unit_bytes) or None
    except ValueError:
        return None


def overridden_demand(demand: Demand, names: Set[str], *, queue: str, limit_seconds: str) -> Demand:
    """Return a demand with the places of options `names` given over a script.

    `queue` and `limit_seconds` are the options for its queues, and for its time.
    """
    if not names:
        return demand
    places = {"queues": "queue"} if queue in names else {}
    places |= {"limit_seconds": "time"} if limit_seconds in names else {}
    others = dict.fromkeys(name for name in Demand.__struct_fields__ if name not in demand.where)
    return replace(demand, where={**dict.fromkeys(others, "extra_args"), **demand.where, **places})
