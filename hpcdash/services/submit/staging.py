"""Builds the commands that put a launch's files into its folder, and remove it. Runs nothing."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import LOGIN_SHELL_STEP, Answer, Query, refused
from hpcdash.backends.script.folder import (
    CODE_ARCHIVE,
    CODE_FOLDER,
    LIBRARY_NAME,
    PACKAGES_NAME,
    STAGED_FOLDER,
    staged_name,
)
from hpcdash.domain.request import ACCOUNT_NAME
from hpcdash.domain.units import format_memory
from hpcdash.errors import UsageError, excerpt
from hpcdash.private_files import TERSE_WEAK_SPOT
from hpcdash.services.submit.sudoers import (
    NOTHING_THERE,
    PLAIN_NAME,
    TRUST_SCRIPT,
    UNSTAGED_FILE,
    program_argv,
    root_commands,
    unstaged_file,
)

SUMS_NAME = "SHA256SUMS"
IS_REPLACEABLE = 18
# refuse_replaceable PATH: ends the shell where others could put something else in its place.
REFUSE_REPLACEABLE = f"""umask 077
{TERSE_WEAK_SPOT}refuse_replaceable() {{
  why=$(weak_spot "$1")
  [ -z "$why" ] && return
  echo "$why, and so others could replace what jobs run from $1" >&2
  exit {IS_REPLACEABLE}
}}
"""
MOST_STAGED_BYTES = 64 << 20
# Of a call from Python, with its arguments.
MOST_CALL_BYTES = 1 << 30
_LIMIT_SECONDS = 120.0
_LEAST_BYTES_A_SECOND = 50_000
# Of one part of a path in a ustar archive.
_LONGEST_NAME_BYTES = 100

# Where launches below a folder have their library: a file for each of its digests, of which each
# launch has a link.
LIBRARY_FOLDER = ".library"
# The folder of launches, and 'own' where that is one of several, of a function each. Makes the
# library of a launch a link to the one that is kept, or keeps it: a launch has its own whatever
# becomes of that one, and its number of links tells whether any launch has it. Where there can be
# no link it stays a file.
_SHARE_LIBRARY = f"""share_library() {{
  sum=$(sed -n "s/  {LIBRARY_NAME}$//p" SHA256SUMS)
  test -n "$sum" || return
  kept=${{1%/}}${{2:+/..}}/{LIBRARY_FOLDER}
  mkdir -m 700 -- "$kept"
  {{ test -d "$kept" && test ! -L "$kept" && test -O "$kept"; }} || return
  kept=$kept/$sum.zip
  if test -f "$kept" && test ! -L "$kept" && cmp -s -- "$kept" ./{LIBRARY_NAME}; then
    ln -- "$kept" ./.library && mv -f -- ./.library ./{LIBRARY_NAME}
  else
    chmod 400 ./{LIBRARY_NAME} && ln -- ./{LIBRARY_NAME} "$kept.$$" && mv -f -- "$kept.$$" "$kept"
  fi
  rm -f -- ./.library
}} 2>/dev/null
"""
# root, name, 'own' where the root has to be this account's, and 'copied' where jobs run checked
# copies of what is staged: nothing else is staged where others may put another folder in the place
# of ours. What is there, a link too, is not entered: mkdir makes it or fails. Once entered, it has
# to be ours and where it was made.
_STAGE = (
    f'{REFUSE_REPLACEABLE}{_SHARE_LIBRARY}test -n "$4" || refuse_replaceable "$1"; '
    'mkdir -p -- "$1" && cd -P -- "$1" && here=$(pwd -P) || exit 17; '
    'test -z "$3" || test -O . || { echo "$1 belongs to somebody else" >&2; exit 18; }; '
    'test -n "$4" || refuse_replaceable "$1"; mkdir -m 700 -- "./$2" || exit 17; '
    'cd -P -- "./$2" && test "$(pwd -P)" = "${here%/}/$2" && test -O . || { echo "it was swapped" '
    ">&2; exit 18; }; "
    'if tar -xof - && sha256sum -c SHA256SUMS; then test -n "$4" || share_library "$here" "$3"; '
    "exit 0; fi; "
    'cd -- "$here" && rm -rf -- "./$2"; exit 19'
)
# Records when the files of a request were unpacked: later changes are the job's.
UNPACKED_NAME = ".unpacked"
_UNPACKED = tuple(
    f"./{name}" for name in (UNPACKED_NAME, f"{PACKAGES_NAME}*", f"{CODE_FOLDER}/*", CODE_ARCHIVE)
)
# In a launch's folder, prints a file that a job made or changed.
_ADDED_FILE = (
    f"if test -f ./{UNPACKED_NAME}; then "
    f'found=$(find ./{CODE_FOLDER} ! -type d ! -path "*/__pycache__/*" -cnewer ./{UNPACKED_NAME} | '
    f"head -n 1); "
    f'if test -n "$found"; then printf "%s\\n" "$found"; else '
    f"{unstaged_file(*_UNPACKED)}; fi; else {UNSTAGED_FILE}; fi"
)
# root, name, digest of the sums, and 'staged' to leave it where it holds more than that and logs.
# Removes the folder that holds what was staged, and nothing a link leads to.
_DISCARD = (
    'cd -P -- "$1" && test -e "./$2" || exit 3; '
    'test ! -L "./$2" && test -O "./$2" && test "$(sha256sum < "./$2/SHA256SUMS")" = "$3  -" || '
    "exit 5; "
    f'test -z "$4" || {{ more=$(cd -P -- "./$2" && {_ADDED_FILE}); test -z "$more" || '
    '{ printf "it holds more than was staged: %s\\n" "$more" >&2; exit 4; }; }; '
    'rm -rf -- "./$2"'
)
# folder, account, launch program, then of each file name, bytes and digest; their contents come on
# stdin, one after the other.
_STAGE_AS = (
    'folder=$1 account=$2 program=$3; shift 3; launch() { sudo -n -u "$account" "$program" '
    '"$@"; }; '
    'made=$(launch make "${folder##*/}" </dev/null) || exit 17; '
    'test "$made" = "$folder" || { launch remove "${folder##*/}"; '
    'echo "$program keeps launches in ${made%/*}" >&2; exit 18; }; '
    'while test $# -gt 0; do head -c "$2" | launch write "${folder##*/}" "$1" "$3" || exit 19; '
    "shift 3; done"
)
# What programs there say of a disk in the C locale; tar also where it could write a part of a file.
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|: Wrote only ")
_NO_CAUSE = re.compile(r"^tar: (Exiting with failure|Error is not recoverable)")
_ROOM_LEFT = " KiB are free in "
# Reports the free space of the current folder's disk, and its mount point.
SAY_ROOM = f'df -Pk . | sed -n "2s/.* \\([0-9][0-9]*\\)  *[0-9]*% */\\1{_ROOM_LEFT}/p" >&2'
# A folder, then the command for it.
_WHERE_THERE = f'test -e "$1" || test -L "$1" || exit {NOTHING_THERE}; shift; exec "$@"'
_NO_RULE = "a password is required"


class Staged(Struct, frozen=True):
    """A folder there and the files it is to hold, SHA256SUMS among them; `at` is the epoch second
    they are dated.

    With `run_as` they are that account's: root's `launch_program` there makes the folder and writes
    them.
    """

    folder: str
    contents: Mapping[str, bytes]
    run_as: str = ""
    launch_program: str = ""
    at: float = 0.0
    # Its root is a folder that launches of one function share, and has to be this account's.
    owns_root: bool = False
    # Others may put another folder in its place: jobs run checked copies.
    is_copied: bool = False

    @property
    def root(self) -> str:
        return self.folder.rpartition("/")[0] or "/"

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def sums_digest(self) -> str:
        """Digest that identifies the folder."""
        return _digest(self.contents[SUMS_NAME])

    @property
    def archive(self) -> bytes:
        """A tar of the files."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            if any(name.startswith(f"{STAGED_FOLDER}/") for name in self.contents):
                below = tarfile.TarInfo(STAGED_FOLDER)
                below.type, below.mode, below.mtime = tarfile.DIRTYPE, 0o700, int(self.at)
                archive.addfile(below)
            for name, content in self.contents.items():
                member = tarfile.TarInfo(name)
                member.size, member.mtime = len(content), int(self.at)
                member.mode = 0o700 if content.startswith(b"#!") else 0o600
                archive.addfile(member, io.BytesIO(content))
        return packed.getvalue()


