"""Builds the commands that put a launch's files into its folder, hand it over, and remove it. Runs nothing."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import Answer
from hpcdash.domain.units import format_memory
from hpcdash.errors import UsageError, excerpt
from hpcdash.launch.batch import STAGED_FOLDER

SUMS_NAME = "SHA256SUMS"
MOST_STAGED_BYTES = 64 << 20
_LIMIT_SECONDS = 120.0
# Of one part of a path in a ustar archive.
_LONGEST_NAME_BYTES = 100
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]*")

# root, name, umask. Where anybody may put another folder in the place of ours, nothing is staged. What is there, a link
# too, is not entered: mkdir makes it or fails. Once entered, it has to be ours and where it was made.
_STAGE = (
    'umask "$3"; mkdir -p -- "$1" && cd -P -- "$1" && here=$(pwd -P) || exit 17; '
    'test -z "$(find . -prune -perm -2 ! "(" -perm -1000 "(" -user 0 -o -user "$(id -u)" ")" ")")" || '
    '{ echo "anybody may swap what is in $1" >&2; exit 18; }; mkdir -m 700 -- "./$2" || exit 17; '
    'cd -P -- "./$2" && test "$(pwd -P)" = "${here%/}/$2" && test -O . || { echo "it was swapped" >&2; exit 18; }; '
    "umask 077; tar -xof - && sha256sum -c SHA256SUMS && exit 0; "
    'cd -- "$here" && rm -rf -- "./$2"; exit 19'
)
# root, name, digest of the sums, and 'staged' to leave it where it holds more than that and logs. Removes the folder
# that holds what was staged, and nothing a link leads to. What was staged is named twice or more, the rest once.
_DISCARD = (
    'cd -P -- "$1" && test -e "./$2" || exit 3; '
    'test ! -L "./$2" && test -O "./$2" && test "$(sha256sum < "./$2/SHA256SUMS")" = "$3  -" || exit 5; '
    'test -z "$4" || { more=$(cd -P -- "./$2" && { cut -c 67- SHA256SUMS; cut -c 67- SHA256SUMS; find . ! -type d '
    '! -name "*.out" ! -name "*.err" ! -path "./SHA256SUMS" ! -path "*/__pycache__/*" | cut -c 3-; } | '
    'sort | uniq -u | head -n 1); test -z "$more" || '
    '{ printf "it holds more than was staged: %s\\n" "$more" >&2; exit 4; }; }; '
    'rm -rf -- "./$2"'
)
NOTHING_THERE = 3


@dataclass(frozen=True, slots=True)
class Staged:
    """A folder there and what it is to hold: `archive` is a tar of it; `sums_digest` tells it from any other folder."""

    folder: str
    archive: bytes
    sums_digest: str
    run_as: str = ""
    # How many files, and their bytes in all.
    files: int = 0
    content_bytes: int = 0

    @property
    def root(self) -> str:
        return self.folder.rpartition("/")[0] or "/"

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]


def staged_files(
    folder: str, own: Mapping[str, bytes], given: Mapping[str, bytes], *, run_as: str = "", at: float = 0.0
) -> Staged:
    """What is to be staged: `own` files at the top, `given` ones below files/, those with a first line #! executable.

    `at` is the epoch second they are dated. Raises UsageError for a name that is none, and for more than
    MOST_STAGED_BYTES.
    """
    if run_as and (not _ACCOUNT.fullmatch(run_as) or run_as == "root"):
        raise UsageError(f"run_as: {run_as!r} is no account that jobs are submitted as", "Write a login name: alice")
    total = sum(map(len, (*own.values(), *given.values())))
    if total > MOST_STAGED_BYTES:
        raise UsageError(
            f"{total >> 20} MiB of files are more than the {MOST_STAGED_BYTES >> 20} MiB that are staged",
            "Copy large files there beforehand, and name them by their absolute paths.",
        )
    contents = {**own, **{f"{STAGED_FOLDER}/{_checked(name)}": content for name, content in given.items()}}
    sums = b"".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode() for name, content in contents.items())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        if given:
            below = tarfile.TarInfo(STAGED_FOLDER)
            below.type, below.mode, below.mtime = tarfile.DIRTYPE, 0o700, int(at)
            archive.addfile(below)
        for name, content in {**contents, SUMS_NAME: sums}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), int(at)
            member.mode = 0o700 if content.startswith(b"#!") else 0o600
            archive.addfile(member, io.BytesIO(content))
    return Staged(folder, packed.getvalue(), hashlib.sha256(sums).hexdigest(), run_as, len(contents), total)


def _checked(name: str) -> str:
    encoded = name.encode("utf-8", "surrogateescape")
    if not name or name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise UsageError(f"{name!r} cannot be the name of a staged file", "Give it a plain name, without a folder.")
    if len(encoded) > _LONGEST_NAME_BYTES:
        raise UsageError(f"{name[:40]}… is too long a name for a staged file", "Give it a shorter one.")
    return name


def staging_command(staged: Staged, job: str) -> ActionCommand:
    """Makes the folder, of mode 0700, and fills it; what it holds is compared with what was sent.

    Without an answer, and where it fails, `job` was not submitted.
    """
    # What another account is to enter cannot be below a folder that it may not.
    mask = "066" if staged.run_as else "077"

    def read(answer: Answer) -> tuple[Outcome, ...]:
        if answer.status == 0:
            return (Outcome(job, True, f"its files are in {staged.folder}"),)
        words = "; ".join(line.strip() for line in excerpt(answer.stderr).splitlines()[-2:] if line.strip())
        return (Outcome(job, False, f"nothing was submitted: {staged.folder} cannot be made and filled: {words}"),)

    argv = ("sh", "-c", _STAGE, "sh", staged.root, staged.name, mask)
    files = "1 file" if staged.files == 1 else f"{staged.files} files"
    shown = ("stage", files, f"({format_memory(staged.content_bytes)})", "in", staged.folder)
    return ActionCommand(argv, (job,), read, staged.archive, _LIMIT_SECONDS, shown=shown)


def handover_command(staged: Staged, job: str) -> ActionCommand:
    """Gives the folder to the account that the job is submitted as."""

    def read(answer: Answer) -> tuple[Outcome, ...]:
        if answer.status == 0:
            return (Outcome(job, True, f"{staged.folder} is {staged.run_as}'s"),)
        words = excerpt(answer.stderr) or f"chown ended with status {answer.status}"
        return (Outcome(job, False, f"nothing was submitted: {staged.folder} is not {staged.run_as}'s: {words}"),)

    return ActionCommand(chown_argv(staged.run_as, staged.folder), (job,), read)


def chown_argv(account: str, folder: str) -> tuple[str, ...]:
    """As the sudo rules have it (launch.sudoers)."""
    return ("sudo", "-n", "chown", "-R", account, folder)


def discard_argv(root: str, name: str, sums_digest: str, *, has_run: bool = False) -> tuple[str, ...]:
    """Removes a launch's folder; ends with NOTHING_THERE where there is none.

    One that `has_run` stays where it holds what was neither staged nor is a log: results that were written there.
    """
    return ("sh", "-c", _DISCARD, "sh", root, name, sums_digest, "staged" if has_run else "")
