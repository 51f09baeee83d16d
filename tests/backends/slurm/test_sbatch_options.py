from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.options import last_value
from hpcdash.backends.slurm.options import (
    directive_lines,
    read_command_line,
    read_directives,
    split_arguments,
)
from tests.support.records import for_each


@for_each(
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
        (["-HQp", "gpu"], [("hold", None), ("quiet", None), ("partition", "gpu")]),
        (["--exclusive"], [("exclusive", None)]),
        (["--exclusive=user"], [("exclusive", "user")]),
        (["--comment="], [("comment", "")]),
        # A value that looks like an option is a value.
        (["--comment", "-o"], [("comment", "-o")]),
    ],
)
def test_an_option_is_read_in_every_spelling(
    words: list[str], read: list[tuple[str, str | None]]
) -> None:
    assert [(option.name, option.value) for option in read_command_line(words).given] == read


def test_what_follows_the_script_is_the_scripts_own() -> None:
    line = read_command_line(["-p", "gpu", "train.sh", "--partition=cpu", "-x"])
    assert [option.name for option in line.options] == ["partition"]
    assert line.script == ("train.sh", "--partition=cpu", "-x")


@for_each(
    ("words", "written", "problem"),
    [
        (["--mem-per", "4G"], "--mem-per", "ambiguous: --mem-per-cpu, --mem-per-gpu"),
        (["--foo=3"], "--foo", "unknown"),
        (["-@"], "-@", "unknown"),
        (["--time"], "--time", "missing its value"),
        (["-t"], "-t", "missing its value"),
        (["--hold=yes"], "--hold", "given an invalid value"),
    ],
)
def test_what_sbatch_would_not_take_is_told(words: list[str], written: str, problem: str) -> None:
    (one,) = read_command_line(words).problems
    assert (one.written, one.problem) == (written, problem)


def test_directives_end_at_the_first_command() -> None:
    script = "#!/bin/bash\n# words\n\n#SBATCH -J one\nmodule load x\n#SBATCH -J two\n"
    assert last_value(read_directives(script).options, "job-name") == "one"


def test_an_indented_directive_is_a_comment() -> None:
    script = "#!/bin/sh\n #SBATCH -J no\n##SBATCH -J no\n#SBATCH-J yes\n"
    assert [number for number, _ in directive_lines(script)] == [4]
    assert last_value(read_directives(script).options, "job-name") == "yes"


@for_each(
    ("text", "words"),
    [
        (" -J a#b", ["-J", "a"]),
        ("-J x", ["-J", "x"]),
        (" --comment \"a\"b'c'", ["--comment", "abc"]),
        (r' --comment "q\"uo"', ["--comment", 'q"uo']),
        (' -o ""', ["-o"]),
        (' --job-name="a b" # and that is it', ["--job-name=a b"]),
    ],
)
def test_words_are_split_as_sbatch_splits_them(text: str, words: list[str]) -> None:
    assert split_arguments(text) == words


def test_the_line_of_a_bad_directive_is_known() -> None:
    (one,) = read_directives("#!/bin/sh\n#SBATCH --time=5\n#SBATCH --foo=3\n").problems
    assert (one.line, one.written, one.problem) == (3, "--foo", "unknown")


@given(st.lists(st.text(max_size=12), max_size=8))
def test_the_scripts_words_are_the_end_of_the_line(words: list[str]) -> None:
    line = read_command_line(words)
    assert list(line.script) == words[len(words) - len(line.script) :]


@given(st.text())
def test_any_script_can_be_read(script: str) -> None:
    read_directives("#!/bin/sh\n#SBATCH " + script)
