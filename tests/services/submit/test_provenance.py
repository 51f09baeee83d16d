"""What git says of the folder that a launch is made from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcdash.errors import UsageError
from hpcdash.services.submit import provenance
from hpcdash.services.submit.code_files import find_code_files
from hpcdash.services.submit.provenance import find_code_state

pytestmark = pytest.mark.system


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    ended = subprocess.run(["git", "-C", folder, *author, *words], check=True, capture_output=True)
    return ended.stdout.decode()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "a.py").write_text("1\n")
    return tmp_path


def test_the_commit_and_what_changed_since_are_known(project: Path) -> None:
    before = find_code_state(project)
    assert before is not None
    assert before.summary == "trunk without a commit, 1 untracked file"
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    commit = git(project, "rev-parse", "HEAD").strip()
    clean = find_code_state(project)
    assert clean is not None
    assert clean.summary == f"trunk {commit[:12]}"
    (project / "a.py").write_text("2\n")
    (project / "b.py").write_text("3\n")
    git(project, "checkout", "-q", "--detach")
    changed = find_code_state(project)
    assert changed is not None
    assert changed.summary.startswith(f"detached {commit[:12]}, changed since (diff ")
    assert changed.summary.endswith("), 1 untracked file")
    (project / "a.py").write_text("1\n")
    subprocess.run(["git", "-C", project, "apply"], input=changed.text, check=True)
    assert (project / "a.py").read_text() == "2\n"


def test_no_program_that_a_repository_names_is_run(project: Path) -> None:
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    (project / "a.py").write_text("2\n")
    (project / ".gitattributes").write_text("* diff=evil\n")
    for key in (
        "diff.evil.command",
        "diff.evil.textconv",
        "core.fsmonitor",
        "diff.external",
        "core.pager",
    ):
        git(project, "config", key, "touch ran; false")
    found = find_code_state(project)
    assert found is not None
    assert b"+2" in (found.diff or b"")
    assert not (project / "ran").exists()


@pytest.fixture
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the programs of a hostile repository leave files."""
    return tmp_path_factory.mktemp("ran")


def commit_all(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "all")


@pytest.mark.parametrize("required", ["true", "false"])
@pytest.mark.parametrize("attributes", [".gitattributes", ".git/info/attributes"])
def test_no_filter_is_run_and_its_files_are_named_as_not_compared(
    project: Path, ran: Path, required: str, attributes: str
) -> None:
    (project / "b.bin").write_text("1\n")
    commit_all(project)
    (project / ".git/info").mkdir(exist_ok=True)
    (project / attributes).write_text("*.bin filter=e=v.il\n")
    (project / "a.py").write_text("2\n")
    (project / "b.bin").write_text("2\n")
    for key in ("clean", "smudge", "process"):
        git(project, "config", f"filter.e=v.il.{key}", f"touch {ran}/{key}; cat")
    git(project, "config", "filter.e=v.il.required", required)
    found = find_code_state(project)
    assert found is not None
    assert found.diff is not None
    assert b"+2" in found.diff
    assert b"b.bin" not in found.diff
    assert found.not_compared == ("b.bin",)
    assert ", 1 not compared (filters, submodules)" in found.summary
    assert b"not compared: b.bin\n" in found.text
    assert list(ran.iterdir()) == []


def test_no_hook_is_run_as_files_are_compared(project: Path, ran: Path) -> None:
    commit_all(project)
    hooks = project / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {ran}/{name}\n")
        (hooks / name).chmod(0o755)
    # Its time alone differs, so that git would refresh the index.
    os.utime(project / "a.py", (1, 1))
    found = find_code_state(project)
    assert found is not None
    assert found.diff == b""
    assert list(ran.iterdir()) == []


def test_what_a_partial_clone_lacks_is_not_fetched_and_changes_are_unknown(
    project: Path, ran: Path
) -> None:
    commit_all(project)
    blob = git(project, "rev-parse", "HEAD:a.py").strip()
    (project / ".git/objects" / blob[:2] / blob[2:]).unlink()
    (project / "a.py").write_text("2\n")
    settings = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": f"ext::touch {ran}/fetched",
        "remote.origin.promisor": "true",
        "protocol.allow": "always",
        "protocol.ext.allow": "always",
    }
    for key, value in settings.items():
        git(project, "config", key, value)
    found = find_code_state(project)
    assert found is not None
    assert found.diff is None
    assert "changes unknown" in found.summary
    assert list(ran.iterdir()) == []


def test_nothing_of_a_submodule_is_run_and_it_is_not_compared(project: Path, ran: Path) -> None:
    module = project / "lib"
    module.mkdir()
    git(module, "init", "-q")
    (module / "x.txt").write_text("1\n")
    commit_all(module)
    (project / ".gitmodules").write_text('[submodule "lib"]\n\tpath = lib\n\turl = ./lib\n')
    commit_all(project)
    (module / "x.txt").write_text("2\n")
    (module / ".gitattributes").write_text("* filter=evil\n")
    git(module, "config", "filter.evil.clean", f"touch {ran}/clean; cat")
    git(module, "config", "core.fsmonitor", f"touch {ran}/fsmonitor")
    git(project, "config", "diff.submodule", "diff")
    found = find_code_state(project)
    assert found is not None
    assert found.not_compared == ("lib",)
    assert list(ran.iterdir()) == []
    git(module, "config", "--unset", "filter.evil.clean")
    git(module, "config", "--unset", "core.fsmonitor")
    commit_all(module)
    (project / ".gitmodules").unlink()
    moved = find_code_state(project)
    assert moved is not None
    assert moved.not_compared == ("lib",)
    assert b"+Subproject commit" in (moved.diff or b"")


def test_line_ends_are_compared_as_the_repository_sets_them(project: Path) -> None:
    git(project, "config", "core.autocrlf", "true")
    commit_all(project)
    (project / "a.py").write_bytes(b"1\r\n")
    found = find_code_state(project)
    assert found is not None
    assert found.diff == b""


def test_git_that_prints_without_end_is_ended(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = project / "programs"
    programs.mkdir()
    (programs / "git").write_text("#!/bin/sh\nexec yes\n")
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    with pytest.raises(UsageError, match="more than"):
        find_code_files([str(project)], project, 1 << 20)


def test_a_large_difference_is_cut_off(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_MAX_DIFF_BYTES", 1000)
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    (project / "a.py").write_text("x\n" * 5000)
    found = find_code_state(project)
    assert found is not None
    assert found.diff is not None
    assert len(found.diff) == 1000
    assert found.text.endswith(b"\n(cut off here)\n")


def test_outside_a_repository_and_without_git_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_code_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_code_state(tmp_path) is None
