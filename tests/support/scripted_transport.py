"""A cluster in this process: answers squeue, sinfo, sacct and scontrol from rows a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hpcdash.backends.slurm import nodes, queues
from hpcdash.backends.slurm.rows import Layout
from hpcdash.errors import HpcdashError, without_env
from hpcdash.recorded import token_of
from hpcdash.transport.base import DEFAULT_CAP_BYTES, DEFAULT_LIMIT_SECONDS, CommandResult, Health, Said, Stream
from tests.support.slurm_text import NODE, QUEUE, Fields, history_text, printed_row, queue_text

PROBE = """user={user}
clock=1795242000
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
# What a command is about, besides the ways squeue is asked: sacct, sinfo's two layouts, scontrol, the probe.
HISTORY, NODES, QUEUES, NATIVE, PROBED = "sacct", "nodes", "queues", "scontrol", "probe"
Answers = Callable[[tuple[str, ...]], None]


class ScriptedTransport:
    """Implements hpcdash.transport.base.Transport over lists of rows, each a part of those in slurm_text.

    `asked` lists what was asked, by the words above. `fails[word]` is raised in place of an answer, `hangs[word]` is
    awaited before it, `cut[word]` is how many bytes of stdout come back, `silent` programs are not there (status 127).
    `on_run` is called as each command begins.
    """

    name = "scripted"

    def __init__(self, *, user: str = "alice", storage: str = "accounting_storage/slurmdbd") -> None:
        self.health = Health(state="connected")
        self.user = user
        self.storage = storage
        self.cluster = "lab"
        self.mine: list[Fields] = []
        self.everyone: list[Fields] = []
        self.recent: list[Fields] = []
        self.history: list[Fields] = []
        self.nodes: list[Fields] = []
        self.queues: list[Fields] = []
        self.native: dict[str, str] = {}
        self.asked: list[str] = []
        self.argvs: list[tuple[str, ...]] = []
        self.fails: dict[str, HpcdashError] = {}
        self.hangs: dict[str, asyncio.Event] = {}
        self.cut: dict[str, int] = {}
        self.silent: set[str] = set()
        self.connect_error: HpcdashError | None = None
        self.connects: list[bool] = []
        self.adoptions = 0
        self.adopted: Callable[[], bool] = lambda: False
        # The folder in which a probe finds the commands that are silent.
        self.elsewhere = ""
        self.prepended: list[str] = []
        self.on_run: Callable[[str], None] = lambda word: None
        self.is_closed = False

    def count(self, word: str) -> int:
        return self.asked.count(word)

    async def connect(self, *, force: bool = False) -> None:
        self.connects.append(force)
        if self.connect_error is not None:
            raise self.connect_error

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        said: Said | None = None,
    ) -> CommandResult:
        words = without_env(argv)
        word = _about(words)
        self.asked.append(word)
        self.argvs.append(words)
        self.on_run(word)
        if word in self.hangs:
            await self.hangs[word].wait()
        if word in self.fails:
            raise self.fails[word]
        if words[0] in self.silent or (word == PROBED and "squeue" in self.silent):
            stdout = f"folder={self.elsewhere}\n" if word == PROBED and self.elsewhere else ""
            return CommandResult(argv, 127, stdout.encode(), b"not found", 0.01)
        stdout, stderr = self._answer(word, words, token_of(argv) or "")
        status = 1 if stderr else 0
        cut = self.cut.get(word)
        return CommandResult(argv, status, stdout[:cut], stderr, 0.01, truncated=cut is not None)

    def _answer(self, word: str, words: tuple[str, ...], token: str) -> tuple[bytes, bytes]:
        match word:
            case "probe":
                return PROBE.format(user=self.user, storage=self.storage, cluster=self.cluster).encode(), b""
            case "mine":
                return queue_text(*self.mine, token=token), b""
            case "everyone":
                return queue_text(*self.everyone, token=token), b""
            case "recent":
                return queue_text(*self.recent, token=token), b""
            case "one":
                wanted = words[words.index("-j") + 1].split(",")
                arrays = {job_id.partition("_")[0] for job_id in wanted}
                rows = [row for row in self.recent if str(row["jobarrayid"]).partition("_")[0] in arrays]
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
                return (found.encode(), b"") if found else (b"", b"slurm_load_jobs error: Invalid job id specified")

    def _history(self, words: tuple[str, ...], token: str) -> bytes:
        wanted = words[words.index("-j") + 1].split(",") if "-j" in words else None
        rows = [
            row
            for row in self.history
            if wanted is None or row["jobid"] in wanted or str(row["jobid"]).partition("_")[0] in wanted
        ]
        text = history_text(*rows, token=token)
        if words[-1] != "ALL":
            return text
        from hpcdash.backends.slurm.history import FIELDS

        return token.join(FIELDS).encode() + b"\n" + text

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Nothing is streamed here."""
        yield _no_chunks()

    async def adopt_login_environment(self) -> bool:
        self.adoptions += 1
        return self.adopted()

    def prepend_path(self, folder: str) -> None:
        self.prepended.append(folder)
        self.silent.clear()

    async def close(self) -> None:
        self.is_closed = True


async def _no_chunks() -> AsyncIterator[bytes]:
    for _ in range(0):
        yield b""


def _printed(layout: Layout, pattern: Fields, rows: list[Fields], token: str) -> bytes:
    return b"".join(printed_row(layout, {**pattern, **row}, token) for row in rows)


def _about(words: tuple[str, ...]) -> str:
    match words[0]:
        case "sh":
            return PROBED
        case "squeue" if "-j" in words:
            return ONE
        case "squeue" if "all" in words:
            return RECENT
        case "squeue":
            return MINE if "--me" in words or "-u" in words else EVERYONE
        case "sinfo":
            return NODES if "-N" in words else QUEUES
        case name:
            return name
