"""Records a case of fixtures/ray from a Ray that runs: all that a screen asks of it, with the logs
of its jobs.

python -m tests.support.record_ray_case URL DIRECTORY "one sentence about it" [OLD=NEW ...]
"""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hpcdash.backends.job_detail import JobDetail, LogFiles
from hpcdash.backends.queries import JobScope, Query
from hpcdash.backends.ray.backend import BACKEND
from hpcdash.backends.ray.responses import read_responses
from hpcdash.errors import HpcdashError
from hpcdash.transport.http import HttpTransport


class Recorder:
    """Asks, and keeps each answer once; `renames` are made in all of it."""

    def __init__(self, url: str, folder: Path, renames: dict[str, str]) -> None:
        self.transport = HttpTransport(url)
        self.folder = folder
        self.renames = renames
        self.commands: dict[tuple[str, ...], tuple[str, int]] = {}

    async def ask(self, name: str, query: Query[Any]) -> Any:
        """What a query reads of the answer, which is written down as `name`; None for a refusal."""
        answer = await self.transport.run(query.argv)
        content = b""
        for response in read_responses(answer):
            body = self.renamed(response.body)
            told = b"-" if response.epoch_seconds is None else b"%d" % response.epoch_seconds
            content += b"%d %d %s\n" % (response.status, len(body), told) + body
        argv = tuple(self.renamed(word.encode()).decode() for word in query.argv)
        if argv not in self.commands:
            self.write(name, content)
            self.commands[argv] = (name, answer.status)
        try:
            return query.parse(answer)
        except HpcdashError:
            return None

    def renamed(self, content: bytes) -> bytes:
        for old, new in self.renames.items():
            content = content.replace(old.encode(), new.encode())
        return content

    async def log(self, path: str | None) -> None:
        """Write down what a log holds by now."""
        request = (
            BACKEND.logs.request(path or "")
            .replace("/stream?", "/file?")
            .replace("&interval=1", "")
        )
        if not request:
            return
        request, _, pattern = request.partition("#")
        [response] = read_responses(await self.transport.run(("GET", request)))
        if response.is_success:
            begins = re.compile(unquote(pattern).encode())
            lines = [
                line[found.end() :]
                for line in response.body.splitlines(True)
                if (found := begins.match(line))
            ]
            self.write(
                f"files{self.renamed((path or '').encode()).decode()}",
                self.renamed(b"".join(lines)),
            )

    def write(self, name: str, content: bytes) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


async def record(url: str, folder: Path, about: str, renames: dict[str, str]) -> None:
    recorder = Recorder(url, folder, renames)
    await recorder.ask("probe.out", BACKEND.probe.query())
    await recorder.ask("nodes.out", BACKEND.queue.nodes())
    await recorder.ask("queues.out", BACKEND.queue.queues())
    if (activity := BACKEND.queue.node_activity("")) is not None:
        await recorder.ask("activity/nodes.out", activity)
    jobs = (await recorder.ask("jobs.out", BACKEND.queue.jobs(JobScope(ended=True)))).table
    for at, job_id in enumerate(jobs["id"].to_pylist()):
        name = str(jobs["name"][at]).replace("/", "-")
        native = await recorder.ask(f"jobs/{name}.out", BACKEND.detail.native(job_id))
        detail = JobDetail(jobs.slice(at, 1), native)
        await recorder.log(BACKEND.logs.files(detail, None).stdout)
        if (
            activity := BACKEND.detail.activity(jobs.slice(at, 1).to_pylist()[0], native)
        ) is not None:
            await recorder.ask(f"activity/{name}.out", activity)
        if (others := BACKEND.logs.others(detail, LogFiles(None, None))) is not None:
            for log in await recorder.ask(f"logs/{name}.out", others) or ():
                await recorder.log(log.files.stdout)
                await recorder.log(log.files.stderr)
        if native.get("job_id"):
            nodes = await recorder.ask("use/nodes.out", BACKEND.inside.use_nodes(native))
            if nodes:
                await recorder.ask(f"use/{name}.out", BACKEND.inside.use(native, nodes))
    await recorder.ask("jobs/unknown.out", BACKEND.detail.native("raysubmit_unknown"))
    clock = datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
    lines = ['backend = "ray"', f'about = "{about}"', 'user = ""', f"clock = {clock}"]
    for argv, (name, status) in recorder.commands.items():
        words = ", ".join(f'"{word}"' for word in argv)
        lines += [
            "",
            "[[command]]",
            f"argv = [{words}]",
            f'stdout = "{name}"',
            *([f"exit = {status}"] if status else []),
        ]
    recorder.write("case.toml", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    renames = dict(word.split("=", 1) for word in sys.argv[4:])
    asyncio.run(record(sys.argv[1], Path(sys.argv[2]), sys.argv[3], renames))
