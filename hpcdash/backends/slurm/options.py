"""sbatch's options: their grammar on a command line and in #SBATCH lines, and which a request
leaves to a person.

Source: `sbatch --help` of 22.05, and what releases up to 25.05 added. Options are read by
getopt_long: a long one may be cut short to any beginning that only it has. How directives are split
was tried on 22.05.8.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcdash.backends.options import (
    WITHOUT_VALUE,
    Option,
    ParsedCommandLine,
    Takes,
    bad_option,
    last_value,
    quoted_word,
    raise_for,
    read_letters,
    whole_options,
)

if TYPE_CHECKING:
    from hpcdash.backends.job_detail import Script
    from hpcdash.backends.queries import Row

# One option a word: NAME, NAME/S with its short form; '=' after it takes a value, '?' one behind
# '=' only.
_OPTIONS = """
account/A= acctg-freq= array/a= batch= bb= bbf= begin/b= chdir/D= cluster= clusters/M= cluster-constraint= comment=
constraint/C= container= container-id= context= contiguous core-spec/S= cores-per-socket= cpu-freq= cpus-per-gpu=
cpus-per-task/c= deadline= delay-boot= dependency/d= distribution/m= error/e= exclude/x= exclusive? export=
export-file= extra= extra-node-info/B= get-user-env? gid= gpu-bind= gpu-freq= gpus/G= gpus-per-node= gpus-per-socket=
gpus-per-task= gres= gres-flags= help/h hint= hold/H ignore-pbs input/i= job-name/J= kill-on-invalid-dep= licenses/L=
mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice? no-kill/k?
no-requeue nodefile/F= nodelist/w= nodes/N= ntasks/n= ntasks-per-core= ntasks-per-gpu= ntasks-per-node=
ntasks-per-socket= ntasks-per-tres= oom-kill-step? open-mode= output/o= overcommit/O oversubscribe/s parsable
partition/p= power= prefer= priority= profile= propagate? qos/q= quiet/Q reboot requeue reservation= resv-ports?
segment= signal= sockets-per-node= spread-job stepmgr switches= tasks-per-node= test-only thread-spec=
threads-per-core= time/t= time-min= tmp= tres-bind= tres-per-task= uid= usage use-min-nodes verbose/v version/V wait/W
wait-all-nodes= wckey= wrap=
"""
# Older names of the same.
_SAME = {"tasks-per-node": "ntasks-per-node", "share": "oversubscribe", "cluster": "clusters"}
MAGIC = "#SBATCH"
# A blank splits words; a quote joins them; a backslash escapes a quote; # begins a comment.
_WORD = re.compile(r"""#|(?:\\["'\\]|"(?:\\"|[^"])*"|'[^']*'|[^\s"'#\\]+|\\)+""", re.DOTALL)
_QUOTED = re.compile(r"""\\(["'\\])|"((?:\\"|[^"])*)"|'([^']*)'""", re.DOTALL)


_TAKES: dict[str, Takes] = {"=": "value", "?": "maybe"}


def _kinds() -> Iterator[tuple[str, str, Takes]]:
    """(long name, letter or '', what it takes) of each option that sbatch has."""
    for word in _OPTIONS.split():
        name, _, letter = word.rstrip("=?").partition("/")
        yield name, letter, _TAKES.get(word[-1], "nothing")


OPTIONS = {name: takes for name, _, takes in _kinds()}
_BY_LETTER = {letter: (name, takes) for name, letter, takes in _kinds() if letter}


def read_command_line(parts: Sequence[str], line: int = 0) -> ParsedCommandLine:
    """Options up to the first word that is none (the script) or `--`."""
    given: list[Option] = []
    at = 0
    while at < len(parts):
        word = parts[at]
        if word == "--":
            at += 1
            break
        if word.startswith("--"):
            found = [_long(parts, at, line)]
        elif word.startswith("-") and len(word) > 1:
            following = parts[at + 1] if at + 1 < len(parts) else None
            found = read_letters(word, following, line, _BY_LETTER)
        else:
            break
        given += found
        # A value that stands in a word of its own is the last option's.
        at += 2 if len(found[-1].arguments) > 1 else 1
    return ParsedCommandLine(tuple(given), tuple(parts[at:]))


def _long(parts: Sequence[str], at: int, line: int) -> Option:
    word = parts[at]
    written, equals, value = word[2:].partition("=")

    def bad(problem: str) -> Option:
        return bad_option(f"--{written}", problem, line, word)

    matching = {
        _SAME.get(name, name)
        for name in ([written] if written in OPTIONS else OPTIONS)
        if name.startswith(written)
    }
    if not matching:
        return bad("unknown")
    if len(matching) > 1:
        return bad("ambiguous: " + ", ".join(f"--{name}" for name in sorted(matching)))
    name = matching.pop()
    if equals and OPTIONS[name] == "nothing":
        return bad("given an invalid value")
    if equals or OPTIONS[name] != "value":
        return Option(name, value if equals else None, f"--{written}", (word,), line)
    if at + 1 >= len(parts):
        return bad(WITHOUT_VALUE)
    return Option(name, parts[at + 1], f"--{written}", (word, parts[at + 1]), line)


