"""Reads the request of a batch script and its command line, and the options without support."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdash.backends.options import Option, ParsedCommandLine
from hpcdash.backends.pbs.options import attributes, chunks, read_directives, resources, split_list
from hpcdash.backends.slurm import options as sbatch
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.share import parse_mark
from hpcdash.domain.units import parse_duration, parse_instant, parse_memory
from hpcdash.embedded.job import JobDependency, JobSignal, QueueRequest
from hpcdash.errors import UsageError

_SAME = {
    "N": "job-name",
    "J": "array",
    "t": "array",
    "A": "account",
    "h": "hold",
    "d": "chdir",
    "w": "chdir",
}
_FILES = {"o": "output", "e": "error"}
_CPUS = frozenset({"ncpus", "ppn"})
_GPUS = frozenset({"ngpus", "gpus"})
# Slurm's limit: a job may request its signal up to 18 hours before its end.
_MAX_LEAD_SECONDS = 65535
_DEFAULT_LEAD_SECONDS = 60
_MEGABYTE = 1 << 20
_MINUTE = 60
MAX_ARRAY = 100_000
_DEPENDENCY_KINDS = ("afterok", "afternotok", "afterany", "after", "singleton")
# Options of sbatch's own behaviour, which are accepted and ignored.
_SILENT = frozenset({"parsable", "quiet", "verbose", "no-kill"})


def read_pbs_directives(script: str) -> ParsedCommandLine:
    """Read a script's #PBS lines; options unknown to this queue keep PBS's own name."""
    given: list[Option] = []
    variables: list[str] = []
    for one in read_directives(script).given:
        if one.problem:
            given.append(one)
        elif one.name == "v":
            variables += split_list(one.value or "")
        else:
            try:
                selected = _as_sbatch_options(one.name, one.value or "")
            except ValueError as error:
                given.append(
                    Option("", None, " ".join(one.arguments), one.arguments, one.line, str(error))
                )
                continue
            given += [
                Option(name, text, one.written, one.arguments, one.line) for name, text in selected
            ]
    if variables:
        given.append(
            Option("export", ",".join(["ALL", *variables]), "-v", ("-v", ",".join(variables)))
        )
    return ParsedCommandLine(tuple(given))


def _as_sbatch_options(letter: str, value: str) -> list[tuple[str, str]]:
    """Return (option, value) of each requested resource; raises ValueError."""
    if letter in _FILES:
        # 'host:path'; a % means nothing to PBS.
        path = re.sub(r"^[^/:]*:", "", value).replace("%", "%%")
        return [(_FILES[letter], path.replace("^array_index^", "%a"))]
    if letter in "jVf" or (letter == "k" and "d" in value):
        # Options with no effect beyond the default here.
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
    """Parse `walltime=1:00:00`, `select=1:ncpus=1:mem=8gb`, and the older `nodes=1:ppn=4`."""
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
    """Add up `2:ncpus=4:mem=8gb+1:ngpus=1`: chunks may share a machine, nodes may not."""
    cpus = 0
    gpus = 0
    memory_bytes = 0
    found: list[tuple[str, str]] = []
    for first, parts in chunks(text):
        if not first and parts and not parts[0][1]:
            unit = "chunks" if name == "select" else "nodes"
            raise ValueError(f"{parts[0][0]!r} is not a number of {unit}")
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
        raise ValueError(f"{text!r} is not a number")
    return int(text)


@dataclass(frozen=True, slots=True)
class ParsedScript:
    """Request of a script, and the options that this queue does not support."""

    request: QueueRequest
    ignored: tuple[str, ...]


def read_submission(script: str, options: Sequence[Option], now_epoch: float) -> ParsedScript:
    """Read a script's #SBATCH (else #PBS) lines, which the command line's options override.

    Raises UsageError with the line of an error.
    """
    if not script.startswith("#!"):
        raise UsageError(
            "this is not a batch script: its first line does not begin with #!",
            "Start it with #!/bin/bash.",
        )
    if "\r\n" in script:
        raise UsageError(
            "the script has DOS line endings (CRLF)", "Convert it: sed -i 's/\\r$//' SCRIPT"
        )
    if "\0" in script:
        raise UsageError("the script contains NUL bytes: it is not text")
    given = sbatch.read_directives(script)
    is_pbs = False
    if not given.options and not given.problems:
        is_pbs = any(True for _ in sbatch.directive_lines(script, "#PBS"))
    if is_pbs:
        given = read_pbs_directives(script)
    refuse_problems(given)
    reader = _Reader(now_epoch)
    for option in (*given.options, *options):
        reader.take(option)
    return ParsedScript(reader.request(is_pbs), tuple(dict.fromkeys(reader.ignored)))


def refuse_problems(given: ParsedCommandLine) -> None:
    """Raise UsageError with all invalid options and their lines."""
    if given.problems:
        lines = [_placed(f"{one.written}: {one.problem}", one.line) for one in given.problems]
        raise UsageError("\n".join(lines))


def _placed(text: str, line: int) -> str:
    return f"line {line} of the script: {text}" if line else text


class _Reader:
    """Collects options; later ones override earlier ones."""

    def __init__(self, now_epoch: float) -> None:
        self.ignored: list[str] = []
        self._now = now_epoch
        self._values: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._gpus: dict[str, int] = {}
        self._takers: dict[str, Callable[[str], None]] = {
            "job-name": self._text("name"),
            "array": self._array,
            "output": self._text("stdout"),
            "error": self._text("stderr"),
            "input": self._text("stdin"),
            "open-mode": self._open_mode,
            "time": self._time,
            "dependency": self._dependency,
            "nodes": self._nodes,
            "ntasks": self._count("ntasks"),
            "ntasks-per-node": self._count("ntasks-per-node"),
            "cpus-per-task": self._count("cpus-per-task"),
            "mincpus": self._count("mincpus"),
            "gpus": self._gpu_count("gpus"),
            "gpus-per-node": self._gpu_count("gpus"),
            "gpus-per-task": self._gpu_count("gpus-per-task"),
            "gres": self._gres,
            "mem": self._memory("mem"),
            "mem-per-cpu": self._memory("mem-per-cpu"),
            "signal": self._signal,
            "chdir": self._text("work_dir"),
            "export": self._export,
            "hold": lambda _: self._values.update(held=True),
            "comment": self._text("comment"),
            "account": self._text("account"),
            "begin": self._begin,
            "no-requeue": lambda _: self._values.update(requeue=False),
            "requeue": lambda _: self._values.update(requeue=True),
        }

    def take(self, option: Option) -> None:
        taker = self._takers.get(option.name)
        if taker is None:
            # The tasks of a pool count this machine's slots as nodes, which are exclusive anyway.
            is_pointless = option.name == "exclusive" and parse_mark(self._values.get("comment"))
            if option.name not in _SILENT and not is_pointless:
                self.ignored.append(_placed(" ".join(option.arguments), option.line))
            return
        try:
            taker(option.value or "")
        except ValueError as error:
            raise UsageError(_placed(f"--{option.name}: {error}", option.line)) from error

    def request(self, is_pbs: bool) -> QueueRequest:
        # If both are given, ntasks-per-node is only a limit.
        processes = self._counts.get("ntasks", self._counts.get("ntasks-per-node", 1))
        self._refuse_several_nodes()
        cpus = max(processes * self._counts.get("cpus-per-task", 1), self._counts.get("mincpus", 1))
        gpus = max(self._gpus.get("gpus", 0), processes * self._gpus.get("gpus-per-task", 0))
        memory = self._values.pop("mem", None)
        per_cpu = self._values.pop("mem-per-cpu", None)
        if memory is None and per_cpu is not None:
            memory = per_cpu * cpus
        else:
            per_cpu = None
        return QueueRequest(
            processes=processes,
            cpus=cpus,
            gpus=gpus,
            memory_bytes=memory or None,
            counts=dict(self._counts),
            memory_per_cpu_bytes=per_cpu or None,
            is_pbs=is_pbs,
            **self._values,
        )

    def _refuse_several_nodes(self) -> None:
        """Raise UsageError if GPUs per task and tasks per node require several nodes."""
        gpus_per_task = self._gpus.get("gpus-per-task", 0)
        tasks_per_node = self._counts.get("ntasks-per-node", 0)
        if not gpus_per_task or not tasks_per_node or "ntasks" in self._counts:
            return
        tasks = -(-self._gpus.get("gpus", 0) // gpus_per_task)
        if tasks > tasks_per_node:
            raise UsageError(
                f"{tasks} tasks of {gpus_per_task} GPUs, {tasks_per_node} per node, are "
                "requested; this machine is a single node",
                "Request all on one node: with slots, slots_per_node = slots.",
            )

    def _text(self, name: str) -> Callable[[str], None]:
        def take(value: str) -> None:
            if "\0" in value:
                raise ValueError("NUL bytes are not allowed")
            self._values[name] = value

        return take

    def _count(self, name: str) -> Callable[[str], None]:
        def take(value: str) -> None:
            self._counts[name] = _positive(value)

        return take

    def _gpu_count(self, name: str) -> Callable[[str], None]:
        def take(value: str) -> None:
            # 'a100:4,v100:2': the type is ignored, and the counts add up.
            counts = (part.rpartition(":")[2].partition("(")[0] for part in value.split(","))
            self._gpus[name] = sum(_whole(count) for count in counts)

        return take

    def _gres(self, value: str) -> None:
        for part in value.split(","):
            name, _, rest = part.partition(":")
            if name in ("gpu", "gres/gpu"):
                count = rest.rpartition(":")[2]
                self._gpus["gpus"] = _whole(count) if count.isdigit() else 1
            elif part and name != "none":
                self.ignored.append(f"--gres={part}")

    def _memory(self, name: str) -> Callable[[str], None]:
        def take(value: str) -> None:
            self._values[name] = parse_memory(value, bare_unit_bytes=_MEGABYTE)

        return take

    def _nodes(self, value: str) -> None:
        # '1', '1-4': this machine is one node.
        if _positive(value.partition("-")[0]) > 1:
            raise ValueError(
                f"{value} nodes requested, but this machine is a single node (with slots, "
                "slots_per_node = slots)"
            )

    def _array(self, value: str) -> None:
        tasks = parse_tasks(value)
        if tasks.is_incomplete or not tasks.count:
            raise ValueError(f"{value!r} is not an array: use 3, 1-10, 0-15:4 or 1-10%2")
        if tasks.count > MAX_ARRAY:
            raise ValueError(f"{tasks.count} tasks exceed the queue's limit of {MAX_ARRAY}")
        self._values["tasks"] = str(tasks)

    def _time(self, value: str) -> None:
        seconds = parse_duration(value, bare_unit_seconds=_MINUTE)
        self._values["limit_seconds"] = seconds or None

    def _open_mode(self, value: str) -> None:
        if value not in ("append", "truncate"):
            raise ValueError(f"{value!r} is neither append nor truncate")
        self._values["append"] = value == "append"

    def _begin(self, value: str) -> None:
        self._values["begin_at"] = _begin_time(value, self._now)

    def _signal(self, value: str) -> None:
        self._values["early_signal"] = read_early_signal(value)

    def _export(self, value: str) -> None:
        exported, variables = _exports(value)
        self._values.update(exported=exported, variables=variables)

    def _dependency(self, value: str) -> None:
        dependencies, is_any = read_dependencies(value)
        self._values.update(dependencies=dependencies, any_dependency=is_any)


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{text!r} is not a number")
    return int(text)


def _positive(text: str) -> int:
    number = _whole(text)
    if not number:
        raise ValueError("must be at least 1")
    return number


def signal_number(name: str) -> int:
    """Return the number of USR1, SIGUSR1, usr1 or 10; raises ValueError."""
    requested = name.strip().upper().removeprefix("SIG")
    if requested.isdigit() and int(requested) in set(signal.Signals):
        return int(requested)
    try:
        return signal.Signals[f"SIG{requested}"].value
    except KeyError:
        raise ValueError(f"{name!r} is not a signal: use USR1, TERM, 10 …") from None


def parse_time_change(text: str) -> tuple[str, int | None]:
    """Parse a new time limit, or a change of it: ('', '+' or '-'; seconds, None for no limit).

    A bare number counts minutes. Raises ValueError.
    """
    sign = text[:1] if text[:1] in ("+", "-") else ""
    seconds = parse_duration(text.removeprefix(sign), bare_unit_seconds=_MINUTE)
    if sign and seconds is None:
        raise ValueError(f"{text!r} is not a limit change: use +30 or -1:00:00")
    return sign, seconds


def read_throttle(text: str) -> int | None:
    """Parse the limit of an array's running tasks, None for 0 (no limit); raises ValueError."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError(f"{text!r} is not a number of tasks")
    return int(text) or None


