"""Round trips of a login and of commands over a slow line to a real sshd on loopback.

Run as root, or as a user whose shell is bash; sshd must be installed.
"""

# ruff: noqa: ASYNC221, ASYNC240

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.stand_in import make_stand_in
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.clock import ClusterClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.transport.ssh import SshTransport
from tests.support.cut_line import CutLine
from tests.support.person import Person
from tests.support.sshd import Sshd, login_user

DELAY_SECONDS = 0.4
BYTES_PER_SECOND = 64_000.0
FIRST_SCREEN_BYTES = 16 << 10

Step = Callable[[], Awaitable[object]]


async def measure(sshd: Sshd, user: str, line: CutLine) -> list[tuple[str, float, int]]:
    """Return each step's name, seconds and bytes towards the laptop."""
    await line.start()
    config, known_hosts = sshd.folder / "config", sshd.folder / "known_hosts"
    config.write_text(f"Host *\n  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n")
    known_hosts.write_text(f"[127.0.0.1]:{line.port} {sshd.host_key_line}\n")
    transport = SshTransport(
        f"{user}@127.0.0.1:{line.port}",
        Person(),
        config_path=config,
        known_hosts=known_hosts,
        path=str(sshd.folder / "bin"),
    )

    store = ClusterStore(
        "stand-in",
        transport,
        (BACKEND,),
        clock=ClusterClock(),
        budget=CommandBudget(600),
        user=user,
    )

    def two_commands() -> Awaitable[object]:
        return asyncio.gather(transport.run(("true",)), transport.run(("true",)))

    steps: tuple[tuple[str, Step], ...] = (
        ("login", transport.connect),
        ("probe, once logged in", store.open),
        ("own jobs, once probed", lambda: store.fetch(Kind.MINE, 0.0)),
        ("a command", lambda: transport.run(("true",))),
        ("two commands at once", two_commands),
        ("a command with stdin", lambda: transport.run(("cat",), stdin=b"x")),
        (
            "16 KiB of output",
            lambda: transport.run(("head", "-c", str(FIRST_SCREEN_BYTES), "/dev/urandom")),
        ),
    )
    rows = []
    try:
        for name, step in steps:
            began, before = time.perf_counter(), line.bytes_down
            await step()
            rows.append((name, time.perf_counter() - began, line.bytes_down - before))
    finally:
        await transport.close()
        await line.stop()
    return rows


async def main() -> None:
    os.environ.setdefault("HPCDASH_TEST_RUN", str(os.getpid()))
    user = login_user(label="lines")
    if user is None:
        raise SystemExit("no user can log in here: run it as root")
    with tempfile.TemporaryDirectory(prefix="hpcdash-lines-") as folder:
        Path(folder).chmod(0o755)
        sshd = Sshd(Path(folder) / "sshd")
        make_stand_in(sshd.folder, 100)
        (sshd.folder / "answers").touch()
        (sshd.folder / "answers").chmod(0o666)
        sshd.start()
        try:
            plain = await measure(sshd, user, CutLine(sshd.port))
            slow = await measure(sshd, user, CutLine(sshd.port, delay_seconds=DELAY_SECONDS))
            thin = await measure(sshd, user, CutLine(sshd.port, bytes_per_second=BYTES_PER_SECOND))
        finally:
            sshd.stop()
            if os.getuid() == 0:
                subprocess.run(["userdel", "--remove", user], check=False, capture_output=True)
    print("| step | loopback s | 400 ms each way s | round trips | 64 kB/s s | bytes down |")
    print("|---|---|---|---|---|---|")
    for (name, base, _), (_, far, count), (_, narrow, _) in zip(plain, slow, thin, strict=True):
        trips = (far - base) / (2 * DELAY_SECONDS)
        print(f"| {name} | {base:.2f} | {far:.2f} | {trips:.1f} | {narrow:.2f} | {count} |")


if __name__ == "__main__":
    asyncio.run(main())
