"""Reads a file on the cluster by byte offset, in constant memory, over the cluster's own transport."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from hpcdash.errors import CommandTimedOut, HpcdashError, UnreachableError, excerpt
from hpcdash.services.logs.pieces import BLOCK, LONGEST_PIECE, Pieces, pieces, read_from
from hpcdash.services.submit.sudoers import NOTHING_THERE
from hpcdash.transport.base import CommandResult, Transport
from hpcdash.transport.node import NodeUnreached, ThroughNode

READ_LIMIT_SECONDS = 60.0
FIND_LIMIT_SECONDS = 120.0
# How often a followed file is looked at: while it grows, and at the slowest.
SHORTEST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 3.0
# Each look at a node's own file is a login there; one that fails is tried again seldom.
NODE_PAUSE_SECONDS = 2.0
UNREACHED_PAUSE_SECONDS = 30.0
# A file that was quiet for so long is looked at the least.
_QUIET_SECONDS = 60.0
# grep holds a line whole, so it gets no more than this at once.
_FIND_WINDOW_BYTES = 16 << 20
_SCAN_BYTES = 4 << 20
# Of the words of READ_SCRIPT.
_MISSING = frozenset({b"missing", b"no-folder", b"not-a-folder", b"dangling"})
_HEADER = re.compile(rb"([0-9]{1,20}:[0-9]{1,20}) ([0-9]{1,15}) ([0-9]{1,15}) [0-9]{1,15}")
_SMALLEST_BLOCK, _LARGEST_BLOCK = 512, 64 * 1024
# $1 path, $2 before which byte.
COUNT_SCRIPT = r"""
LC_ALL=C; export LC_ALL
[ -f "$1" ] || exit 0
head -c "$2" <"$1" | wc -l
"""


@dataclass(frozen=True, slots=True)
class FileStat:
    """What a file was at one moment: `identity` tells files apart (device and inode), '' where there is none.

    `problem` is '' or says in words why it cannot be read (it is not there, no permission, a folder); `is_missing` is
    true only where there surely is nothing under its name, `is_unreached` where the node that has it is not reached.
    """

    identity: str = ""
    size: int = 0
    modified_at: float = 0.0
    problem: str = ""
    is_missing: bool = False
    is_unreached: bool = False

    @property
    def is_there(self) -> bool:
        return bool(self.identity)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a file from `offset` on, and what the file was when they were read: `end` is never past its size."""

    look: FileStat
    offset: int
    content: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.content)

    @property
    def ends_the_file(self) -> bool:
        return self.end >= self.look.size


@dataclass(frozen=True, slots=True)
class Page:
    """Whole pieces of a file, and the bytes of exactly these."""

    chunk: Chunk
    pieces: Pieces

    def piece(self, index: int) -> bytes:
        """The bytes of one piece."""
        start, end, _ = self.pieces[index]
        return self.chunk.content[start - self.chunk.offset : end - self.chunk.offset]


class FileChange(StrEnum):
    """What became of a file from one look to the next."""

    UNCHANGED = "unchanged"
    GREW = "grew"
    # The same file, shorter: what was read of it is no more.
    TRUNCATED = "truncated"
    # Another file under the same name: rotated, or deleted and written anew.
    REPLACED = "replaced"
    GONE = "gone"
    APPEARED = "appeared"


def change(before: FileStat, after: FileStat) -> FileChange:
    """What happened between two looks; a file deleted and made anew may get its old inode, and then seems truncated."""
    if before.is_there and after.is_there:
        if before.identity != after.identity:
            return FileChange.REPLACED
        if after.size < before.size:
            return FileChange.TRUNCATED
        return FileChange.GREW if after.size > before.size else FileChange.UNCHANGED
    if before.is_there:
        return FileChange.GONE
    return FileChange.APPEARED if after.is_there else FileChange.UNCHANGED


def next_look_seconds(quiet_seconds: float) -> float:
    """How long to wait before the next look at a file that last changed so long ago."""
    share = min(max(quiet_seconds, 0.0) / _QUIET_SECONDS, 1.0)
    return SHORTEST_PAUSE_SECONDS + share * (LONGEST_PAUSE_SECONDS - SHORTEST_PAUSE_SECONDS)


