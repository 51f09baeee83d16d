"""`python -m release.recipes DIST`: recipes of conda, Homebrew and Spack for the sdist in a folder,
the man pages of its wheel, and the checksums of all that is in it.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

_ROOT = Path(__file__).parent.parent
_TEMPLATES = Path(__file__).parent / "templates"
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?(.*)")
# Of Spack these have another name or are needed at build, too, and stand in the template.
_IN_TEMPLATE = frozenset({"rich"})
_EXTRA_NEEDS = ("bcrypt",)


def fill_in(dist: Path) -> list[Path]:
    """Write the recipes for the sdist in `dist` below dist/recipes; raises ValueError where there
    is not exactly one.
    """
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (sdist,) = dist.glob("hpcdash-*.tar.gz")
    needs = [_requirement(text) for text in project["dependencies"]]
    needs += [(name, "") for name in _EXTRA_NEEDS]
    values = {
        "@VERSION@": project["version"],
        "@SUMMARY@": project["description"],
        "@SHA256@": _sha256(sdist),
        "    # @CONDA_DEPENDENCIES@": "\n".join(
            f"    - {name} {bounds}".rstrip() for name, bounds in needs
        ),
        "    # @SPACK_DEPENDENCIES@": "\n".join(
            f'    depends_on("py-{name}{_spack_bounds(bounds)}", type=("build", "run"))'
            for name, bounds in needs
            if name not in _IN_TEMPLATE
        ),
    }
    written = []
    for template in sorted(_TEMPLATES.rglob("*.*")):
        text = template.read_text("utf-8")
        for name, value in values.items():
            text = text.replace(name, value)
        target = dist / "recipes" / template.relative_to(_TEMPLATES)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        written.append(target)
    return written


def extract_man_pages(dist: Path) -> list[Path]:
    """Write the man pages of the wheel in `dist` below dist/man."""
    (wheel,) = dist.glob("hpcdash-*.whl")
    pages = []
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".1"):
                page = dist / "man" / Path(name).name
                page.parent.mkdir(exist_ok=True)
                page.write_bytes(archive.read(name))
                pages.append(page)
    return pages


def write_checksums(dist: Path) -> Path:
    """Write SHA256SUMS of the files in `dist`, as `sha256sum --check` reads it."""
    sums = dist / "SHA256SUMS"
    files = sorted(path for path in dist.rglob("*") if path.is_file() and path != sums)
    sums.write_text("".join(f"{_sha256(path)}  {path.relative_to(dist)}\n" for path in files))
    return sums


def _requirement(text: str) -> tuple[str, str]:
    """Return the name and the bounds of a requirement, without its extras."""
    match = _REQUIREMENT.fullmatch(text)
    assert match is not None, text
    return match[1], match[2]


def _spack_bounds(bounds: str) -> str:
    """`>=8.1,<9` is `@8.1:8`."""
    if not bounds:
        return ""
    least, _, below = bounds.removeprefix(">=").partition(",<")
    return f"@{least}:{int(below) - 1}" if below else f"@{least}:"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for path in (*fill_in(folder), *extract_man_pages(folder), write_checksums(folder)):
        print(path)
