"""#PBS lines as the same options in sbatch's words, for the embedded queue. Pure.

What differs from PBS: a job starts in the folder it was submitted from, as Slurm's do (PBS starts it in the home
folder; `cd $PBS_O_WORKDIR` does no harm), has all of the environment it was submitted from, and writes stdout and
stderr into one file unless -e names another.
"""

from __future__ import annotations

import re

from hpcdash.domain.sbatch import CommandLine, Option, directive_lines, split_words
from hpcdash.domain.units import parse_memory

_NO_VALUE = frozenset("hIVXz")
_SAME = {"N": "job-name", "J": "array", "t": "array", "A": "account", "h": "hold", "W": "dependency"}
_FILES = {"o": "output", "e": "error"}
_CPUS = frozenset({"ncpus", "ppn"})
_GPUS = frozenset({"ngpus", "gpus"})


def read_pbs_directives(script: str) -> CommandLine:
    """What a script's #PBS lines ask for; those this queue has no word for keep PBS's own name."""
    given: list[Option] = []
    variables: list[str] = []
    for line, text in directive_lines(script, "#PBS"):
        words = split_words(text)
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if not re.match(r"-[A-Za-z]", word):
                given.append(Option("", None, word, (word,), line, "no option of qsub"))
                continue
            letter, value = word[1], word[2:]
            taken: tuple[str, ...] = (word,)
            if letter not in _NO_VALUE and not value:
                if at >= len(words):
                    given.append(Option("", None, word, taken, line, "without its value"))
                    continue
                value = words[at]
                taken = (word, value)
                at += 1
            if letter == "v":
                variables += value.split(",")
                continue
            try:
                meant = _in_sbatch_words(letter, value)
            except ValueError as error:
                given.append(Option("", None, " ".join(taken), taken, line, str(error)))
                continue
            given += [Option(name, text, f"-{letter}", taken, line) for name, text in meant]
    if variables:
        given.append(Option("export", ",".join(["ALL", *variables]), "-v", ("-v", ",".join(variables))))
    return CommandLine(tuple(given))


def _in_sbatch_words(letter: str, value: str) -> list[tuple[str, str]]:
    """(option, value) of each thing asked for; raises ValueError."""
    if letter in _FILES:
        # 'host:path'; a % means nothing to PBS.
        path = re.sub(r"^[^/:]*:", "", value).replace("%", "%%")
        return [(_FILES[letter], path.replace("^array_index^", "%a"))]
    if letter in "jV":
        # What happens here anyway.
        return []
    if letter == "l":
        return _resources(value)
    if letter == "r":
        return [("no-requeue" if value == "n" else "requeue", "")]
    if letter == "W":
        if not value.startswith("depend="):
            return [(f"PBS -W {value}", "")]
        # A job's number may have its server behind it: 12.pbs01, 12[3].pbs01
        plain = re.sub(r"\[(\d+)\]", r"_\1", value.removeprefix("depend=")).replace("[]", "")
        return [("dependency", re.sub(r"(\d)\.[^:,]*", r"\1", plain))]
    if letter in _SAME:
        return [(_SAME[letter], value)]
    return [(f"PBS -{letter}", value)]


def _resources(value: str) -> list[tuple[str, str]]:
    """`walltime=1:00:00`, `select=1:ncpus=4:ngpus=1:mem=8gb`, and the older `nodes=1:ppn=4`."""
    found: list[tuple[str, str]] = []
    for resource in value.split(","):
        name, _, amount = resource.partition("=")
        if name == "walltime":
            # A bare number counts seconds.
            found.append(("time", amount if ":" in amount else f"00:00:{amount}"))
        elif name in ("select", "nodes"):
            found += _chunks(name, amount)
        elif name in _CPUS:
            found.append(("cpus-per-task", amount))
        elif name in _GPUS:
            found.append(("gpus", amount))
        elif name == "mem":
            found.append(("mem", amount))
        else:
            found.append((f"PBS -l {resource}", ""))
    return found


def _chunks(name: str, text: str) -> list[tuple[str, str]]:
    """All of `2:ncpus=4:mem=8gb+1:ngpus=1` together: several chunks may share a machine, several nodes may not."""
    cpus = gpus = memory_bytes = 0
    found: list[tuple[str, str]] = []
    for chunk in text.split("+"):
        first, *parts = chunk.split(":")
        if not re.fullmatch("[0-9]{1,6}", first):
            raise ValueError(f"{first!r} is no number of {'chunks' if name == 'select' else 'nodes'}")
        count = int(first)
        chunk_cpus = 1
        for part in parts:
            key, _, amount = part.partition("=")
            if key in _CPUS | _GPUS and not re.fullmatch("[0-9]{1,6}", amount):
                raise ValueError(f"{amount!r} is no number")
            if key in _CPUS:
                chunk_cpus = int(amount)
            elif key in _GPUS:
                gpus += count * int(amount)
            elif key == "mem":
                memory_bytes += count * (parse_memory(amount) or 0)
            else:
                found.append((f"PBS -l {name}=…:{part}", ""))
        cpus += count * chunk_cpus
        if name == "nodes":
            found.append(("nodes", first))
    found.append(("cpus-per-task", str(cpus)))
    if gpus:
        found.append(("gpus", str(gpus)))
    if memory_bytes:
        found.append(("mem", f"{-(-memory_bytes // 1024)}K"))
    return found
