"""Asks a login node, in one command, for what no scheduler tells: how logs grow and what they got,
saves, disks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.queries import Answer, Query
from hpcdash.domain.text import decode
from hpcdash.errors import UnreadableOutput
from hpcdash.services.files import Chunk, FileStat, parse_stat
from hpcdash.services.share.state import Pool
from hpcdash.services.watch.disks import (
    PARSERS,
    DiskUsage,
    find_usage,
    joined,
    parse_df,
    parse_df_inodes,
    parse_du,
)

MOST_FILES = 200
# Of a log no more is read at once, of as many logs; of others another time.
MOST_TAIL_BYTES = 256 << 10
MOST_TAILS = 16
_HEAD_BYTES = 4096
_FILE_SECONDS = 10
# So many places that do not answer are waited for in full; of more, each for a second.
_MOST_SILENT = 4
_TOOL_SECONDS = 20
_DU_SECONDS = 110
_ENDING_SECONDS = 10.0
# A checkpoint that is one file.
_ONE_FILE = "guard.ckpt"

# $1 token, $2 whose quota, '' for one's own, then words: `file KEY PATH`, `newest KEY PATTERN`,
# `whole KEY FOLDER` (of checkpoints, by what is written last into each, as launches look for them),
# `disk PATH TOOL KIND OWNER DU INODES`. Prints `TOKEN KIND KEY\n` and what a program printed, first
# of all the clock there. stat opens nothing: a FIFO would wait for its writer. IFS is empty so that
# a pattern is filled in by its files and not parted at blanks. A name's line break is escaped: it
# begins no line of its own. Whatever touches a path is bounded, the shell's own patterns too: on a
# dead mount it would wait for ever. Below the first folder on the way that does not answer nothing
# more is asked.
FACTS_SCRIPT = (
    f"FILE={_FILE_SECONDS} TOOL={_TOOL_SECONDS} DU={_DU_SECONDS} MOST={MOST_TAIL_BYTES} "
    f"HEAD={_HEAD_BYTES}"
    f" SILENT={_MOST_SILENT}"
    + r"""
