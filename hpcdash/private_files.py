"""Folders and files of a person's own, which nobody else may read, fill, replace, or lead elsewhere
by a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import re
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hpcdash.errors import EXIT_USAGE, HpcdashError
from hpcdash.shell_files import shell_text

_ROOT = 0
_LOCK_WAIT_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.02
# As Linux follows.
_MAX_LINKS = 40
_OPEN_STREAM = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/([0-9]{1,9})")
_STREAMS = {"stdout": 1, "stderr": 2}


class NotPrivate(HpcdashError):
    """A folder of one's own that is somebody else's, or holds what somebody else put there."""

    exit_status = EXIT_USAGE


class Replaceable(NotPrivate):
    """A folder that others could replace by one of theirs."""


@dataclass(frozen=True, slots=True)
class WeakSpot:
    """A part of a path that others control: `owner` is whose it is, '' for one's own or root's;
    `group` is that of others who may write there, '' for everybody.
    """

    path: str
    owner: str = ""
    group: str = ""
    is_link: bool = False

    @property
    def message(self) -> str:
        if self.owner:
            return f"{self.path} belongs to {self.owner}"
        if self.group:
            return f"members of group {self.group} may write to {self.path}"
        return f"others may write to {self.path}"


def find_weak_spot(
    path: str | Path, *, is_roots: bool = False, allows_private_group: bool = True
) -> WeakSpot | None:
    """Find who else could put something else at an absolute path, or at what leads there; None
    where nobody could.

    Each part is one's own or root's, and others may write to it only where it is a sticky folder; a
    link is followed as it is found. What is not there yet is fine. With `is_roots` each is root's
    and no link. Folders above the home may be anybody's: whoever owns them has the home. Raises
    OSError for what cannot be examined.
    """
    at = "/"
    hops = 0
    left = os.fspath(path).split("/")[::-1]
    while True:
        found = os.lstat(at)
        if stat.S_ISLNK(found.st_mode):
            if is_roots:
                return WeakSpot(at, is_link=True)
            if found.st_uid not in (os.geteuid(), _ROOT) and not _leads_to_home(at):
                return WeakSpot(at, user_name(found.st_uid))
            hops += 1
            if hops > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), at)
            target = os.readlink(at)
            left += target.split("/")[::-1]
            at = "/" if target.startswith("/") else os.path.dirname(at)
            continue
        if spot := _weakness(
            at, found, is_roots=is_roots, allows_private_group=allows_private_group
        ):
            return spot
        while left and left[-1] in ("", "."):
            left.pop()
        if not left:
            return None
        part = left.pop()
        at = os.path.dirname(at) if part == ".." else os.path.join(at, part)
        if not os.path.lexists(at):
            return None


def _weakness(
    at: str, found: os.stat_result, *, is_roots: bool, allows_private_group: bool
) -> WeakSpot | None:
    mode = found.st_mode
    owners = (_ROOT,) if is_roots else (_ROOT, os.geteuid())
    if found.st_uid not in owners and (
        is_roots or not _is_above(at, os.path.realpath(Path.home()))
    ):
        return WeakSpot(at, user_name(found.st_uid))
    # In a sticky folder, as /tmp is one, only its owner removes or renames a file.
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return None
    if mode & stat.S_IWOTH:
        return WeakSpot(at)
    if not mode & stat.S_IWGRP:
        return None
    is_private = (
        allows_private_group and is_private_group(found.st_gid) and not _has_access_list(at)
    )
    return None if is_private else WeakSpot(at, group=_group_name(found.st_gid))


def _is_above(folder: str, other: str) -> bool:
    return other.startswith(f"{folder.rstrip('/')}/") and other != "/"


def _leads_to_home(link: str) -> bool:
    home = os.path.abspath(Path.home())
    return link == home or _is_above(link, home)


def is_private_group(gid: int) -> bool:
    """Whether a group is named as oneself, and no other account that can be listed is a member or
    has it as its own.
    """
    try:
        login = pwd.getpwuid(os.geteuid()).pw_name
        groups = [grp.getgrgid(gid), *(group for group in grp.getgrall() if group.gr_gid == gid)]
    except KeyError:
        return False
    if any(group.gr_name != login or set(group.gr_mem) - {login} for group in groups):
        return False
    return not any(entry.pw_gid == gid and entry.pw_uid != os.geteuid() for entry in pwd.getpwall())


def _has_access_list(path: str) -> bool:
    """Whether a list names others: the group's bits of the mode are then the most that any of them
    may.
    """
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


def terse_weak_spot() -> str:
    """Return the function `weak_spot` of shell without comments, for commands."""
    return re.sub(r"(?m)^ *#.*\n", "", shell_text("weak_spot.sh"))


def require_own(folder: Path, variable: str, *, may_be_replaced: bool = False) -> None:
    """Raises NotPrivate where a folder, the link that leads to it, or something in it is somebody
    else's.

    A folder that is not there, or that tells nothing of itself, is left to whoever opens it. Root
    may own links and what is in it. Others' permission to write there is taken away. `variable`
    names another folder. Unless it `may_be_replaced`, raises Replaceable where others could put
    another folder in its place.
    """
    own = (os.geteuid(), _ROOT)
    with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        if (owner := os.lstat(folder).st_uid) not in own or (
            owner := os.stat(folder).st_uid
        ) != os.geteuid():
            raise NotPrivate(
                f"{folder} belongs to {user_name(owner)}, not to you", _another(variable)
            )
        mode = os.stat(folder).st_mode & 0o7777
        if mode & 0o022:
            os.chmod(folder, mode & ~0o022)
        with os.scandir(folder) as entries:
            for entry in entries:
                if (owner := entry.stat(follow_symlinks=False).st_uid) not in own:
                    raise NotPrivate(
                        f"{entry.path} belongs to {user_name(owner)}, who may have put it there "
                        "for you to write to",
                        f"Remove it if you do not recognize it. {_another(variable)}",
                    )
    if not may_be_replaced:
        _refuse_replaceable(folder, folder, variable)


def make_private(folder: Path, variable: str, *, may_be_replaced: bool = False) -> None:
    """Make a folder with its parents, or close the one that is there to everybody else.

    Raises NotPrivate.
    """
    try:
        if not may_be_replaced:
            _refuse_replaceable(folder, folder.parent, variable)
        make_folder(folder)
        require_own(folder, variable, may_be_replaced=may_be_replaced)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise NotPrivate(
            f"the folder {folder} cannot be created: {error.strerror}", _another(variable)
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, each 0700 whatever the umask: `mkdir -p` makes parents by the
    umask alone.
    """
    for one in reversed([parent for parent in folder.parents if not parent.exists()]):
        one.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _refuse_replaceable(folder: Path, checked: Path, variable: str) -> None:
    """Raises Replaceable where others could put something in the place of the `checked` part of a
    folder's path.
    """
    try:
        spot = find_weak_spot(checked.absolute())
    except OSError:
        # Whoever opens it is told why.
        return
    if spot is None:
        return
    step = f"Set {variable} to a folder below your home, such as {Path.home() / 'hpcdash'}"
    with contextlib.suppress(OSError):
        if not spot.owner and os.stat(spot.path).st_uid == os.geteuid():
            step += f", or run: chmod go-w {spot.path}"
    raise Replaceable(f"{spot.message}, so others could replace {folder}", f"{step}.")


