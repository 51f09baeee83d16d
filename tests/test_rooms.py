"""The house: what is one scheduler's own stands in its room, backends/NAME, and no import goes
round in a circle.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "hpcdash"
# The embedded queue has a grammar of its own, which takes both; a training reads the variables of
# any scheduler.
ELSEWHERE = ("backends", "embedded", "job")
WORDS = re.compile(
    r"slurm|\bs(?:batch|queue|control|acct|info|cancel|run)\b|SBATCH|\bpbs|PBS|\bq(?:sub|stat|del|alter)\b|torque|\bray\b|raysubmit",
    re.I,
)
# What still names one outside, and why.
NAMED = {
    "cli/commands.py": "help",
    "cli/help.py": "examples",
    "client/task.py": "launcher = srun",
    "cli/watch.py": "SLURM_CONF of the person who installs it",
    "cli/sudoers.py": "--for",
    "config/values.py": "an example in an error",
    "domain/job_ids.py": "how both write the ids of tasks",
    "domain/request.py": "launcher = srun",
    "domain/root_cause.py": "lines in logs of trainings",
    "domain/switches.py": "directive lines are no commands",
    "domain/chains.py": "PBS's words for a job that its dependency holds",
    "services/submit/form_fields.py": "labels of fields",
    "config/request.py": "errors of values",
    "services/submit/sudoers.py": "remarks in the rules",
    "services/state/templates.py": "directive lines tell a script from a request",
    "transport/shell_environment.py": "SLURM_CONF of a login",
    "services/jobs/action_text.py": "whom a signal reaches",
    "ui/submit/choices.py": "launcher = srun",
    "ui/submit/page.py": "endings of scripts",
    "services/watch/rules/nodes.py": "a next step",
}


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Each module of hpcdash, by its path in the package."""
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}


def _docstrings(tree: ast.AST) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def _words(tree: ast.AST) -> Iterator[str]:
    """Names and texts, without docstrings."""
    left_out = _docstrings(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in left_out:
                yield text
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.alias(name=name)
                | ast.arg(arg=name)
            ):
                yield name
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.ImportFrom(module=str(name)):
                yield name


def test_nothing_outside_its_room_names_a_scheduler_but_what_is_listed(
    trees: dict[Path, ast.Module],
) -> None:
    naming = {
        place.as_posix()
        for place, tree in trees.items()
        if place.parts[0] not in ELSEWHERE and any(map(WORDS.search, _words(tree)))
    }
    assert naming == set(NAMED)


def test_only_the_registry_and_the_embedded_queue_import_a_scheduler_s_room(
    trees: dict[Path, ast.Module],
) -> None:
    importing = set()
    for place, tree in trees.items():
        if place.parts[0] in ("backends", "embedded"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and re.match(
                r"hpcdash\.backends\.(?:slurm|pbs)\b", node.module or ""
            ):
                importing.add(place.as_posix())
    assert importing == set()


def test_no_import_goes_round_in_a_circle(trees: dict[Path, ast.Module]) -> None:
    """Those for types and those within functions included; raises CycleError, which names the
    circle.
    """
    modules = {
        ".".join(("hpcdash", *place.with_suffix("").parts)).removesuffix(".__init__"): tree
        for place, tree in trees.items()
    }
    imports: dict[str, set[str]] = {}
    for name, tree in modules.items():
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        imports[name] = (found & modules.keys()) - {name}
    assert len(list(TopologicalSorter(imports).static_order())) == len(modules)


def test_the_files_that_the_docs_name_are_there() -> None:
    text = "".join(
        (ROOT.parent / name).read_text() for name in ("docs/architecture.md", "CONTRIBUTING.md")
    )
    named = set(re.findall(r"`([a-z_]+/[a-z_/]*\.py)`", text))
    assert named
    assert [
        name
        for name in sorted(named)
        if not (ROOT / name).exists() and not (ROOT.parent / name).exists()
    ] == []


def test_a_new_capability_is_offered_only_where_a_backend_lists_it(
    trees: dict[Path, ast.Module],
) -> None:
    taking_all = {
        place.as_posix()
        for place, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and any(isinstance(given, ast.Name) and given.id == "Capability" for given in node.args)
    }
    assert taking_all == set()


def test_no_handler_calls_the_one_of_its_base_which_textual_calls_itself(
    trees: dict[Path, ast.Module],
) -> None:
    called_twice = [
        f"{path}:{node.lineno}"
        for path, tree in trees.items()
        if path.parts[0] == "ui"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith(("on_", "_on_"))
        and ast.unparse(node.func.value) == "super()"
    ]
    assert called_twice == []