class LogFile:
    """One file. Every method raises UnreachableError or CommandTimedOut when the line fails, and nothing else.

    A relative path is one from the home folder of the person there; `path` may carry bytes that are no UTF-8 as
    os.fsdecode does. `host` is the node whose own disk it is on, '' where the login node has it. `reader` is a command
    that reads it as another account, and takes where to begin (or `end`) and how many bytes; () where we read it.
    """

    def __init__(self, transport: Transport, path: str, host: str = "", reader: tuple[str, ...] = ()) -> None:
        self.transport: Transport = ThroughNode(transport, host) if host else transport
        self.path = path
        self.host = host
        # How long to wait at least before the next look.
        self.pause_seconds = NODE_PAUSE_SECONDS if host or reader else 0.0
        self._reader = reader
        # Why the node was not reached the last time, '' where it was.
        self._unreached = ""

    @property
    def place(self) -> str:
        """The path for a person to read: node:/path where it is on a node's own disk."""
        return f"{self.host}:{self.path}" if self.host else self.path

    async def look(self) -> FileStat:
        """What the file is now."""
        return (await self.read(0, 0)).look

    async def read(self, offset: int, length: int) -> Chunk:
        """At most `length` bytes from `offset` on (fewer at the end), with a look, in one command."""
        return await self._read(str(max(offset, 0)), max(length, 0))

    async def read_end(self, length: int) -> Chunk:
        """The last `length` bytes, with a look, in one command."""
        return await self._read("end", max(length, 0))

    async def read_pieces(self, offset: int, length: int) -> Page:
        """The whole pieces that hold any of `length` bytes from `offset` on, in one command."""
        begin = read_from(offset)
        chunk = await self.read(begin, offset - begin + length + LONGEST_PIECE + BLOCK)
        return _page(chunk, offset, offset + max(length, 1))

    async def read_last_pieces(self, length: int) -> Page:
        """The whole pieces that hold any of the last `length` bytes, in one command."""
        chunk = await self.read_end(length + LONGEST_PIECE + BLOCK)
        return _page(chunk, max(0, chunk.end - length), chunk.end)

    async def find(self, wanted: str, offset: int, *, backwards: bool = False, span_bytes: int = 1 << 28) -> int | None:
        """Where the piece begins that holds the next match at or after `offset` (the last that ends before, backwards).

        Looks at no more than `span_bytes`; None where there is none in them. Upper and lower case (of ASCII letters)
        differ only where `wanted` has an upper-case letter. A match does not go over the end of a line.
        """
        needle = wanted.encode("utf-8", "surrogateescape" if _is_encodable(wanted) else "replace")
        if not needle or b"\n" in needle or b"\0" in needle or len(needle) > BLOCK or self._refusal():
            return None
        low, high = (max(0, offset - span_bytes), offset) if backwards else (max(0, offset), offset + span_bytes)
        match = await self._grep(wanted, low, high, backwards=backwards, folds_case=wanted == wanted.lower())
        if match is None:
            return None
        page = await self.read_pieces(match, 1)
        return page.pieces.start if len(page.pieces) else match

    async def count_lines(self, offset: int, *, limit_seconds: float = 20.0) -> int:
        """How many newlines come before `offset`; raises CommandTimedOut where counting takes longer.

        0 for a file that cannot be read.
        """
        if offset <= 0 or self._refusal():
            return 0
        if self._reader:
            return await self._count_read(offset)
        answer = await self._run(("sh", "-c", COUNT_SCRIPT, "sh", self._safe_path, str(offset)), limit_seconds)
        words = answer.stdout.split() if answer is not None else ()
        return int(words[-1]) if words and words[-1].isdigit() else 0

    @property
    def _safe_path(self) -> str:
        """The path as no command takes it for an option."""
        return f"./{self.path}" if self.path.startswith("-") else self.path

    def _refusal(self) -> str:
        """Why no command can be given this path, or ''."""
        if not self.path:
            return "it is not known where the file is"
        if "\0" in self.path or not _is_encodable(self.path):
            return "no file can have this path"
        return ""

    async def _count_read(self, offset: int) -> int:
        """The newlines before `offset`, where they can only be read."""
        if offset > _SCAN_BYTES:
            raise CommandTimedOut("The lines are too many to be read for counting them.")
        return (await self.read(0, offset)).content.count(b"\n")

    async def _run(self, argv: tuple[str, ...], limit_seconds: float) -> CommandResult | None:
        """Run a command; None where the transport cannot carry it (a path of more than 100 000 letters), or where the
        node is not reached."""
        self._unreached = ""
        try:
            answer = await self.transport.run(argv, limit_seconds=limit_seconds)
        except (UnreachableError, CommandTimedOut):
            raise
        except NodeUnreached as error:
            self.pause_seconds = UNREACHED_PAUSE_SECONDS
            self._unreached = f"it is on {self.host} ({self.path}) until the job ends, and {error.message}"
            return None
        except HpcdashError:
            return None
        self.pause_seconds = NODE_PAUSE_SECONDS if self.host or self._reader else 0.0
        return answer

    async def _read(self, begin: str, length: int) -> Chunk:
        offset = 0 if begin == "end" else int(begin)
        if refusal := self._refusal():
            return Chunk(FileStat(problem=refusal), offset, b"")
        token = secrets.token_hex(8)
        block = _block_size(length)
        script = ("sh", "-c", READ_SCRIPT, "sh", token, self._safe_path, begin, str(length), str(block))
        argv = (*self._reader, begin, str(length)) if self._reader else script
        answer = await self._run(argv, READ_LIMIT_SECONDS)
        if answer is None:
            problem = self._unreached or "it cannot be asked for here"
            return Chunk(FileStat(problem=problem, is_unreached=bool(self._unreached)), offset, b"")
        if self._reader:
            return _chunk_read(answer, begin, length)
        _, found, rest = answer.stdout.partition(token.encode() + b" ")
        header, newline, content = rest.partition(b"\n")
        if not (found and newline):
            return Chunk(FileStat(problem=_own_message(answer)), offset, b"")
        kind, *words = header.split()
        if len(words) != 4:
            problem = _problem(kind.decode(), content, self.path)
            return Chunk(FileStat(problem=problem, is_missing=kind in _MISSING), offset, b"")
        identity, size, modified_at, start = words
        return _cut(
            FileStat(identity.decode(), int(size), float(modified_at)),
            int(start),
            length,
            block,
            content,
            _own_message(answer),
        )

    async def _grep(self, wanted: str, low: int, high: int, *, backwards: bool, folds_case: bool) -> int | None:
        """The offset of the first match in these bytes (the last one, backwards)."""
        if self._reader:
            return await self._scan(wanted.encode("utf-8", "surrogateescape"), low, high, backwards, folds_case)
        argv = (
            "sh",
            "-c",
            FIND_SCRIPT,
            "sh",
            self._safe_path,
            wanted,
            str(low),
            str(high),
            str(_FIND_WINDOW_BYTES),
            "backwards" if backwards else "forwards",
            "-i" if folds_case else "",
        )
        answer = await self._run(argv, FIND_LIMIT_SECONDS)
        words = answer.stdout.split() if answer is not None else []
        if words and words[-1].isdigit():
            return int(words[-1])
        if words[-1:] == [b"cannot"]:
            return await self._scan(wanted.encode("utf-8", "surrogateescape"), low, high, backwards, folds_case)
        return None

    async def _scan(self, needle: bytes, low: int, high: int, backwards: bool, folds_case: bool) -> int | None:
        """The same where grep there tells no offsets, or may not read the file: the bytes are looked through here."""
        if folds_case:
            needle = needle.lower()
        shared = len(needle) - 1
        begins: Iterable[int] = range(low, high, _SCAN_BYTES)
        if backwards:
            size = (await self.look()).size
            begins = reversed(range(low, min(high, size), _SCAN_BYTES))
        for begin in begins:
            chunk = await self.read(begin, min(_SCAN_BYTES + shared, high - begin))
            content = chunk.content.lower() if folds_case else chunk.content
            found = content.rfind(needle) if backwards else content.find(needle)
            if found >= 0:
                return begin + found
            if not backwards and chunk.ends_the_file:
                return None
        return None


