"""The switches of a training: files that stop it or have it save; which path a script or an
environment names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from hpcdash.domain.text import visible

_MAX_PATH_LETTERS = 4096
# What stands further down is a program's own text.
_MAX_LINES = 5000
_ASSIGNED = re.compile(r"(?:^|[;&({]|\s)(?:setenv\s+([A-Za-z_]\w*)\s+|([A-Za-z_]\w*)=)")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^}$`]*))?\})")
_WORD_ENDS = frozenset(" \t;&|()<>")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Of a job's comment, which others of its project may read where its script is its owner's alone; it
# is the last.
_IN_COMMENT = " kill-switch="


class SwitchKind(StrEnum):
    """KILL: the training saves and ends, for as long as the file is there.

    SAVE: it saves and removes the file.
    """

    KILL = "kill"
    SAVE = "save"

    @property
    def text(self) -> str:
        return f"{self} switch"


class NamedSwitch(Struct, frozen=True):
    """A path as it is named."""

    path: str
    # Where it is named, as text.
    source: str
    # Variables in it whose values are not known.
    unknown: tuple[str, ...] = ()


def variable_names(kind: SwitchKind) -> tuple[str, ...]:
    """Return the environment variables that name a switch, the first to count first."""
    word = kind.upper()
    return (
        f"HPCDASH_{word}_SWITCH",
        f"{word}_SWITCH",
        f"{word}_SWITCH_PATH",
        f"{word}SWITCH",
        f"{word}SWITCH_PATH",
    )


def path_problem(path: str) -> str:
    """Return the reason that a path cannot be a switch; '' if it can."""
    if not path:
        return "no file is set"
    if _CONTROL.search(path):
        return "contains a newline or another control character"
    if not path.startswith("/"):
        return "must begin with /"
    if any(part in ("..", ".") for part in path.split("/")):
        return "contains . or ..; use the real path"
    if path.endswith("/"):
        return "a folder; use a file in it"
    return "too long" if len(path) > _MAX_PATH_LETTERS else ""


def absolute_path(path: str, work_dir: str | None) -> str:
    """Return a path as the job would open it: a relative one from its working directory, where that
    is known.
    """
    if work_dir and not path.startswith("/"):
        path = f"{work_dir.rstrip('/')}/{path.removeprefix('./')}"
    return re.sub(r"/{2,}", "/", path)


def switch_in_environment(
    kind: SwitchKind, environment: Mapping[str, str], source: str
) -> NamedSwitch | None:
    """Return the switch that variables name."""
    for name in variable_names(kind):
        if path := environment.get(name, "").strip():
            return NamedSwitch(path, f"{name} in {source}")
    return None


def kill_switch_comment(script: str, work_dir: str) -> str:
    """Return the end of a job's comment that names the kill switch of the script; '' where no whole
    path is named.
    """
    named = switch_in_script(SwitchKind.KILL, script, {})
    path = "" if named is None or named.unknown else absolute_path(named.path, work_dir)
    is_written = path.isprintable() and path.isascii() and not path_problem(path)
    return f"{_IN_COMMENT}{path}" if is_written else ""


def comment_switch(kind: SwitchKind, comment: str) -> NamedSwitch | None:
    """Return the switch that a job's comment names."""
    _, _, path = comment.partition(_IN_COMMENT)
    return NamedSwitch(path, "the job's comment") if path and kind is SwitchKind.KILL else None


def variables_in_list(text: str, requested: tuple[str, ...]) -> dict[str, str]:
    """Find the requested variables in `A=1,B=2` or `--export=ALL,A=1 job.sh`.

    A value ends at a comma that is not escaped.
    """
    values = {}
    for name in requested:
        if reported := re.search(rf"(?:^|[,\s=\"'])({name})=((?:\\.|[^,\\\s\"'])*)", text):
            values[name] = re.sub(r"\\(.)", r"\1", reported[2])
    return values


def switch_in_script(kind: SwitchKind, script: str, known: Mapping[str, str]) -> NamedSwitch | None:
    """Return the switch that a batch script names: HPCDASH_…, else an option that its program is
    given, else another variable.

    `known` are values of variables that the script does not set itself. Nothing is run: of what a
    script computes the names stay in the path.
    """
    option = re.compile(rf"--{kind}[-_]switch(?:[-_](?:path|file))?(?:=|\s+)(?=[^\s-])")
    return path_in_script(variable_names(kind), script, known, option)


