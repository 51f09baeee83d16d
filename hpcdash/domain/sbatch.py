"""The grammar of sbatch's command line and of #SBATCH lines: options, their values, where they stand. Knows no cluster.

Source: `sbatch --help` of 22.05, and what releases up to 25.05 added. Options are read by getopt_long: a long one may
be cut short to any beginning that only it has. How directives are split was tried on 22.05.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Takes = Literal["nothing", "value", "maybe"]
# The problem of an option that takes a value and stands last.
WITHOUT_VALUE = "without its value"
# One option a word: NAME, NAME/S with its short form; '=' after it takes a value, '?' one behind '=' only.
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
# A blank splits words; a quote joins them; a backslash takes a quote's meaning; # begins a comment.
_WORD_PART = re.compile(r'\\["\'\\]|"(?:\\"|[^"])*"|\'[^\']*\'|[^\s"\'#\\]+|\\', re.DOTALL)


@dataclass(frozen=True, slots=True)
class OptionKind:
    """One option sbatch has: its long name, its letter ('' where it has none), and whether it takes a value."""

    name: str
    letter: str
    takes: Takes


@dataclass(frozen=True, slots=True)
class Option:
    """One option as it was given: `name` is its long name in full, `value` None where it has none.

    `words` are the words it took, `written` how it was called; `line` is the 1-based line of the script, 0 on a command
    line. What sbatch would not take has a `problem`, and no name.
    """

    name: str
    value: str | None
    written: str
    words: tuple[str, ...]
    line: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What sbatch was given after its name: options in order, then the script and its arguments."""

    given: tuple[Option, ...]
    script: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """Those that sbatch takes."""
        return tuple(option for option in self.given if not option.problem)

    @property
    def problems(self) -> tuple[Option, ...]:
        """Those it does not."""
        return tuple(option for option in self.given if option.problem)


def _kinds() -> Iterator[OptionKind]:
    for word in _OPTIONS.split():
        takes: Takes = "value" if word.endswith("=") else "maybe" if word.endswith("?") else "nothing"
        name, _, letter = word.rstrip("=?").partition("/")
        yield OptionKind(name, letter, takes)


OPTIONS: dict[str, OptionKind] = {kind.name: kind for kind in _kinds()}
_BY_LETTER = {kind.letter: kind for kind in OPTIONS.values() if kind.letter}


def read_command_line(words: Sequence[str], line: int = 0) -> CommandLine:
    """Options up to the first word that is none (the script) or `--`."""
    given: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if word.startswith("--"):
            found = [_long(words, at, line)]
        elif word.startswith("-") and len(word) > 1:
            found = _letters(words, at, line)
        else:
            break
        given += found
        # A value that stands in a word of its own is the last option's.
        at += 2 if len(found[-1].words) > 1 else 1
    return CommandLine(tuple(given), tuple(words[at:]))


def _long(words: Sequence[str], at: int, line: int) -> Option:
    word = words[at]
    written, equals, value = word[2:].partition("=")

    def bad(problem: str) -> Option:
        return Option("", None, f"--{written}", (word,), line, problem)

    matching = (
        [OPTIONS[written]] if written in OPTIONS else [one for one in OPTIONS.values() if one.name.startswith(written)]
    )
    meant = {_SAME.get(kind.name, kind.name) for kind in matching}
    if not meant:
        return bad("unknown")
    if len(meant) > 1:
        return bad("ambiguous: " + ", ".join(f"--{name}" for name in sorted(meant)))
    kind = OPTIONS[meant.pop()]
    if equals and kind.takes == "nothing":
        return bad("given a value it cannot take")
    if equals or kind.takes != "value":
        return Option(kind.name, value if equals else None, f"--{written}", (word,), line)
    if at + 1 >= len(words):
        return bad(WITHOUT_VALUE)
    return Option(kind.name, words[at + 1], f"--{written}", (word, words[at + 1]), line)


def _letters(words: Sequence[str], at: int, line: int) -> list[Option]:
    """The options behind one dash: those without a value may stand together."""
    found: list[Option] = []
    letters = words[at][1:]
    for position, letter in enumerate(letters):
        kind = _BY_LETTER.get(letter)
        rest = letters[position + 1 :]
        written = f"-{letter}"
        if kind is None:
            found.append(Option("", None, written, (written,), line, "unknown"))
        elif kind.takes == "nothing" or (kind.takes == "maybe" and not rest):
            found.append(Option(kind.name, None, written, (written,), line))
        elif rest:
            return [*found, Option(kind.name, rest, written, (f"{written}{rest}",), line)]
        elif at + 1 < len(words):
            return [*found, Option(kind.name, words[at + 1], written, (written, words[at + 1]), line)]
        else:
            found.append(Option("", None, written, (written,), line, WITHOUT_VALUE))
    return found


def read_directives(script: str, prefix: str = MAGIC) -> CommandLine:
    """The options of a script's directive lines, which end at the first line that is neither comment nor blank."""
    given: list[Option] = []
    for number, text in directive_lines(script, prefix):
        read = read_command_line(split_words(text), number)
        given += read.given
        given += [Option("", None, word, (word,), number, "no option") for word in read.script[:1]]
    return CommandLine(tuple(given))


def directive_lines(script: str, prefix: str = MAGIC) -> Iterator[tuple[int, str]]:
    """(1-based line number, what stands behind the prefix) of each directive that sbatch reads."""
    for number, line in enumerate(script.split("\n"), start=1):
        if line.startswith(prefix):
            yield number, line[len(prefix) :].rstrip("\r")
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def split_words(text: str) -> list[str]:
    """The words of one directive as sbatch splits them: `#` ends it even inside a word, `""` is no word at all."""
    words: list[str] = []
    word: list[str] = []
    at = 0
    while at < len(text):
        part = _WORD_PART.match(text, at)
        if part is None:
            if word:
                words.append("".join(word))
            word = []
            if text[at] == "#":
                break
            at += 1
            continue
        found = part.group()
        if len(found) > 1 and found[0] == "\\":
            word.append(found[1])
        elif len(found) > 1 and found[0] in "\"'":
            word += [found[1:-1].replace('\\"', '"')] if len(found) > 2 else []
        else:
            word.append(found)
        at = part.end()
    return [*words, "".join(word)] if word else words


def last_value(options: Iterable[Option], name: str) -> str | None:
    """The value that counts: the last one given."""
    found = None
    for option in options:
        if option.name == name:
            found = option.value
    return found
