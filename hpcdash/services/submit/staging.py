"""Builds the commands that put a launch's files into its folder, and remove it. Runs nothing."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import LOGIN_SHELL_STEP, Answer, Query, refused
from hpcdash.backends.script.folder import (
    CODE_ARCHIVE,
    CODE_FOLDER,
    LIBRARY_NAME,
    REQUEST_NAME,
    SCRIPT_NAME,
    SECRETS_NAME,
    STAGED_FOLDER,
    staged_name,
)
from hpcdash.domain.request import ACCOUNT_NAME, TASK_KIND, Request
from hpcdash.domain.share import SUSPEND_NAME
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_memory
from hpcdash.errors import UsageError, excerpt
from hpcdash.private_files import terse_weak_spot
from hpcdash.services.submit.sudoers import (
    NOTHING_THERE,
    PLAIN_NAME,
    program_argv,
    root_commands,
)
from hpcdash.shell_files import shell_text

if TYPE_CHECKING:
    from hpcdash.backends.script.body import BatchScript, Place

SUMS_NAME = "SHA256SUMS"
IS_REPLACEABLE = 18
_ADDED_FILE = ("services/submit/unstaged_file.sh", "services/submit/added_file.sh")
MAX_STAGED_BYTES = 64 << 20
# For a call from Python, with its arguments.
MAX_CALL_BYTES = 1 << 30
_LIMIT_SECONDS = 120.0
_MIN_BYTES_A_SECOND = 50_000
# Limit of one part of a path in a ustar archive.
_LONGEST_NAME_BYTES = 100

# Messages about a full disk in the C locale; the last is tar's after a partial write.
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|: Wrote only ")
_NO_CAUSE = re.compile(r"^tar: (Exiting with failure|Error is not recoverable)")
_ROOM_LEFT = " KiB are free in "
# Runs the command after a folder if that exists.
_IF_EXISTS = f'test -e "$1" || test -L "$1" || exit {NOTHING_THERE}; shift; exec "$@"'
_NO_RULE = "a password is required"


class Staged(Struct, frozen=True):
    """Folder to create on the cluster, and its files with SHA256SUMS, dated `at` (epoch seconds).

    With `run_as` they belong to that account: root's `launch_program` creates the folder and writes
    them.
    """

    folder: str
    contents: Mapping[str, bytes]
    run_as: str = ""
    launch_program: str = ""
    at: float = 0.0
    # Its root is shared by a function's launches, and must belong to this account.
    owns_root: bool = False
    # Others could replace the folder: jobs run checked copies.
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
        """The files as a tar archive."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            if any(name.startswith(f"{STAGED_FOLDER}/") for name in self.contents):
                member = tarfile.TarInfo(STAGED_FOLDER)
                member.type = tarfile.DIRTYPE
                member.mode = 0o700
                member.mtime = int(self.at)
                archive.addfile(member)
            for name, content in self.contents.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                member.mtime = int(self.at)
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
    most_bytes: int = MAX_STAGED_BYTES,
) -> Staged:
    """Build the files to stage: `own` ones at the top, `given` ones below files/.

    Files with a first line #! are executable. With `run_as` the given files are at the top too.
    Raises UsageError for an invalid or duplicate name, and for more than `most_bytes`.
    """
    if run_as and (not ACCOUNT_NAME.fullmatch(run_as) or run_as == "root"):
        raise UsageError(
            f"run_as: {run_as!r} is not a valid account to submit as", "Use a login name: alice"
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
                    f"names ({', '.join((*own, SUMS_NAME))}).",
                )
    contents = {
        **own,
        **{staged_name(_checked(name), run_as): content for name, content in given.items()},
    }
    sums = b"".join(f"{_digest(content)}  {name}\n".encode() for name, content in contents.items())
    # The sums come first: they identify a folder whose files did not all arrive.
    return Staged(folder, {SUMS_NAME: sums, **contents}, run_as, launch_program, at)


def launch_files(
    request: Request,
    place: Place,
    script: BatchScript,
    text: str,
    files: Mapping[str, bytes],
    more: Mapping[str, bytes],
    *,
    launch_program: str = "",
    at: float = 0.0,
    is_copied: bool = False,
) -> Staged:
    """Build the content of a launch's folder.

    It holds the script, the request's `text`, modules that the command imports, a person's `files`
    and `more`. With run_as, root's `launch_program` there writes the files. `is_copied` is as in
    Staged. Raises UsageError for what cannot be staged.
    """
    from hpcdash.backends.script.allocation import MARKER_NAME

    own = {**more, SCRIPT_NAME: script.text.encode("utf-8", "surrogateescape")}
    if text:
        own[REQUEST_NAME] = text.encode("utf-8", "surrogateescape")
    if place.waiting is not None:
        own[MARKER_NAME] = b"waits for runs\n"
    if request.is_task:
        own[SUSPEND_NAME] = b""
    own |= _run_files(request, place)
    is_call = request.kind == TASK_KIND
    staged = staged_files(
        place.folder,
        own,
        files,
        run_as=request.site.run_as,
        launch_program=launch_program,
        at=at,
        most_bytes=MAX_CALL_BYTES if is_call else MAX_STAGED_BYTES,
    )
    return replace(staged, owns_root=is_call, is_copied=is_copied)


