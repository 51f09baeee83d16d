"""Search for the line at a log's end that explains why a program failed.

Lines are text without escape sequences. The prefixes of launchers, clocks and loggers are skipped;
of several ranks the first that failed counts, not those that lost their peer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

_TRACEBACK = "Traceback (most recent call last)"
# The title of torchrun's table.
_FIRST_FAILURE = "Root Cause (first observed failure):"
# A launcher's prefix of each line of a process: `[rank0]: `, `[1,3]<stderr>:`,
# `[default0|3]:`, ` 3: `.
_LAUNCHER = re.compile(
    r"\[(?P<label>[\w,.:|-]{1,40})\](?:<std(?:out|err)>)?: ?| {0,4}(?P<task>\d{1,5}): ?"
)
_CLOCK = re.compile(
    r"\[?(?:\d{4}-\d\d-\d\d[T _])?\d\d?:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:?[ \t]"
    # glog's, which torch uses: `E1121 15:32:42.123000 4711 torch/distributed/run.py:793] `
    r"|\[?[EWIF]\d{3,4} \d\d:\d\d:\d\d\.\d{1,9} +(?:\d{1,20} )?[\w./-]{1,200}:\d{1,6}\] ?"
)
# Where Slurm, PBS and the embedded queue store a batch script, which a shell names in each error;
# `4: ` is dash's.
_SPOOLED = re.compile(r"(?:/slurm_script|\.SC|/scripts/\d{1,12}): (?:line )?(?=\d+: )")
_RANK = re.compile(r"(\d{1,6})$")
# `ValueError: x`, `torch.cuda.OutOfMemoryError: x`, `KeyboardInterrupt`.
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure)(?::|$)"
)
# Frames of a traceback are indented or drawn in a box; the exception's own line is not.
_IN_TRACEBACK = re.compile(r"[\s|+╭│╰└─]|$")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_MAX_LINE_LENGTH = 1000
_ORDINARY_LINES_AFTER = 20


def _any_of(alternatives: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of alternatives: one a line, so that a search finds each."""
    return re.compile("|".join(alternatives))


# Printed after every job that ends badly, after its own last lines.
_REMARK = _any_of(
    (
        # Their messages without an error.
        r"(?:srun|slurmstepd|slurmd)(?:-\S+)?: (?!(?:error|fatal): )",
        # Errors on the ends of other processes.
        r"(?:srun|slurmstepd|slurmd|mpirun|prterun"
        r"|make(?:\[\d+\])?)(?:-\S+)?: (?:error: )?(?:\*\*\*|.*[Ee]xited with|.*tasks? \d"
        r"|Job step aborted|Terminating|Force Terminated|First task exited"
        r"|Timed out waiting for job step|\s*(?:mpi/)?[Pp][Mm][Ii][Xx])",
        r"(?:mpirun|mpiexec|prterun|prun)(?: noticed| detected| has exited)",
        r"(?:\[\S{1,80}:\d+\] )?(?:PMIX|PRTE) ERROR: ",
        r"Primary job  ?terminated normally",
        r"a non-zero exit code\. ?Per user-direction",
        r"[-=*#~_\s]+$",
        r"\+ exit \d+$",
        r"exit(?:ing| code| status)? \d+$",
        r"a command on a host ended with \d+: all are ended",
        r"hpcdash: the container is up on ",
        # torchrun's, C++ frames, Open MPI's.
        r"Sending process \d+ closing signal",
        r".{0,80}failed \(exitcode: ",
        r"frame #\d+: ",
        r"#\d+ +0x",
        r"Exception raised from ",
        r"\[\S{1,80}:\d+\] (?:\[ ?\d+\]|\*\*\* )",
        r"(?:\S+ )?FAILED$",
        r"During handling of the above",
        r"The above exception was the direct",
    )
)
_CONSEQUENCE = _any_of(
    (
        r"(?:DistBackend|DistNetwork|DistStore|ChildFailed|Rendezvous\w*|BrokenPipe"
        r"|ConnectionReset|CalledProcess|EOF)Error",
        r"SignalException",
        r"Process(?:Exited|Raised)Exception",
        r"BrokenProcessPool",
        r"\bKeyboardInterrupt\b",
        r"\bSystemExit\b",
        r"NCCL (?:error|timeout|communicator|operation|WARN(?! Cuda failure))",
        r"nccl(?:Remote|System|Internal|Unhandled\w*)Error",
        r"Some NCCL operations have failed",
        r"[Ww]atchdog caught collective",
        r"Heartbeat monitor timed out",
        r"Connection (?:reset|closed) by (?:remote )?peer",
        r"Broken pipe",
        r"Socket Timeout",
        r"connectFullMesh failed",
        r"DataLoader worker .{0,80}exited unexpectedly",
        r"remote (?:process|peer|rank) .{0,80}exit",
    )
)
_CRASHED_TASK = re.compile(
    r"srun: error: \S+ tasks? \S+ (?:Segmentation fault|Bus error|Illegal instruction|Floating "
    r"point)"
)
_FIELD = re.compile(r"\s*(time|host|rank|exitcode|error_file|traceback) *: (.*)")