LC_ALL=C QUOTING_STYLE=escape; export LC_ALL QUOTING_STYLE; IFS=
token=$1 user=${2:-$(id -un)}; shift 2
silent=
part() { printf '%s%s\n' "$token" "$1"; }
bounded() { seconds=$1; shift; timeout -k 2 "$seconds" "$@" </dev/null 2>/dev/null; }
answers() {
  left=$silent
  while [ "$left" ]; do
    case $1/ in "${left%%"$token"*}"/*) return 1 ;; esac
    left=${left#*"$token"}
  done
}
is_over() { case $1 in 124 | 137 | 143) ;; *) return 1 ;; esac; }
note_silent() {
  left=${1#/} at=
  while [ "$left" ]; do
    at=$at/${left%%/*}
    case $left in */*) left=${left#*/} ;; *) left= ;; esac
    bounded 1 stat -L -c %F -- "$at" >/dev/null
    is_over $? && break
  done
  silent=$silent$at$token SILENT=$((SILENT - 1))
  [ "$SILENT" -gt 0 ] || FILE=1
  part silent; printf '%s\n' "$at"
}
look() {
  path=$1; shift
  answers "$path" || return 9
  found=$(bounded "$FILE" "$@")
  status=$?
  is_over "$status" || return "$status"
  note_silent "$path"; return 9
}
newest() {
  key=$1; shift
  look "$@"
  [ $? -eq 9 ] || { part "newest $key"; printf '%s\n' "$found" | sort -n | tail -n 1; }
}
ask() { part "$1"; shift; bounded "$@"; }
part clock; date +%s
while [ $# -gt 0 ]; do
  case $1 in
  file)
    look "$3" stat -L -c '%d:%i %s %Y' -- "$3"
    [ $? -eq 9 ] || { part "file $2"; printf '%s\n' "$found"; }
    shift 3
    ;;
  tail)
    key=$2 path=$3 identity=$4 read_to=$5 begin=$6 is_done=$7; shift 7
    look "$path" stat -L -c '%d:%i %s %Y %F' -- "$path" || continue
    case $found in *' regular '*) found=${found%% regular *} ;; *) continue ;; esac
    size=${found#* }; size=${size%% *}
    if [ "${found%% *}" != "$identity" ] || [ "$size" -lt "$read_to" ]; then begin=0 identity=; fi
    [ "$size" -eq "$read_to" ] && [ "$is_done" = 1 ] && begin=$size
    [ $((size - begin)) -gt "$MOST" ] && begin=$((size - MOST))
    part "tail $key"; printf '%s %s\n' "$found" "$begin"
    if [ "$begin" -gt 0 ] && [ ! "$identity" ]; then
      part "head $key"; bounded "$FILE" head -c "$HEAD" -- "$path"
    fi
    part "bytes $key"
    [ "$size" -gt "$begin" ] && bounded "$FILE" tail -c +$((begin + 1)) -- "$path" | head -c $((size - begin))
    ;;
  newest) newest "$2" "$3" sh -c 'IFS=; stat -L -c "%Y %N" -- $1' sh "$3"; shift 3 ;;
  whole)
    newest "$2" "$3" sh -c 'stat -L -c "%Y %N" -- "$1"/*/WHOLE.json "$1"/checkpoint-*/trainer_state.json \
      "$1"/*/.metadata "$1"/guard.ckpt' sh "$3"
    shift 3
    ;;
  disk)
    path=$2 tool=$3 kind=$4 owner=$5 du=$6 inodes=$7; shift 7
    part disk
    look "$path" stat -f -c %T -- "$path"
    [ $? -eq 9 ] && continue
    if [ "$tool" = auto ]; then
      case $found in
        lustre) tool=lfs ;;
        gpfs) tool=mmlsquota ;;
        fhgfs | beegfs) tool=beegfs-ctl ;;
        nfs* | xfs | ext*) tool=quota ;;
      esac
    fi
    [ "$owner" ] || owner=$user
    case $tool-$kind in
      lfs-user) ask lfs "$TOOL" lfs quota -u "$owner" "$path" ;;
      lfs-group) ask lfs "$TOOL" lfs quota -g "$owner" "$path" ;;
      lfs-project) ask lfs "$TOOL" lfs quota -p "$owner" "$path" ;;
      beegfs-ctl-user) ask beegfs-ctl "$TOOL" beegfs-ctl --getquota --csv --uid "$owner" ;;
      beegfs-ctl-group) ask beegfs-ctl "$TOOL" beegfs-ctl --getquota --csv --gid "$owner" ;;
      mmlsquota-user) ask mmlsquota "$TOOL" mmlsquota -Y -u "$owner" ;;
      mmlsquota-group) ask mmlsquota "$TOOL" mmlsquota -Y -g "$owner" ;;
      mmlsquota-project) ask mmlsquota "$TOOL" mmlsquota -Y -j "$owner" ;;
      quota-user) ask quota "$TOOL" quota -w -u "$owner" ;;
      quota-group) ask quota "$TOOL" quota -w -g "$owner" ;;
    esac
    ask df "$TOOL" df -P -k -- "$path"
    ask df-i "$TOOL" df -P -i -- "$path"
    [ "$du" = 1 ] && ask du "$DU" du -s -k -- "$path"
    [ "$inodes" = 1 ] && ask du-i "$DU" du -s --inodes -- "$path"
    ;;
  *) exit 64 ;;
  esac
