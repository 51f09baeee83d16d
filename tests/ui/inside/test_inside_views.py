"""Commands, stacks and live use of a running job in the dashboard, on a cluster whose nodes answer
as a test says.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.config.read import settings_from_text
from hpcdash.config.settings import ClusterSettings
from hpcdash.services.forward.relay import relay_command
from hpcdash.transport.local import LocalTransport
from hpcdash.ui.actions import ACTION_NAMES, configured, key_problems
from hpcdash.ui.app import HpcdashApp
from tests.support.scripted_transport import NATIVE, ONE, Command, ScriptedTransport
from tests.support.slurm_text import queue_text
from tests.ui.stage import (
    answering,
    answering_transport,
    notices,
    press,
    screen_text,
    settled,
    shown_rows,
    type_text,
    until,
)

SIZE = (140, 40)
RUNNING = {"jobarrayid": "88", "username": "maya", "numnodes": "2", "nodelist": "n[1-2]"}
WAITING = {
    "jobarrayid": "89",
    "arrayjobid": "89",
    "username": "maya",
    "state": "PENDING",
    "nodelist": "",
}


def frames(token: str, node: str, text: str, status: int = 0) -> bytes:
    coded = base64.encodebytes(text.encode()).decode().splitlines()
    lines = [*(f"{token} {node} - .{line}" for line in coded), f"{token} {node} - ={status}"]
    return "".join(f"{line}\n" for line in lines).encode()


def token_in(words: tuple[str, ...]) -> str:
    return next(word for word in words if word.startswith("hpcdash-"))


def cluster(text: str = "up\n", second: str = "up\n", status: int = 0) -> ScriptedTransport:
    """Job 88 runs on n1 and n2, which answer so; job 89 waits."""
    jobs = queue_text(RUNNING, WAITING, token=RECORDED_TOKEN)
    transport = answering_transport(jobs, jobs)

    def answered(command: Command) -> bytes:
        token = token_in(command.words)
        return frames(token, "n1", text) + frames(token, "n2", second, status)

    transport.answers["sh*hpcdash-*"] = answered
    return transport


def app_of(transport: ScriptedTransport, text: str = "", *, read_only: bool = False) -> HpcdashApp:
    settings = settings_from_text(
        text, Path("config.toml"), action_names=ACTION_NAMES, check=key_problems
    )
    return HpcdashApp(
        [answering(transport)], actions=configured(settings), settings=settings, read_only=read_only
    )


async def test_a_typed_command_runs_on_the_nodes_and_can_be_run_again_and_recalled() -> None:
    transport = cluster(second="d\x1b[2Jown\n", status=3)
    app = app_of(transport)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        shown_rows(app).move_to("88")
        await press(pilot, "X")
        await type_text(pilot, "--timeout 5s sh -c 'id; x'")
        await press(pilot, "enter")
        await until(pilot, lambda: "2 nodes, 1 failed" in screen_text(app), "answered")
        assert "n2 · exit 3" in screen_text(app)
        assert transport.ran("sh*hpcdash-*")[0][-3:] == ("sh", "-c", "id; x")
        await press(pilot, "r")
        await until(pilot, lambda: transport.count("sh*hpcdash-*") == 2, "run again")
        await press(pilot, "escape", "X")
        assert "--timeout 5s sh -c 'id; x'" in screen_text(app)
        await press(pilot, "escape")
    assert app.choices.typed["X"] == ("--timeout 5s sh -c 'id; x'",)


async def test_commands_of_the_site_are_offered_and_run_as_they_are() -> None:
    transport = cluster()
    app = app_of(
        transport,
        '[[exec.commands]]\nname = "who"\ncommand = ["pgrep", "-u", "$USER"]\neach = "gpu"\n',
    )
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        shown_rows(app).move_to("88")
        await press(pilot, "X", "down", "enter")
        await until(pilot, lambda: "n[1-2] (2)" in screen_text(app), "answered")
        assert transport.ran("sh*hpcdash-*")[0][-3:] == ("pgrep", "-u", "$USER")
        assert "gpu" in transport.ran("sh*hpcdash-*")[0]


async def test_stacks_show_first_which_ranks_stand_where() -> None:
    dumped = 'process 9{0}, rank {0}: python\nThread 8 (active): "MainThread"\n    {1} (a.py:1)\n'
    app = app_of(cluster(dumped.format(0, "reduce"), dumped.format(1, "read")))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        shown_rows(app).move_to("88")
        await press(pilot, "i")
        await until(
            pilot, lambda: "1 of 2 in reduce (a.py:1): rank 0" in screen_text(app), "stacks"
        )


def test_stacks_look_as_they_did(snap_compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdash.ui.inside.view.time", SimpleNamespace(monotonic=lambda: 0.0))
    frames_of_a_loader = (
        "    accept (socket.py:293)\n    get_batch (data.py:41)\n    train (train.py:88)\n"
    )
    frames_of_the_others = (
        "    all_reduce (torch/distributed.py:2077)\n    step (optim.py:120)\n "
        "   train (train.py:91)\n"
    )
    dumped = 'process 9{0}, rank {0}: python train.py\nThread 8 (active): "MainThread"\n{1}'
    app = app_of(
        cluster(dumped.format(0, frames_of_the_others), dumped.format(1, frames_of_a_loader))
    )

    async def dump(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        shown_rows(app).move_to("88")
        await press(pilot, "i")
        await until(pilot, lambda: "1 of 2 in" in screen_text(app), "stacks")
        await settled(pilot)

    assert snap_compare(app, terminal_size=(120, 34), run_before=dump)


async def test_leftovers_are_ended_once_that_is_agreed() -> None:
    transport = cluster(
        "left by job 5, which has ended: 41/900: sleep\x1b[2J\n3 other processes\n", "nothing\n"
    )
    app = app_of(transport)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        shown_rows(app).move_to("88")
        for answer, count in (("enter", 1), ("y", 2)):
            await press(pilot, "X")
            await type_text(pilot, "leftovers")
            await press(pilot, "enter")
            await until(
                pilot,
                lambda: "Kill 1 leftover of your finished jobs?" in screen_text(app),
                "the question",
            )
            assert "n1 41, job 5: sleep" in screen_text(app)
            await press(pilot, answer)
            await until(pilot, lambda: "2 nodes, took" in screen_text(app), "answered")
            assert transport.count("sh*leftovers end*") == count - 1
            await press(pilot, "escape")
    assert transport.ran("sh*leftovers end*")[0][-4:] == ("end", "88 89", "n1", "41/900")


async def test_only_running_jobs_have_an_inside_and_read_only_runs_nothing_in_them() -> None:
    transport = cluster()
    app = app_of(transport, read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        shown_rows(app).move_to("89")
        await press(pilot, "i", "U")
        assert ["is not running" in words for words in notices(app)] == [True, True]
        shown_rows(app).move_to("88")
        await press(pilot, "X")
        assert app.main.view_name == "jobs"
        assert app.screen is app.main
    assert transport.count("sh*hpcdash-*") == 0


async def test_live_use_is_sampled_while_it_is_shown_and_no_longer() -> None:
    transport = cluster()
    begun, ended = [], []

    @asynccontextmanager
    async def stream(argv: tuple[str, ...]) -> AsyncIterator[AsyncIterator[bytes]]:
        token = token_in(argv)
        begun.append(token)

        async def chunks() -> AsyncIterator[bytes]:
            for up in (10, 20):
                for node in ("n1", "n2"):
                    yield frames(
                        token,
                        node,
                        f"up {up}\ncpus 8\nticks 100\nprocess 7 {90 * up} 0 9 0 \x1b[2Jpython\n",
                    )
            await asyncio.Event().wait()

        try:
            yield chunks()
        finally:
            ended.append(token)

    transport.stream = stream  # type: ignore[assignment, method-assign]
    app = app_of(transport)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        shown_rows(app).move_to("88")
        await pilot.press("U")
        await until(pilot, lambda: "0.9 of 8 cores" in screen_text(app), "sampled")
        assert "2 nodes, sampled every 10 s" in screen_text(app)
        await pilot.press("J")
        await until(pilot, lambda: ended == begun[:1], "ended while another view is shown")
        await pilot.press("escape")
        await until(pilot, lambda: len(begun) == 2, "sampled again")
        await pilot.press("escape")
        await until(pilot, lambda: ended == begun, "ended")


@pytest.mark.system
async def test_a_port_is_forwarded_shown_on_the_job_s_page_and_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relay runs on this machine in place of the node."""
    transport = cluster()
    one = queue_text(RUNNING, token=RECORDED_TOKEN)
    transport.answers |= {ONE: one, NATIVE: "JobId=88 JobState=RUNNING\n"}
    relay_words = len(relay_command("", 0))
    monkeypatch.setattr(
        transport, "open_pipe", lambda argv: LocalTransport().open_pipe(argv[-relay_words:])
    )
    monkeypatch.setattr("hpcdash.services.forward.forward.other_users", no_users)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    session = replace(answering(transport), settings=ClusterSettings("big", "big", "ssh"))
    app = HpcdashApp([session])

    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        shown_rows(app).move_to("88")
        await press(pilot, "V")
        assert "Forward a port of job 88" in screen_text(app)
        await type_text(pilot, "no")
        await press(pilot, "enter")
        assert "no is not a port" in screen_text(app)
        await press(pilot, "ctrl+u")
        await type_text(pilot, str(port))
        await pilot.press("enter")
        await until(pilot, lambda: f"port {port} of job 88 on n1" in screen_text(app), "address")
        address = next(word for word in screen_text(app).split() if word.startswith("http://"))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address[17:-1]))
        assert await reader.read() == b"hello"
        writer.close()
        await pilot.press("escape", "enter")
        line = f"port {port} → {address[7:-1]} (open)"
        await until(pilot, lambda: line in screen_text(app), "the page's line")
        await pilot.press("V")
        await until(pilot, lambda: f"stop {line}" in screen_text(app), "the dialog")
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: line not in screen_text(app), "its end")
        server.close()


async def no_users() -> tuple[str, ...]:
    return ()