class Strength(IntEnum):
    """Strength of a line as an explanation of a failure.

    Of the strongest the first line counts, of SHELL and WORDS the last.
    """

    REMARK = 1
    WORDS = 2
    CONSEQUENCE = 3
    SIGNAL = 4
    SHELL = 5
    EXCEPTION = 6
    PROGRAM = 7
    SCHEDULER = 8


class RootCause(Struct, frozen=True):
    """A line with single blanks and without prefixes; `at` is its position among the lines.

    `rank` is the process that wrote it, '' if unknown.
    """

    line: str
    at: int
    strength: Strength
    rank: str = ""

    @property
    def text(self) -> str:
        return f"rank {self.rank}: {self.line}" if self.rank else self.line


class _Line(Struct, frozen=True):
    text: str
    at: int
    stream: str

    @property
    def rank(self) -> str:
        found = _RANK.search(self.stream)
        return found[1] if found else ""


_SCHEDULER = _any_of(
    (
        r"\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?(?:CANCELLED|FAILED)\b.*\bDUE TO (?!TASK FAILURE)",
        r"oom[-_ ]?kill event",
        r"\bOOM Killed\b",
        r"cgroup out-of-memory",
        r"oom-kill:constraint",
        r"[Oo]ut of memory: Kill",
        r"^srun: error: \S+ tasks? \S+ Out Of Memory",
        r"[Ee]xceeded (?:job |step )?memory limit",
        r"^=>> PBS: job killed:",
        # A probe's message on the node is its own: the node's name is what matters.
        r"^hpcdash: node \S{1,255} failed the probe \(status \d+\): ",
        r"^\S{1,255}: hpcdash: the [a-z-]+ check failed: ",
    )
)
_BY_STRENGTH = (
    (
        Strength.PROGRAM,
        _any_of(
            (
                r"(?:CUDA|HIP) out of memory",
                r"CUDA error: ",
                r"Cuda failure",
                r"hipErrorOutOfMemory",
                r"CUBLAS_STATUS_",
                r"CUDNN_STATUS_",
                r"RESOURCE_EXHAUSTED: Out of memory",
                r"no kernel image is available",
                r"^FATAL:",
                r"^\[ERROR\] ",
                r"pyxis: (?:failed|couldn't)",
                r"^Error: .{0,400}(?:initializing source|reading manifest)",
                r"manifest (?:for \S+ )?(?:unknown|not found)",
                r"unauthorized: ",
                r"(?:pull access|requested access .{0,60}) ?denied",
                r"toomanyrequests:",
                r"authentication required",
                r"No space left on device",
                r"Disk quota exceeded",
                r"Read-only file system",
                r"Stale file handle",
                r"error while loading shared libraries",
                r"symbol lookup error",
                r"version [`']GLIBC\S* not found",
                r"No module named ",
                r"Assertion .{0,400}failed",
                r"^Fatal Python error",
                r"^\s*what\(\):  ",
                r"(?<!srun: error: )\b(?:Segmentation fault|Bus error|Illegal instruction"
                r"|Floating point exception)\b",
                r"double free or corruption",
                r"free\(\): invalid",
                r"stack smashing detected",
            )
        ),
    ),
    (
        Strength.SHELL,
        _any_of(
            (
                r"command not found",
                r": No such file or directory",
                r"Permission denied",
                r": Not a directory",
                r"can't open file",
                r"syntax error near",
                r"unbound variable",
                r"bad interpreter",
                r"cannot execute",
                r"Exec format error",
                r": not found$",
                r"^\S{1,80}: error: (?:unrecognized arguments|the following arguments|argument )",
                r"Could not resolve host",
                r"Temporary failure in name resolution",
                r"Host key verification failed",
                r"Lmod has detected the following error",
                r"Unable to locate a modulefile",
                r"^(?:srun|sbatch): (?:fatal|error: (?:Unable|Invalid|Memory|Only allocated"
                r"|Requested|Job|Task))",
                r"execve\(\): ",
                r"line \d+: +\d+ (?:Killed|Aborted)\b",
                r"^Killed$",
                # Messages of the scripts made here before they end.
                r"^nodes given: \d+, asked for: \d+\. Not started\.",
                r", which (?:accelerate|deepspeed) cannot use: not started$",
                r"^hpcdash: (?!the container is up on )",
            )
        ),
    ),
    (
        Strength.SIGNAL,
        _any_of(
            (
                r"terminate called ",
                r"MPI_ABORT was invoked on rank",
                r"application called MPI_Abort",
                r"^Abort\(\d+\) on node",
                r"^Fatal error in \w*MPI_",
                r"Signal \d+ \(SIG(?:KILL|SEGV|BUS|ILL|FPE|ABRT)\) received by PID",
            )
        ),
    ),
)