def read_directives(script: str, prefix: str = MAGIC) -> ParsedCommandLine:
    """The options of a script's directive lines, which end at the first line that is neither
    comment nor blank.
    """
    given: list[Option] = []
    for number, text in directive_lines(script, prefix):
        read = read_command_line(split_arguments(text), number)
        given += read.given
        given += [bad_option(word, "no option", number) for word in read.script[:1]]
    return ParsedCommandLine(tuple(given))


def directive_lines(script: str, prefix: str = MAGIC) -> Iterator[tuple[int, str]]:
    """(1-based line number, what stands behind the prefix) of each directive that sbatch reads."""
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith(prefix):
            yield number, line[len(prefix) :].rstrip("\r")
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def split_arguments(text: str) -> list[str]:
    """Split one directive like sbatch: `#` ends it even inside a word, `""` is no word at all."""
    parts: list[str] = []
    for found in _WORD.finditer(text):
        if found[0] == "#":
            break
        parts.append(_QUOTED.sub(_unquoted, found[0]))
    return [part for part in parts if part]


def _unquoted(found: re.Match[str]) -> str:
    return found[1] or (found[2] or found[3] or "").replace('\\"', '"')


def directive_word(field: str, value: str) -> str:
    """A value as sbatch reads it back from a line.

    Raises UsageError, naming the field, for one it cannot.
    """
    return quoted_word(field, value, '"' + value.replace('"', '\\"') + '"', split_arguments)


_LOG = "work_dir: the log is in the launch's own folder"
# Options that the request says itself, by their long names, and its fields for them.
_FIELDS = {
    **dict.fromkeys(("ntasks-per-node", "gpus", "nodes", "ntasks"), "slots and slots_per_node"),
    "chdir": "work_dir",
    "error": _LOG,
    "output": _LOG,
    "partition": "queue",
    "requeue": "requeue",
    "no-requeue": "requeue",
    "wckey": "project",
}
# Options that submit no job: sbatch submits none, waits for its end, or takes another script.
_GPU_GRES = re.compile(r"(?:gres/)?gpu(?:[:=].*)?", re.DOTALL)
_OF_NO_JOB = frozenset({"test-only", "wait", "wrap", "help", "usage", "version"})


