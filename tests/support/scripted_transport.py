"""The transport of tests: a Slurm in this process over rows a test sets, or a real transport;
answers, waits, fails.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.slurm import nodes, queues
from hpcdash.backends.slurm.rows import Layout
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.errors import HpcdashError, without_env
from hpcdash.recorded import find_token
from hpcdash.transport.base import CommandResult, Health, Pipe, Stream, Transport
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.terminal import Terminal
from tests.support.slurm_text import NODE, QUEUE, Fields, history_text, printed_row, queue_text

PROBE = """user={user}
clock={now:.0f}
command=squeue=/usr/bin/squeue
command=sinfo=/usr/bin/sinfo
command=sacct=/usr/bin/sacct
command=scontrol=/usr/bin/scontrol
command=sbatch=/usr/bin/sbatch
command=scancel=/usr/bin/scancel
version=slurm-wlm 22.05.8
ping=Slurmctld(primary) at here is UP
ClusterName={cluster}
AccountingStorageType={storage}
"""
MINE, EVERYONE, RECENT, ONE = "mine", "everyone", "recent", "one"
# What a command is about, besides the ways squeue is asked: sacct, sinfo's two layouts, scontrol,
# the probe.
HISTORY, NODES, QUEUES, NATIVE, PROBED = "sacct", "nodes", "queues", "scontrol", "probe"
# Whatever changes a job: scancel, scontrol's verbs, and what signals one.
ACT = "act"
_JOB_IDS = re.compile(r"(?:jobid=)?([0-9].*)")


class Command(Struct, frozen=True):
    """What was to be run: `words` without a leading env, `limits` as the transport was given
    them.
    """

    argv: tuple[str, ...]
    words: tuple[str, ...]
    limits: dict[str, Any]

    async def run_here(self) -> CommandResult:
        """On this machine; it takes the same time always."""
        return replace(await LocalTransport().run(self.argv, **self.limits), seconds=0.01)


# Which commands: a word of those above, how a command line begins (`scontrol write`, `sh*tail -c`),
# or by its words.
Key = str | Callable[[tuple[str, ...]], bool]
# stdout; or status, stdout and stderr; or what is raised; or what is awaited first; or each of a
# list in turn. None leaves it to what was answered without.
Reply = (
    None
    | str
    | bytes
    | tuple[int, bytes, bytes]
    | CommandResult
    | Exception
    | asyncio.Event
    | list["Reply"]
    | Callable[[Command], "Reply | Awaitable[Reply]"]
)


def run_here(command: Command) -> Awaitable[CommandResult]:
    """A reply: what it says on this machine."""
    return command.run_here()


class ScriptedTransport:
    """Implements hpcdash.transport.base.Transport.

    What `answers` does not answer is run `behind`, where that is given; else Slurm answers from
    lists of rows, each a part of those in slurm_text. The keys of `answers`, `fails` and `hangs`
    say which commands are meant; of several that do, the last one set counts. `fails[key]` is
    raised in place of an answer, `hangs[key]` is awaited before it, `cut[word]` is how many bytes
    of stdout come back, `silent` programs are not there (status 127). `refused` maps an id to why
    scancel and scontrol do nothing with it. A recording's token in an answer becomes that of the
    poll.

    `asked` lists what was asked, by the words above, `argvs` as command lines, and `answered` how
    they ended. `submitted` has words and stdin of each sbatch, which get 91, 92, …; `acted` has
    what changes jobs. `on_run` is called as each command begins, `on_connect` with `force` before
    the line opens.
    """

    def __init__(
        self,
        *rows: Fields,
        behind: Transport | None = None,
        user: str = "alice",
        storage: str = "accounting_storage/slurmdbd",
    ) -> None:
        self.name = "scripted" if behind is None else behind.name
        self.health = Health(state="connected")
        self.behind = behind
        self.user = user
        self.storage = storage
        self.cluster = "lab"
        # What the login node's clock shows, in epoch seconds.
        self.now: Callable[[], float] = lambda: 1_795_242_000
        self.mine: list[Fields] = [*rows]
        self.everyone: list[Fields] = [*rows]
        self.recent: list[Fields] = []
        self.history: list[Fields] = []
        self.nodes: list[Fields] = []
        self.queues: list[Fields] = []
        self.native: dict[str, str] = {}
        self.asked: list[str] = []
        self.argvs: list[tuple[str, ...]] = []
        self.answered: list[CommandResult] = []
        self.acted: list[tuple[str, ...]] = []
        self.submitted: list[tuple[tuple[str, ...], bytes | None]] = []
        self.answers: dict[Key, Reply] = {}
        self.fails: dict[Key, Exception] = {}
        self.hangs: dict[Key, asyncio.Event] = {}
        self.cut: dict[str, int] = {}
        self.silent: set[str] = set()
        self.refused: dict[str, str] = {}
        self.connect_error: HpcdashError | None = None
        self.on_connect: Callable[[bool], Awaitable[None]] | None = None
        self.connects: list[bool] = []
        self.adoptions = 0
        self.adopted: Callable[[], bool] = lambda: False
        # The folder in which a probe finds the commands that are silent.
        self.elsewhere = ""
        self.prepended: list[str] = []
        self.interactions: list[tuple[str, ...]] = []
        self.on_run: Callable[[str], None] = lambda word: None
        self.is_closed = False

    def ran(self, key: Key) -> list[tuple[str, ...]]:
        """The commands of this key, in turn."""
        return [words for words in self.argvs if _is_meant(key, words)]

    def count(self, key: Key) -> int:
        return len(self.ran(key))

    async def connect(self, *, force: bool = False) -> None:
        self.connects.append(force)
        if self.on_connect is not None:
            await self.on_connect(force)
        if self.connect_error is not None:
            self.health.state = "failed"
            raise self.connect_error
        if self.behind is not None:
            await self.behind.connect(force=force)
        self.health.state = "connected"

    async def run(self, argv: tuple[str, ...], **limits: Any) -> CommandResult:
        self.answered.append(await self._run(argv, limits))
        return self.answered[-1]

    async def _run(self, argv: tuple[str, ...], limits: dict[str, Any]) -> CommandResult:
        words = without_env(argv)
        word = _about(words)
        self.asked.append(word)
        self.argvs.append(words)
        if _acts(words):
            self.acted.append(words)
        if word == "sbatch":
            self.submitted.append((words, limits.get("stdin")))
        self.on_run(word)
        if self.connect_error is not None or self.health.state != "connected":
            await self.connect()
        if (gate := _of(self.hangs, words)) is not None:
            await gate.wait()
        if (error := _of(self.fails, words)) is not None:
            raise error
        command = Command(argv, words, limits)
        for key, reply in reversed(list(self.answers.items())):
            if _is_meant(key, words) and (answer := await _answered(reply, command)) is not None:
                return answer
        if self.behind is not None:
            return await self.behind.run(argv, **limits)
        if words[0] in self.silent or (word == PROBED and "squeue" in self.silent):
            stdout = f"folder={self.elsewhere}\n" if word == PROBED and self.elsewhere else ""
            return CommandResult(argv, 127, stdout.encode(), b"not found", 0.01)
        status, out, err = self._slurm(word, words, find_token(argv) or "")
        cut = self.cut.get(word)
        return CommandResult(argv, status, out[:cut], err, 0.01, truncated=cut is not None)

    def _slurm(self, word: str, words: tuple[str, ...], token: str) -> tuple[int, bytes, bytes]:
        if _acts(words):
            return self._act(words)
        if word == "sbatch":
            return 0, f"Submitted batch job {90 + len(self.submitted)}\n".encode(), b""
        stdout, stderr = self._answer(word, words, token)
        return (1 if stderr else 0), stdout, stderr

    def _act(self, words: tuple[str, ...]) -> tuple[int, bytes, bytes]:
        """What scancel and scontrol say of the jobs they are to change."""
        lists = [found[1] for word in words[1:] if (found := _JOB_IDS.fullmatch(word))]
        ids = [job_id for word in lists for job_id in re.split(r",(?![^\[]*\])", word)]
        bad = {job_id: why for job_id, why in self.refused.items() if job_id in ids}
        if words[0] == "scontrol":
            said = [f"{why} for job {job_id}" for job_id, why in bad.items()]
        elif words[0] == "timeout":
            said = [f"scancel: Signal 10 to job {job_id}" for job_id in ids if job_id not in bad]
        else:
            said = [f"scancel: Terminating job {job_id}" for job_id in ids]
            said += [
                f"scancel: error: Kill job error on job id {job_id}: {why}"
                for job_id, why in bad.items()
            ]
        return (1 if bad else 0), b"", "\n".join(said).encode()

    def _answer(self, word: str, words: tuple[str, ...], token: str) -> tuple[bytes, bytes]:
        match word:
            case "probe":
                probe = PROBE.format(
                    user=self.user, storage=self.storage, cluster=self.cluster, now=self.now()
                )
                return probe.encode(), b""
            case "date":
                return f"{self.now():.0f}\n".encode(), b""
            case "mine":
                listed = {row.get("jobarrayid", "88") for row in self.mine}
                ended = (
                    [row for row in self.recent if row.get("jobarrayid", "88") not in listed]
                    if "all" in words
                    else []
                )
                return queue_text(*self.mine, *ended, token=token), b""
            case "everyone":
                return queue_text(*self.everyone, token=token), b""
            case "recent":
                return queue_text(*self.recent, token=token), b""
            case "one":
                wanted = words[words.index("-j") + 1].split(",")
                arrays = {job_id.partition("_")[0] for job_id in wanted}
                rows = [
                    row
                    for row in self.recent
                    if str(row.get("jobarrayid", "88")).partition("_")[0] in arrays
                ]
                return queue_text(
                    *rows, token=token
                ), b"" if rows else b"slurm_load_jobs error: Invalid job id specified"
            case "sacct":
                return self._history(words, token), b""
            case "nodes":
                return _printed(nodes.LAYOUT, NODE, self.nodes, token), b""
            case "queues":
                return _printed(queues.LAYOUT, QUEUE, self.queues, token), b""
            case _:
                found = self.native.get(words[-1].partition("_")[0])
                return (
                    (found.encode(), b"")
                    if found
                    else (b"", b"slurm_load_jobs error: Invalid job id specified")
                )

    def _history(self, words: tuple[str, ...], token: str) -> bytes:
        wanted = words[words.index("-j") + 1].split(",") if "-j" in words else None
        ids = [str(row.get("jobid", "88")) for row in self.history]
        rows = [
            row
            for job_id, row in zip(ids, self.history, strict=True)
            if wanted is None or job_id in wanted or job_id.partition("_")[0] in wanted
        ]
        text = history_text(*rows, token=token)
        if words[-1] != "ALL":
            return text
        from hpcdash.backends.slurm.history import FIELDS

        return token.join(FIELDS).encode() + b"\n" + text

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Of what is behind; else nothing comes."""
        if self.behind is None:
            yield _no_chunks()
            return
        async with self.behind.stream(argv) as stream:
            yield stream

    def open_pipe(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Pipe]:
        """Of what is behind."""
        assert self.behind is not None
        return self.behind.open_pipe(argv)

    async def adopt_login_environment(self) -> bool:
        self.adoptions += 1
        return self.adopted()

    def prepend_path(self, folder: str) -> None:
        self.prepended.append(folder)
        self.silent.clear()

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        self.interactions.append(argv)
        return 0

    async def close(self) -> None:
        self.is_closed = True
        self.health.state = "idle"
        if self.behind is not None:
            await self.behind.close()


