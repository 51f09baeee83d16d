"""What Slurm's qsub has a shell read comes out of that shell as it was given, or is refused."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.wrappers import shell_safe
from hpcdash.errors import UsageError
from tests.support.records import for_each


def through_a_shell(words: list[str]) -> list[str]:
    """The words as they come out where a program joined them with blanks and had a shell read
    them.
    """
    script = "for word in " + " ".join(words) + "; do printf '%s\\0' \"$word\"; done"
    done = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, check=True, env={"PATH": "/nonexistent"}
    )
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@for_each(
    "words",
    [
        ["-N", "plain", "-l", "nodes=2:ppn=4:gpus=1,walltime=01:00:00,mem=2gb", "-q", "gpu"],
        ["-W", "depend=afterok:12:13", "-t", "1-4%2", "-j", "oe", "-h", "-V"],
        ["-j", "-h"],
        ["-pe", "shm", "4"],
        ["-v", "A=1,B=/some/path", "-o", "/home/a/out.txt"],
        ["--cwd"],
        [],
    ],
)
def test_ordinary_options_stay_as_they_are(words: list[str]) -> None:
    assert shell_safe(words) == words


@pytest.mark.system
@for_each(
    "value",
    ["a b", "$(id)", "`id`", "a;b", "x'y", 'x"y', "~", "*", "a&b", "é日本", "\\", "#", "a\tb"],
)
def test_a_name_or_path_comes_out_of_the_shell_as_it_was_typed(value: str) -> None:
    assert through_a_shell(shell_safe(["-N", value, "-o", f"dir/{value}"])) == [
        "-N",
        value,
        "-o",
        f"dir/{value}",
    ]
    assert through_a_shell(shell_safe([f"-N={value}"])) == [f"-N={value}"]


@for_each(
    "words",
    [
        # These are put between quotes, or taken apart first.
        ["-l", "walltime=1:00,proc=x';id;'"],
        ["-W", "group_list=x';id;'"],
        ["-t", "1';id;'"],
        ["-v", "A='x y'"],
        ["-v", 'A="x"'],
        # No backslash keeps a line end.
        ["-N", "a\nb"],
        # A command in place of a script.
        ["-b", "y"],
        ["-b=yes"],
        ["-N$(id)"],
        ["--wrap=id"],
        ["-I"],
        ["script.sh"],
    ],
)
def test_what_cannot_be_kept_from_the_shell_is_refused_by_its_option(words: list[str]) -> None:
    with pytest.raises(UsageError) as refusal:
        shell_safe(words)
    assert words[0].partition("=")[0][:2] in refusal.value.message


_OPTIONS = st.sampled_from(
    ("-N", "-o", "-l", "-v", "-W", "-q", "-j", "-t", "-h", "-pe", "-a", "-x")
)
_TEXT = st.text(st.sampled_from("ab1=:,. $`\\'\"();&|<>*?~#\n!{}[]-"), max_size=8)


@pytest.mark.system
@given(st.lists(st.one_of(_OPTIONS, _TEXT), max_size=5))
def test_whatever_is_not_refused_comes_out_as_it_went_in(words: list[str]) -> None:
    try:
        safe = shell_safe(words)
    except UsageError:
        return
    given = [word for word in words if word]
    assert [word for word in through_a_shell(safe) if word] == given