def extra_options(extra_args: Iterable[str], exclude_nodes: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a person's own options unchanged, each once, in order, and the excluded nodes.

    Raises UsageError naming all options that belong to the request, however spelt: `-N4`,
    `--node=4`, `-N 4`.
    """
    stored: dict[str, None] = {}
    refused: list[tuple[str, str]] = []
    for text in map(str.strip, whole_options(extra_args, _read, directive_word)):
        if not text:
            continue
        if not text.isprintable():
            message = f"{text!r} in extra_args contains characters that are not allowed in one line"
            refused.append((message, "Use one item per option."))
            continue
        read = _read(text)
        # A text that may abbreviate several options is reported once.
        reported: set[str] = set()
        for name, written in _named(read):
            message = f"{written} is not allowed in extra_args"
            if written in reported:
                continue
            if name in _FIELDS:
                step = f"Use {_FIELDS[name]} instead."
                refused.append((f"{message}: the request sets it", step))
                reported.add(written)
            elif name in _OF_NO_JOB:
                why = "it does not submit a batch job"
                refused.append((f"{message}: {why}", "Remove it."))
                reported.add(written)
        if read.script:
            # sbatch leaves out what follows the first word that is no option.
            message = f"{read.script[0]!r} in extra_args is not an sbatch option"
            refused.append((message, "Use one item per option, with its value in quotes."))
        gres = (option.value or "" for option in read.options if option.name == "gres")
        if any(_GPU_GRES.fullmatch(entry.strip()) for value in gres for entry in value.split(",")):
            message = "--gres=gpu is not allowed in extra_args: the request's slots set the GPUs"
            refused.append((message, "Use slots, slots_per_node and gpu_type."))
        stored[text] = None
    raise_for(refused)
    nodes = ",".join(dict.fromkeys(exclude_nodes))
    return (*stored, *((f"--exclude={nodes}",) if nodes else ()))


def _read(text: str) -> ParsedCommandLine:
    return read_command_line(split_arguments(text))


def _named(read: ParsedCommandLine) -> Iterator[tuple[str, str]]:
    """(long name, as written) of each option; of an abbreviation that sbatch finds ambiguous all it
    may mean.
    """
    for option in read.given:
        if not option.problem:
            yield option.name, option.written
        elif option.written.startswith("--"):
            beginning = option.written[2:]
            yield from ((name, option.written) for name in _FIELDS if name.startswith(beginning))


_WRAPPED = "# This script was created by sbatch --wrap.\n"
_NULL = "(null)"
_SUFFIXES = (
    ".sh",
    ".bash",
    ".sbatch",
    ".batch",
    ".slurm",
    ".slm",
    ".job",
    ".py",
    ".pl",
    ".csh",
    ".zsh",
)
# Stands for a blank inside a word.
_BLANK = "\x00"


@dataclass(frozen=True, slots=True)
class SubmitLine:
    """Command line of sbatch: its options, and the script with its arguments.

    `script` is () where the script came on stdin or was wrapped. `is_certain` is false where the
    script's name may be another word than the one found.
    """

    options: tuple[Option, ...]
    script: tuple[str, ...] = ()
    is_certain: bool = True


def read_submit_line(
    line: str, row: Row, script: Script | None, command: str | None = None
) -> SubmitLine | None:
    """Parse the arguments of a SubmitLine; None where it is none of sbatch's.

    `command` is Command as scontrol shows it: the script and its arguments, '(null)' for a job
    without such a file, None where it is unknown.
    """
    # The script is often in the job's folder, and so are other files.
    for text, times in (
        (row["name"], 1),
        (row["comment"], 1),
        (_wrapped(script), 1),
        (row["work_dir"], -1),
    ):
        if text and " " in text.strip():
            line = line.replace(text, text.replace(" ", _BLANK), times)
    parts = line.split(" ")
    if os.path.basename(parts[0]) != "sbatch":
        return None
    parts = parts[1:]
    read = read_command_line(parts)
    usual = len(parts) - len(read.script)
    is_certain = True
    if command is not None:
        begin = _script_begins(parts, command)
    else:
        is_sure = not read.script or _is_path(read.script[0], row["name"])
        begin = usual if is_sure else _named_script(parts, usual, row["name"], read.options)
    if begin is None:
        begin = usual
        is_certain = False
    options = tuple(map(_whole_option, _options(parts[:begin])))
    return SubmitLine(options, tuple(map(_whole, parts[begin:])), is_certain)


def _script_begins(parts: Sequence[str], command: str) -> int | None:
    """Return the index of the word that is the script's name; None if it is not found.

    The words from there on are those of Command, which may name the script by a full path.
    """
    if command == _NULL:
        return len(parts)
    for at in range(len(parts)):
        rest = _whole(" ".join(parts[at:]))
        if command == rest or command.endswith(f"/{rest}"):
            return at
    return None


def _is_path(word: str, name: str | None) -> bool:
    """Whether a word surely is the script's, and not the rest of a value with blanks."""
    script = _whole(word)
    return "/" in script or script == name or script.endswith(_SUFFIXES)


def _named_script(
    parts: Sequence[str], begin: int, name: str | None, given: Sequence[Option]
) -> int | None:
    """Return the index of the word from `begin` on that gave the job its name; None if not found.

    The script's file gives the name where no option does.
    """
    if not name or last_value(given, "job-name") is not None:
        return None
    return next(
        (at for at in range(begin, len(parts)) if os.path.basename(_whole(parts[at])) == name), None
    )


def _options(parts: Sequence[str]) -> tuple[Option, ...]:
    """Options alone: a word among them that is none goes on the value before it."""
    joined = list(parts)
    while True:
        read: ParsedCommandLine = read_command_line(joined)
        if not read.script:
            return read.given
        at = len(joined) - len(read.script)
        last = read.given[-1] if read.given else None
        if at == 0 or last is None:
            return read.given
        if last.problem == "unknown" and "=" not in joined[at - 1]:
            # A plugin's option with its value in a word of its own: made one word, it is passed on
            # as it is.
            joined[at - 1 : at + 1] = [f"{joined[at - 1]}={joined[at]}"]
        else:
            joined[at - 1 : at + 1] = [f"{joined[at - 1]}{_BLANK}{joined[at]}"]


def _whole(word: str) -> str:
    return word.replace(_BLANK, " ")


def _whole_option(option: Option) -> Option:
    return replace(
        option,
        value=None if option.value is None else _whole(option.value),
        written=_whole(option.written),
        arguments=tuple(map(_whole, option.arguments)),
    )


def _wrapped(script: Script | None) -> str | None:
    """Return the argument of --wrap, from a script that sbatch made of it.

    None for another script.
    """
    if script is None or _WRAPPED not in script.text:
        return None
    return script.text.partition(_WRAPPED)[2].strip("\n")
