"""What git says of the folder that a launch is made from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcdash.services.submit import provenance
from hpcdash.services.submit.provenance import find_code_state

pytestmark = pytest.mark.system


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    ended = subprocess.run(["git", "-C", folder, *author, *words], check=True, capture_output=True, timeout=30)
    return ended.stdout.decode()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "a.py").write_text("1\n")
    return tmp_path


def test_the_commit_and_what_changed_since_are_known(project: Path) -> None:
    before = find_code_state(project)
    assert before is not None
    assert before.words == "trunk without a commit, 1 untracked file"
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    commit = git(project, "rev-parse", "HEAD").strip()
    clean = find_code_state(project)
    assert clean is not None
    assert clean.words == f"trunk {commit[:12]}"
    (project / "a.py").write_text("2\n")
    (project / "b.py").write_text("3\n")
    git(project, "checkout", "-q", "--detach")
    changed = find_code_state(project)
    assert changed is not None
    assert changed.words.startswith(f"detached {commit[:12]}, changed since (diff ")
    assert changed.words.endswith("), 1 untracked file")
    (project / "a.py").write_text("1\n")
    subprocess.run(["git", "-C", project, "apply"], input=changed.text, check=True, timeout=30)
    assert (project / "a.py").read_text() == "2\n"


def test_no_program_that_a_repository_names_is_run(project: Path) -> None:
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    (project / "a.py").write_text("2\n")
    (project / ".gitattributes").write_text("* diff=evil\n")
    for key in ("diff.evil.command", "diff.evil.textconv", "core.fsmonitor", "diff.external", "core.pager"):
        git(project, "config", key, "touch ran; false")
    found = find_code_state(project)
    assert found is not None
    assert b"+2" in found.diff
    assert not (project / "ran").exists()


def test_a_large_difference_is_cut_off(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_MOST_DIFF_BYTES", 1000)
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    (project / "a.py").write_text("x\n" * 5000)
    found = find_code_state(project)
    assert found is not None
    assert len(found.diff) == 1000
    assert found.text.endswith(b"\n(cut off here)\n")


def test_outside_a_repository_and_without_git_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_code_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_code_state(tmp_path) is None
