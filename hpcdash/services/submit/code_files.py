"""The files of this machine that a request's `files` name: which they are, packed, and the commands
that bring them to a launch's folder by their content.
"""

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

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.script.folder import CODE_FOLDER
from hpcdash.backends.submissions import SentFile
from hpcdash.domain.text import clip_path, counted, visible
from hpcdash.domain.units import format_memory
from hpcdash.errors import UsageError, excerpt
from hpcdash.services.submit.git import GIT_SECONDS, GitOutput, git_environment, run_git
from hpcdash.services.submit.staging import format_failure
from hpcdash.shell_files import shell_text

# Of all files together.
MAX_FILES = 50_000
# What is packed has one date, 2000-01-01, so that equal files make equal archives.
_DATE = 946_684_800
# A slow line: 50 kB a second.
_MIN_BYTES_A_SECOND = 50_000
_SHOWN_LETTERS = 80
# Beginning of a line that reports how many bytes have arrived.
_ARRIVED = "arrived "


class CodeFile(Struct, frozen=True):
    """One of them: `path` on this machine, `name` in the launch's folder of files; `target` where
    it is a link.
    """

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
        count = "1 file" if len(self.files) == 1 else f"{len(self.files)} files"
        largest = max(self.files, key=lambda one: one.size)
        shown = (
            f"; the largest is {_shown(largest.name)}, {format_memory(largest.size)}"
            if len(self.files) > 1
            else ""
        )
        return f"{count}, {format_memory(self.total)}{shown}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the files, to be read before they are sent."""
        leading_out = [one for one in self.files if one.target and _leads_out(one)]
        messages = [f"files: {self.text}"]
        if leading_out:
            first = leading_out[0]
            others = f" and {len(leading_out) - 1} more" if len(leading_out) > 1 else ""
            messages.append(
                f"files: {_shown(first.name)}{others} points outside the folder, to "
                f"{_shown(first.target)}: the link itself is sent, not its target"
            )
        return tuple(messages)


class PackedCode(Struct, frozen=True):
    """The files as one archive, and the digest that it is kept by on a cluster.

    `arrived` are the bytes of it that exist there already; None: all.
    """

    code: CodeFiles
    archive: bytes
    digest: str
    arrived: int | None = 0


def find_code_files(names: Sequence[str], base: Path, most_bytes: int) -> CodeFiles:
    """The files that `names` mean, relative to `base`; what git ignores is left out, and no link is
    followed.

    One within `base` keeps its place; another folder's contents, or another file, are at the top.
    Raises UsageError for what is not there, two of one name, and more than is sent.
    """
    found: dict[bytes, CodeFile] = {}
    total = 0
    root = Path(os.path.abspath(base))
    for name in names:
        path = Path(os.path.abspath(root / os.path.expanduser(name)))
        is_within = path == root or root in path.parents
        top = path if _is_folder(path) else path.parent
        if is_within:
            top = root
        for file in _listed(path, name):
            one = _looked_at(os.fsencode(file), os.fsencode(top))
            if one is None:
                continue
            known = found.get(one.name)
            if known is not None and known.path != one.path:
                raise UsageError(
                    f"files: {_shown(one.name)} appears twice: {_shown(known.path)} and "
                    f"{_shown(one.path)}",
                    "Name folders whose file names do not clash.",
                )
            total += 0 if known else one.size
            found[one.name] = one
            if len(found) > MAX_FILES:
                raise _too_many_files()
    for one in found.values():
        _refuse_file_as_folder(one, found)
    if not found:
        raise UsageError(
            f"files: there is nothing to send in {', '.join(map(visible, names))}",
            "Name other files.",
        )
    code = CodeFiles(tuple(found[name] for name in sorted(found)), total)
    if total > most_bytes:
        raise UsageError(
            f"files: {code.text}: more than {format_memory(most_bytes)}",
            "List what the job does not need in .gitignore, name fewer, or raise files_limit in "
            "[launch].",
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
            "Name folders whose file names do not clash.",
        )