def staged_files(
    folder: str,
    own: Mapping[str, bytes],
    given: Mapping[str, bytes],
    *,
    run_as: str = "",
    launch_program: str = "",
    at: float = 0.0,
    most_bytes: int = MOST_STAGED_BYTES,
) -> Staged:
    """Build the files to stage: `own` ones at the top, `given` ones below files/.

    Files with a first line #! are executable. With `run_as` the given files are at the top too.
    Raises UsageError for an invalid or duplicate name, and for more than `most_bytes`.
    """
    if run_as and (not ACCOUNT_NAME.fullmatch(run_as) or run_as == "root"):
        raise UsageError(
            f"run_as: {run_as!r} is not a valid account to submit as", "Write a login name: alice"
        )
    total = sum(map(len, (*own.values(), *given.values())))
    if total > most_bytes:
        raise UsageError(
            f"{total >> 20} MiB of files exceed the {most_bytes >> 20} MiB staging limit",
            "Copy large files to the cluster first and use their absolute paths.",
        )
    if run_as:
        for name in given:
            if not PLAIN_NAME.fullmatch(name) or name in (*own, SUMS_NAME):
                raise UsageError(
                    f"with run_as, a staged file cannot be named {name!r}",
                    "Rename it: use only letters, digits and ._@+-, and none of hpcdash's own "
                    "names "
                    f"({', '.join((*own, SUMS_NAME))}).",
                )
    contents = {
        **own,
        **{staged_name(_checked(name), run_as): content for name, content in given.items()},
    }
    sums = b"".join(f"{_digest(content)}  {name}\n".encode() for name, content in contents.items())
    # The sums first: by them a folder is known whose files did not all arrive.
    return Staged(folder, {SUMS_NAME: sums, **contents}, run_as, launch_program, at)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checked(name: str) -> str:
    encoded = name.encode("utf-8", "surrogateescape")
    if not name or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be the name of a staged file", "Use a plain name without a folder."
        )
    if len(encoded) > _LONGEST_NAME_BYTES:
        raise UsageError(
            f"{name[:40]}… is too long for a staged file's name", "Give it a shorter one."
        )
    return name