def root_cause(lines: Sequence[str]) -> RootCause | None:
    """Find the cause of a failure in the last lines; None if all of them are blank.

    An error that the program survived for more than a few lines does not count.
    """
    written = [_stripped(line, at) for at, line in enumerate(lines) if line.strip()]
    if not written:
        return None
    hits, context = _hits(written)
    # torchrun's table has the rank that failed first.
    first_rank, reported = _first_failure(written)
    if reported is not None and reported.strength is Strength.PROGRAM:
        return reported
    near = _near_the_end(written, hits, context)
    candidates = [hit for hit in near if hit.strength is not Strength.REMARK]
    if reported is not None:
        candidates.append(reported)
    if candidates:
        best = max(hit.strength for hit in candidates)
        strongest = [hit for hit in candidates if hit.strength is best]
        if best is Strength.SHELL:
            return strongest[-1]
        return next(
            (hit for hit in strongest if first_rank and hit.rank == first_rank), strongest[0]
        )
    remarks = context.union(hit.at for hit in hits if hit.strength is Strength.REMARK)
    for line in reversed(written):
        if line.at not in remarks:
            # With its prefix, which may not be a launcher's.
            text = " ".join(_without_spool(lines[line.at].strip()).split())
            return RootCause(text, line.at, Strength.WORDS)
    ended = next(
        (line for line in written if re.search(r"[Ee]xited with|tasks? \d", line.text)), written[-1]
    )
    return _cause(ended, Strength.REMARK)


def _stripped(line: str, at: int) -> _Line:
    """Return the line without its prefixes; its indent stays."""
    text = _without_spool(line.rstrip())
    stream = ""
    for _ in range(5):
        if found := _CLOCK.match(text):
            text = text[found.end() :]
        elif found := _LAUNCHER.match(text):
            stream = stream or found["label"] or found["task"]
            text = text[found.end() :]
        else:
            break
    return _Line(text[:_MAX_LINE_LENGTH], at, stream)


def _without_spool(text: str) -> str:
    """Return `line 4: foo: not found` for `/var/spool/slurmd/job00012/slurm_script: line 4: foo:
    not found`.
    """
    if (found := _SPOOLED.search(text)) is None:
        return text
    before, separator, path = text[: found.start()].rpartition(" ")
    if not path.startswith("/"):
        return text
    return f"{before}{separator}line {text[found.end() :]}"


def _cause(line: _Line, strength: Strength) -> RootCause:
    return RootCause(" ".join(line.text.split()), line.at, strength, line.rank)


