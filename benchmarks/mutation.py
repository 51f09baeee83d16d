"""Faults that tests find, and that the tests left after a removal still find.

    python -m benchmarks.mutation --removed tests/domain/test_units.py::test_a --left tests/domain tests/ui

Draws faults, by a fixed seed, from the lines of hpcdash/ that the tests to be removed execute. A
fault counts if these tests find it; another is drawn for each that they do not. Exits 1 when the
tests that are left find fewer than 19 in 20. Needs coverage (`pip install -e '.[dev]'`); the faults
are made in a copy of the checkout.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coverage import CoverageData
from msgspec import Struct

ROOT = Path(__file__).resolve().parents[1]
_FOUND_SHARE = 0.95
_LIMIT_SECONDS = 600
_COPIED = ("hpcdash", "tests", "fixtures", "themes", "docs", "pyproject.toml", "README.md")
_COVERAGE = "[run]\nsource = hpcdash\ndynamic_context = test_function\nparallel = false\n"
_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


class Fault(Struct, frozen=True):
    """Replacement of the text between two positions (line from 1, column in bytes) of a file."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str

    def applied(self, source: str) -> str:
        """Return the source with the fault."""
        lines = source.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.start[0] - 1]) + lines[self.start[0] - 1][: self.start[1]]
        after = lines[self.end[0] - 1][self.end[1] :] + b"".join(lines[self.end[0] :])
        return (before + self.text.encode() + after).decode()


def find_faults(file: str, source: str, lines: frozenset[int]) -> list[Fault]:
    """Return the faults that can be made in these lines of the functions of a file."""
    faults: list[Fault] = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                if getattr(node, "lineno", 0) not in lines:
                    continue
                for changed, text in _changes(node):
                    start = (changed.lineno, changed.col_offset)
                    end = (changed.end_lineno or 0, changed.end_col_offset or 0)
                    faults.append(Fault(file, start, end, text))
    # A nested function is walked with its own and with the one around it.
    return list(dict.fromkeys(faults))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield (node to replace, its new text) for each fault that can be made of a node."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            other = ast.Compare(node.left, [_COMPARISONS[type(operator)]()], node.comparators)
            yield node, f"({ast.unparse(other)})"
        case ast.BoolOp():
            operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(operator, node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"({ast.unparse(node.operand)})"
        case ast.If() | ast.While() | ast.IfExp():
            yield node.test, f"(not ({ast.unparse(node.test)}))"
        case ast.Return(value=ast.expr()):
            yield node, "return None"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            operator = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield node, f"({ast.unparse(ast.BinOp(node.left, operator, node.right))})"
        case ast.Constant(value=bool()):
            yield node, str(not node.value)
        case ast.Constant(value=int()):
            yield node, str(node.value + 1)


class Checkout:
    """A copy of the checkout in which faults are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        (folder / "coverage.ini").write_text(_COVERAGE)

    def cover(self, tests: Sequence[str]) -> dict[str, dict[int, set[str]]]:
        """Run tests; return the test files that execute a line, by file and line."""
        data_file = self.folder / "coverage.data"
        data_file.unlink(missing_ok=True)
        coverage = ("coverage", "run", "--rcfile=coverage.ini", f"--data-file={data_file}")
        self._run(*coverage, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests)
        data = CoverageData(str(data_file))
        data.read()
        covered: defaultdict[str, dict[int, set[str]]] = defaultdict(dict)
        for path in data.measured_files():
            file = Path(path).relative_to(self.folder).as_posix()
            for line, contexts in data.contexts_by_lineno(path).items():
                files = {self._test_file(context) for context in contexts if context}
                if files:
                    covered[file][line] = files
        return covered

    def _test_file(self, context: str) -> str:
        """Return the file of a test such as `tests.domain.test_units.test_a`."""
        parts = context.split(".")
        for count in range(len(parts), 0, -1):
            file = "/".join(parts[:count]) + ".py"
            if (self.folder / file).is_file():
                return file
        return context

    def finds(self, tests: Sequence[str]) -> bool:
        """Whether one of the tests fails."""
        return self._run("pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests) != 0

    def _run(self, *command: str) -> int:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", *command],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_LIMIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            # A fault may make a loop endless.
            return 1
        return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--removed", nargs="+", required=True, help="tests that would be removed")
    parser.add_argument("--left", nargs="+", required=True, help="files or folders that stay")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hpcdash-mutation-") as name:
        checkout = Checkout(Path(name).resolve())
        removed = checkout.cover(options.removed)
        deselected = [f"--deselect={test}" for test in options.removed]
        left = checkout.cover([*options.left, *deselected])
        faults = [
            fault
            for file, lines in sorted(removed.items())
            for fault in find_faults(
                file, (checkout.folder / file).read_text("utf-8"), frozenset(lines)
            )
        ]
        random.Random(options.seed).shuffle(faults)
        drawn = found = 0
        for fault in faults:
            if drawn == options.count:
                break
            path = checkout.folder / fault.file
            source = path.read_text("utf-8")
            path.write_text(fault.applied(source), "utf-8")
            try:
                if not checkout.finds(options.removed):
                    continue
                drawn += 1
                files = sorted(left.get(fault.file, {}).get(fault.start[0], ()))
                if files and checkout.finds([*files, *deselected]):
                    found += 1
                else:
                    print(f"not found: {fault.file}:{fault.start[0]}: {fault.text}", flush=True)
            finally:
                path.write_text(source, "utf-8")
    print(f"{drawn} faults of {len(faults)} drawn, {found} found by the tests that are left")
    return 0 if found >= _FOUND_SHARE * drawn else 1


if __name__ == "__main__":
    sys.exit(main())