def staging_command(staged: Staged, job: str) -> ActionCommand:
    """Makes the folder, of mode 0700, and fills it; what it holds is compared with what was sent.

    Without an answer, and where it fails, `job` was not submitted.
    """

    def read(answer: Answer) -> tuple[Outcome, ...]:
        if answer.status == 0:
            return (Outcome(job, True, f"its files are in {staged.folder}"),)
        text = format_failure(answer.stderr, staged.root)
        if staged.run_as and text.endswith(_NO_RULE):
            text += (
                f" (the sudo rules do not let this account run {staged.launch_program} as "
                f"{staged.run_as})"
            )
        return (
            Outcome(
                job, False, f"not submitted: cannot create {staged.folder} and its files: {text}"
            ),
        )

    # The sums are not counted.
    count = len(staged.contents) - 1
    total = sum(map(len, staged.contents.values())) - len(staged.contents[SUMS_NAME])
    files = "1 file" if count == 1 else f"{count} files"
    shown: tuple[str, ...] = ("stage", files, f"({format_memory(total)})", "in", staged.folder)
    options = (
        ("own" if staged.owns_root else "", "copied")
        if staged.is_copied
        else ("own",) * staged.owns_root
    )
    argv: tuple[str, ...] = ("sh", "-c", _STAGE, "sh", staged.root, staged.name, *options)
    content = b""
    if staged.run_as:
        shown += ("as", staged.run_as)
        files_sent = (
            word
            for name, content in staged.contents.items()
            for word in (name, str(len(content)), _digest(content))
        )
        argv = (
            "sh",
            "-c",
            _STAGE_AS,
            "sh",
            staged.folder,
            staged.run_as,
            staged.launch_program,
            *files_sent,
        )
        content = b"".join(staged.contents.values())
    else:
        content = staged.archive
    limit_seconds = _LIMIT_SECONDS + len(content) / _LEAST_BYTES_A_SECOND
    return ActionCommand(argv, (job,), read, content, limit_seconds, shown=shown)


def staged_folder(argv: Sequence[str]) -> str:
    """Return the folder that a staging command makes; '' for any other command."""
    return f"{argv[4]}/{argv[5]}" if tuple(argv[:4]) == ("sh", "-c", _STAGE, "sh") else ""


def format_failure(stderr: bytes, root: str) -> str:
    """The last that was said on the cluster; where a disk is full, the first that says so, and the
    next step.

    tar ends with a line that gives no cause.
    """
    lines = [
        line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()
    ]
    full = next((line for line in lines if _NO_ROOM.search(line)), "")
    if not full:
        causes = [line for line in lines if _ROOM_LEFT not in line and not _NO_CAUSE.search(line)]
        return excerpt("; ".join(causes[-2:]).encode())
    room = next((f"; {line}" for line in reversed(lines) if _ROOM_LEFT in line), "")
    return (
        f"{excerpt(full.encode())}{room}. Delete something there ({root}/.code-* holds files that "
        f"were sent before), "
        "or set storage_root in [launch] to a folder on another disk"
    )