def path_in_script(
    names: tuple[str, ...],
    script: str,
    known: Mapping[str, str],
    option: re.Pattern[str] | None = None,
) -> NamedSwitch | None:
    """Return the path that a batch script sets the first of these variables to, else gives its
    program behind an option that matches, else sets another of them to. `known` as above.
    """
    values = dict(known)
    ranks = dict.fromkeys(names, 2) | {names[0]: 0}
    by_rank: dict[int, NamedSwitch] = {}
    for number, line in enumerate(script.splitlines()[:_MAX_LINES], start=1):
        where = f"line {number} of the script"
        text = line.strip()
        if text.startswith("#"):
            if text.startswith(("#SBATCH", "#PBS")):
                for name, value in variables_in_list(text, names).items():
                    path, unknown = _expanded(value, values)
                    by_rank[ranks[name]] = NamedSwitch(path, f"{name} in {where}", unknown)
            continue
        for assigned in _ASSIGNED.finditer(text):
            name = assigned[1] or assigned[2]
            values[name], unknown = _expanded(_word(text, assigned.end()), values)
            if name in ranks:
                by_rank[ranks[name]] = NamedSwitch(values[name], f"{name} in {where}", unknown)
        if option is not None and (given := option.search(text)) is not None:
            path, unknown = _expanded(_word(text, given.end()), values)
            name = given[0].rstrip("= \t")
            by_rank[1] = NamedSwitch(path, f"{name} in {where}", unknown)
    named = [by_rank[rank] for rank in sorted(by_rank) if by_rank[rank].path]
    return named[0] if named else None


def _word(line: str, start: int) -> str:
    """Return the shell word that begins at `start`, as it is written, with its quotes."""
    quote = ""
    position = start
    while position < len(line):
        letter = line[position]
        if quote:
            if letter == "\\" and quote == '"':
                position += 1
            elif letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif letter == "\\":
            position += 1
        elif line.startswith("$(", position) or letter == "`":
            # Up to the end of what the command prints, as far as one line tells.
            end = line.find(")" if letter == "$" else "`", position + 1)
            position = len(line) if end < 0 else end
        elif letter in _WORD_ENDS:
            break
        position += 1
    return line[start:position]


def _expanded(raw: str, values: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return a shell word without its quotes and with variables' values, and what is in it that is
    not known.
    """
    unknown: list[str] = []

    def replacement(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if value := values.get(name, ""):
            # Its value may itself contain an unknown variable.
            unknown.extend(inner[1] or inner[2] for inner in _VARIABLE.finditer(value))
            return value
        if match[3] is not None:
            return match[3]
        unknown.append(name)
        return match[0]

    path = ""
    for quote, text in _pieces(raw):
        if quote == "'":
            path += text
            continue
        if "$(" in text or "`" in text:
            unknown.append("a command's output")
        path += _VARIABLE.sub(replacement, text)
    if path.startswith("~/") and not raw.startswith(("'", '"')):
        home = values.get("HOME", "")
        path = f"{home or '$HOME'}{path[1:]}"
        unknown += [] if home else ["HOME"]
    return path, tuple(dict.fromkeys(unknown))


def _pieces(raw: str) -> Iterator[tuple[str, str]]:
    """Yield (quote or '', text) of the parts of a shell word, without backslashes."""
    for match in re.finditer(r"'([^']*)'?|\"((?:\\.|[^\"\\])*)\"?|((?:\\.|[^'\"\\])+)|\\", raw):
        if match[1] is not None:
            yield "'", match[1]
        elif match[2] is not None:
            yield '"', re.sub(r"\\([\"\\])", r"\1", match[2])
        elif match[3] is not None:
            yield "", re.sub(r"\\(.)", r"\1", match[3])


def format_unknown(named: NamedSwitch) -> str:
    """Format `KILL_SWITCH in line 4 of the script names $WORK/KILL; WORK: not known here`."""
    unknown = ", ".join(named.unknown)
    return (
        f"{visible(named.source)} sets it to {visible(named.path)}; {unknown} cannot be resolved "
        "here"
    )