def read_early_signal(text: str) -> JobSignal:
    """Parse `USR1@600`, `B:USR1@600` or `10`; raises ValueError."""
    flags, has_flags, rest = text.rpartition(":")
    if has_flags and flags not in ("B", "R", "BR", "RB"):
        raise ValueError(f"{flags!r} is not allowed before the colon; B is for the batch shell")
    name, has_time, seconds = rest.partition("@")
    lead = _whole(seconds) if has_time else _DEFAULT_LEAD_SECONDS
    if lead > _MAX_LEAD_SECONDS:
        raise ValueError(f"{lead} s before the end exceeds {_MAX_LEAD_SECONDS}")
    return JobSignal(signal_number(name), lead, "B" in flags)


def read_dependencies(text: str) -> tuple[tuple[JobDependency, ...], bool]:
    """Parse `afterok:12:13,afterany:14_3`, and whether any (`?`) or all (`,`) must be met.

    Raises ValueError.
    """
    is_any = "?" in text
    if is_any and "," in text:
        raise ValueError("',' (all of them) and '?' (any of them) cannot be combined")
    found: list[JobDependency] = []
    for clause in re.split(r"[,?]", text):
        kind, *targets = clause.strip().split(":")
        if kind not in _DEPENDENCY_KINDS:
            raise ValueError(f"{kind!r} is not one of {', '.join(_DEPENDENCY_KINDS)}")
        if kind == "singleton":
            found.append(JobDependency(kind))
            continue
        if not targets:
            raise ValueError(f"{kind} needs a job number: {kind}:12")
        for target in targets:
            match = re.fullmatch(r"([0-9]{1,15})(?:_([0-9]{1,9}|\*))?(?:\+([0-9]{1,9}))?", target)
            if match is None:
                raise ValueError(f"{target!r} is not a job: use 12 or 12_3")
            number, task, minutes = match.groups()
            one_task = int(task) if task and task != "*" else None
            found.append(JobDependency(kind, int(number), one_task, int(minutes or 0)))
    return tuple(found), is_any


def _begin_time(text: str, now_epoch: float) -> float | None:
    if text.strip().lower() in ("now", ""):
        return None
    from hpcdash.domain.spans import LOCAL_ZONE

    moment = re.fullmatch(r"now\s*\+\s*([0-9]+)\s*([a-z]*)", text.strip().lower())
    if moment:
        amount, unit = moment.groups()
        seconds = parse_duration(f"{amount}{unit or 's'}")
        return now_epoch + (seconds or 0)
    at = parse_instant(text.replace("T", " "), now_epoch, LOCAL_ZONE).epoch
    # A time of day that has passed today means tomorrow.
    if at < now_epoch and re.match(r"[0-9]{1,2}:", text):
        at += 86400
    return float(at)


def _exports(text: str) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """Parse --export: (inherited names, None for all; variables to set)."""
    names: list[str] = []
    variables: dict[str, str] = {}
    keeps_all = False
    for part in text.split(","):
        name, has_value, value = part.partition("=")
        if has_value:
            variables[name] = value
        elif name == "ALL":
            keeps_all = True
        elif name and name not in ("NONE", "NIL"):
            names.append(name)
    return (None if keeps_all else tuple(names)), variables
