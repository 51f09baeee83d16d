"""Measures the size and the English of hpcdash/, and fails where a figure exceeds its ceiling in
tests/house.toml.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = ROOT / "tests" / "house.toml"
LINE_LENGTH = 100
HELPER_LINES = 8
FUNCTION_LINES = 60
MAX_POSITIONAL = 5
_SPEECH = re.compile(
    r"say|says|said|tell|tells|told|teller|hear|heard|ask|asks|asked|asking|words|look|looks|meant|kept|wanted|"
    r"untold|unsaid|heeded|anew|deeds|deed|obeyed|whence|namesakes",
    re.IGNORECASE,
)
_GENITIVE = re.compile(r"^_?of_|_of$|[a-z]_of_[a-z]")
# Terms of the field and of the language: extend this where a name is right as it is, and give the
# reason in the commit.
_TERMS = re.compile(
    r"time_of_day|out_of_|end_of_|start_of_|one_of|all_of|any_of|index_of|part_of|percent_of|point_of|look_ahead|lookup|"
    r"look_up|^tell$|ask_password|ask_passphrase|keyword"
)
_SUBJECTLESS = re.compile(
    r"(?:What|Those|Where|Which|Who|As|So|Of|How|Why|When|From|That|They|It|Nothing|Without)\b"
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class House:
    """The modules of a package: totals by name, and the places behind each rate."""

    def __init__(self, package: Path) -> None:
        self.totals: Counter[str] = Counter()
        self.places: defaultdict[str, list[str]] = defaultdict(list)
        self._texts = {path: path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
        trees = {path: ast.parse(text) for path, text in self._texts.items()}
        self._used: Counter[str] = Counter()
        self._called: Counter[str] = Counter()
        for tree in trees.values():
            for node in ast.walk(tree):
                self._used[_reference(node)] += 1
                if isinstance(node, ast.Call):
                    self._called[_reference(node.func)] += 1
        for path, tree in trees.items():
            self._count(path.relative_to(package.parent).as_posix(), self._texts[path], tree)

    def figures(self) -> dict[str, dict[str, float]]:
        """Return the totals, and the rates per 10 000 lines, by section of the ceilings."""
        rates = {
            name: 10_000 * len(places) / self.totals["lines"]
            for name, places in self.places.items()
        }
        rates["nodes per statement"] = self.totals["nodes"] / self.totals["statements"]
        return {
            "totals": {name: float(count) for name, count in self.totals.items()},
            "rates": {name: round(rate, 2) for name, rate in rates.items()},
        }

    def _count(self, path: str, text: str, tree: ast.Module) -> None:
        lines = text.splitlines()
        self.totals.update(files=1, lines=len(lines))
        for number, line in enumerate(lines, start=1):
            if len(line) > LINE_LENGTH:
                self.places["long lines"].append(f"{path}:{number} {line.strip()[:60]}")
        if _is_subjectless(tree):
            self.places["docstrings"].append(f"{path}:1 (module)")
        for node in ast.walk(tree):
            self.totals.update(nodes=1, statements=isinstance(node, ast.stmt))
            for figure in self._findings(node):
                self.places[figure].append(f"{path}:{getattr(node, 'lineno', 1)} {_name(node)}")

    def _findings(self, node: ast.AST) -> Iterator[str]:
        """Figures that a node counts for."""
        name = _name(node)
        if isinstance(node, Definition):
            self.totals["classes" if isinstance(node, ast.ClassDef) else "functions"] += 1
            if _is_spoken(name):
                yield "speech"
            if _is_genitive(name):
                yield "genitives"
            if _is_subjectless(node):
                yield "docstrings"
            if self._is_small_helper(node):
                yield "small helpers"
            if not isinstance(node, ast.ClassDef) and _line_count(node) > FUNCTION_LINES:
                yield "long functions"
        elif isinstance(node, ast.Assign) and _is_parallel(node):
            yield "parallel assignments"
        elif isinstance(node, ast.IfExp) and isinstance(node.orelse, ast.IfExp):
            yield "nested ternaries"
        elif isinstance(node, ast.Call) and len(node.args) > MAX_POSITIONAL:
            yield "positional calls"
        elif _is_assigned(node) and (_is_spoken(name) or _is_genitive(name)):
            yield "dialect"

    def _is_small_helper(self, node: Definition) -> bool:
        name = node.name
        return (
            not isinstance(node, ast.ClassDef)
            and name.startswith("_")
            and not name.startswith("__")
            and _line_count(node) <= HELPER_LINES
            and self._used[name] == self._called[name] == 1
            and not node.decorator_list
        )


def _name(node: ast.AST) -> str:
    """Return the name that a node defines or refers to; '' for none."""
    if isinstance(node, Definition):
        return node.name
    return node.arg if isinstance(node, ast.arg) else _reference(node)


def _line_count(node: Definition) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_parallel(node: ast.Assign) -> bool:
    """Whether values are assigned to names one by one in a statement: `a, b = 1, 2`."""
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    return len(target.elts) == len(node.value.elts)


def _reference(node: ast.AST) -> str:
    return str(getattr(node, "id", None) or getattr(node, "attr", None) or "")


def _is_assigned(node: ast.AST) -> bool:
    return isinstance(node, ast.arg) or isinstance(getattr(node, "ctx", None), ast.Store)


def _is_spoken(name: str) -> bool:
    parts = re.findall(r"[a-z]+|[A-Z][a-z]*", name.strip("_"))
    return not _TERMS.search(name) and any(_SPEECH.fullmatch(part) for part in parts)


def _is_genitive(name: str) -> bool:
    return bool(_GENITIVE.search(name)) and not _TERMS.search(name)


def _is_subjectless(node: ast.Module | Definition) -> bool:
    text = ast.get_docstring(node) or ""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and text.startswith("Whether"):
        return node.returns is None or ast.unparse(node.returns) != "bool"
    return bool(_SUBJECTLESS.match(text))


def exceeded(
    figures: dict[str, dict[str, float]], ceilings: dict[str, dict[str, float]]
) -> list[str]:
    """Return a line for each figure above its ceiling, or without one."""
    found = []
    for section, values in figures.items():
        for name, value in values.items():
            ceiling = ceilings.get(section, {}).get(name)
            if ceiling is None:
                found.append(f"[{section}] {name}: {value:.10g}, and no ceiling")
            elif value > ceiling:
                found.append(f"[{section}] {name}: {value:.10g} exceeds the ceiling {ceiling:.10g}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.house", description=__doc__)
    parser.add_argument("--list", metavar="FIGURE", help="print the places behind a rate")
    options = parser.parse_args()
    house = House(ROOT / "hpcdash")
    if options.list:
        if options.list not in house.places:
            parser.error(
                f"no places for {options.list!r} (expected one of: "
                f"{', '.join(sorted(house.places))})"
            )
        print("\n".join(house.places[options.list]))
        return 0
    figures = house.figures()
    for section, values in figures.items():
        print(f"[{section}]")
        for name, value in sorted(values.items()):
            print(f"{json.dumps(name) if ' ' in name else name} = {value:.10g}")
    problems = exceeded(figures, tomllib.loads(CEILINGS.read_text("utf-8")))
    for problem in problems:
        print(f"{CEILINGS.relative_to(ROOT)}: {problem}", file=sys.stderr)
    if problems:
        print(
            "python -m tests.support.house --list FIGURE prints the places behind a rate.",
            file=sys.stderr,
        )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
