"""A login through a jump host, where both ask for a password and a code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    ConnectionFailed,
    HostKeyChanged,
    HostKeyRefused,
    LoginRequired,
)
from hpcdash.transport.ssh import SshTransport
from tests.support.person import Person
from tests.support.sshd import Sshd, TwoFactorServer, free_port, make_key, until_gone

ANSWERS = {"Password": "secret", "Code": "123456"}


@asynccontextmanager
async def two_hops(folder: Path) -> AsyncIterator[tuple[TwoFactorServer, TwoFactorServer]]:
    """A jump host and a target behind it, both with two factors, and a config that leads there by
    aliases.
    """
    servers = []
    for name in ("gate", "cluster"):
        make_key(folder / f"{name}_key")
        server = TwoFactorServer(name, folder / f"{name}_key")
        await server.start()
        servers.append(server)
    gate, cluster = servers
    (folder / "config").write_text(
        f"Host gate\n HostName 127.0.0.1\n Port {gate.port}\n User alice\n"
        f"Host cluster\n HostName 127.0.0.1\n Port {cluster.port}\n User bob\n ProxyJump gate\n"
        "Host *\n IdentityFile none\n IdentityAgent none\n"
    )
    write_known(folder, gate, cluster)
    try:
        yield gate, cluster
    finally:
        await gate.stop()
        await cluster.stop()


def write_known(folder: Path, *servers: TwoFactorServer) -> None:
    lines = [f"[127.0.0.1]:{s.port} {s.host_key.with_suffix('.pub').read_text()}" for s in servers]
    (folder / "known_hosts").write_text("".join(lines))


def cluster_transport(folder: Path, person: Person) -> SshTransport:
    return SshTransport(
        "cluster", person, config_path=folder / "config", known_hosts=folder / "known_hosts"
    )


@pytest.mark.journey
async def test_both_hops_ask_and_each_prompt_names_its_hop(tmp_path: Path) -> None:
    person = Person(ANSWERS)
    async with two_hops(tmp_path) as (gate, cluster):
        transport = cluster_transport(tmp_path, person)
        done = await transport.run(("sh", "-c", "echo over; sleep 0"))
        assert (done.status, done.stdout) == (0, b"over\n")
        hops = (f"alice@127.0.0.1:{gate.port}", f"bob@127.0.0.1:{cluster.port}")
        assert transport.health.hops == hops
        asked = [
            (prompt.hop, field.label, field.secret)
            for prompt in person.prompts
            for field in prompt.fields
        ]
        assert asked == [
            (hop, label, secret)
            for hop in hops
            for label, secret in (("Password: ", True), ("Code: ", False))
        ]
        assert person.prompts[0].title == "Welcome to gate"
        assert person.prompts[0].instructions == "Two factors"
        await transport.close()
        assert transport.health.state == "idle"


async def test_a_command_over_its_limit_behind_two_hops_is_ended_there(tmp_path: Path) -> None:
    async with two_hops(tmp_path):
        transport = cluster_transport(tmp_path, Person(ANSWERS))
        with pytest.raises(CommandTimedOut):
            await transport.run(("sleep", "98765.81"), limit_seconds=0.5)
        assert await until_gone("98765.81") == []
        await transport.close()


async def test_health_says_asking_while_a_person_types(tmp_path: Path) -> None:
    states = []

    class Watching(Person):
        async def answer(self, prompt):  # type: ignore[no-untyped-def]
            states.append(transport.health.state)
            return await super().answer(prompt)

    async with two_hops(tmp_path):
        transport = cluster_transport(tmp_path, Watching(ANSWERS))
        await transport.connect()
        assert set(states) == {"asking"}
        assert transport.health.state == "connected"
        await transport.close()


@pytest.mark.parametrize("which", [0, 1])
async def test_a_changed_key_at_either_hop_is_refused_without_asking(
    tmp_path: Path, which: int
) -> None:
    person = Person(ANSWERS, accepts=True)
    async with two_hops(tmp_path) as servers:
        changed = servers[which]
        await changed.stop()
        make_key(changed.host_key)
        await changed.start()
        before = (tmp_path / "known_hosts").read_bytes()
        with pytest.raises(HostKeyChanged) as caught:
            await cluster_transport(tmp_path, person).connect()
        assert str(changed.port) in caught.value.message
        assert person.questions == []
        # Nobody types a password into a host whose key changed.
        assert all(str(changed.port) not in prompt.hop for prompt in person.prompts)
        assert changed.responses == []
        assert (tmp_path / "known_hosts").read_bytes() == before


async def test_an_unknown_target_behind_a_known_jump_is_asked_once(tmp_path: Path) -> None:
    person = Person(ANSWERS, accepts=True)
    async with two_hops(tmp_path) as (gate, cluster):
        write_known(tmp_path, gate)
        for _ in range(2):
            transport = cluster_transport(tmp_path, person)
            await transport.connect()
            await transport.close()
        assert [question.hop for question in person.questions] == [f"bob@127.0.0.1:{cluster.port}"]
        # The jump host's two factors were not asked again for it.
        assert len(gate.responses) == 4


async def test_a_declined_target_is_refused(tmp_path: Path) -> None:
    person = Person(ANSWERS, accepts=False)
    async with two_hops(tmp_path) as (gate, _cluster):
        write_known(tmp_path, gate)
        before = (tmp_path / "known_hosts").read_bytes()
        with pytest.raises(HostKeyRefused):
            await cluster_transport(tmp_path, person).connect()
        assert (tmp_path / "known_hosts").read_bytes() == before


async def test_a_person_who_gives_up_is_not_asked_again(tmp_path: Path) -> None:
    person = Person({"Password": "secret"})
    async with two_hops(tmp_path):
        transport = cluster_transport(tmp_path, person)
        for _ in range(2):
            with pytest.raises(AuthenticationFailed) as caught:
                await transport.run(("true",))
        assert "keyboard-interactive" in caught.value.message
        assert "given up" in caught.value.message
        assert len(person.prompts) == 2


async def test_a_wrong_code_is_asked_again_three_times(tmp_path: Path) -> None:
    person = Person({"Password": "secret", "Code": "000000"})
    async with two_hops(tmp_path):
        with pytest.raises(AuthenticationFailed):
            await cluster_transport(tmp_path, person).connect()
    assert [prompt.fields[0].label for prompt in person.prompts] == ["Password: ", "Code: "] * 3


async def test_a_person_may_type_longer_than_the_network_may_take(tmp_path: Path) -> None:
    class Slow(Person):
        async def answer(self, prompt):  # type: ignore[no-untyped-def]
            if "Code" in prompt.fields[0].label:
                await asyncio.sleep(1.3)
            return await super().answer(prompt)

    async with two_hops(tmp_path):
        config = tmp_path / "config"
        config.write_text(config.read_text() + " ConnectTimeout 1\n")
        transport = cluster_transport(tmp_path, Slow(ANSWERS))
        await transport.connect()
        await transport.close()


async def test_words_without_a_question_are_shown_while_the_host_waits_for_an_approval(
    tmp_path: Path,
) -> None:
    person = Person(ANSWERS)
    async with two_hops(tmp_path) as (gate, cluster):
        (tmp_path / "config").write_text((tmp_path / "config").read_text() + " ConnectTimeout 1\n")
        cluster.push_words = "Pushed a login request\nto your phone…"
        transport = cluster_transport(tmp_path, person)
        connecting = asyncio.create_task(transport.connect())
        while not person.shown:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        hop = f"bob@127.0.0.1:{cluster.port}"
        assert person.shown[0] == (hop, cluster.push_words)
        assert transport.health.state == "asking"
        assert transport.health.text == f"{hop}: Pushed a login request\n{hop}: to your phone…"
        # The network's second is over.
        await asyncio.wait({connecting}, timeout=1.3)
        cluster.approved.set()
        await connecting
        await transport.close()
        assert len(gate.responses) == 2


async def test_a_jump_host_is_not_logged_in_to_again_because_the_target_fails(
    tmp_path: Path,
) -> None:
    person = Person(ANSWERS)
    async with two_hops(tmp_path) as (gate, cluster):
        await cluster.stop()
        transport = cluster_transport(tmp_path, person)
        for _ in range(2):
            with pytest.raises(LoginRequired, match="could not reach"):
                await transport.run(("true",))
        assert len(gate.responses) == 2
        assert transport.health.retry_at is None


async def test_a_target_the_jump_host_cannot_reach_is_named(tmp_path: Path) -> None:
    async with two_hops(tmp_path) as (_gate, cluster):
        await cluster.stop()
        with pytest.raises(ConnectionFailed) as caught:
            await cluster_transport(tmp_path, Person(ANSWERS)).connect()
        assert f"bob@127.0.0.1:{cluster.port}" in caught.value.message
        assert "alice@127.0.0.1" in caught.value.message


async def test_jumps_through_aliases_that_jump_themselves(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    """outer → gate (two factors) → middle (sshd) → inner (sshd): nested and listed jumps in one
    chain.
    """
    person = Person(ANSWERS, accepts=True)
    async with two_hops(tmp_path) as (gate, _cluster):
        (tmp_path / "config").write_text(
            f"Host gate\n HostName 127.0.0.1\n Port {gate.port}\n User alice\n"
            f"Host middle inner\n HostName 127.0.0.1\n Port {sshd.port}\n User {user}\n"
            f" IdentityFile {sshd.key}\n IdentitiesOnly yes\n"
            "Host middle\n ProxyJump gate\n"
            "Host inner\n HostKeyAlias the-inner-one\n ProxyJump middle\n"
        )
        transport = SshTransport(
            "inner", person, config_path=tmp_path / "config", known_hosts=tmp_path / "known_hosts"
        )
        assert (await transport.run(("id", "-un"))).stdout == f"{user}\n".encode()
        assert len(transport.health.hops) == 3
        await transport.close()
    assert f"the-inner-one {sshd.host_key_line}" in (tmp_path / "known_hosts").read_text()


async def test_nothing_listening_behind_one_hop_is_said_of_the_right_host(tmp_path: Path) -> None:
    async with two_hops(tmp_path) as (gate, _cluster):
        await gate.stop()
        gate.port = free_port()
        with pytest.raises(ConnectionFailed) as caught:
            await cluster_transport(tmp_path, Person(ANSWERS)).connect()
    assert "alice@" in caught.value.message
    assert "refused" in caught.value.message
