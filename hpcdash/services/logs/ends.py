"""Reads the ends of many files of a login node with few commands: stderr where it says anything, else stdout."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hpcdash.backends.queries import Answer, Query
from hpcdash.services.logs.lines import shown_line

END_BYTES = 4096
FILES_A_COMMAND = 50
_LIMIT_SECONDS = 60.0
_LONGEST_LINE_BYTES = 2000

# $1 token, $2 how many bytes, then stderr's path ('' for none) and stdout's in turn.
# Prints for each pair `TOKEN WORD SIZE\n` and the last bytes of the file; after the last, the token. [ -f ] first:
# opening a FIFO would wait for its writer. stderr counts where it holds more than blanks.
ENDS_SCRIPT = r"""
LC_ALL=C; export LC_ALL
token=$1 length=$2; shift 2
while [ $# -gt 0 ]; do
  path=$2
  if [ "$1" ] && [ -f "$1" ] && tail -c "$length" <"$1" 2>/dev/null | grep -q '[^[:space:]]'; then path=$1; fi
  shift 2
  if [ -f "$path" ] && [ -r "$path" ]; then
    printf '%s there %s\n' "$token" $(wc -c <"$path")
    tail -c "$length" <"$path" 2>/dev/null
  elif [ -f "$path" ]; then printf '%s closed 0\n' "$token"
  elif [ -e "$path" ]; then printf '%s special 0\n' "$token"
  else printf '%s missing 0\n' "$token"
  fi
done
printf '%s' "$token"
"""
_PROBLEMS = {
    b"closed": "no permission to read its log",
    b"special": "its log is no regular file",
    b"missing": "its log is not there",
}


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The last lines of a file, safe to show, blank ones too; `problem` says why there are none, '' else."""

    lines: tuple[str, ...]
    problem: str = ""


def ends_query(files: Sequence[tuple[str | None, str | None]], length: int = END_BYTES) -> Query[tuple[LogEnd, ...]]:
    """The last `length` bytes of at most FILES_A_COMMAND (stdout, stderr) pairs of paths, in order, in one command.

    A path that no command line can carry is not asked for.
    """
    token = f"\x1e{secrets.token_hex(8)}"
    words = [word for stdout, stderr in files for word in (_carried(stderr), _carried(stdout))]
    argv = ("sh", "-c", ENDS_SCRIPT, "sh", token, str(length), *words)
    return Query(argv, partial(_parse, token=token.encode(), count=len(files)), limit_seconds=_LIMIT_SECONDS)


def _carried(path: str | None) -> str:
    if path is None or "\0" in path:
        return ""
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return ""
    return path


def _parse(answer: Answer, *, token: bytes, count: int) -> tuple[LogEnd, ...]:
    """One a pair; what the answer does not hold has a problem."""
    pieces = answer.stdout.split(token)
    # What stands before the first is noise; behind the last token comes nothing.
    ends = [_end(piece) for piece in pieces[1:-1]] if len(pieces) > 1 else []
    missing = LogEnd((), "the answer was cut short")
    return (*ends[:count], *(missing for _ in range(count - len(ends))))


def _end(piece: bytes) -> LogEnd:
    header, _, content = piece.partition(b"\n")
    word, _, size = header.strip().partition(b" ")
    if problem := _PROBLEMS.get(word):
        return LogEnd((), problem)
    raw = content.split(b"\n")
    if size.strip().isdigit() and int(size) > len(content) and len(raw) > 1:
        # The first line has lost its beginning.
        del raw[0]
    return LogEnd(tuple(shown_line(_kept(line)).text for line in raw))


def _kept(line: bytes) -> bytes:
    """The beginning of a long line, and of what was written over others in its place that of the last."""
    if len(line) <= _LONGEST_LINE_BYTES:
        return line
    return line.rstrip(b"\r").rpartition(b"\r")[2][:_LONGEST_LINE_BYTES]