async def _no_chunks() -> AsyncIterator[bytes]:
    for _ in range(0):
        yield b""


def _printed(layout: Layout, pattern: Fields, rows: list[Fields], token: str) -> bytes:
    return b"".join(printed_row(layout, {**pattern, **row}, token) for row in rows)


async def _answered(reply: Reply, command: Command) -> CommandResult | None:
    """A reply as a command's end, or None for what is as without it."""
    if isinstance(reply, list):
        reply = reply.pop(0) if reply else None
    if callable(reply):
        told = reply(command)
        reply = await told if isinstance(told, Awaitable) else told
    if isinstance(reply, asyncio.Event):
        await reply.wait()
        reply = None
    if reply is None or isinstance(reply, CommandResult):
        return reply
    if isinstance(reply, Exception):
        raise reply
    if isinstance(reply, str):
        reply = reply.encode()
    status, stdout, stderr = reply if isinstance(reply, tuple) else (0, reply, b"")
    token = (find_token(command.argv) or "").encode()
    return CommandResult(
        command.argv, status, stdout.replace(RECORDED_TOKEN.encode(), token), stderr, 0.01
    )


def _of(given: dict[Key, Any], words: tuple[str, ...]) -> Any:
    return next((given[key] for key in reversed(given) if _is_meant(key, words)), None)


def _is_meant(key: Key, words: tuple[str, ...]) -> bool:
    if callable(key):
        return key(words)
    if key in (_about(words), ACT if _acts(words) else None):
        return True
    if key == RECENT:
        return words[0] == "squeue" and "all" in words and "-j" not in words
    if key == "sinfo":
        return _about(words) in (NODES, QUEUES)
    return fnmatchcase(" ".join(words), f"{key}*")


def _acts(words: tuple[str, ...]) -> bool:
    return words[0] in ("scancel", "timeout") or (
        words[0] == "scontrol" and not {"show", "write"} & {*words}
    )


def _about(words: tuple[str, ...]) -> str:
    if "sbatch" in words[:5]:
        return "sbatch"
    match words[0]:
        case "sh":
            return QUEUES if "sinfo -a" in words[2] else PROBED
        case "squeue" if "-j" in words:
            return ONE
        case "squeue" if "--me" in words or "-u" in words:
            return MINE
        case "squeue":
            return RECENT if "all" in words else EVERYONE
        case "sinfo":
            return NODES if "-N" in words else QUEUES
        case name:
            return name
