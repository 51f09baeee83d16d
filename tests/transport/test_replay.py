"""A recorded case answers what was asked when it was made, and names what it does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.backends.tokens import RECORDED_TOKEN, fresh_token
from hpcdash.errors import CommandTimedOut, ConfigError, NotRecorded
from hpcdash.transport.replay import ReplayTransport

HEAD = """backend = "slurm"
about = "two jobs"
user = "alice"
clock = 2025-03-04T09:30:00Z
"""


def write_case(directory: Path, commands: str, **files: bytes) -> Path:
    directory.joinpath("case.toml").write_text(HEAD + commands, "utf-8")
    for name, raw in files.items():
        directory.joinpath(name).write_bytes(raw)
    return directory


async def test_a_command_is_answered_with_what_was_recorded(tmp_path: Path) -> None:
    case = write_case(
        tmp_path,
        '[[command]]\nargv = ["squeue", "-h"]\nexit = 1\nstdout = "out"\nstderr = "err"\nseconds = '
        "9.5\n",
        out=b"\xff\x00\n",
        err=b"no",
    )
    answer = await ReplayTransport(case).run(("squeue", "-h"))
    assert (answer.status, answer.stdout, answer.stderr, answer.seconds) == (
        1,
        b"\xff\x00\n",
        b"no",
        9.5,
    )


async def test_the_environment_before_a_program_takes_no_part(tmp_path: Path) -> None:
    case = write_case(tmp_path, '[[command]]\nargv = ["squeue", "-h"]\n')
    argv = ("env", "-u", "SQUEUE_FORMAT", "-u", "SQUEUE_SORT", "LC_ALL=C", "squeue", "-h")
    answer = await ReplayTransport(case).run(argv)
    assert answer.argv == argv


async def test_the_token_of_the_poll_stands_where_the_recorded_one_stood(tmp_path: Path) -> None:
    case = write_case(
        tmp_path,
        '[[command]]\nargv = ["squeue", "-O", "name:\\u001eTTTTTTTTTT"]\nstdout = "out"\n',
        out=f"train{RECORDED_TOKEN}\n".encode(),
    )
    transport = ReplayTransport(case)
    for _ in range(2):
        token = fresh_token()
        answer = await transport.run(("squeue", "-O", f"name:{token}"))
        assert answer.stdout == f"train{token}\n".encode()


async def test_several_answers_come_in_their_order_and_the_last_for_good(tmp_path: Path) -> None:
    frames = "".join(
        f'[[command]]\nargv = ["squeue"]\nstdout = "{name}"\n' for name in ("one", "two")
    )
    transport = ReplayTransport(write_case(tmp_path, frames, one=b"1", two=b"2"))
    assert [(await transport.run(("squeue",))).stdout for _ in range(4)] == [b"1", b"2", b"2", b"2"]


async def test_what_is_not_recorded_is_refused_by_name_with_the_nearest(tmp_path: Path) -> None:
    case = write_case(
        tmp_path,
        '[[command]]\nargv = ["sinfo", "-h"]\n[[command]]\nargv = ["squeue", "-h", "-u", '
        '"alice"]\n',
    )
    with pytest.raises(NotRecorded) as refused:
        await ReplayTransport(case).run(("env", "LC_ALL=C", "squeue", "-h", "-u", "bo\x1bb"))
    assert "squeue -h -u 'bo\\x1bb'" in refused.value.message
    assert "squeue -h -u alice" in refused.value.next_step


async def test_a_word_may_stand_in_a_file(tmp_path: Path) -> None:
    case = write_case(
        tmp_path,
        '[[command]]\nargv = ["sh", "-c", { file = "script" }]\n',
        script=b"\necho 'a'\necho \"b\"\n",
    )
    assert (await ReplayTransport(case).run(("sh", "-c", "\necho 'a'\necho \"b\"\n"))).status == 0


async def test_time_stands_still(tmp_path: Path) -> None:
    transport = ReplayTransport(write_case(tmp_path, ""))
    assert (transport.clock, transport.user, transport.backend) == (1741080600.0, "alice", "slurm")


async def test_a_command_slower_than_its_limit_is_given_up_on(tmp_path: Path) -> None:
    case = write_case(tmp_path, '[[command]]\nargv = ["squeue"]\nseconds = 59\n')
    with pytest.raises(CommandTimedOut):
        await ReplayTransport(case).run(("squeue",), limit_seconds=30)


async def test_output_over_the_cap_is_cut_and_says_so(tmp_path: Path) -> None:
    case = write_case(tmp_path, '[[command]]\nargv = ["squeue"]\nstdout = "out"\n', out=b"x" * 100)
    answer = await ReplayTransport(case).run(("squeue",), cap_bytes=10)
    assert (answer.stdout, answer.truncated) == (b"x" * 10, True)


async def test_a_stream_gives_the_recorded_output_and_ends(tmp_path: Path) -> None:
    case = write_case(
        tmp_path, '[[command]]\nargv = ["tail"]\nstdout = "out"\n', out=b"x" * 100_000
    )
    async with ReplayTransport(case).stream(("tail",)) as chunks:
        got = [chunk async for chunk in chunks]
    assert len(got) > 1
    assert b"".join(got) == b"x" * 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.replace('"slurm"', "1"), "backend"),
        (HEAD.replace("clock = 2025-03-04T09:30:00Z", 'clock = "now"'), "clock"),
        (HEAD + '[[command]]\nargv = "squeue"\n', "command 1: argv"),
        (HEAD + '[[command]]\nargv = ["squeue"]\nstdout = "gone"\n', "gone"),
        (HEAD + '[[command]]\nargv = ["squeue"]\nstdin = "x"\n', "stdin"),
        (HEAD + '[[command]]\nargv = ["squeue"]\nexit = "x"\n', "command 1"),
        (HEAD + "[[command]", "case.toml"),
    ],
)
def test_a_case_that_is_none_says_where_it_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    tmp_path.joinpath("case.toml").write_text(text, "utf-8")
    with pytest.raises(ConfigError) as wrong:
        ReplayTransport(tmp_path)
    assert words in wrong.value.message
    assert str(tmp_path / "case.toml") in wrong.value.message


def test_a_folder_without_a_case_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"case\.toml"):
        ReplayTransport(tmp_path / "nothing")
