"""What LocalTransport does with real programs."""

from __future__ import annotations

import asyncio
import os
import signal
import tracemalloc
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from hpcdash.config.watch_settings import CommandSettings
from hpcdash.errors import CommandTimedOut, UsageError
from hpcdash.services.watch.message import trial_message
from hpcdash.services.watch.notifiers.command import CommandNotifier
from hpcdash.transport.local import LocalTransport
from tests.support.records import for_each
from tests.support.sshd import block_until_there, until_gone, until_there

Starter = Callable[[LocalTransport, tuple[str, ...]], Coroutine[None, None, None]]


async def test_status_and_both_outputs_are_given() -> None:
    transport = LocalTransport()
    done = await transport.run(("sh", "-c", "echo out; echo words >&2; exit 4"))
    assert (done.status, done.stdout, done.stderr, done.truncated) == (
        4,
        b"out\n",
        b"words\n",
        False,
    )
    assert transport.health.state == "connected"


async def test_a_program_that_is_not_there_ends_with_127() -> None:
    done = await LocalTransport().run(("hpcdash-no-such-program",))
    assert done.status == 127
    assert b"hpcdash-no-such-program" in done.stderr


async def test_a_program_ended_by_a_signal_has_the_status_a_shell_gives() -> None:
    assert (await LocalTransport().run(("sh", "-c", "kill -TERM $$"))).status == 143


async def test_stdin_arrives_and_its_absence_is_an_empty_one() -> None:
    payload = bytes(range(256)) * 5000
    assert (await LocalTransport().run(("cat",), stdin=payload)).stdout == payload
    assert (await LocalTransport().run(("cat",))).stdout == b""


async def test_a_stdin_that_nobody_reads_is_dropped_with_the_command() -> None:
    payload = bytes(1_000_000)
    assert (await LocalTransport().run(("true",), stdin=payload)).status == 0
    with pytest.raises(CommandTimedOut):
        await LocalTransport().run(("sleep", "87654.6"), stdin=payload, limit_seconds=0.3)
    assert await until_gone("87654.6") == []


async def test_a_stream_whose_pipes_another_session_holds_ends_with_its_context() -> None:
    argv = ("sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & sleep 87654.7")
    async with LocalTransport().stream(argv) as stream:
        holder = int(await anext(aiter(stream)))
    os.kill(holder, signal.SIGKILL)
    assert await until_gone("87654.7") == []


async def test_stderr_is_told_while_the_command_runs(tmp_path: Path) -> None:
    pieces: list[bytes] = []
    heard = asyncio.Event()
    go_on = tmp_path / "go-on"
    wait = f"echo out; echo waiting >&2; while [ ! -e {go_on} ]; do sleep 0.02; done; echo done >&2"

    def said(piece: bytes) -> None:
        pieces.append(piece)
        heard.set()

    running = asyncio.ensure_future(LocalTransport().run(("sh", "-c", wait), on_output=said))
    await heard.wait()
    assert b"".join(pieces) == b"waiting\n"
    go_on.touch()
    assert (await running).stderr == b"".join(pieces) == b"waiting\ndone\n"


async def test_stdout_is_passed_on_while_the_command_runs_and_not_kept(tmp_path: Path) -> None:
    pieces: list[bytes] = []
    heard = asyncio.Event()
    go_on = tmp_path / "go-on"
    wait = f"echo out; while [ ! -e {go_on} ]; do sleep 0.02; done; head -c 99999 /dev/zero; exit 3"

    def said(piece: bytes) -> None:
        pieces.append(piece)
        heard.set()

    running = asyncio.ensure_future(
        LocalTransport().run(("sh", "-c", wait), on_stdout=said, cap_bytes=10)
    )
    await heard.wait()
    assert b"".join(pieces) == b"out\n"
    go_on.touch()
    done = await running
    assert (done.status, done.stdout, done.truncated) == (3, b"", False)
    assert b"".join(pieces) == b"out\n" + bytes(99999)


async def test_a_group_over_its_limit_is_ended_even_if_it_ignores_term() -> None:
    with pytest.raises(CommandTimedOut) as caught:
        await LocalTransport().run(
            ("sh", "-c", "trap '' TERM; echo slow >&2; sleep 87654.1; :"), limit_seconds=0.3
        )
    assert caught.value.output == "slow"
    assert await until_gone("87654.1") == []


