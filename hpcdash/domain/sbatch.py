"""The grammar of sbatch's command line and of #SBATCH lines: options, their values, where they stand. Knows no cluster.

Source: sbatch(1) of Slurm 22.05 to 25.05. Reading is Slurm's own: GNU getopt_long, so a long option may be cut short
to any beginning that only it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Takes = Literal["nothing", "value", "maybe"]
# One option a word: NAME, NAME/S with its short form; '=' after it takes a value, '?' one behind '=' only.
_OPTIONS = """
account/A= acctg-freq= array/a= batch= bb= bbf= begin/b= chdir/D= cluster= clusters/M= cluster-constraint= comment=
constraint/C= container= container-id= contiguous core-spec/S= cores-per-socket= cpu-bind= cpu-freq= cpus-per-gpu=
cpus-per-task/c= deadline= delay-boot= dependency/d= distribution/m= error/e= exclude/x= exclusive? export=
export-file= extra= extra-node-info/B= get-user-env? gid= gpu-bind= gpu-freq= gpus/G= gpus-per-node= gpus-per-socket=
gpus-per-task= gres= gres-flags= help/h hint= hold/H ignore-pbs input/i= job-name/J= kill-on-invalid-dep= licenses/L=
mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice? no-kill/k?
no-requeue nodefile/F= nodelist/w= nodes/N= ntasks/n= ntasks-per-core= ntasks-per-gpu= ntasks-per-node=
ntasks-per-socket= ntasks-per-tres= oom-kill-step? open-mode= output/o= overcommit/O oversubscribe/s parsable
partition/p= power= prefer= priority= profile= propagate? qos/q= quiet/Q reboot requeue reservation= resv-ports?
segment= signal= sockets-per-node= spread-job stepmgr switches= tasks-per-node= test-only thread-spec=
threads-per-core= time/t= time-min= tmp= tres-bind= tres-per-task= uid= usage use-min-nodes verbose/v version/V wait/W
wait-all-nodes= wckey= workdir= wrap=
"""
# Older names of the same.
_SAME = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "cluster": "clusters"}


@dataclass(frozen=True, slots=True)
class OptionKind:
    """One option sbatch has: its long name, its letter ('' where it has none), and whether it takes a value."""

    name: str
    letter: str
    takes: Takes


@dataclass(frozen=True, slots=True)
class Option:
    """One option as it was written: `name` is its long name in full, `value` '' where it has none.

    `words` are the words it took; `line` is the 1-based line of the script, 0 on a command line.
    """

    name: str
    value: str
    words: tuple[str, ...]
    line: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """What cannot be read as an option, in words."""

    words: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line of sbatch after its name: options in order, then the script and its arguments."""

    options: tuple[Option, ...]
    script: tuple[str, ...]
    problems: tuple[Problem, ...]


def _kinds() -> Iterator[OptionKind]:
    for word in _OPTIONS.split():
        takes: Takes = "value" if word.endswith("=") else "maybe" if word.endswith("?") else "nothing"
        name, _, letter = word.rstrip("=?").partition("/")
        yield OptionKind(name, letter, takes)


OPTIONS: dict[str, OptionKind] = {kind.name: kind for kind in _kinds()}
_BY_LETTER = {kind.letter: kind for kind in OPTIONS.values() if kind.letter}


def option_named(written: str) -> OptionKind | None:
    """The option a long name or a beginning of one means; None where there is none, or more than one."""
    name = written
    if name not in OPTIONS:
        found = {_SAME.get(known, known) for known in OPTIONS if known.startswith(written)}
        if len(found) != 1:
            return None
        name = found.pop()
    return OPTIONS[_SAME.get(name, name)]


def read_command_line(words: Sequence[str], line: int = 0) -> CommandLine:
    """Options up to the first word that is none (the script) or `--`; what cannot be read is told, and passed over."""
    options: list[Option] = []
    problems: list[Problem] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            found, problem, used = _long(words, at, line)
        else:
            found, problem, used = _short(words, at, line)
        options += found
        problems += [Problem(problem, line)] if problem else []
        at += used
    return CommandLine(tuple(options), tuple(words[at:]), tuple(problems))


def _long(words: Sequence[str], at: int, line: int) -> tuple[list[Option], str, int]:
    written, has_value, value = words[at][2:].partition("=")
    kind = option_named(written)
    if kind is None:
        return [], f"--{written} is no option of sbatch, or the beginning of several", 1
    if has_value and kind.takes == "nothing":
        return [], f"--{kind.name} takes no value", 1
    if has_value or kind.takes != "value":
        return [Option(kind.name, value, (words[at],), line)], "", 1
    if at + 1 >= len(words):
        return [], f"--{kind.name} needs a value", 1
    return [Option(kind.name, words[at + 1], tuple(words[at : at + 2]), line)], "", 2


def _short(words: Sequence[str], at: int, line: int) -> tuple[list[Option], str, int]:
    """Letters behind one dash: those without a value may stand together."""
    found: list[Option] = []
    letters = words[at][1:]
    for position, letter in enumerate(letters):
        kind = _BY_LETTER.get(letter)
        if kind is None:
            return found, f"-{letter} is no option of sbatch", 1
        rest = letters[position + 1 :]
        if kind.takes == "nothing" or (kind.takes == "maybe" and not rest):
            found.append(Option(kind.name, "", (f"-{letter}",), line))
            continue
        if rest:
            return [*found, Option(kind.name, rest, (f"-{letter}{rest}",), line)], "", 1
        if at + 1 >= len(words):
            return found, f"-{letter} (--{kind.name}) needs a value", 1
        return [*found, Option(kind.name, words[at + 1], (f"-{letter}", words[at + 1]), line)], "", 2
    return found, "", 1


def read_directives(script: str, prefix: str = "#SBATCH") -> CommandLine:
    """The options of a script's directive lines, which end at the first line that is neither comment nor blank."""
    options: list[Option] = []
    problems: list[Problem] = []
    for number, text in directive_lines(script, prefix):
        read = read_command_line(split_words(text), number)
        options += read.options
        problems += read.problems
        if read.script:
            problems.append(Problem(f"{read.script[0]!r} is no option", number))
    return CommandLine(tuple(options), (), tuple(problems))


def directive_lines(script: str, prefix: str = "#SBATCH") -> Iterator[tuple[int, str]]:
    """(1-based line number, what stands behind the prefix) of each directive that sbatch reads."""
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith(prefix) and line[len(prefix) : len(prefix) + 1] in ("", " ", "\t"):
            yield number, line[len(prefix) :]
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def split_words(text: str) -> list[str]:
    """The words of one directive: quotes and backslashes as sbatch reads them; `#` begins a comment."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\\" and quote != "'" and at < len(text):
            word = word or []
            word.append(text[at])
            at += 1
        elif quote:
            if letter == quote:
                quote = ""
            else:
                word = word or []
                word.append(letter)
        elif letter in "'\"":
            quote = letter
            word = word or []
        elif letter.isspace():
            if word is not None:
                words.append("".join(word))
                word = None
        elif letter == "#" and word is None:
            break
        else:
            word = word or []
            word.append(letter)
    if word is not None:
        words.append("".join(word))
    return words


def last_value(options: Sequence[Option], name: str) -> str | None:
    """The value that counts: the last one given."""
    return next((option.value for option in reversed(options) if option.name == name), None)
