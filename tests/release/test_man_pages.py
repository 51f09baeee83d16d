"""The man pages: one a command, from what --help says, and nothing in them that roff takes for its
own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from hpcdash.cli.help import GROUPS
from hpcdash.cli.main import cli
from release.man_pages import man_pages

PAGES = man_pages("2026-11-26")
_ROOT = Path(__file__).parents[2]
# Imports none of the packages that it is given, as if they were not installed.
_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from release.man_pages import man_pages
man_pages("2026-11-26")
"""


@pytest.mark.system
def test_they_are_made_of_what_the_build_has() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    installed, built_with = (
        set(re.findall(r"^\w+", "\n".join(requires), re.MULTILINE))
        for requires in (project["project"]["dependencies"], project["build-system"]["requires"])
    )
    missing = sorted(installed - built_with)
    assert "textual" in missing
    words = [sys.executable, "-c", _WITHOUT, *missing]
    done = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_command_has_a_page_which_the_main_page_lists() -> None:
    names = [name for names in GROUPS.values() for name in names]
    assert set(PAGES) == {"hpcdash.1", *(f"hpcdash-{name}.1" for name in names)}
    for name in names:
        assert f"hpcdash\\-{name.replace('-', chr(92) + '-')}\\fR(1)" in PAGES["hpcdash.1"]


def test_a_page_has_synopsis_options_examples_and_what_is_below_the_command() -> None:
    page = PAGES["hpcdash-clusters.1"]
    assert page.startswith('.TH HPCDASH\\-CLUSTERS 1 2026-11-26 "hpcdash ')
    for line in (
        "\\fBhpcdash clusters add\\fR [OPTIONS] NAME",
        "\\fB\\-\\-force\\fR",
        "hpcdash clusters add juno \\-\\-ssh me@login.example.org",
    ):
        assert line in page.splitlines()


def test_no_line_of_a_text_becomes_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "Ends in a backslash \\\n\n\b\n.so /etc/passwd\n'br"
    cli.list_commands(click.Context(cli))
    monkeypatch.setitem(cli.commands, "jobs", click.Command("jobs", help=words))
    lines = man_pages("2026-11-26")["hpcdash-jobs.1"].splitlines()
    assert "Ends in a backslash \\e" in lines
    assert "\\&.so /etc/passwd" in lines
    assert "\\&'br" in lines


@pytest.mark.system
@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_has_nothing_to_say_of_them(tmp_path: Path) -> None:
    for name, text in PAGES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = subprocess.run(
        ["mandoc", "-Tlint", *PAGES], cwd=tmp_path, capture_output=True, text=True
    )
    assert (said.returncode, said.stdout) == (0, "")
