"""Code state of a launch: git's commit and branch, and uncommitted changes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from hpcdash.domain.text import clip, counted, visible
from hpcdash.services.submit.git import GitOutput, git_environment, init_repository, run_git

_MAX_DIFF_BYTES = 1 << 20
_MAX_INDEX_BYTES = 256 << 20
_SHOWN_LETTERS = 100
_SHA256_LETTERS = 64
# Settings by which git compares the files of a repository; no value of these names a program.
_COMPARISON = r"^core\.(autocrlf|eol|filemode|symlinks|ignorecase|trustctime|checkstat)$"
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9]{0,20}")
_SUBMODULE_MODE = b"160000"
_SUBMODULE_PATHS = r"^submodule\..*\.path$"
_PATCH = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short")
# Contents of submodules are not compared: they have filters and hooks of their own.
_SHALLOW = "--ignore-submodules=dirty"

_Git = Callable[..., GitOutput]


class CodeState(Struct, frozen=True):
    """State of a repository: `commit` is '' if there is none; `diff` has the changes since.

    `diff` is cut off at 1 MiB, None if unknown. `untracked` is the number of files that git neither
    tracks nor ignores; `not_compared` are changed files with a filter, and submodules: comparing
    them would run programs that the repository names.
    """

    commit: str
    branch: str
    diff: bytes | None
    untracked: int = 0
    not_compared: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """`main 1a2b3c4d5e6f, changed since (diff 5f3a9c12), 2 untracked files`."""
        branch = clip(visible(self.branch), _SHOWN_LETTERS) or "detached"
        parts = [f"{branch} {self.commit[:12] or 'without a commit'}"]
        if self.diff is None:
            parts.append("changes unknown")
        elif self.diff:
            parts.append(f"changed since (diff {hashlib.sha256(self.diff).hexdigest()[:8]})")
        if self.not_compared:
            parts.append(f"{len(self.not_compared)} not compared (filters, submodules)")
        if self.untracked:
            parts.append(counted(self.untracked, "untracked file"))
        return ", ".join(parts)

    @property
    def text(self) -> bytes:
        """Content of the file in the launch's folder; `git apply` accepts it."""
        branch = self.branch.encode("utf-8", "surrogateescape")
        head = b"commit %s\nbranch %s\nuntracked files %d\n" % (
            self.commit.encode(),
            branch,
            self.untracked,
        )
        head += b"".join(
            b"not compared: %s\n" % visible(name).encode() for name in self.not_compared
        )
        if self.diff is None:
            return head + b"changes unknown\n"
        end = b"\n(cut off here)\n" if len(self.diff) >= _MAX_DIFF_BYTES else b""
        return head + b"\n" + self.diff + end


def find_code_state(folder: Path) -> CodeState | None:
    """Find the code state of the repository that a folder is in.

    None if there is no repository, or git is missing or does not answer.
    """
    environment = git_environment()

    def git(*arguments: str) -> GitOutput:
        return run_git(folder, environment, *arguments)

    try:
        if git("rev-parse", "--is-inside-work-tree").status != 0:
            return None
        commit = _line(git("rev-parse", "--verify", "--quiet", "HEAD"))
        branch = _line(git("symbolic-ref", "--quiet", "--short", "HEAD"))
        diff, not_compared = _find_changes(folder, git, commit) if commit else (b"", ())
        others = git("ls-files", "--others", "--exclude-standard", "-z")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return CodeState(commit, branch, diff, others.stdout.count(b"\0"), not_compared)


