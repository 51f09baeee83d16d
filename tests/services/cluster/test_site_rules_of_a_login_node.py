"""Rules of a site as its login node has them: read once a day, root's alone, and held to."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.config.site_rules import SiteRules
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.clock import ClusterClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.site_rules import FILE, load_site_rules, rules_query
from hpcdash.services.cluster.snapshots import SnapshotCache
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.submit.queues import fetch_offers
from hpcdash.transport.local import LocalTransport
from tests.support.records import for_each
from tests.support.scripted_transport import ScriptedTransport

TEXT = "[poll]\nmine_seconds = 30\n"
SCRIPT = "sh -c *hpcdash site*"


def rules_of(folder: Path) -> tuple[str, str]:
    """The text of a folder's file and why it is ignored, as the script tells."""
    query = rules_query(str(folder))
    return query.parse(asyncio.run(LocalTransport().run(query.argv)))


def open_to_the_group(folder: Path) -> None:
    (folder / "site.toml").chmod(0o664)


def open_to_all(folder: Path) -> None:
    (folder / "site.toml").chmod(0o646)


def in_an_open_folder(folder: Path) -> None:
    folder.chmod(0o777)


def of_another(folder: Path) -> None:
    os.chown(folder / "site.toml", 65534, 0)


def in_a_folder_of_another(folder: Path) -> None:
    os.chown(folder, 65534, 0)


def a_link(folder: Path) -> None:
    (folder / "site.toml").rename(folder.parent / "elsewhere")
    (folder / "site.toml").symlink_to(folder.parent / "elsewhere")


def a_dangling_link(folder: Path) -> None:
    (folder / "site.toml").unlink()
    (folder / "site.toml").symlink_to(folder / "nowhere")


def in_a_linked_folder(folder: Path) -> None:
    folder.rename(folder.parent / "real")
    folder.symlink_to(folder.parent / "real")


def a_pipe(folder: Path) -> None:
    (folder / "site.toml").unlink()
    os.mkfifo(folder / "site.toml", 0o644)


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose file it must be")
def test_a_file_is_read_only_if_nobody_but_root_can_write_it(tmp_path: Path) -> None:
    spoilers: list[Callable[[Path], None]] = [
        open_to_the_group,
        open_to_all,
        in_an_open_folder,
        of_another,
        in_a_folder_of_another,
        a_link,
        a_dangling_link,
        in_a_linked_folder,
        a_pipe,
    ]
    for spoil in (None, *spoilers):
        folder = tmp_path / (spoil.__name__ if spoil else "plain") / "hpcdash"
        folder.mkdir(parents=True)
        file = folder / "site.toml"
        file.write_text(TEXT)
        folder.chmod(0o755)
        file.chmod(0o644)
        if spoil is None:
            assert rules_of(folder) == (TEXT, "")
            continue
        spoil(folder)
        text, problem = rules_of(folder)
        assert text == "", spoil
        assert "must be root's" in problem, spoil
    assert rules_of(tmp_path) == ("", "")
    large = tmp_path / "plain" / "hpcdash"
    (large / "site.toml").write_text("#" * 65_537)
    assert rules_of(large) == ("", "ignored: /etc/hpcdash/site.toml is larger than 64 KiB")


def store_of(tmp_path: Path, transport: ScriptedTransport) -> ClusterStore:
    cache = SnapshotCache(tmp_path, "juno")
    return ClusterStore(
        "juno",
        transport,
        (BACKEND,),
        clock=ClusterClock(),
        budget=CommandBudget(600),
        cache=cache,
        site=SiteRules(),
    )


async def test_the_file_is_read_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = ScriptedTransport()
    transport.answers[SCRIPT] = f"welcome to juno\nhpcdash site rules\n{TEXT}"
    for _ in range(2):
        store = store_of(tmp_path, transport)
        await store.open()
        await store.fetch(Kind.MINE)
        assert store.site.poll.mine_seconds == 30.0
    assert transport.count(SCRIPT) == 1
    later = time.time() + 86_401
    monkeypatch.setattr(time, "time", lambda: later)
    transport.answers[SCRIPT] = "hpcdash site none\n"
    store = store_of(tmp_path, transport)
    await store.open()
    assert store.site == SiteRules()
    assert transport.count(SCRIPT) == 2


