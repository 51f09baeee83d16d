"""#PBS lines as the same options in sbatch's words, for the embedded queue. Pure.

What differs from PBS: a job starts in the folder it was submitted from, as Slurm's do (PBS starts it in the home
folder; `cd $PBS_O_WORKDIR` does no harm), has all of the environment it was submitted from, and writes stdout and
stderr into one file unless -e names another.
"""

from __future__ import annotations

import re

from hpcdash.backends.options import CommandLine, Option
from hpcdash.backends.pbs.options import attributes, chunks, read_directives, resources, split_list
from hpcdash.domain.units import parse_memory

_SAME = {"N": "job-name", "J": "array", "t": "array", "A": "account", "h": "hold", "d": "chdir", "w": "chdir"}
_FILES = {"o": "output", "e": "error"}
_CPUS = frozenset({"ncpus", "ppn"})
_GPUS = frozenset({"ngpus", "gpus"})


def read_pbs_directives(script: str) -> CommandLine:
    """What a script's #PBS lines ask for; those this queue has no word for keep PBS's own name."""
    given: list[Option] = []
    variables: list[str] = []
    for one in read_directives(script).given:
        if one.problem:
            given.append(one)
        elif one.name == "v":
            variables += split_list(one.value or "")
        else:
            try:
                meant = _in_sbatch_words(one.name, one.value or "")
            except ValueError as error:
                given.append(Option("", None, " ".join(one.words), one.words, one.line, str(error)))
                continue
            given += [Option(name, text, one.written, one.words, one.line) for name, text in meant]
    if variables:
        given.append(Option("export", ",".join(["ALL", *variables]), "-v", ("-v", ",".join(variables))))
    return CommandLine(tuple(given))


def _in_sbatch_words(letter: str, value: str) -> list[tuple[str, str]]:
    """(option, value) of each thing asked for; raises ValueError."""
    if letter in _FILES:
        # 'host:path'; a % means nothing to PBS.
        path = re.sub(r"^[^/:]*:", "", value).replace("%", "%%")
        return [(_FILES[letter], path.replace("^array_index^", "%a"))]
    if letter in "jVf" or (letter == "k" and "d" in value):
        # What happens here anyway.
        return []
    if letter == "l":
        return _resources(value)
    if letter == "r":
        return [("no-requeue" if value == "n" else "requeue", "")]
    if letter == "W":
        return [_attribute(name, text) for name, text in attributes(value)]
    if letter in _SAME:
        return [(_SAME[letter], value)]
    return [(f"PBS -{letter}", value)]


def _attribute(name: str, value: str) -> tuple[str, str]:
    if name != "depend":
        return f"PBS -W {name}={value}", ""
    # A job's number may have its server behind it: 12.pbs01, 12[3].pbs01
    plain = re.sub(r"\[(\d+)\]", r"_\1", value).replace("[]", "")
    return "dependency", re.sub(r"(\d)\.[^:,]*", r"\1", plain)


def _resources(value: str) -> list[tuple[str, str]]:
    """`walltime=1:00:00`, `select=1:ncpus=1:ngpus=1:mem=8gb`, and the older `nodes=1:ppn=4`."""
    found: list[tuple[str, str]] = []
    for name, amount in resources(value):
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
            found.append((f"PBS -l {name}={amount}" if amount else f"PBS -l {name}", ""))
    return found


def _chunks(name: str, text: str) -> list[tuple[str, str]]:
    """All of `2:ncpus=4:mem=8gb+1:ngpus=1` together: several chunks may share a machine, several nodes may not."""
    cpus = gpus = memory_bytes = 0
    found: list[tuple[str, str]] = []
    for first, parts in chunks(text):
        if not first and parts and not parts[0][1]:
            raise ValueError(f"{parts[0][0]!r} is no number of {'chunks' if name == 'select' else 'nodes'}")
        count = _number(first or "1")
        chunk_cpus = 1
        for key, amount in parts:
            if key in _CPUS:
                chunk_cpus = _number(amount)
            elif key in _GPUS:
                gpus += count * _number(amount)
            elif key == "mem":
                memory_bytes += count * (parse_memory(amount) or 0)
            else:
                found.append((f"PBS -l {name}=…:{key}" + (f"={amount}" if amount else ""), ""))
        cpus += count * chunk_cpus
        if name == "nodes":
            found.append(("nodes", str(count)))
    found.append(("cpus-per-task", str(cpus)))
    if gpus:
        found.append(("gpus", str(gpus)))
    if memory_bytes:
        found.append(("mem", f"{-(-memory_bytes // 1024)}K"))
    return found


def _number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", text):
        raise ValueError(f"{text!r} is no number")
    return int(text)
