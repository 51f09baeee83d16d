"""Prompts of a login that several programs share through the broker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hpcdash.errors import AuthenticationFailed, LoginRequired
from hpcdash.transport.base import BrokerUse, Prompt
from hpcdash.transport.broker import BrokerTransport, inquire
from hpcdash.transport.ssh import SshTransport
from tests.support.person import Person
from tests.support.sshd import TwoFactorServer, make_key
from tests.support.waiting import deadline, until

ANSWERS = {"Password": "secret", "Code": "123456"}
Connect = Callable[[Person], BrokerTransport]


class Slow(Person):
    """Types once `typing` is set."""

    def __init__(self) -> None:
        super().__init__(ANSWERS)
        self.typing = asyncio.Event()

    async def answer(self, prompt: Prompt) -> list[str] | None:
        answers = await super().answer(prompt)
        await self.typing.wait()
        return answers


@pytest.fixture
async def server(runtime: Path) -> AsyncIterator[TwoFactorServer]:
    make_key(runtime / "host_key")
    server = TwoFactorServer("gate", runtime / "host_key")
    await server.start()
    key = (runtime / "host_key.pub").read_text()
    (runtime / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {key}")
    (runtime / ".ssh" / "config").write_text("Host *\n IdentityFile none\n IdentityAgent none\n")
    yield server
    await server.stop()


@pytest.fixture
async def connect(server: TwoFactorServer) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        def build(person: Person) -> BrokerTransport:
            login = f"alice@127.0.0.1:{server.port}"
            use = BrokerUse("hpcdash jobs", is_read_only=False, keep_seconds=600.0)
            transport = BrokerTransport([login], person, use, lambda: SshTransport(login, person))
            stack.push_async_callback(transport.close)
            return transport

        yield build
        # Before the server, which waits for its clients.
        await inquire(stop=True)


async def test_one_second_factor_lets_all_windows_in(
    connect: Connect, server: TwoFactorServer
) -> None:
    people = [Person(ANSWERS), Person(ANSWERS)]
    first, second = map(connect, people)
    await first.connect()
    assert (await second.run(("echo", "in"))).stdout == b"in\n"
    assert server.responses == [["secret"], ["123456"]]
    assert people[1].prompts == []
    assert {prompt.requester for prompt in people[0].prompts} == {
        f"hpcdash jobs (pid {os.getpid()})"
    }


async def test_a_program_without_a_terminal_raises_no_prompt(
    connect: Connect, server: TwoFactorServer
) -> None:
    window, cron = Person(ANSWERS), Person(ANSWERS, is_here=False)
    with pytest.raises(AuthenticationFailed, match="no one is present"):
        await connect(cron).connect()
    later = connect(window)
    await later.connect()
    assert (cron.prompts, len(window.prompts)) == ([], 2)


async def test_a_program_without_a_terminal_waits_for_a_login_and_reports_it(
    connect: Connect,
) -> None:
    window, cron = Slow(), Person(is_here=False)
    logging_in = asyncio.ensure_future(connect(window).connect())
    await until(lambda: window.prompts, "a prompt")
    waiting = asyncio.ensure_future(connect(cron).run(("echo", "in")))
    await until(lambda: cron.shown, "a note")
    assert "waiting for you to log in" in cron.shown[0][1]
    assert "hpcdash jobs (pid" in cron.shown[0][1]
    window.typing.set()
    await logging_in
    assert (await waiting).stdout == b"in\n"


async def test_a_prompt_of_a_window_that_closes_goes_to_another(connect: Connect) -> None:
    leaving, staying = Slow(), Person(ANSWERS)
    closing = connect(leaving)
    first = asyncio.ensure_future(closing.connect())
    await until(lambda: leaving.prompts, "a prompt")
    second = asyncio.ensure_future(connect(staying).connect())
    over = deadline()
    while not await _has_clients(2):
        assert time.monotonic() < over
    await closing.close()
    await second
    assert [prompt.fields[0].label for prompt in staying.prompts] == ["Password: ", "Code: "]
    await asyncio.gather(first, return_exceptions=True)


async def test_the_window_that_was_used_last_is_prompted(
    connect: Connect, server: TwoFactorServer
) -> None:
    people = [Person(ANSWERS), Person(ANSWERS)]
    first, second = map(connect, people)
    await first.connect()
    await second.connect()
    for connection in server.connections:
        connection.close()
    await until(lambda: first.health.state == second.health.state == "lost", "the loss")
    for transport in (first, second):
        with pytest.raises(LoginRequired):
            await transport.connect()
    await first.connect(force=True)
    assert [len(person.prompts) for person in people] == [4, 0]
    await second.connect()


async def test_a_broker_that_is_killed_is_not_started_anew_if_a_person_is_needed(
    connect: Connect, server: TwoFactorServer
) -> None:
    person = Person(ANSWERS)
    window = connect(person)
    await window.connect()
    state = await inquire()
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    await until(lambda: window.health.state == "lost", "the loss")
    for _ in range(2):
        with pytest.raises(LoginRequired):
            await window.run(("echo", "in"))
    assert len(person.prompts) == 2
    await window.connect(force=True)
    assert (await window.run(("echo", "in"))).stdout == b"in\n"
    assert len(person.prompts) == 4


async def _has_clients(number: int) -> bool:
    state = await inquire()
    return state is not None and sum(len(one.clients) for one in state.connections) == number