async def test_an_answer_takes_the_memory_of_its_own_size() -> None:
    size = 50_000_000
    tracemalloc.start()
    try:
        done = await LocalTransport().run(("head", "-c", str(size), "/dev/zero"))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(done.stdout) == size
    assert peak_bytes < 1.5 * size


async def test_output_over_the_cap_ends_the_group() -> None:
    done = await LocalTransport().run(("sh", "-c", "yes; : 87654.2"), cap_bytes=70_000)
    assert (done.truncated, len(done.stdout)) == (True, 70_000)
    assert await until_gone("87654.2") == []


async def test_cancelling_ends_the_group() -> None:
    running = asyncio.create_task(LocalTransport().run(("sh", "-c", "sleep 87654.3; :")))
    await until_there("87654.3")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await until_gone("87654.3") == []


async def _run(transport: LocalTransport, argv: tuple[str, ...]) -> None:
    await transport.run(argv, stdin=b"some")


async def _stream(transport: LocalTransport, argv: tuple[str, ...]) -> None:
    async with transport.stream(argv) as stream:
        async for _ in stream:
            pass


async def _notify(transport: LocalTransport, argv: tuple[str, ...]) -> None:
    await CommandNotifier(CommandSettings(argv)).send(trial_message("juno"))


@for_each("start", [_run, _stream, _notify])
@for_each("steps", range(12))
def test_a_command_cancelled_as_it_starts_leaves_nothing_and_is_not_waited_for(
    start: Starter, steps: int
) -> None:
    """At each step of the loop, once the shell has a child of its own, as on a busy machine."""
    word = f"8765{steps + 10}"
    argv = ("sh", "-c", f"sleep {word}; :")

    async def cancel() -> None:
        starting = asyncio.create_task(start(LocalTransport(), argv))
        for _ in range(steps):
            await asyncio.sleep(0)
        if steps:
            block_until_there(f"sleep {word}")
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    asyncio.run(cancel())
    assert asyncio.run(until_gone(word)) == []


@for_each("start", [_run, _stream, _notify])
@for_each("steps", range(1, 12))
def test_a_command_that_starts_as_the_program_ends_leaves_nothing(
    start: Starter, steps: int
) -> None:
    """The end of a loop cancels every task, those of asyncio too."""
    word = f"8766{steps + 10}"
    argv = ("sh", "-c", f"sleep {word}; :")

    async def leave() -> None:
        starting = asyncio.create_task(start(LocalTransport(), argv))
        for _ in range(steps):
            await asyncio.sleep(0)
        block_until_there(f"sleep {word}")
        assert not starting.done()

    asyncio.run(leave())
    assert asyncio.run(until_gone(word)) == []


async def test_what_is_left_in_the_background_ends_with_the_command() -> None:
    done = await LocalTransport().run(("sh", "-c", "sleep 87654.4 & echo done"))
    assert done.stdout == b"done\n"
    assert await until_gone("87654.4") == []


async def test_a_hundred_megabytes_come_whole() -> None:
    done = await LocalTransport().run(("head", "-c", "100000000", "/dev/zero"))
    assert len(done.stdout) == 100_000_000


async def test_a_stream_comes_chunk_by_chunk_and_ends_with_its_context() -> None:
    async with LocalTransport().stream(("sh", "-c", "echo first; sleep 87654.5")) as stream:
        async for chunk in stream:
            assert chunk == b"first\n"
            break
    assert await until_gone("87654.5") == []


async def test_a_stream_of_a_missing_program_is_empty() -> None:
    async with LocalTransport().stream(("hpcdash-no-such-program",)) as stream:
        assert [chunk async for chunk in stream] == []


async def test_the_login_environment_is_ours_already() -> None:
    assert not await LocalTransport().adopt_login_environment()


@pytest.mark.parametrize("argv", [(), ("",), ("echo", "a\0b")])
async def test_what_cannot_be_run_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        await LocalTransport().run(argv)


def test_a_loop_that_ends_after_a_command_was_given_up_on_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def give_up() -> None:
        running = asyncio.create_task(LocalTransport().run(("sleep", "30")))
        await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    for _ in range(10):
        asyncio.run(give_up())
    assert caplog.text == ""