def trust_query(launch_program: str, storage_root: str) -> Query[None]:
    """Build the query that checks that launches can be left to root's program.

    Its parser raises UsageError if others could change the program or the storage root.
    """

    def read(answer: Answer) -> None:
        why = answer.stdout.decode("utf-8", "replace").strip()
        if answer.status != 0:
            raise refused(answer, f"cannot tell whether only root can change {launch_program}")
        if why:
            commands = "".join(
                f"\n  {command}" for command in root_commands(storage_root, launch_program)
            )
            raise UsageError(
                f"run_as: {why}",
                "The launch program, the storage root and every folder above them have to be "
                "root's, and nobody else"
                f" may write there, but in the storage root, which is sticky. Root sets them up "
                f"with:{commands}",
            )

    return Query(("sh", "-c", TRUST_SCRIPT, "sh", launch_program, storage_root), read)


# Of each launch its folder and the digest of its sums; prints for each whether the folder is ours
# to remove, its KiB and files, and why not.
_INSPECT = (
    "LC_ALL=C; export LC_ALL; "
    'look() { name=${1##*/}; cd -P -- "${1%/*}" && { test -e "./$name" || test -L "./$name"; } || '
    '{ echo "gone 0 0"; return; }; here=$(pwd -P); '
    'test ! -L "./$name" && test -d "./$name" && test -O "./$name" && cd -P -- "./$name" && '
    'test "$(pwd -P)" = "${here%/}/$name" || { echo "kept 0 0 it is a link, or not a folder of '
    'yours"; return; }; '
    "size=$(du -sk . | cut -f 1) count=$(find . | wc -l); "
    'test "$(sha256sum < SHA256SUMS)" = "$2  -" || '
    '{ echo "kept $size $count it does not hold what was staged"; return; }; '
    f"more=$({_ADDED_FILE}); "
    'test -z "$more" || { printf "kept %s %s it holds more than was staged: %s\n" "$size" "$count" '
    '"$more"; return; }; '
    'echo "ours $size $count"; }; '
    'while test $# -gt 0; do (look "$1" "$2" 2>/dev/null); shift 2; done'
)
# Folders of launches: removes each library that no launch has a link of, and prints its KiB.
_REMOVE_LIBRARIES = (
    f'for root; do (cd -P -- "$root/{LIBRARY_FOLDER}" 2>/dev/null && test ! -L '
    f'"$root/{LIBRARY_FOLDER}" && test -O . '
    "|| exit; for each in *.zip; do "
    'test -f "./$each" && test ! -L "./$each" && test "$(stat -c %h "./$each")" = 1 || continue; '
    'size=$(du -k "./$each" | cut -f 1); rm -f -- "./$each" && echo "$size"; done); done'
)


class InspectedFolder(Struct, frozen=True):
    """A launch's folder there.

    `reason_kept` is '' where it is this account's and holds nothing but what was staged and logs;
    `kib` and `files` are None where it cannot be seen.
    """

    is_there: bool
    kib: int | None
    files: int | None
    reason_kept: str


def inspect_query(folders: Sequence[tuple[str, str]]) -> Query[tuple[InspectedFolder, ...]]:
    """Inspect folders of launches, each with the digest of its sums; links are not followed."""

    def read(answer: Answer) -> tuple[InspectedFolder, ...]:
        *lines, _ = answer.stdout.decode("utf-8", "replace").split("\n")
        if len(lines) != len(folders):
            raise refused(
                answer, "the folders of launches could not be inspected", LOGIN_SHELL_STEP
            )
        return tuple(map(_inspected, lines))

    parts = tuple(word for pair in folders for word in pair)
    return Query(("sh", "-c", _INSPECT, "sh", *parts), read, _LIMIT_SECONDS, ("sh", "-c", "du …"))


def _inspected(line: str) -> InspectedFolder:
    state, kib, files, *why = line.split(" ", 3)
    if state == "gone":
        return InspectedFolder(False, None, None, "its folder is not there")
    size, count = (int(text) if text.isdecimal() and int(text) else None for text in (kib, files))
    return InspectedFolder(True, size, count, "".join(why))


def remove_libraries_argv(roots: Sequence[str]) -> tuple[str, ...]:
    """Removes the kept libraries below folders of launches that no launch has; prints the KiB of
    each.
    """
    return ("sh", "-c", _REMOVE_LIBRARIES, "sh", *roots)


def discard_argv(
    root: str,
    name: str,
    sums_digest: str,
    *,
    has_run: bool = False,
    run_as: str = "",
    launch_program: str = "",
) -> tuple[str, ...]:
    """Removes a launch's folder; ends with NOTHING_THERE where there is none.

    One that `has_run` stays where it holds what was neither staged nor is a log: results that were
    written there.
    """
    if run_as:
        staged = ["staged"] if has_run else []
        removal = program_argv(run_as, launch_program, "remove", name, sums_digest, *staged)
        return ("sh", "-c", _WHERE_THERE, "sh", f"{root}/{name}", *removal)
    return ("sh", "-c", _DISCARD, "sh", root, name, sums_digest, "staged" if has_run else "")
