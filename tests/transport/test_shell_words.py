"""The string for a login shell: what it is made of, and what the shells make of it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.errors import UsageError
from hpcdash.transport.shell import STDIN_COMPLETE, MarkedOutput, remote_command
from tests.support.sshd import commands_with

word = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=20)


def run_in(
    shell: str, text: str, sent: bytes = b"", inner: str = "/bin/sh"
) -> tuple[int, bytes, bytes]:
    """Run as sshd does, with a stdin that stays open until the command has ended."""
    with subprocess.Popen(
        [shell, "-c", text.replace("/bin/sh", inner, 1)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(sent)
        process.stdin.flush()
        return process.wait(), process.stdout.read(), process.stderr.read()


@given(st.lists(word, min_size=1, max_size=5))
def test_nothing_a_login_shell_could_take_up_is_left(words: list[str]) -> None:
    text = remote_command(("squeue", *words), limit_seconds=30).text
    assert text.startswith("/bin/sh -c '")
    assert text.endswith("'")
    inside = text.removeprefix("/bin/sh -c '").removesuffix("'")
    assert not set(inside) & set("'!\n")
    assert "\\\\" not in inside
    assert inside.isascii()
    assert inside.isprintable()


@given(st.lists(word, min_size=1, max_size=5))
def test_words_come_back_as_they_went(words: list[str]) -> None:
    command = remote_command(("printf", "%s\\0", *words), limit_seconds=30)
    status, stdout, _ = run_in("sh", command.text)
    assert status == 0
    assert command.stdout().feed(stdout) == b"".join(w.encode() + b"\0" for w in words)


@pytest.mark.parametrize("inner", ["dash", "bash", "zsh", "busybox"])
def test_whatever_bin_sh_is_it_runs_the_command(inner: str) -> None:
    program = shutil.which(inner)
    if program is None:
        pytest.skip(f"{inner} is not installed")
    shell = f"{program} sh" if inner == "busybox" else program
    command = remote_command(("sh", "-c", "cat; exit 7"), limit_seconds=30, stdin_bytes=5)
    status, stdout, stderr = run_in("sh", command.text, b"a\nb\nc" + STDIN_COMPLETE, shell)
    assert (status, command.stdout().feed(stdout)) == (7, b"a\nb\nc")
    assert command.stderr().feed(stderr) == b""
    command = remote_command(("sh", "-c", "kill -TERM $$"), limit_seconds=30)
    assert run_in("sh", command.text, inner=shell)[0] == 143


def test_nobody_is_left_to_kill_a_command_that_ended() -> None:
    """A second later its number may be another process's."""
    command = remote_command(("sh", "-c", "echo up; exec sleep 60"), limit_seconds=30)
    with subprocess.Popen(
        ["sh", "-c", command.text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert b"up\n" in process.stdout
        process.stdin.close()
        assert process.wait() == 143
    assert commands_with(command.marker.decode()) == []


def test_a_command_stays_readable_for_whoever_looks_at_the_login_node() -> None:
    assert (
        "set -- squeue --me --states=all"
        in remote_command(("squeue", "--me", "--states=all"), limit_seconds=5).text
    )


def test_the_environment_is_there_and_hostile_values_stay_values() -> None:
    command = remote_command(
        ("printenv", "PATH"), limit_seconds=5, environment={"PATH": "/bin:/usr/bin:/a b'$(x)"}
    )
    assert command.stdout().feed(run_in("sh", command.text)[1]) == b"/bin:/usr/bin:/a b'$(x)\n"


@given(
    st.binary(max_size=40),
    st.binary(max_size=60),
    st.binary(max_size=40),
    st.lists(st.integers(1, 30)),
)
def test_a_commands_own_output_is_cut_out_however_it_comes(
    before: bytes, own: bytes, after: bytes, sizes: list[int]
) -> None:
    whole = before + b"mark\n" + own + b"\x1emark end\n" + after
    marked, output = MarkedOutput(b"mark\n", b"mark"), b""
    while whole:
        size = sizes.pop() if sizes else len(whole)
        output += marked.feed(whole[:size])
        whole = whole[size:]
    assert output + marked.rest == own
    assert (marked.noise, marked.seen, marked.end) == (before, True, b"end")


def test_what_only_looks_like_the_end_of_the_output_is_output() -> None:
    marked = MarkedOutput(b"mark\n", b"mark")
    assert marked.feed(b"mark\nrow\x1e") == b"row"
    assert marked.feed(b"other\x1ema") == b"\x1eother"
    assert (marked.rest, marked.end) == (b"\x1ema", None)


@pytest.mark.parametrize("joined", [False, True])
def test_the_lines_around_the_output_are_none_of_it(joined: bool) -> None:
    command = remote_command(("sh", "-c", "printf out; printf err >&2"), limit_seconds=30)
    _, out, err = run_in("sh", f"exec 2>&1; {command.text}" if joined else command.text)
    assert command.stdout().feed(out) == (b"outerr" if joined else b"out")
    assert command.stderr().feed(err) == (b"" if joined else b"err")


def test_what_no_command_line_can_hold_is_refused() -> None:
    for argv in ((), ("",), ("echo", "a\0b"), ("echo", "x" * 200_000)):
        with pytest.raises(UsageError):
            remote_command(argv, limit_seconds=5)
