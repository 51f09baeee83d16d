"""Recipes of other package managers, filled in for a build."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from release.recipes import extract_man_pages, fill_in, write_checksums

pytestmark = pytest.mark.system
_ROOT = Path(__file__).parents[2]
_CANONICAL = "https://pypi.org/packages/source/h/hpcdash/hpcdash-"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    argv = (sys.executable, "-m", "hatchling", "build", "-d", str(folder))
    subprocess.run(argv, cwd=_ROOT, check=True, capture_output=True)
    return folder


def test_recipes_have_version_checksum_and_every_dependency(dist: Path) -> None:
    recipes = {path.name: path.read_text("utf-8") for path in fill_in(dist)}
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (sdist,) = dist.glob("*.tar.gz")
    checksum = hashlib.sha256(sdist.read_bytes()).hexdigest()
    assert sorted(recipes) == ["hpcdash.rb", "package.py", "recipe.yaml"]
    for text in recipes.values():
        assert checksum in text
        assert project["version"] in text
        assert "@SHA" not in text
    assert _CANONICAL in recipes["recipe.yaml"]
    assert _CANONICAL in recipes["hpcdash.rb"]
    for requirement in project["dependencies"]:
        name = requirement.partition(">")[0].partition("[")[0]
        assert f"- {name} >=" in recipes["recipe.yaml"]
        assert f'depends_on("py-{name}@' in recipes["package.py"]
    compile(recipes["package.py"], "package.py", "exec")


def test_checksums_hold_for_all_that_is_there(dist: Path) -> None:
    assert "hpcdash-submit.1" in [page.name for page in extract_man_pages(dist)]
    write_checksums(dist)
    subprocess.run(("sha256sum", "--quiet", "--check", "SHA256SUMS"), cwd=dist, check=True)
    listed = (dist / "SHA256SUMS").read_text("utf-8")
    assert "  man/hpcdash-submit.1" in listed
    assert ".whl" in listed
