from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.sbatch import (
    directive_lines,
    last_value,
    option_named,
    read_command_line,
    read_directives,
    split_words,
)


def values(*words: str) -> list[tuple[str, str]]:
    return [(option.name, option.value) for option in read_command_line(words).options]


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--partition=gpu"], [("partition", "gpu")]),
        (["--partition", "gpu"], [("partition", "gpu")]),
        (["--part=gpu"], [("partition", "gpu")]),
        (["--outp", "x.log"], [("output", "x.log")]),
        (["--ntasks-per-n", "8"], [("ntasks-per-node", "8")]),
        (["--tasks-per-node=8"], [("ntasks-per-node", "8")]),
        (["-N2"], [("nodes", "2")]),
        (["-N", "2"], [("nodes", "2")]),
        (["-HQp", "gpu"], [("hold", ""), ("quiet", ""), ("partition", "gpu")]),
        (["--exclusive"], [("exclusive", "")]),
        (["--exclusive=user"], [("exclusive", "user")]),
        (["--nice", "-5"], [("nice", "")]),
        (["--comment="], [("comment", "")]),
    ],
)
def test_an_option_is_read_in_every_spelling(words: list[str], read: list[tuple[str, str]]) -> None:
    assert values(*words)[: len(read)] == read


def test_what_follows_the_script_is_the_scripts_own() -> None:
    line = read_command_line(["-p", "gpu", "train.sh", "--partition=cpu", "-x"])
    assert [option.name for option in line.options] == ["partition"]
    assert line.script == ("train.sh", "--partition=cpu", "-x")


def test_a_beginning_that_several_options_share_is_none_of_them() -> None:
    assert option_named("ntasks-per") is None
    assert option_named("gpus-per-n") is not None
    problems = read_command_line(["--mem-per", "4G"]).problems
    assert [problem.words for problem in problems] == ["--mem-per is no option of sbatch, or the beginning of several"]


def test_an_option_without_its_value_is_told() -> None:
    assert [problem.words for problem in read_command_line(["--time"]).problems] == ["--time needs a value"]
    assert [problem.words for problem in read_command_line(["-t"]).problems] == ["-t (--time) needs a value"]


def test_directives_end_at_the_first_command() -> None:
    script = "#!/bin/bash\n# words\n\n#SBATCH -J one\nmodule load x\n#SBATCH -J two\n"
    assert last_value(read_directives(script).options, "job-name") == "one"


def test_a_directive_is_one_only_at_the_beginning_of_its_line_and_followed_by_a_blank() -> None:
    script = "#!/bin/sh\n #SBATCH -J no\n#SBATCHX -J no\n##SBATCH -J no\n#SBATCH\t-J yes\n"
    assert [number for number, _ in directive_lines(script)] == [5]
    assert last_value(read_directives(script).options, "job-name") == "yes"


def test_quotes_backslashes_and_comments_in_a_directive() -> None:
    assert split_words("""--job-name="a b" --comment='c # d' -o e\\ f # and that is it""") == [
        "--job-name=a b",
        "--comment=c # d",
        "-o",
        "e f",
    ]
    assert split_words("--comment=''") == ["--comment="]


def test_the_line_of_a_bad_directive_is_known() -> None:
    script = "#!/bin/sh\n#SBATCH --time=5\n#SBATCH --foo=3\n"
    assert [(problem.line, problem.words) for problem in read_directives(script).problems] == [
        (3, "--foo is no option of sbatch, or the beginning of several")
    ]


@given(st.lists(st.text(max_size=12), max_size=8))
def test_no_word_is_lost_or_read_twice(words: list[str]) -> None:
    line = read_command_line(words)
    taken = sum(len(option.words) for option in line.options)
    assert taken + len(line.script) + len(line.problems) >= len(words) - words.count("--") - sum(
        len(word) for word in words if word.startswith("-")
    )
    assert list(line.script) == words[len(words) - len(line.script) :]


@given(st.text())
def test_any_script_can_be_read(script: str) -> None:
    read_directives("#!/bin/sh\n#SBATCH " + script)
