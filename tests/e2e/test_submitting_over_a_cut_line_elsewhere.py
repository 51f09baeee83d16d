"""On PBS and on the embedded queue too, behind a real sshd: what was submitted over a line that was cut is found."""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.backends.actions import Outcome
from hpcdash.backends.base import Backend
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.queries import JobScope
from hpcdash.backends.submissions import Submission
from hpcdash.cli.build import queue_program
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit import recovery as lost_answers
from hpcdash.services.submit.plan import plan_submission
from hpcdash.services.submit.recovery import reconcile
from hpcdash.transport.ssh import SshTransport
from tests.embedded.queue_lab import QueueLab
from tests.support.cut_line import CutLine, Gate, gate
from tests.support.pbs.over_ssh import PbsCluster
from tests.support.person import Person
from tests.support.sshd import Sshd, until_gone, why_no_sshd

SCRIPT = b"#!/bin/bash\ntrue\n"
# The stand-ins take a script and forget it: this one puts the job into the queue, as a copy of one that is held.
QSUB = """\
#!/bin/sh
taken=$({real} "$@") || exit
mark=$(printf '%s\\n' "$@" | grep -o 'HPCDASH_MARK=[^,]*')
sed -n "s/^Job Id: 6\\.pbs01/Job Id: $taken/; T; s/Variable_List=/&$mark,/; p" {jobs} >>{added}
cat {added} >>{jobs}
echo "$taken"
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_answers, "_LOOK_AGAIN_SECONDS", 0.5)


@pytest.fixture
def own_login(tmp_path: Path) -> Iterator[Sshd]:
    """An sshd that lets in who runs these tests."""
    if reason := why_no_sshd():
        pytest.skip(reason)
    server = Sshd(tmp_path / "sshd")
    server.start()
    yield server
    server.stop()


async def submit(
    there: Gate, port: int, config: str, backend: Backend, folder: Path, point: str
) -> tuple[Outcome, list[str], str]:
    """What is said of a submission whose line is cut at a point, the ids of the jobs with its mark, and its mark."""
    line = CutLine(port)
    await line.start()
    path = folder / "cut_config"
    path.write_text(config.replace(f"Port {port}", f"Port {line.port}"))
    known_hosts = next(Path(text.split()[1]) for text in config.splitlines() if "UserKnownHostsFile" in text)
    known = folder / "cut_known_hosts"
    known.write_text(known_hosts.read_text().replace(f":{port} ", f":{line.port} "))
    transport = SshTransport("login1", Person(), config_path=path, known_hosts=known, path=there.path)
    store = ClusterStore("lab", transport, (backend,), clock=SystemClock(), budget=CommandBudget(100_000))
    try:
        await store.open()
        again = plan_submission(store, Submission(SCRIPT, "cut.sh", held=True))
        (search,) = again.searches.values()
        there.stop_at(point)

        async def act() -> None:
            await there.until(point)
            there.stop_at()
            line.cut()

        acting = asyncio.create_task(act())
        report = await Actions(store, Journal(folder / "journal.jsonl")).run(again.plan)
        assert report.outcomes[0].done is None
        (outcome,) = await reconcile(store, again, report)
        await acting
        table = (await store.ask(store.backend.queue.jobs(JobScope(ended=True)))).table
        jobs = [row["id"] for row in table.to_pylist() if row["comment"] == search.mark]
        assert await until_gone(search.mark) == []
        return outcome, jobs, search.mark
    finally:
        await store.close()
        await transport.close()
        await line.stop()


def judge(there: Gate, outcome: Outcome, jobs: list[str], point: str) -> None:
    assert len(there.calls) == 1
    if point == "answered":
        assert len(jobs) == 1
        assert outcome.done is True
        assert outcome.words == f"job {jobs[0]}"
    else:
        assert jobs == []
        assert outcome.done is False
        assert outcome.words.startswith("it never arrived")


@pytest.mark.parametrize("point", ["called", "answered"])
async def test_on_pbs_it_is_found_by_its_mark_among_the_variables(
    pbs_login_node: PbsCluster, tmp_path: Path, point: str
) -> None:
    pbs_login_node.stand_ins.play("everyday")
    pbs_login_node.stand_ins.called.write_text("")
    jobs_file = pbs_login_node.stand_ins.folder / "scene" / "jobs.dsv"
    taken = pbs_login_node.stand_ins.folder / "taken"
    taken.write_text("")
    for changed in (jobs_file, taken):
        changed.chmod(0o666)
    port = next(int(text.split()[1]) for text in pbs_login_node.ssh_config.splitlines() if "Port" in text)
    with gate("qsub", "", real="$0-that-queues") as there:
        real = Path(there.path) / "qsub-that-queues"
        text = QSUB.format(real=pbs_login_node.stand_ins.path / "qsub", jobs=jobs_file, added=there.folder / "added")
        real.write_text(text)
        real.chmod(0o755)
        outcome, jobs, mark = await submit(there, port, pbs_login_node.ssh_config, PBS, tmp_path, point)
        judge(there, outcome, jobs, point)
        assert f"HPCDASH_MARK={mark}" in there.calls[0]
    taken.unlink()
    pbs_login_node.stand_ins.play("everyday")


@pytest.mark.parametrize("point", ["called", "answered"])
async def test_on_an_embedded_queue_of_a_login_node_it_is_found_by_its_mark(
    own_login: Sshd, tmp_path: Path, point: str
) -> None:
    queue = QueueLab(tmp_path / "queue", tmp_path / "work", cpus=2, grace_seconds=1)
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{own_login.port} {own_login.host_key_line}\n")
    config = (
        f"Host login1\n  HostName 127.0.0.1\n  Port {own_login.port}\n  User {pwd.getpwuid(os.getuid()).pw_name}\n"
        f"  IdentityFile {own_login.key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
    )
    try:
        with gate("queue", "", real=shlex.join(queue_program(queue.folder)), only='" submit "') as there:
            backend = embedded_backend((f"{there.path}/queue",))
            outcome, jobs, _ = await submit(there, own_login.port, config, backend, tmp_path, point)
            judge(there, outcome, jobs, point)
    finally:
        queue.end()