def _run_files(request: Request, place: Place) -> dict[str, bytes]:
    """Files that a launch's command reads or imports, by their names in the folder."""
    from hpcdash.backends.script.body import has_library, secret_variables, secrets_file
    from hpcdash.backends.script.call import call_files

    found = {}
    if place.waiting is None and has_library(request, place):
        found[LIBRARY_NAME] = _library()
    if request.call is not None:
        found |= call_files(request.call)
    if secret_variables(request):
        found[SECRETS_NAME] = secrets_file(request)
    return found


def with_copies(
    request: Request, place: Place, files: Mapping[str, bytes], code_digest: str | None
) -> tuple[Request, Place]:
    """Return a request and its place such that each node runs checked copies of its files.

    Used for a folder that others could replace. `code_digest` is the digest of the archive of its
    `files`. Raises UsageError for an allocation, whose runs arrive later.
    """
    if place.waiting is not None:
        raise UsageError(
            "an allocation runs the files that arrive in its folder, and others could replace "
            "that folder",
            "Set storage_root in [site] of the request to a folder below your home, such as "
            "~/hpcdash/launches.",
        )
    given = {staged_name(name, ""): content for name, content in files.items()}
    contents = {**_run_files(request, place), **given}
    copies = {name: _digest(content) for name, content in contents.items()}
    code_folder = ""
    if code_digest is not None and not request.work_dir.startswith("/"):
        copies[CODE_ARCHIVE] = code_digest
        code_folder = f"{CODE_FOLDER}/{request.work_dir}".rstrip("/")
        request = replace(request, work_dir="")
    # The registry's login would be read from the folder too.
    return request, replace(place, copies=copies, code_folder=code_folder, login="")


@cache
def _library() -> bytes:
    from hpcdash.job.zip import job_zip

    try:
        return job_zip()
    except OSError as error:
        raise UsageError(
            f"hpcdash.job cannot be staged: {error}",
            "Set job_library = false and install hpcdash.job yourself.",
        ) from None


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
            f"{name[:40]}… is too long for a staged file's name", "Use a shorter name."
        )
    return name


def refuse_replaceable() -> str:
    """Return shell code that defines `refuse_replaceable PATH`.

    That function exits with IS_REPLACEABLE if others could replace the path.
    """
    return f"umask 077\n{terse_weak_spot()}{shell_text('services/submit/refuse_replaceable.sh')}"


def _stage_script() -> str:
    return refuse_replaceable() + shell_text(
        "services/submit/share_library.sh", "services/submit/stage.sh"
    )


def staging_command(staged: Staged, job: str) -> ActionCommand:
    """Build the command that creates a folder of mode 0700, fills it, and verifies its content.

    If it fails or its answer is lost, `job` was not submitted.
    """

    def read(answer: Answer) -> tuple[Outcome, ...]:
        if answer.status == 0:
            return (Outcome(job, True, f"files are in {staged.folder}"),)
        text = format_failure(answer.stderr, staged.root)
        if staged.run_as and text.endswith(_NO_RULE):
            text += (
                f" (the sudo rules do not let this account run {staged.launch_program} as "
                f"{staged.run_as})"
            )
        text = f"not submitted: cannot create {staged.folder} and its files: {text}"
        return (Outcome(job, False, text),)

    # The sums are not counted.
    files = counted(len(staged.contents) - 1, "file")
    total = sum(map(len, staged.contents.values())) - len(staged.contents[SUMS_NAME])
    shown = ["stage", files, f"({format_memory(total)})", "in", staged.folder]
    if staged.run_as:
        shown += ["as", staged.run_as]
        arguments = [staged.folder, staged.run_as, staged.launch_program]
        for name, content in staged.contents.items():
            arguments += [name, str(len(content)), _digest(content)]
        script = shell_text("services/submit/stage_as.sh")
        stdin = b"".join(staged.contents.values())
    else:
        arguments = [staged.root, staged.name]
        if staged.owns_root or staged.is_copied:
            arguments.append("own" if staged.owns_root else "")
        if staged.is_copied:
            arguments.append("copied")
        script = _stage_script()
        stdin = staged.archive
    return ActionCommand(
        ("sh", "-c", script, "sh", *arguments),
        (job,),
        read,
        stdin=stdin,
        limit_seconds=_LIMIT_SECONDS + len(stdin) / _MIN_BYTES_A_SECOND,
        shown=tuple(shown),
    )