def close_to_others(file: Path) -> None:
    """Make a file 0600 where it is there and looser; what cannot be changed stays."""
    with contextlib.suppress(OSError):
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)


def atomic_write(
    file: Path,
    *content: bytes | memoryview,
    mode: int = 0o600,
    prefix: str = ".new-",
    sync: bool = True,
) -> None:
    """Write a file whole or not at all, in the place of what was there. Raises OSError.

    `prefix` begins the name that it has until then. `sync`: it is on the disk before it takes the
    place.
    """
    import tempfile

    descriptor, unfinished = tempfile.mkstemp(dir=file.parent, prefix=prefix)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.writelines(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if sync:
                os.fsync(stream.fileno())
        os.replace(unfinished, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def write_output(path: Path, content: bytes) -> None:
    """Write to a path that a person named: to a pipe or an open stream as it is, else in the place
    of what was there.

    A link is replaced, never followed. Raises OSError.
    """
    if found := _OPEN_STREAM.fullmatch(str(path)):
        sys.stdout.flush()
        _write_all(_STREAMS.get(found[1]) or int(found[2]), content)
        return
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        there = None
    if there is not None and (stat.S_ISFIFO(there.st_mode) or stat.S_ISCHR(there.st_mode)):
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if os.path.samestat(there, os.fstat(descriptor)):
                _write_all(descriptor, content)
                return
        finally:
            os.close(descriptor)
    os.umask(mask := os.umask(0o077))
    is_own_file = there is not None and stat.S_ISREG(there.st_mode) and there.st_uid == os.geteuid()
    mode = (
        stat.S_IMODE(there.st_mode) & 0o777 if there is not None and is_own_file else 0o666 & ~mask
    )
    atomic_write(path, content, mode=mode)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _another(variable: str) -> str:
    return f"Set {variable} to a folder of your own."


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def has_locks(folder: Path) -> bool:
    """Report whether a file there can be locked, as far as one can be made; none is needed where
    none can be made.
    """
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
    except OSError as error:
        return error.errno not in (errno.EROFS, errno.EACCES)
    return True


def wait_for_lock(file: int) -> None:
    """Lock the file, for a bounded time; some network file systems have no locks."""
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if (
                error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR)
                or time.monotonic() > deadline
            ):
                return
        time.sleep(_LOCK_POLL_SECONDS)
