"""Faults that are made to see whether tests find them."""

from __future__ import annotations

import ast

from benchmarks.mutation import find_faults

SOURCE = """\
def grade(points, is_late):
    \"\"\"Grade: 3 points are enough.\"\"\"
    name = "é"
    if points >= 3 and not is_late:
        return name + "passed"
    print(name)
"""


def test_each_fault_changes_one_place_of_a_program_that_still_parses() -> None:
    faults = find_faults("grade.py", SOURCE, frozenset(range(1, 7)))
    programs = [fault.applied(SOURCE) for fault in faults]
    assert len(set(programs)) == len(programs) == 8
    assert all(ast.dump(ast.parse(program)) != ast.dump(ast.parse(SOURCE)) for program in programs)
    changed = [
        {before for before, after in zip(SOURCE.splitlines(), program.splitlines(), strict=True)}
        - set(program.splitlines())
        for program in programs
    ]
    assert all(len(lines) == 1 for lines in changed)
    assert any("(points > 3)" in program for program in programs)
    assert any("return None" in program for program in programs)


def test_a_line_that_no_test_executes_has_no_fault() -> None:
    assert {fault.start[0] for fault in find_faults("grade.py", SOURCE, frozenset({6}))} == {6}