def staged_folder(argv: Sequence[str]) -> str:
    """Return the folder that a staging command makes; '' for any other command."""
    return f"{argv[4]}/{argv[5]}" if tuple(argv[:4]) == ("sh", "-c", _stage_script(), "sh") else ""


def format_failure(stderr: bytes, root: str) -> str:
    """Format the last messages on stderr; for a full disk, its first message and the next step.

    tar's last line gives no cause.
    """
    lines = list(filter(None, map(str.strip, stderr.decode("utf-8", "replace").splitlines())))
    full = next((line for line in lines if _NO_ROOM.search(line)), "")
    if not full:
        causes = [line for line in lines if _ROOM_LEFT not in line and not _NO_CAUSE.search(line)]
        return excerpt("; ".join(causes[-2:]).encode())
    room = next((f"; {line}" for line in reversed(lines) if _ROOM_LEFT in line), "")
    return (
        f"{excerpt(full.encode())}{room}. Delete files on that disk ({root}/.code-* contains files "
        "sent earlier), or set storage_root in [launch] to a folder on another disk"
    )


def trust_query(launch_program: str, storage_root: str) -> Query[None]:
    """Build the query that checks that only root can change the launch program.

    Its parser raises UsageError if others could change it or the storage root.
    """

    def read(answer: Answer) -> None:
        problem = answer.stdout.decode("utf-8", "replace").strip()
        if answer.status != 0:
            raise refused(answer, f"cannot check that only root can change {launch_program}")
        if problem:
            commands = "\n  ".join(("", *root_commands(storage_root, launch_program)))
            raise UsageError(
                f"run_as: {problem}",
                "The launch program, the storage root and every folder above them must belong "
                "to root, and only root may write to them; the storage root itself is sticky "
                f"and world-writable. Root sets them up with:{commands}",
            )

    start = f"LC_ALL=C; export LC_ALL\n{shell_text('weak_spot.sh', 'services/submit/trust.sh')}"
    return Query(("sh", "-c", start, "sh", launch_program, storage_root), read)


class InspectedFolder(Struct, frozen=True):
    """A launch's folder on the cluster.

    `reason_to_stay` is '' if it is this account's and contains only staged files and logs; `kib`
    and `files` are None if it is inaccessible.
    """

    exists: bool
    kib: int | None
    files: int | None
    reason_to_stay: str


def inspect_query(folders: Sequence[tuple[str, str]]) -> Query[tuple[InspectedFolder, ...]]:
    """Inspect folders of launches, each with the digest of its sums; links are not followed."""

    def read(answer: Answer) -> tuple[InspectedFolder, ...]:
        *lines, _ = answer.stdout.decode("utf-8", "replace").split("\n")
        if len(lines) != len(folders):
            raise refused(answer, "could not inspect the launch folders", LOGIN_SHELL_STEP)
        inspected = []
        for line in lines:
            # `STATE KIB FILES REASON`, where the last three may be missing.
            state, kib, files, reason = (*line.split(" ", 3), "", "", "")[:4]
            if state == "gone":
                folder = InspectedFolder(False, None, None, "the folder does not exist")
            else:
                folder = InspectedFolder(True, _positive(kib), _positive(files), reason)
            inspected.append(folder)
        return tuple(inspected)

    arguments = chain.from_iterable(folders)
    script = shell_text(*_ADDED_FILE, "services/submit/inspect_launches.sh")
    argv = ("sh", "-c", script, "sh", *arguments)
    return Query(argv, read, _LIMIT_SECONDS, ("sh", "-c", "du …"))


def _positive(text: str) -> int | None:
    """Parse a whole number; None for 0 and other text."""
    return int(text) or None if text.isdecimal() else None


def remove_libraries_argv(roots: Sequence[str]) -> tuple[str, ...]:
    """Build the command that removes the libraries below `roots` that no launch uses.

    It prints the KiB of each.
    """
    return ("sh", "-c", shell_text("services/submit/remove_libraries.sh"), "sh", *roots)


def discard_argv(
    root: str,
    name: str,
    sums_digest: str,
    *,
    has_run: bool = False,
    run_as: str = "",
    launch_program: str = "",
) -> tuple[str, ...]:
    """Build the command that removes a launch's folder; it exits with NOTHING_THERE for none.

    The folder of a job that `has_run` stays if it contains results: files that are neither staged
    nor logs.
    """
    if run_as:
        staged = ["staged"] if has_run else []
        removal = program_argv(run_as, launch_program, "remove", name, sums_digest, *staged)
        return ("sh", "-c", _IF_EXISTS, "sh", f"{root}/{name}", *removal)
    script = shell_text(*_ADDED_FILE, "services/submit/discard.sh")
    return ("sh", "-c", script, "sh", root, name, sums_digest, "staged" if has_run else "")
