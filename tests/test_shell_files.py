"""The .sh files of the package: each is read by a module, and shellcheck has nothing against it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdash.shell_files import shell_text

PACKAGE = Path(__file__).parents[1] / "hpcdash"
FILES = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.sh"))]
# Files are joined to one script: functions and variables of one are used in another. `A && B || C`
# is meant as it is read.
ALLOWED = "SC2015,SC2034,SC2154,SC2317,SC2329"


def test_each_file_is_named_by_a_module() -> None:
    sources = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r'["\']([a-z_/]+\.sh)["\']', sources))
    checks = {f"backends/script/check_{name}.sh" for name in ("clock", "disk", "gpu_memory")}
    ends = {f"transport/{name}_stdin.sh" for name in ("as", "with", "without")}
    assert named & set(FILES) == set(FILES) - checks - ends


def test_a_text_begins_below_the_line_that_names_its_shell() -> None:
    assert shell_text("backends/pbs/newly_ended.sh").startswith("\nsince=")
    both = shell_text("backends/adopt.sh", "backends/in_container.sh")
    assert both == shell_text("backends/adopt.sh") + shell_text("backends/in_container.sh")


@pytest.mark.system
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_against_any_file() -> None:
    checked = subprocess.run(
        ["shellcheck", f"--exclude={ALLOWED}", *FILES], cwd=PACKAGE, capture_output=True, text=True
    )
    assert not checked.stdout