def _page(chunk: Chunk, first: int, last: int) -> Page:
    """The pieces of a chunk that hold any byte from `first` to before `last`."""
    cut = pieces(chunk.content, chunk.offset, at_end=chunk.ends_the_file)
    if not len(cut):
        return Page(Chunk(chunk.look, cut.start, b""), cut)
    begin, end = cut.index_at(first), cut.index_at(last - 1) + 1
    cuts = cut.cuts[begin : end + 1]
    hidden = frozenset(start for start in cut.overwritten if cuts[0] <= start < cuts[-1])
    kept = chunk.content[cuts[0] - chunk.offset : cuts[-1] - chunk.offset]
    shown = Pieces(cuts, hidden, cut.is_open and cuts[-1] == cut.end)
    return Page(Chunk(chunk.look, cuts[0], kept), shown)


def _cut(look: FileStat, start: int, length: int, block: int, content: bytes, complaint: str) -> Chunk:
    """What was asked for of the whole blocks that dd gave; a file grows between stat and dd, and /proc has no sizes."""
    first = start % block
    asked = content[first : first + length]
    if complaint and not asked and length and start < look.size:
        look = replace(look, problem=complaint)
    return Chunk(replace(look, size=max(look.size, start + len(asked) if asked else 0)), start, asked)