@for_each(
    "answer,words",
    [
        ("hpcdash site rules\n[poll]\nmine_seconds = 0\n", "site.toml:2: poll.mine_seconds"),
        ("hpcdash site rules\n\xff\x00 = 1\n", "site.toml"),
        ("hpcdash site unsafe\n", "must be root's"),
    ],
)
async def test_a_file_with_problems_is_ignored_and_they_are_kept_for_the_day(
    answer: str, words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    transport = ScriptedTransport()
    transport.answers[SCRIPT] = answer
    for _ in range(2):
        store = store_of(folder, transport)
        await store.open()
        assert store.site == SiteRules()
        assert words in store.site_problem
        assert store.site_problem.startswith("ignored: ")
    assert transport.count(SCRIPT) == 1


@for_each(
    "failure",
    ["nothing of the kind\n", (127, b"", b"sh: not found"), (1, b"hpcdash site rules\n", b"head")],
)
async def test_where_it_cannot_be_read_now_the_known_rules_hold_and_it_is_read_later(
    failure: str | tuple[int, bytes, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    transport = ScriptedTransport()
    transport.answers[SCRIPT] = f"hpcdash site rules\n{TEXT}"
    await store_of(folder, transport).open()
    [file] = folder.rglob(FILE)
    old = load_site_rules(file)
    assert old is not None
    file.write_bytes(msgspec.json.encode(replace(old, at=0.0)))
    transport.answers[SCRIPT] = failure
    store = store_of(folder, transport)
    store.site = old.rules
    await store.open()
    assert store.site.poll.mine_seconds == 30.0
    transport.answers[SCRIPT] = "hpcdash site none\n"
    store._rules_due_at = 0.0
    await store.open()
    assert store.site == SiteRules()


def test_polls_and_commands_are_held_to_the_rules_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcdash.assembly import build_session, connection_pool
    from hpcdash.config.destination import parse_ssh_destination
    from hpcdash.config.settings import ClusterSettings, PollSettings
    from hpcdash.transport.prompter import TerminalPrompter

    monkeypatch.setenv("HPCDASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HPCDASH_STATE", str(tmp_path / "state"))
    quick = PollSettings(mine_seconds=5.0, history_seconds=900.0, commands_per_minute=60)
    juno = ClusterSettings(
        "juno", "juno", "ssh", parse_ssh_destination("juno"), backend="slurm", poll=quick
    )
    session = build_session(juno, connection_pool(TerminalPrompter()))
    assert session.poller.pace.seconds[Kind.MINE] == 5.0
    session.store.site = SiteRules(PollSettings(mine_seconds=30.0, commands_per_minute=10))
    session.store.on_site_rules()
    pace = session.poller.pace.seconds
    assert (pace[Kind.MINE], pace[Kind.HISTORY]) == (30.0, 900.0)
    assert session.store.budget.ceiling == 10


@for_each("kept", [b"", b"[]", b'{"text": "a = 1", "problem": "", "at": 0}', b"\xff" * 99])
def test_what_was_kept_and_is_no_rules_is_read_anew(
    kept: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("cache") / FILE
    file.write_bytes(kept)
    assert load_site_rules(file) is None


async def test_hidden_queues_are_not_offered(tmp_path: Path) -> None:
    transport = ScriptedTransport()
    transport.queues = [{}, {"partition": "admin"}]
    transport.answers[SCRIPT] = 'hpcdash site rules\nhidden_queues = ["admin"]\n'
    offers = await fetch_offers(store_of(tmp_path, transport))
    assert [queue.name for queue in offers.queues] == ["gpu"]
