"""The state of the code that a launch is made from: git's commit, branch and what is not committed."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from msgspec import Struct

from hpcdash.domain.text import clip, visible
from hpcdash.services.submit.code_files import git, git_environment

_MOST_DIFF_BYTES = 1 << 20
_SHOWN_LETTERS = 100


class CodeState(Struct, frozen=True):
    """`commit` is '' in a repository without one; `diff` is what is changed since, cut off at 1 MiB.

    `untracked` are how many files git neither knows nor ignores.
    """

    commit: str
    branch: str
    diff: bytes
    untracked: int = 0

    @property
    def words(self) -> str:
        """`main 1a2b3c4d5e6f, changed since (diff 5f3a9c12), 2 untracked files`."""
        branch = clip(visible(self.branch), _SHOWN_LETTERS) or "detached"
        parts = [f"{branch} {self.commit[:12] or 'without a commit'}"]
        if self.diff:
            parts.append(f"changed since (diff {hashlib.sha256(self.diff).hexdigest()[:8]})")
        if self.untracked:
            parts.append(f"{self.untracked} untracked " + ("file" if self.untracked == 1 else "files"))
        return ", ".join(parts)

    @property
    def text(self) -> bytes:
        """What is kept in the launch's folder: it can be given to `git apply`."""
        branch = self.branch.encode("utf-8", "surrogateescape")
        head = b"commit %s\nbranch %s\nuntracked files %d\n\n" % (self.commit.encode(), branch, self.untracked)
        end = b"\n(cut off here)\n" if len(self.diff) >= _MOST_DIFF_BYTES else b""
        return head + self.diff + end


def find_code_state(folder: Path) -> CodeState | None:
    """Of the repository that a folder is in; None where it is in none, git is not there, or does not answer."""
    environment = git_environment()

    def ask(*words: str) -> bytes | None:
        ended = git(folder, environment, *words)
        return ended.stdout if ended.returncode == 0 else None

    try:
        if ask("rev-parse", "--is-inside-work-tree") is None:
            return None
        commit = (ask("rev-parse", "--verify", "--quiet", "HEAD") or b"").decode("ascii", "replace").strip()
        branch = (ask("symbolic-ref", "--quiet", "--short", "HEAD") or b"").decode("utf-8", "surrogateescape").strip()
        # Programs that a repository names are not run.
        diff = ask("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color") if commit else b""
        others = ask("ls-files", "--others", "--exclude-standard", "-z") or b""
    except (OSError, subprocess.TimeoutExpired):
        return None
    return CodeState(commit, branch, (diff or b"")[:_MOST_DIFF_BYTES], others.count(b"\0"))