def _chunk_read(answer: CommandResult, begin: str, length: int) -> Chunk:
    """What a launch's reader printed: `IDENTITY SIZE MODIFIED BEGIN`, then the bytes. It is the account's to say."""
    header, _, content = answer.stdout.partition(b"\n")
    if (found := _HEADER.fullmatch(header)) is None:
        problem = _own_message(answer) if answer.status else "its account answers with something else"
        look = FileStat(problem=problem, is_missing=answer.status == NOTHING_THERE)
        return Chunk(look, 0 if begin == "end" else int(begin), b"")
    size = int(found[2])
    start = max(0, size - length) if begin == "end" else int(begin)
    return _cut(
        FileStat(found[1].decode(), size, float(found[3])),
        start,
        length,
        1,
        content[: max(0, length)],
        _own_message(answer),
    )


def _block_size(length: int) -> int:
    """A power of two for dd: few calls for many bytes, few bytes too many for a few."""
    blocks = max(length // 64, 1)
    return min(max(1 << math.ceil(math.log2(blocks)), _SMALLEST_BLOCK), _LARGEST_BLOCK)


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _own_message(answer: CommandResult) -> str:
    """What went wrong, in the words of the program that said it; '' where nothing did."""
    if answer.status == 0 and answer.stdout:
        return ""
    lines = [line for line in excerpt(answer.stderr, 400).splitlines() if line and not line[0].isdigit()]
    return lines[-1] if lines else f"reading it ended with status {answer.status}"


def _problem(kind: str, where: bytes, path: str) -> str:
    """Words for what the script found in place of a file; `where` is the folder that is why, or b''."""
    folder = where.decode("utf-8", "surrogateescape")
    words = {
        "folder": "this is a folder",
        "missing": "there is no such file",
        "no-folder": f"there is no folder {folder}",
        "not-a-folder": f"{folder} is no folder",
        "closed-folder": f"no permission to enter {folder}",
        "closed": "no permission to read it",
        "dangling": f"it is a link to {folder}, which is not there",
        "special": "it is no regular file",
        "no-stat": "this machine has no stat command to look at it with",
    }
    if kind == "special" and path == "/dev/null":
        return "it goes to /dev/null: nothing is kept"
    return words.get(kind, kind)


# $1 token, $2 path, $3 where to begin in bytes or `end`, $4 how many bytes, $5 block size.
# Prints `TOKEN there IDENTITY SIZE MODIFIED BEGIN`, then whole blocks that hold what was asked for; or `TOKEN PROBLEM`,
# then the folder that is the reason. The file is opened once: what is looked at is what is read, whatever is renamed.
# [ -f ] first: opening a FIFO would wait for its writer. `stat -` is coreutils'; -f without a file BSD's.
READ_SCRIPT = r"""
LC_ALL=C; export LC_ALL
token=$1 path=$2 begin=$3 length=$4 block=$5
problem() { printf '%s %s\n%s' "$token" "$1" "$2"; exit 0; }
explain() {
  [ -d "$path" ] && problem folder
  [ -f "$path" ] && problem closed
  [ -e "$path" ] && problem special
  kind= reason= part=$path
  while case $part in */*) part=${part%/*};; *) part=;; esac; [ "$part" ]; do
    if [ -d "$part" ]; then [ -x "$part" ] || { kind=closed-folder reason=$part; }
    elif [ -e "$part" ]; then kind=not-a-folder reason=$part
    else kind=no-folder reason=$part
    fi
  done
  [ "$kind" ] && problem "$kind" "$reason"
  [ -h "$path" ] && problem dangling "$(readlink "$path")"
  problem missing
}
[ -f "$path" ] || explain
{
  format='%d:%i %s %Y'
  found=$(stat -L -c "$format" - <&3 2>/dev/null || stat -L -c "$format" "$path" 2>/dev/null ||
    stat -f '%d:%i %z %m' <&3 2>/dev/null) || problem no-stat
  set -- $found
  if [ "$begin" = end ]; then
    begin=$(($2 - length))
    [ "$begin" -ge 0 ] || begin=0
  fi
  printf '%s there %s %s\n' "$token" "$found" "$begin"
  if [ "$length" -gt 0 ] && { [ "$2" -gt "$begin" ] || [ "$2" -eq 0 ]; }; then
    dd bs="$block" skip=$((begin / block)) count=$(((begin % block + length + block - 1) / block)) <&3
    exit
  fi
  exit 0
} 3<"$path"
explain
"""

# $1 path, $2 text, $3 and $4 between which bytes, $5 window, $6 forwards or backwards, $7 -i or nothing.
# Prints the offset of the first (backwards: last) match, nothing where there is none, `cannot` where grep tells no
# offsets. Windows share what a match may be long. -o: a line may be as long as the file.
FIND_SCRIPT = r"""
LC_ALL=C; export LC_ALL
path=$1 text=$2 low=$3 high=$4 window=$5 way=$6 fold=$7 block=65536
[ "$(printf 'xA\n' | grep -abo -F -i -e a 2>/dev/null)" = 1:A ] || { echo cannot; exit; }
[ -f "$path" ] || exit 0
matches() {
  skip=$(($1 % block)) bytes=$(($2 - $1))
  dd bs=$block skip=$(($1 / block)) count=$(((skip + bytes + block - 1) / block)) <&3 2>/dev/null |
    { if [ $skip -gt 0 ]; then tail -c +$((skip + 1)); else cat; fi; } | head -c $bytes |
    if [ $way = forwards ]; then grep -abo -m 1 -F $fold -e "$text" | head -n 1
    else grep -abo -F $fold -e "$text" | tail -n 1
    fi
}
look_in() {
  found=$(matches "$1" "$2" 3<"$path")
  case $found in *:*) echo $(($1 + ${found%%:*})); exit 0;; esac
}
size=$(wc -c <"$path") || exit 0
[ "$high" -le "$size" ] || high=$((size))
shared=$((${#text} - 1))
if [ $way = forwards ]; then
  while [ "$low" -lt "$high" ]; do
    end=$((low + window + shared))
    [ "$end" -le "$high" ] || end=$high
    look_in "$low" "$end"
    low=$((low + window))
  done
else
  while [ "$high" -gt "$low" ]; do
    begin=$((high - window - shared))
    [ "$begin" -ge "$low" ] || begin=$low
    look_in "$begin" "$high"
    [ "$begin" -gt "$low" ] || break
    high=$((begin + shared))
  done
fi
"""
