"""No pattern uses what Debian's CPython 3.11.2 gets wrong."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "hpcdash"
MISMATCHED = ("POSSESSIVE_REPEAT", "ATOMIC_GROUP")


def patterns(source: str) -> Iterator[str]:
    """Every string of a module that a regular expression may be made of; what an f-string inserts
    is one group. One that begins with a comment is shell.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "(?:x)"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def mismatched(pattern: str) -> bool:
    try:
        parsed = repr(re._parser.parse(pattern))  # type: ignore[attr-defined]
    except (re.error, OverflowError):
        return False
    return any(name in parsed for name in MISMATCHED)


# Most of these strings are text.
@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
def test_no_pattern_is_possessive_or_atomic() -> None:
    """There `(?:ab?c)*+` matches the first four letters of "abcab"."""
    found = [
        f"{file.relative_to(PACKAGE)}: {pattern}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if "import re\n" in (source := file.read_text("utf-8"))
        for pattern in patterns(source)
        if not pattern.startswith("#") and mismatched(pattern)
    ]
    assert found == []


def test_a_possessive_pattern_is_found_wherever_it_stands() -> None:
    source = (
        'A = "a*+"\ndef f(x):\n    return re.match(rf"(?:{x}b)?+", ""), '
        're.compile(rb"a(?>b)"), "[*+]", "a+"\n'
    )
    assert sorted(filter(mismatched, patterns(source))) == ["(?:(?:x)b)?+", "a(?>b)", "a*+"]
