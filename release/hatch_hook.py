"""What hatchling calls for each wheel and sdist: adds the man pages, and of which commit it was
built.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Of the commit and its date, in a package; a checkout has none.
BUILD_FILE = "hpcdash/build.txt"


class ReleaseHook(BuildHookInterface):  # type: ignore[type-arg]
    """An editable install gets neither: it is a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root, made = Path(self.root), Path(self.root, "build", "release")
        made.mkdir(parents=True, exist_ok=True)
        build = root / BUILD_FILE
        # An sdist has the one that it was made with.
        if not build.exists():
            build = made / "build.txt"
            build.write_text(_commit(root))
            build_data["force_include"][str(build)] = BUILD_FILE
        if self.target_name == "wheel":
            date = (build.read_text().split() or [""])[-1] or time.strftime(
                "%Y-%m-%d", time.gmtime()
            )
            sys.path.insert(0, self.root)
            from release.man_pages import man_pages

            for name, text in man_pages(date).items():
                (made / name).write_text(text, encoding="utf-8")
                build_data["shared_data"][str(made / name)] = f"share/man/man1/{name}"


def _commit(root: Path) -> str:
    """`0a1b2c3d 2026-11-26`, with a + behind the commit where files differ from it; '' outside a
    repository.
    """
    git = ("git", "-C", str(root))
    try:
        message = subprocess.run(
            [*git, "log", "-1", "--format=%h %cs"], capture_output=True, text=True, check=True
        ).stdout
        changed = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return message.replace(" ", "+ " if changed else " ")
