"""Local files of a request's `files`: their selection, their archive, and its transfer."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.script.folder import CODE_FOLDER
from hpcdash.backends.submissions import SentFile
from hpcdash.domain.text import clip_path, counted, visible
from hpcdash.domain.units import format_memory
from hpcdash.errors import UsageError, excerpt
from hpcdash.services.submit.git import (
    GIT_SECONDS,
    GitOutput,
    git_environment,
    init_repository,
    run_git,
)
from hpcdash.services.submit.staging import format_failure
from hpcdash.shell_files import shell_text

MAX_FILES = 50_000
# All members are dated 2000-01-01, so that equal files make equal archives.
_DATE = 946_684_800
# A slow line.
_MIN_BYTES_A_SECOND = 50_000
_SHOWN_LETTERS = 80
# Start of a line that reports how many bytes have arrived.
_ARRIVED = "arrived "


class CodeFile(Struct, frozen=True):
    """A file: `path` on this machine, `name` in the launch's code folder; a link has a `target`."""

    path: bytes
    name: bytes
    size: int
    is_program: bool = False
    target: bytes = b""


class CodeFiles(Struct, frozen=True):
    """Files that a request's `files` select, by name; `total` is in bytes."""

    files: tuple[CodeFile, ...]
    total: int

    @property
    def text(self) -> str:
        """`214 files, 12M; the largest is data/x.bin, 8M`."""
        text = f"{counted(len(self.files), 'file')}, {format_memory(self.total)}"
        if len(self.files) > 1:
            largest = max(self.files, key=lambda one: one.size)
            text += f"; the largest is {_shown(largest.name)}, {format_memory(largest.size)}"
        return text

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the files for a person, before they are sent."""
        messages = [f"files: {self.text}"]
        outward = []
        for file in self.files:
            if file.target and _target_name(file).split(b"/")[0] == b"..":
                outward.append(file)
        if outward:
            first = outward[0]
            others = f" and {len(outward) - 1} more" if len(outward) > 1 else ""
            messages.append(
                f"files: {_shown(first.name)}{others} points outside the folder, to "
                f"{_shown(first.target)}: the link itself is sent, not its target"
            )
        return tuple(messages)


class PackedCode(Struct, frozen=True):
    """The files as one archive, and the digest that identifies it on a cluster.

    `arrived` is the number of its bytes that are there already; None: all.
    """

    code: CodeFiles
    archive: bytes
    digest: str
    arrived: int | None = 0


def find_code_files(names: Sequence[str], base: Path, most_bytes: int) -> CodeFiles:
    """Find the files that `names` select relative to `base`, without those that git ignores.

    No link is followed. A file within `base` keeps its place; another file, or the contents of
    another folder, are at the top. Raises UsageError for missing files, duplicate names, and more
    files than are allowed.
    """
    found: dict[bytes, CodeFile] = {}
    root = Path(os.path.abspath(base))
    for name in names:
        path = Path(os.path.abspath(root / os.path.expanduser(name)))
        if path == root or root in path.parents:
            top = root
        else:
            top = path if _is_folder(path) else path.parent
        for listed in _list_files(path, name):
            file = _inspect_file(os.fsencode(listed), os.fsencode(top))
            if file is None:
                continue
            known = found.setdefault(file.name, file)
            if known.path != file.path:
                raise UsageError(
                    f"files: {_shown(file.name)} appears twice: {_shown(known.path)} and "
                    f"{_shown(file.path)}",
                    "Specify folders without clashing file names.",
                )
            if len(found) > MAX_FILES:
                raise _too_many_files()
    for file in found.values():
        _refuse_file_as_folder(file, found)
    if not found:
        raise UsageError(
            f"files: no files to send in {', '.join(map(visible, names))}", "Specify other files."
        )
    total = sum(file.size for file in found.values())
    code = CodeFiles(tuple(found[name] for name in sorted(found)), total)
    if total > most_bytes:
        raise UsageError(
            f"files: {code.text}: more than {format_memory(most_bytes)}",
            "List files that the job does not need in .gitignore, specify fewer, or raise "
            "files_limit in [launch].",
        )
    return code


def _refuse_file_as_folder(one: CodeFile, found: Mapping[bytes, CodeFile]) -> None:
    folder = os.path.dirname(one.name)
    while folder and folder not in found:
        folder = os.path.dirname(folder)
    if folder:
        file = found[folder]
        kind = "link" if file.target else "file"
        path = one.path[: len(one.path) - len(one.name) + len(folder)]
        raise UsageError(
            f"files: {_shown(folder)} appears twice: {kind} {_shown(file.path)} and folder "
            f"{_shown(path)}",
            "Specify folders without clashing file names.",
        )


def pack_code_files(code: CodeFiles) -> PackedCode:
    """Pack files in an archive that is identical for equal files.

    Raises UsageError for unreadable files.
    """
    packed = io.BytesIO()
    with (
        gzip.GzipFile(
            filename="", fileobj=packed, mode="wb", compresslevel=6, mtime=0
        ) as compressed,
        # GNU tar allows names of any length and bytes.
        tarfile.open(
            fileobj=compressed,
            mode="w",
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as archive,
    ):
        packed_folders: set[str] = set()
        for file in code.files:
            path = f"{CODE_FOLDER}/{file.name.decode('utf-8', 'surrogateescape')}"
            parts = path.split("/")
            for depth in range(2, len(parts)):
                folder = "/".join(parts[:depth])
                if folder not in packed_folders:
                    packed_folders.add(folder)
                    member = tarfile.TarInfo(folder)
                    member.type = tarfile.DIRTYPE
                    member.mode = 0o700
                    member.mtime = _DATE
                    archive.addfile(member)
            member = tarfile.TarInfo(path)
            member.mtime = _DATE
            if file.target:
                member.type = tarfile.SYMTYPE
                member.mode = 0o777
                member.linkname = file.target.decode("utf-8", "surrogateescape")
                archive.addfile(member)
            else:
                _add(archive, member, file)
    content = packed.getvalue()
    return PackedCode(code, content, hashlib.sha256(content).hexdigest())


def read_code_files(code: CodeFiles) -> dict[str, SentFile]:
    """Read the content of each file, by name.

    A link is replaced by the file that it points to; a link to a file that is not sent is omitted.
    Raises UsageError for an unreadable file, and for a name that is not UTF-8.
    """
    regular = {file.name: file for file in code.files if not file.target}
    found: dict[str, SentFile] = {}
    for file in code.files:
        source = regular.get(_target_name(file)) if file.target else file
        if source is None:
            continue
        try:
            name = file.name.decode()
        except UnicodeDecodeError:
            raise UsageError(
                f"files: {_shown(file.name)} is not UTF-8", "Rename or exclude it."
            ) from None
        try:
            with _open_regular(source.path) as stream:
                found[name] = SentFile(stream.read(), source.is_program)
        except OSError as error:
            raise _unreadable(source, error) from error
    return found


def _open_regular(path: bytes) -> BinaryIO:
    """Open a file, though a link or a pipe may have replaced it since it was checked."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(number, "rb")


