"""The documentation builds, and its links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.cast import CAST, draw
from tests.support.records import for_each

ROOT = Path(__file__).parent.parent


@pytest.mark.system
def test_the_documentation_builds_with_a_reference_and_fetches_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    pages = {
        page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")
    }
    assert "--dry-run" in pages["reference/commands.html"]
    assert "group an array&#39;s failures" in pages["reference/keys.html"].replace("'", "&#39;")
    assert "commands_per_minute" in pages["reference/configuration.html"]
    fetched = re.compile(
        r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="stylesheet"[^>]*href="(?:https?:)?//'
    )
    assert [name for name, text in pages.items() if fetched.search(text)] == []


_PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"))
# Of pages that are written when the documentation is built mkdocs itself checks the links.
_GENERATED = ROOT / "docs" / "reference"


def anchors(page: Path) -> set[str]:
    """What `#` may name in a page, by the rule that GitHub and mkdocs share."""
    titles = re.findall(
        r"^#+ +(.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@for_each("page", _PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_to_titles_in_them(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        if file.is_relative_to(_GENERATED):
            continue
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


def test_the_tests_that_pages_name_are_there() -> None:
    names = set(
        re.findall(
            r"^(?:async )?def (test_\w+)",
            "".join(p.read_text() for p in ROOT.glob("tests/**/*.py")),
            re.M,
        )
    )
    told = {name for page in _PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert len(told) > 20
    assert told - names == set()


def test_the_picture_of_the_demonstration_is_drawn_from_its_recording() -> None:
    recording = CAST.read_text()
    assert CAST.with_suffix(".svg").read_text() == draw(recording)
    header, *events = (json.loads(line) for line in recording.splitlines())
    assert header["version"] == 2
    assert [at for at, _, _ in events] == sorted(at for at, _, _ in events)
    assert len([kind for _, kind, _ in events if kind == "m"]) >= 4