done
part end
"""
)


# Where its entries start, and how many arguments those of files and logs have.
_ENTRIES_AT = 2
_ENTRY_WORDS = {"file": 3, "tail": 7}


class DiskQuery(Struct, frozen=True):
    """A path; `tool` and `owner` as StorageRule has them; whether du counts its bytes, and its
    inodes.
    """

    path: str
    tool: str = "auto"
    owner: str = "user"
    by_du: bool = False
    inodes_by_du: bool = False


class TailQuery(Struct, frozen=True):
    """A log whose new bytes are wanted: `identity` and `read_to` of what was read ('' and 0:
    nothing yet), where to begin, and whether nothing is wanted as long as it did not grow.
    """

    path: str
    identity: str = ""
    read_to: int = 0
    begin: int = 0
    is_done: bool = False


class FactsRequest(Struct, frozen=True):
    """Facts to query: files, patterns whose newest file counts, checkpoint folders, disks, logs."""

    files: tuple[str, ...] = ()
    newest: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    disks: tuple[DiskQuery, ...] = ()
    tails: tuple[TailQuery, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.files or self.newest or self.checkpoints or self.disks or self.tails)

    def parted(self, is_apart: Callable[[str], bool]) -> tuple[FactsRequest, FactsRequest]:
        """The files and logs whose paths are so, and all the rest."""
        apart = FactsRequest(
            files=tuple(filter(is_apart, self.files)),
            tails=tuple(one for one in self.tails if is_apart(one.path)),
        )
        rest = replace(
            self,
            files=tuple(path for path in self.files if not is_apart(path)),
            tails=tuple(one for one in self.tails if not is_apart(one.path)),
        )
        return apart, rest


class DiskCheck(Struct, frozen=True):
    """Usage of a disk by the quota tool and df.

    The count of du is separate, as it is not run each time.
    """

    usage: DiskUsage | None = None
    counted: DiskUsage | None = None


class Facts(Struct, frozen=True):
    """By path or pattern; what the answer does not hold is not in there.

    `newest`: seconds ago, None: no such file.

    heads: how logs begin whose tail does not begin there and was not read before. silent: folders,
    or files, that did not answer in time; nothing below them was looked at. names: those of the
    newest, of a whole checkpoint that is a folder the folder's. pools: what the coordinators of
    shared pools have published, by the pools' names.
    """

    files: Mapping[str, FileStat] = field(default_factory=dict)
    newest: Mapping[str, float | None] = field(default_factory=dict)
    disks: Mapping[str, DiskCheck] = field(default_factory=dict)
    tails: Mapping[str, Chunk] = field(default_factory=dict)
    heads: Mapping[str, bytes] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    pools: Mapping[str, Pool] = field(default_factory=dict)

    def with_others(self, others: Facts) -> Facts:
        """These, and those of another answer."""
        return Facts(
            {**self.files, **others.files},
            {**self.newest, **others.newest},
            {**self.disks, **others.disks},
            {**self.tails, **others.tails},
            {**self.heads, **others.heads},
            (*self.silent, *others.silent),
            {**self.names, **others.names},
            {**self.pools, **others.pools},
        )


def facts_log_positions(arguments: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of FACTS_SCRIPT's arguments that are paths of files and logs.

    () if it is to check anything else.
    """
    at, found = _ENTRIES_AT, []
    while at < len(arguments):
        if arguments[at] not in _ENTRY_WORDS:
            return ()
        found.append(at + 2)
        at += _ENTRY_WORDS[arguments[at]]
    return tuple(found)


def facts_query(requested: FactsRequest, user: str = "") -> Query[Facts]:
    """All of it in one command, within a time limit for each of its programs; `user` is whose quota
    'user' means.
    """
    token = f"\x1e{secrets.token_hex(8)}"
    parts: list[str] = []
    for at, path in enumerate(requested.files):
        parts += ("file", str(at), path)
    for at, pattern in enumerate(requested.newest):
        parts += ("newest", str(at), pattern)
    for at, folder in enumerate(requested.checkpoints, len(requested.newest)):
        parts += ("whole", str(at), folder.rstrip("/") or "/")
    for at, tail in enumerate(requested.tails):
        begin = (tail.identity, str(tail.read_to), str(tail.begin), str(int(tail.is_done)))
        parts += ("tail", str(at), tail.path, *begin)
    # A place that does not answer costs its time, that of its end, and a second or three to find
    # where it begins.
    seconds = _MOST_SILENT * (_FILE_SECONDS + 5.0) + len(requested.tails)
    for disk in requested.disks:
        kind, _, owner = disk.owner.partition(":")
        parts += (
            "disk",
            disk.path,
            disk.tool,
            kind,
            owner,
            str(int(disk.by_du)),
            str(int(disk.inodes_by_du)),
        )
        seconds += (
            _FILE_SECONDS + 3 * _TOOL_SECONDS + _DU_SECONDS * (disk.by_du + disk.inodes_by_du)
        )
    argv = ("sh", "-c", FACTS_SCRIPT, "sh", token, user, *parts)
    parse = partial(parse_facts, token=token.encode(), requested=requested)
    return Query(argv, parse, limit_seconds=seconds + _ENDING_SECONDS, command=("sh",))