def _unreadable(file: CodeFile, error: OSError | tarfile.TarError) -> UsageError:
    reason = getattr(error, "strerror", None) or "changed while being read"
    return UsageError(f"files: {_shown(file.path)} cannot be read: {reason}", "Fix or exclude it.")


def _add(archive: tarfile.TarFile, member: tarfile.TarInfo, file: CodeFile) -> None:
    try:
        with _open_regular(file.path) as stream:
            member.size = os.fstat(stream.fileno()).st_size
            member.mode = 0o700 if file.is_program else 0o600
            archive.addfile(member, stream)
    except (OSError, tarfile.TarError) as error:
        raise _unreadable(file, error) from error


def _inspect_file(path: bytes, top: bytes) -> CodeFile | None:
    """Return a file or a link; None for other entries, for missing files, and for files behind a
    link.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            f"files: {_shown(path)}: {error.strerror}", "Fix or exclude it."
        ) from error
    folder = os.path.dirname(path)
    if folder != top:
        expected = os.path.join(os.path.realpath(top), os.path.relpath(folder, top))
        if os.path.realpath(folder) != expected:
            return None
    name = os.path.relpath(path, top)
    if stat.S_ISLNK(found.st_mode):
        return CodeFile(path, name, 0, target=os.readlink(path))
    if not stat.S_ISREG(found.st_mode):
        return None
    return CodeFile(path, name, found.st_size, is_program=bool(found.st_mode & 0o100))


def _target_name(link: CodeFile) -> bytes:
    """Return the name of a link's target; it starts with .. if that is outside of the folder."""
    if link.target.startswith(b"/"):
        return b".."
    return os.path.normpath(os.path.join(os.path.dirname(link.name), link.target))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _list_files(path: Path, name: str) -> Iterator[bytes]:
    """Iterate over the paths in a folder that git does not ignore, or over a file's own path."""
    if not os.path.lexists(path):
        raise UsageError(
            f"files: {visible(name)} does not exist: {visible(str(path))}", "Check the path."
        )
    if not _is_folder(path):
        yield os.fsencode(path)
        return
    for listed in _git_files(path):
        file = os.path.join(os.fsencode(path), listed.rstrip(b"/"))
        if os.path.isdir(file) and not os.path.islink(file):
            # A nested repository.
            yield from _list_files(Path(os.fsdecode(file)), name)
        else:
            yield file