def _find_changes(folder: Path, git: _Git, commit: str) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the changes since a commit, None if unknown, and the paths that are not compared."""
    with _own_repository(folder, git, commit) as (top, own):
        raw = own("diff", "--raw", "-z", "--no-renames", _SHALLOW, commit)
        if raw.status != 0 or raw.is_cut:
            return None, ()
        # `:100644 160000 OLD NEW STATUS`, then a path.
        fields = raw.stdout.split(b"\0")
        changed = dict(zip(fields[1::2], fields[::2], strict=False))
        modules = set()
        for name, entry in changed.items():
            if _SUBMODULE_MODE in entry[1:].split()[:2]:
                modules.add(name)
        # Submodules that are checked out.
        listed = own("config", "-z", "--file", ".gitmodules", "--get-regexp", _SUBMODULE_PATHS)
        for entry in listed.stdout.split(b"\0"):
            _, newline, path = entry.partition(b"\n")
            if newline and os.path.lexists(os.path.join(os.fsencode(top), path, b".git")):
                modules.add(path)
        names = b"".join(b"%s\0" % name for name in changed)
        attributes = own("check-attr", "-z", "--stdin", "filter", stdin=names)
        if attributes.status != 0 or attributes.is_cut:
            return None, ()
        triples = attributes.stdout.split(b"\0")
        filters = zip(triples[::3], triples[2::3], strict=False)
        filtered = {name for name, value in filters if value not in (b"unspecified", b"unset")}
        if filtered:
            # They count as unchanged in this copy of the index.
            names = b"".join(b"%s\0" % name for name in filtered)
            update = own("update-index", "--assume-unchanged", "-z", "--stdin", stdin=names)
            if update.status != 0:
                return None, ()
        patch = own(*_PATCH, _SHALLOW, commit, most_bytes=_MAX_DIFF_BYTES)
    not_compared = tuple(os.fsdecode(name) for name in sorted(filtered | modules))
    return patch.stdout if patch.status == 0 or patch.is_cut else None, not_compared


@contextmanager
def _own_repository(folder: Path, git: _Git, commit: str) -> Iterator[tuple[str, _Git]]:
    """Yield the top folder of a repository, and git for its objects with our own configuration.

    That has neither the repository's filters, hooks and remotes nor the person's: whatever
    attributes name, there is no program to run. Raises OSError if the index cannot be copied.
    """

    def git_path(name: str) -> str:
        return os.path.join(folder, _line(git("rev-parse", "--git-path", name)))

    top = os.path.join(folder, _line(git("rev-parse", "--show-toplevel")))
    index = git_path("index")
    objects = git_path("objects")
    attributes = git_path("info/attributes")
    with tempfile.TemporaryDirectory(prefix="hpcdash-git-") as own:
        is_sha256 = len(commit) == _SHA256_LETTERS
        init_repository(Path(own), *(["--object-format=sha256"] if is_sha256 else []))
        with suppress(FileNotFoundError):
            if os.stat(index).st_size > _MAX_INDEX_BYTES:
                raise OSError(f"{index} is too large")
            # With its time: git reads a file again that changed in the second in which the index
            # was written.
            shutil.copy2(index, os.path.join(own, "index"))
        for shared in Path(index).parent.glob("sharedindex.*"):
            os.symlink(shared, os.path.join(own, shared.name))
        os.mkdir(os.path.join(own, "info"))
        os.symlink(attributes, os.path.join(own, "info", "attributes"))
        environment = git_environment() | {
            "GIT_DIR": own,
            "GIT_WORK_TREE": top,
            "GIT_INDEX_FILE": os.path.join(own, "index"),
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_CONFIG_NOSYSTEM": "1",
            # Git below 2.32 does not know GIT_CONFIG_GLOBAL.
            "HOME": own,
            "XDG_CONFIG_HOME": own,
        }
        settings = list(_comparison_settings(git))

        def own_git(
            *arguments: str, stdin: bytes = b"", most_bytes: int = _MAX_INDEX_BYTES
        ) -> GitOutput:
            return run_git(
                Path(top), environment, *settings, *arguments, stdin=stdin, most_bytes=most_bytes
            )

        yield top, own_git


def _comparison_settings(git: _Git) -> Iterator[str]:
    configured = git("config", "-z", "--get-regexp", _COMPARISON).stdout.decode("utf-8", "replace")
    for entry in configured.split("\0"):
        name, newline, value = entry.partition("\n")
        if name and _PLAIN_VALUE.fullmatch(value):
            yield from ("-c", f"{name}={value}" if newline else name)
    attributes = _line(git("config", "--type=path", "--get", "core.attributesFile"))
    if not attributes:
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        attributes = os.path.join(home, "git", "attributes")
    yield from ("-c", f"core.attributesFile={attributes}")


def _line(output: GitOutput) -> str:
    if output.status != 0:
        return ""
    return output.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")
