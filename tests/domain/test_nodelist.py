from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.nodelist import compress, contains, count, expand
from tests.support.records import for_each

NAMES = st.from_regex(r"(n|rack1n|g-|login)(0{0,2}[0-9]{1,3})?", fullmatch=True)


@for_each(
    ("expression", "names"),
    [
        ("n[1-3,07-09],g1", ["n1", "n2", "n3", "n07", "n08", "n09", "g1"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("", []),
    ],
)
def test_a_node_list_is_expanded_in_its_order(expression: str, names: list[str]) -> None:
    assert expand(expression) == names
    assert count(expression) == len(names)


@for_each("expression", ["n[1-3", "n1]", "n[[1]]", "n[3-1]", "n[a]", "n[]", "n[1,]", "n][1"])
def test_brackets_that_make_no_sense_are_refused_by_name(expression: str) -> None:
    with pytest.raises(ValueError, match=r"brackets|range"):
        expand(expression)


def test_a_list_of_too_many_nodes_is_counted_but_not_made() -> None:
    assert count("n[1-1000000]r[1-1000000]") == 10**12
    with pytest.raises(ValueError, match="more than 1000"):
        expand("n[1-1000000]r[1-1000000]", limit=1000)


@for_each(
    ("names", "expression"),
    [
        (["n3", "n1", "n2", "n1"], "n[1-3]"),
        (["n01", "n02", "n3"], "n[01-02,3]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["n1"], "n1"),
        (["login", "g1", "g2", "g4"], "g[1-2,4],login"),
        (["n", "n1"], "n,n1"),
        ([], ""),
    ],
)
def test_names_are_compressed_as_slurm_does(names: list[str], expression: str) -> None:
    assert compress(names) == expression


@given(st.lists(NAMES))
def test_compressed_names_expand_to_the_same_names_each_once(names: list[str]) -> None:
    assert sorted(expand(compress(names))) == sorted(set(names))


@given(st.sets(st.integers(0, 1200)))
def test_names_of_one_width_come_back_in_order(numbers: set[int]) -> None:
    names = [f"n{number:04d}" for number in numbers]
    assert expand(compress(names)) == sorted(names)


EXPRESSIONS = st.lists(
    st.sampled_from(
        [
            "n[1-3]",
            "n[08-11,2]",
            "rack[1-2]n[01-12]",
            "n1[0-1]",
            "a[1-2][3-12]",
            "b[1-12]0",
            "G5",
            "n[1",
        ]
    ),
    min_size=1,
).map(",".join)
WANTED = st.sampled_from(
    [
        *(
            "n1",
            "n2",
            "N3",
            "n02",
            "n08",
            "n11",
            "n10",
            "rack1n07",
            "rack2n7",
            "a13",
            "a112",
            "a23",
        ),
        *("b10", "b110", "g5", "n", "n[1", "x"),
    ]
)


@given(EXPRESSIONS, WANTED)
def test_a_list_contains_the_names_it_expands_to(expression: str, name: str) -> None:
    try:
        names = [each.lower() for each in expand(expression)]
    except ValueError:
        names = [expression.lower()]
    assert contains(expression, name) == (name.lower() in names)


def test_a_name_is_found_in_wide_ranges_side_by_side() -> None:
    assert contains("a[1-2][1-200000]", "a1199999")
    assert not contains("a[1-2][1-200000]", "a3199999")


@given(st.text() | st.text("n[]1-,0"))
def test_every_text_is_a_list_or_refused(text: str) -> None:
    contains(text, "n1")
    try:
        names = expand(text, limit=1000)
    except ValueError:
        return
    assert len(names) == count(text)