def pack_code_files(code: CodeFiles) -> PackedCode:
    """An archive that is the same for the same files. Raises UsageError for what cannot be read."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(
            filename="", fileobj=packed, mode="wb", compresslevel=6, mtime=0
        ) as compressed,
        # Of GNU tar: names of any length and bytes.
        tarfile.open(
            fileobj=compressed,
            mode="w",
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as archive,
    ):
        made: set[str] = set()
        for one in code.files:
            name = f"{CODE_FOLDER}/{one.name.decode('utf-8', 'surrogateescape')}"
            for folder in _parent_folders(name):
                if folder not in made:
                    made.add(folder)
                    member = tarfile.TarInfo(folder)
                    member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o700, _DATE
                    archive.addfile(member)
            member = tarfile.TarInfo(name)
            member.mtime = _DATE
            if one.target:
                member.type, member.mode = tarfile.SYMTYPE, 0o777
                member.linkname = one.target.decode("utf-8", "surrogateescape")
                archive.addfile(member)
            else:
                _add(archive, member, one)
    content = packed.getvalue()
    return PackedCode(code, content, hashlib.sha256(content).hexdigest())


def read_code_files(code: CodeFiles) -> dict[str, SentFile]:
    """Read the content of each file, by name.

    A link stands for the file that it leads to; a link that leads to no sent file is left out.
    Raises UsageError for an unreadable file, and for a name that is not UTF-8.
    """
    regular = {one.name: one for one in code.files if not one.target}
    found: dict[str, SentFile] = {}
    for one in code.files:
        requested = one
        if one.target:
            inner = os.path.normpath(os.path.join(os.path.dirname(one.name), one.target))
            if inner not in regular:
                continue
            requested = regular[inner]
        try:
            name = one.name.decode()
        except UnicodeDecodeError:
            raise UsageError(
                f"files: {_shown(one.name)} is not UTF-8", "Rename it or remove it."
            ) from None
        try:
            number = os.open(
                requested.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
            with os.fdopen(number, "rb") as stream:
                found[name] = SentFile(stream.read(), requested.is_program)
        except OSError as error:
            raise _unreadable(requested, error) from error
    return found


def _unreadable(one: CodeFile, error: OSError | tarfile.TarError) -> UsageError:
    reason = getattr(error, "strerror", None) or "it changed while it was read"
    return UsageError(
        f"files: {_shown(one.path)} cannot be read: {reason}", "Fix it, or leave it out."
    )


def _add(archive: tarfile.TarFile, member: tarfile.TarInfo, one: CodeFile) -> None:
    try:
        # Since the check, a link or a pipe may have taken its place.
        number = os.open(one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as stream:
            member.size = os.fstat(stream.fileno()).st_size
            member.mode = 0o700 if one.is_program else 0o600
            archive.addfile(member, stream)
    except (OSError, tarfile.TarError) as error:
        raise _unreadable(one, error) from error


def _parent_folders(name: str) -> Iterator[str]:
    at = name.find("/", len(CODE_FOLDER) + 1)
    while at != -1:
        yield name[:at]
        at = name.find("/", at + 1)


def _looked_at(path: bytes, top: bytes) -> CodeFile | None:
    """A file or a link; None for a folder, a socket, and what git lists that is gone or lies behind
    a link.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            f"files: {_shown(path)}: {error.strerror}", "Fix it, or leave it out."
        ) from error
    folder = os.path.dirname(path)
    if folder != top and os.path.realpath(folder) != os.path.join(
        os.path.realpath(top), os.path.relpath(folder, top)
    ):
        return None
    name = os.path.relpath(path, top)
    if stat.S_ISLNK(found.st_mode):
        return CodeFile(path, name, 0, target=os.readlink(path))
    if not stat.S_ISREG(found.st_mode):
        return None
    return CodeFile(path, name, found.st_size, is_program=bool(found.st_mode & 0o100))


def _leads_out(one: CodeFile) -> bool:
    """Whether a link leads to something that is not sent."""
    if one.target.startswith(b"/"):
        return True
    return (
        os.path.normpath(os.path.join(os.path.dirname(one.name), one.target)).split(b"/")[0]
        == b".."
    )


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _listed(path: Path, name: str) -> Iterator[bytes]:
    """Paths of the files in it, or its own; of those that git ignores none."""
    if not os.path.lexists(path):
        raise UsageError(
            f"files: {visible(name)} is not there: {visible(str(path))}", "Check the path."
        )
    if not _is_folder(path):
        yield os.fsencode(path)
        return
    for listed in _git_files(path):
        file = os.path.join(os.fsencode(path), listed.rstrip(b"/"))
        if os.path.isdir(file) and not os.path.islink(file):
            # A repository within it.
            yield from _listed(Path(os.fsdecode(file)), name)
        else:
            yield file