def parse_facts(answer: Answer, *, token: bytes, requested: FactsRequest) -> Facts:
    """Raises UnreadableOutput where the answer does not even tell the time."""
    # What stands before the first token is noise.
    parts = [piece.partition(b"\n") for piece in answer.stdout.split(token)[1:]]
    clock = parts[0][2].strip() if parts and parts[0][0] == b"clock" else b""
    if not clock.isdigit():
        raise UnreadableOutput(
            "the login node did not report its clock", argv=answer.argv, status=answer.status
        )
    now = int(clock)
    files: dict[str, FileStat] = {}
    newest: dict[str, float | None] = {}
    names: dict[str, str] = {}
    disks: list[list[tuple[str, bytes]]] = []
    tails: dict[str, Chunk] = {}
    heads: dict[str, bytes] = {}
    silent: list[str] = []
    patterns = (*requested.newest, *requested.checkpoints)
    # The last may have been cut short.
    for head, _, body in parts[1 : -1 if parts[-1][0] != b"end" else None]:
        kind, _, key = decode(head).partition(" ")
        if kind == "file":
            files[requested.files[int(key)]] = parse_stat(body.strip(), now)
        elif kind == "newest":
            written, _, name = body.strip().partition(b" ")
            pattern = patterns[int(key)]
            newest[pattern] = max(0.0, float(now - int(written))) if written.isdigit() else None
            if written.isdigit():
                names[pattern] = _saved_name(
                    decode(name), is_folder=int(key) >= len(requested.newest)
                )
        elif kind == "tail":
            stat, _, begin = body.strip().rpartition(b" ")
            log = parse_stat(stat, now)
            if log.is_there:
                tails[requested.tails[int(key)].path] = Chunk(log, int(begin), b"")
        elif kind == "head":
            heads[requested.tails[int(key)].path] = body
        elif kind == "bytes":
            path = requested.tails[int(key)].path
            if path in tails:
                tails[path] = replace(tails[path], content=body)
        elif kind == "silent":
            silent.append(decode(body.removesuffix(b"\n")))
        elif kind == "disk":
            disks.append([])
        elif kind != "end" and disks:
            disks[-1].append((kind, body))
    checks = {
        disk.path: _disk(disk.path, printed)
        for disk, printed in zip(requested.disks, disks, strict=False)
    }
    return Facts(files, newest, checks, tails, heads, tuple(silent), names)


def _saved_name(quoted: str, *, is_folder: bool) -> str:
    """A file's name without its folders, of a checkpoint that is a folder that one's; older
    programs quote it.
    """
    folders, _, name = quoted.strip("'").replace("\\ ", " ").rpartition("/")
    return folders.rpartition("/")[2] if is_folder and name != _ONE_FILE else name


def _disk(path: str, printed: Sequence[tuple[str, bytes]]) -> DiskCheck:
    by_tool = dict(printed)
    device = decode(by_tool.get("df", b"")).splitlines()[-1:]
    checks: list[DiskUsage | None] = []
    counts: list[DiskUsage | None] = []
    for tool, body in printed:
        try:
            if tool == "df":
                checks.append(find_usage(parse_df(body, path), path))
            elif tool == "df-i":
                checks.append(find_usage(parse_df_inodes(body, path), path))
            elif tool in ("du", "du-i"):
                counts.append(parse_du(body, path, inodes=tool == "du-i"))
            else:
                checks.append(_device_usage(PARSERS[tool](body), path, device[0] if device else ""))
        except UnreadableOutput:
            # Not installed, not allowed, no quota there: the next tool is tried.
            continue
    return DiskCheck(joined(checks), joined(counts))


def _device_usage(usages: Sequence[DiskUsage], path: str, df_line: str) -> DiskUsage | None:
    """quota(1) names devices, as df does at the beginning of its line."""
    device_usages = [usage for usage in usages if df_line.startswith(f"{usage.name} ")]
    return device_usages[0] if len(device_usages) == 1 else find_usage(usages, path)
