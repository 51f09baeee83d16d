"""The documentation builds, and the README's links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.system
def test_the_documentation_builds_with_a_reference_and_fetches_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    assert "--dry-run" in pages["reference/commands.html"]
    assert "group an array&#39;s failures" in pages["reference/keys.html"].replace("'", "&#39;")
    assert "commands_per_minute" in pages["reference/configuration.html"]
    fetched = re.compile(
        r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="stylesheet"[^>]*href="(?:https?:)?//'
    )
    assert [name for name, text in pages.items() if fetched.search(text)] == []


def test_the_links_of_the_readme_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    assert [link for link in links if "://" not in link and not (ROOT / unquote(link)).exists()] == []