def _git_files(folder: Path) -> list[bytes]:
    """List the files of a folder that git does not ignore, also outside a repository."""
    environment = git_environment()
    try:
        is_in_repository = (
            run_git(folder, environment, "rev-parse", "--is-inside-work-tree").status == 0
        )
        if is_in_repository:
            return _names(
                run_git(folder, environment, "ls-files", "-coz", "--exclude-standard"), folder
            )
        with tempfile.TemporaryDirectory(prefix="hpcdash-git-") as empty:
            made = run_git(
                Path(empty), environment, "init", "--quiet", "--bare", "--template=", "."
            )
            _names(made, folder)
            environment |= {"GIT_DIR": empty, "GIT_WORK_TREE": str(folder)}
            return _names(
                run_git(folder, environment, "ls-files", "-coz", "--exclude-standard"), folder
            )
    except FileNotFoundError:
        return _walked(folder)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"files: git did not list {visible(str(folder))} within {GIT_SECONDS} s", "Name less."
        ) from None
    except OSError as error:
        raise UsageError(
            f"files: git cannot list {visible(str(folder))}: {error}", "Fix that first."
        ) from error


def _names(ended: GitOutput, folder: Path) -> list[bytes]:
    if ended.is_cut:
        raise _too_many_files()
    if ended.status != 0:
        raise UsageError(
            f"files: git cannot list {visible(str(folder))}: {visible(excerpt(ended.stderr))}",
            "Fix that first.",
        )
    return [name for name in ended.stdout.split(b"\0") if name]


def _too_many_files() -> UsageError:
    return UsageError(
        f"files: more than {MAX_FILES} files", "Name fewer, or list folders in .gitignore."
    )


def _walked(folder: Path) -> list[bytes]:
    """All files of a folder, where there is no git to read what is ignored."""
    top = os.fsencode(folder)
    names: list[bytes] = []
    for at, folders, files in os.walk(top):
        if b".gitignore" in files:
            raise UsageError(
                "files: git is not on this machine, which reads "
                f"{_shown(os.path.join(at, b'.gitignore'))}",
                "Install git, or name the files one by one.",
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
    """Build the query for the bytes of an archive that exist already; None: all of it."""

    def read(answer: Answer) -> int | None:
        word = answer.stdout.decode("ascii", "replace").strip()
        if word == "there":
            return None
        return int(word) if word.isdecimal() else 0

    script = shell_text("services/submit/partial_archive.sh", "services/submit/cached_code.sh")
    return Query(("sh", "-c", script, "sh", root, digest), read)


def _shown_unpacking(packed: PackedCode, sent_bytes: int, folder: str) -> tuple[str, ...]:
    """Return the words that stand for the command: `unpack 3 files (2M; 400K packed) in …/code`."""
    is_there = packed.arrived is None
    sent = "already on the cluster" if is_there else f"{format_memory(sent_bytes)} packed"
    files = counted(len(packed.code.files), "file")
    return ("unpack", files, f"({format_memory(packed.code.total)};", f"{sent})", "in", folder)


def code_command(
    packed: PackedCode, root: str, folder: str, job: str, is_copied: bool = False
) -> ActionCommand:
    """Build the command that sends an archive and unpacks it in a folder below `root`.

    Only missing bytes are sent. With `is_copied` the archive is put there, which each node checks
    and unpacks for itself. If it fails, `job` was not
    submitted, and nothing of a part of an archive was unpacked.
    """
    name = folder.removeprefix(root.rstrip("/") + "/")

    def read(answer: Answer) -> tuple[Outcome, ...]:
        if answer.status == 0:
            return (Outcome(job, True, f"its files are in {folder}/{CODE_FOLDER}"),)
        stderr = b"\n".join(
            line for line in answer.stderr.split(b"\n") if not line.startswith(_ARRIVED.encode())
        )
        text = format_failure(stderr, root) or "the files could not be unpacked"
        return (Outcome(job, False, f"nothing was submitted: {text}"),)

    def explain(line: str) -> str:
        count = line.removeprefix(_ARRIVED)
        if not line.startswith(_ARRIVED) or not count.strip().isdecimal():
            return line
        return f"{format_memory(int(count))} of {format_memory(size)} of the files arrived"

    size = len(packed.archive)
    arrived = packed.arrived
    first = "" if arrived is None else str(arrived if arrived < size else 0)
    content = b"" if arrived is None else packed.archive[int(first) :]
    argv = (
        "sh",
        "-c",
        shell_text("services/submit/partial_archive.sh", "services/submit/unpack_code.sh"),
        "sh",
        root or "/",
        name,
        packed.digest,
        str(size),
        first,
        *("copied",) * is_copied,
    )
    return ActionCommand(
        argv,
        (job,),
        read,
        content,
        120.0 + len(content) / _MIN_BYTES_A_SECOND,
        shown=_shown_unpacking(packed, len(content), f"{folder}/{CODE_FOLDER}"),
        explain=explain,
    )