def _exception(line: _Line) -> RootCause:
    """Build the cause in the line of an exception after its traceback."""
    is_consequence = _CONSEQUENCE.search(line.text) is not None
    return _cause(line, Strength.CONSEQUENCE if is_consequence else Strength.PROGRAM)


def _hits(written: Sequence[_Line]) -> tuple[list[RootCause], set[int]]:
    """Return the lines that hint at a cause, in order, and the positions of their context."""
    hits: list[RootCause] = []
    context: set[int] = set()
    # The streams in a traceback, those whose next exception follows from their last, and these.
    in_traceback: set[str] = set()
    chained: set[str] = set()
    exceptions: dict[str, RootCause] = {}
    in_table = False
    for line in written:
        text = line.text
        stream = line.stream
        if in_table or text.strip() in ("Failures:", _FIRST_FAILURE):
            in_table = not text.startswith("=====")
            context.add(line.at)
        elif _TRACEBACK in text:
            in_traceback.add(stream)
            context.add(line.at)
        elif stream in in_traceback and _IN_TRACEBACK.match(text):
            context.add(line.at)
        elif stream in in_traceback:
            in_traceback.remove(stream)
            hit = _exception(line)
            earlier = exceptions.get(stream)
            if stream in chained and hit.strength is Strength.PROGRAM and earlier in hits:
                hits.remove(earlier)
            chained.discard(stream)
            exceptions[stream] = hit
            hits.append(hit)
        else:
            if text.startswith(_CHAINED):
                chained.add(stream)
            if (strength := _strength(text.strip())) is not None:
                hits.append(_cause(line, strength))
    return hits, context


def _strength(text: str) -> Strength | None:
    if _SCHEDULER.search(text):
        return Strength.SCHEDULER
    if _CRASHED_TASK.match(text):
        return Strength.SIGNAL
    if _REMARK.match(text):
        return Strength.REMARK
    if _CONSEQUENCE.search(text):
        return Strength.CONSEQUENCE
    for strength, pattern in _BY_STRENGTH:
        if pattern.search(text):
            return strength
    return Strength.EXCEPTION if _EXCEPTION.match(text) else None


def _near_the_end(
    written: Sequence[_Line], hits: Sequence[RootCause], context: set[int]
) -> list[RootCause]:
    """Return the hits with no more than a few ordinary lines after and between them."""
    by_line = {hit.at: hit for hit in hits}
    near: list[RootCause] = []
    ordinary = 0
    for line in reversed(written):
        if (hit := by_line.get(line.at)) is not None:
            near.append(hit)
            ordinary = 0
        elif line.at not in context:
            ordinary += 1
            if ordinary >= _ORDINARY_LINES_AFTER:
                break
    return near[::-1]


def _first_failure(written: Sequence[_Line]) -> tuple[str, RootCause | None]:
    """Return the rank that failed first and its cause from the earliest of torchrun's tables."""
    tables = [
        _table(written[at + 1 : at + 200])
        for at, line in enumerate(written)
        if line.text.strip() == _FIRST_FAILURE
    ]
    _, rank, cause = min(tables, key=lambda table: table[0] or "9", default=("", "", None))
    return rank, cause


def _table(lines: Sequence[_Line]) -> tuple[str, str, RootCause | None]:
    """Parse the time, the rank and the cause of the table that starts here."""
    time = ""
    rank = ""
    cause: RootCause | None = None
    margin: int | None = None
    for line in lines:
        if line.text.startswith("====="):
            break
        if margin is not None:
            indent = len(line.text) - len(line.text.lstrip())
            if indent <= margin:
                # Another traceback may follow one that was caught.
                cause = _exception(line)
            continue
        field = _FIELD.match(line.text)
        if field is None:
            continue
        name = field[1]
        value = field[2].strip()
        if name == "time":
            time = value
        elif name == "rank":
            rank = value.partition(" ")[0]
        elif name == "traceback" and value.startswith(_TRACEBACK):
            margin = len(line.text) - len(line.text.lstrip())
        elif name == "traceback" and value.startswith("Signal "):
            cause = RootCause(value, line.at, Strength.SIGNAL)
    return time, rank, None if cause is None else replace(cause, rank=rank)