def _git_files(folder: Path) -> list[bytes]:
    """List the files of a folder that git does not ignore, also outside a repository."""
    environment = git_environment()
    list_arguments = ("ls-files", "-coz", "--exclude-standard")
    try:
        check = run_git(folder, environment, "rev-parse", "--is-inside-work-tree")
        if check.status == 0:
            return _names(run_git(folder, environment, *list_arguments), folder)
        with tempfile.TemporaryDirectory(prefix="hpcdash-git-") as empty:
            created = init_repository(Path(empty))
            _names(created, folder)
            environment |= {"GIT_DIR": empty, "GIT_WORK_TREE": str(folder)}
            return _names(run_git(folder, environment, *list_arguments), folder)
    except FileNotFoundError:
        return _walk(folder)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"files: git did not list {visible(str(folder))} within {GIT_SECONDS} s",
            "Specify fewer files.",
        ) from None
    except OSError as error:
        raise UsageError(
            f"files: git cannot list {visible(str(folder))}: {error}", "Fix this first."
        ) from error


def _names(output: GitOutput, folder: Path) -> list[bytes]:
    if output.is_cut:
        raise _too_many_files()
    if output.status != 0:
        raise UsageError(
            f"files: git cannot list {visible(str(folder))}: {visible(excerpt(output.stderr))}",
            "Fix this first.",
        )
    return [name for name in output.stdout.split(b"\0") if name]


def _too_many_files() -> UsageError:
    return UsageError(
        f"files: more than {MAX_FILES} files",
        "Specify fewer files, or exclude folders with .gitignore.",
    )


def _walk(folder: Path) -> list[bytes]:
    """List all files of a folder without git. Raises UsageError for one with a .gitignore."""
    top = os.fsencode(folder)
    names: list[bytes] = []
    for at, folders, files in os.walk(top):
        if b".gitignore" in files:
            raise UsageError(
                "files: git is not installed on this machine, but is needed to read "
                f"{_shown(os.path.join(at, b'.gitignore'))}",
                "Install git, or specify the files one by one.",
            )
        folders[:] = [one for one in folders if one != b".git"]
        links = [one for one in folders if os.path.islink(os.path.join(at, one))]
        names += [os.path.relpath(os.path.join(at, one), top) for one in (*files, *links)]
        if len(names) > MAX_FILES:
            break
    return names


def _shown(name: bytes) -> str:
    return clip_path(visible(name.decode("utf-8", "replace")), _SHOWN_LETTERS)


def folder_query(root: str, digest: str) -> Query[int | None]:
    """Build the query for the number of an archive's bytes on the cluster; None: all of it."""

    def read(answer: Answer) -> int | None:
        arrived = answer.stdout.decode("ascii", "replace").strip()
        if arrived == "there":
            return None
        return int(arrived) if arrived.isdecimal() else 0

    script = shell_text("services/submit/partial_archive.sh", "services/submit/cached_code.sh")
    return Query(("sh", "-c", script, "sh", root, digest), read)


def code_command(
    packed: PackedCode, root: str, folder: str, job: str, *, is_copied: bool = False
) -> ActionCommand:
    """Build the command that sends an archive and unpacks it in a folder below `root`.

    Only missing bytes are sent. With `is_copied` the archive stays packed, and each node verifies
    and unpacks it. If the command fails, `job` was not submitted, and nothing was unpacked.
    """
    name = folder.removeprefix(root.rstrip("/") + "/")
    size = len(packed.archive)
    sent = "already on the cluster"
    # First byte that is sent; '' for none.
    start = ""
    content = b""
    if packed.arrived is not None:
        offset = packed.arrived if packed.arrived < size else 0
        start = str(offset)
        content = packed.archive[offset:]
        sent = f"{format_memory(len(content))} packed"

    def read(answer: Answer) -> tuple[Outcome, ...]:
        if answer.status == 0:
            return (Outcome(job, True, f"files are in {folder}/{CODE_FOLDER}"),)
        stderr = b"\n".join(
            line for line in answer.stderr.split(b"\n") if not line.startswith(_ARRIVED.encode())
        )
        text = format_failure(stderr, root) or "could not unpack the files"
        return (Outcome(job, False, f"nothing was submitted: {text}"),)

    def explain(line: str) -> str:
        count = line.removeprefix(_ARRIVED)
        if not line.startswith(_ARRIVED) or not count.strip().isdecimal():
            return line
        return f"{format_memory(int(count))} of {format_memory(size)} of the files arrived"

    script = shell_text("services/submit/partial_archive.sh", "services/submit/unpack_code.sh")
    argv = ["sh", "-c", script, "sh", root or "/", name, packed.digest, str(size), start]
    if is_copied:
        argv.append("copied")
    files = counted(len(packed.code.files), "file")
    total = format_memory(packed.code.total)
    return ActionCommand(
        tuple(argv),
        (job,),
        read,
        stdin=content,
        limit_seconds=120.0 + len(content) / _MIN_BYTES_A_SECOND,
        shown=("unpack", files, f"({total};", f"{sent})", "in", f"{folder}/{CODE_FOLDER}"),
        explain=explain,
    )
