"""Files in a task's launch folder by which its coordinator and its training communicate.

The folder comes from a job's comment, which any user may have written: the files are written as the
job's owner alone, who could write there anyway.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar, cast

from hpcdash.domain.request import ACCOUNT_NAME
from hpcdash.domain.share import SUSPEND_NAME
from hpcdash.errors import HpcdashError
from hpcdash.job.aside import Aside
from hpcdash.job.suspend import READY_SUFFIX, SEEN_SUFFIX
from hpcdash.services.share.database import is_own_file
from hpcdash.services.submit.sudoers import NOTHING_THERE, PLAIN_NAME, program_argv
from hpcdash.transport.base import CommandResult, Transport

_READY = f"{SUSPEND_NAME}{READY_SUFFIX}"
_SEEN = f"{SUSPEND_NAME}{SEEN_SUFFIX}"
_LIMIT_SECONDS = 20.0
OWN_LIMIT_SECONDS = 2.0
_Result = TypeVar("_Result")
# A missing file, a link, a folder, a FIFO without a reader: a later write fails too.
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO)
# Root's program prints before the content: DEVICE:INODE SIZE MODIFIED FIRST.
_STAT_LINE = re.compile(rb"[0-9]+:[0-9]+ ([0-9]+) (-?[0-9]+) [0-9]+\n")


class TaskFiles:
    """Files of one task in an absolute `folder`; '' if it has none.

    `account`: the task's owner; '' for the coordinator's own account. Another account's files are
    written by root's `program`, in launches of `storage_root` alone: a training elsewhere is
    suspended without a warning.
    """

    def __init__(
        self,
        transport: Transport,
        folder: str,
        *,
        account: str = "",
        program: str = "",
        storage_root: str = "",
    ) -> None:
        self._transport = transport
        self._folder = folder
        self._account = account
        self._program = program
        self._aside = Aside()
        root, _, self._launch = folder.rpartition("/")
        # The reason that no training is reached; '' if one is.
        self.unreached = ""
        if not folder:
            self.unreached = "no launch folder"
        elif account and not (
            storage_root and root == storage_root and PLAIN_NAME.fullmatch(self._launch)
        ):
            self.unreached = "the launch folder is not in storage_root"
        elif account and not ACCOUNT_NAME.fullmatch(account):
            self.unreached = "sudo does not accept this login name"

    async def request_suspend(self) -> bool | None:
        """Write the suspend command and return whether that succeeded.

        None if no training of this folder can ever receive it.
        """
        return await self._write(SUSPEND_NAME, b"suspend\n")

    async def clear(self) -> bool:
        """Remove the last run's suspend command and its answers; return whether none is left."""
        if self.unreached:
            return True
        if not self._account:
            for name in (_READY, _SEEN):
                with suppress(OSError):
                    await self._on_disk(partial(os.unlink, f"{self._folder}/{name}"))
            await self._write(SUSPEND_NAME, b"")
            return not await self.is_ready()
        for name in (_READY, _SEEN):
            if await self._has_text(name) and not await self._write(name, b""):
                return False
        return bool(await self._write(SUSPEND_NAME, b"")) or not await self.is_ready()

    async def is_ready(self) -> bool:
        """Whether the training has saved, and waits for its end."""
        return await self._has_text(_READY)

    async def seen_at(self) -> float | None:
        """Return when the training received the command, in epoch seconds; None if it did not."""
        size, modified_at = await self.stat(_SEEN) or (0, 0)
        return float(modified_at) if size else None

    async def _has_text(self, name: str) -> bool:
        size, _ = await self.stat(name) or (0, 0)
        return size > 0

    async def stat(self, name: str) -> tuple[int, int] | None:
        """Return the size in bytes and the modification time in epoch seconds of a regular file.

        None if it cannot be read.
        """
        if self.unreached:
            return None
        if not self._account:
            try:
                status = await self._on_disk(partial(_stat, self._folder, name))
            except OSError:
                return None
            return (status.st_size, int(status.st_mtime)) if stat.S_ISREG(status.st_mode) else None
        result = await self._run("read", name, "end", "0")
        match = _STAT_LINE.match(result.stdout) if result and result.status == 0 else None
        return (int(match[1]), int(match[2])) if match else None

    async def _write(self, name: str, content: bytes) -> bool | None:
        """Write a file and return whether that succeeded; None if there is no such file."""
        if self.unreached:
            return None
        if self._account:
            # Only a file made at the submission is written to: a folder without it has no training
            # that checks it.
            result = await self._run("read", name, "end", "0")
            if result is not None and result.status == NOTHING_THERE:
                return None
            if result is not None:
                result = await self._run("write", name, stdin=content)
            return result is not None and result.status == 0
        try:
            return await self._on_disk(partial(_write_own, f"{self._folder}/{name}", content))
        except OSError:
            return False

    async def modified_at(self, path: str) -> float | None:
        """Return when a file of the coordinator's account was changed, in epoch seconds.

        None if it cannot be read, or for a task of another account.
        """
        if self._account:
            return None
        try:
            return (await self._on_disk(partial(os.stat, path))).st_mtime
        except OSError:
            return None

    async def _on_disk(self, call: Callable[[], _Result]) -> _Result:
        """Run a call on the account's own files and return its result.

        Raises OSError, also if their disk does not respond. Such a call blocks this task alone,
        until it returns.
        """
        answer = await asyncio.to_thread(
            self._aside.answer, lambda: (call, call()), OWN_LIMIT_SECONDS, None
        )
        # The answer may be that of an earlier call.
        if answer is None or answer[0] is not call:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        return cast("_Result", answer[1])

    async def _run(
        self, verb: str, *arguments: str, stdin: bytes | None = None
    ) -> CommandResult | None:
        argv = program_argv(self._account, self._program, verb, self._launch, *arguments)
        try:
            return await self._transport.run(argv, stdin=stdin, limit_seconds=_LIMIT_SECONDS)
        except HpcdashError:
            return None


def _stat(folder: str, name: str) -> os.stat_result:
    # A network file system caches missing names until the folder is reopened.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    finally:
        os.close(descriptor)


def _write_own(path: str, content: bytes) -> bool | None:
    """Write to an existing file of this account alone; return None if there is none."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return None if error.errno in _NO_FILE else False
    try:
        if not is_own_file(os.fstat(file)):
            return None
        os.ftruncate(file, 0)
        os.write(file, content)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
