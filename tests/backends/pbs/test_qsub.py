"""qsub's command line and #PBS lines are read as qsub reads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.options import (
    attributes,
    chunks,
    directive_lines,
    is_closed,
    read_command_line,
    read_directive,
    read_directives,
    resources,
    settings,
    split_arguments,
    split_list,
)
from tests.support.records import for_each


def read(*words: str) -> list[tuple[str, str | None]]:
    return [(one.name, one.value) for one in read_command_line(words).given]


def in_script(*lines: str) -> dict[str, str]:
    return settings(
        read_directives("\n".join(("#!/bin/sh", *lines, "true\n"))).options, in_script=True
    )


# -- the command line


def test_a_value_may_stand_behind_its_letter_or_apart() -> None:
    assert read("-joe", "-k", "oed", "-l", "ncpus=2") == [
        ("j", "oe"),
        ("k", "oed"),
        ("l", "ncpus=2"),
    ]


def test_options_without_a_value_may_stand_together_and_before_one_with_a_value() -> None:
    assert read("-hzVN", "sim") == [("h", None), ("z", None), ("V", None), ("N", "sim")]


def test_a_value_may_begin_with_a_dash() -> None:
    assert read("-N", "-5", "-p", "-100") == [("N", "-5"), ("p", "-100")]


def test_options_go_on_behind_the_script_as_getopt_has_it() -> None:
    line = read_command_line(["-N", "a", "job.sh", "-q", "main"])
    assert line.script == ("job.sh",)
    assert [one.name for one in line.options] == ["N", "q"]


def test_behind_two_dashes_is_a_command_and_its_arguments() -> None:
    line = read_command_line(["-N", "execform", "--", "/bin/sleep", "-n", "30"])
    assert line.script == ("--", "/bin/sleep", "-n", "30")
    assert [one.name for one in line.options] == ["N"]


def test_two_dashes_may_be_a_value() -> None:
    assert read_command_line(["-N", "--", "job.sh"]).script == ("job.sh",)


@for_each(
    ("words", "problem"),
    [(("-Z",), "unknown"), (("-N",), "missing its value"), (("-hN",), "missing")],
)
def test_what_qsub_would_not_take_is_a_problem(words: tuple[str, ...], problem: str) -> None:
    assert problem in read_command_line(words).problems[0].problem


def test_torque_s_options_are_read_as_well() -> None:
    assert read("-t", "1,3,5%2", "-d", "/w", "-F", "a b", "-n") == [
        ("t", "1,3,5%2"),
        ("d", "/w"),
        ("F", "a b"),
        ("n", None),
    ]


# -- which lines are directives


def lines(script: str, prefix: str = "#PBS") -> list[tuple[int, str]]:
    return list(directive_lines(script, prefix))


def test_directives_end_at_the_first_command_and_not_at_comments_or_blank_lines() -> None:
    script = (
        "#!/bin/sh\n#PBS -h\n\n# a word\n   \n  #PBS -z\n: a label is not a command\n#PBS "
        "-V\ncd x\n#PBS -N no\n"
    )
    assert lines(script) == [(2, " -h"), (6, " -z"), (8, " -V")]


def test_a_colon_behind_blanks_is_a_command() -> None:
    assert lines(" : x\n#PBS -h\n") == []


def test_a_backslash_joins_the_next_line_to_a_directive() -> None:
    script = "#PBS -l select=2:ncpus=4 \\\n -N sim \\\n -h\n#PBS -z\ntrue\n"
    assert lines(script) == [(1, " -l select=2:ncpus=4  -N sim  -h"), (4, " -z")]
    assert in_script("#PBS -N \\", "sim") == {"N": "sim"}


def test_a_script_of_continued_lines_alone_is_read_in_no_time() -> None:
    [(number, text)] = lines("#PBS \\\n" + "\\\n" * 300_000)
    assert (number, text) == (1, " ")


def test_an_endless_word_is_read_in_no_time() -> None:
    assert len(read(f"-{'h' * 300_000}")) == 300_000


def test_another_prefix_may_be_asked_for_and_an_empty_one_is_none() -> None:
    script = "#QSUB -h\n#PBS -z\n"
    assert lines(script, "#QSUB") == [(1, " -h")]
    assert lines(script, "") == []


def test_the_prefix_needs_no_blank_behind_it() -> None:
    assert in_script("#PBS-N sim") == {"N": "sim"}


def test_a_directive_of_dos_has_a_blank_at_its_end() -> None:
    assert in_script("#PBS -N sim\r") == {"N": "sim"}


# -- the words of a directive


@for_each(
    ("text", "words"),
    [
        (" -N  a\t-h ", ["-N", "a", "-h"]),
        ("-P 'big project'", ["-P", "big project"]),
        ('-v A="x,y"z', ["-v", "A=x,yz"]),
        ("-N a\\ b", ["-N", "a b"]),
        ("-v 'a\\b'", ["-v", "a\\b"]),
        ("-N ''", ["-N", ""]),
        ("-N a # b", ["-N", "a", "#", "b"]),
        ("", []),
    ],
)
def test_words_are_split_as_qsub_splits_them(text: str, words: list[str]) -> None:
    assert split_arguments(text) == words


def test_an_open_quote_and_a_stray_word_are_problems_with_their_line() -> None:
    read = read_directives("#!/bin/sh\n#PBS -N 'a\n#PBS walltime\n")
    assert [(one.line, one.problem) for one in read.problems] == [
        (2, "missing its closing quote"),
        (3, "not a qsub option"),
    ]


# -- values


def test_a_comma_within_quotes_or_behind_a_backslash_belongs_to_its_item() -> None:
    assert split_list("A=1,B='x,y',C=x\\,y,D") == ["A=1", "B='x,y'", "C=x\\,y", "D"]


@for_each(
    ("text", "closed"), [("A='x'", True), ('A="it\'s"', True), ('A=a"b', False), ("A=\\'", True)]
)
def test_open_quotes_of_a_list_are_seen(text: str, closed: bool) -> None:
    assert is_closed(text) is closed


def test_one_l_may_name_several_resources() -> None:
    assert resources("select=2:ncpus=4:mem=8gb,place=scatter:excl, walltime = 1:00") == [
        ("select", "2:ncpus=4:mem=8gb"),
        ("place", "scatter:excl"),
        ("walltime", "1:00"),
    ]


def test_one_w_may_hold_several_attributes_and_their_values_commas() -> None:
    assert attributes("depend=afterok:1,afterany:2:3, umask=022") == [
        ("depend", "afterok:1,afterany:2:3"),
        ("umask", "022"),
    ]


def test_chunks_are_a_count_and_what_each_has() -> None:
    assert chunks("2:ncpus=4:mem=8gb+ncpus=1+g01:ppn=2") == [
        ("2", [("ncpus", "4"), ("mem", "8gb")]),
        ("", [("ncpus", "1")]),
        ("", [("g01", ""), ("ppn", "2")]),
    ]


# -- what counts


def test_resources_of_several_l_add_up() -> None:
    assert in_script("#PBS -l select=1", "#PBS -l walltime=60 -q main") == {
        "l.select": "1",
        "l.walltime": "60",
        "q": "main",
    }


def test_said_twice_the_last_counts_but_of_a_script_s_resources_the_first() -> None:
    line = read_command_line(["-N", "a", "-N", "b", "-l", "walltime=1", "-l", "walltime=2"])
    assert settings(line.options, in_script=False) == {"N": "b", "l.walltime": "2"}
    assert in_script("#PBS -N a -N b", "#PBS -l walltime=1", "#PBS -l walltime=2") == {
        "N": "b",
        "l.walltime": "1",
    }


def test_a_problem_sets_nothing() -> None:
    assert in_script("#PBS -Z x -N sim") == {"N": "sim"}


@given(st.text(alphabet=" \t-\\'\"#PBSNlWvhx=,:+\n\r1é", max_size=120))
def test_no_text_breaks_the_readers(text: str) -> None:
    for option in read_directives(text).options:
        assert option.name
        resources(option.value or "")
        attributes(option.value or "")
        chunks(option.value or "")
    assert ",".join(split_list(text)) == text
    assert read_directive(text).script == ()


@given(st.lists(st.text(alphabet="-hNlx=a ", max_size=6), max_size=6))
def test_each_word_of_a_command_line_is_an_option_s_or_another_s(words: list[str]) -> None:
    line = read_command_line(words)
    letters = sum(len(word) for word in words)
    assert (
        sum(len(word) for one in line.given for word in one.arguments) + sum(map(len, line.script))
        >= letters
    )
