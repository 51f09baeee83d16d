"""A submission happens once, wherever the line is cut to a real Slurm, PBS or an embedded queue,
and is found again.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.base import Backend
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.queries import Answer, JobScope
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.submissions import Submission
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions, Report
from hpcdash.services.state.folders import queue_program
from hpcdash.services.state.journal import Journal, JournalEntry
from hpcdash.services.submit import recovery as lost_answers
from hpcdash.services.submit.recovery import reconcile
from hpcdash.services.submit.submission import SubmissionPlan, plan_submission
from hpcdash.transport.openssh import OpenSshTransport
from hpcdash.transport.ssh import SshTransport
from tests.embedded.queue_lab import QueueLab
from tests.support.cut_line import CutLine, Gate, gate, ssh_config_through
from tests.support.pbs.over_ssh import PbsCluster
from tests.support.person import Person
from tests.support.program import Program, Run, home_with
from tests.support.slurm import SlurmLab
from tests.support.sshd import Sshd, until_gone, why_no_sshd

SCRIPT = b"#!/bin/bash\ntrue\n"
LONG_SCRIPT = SCRIPT + b"# as long as scripts with data in them are\n" * 40_000
# More than logging in and asking take, and half of the long script.
HALF_BYTES = 900_000
# The event is set once hpcdash has told that it waits for a command over there.
Acts = Callable[[CutLine, Gate, asyncio.Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the line is cut: `arm` before the submission, `act` beside it.

    `done` is what has to come out.
    """

    done: bool | None
    act: Acts
    arm: Callable[[CutLine], object] = lambda line: None
    stops: tuple[str, ...] = ()
    does_outlive: bool = False
    script: bytes = SCRIPT
    openssh: bool = False
    # Whether the long script is put there by a command of its own first.
    is_staged: bool = False
    # How often sbatch may have been called.
    calls: tuple[int, ...] = (1,)


@dataclass(slots=True)
class Seen:
    """What came of it."""

    report: Report
    outcome: Outcome
    told: list[str]
    before: JournalEntry
    after: JournalEntry
    jobs: list[str]
    calls: int
    connections: int
    seconds: float
    left: list[str] = field(default_factory=list)


async def nothing(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
    """The line is armed."""


def cut_at(point: str) -> Acts:
    async def act(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
        await there.until(point)
        line.cut()

    return act


async def silent_after_it_answered(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
    """The network goes away, and the login node does not hear of it."""
    await there.until("answered")
    line.fall_silent()


async def silent_and_handed_over_late(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
    """sbatch goes on over there, and hands over once it is waited for."""
    await there.until("called")
    line.fall_silent()
    await waits.wait()
    await there.let_go("called")


async def held_half_way(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
    """The network holds half of the script, and comes back once the line was given up and the queue
    looked at.
    """
    await waits.wait()
    line.come_back()


async def cut_and_gone(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
    await there.until("answered")
    line.close_door()
    line.cut()


async def cut_in_the_answer(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
    await there.until("answered")
    line.cut_after("down", 20)
    await there.let_go("answered")


async def cut_while_looking(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
    await there.until("answered")
    line.cut()
    await there.until("looked")
    there.stop_at()
    line.cut()


async def goes_on_without_us(line: CutLine, there: Gate, waits: asyncio.Event) -> None:
    """sbatch does not end with the line, and hands over only after the queue was looked at."""
    await there.until("called")
    line.cut()
    await waits.wait()
    await there.let_go("called")


def half_way(line: CutLine) -> None:
    line.cut_after("up", HALF_BYTES)


STAGES = {
    "before connecting": Stage(
        False, nothing, lambda line: (line.close_door(), line.cut()), calls=(0,)
    ),
    "before the command": Stage(False, nothing, lambda line: line.cut_after("up", 0), calls=(0,)),
    "in the command": Stage(False, nothing, lambda line: line.cut_after("up", 300), calls=(0, 1)),
    "in its stdin": Stage(False, nothing, half_way, script=LONG_SCRIPT, calls=(0, 1)),
    "called, and exits with the line": Stage(False, cut_at("called"), stops=("called",)),
    "called, and goes on": Stage(True, goes_on_without_us, stops=("called",), does_outlive=True),
    "answered, nothing said": Stage(True, cut_at("answered"), stops=("answered",)),
    "in the answer": Stage(True, cut_in_the_answer, stops=("answered",)),
    "said, not ended": Stage(True, cut_at("printed"), stops=("printed",)),
    "while it is looked for": Stage(True, cut_while_looking, stops=("answered", "looked")),
    "for good": Stage(None, cut_and_gone, stops=("answered",)),
    "silent, answered": Stage(True, silent_after_it_answered, stops=("answered",)),
    "silent, called": Stage(True, silent_and_handed_over_late, stops=("called",)),
    "silent, in its stdin": Stage(
        False,
        held_half_way,
        lambda line: line.hold_after("up", HALF_BYTES),
        script=LONG_SCRIPT,
        calls=(0, 1),
    ),
    "in the staging": Stage(False, nothing, half_way, is_staged=True, calls=(0,)),
    "staged, answered": Stage(True, cut_at("answered"), stops=("answered",), is_staged=True),
    "openssh, called": Stage(False, cut_at("called"), stops=("called",), openssh=True),
    "openssh, answered": Stage(True, cut_at("answered"), stops=("answered",), openssh=True),
}


async def play(lab: SlurmLab, name: str, stage: Stage, folder: Path) -> Seen:
    line = CutLine(lab.ssh_port)
    await line.start()
    config = ssh_config_through(lab.ssh_config.read_text(), lab.ssh_port, line.port, folder)
    with gate(does_outlive=stage.does_outlive) as there:
        path = there.path
        transport = (
            OpenSshTransport("lab-alice", config_path=config, path=path)
            if stage.openssh
            else SshTransport("lab-alice", Person(), config_path=config, path=path)
        )
        store = ClusterStore(
            "lab", transport, (BACKEND,), clock=SystemClock(), budget=CommandBudget(100_000)
        )
        journal = Journal(folder / "journal.jsonl")
        try:
            await store.open()
            there.stop_at(*stage.stops)
            again = plan_submission(store, Submission(stage.script, f"cut {name}", held=True))
            (search,) = again.searches.values()
            if stage.is_staged:
                again = replace(
                    again, plan=replace(again.plan, commands=(staging(again), *again.plan.commands))
                )
            stage.arm(line)
            waits = asyncio.Event()
            told: list[str] = []

            def tell(words: str) -> None:
                told.append(words)
                if "still running on the login node" in words:
                    waits.set()

            acting = asyncio.create_task(stage.act(line, there, waits))
            began = time.monotonic()
            report = await Actions(store, journal).run(again.plan)
            ([before], _) = journal.read()
            (outcome,) = await reconcile(store, again, report, tell)
            await acting
            seconds = time.monotonic() - began
            ([after], _) = journal.read()
            # A login node that heard nothing hears of it now.
            line.cut()
            left = await until_gone(search.mark)
            jobs = await asyncio.to_thread(jobs_with, lab, search.mark)
            return Seen(
                report,
                outcome,
                told,
                before,
                after,
                jobs,
                len(there.calls),
                line.connections,
                seconds,
                left,
            )
        finally:
            await store.close()
            await transport.close()
            await line.stop()


def staging(again: SubmissionPlan) -> ActionCommand:
    def read(answer: Answer) -> tuple[Outcome, ...]:
        return tuple(
            Outcome(job_id, answer.status == 0, "staged") for job_id in again.plan.request.job_ids
        )

    return ActionCommand(
        ("sh", "-c", "cat >/dev/null"), again.plan.request.job_ids, read, LONG_SCRIPT
    )


def jobs_with(lab: SlurmLab, mark: str) -> list[str]:
    listed = lab.admin("squeue", "-h", "-t", "all", "-u", lab.alice, "-o", "%A %k").stdout.decode(
        errors="replace"
    )
    return [line.split()[0] for line in listed.splitlines() if line.split()[1:] == [mark]]


@pytest.fixture(scope="module")
def seen(
    slurm_lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Seen | BaseException]:
    """All stages side by side."""
    patch = pytest.MonkeyPatch()
    patch.setattr(lost_answers, "_RETRY_SECONDS", 1.0)
    patch.setattr(lost_answers, "_PATIENCE_SECONDS", 3.0)
    folder = tmp_path_factory.mktemp("stages")

    async def run() -> list[Seen | BaseException]:
        plays = (
            play(slurm_lab, name, stage, folder / name.replace(" ", "-"))
            for name, stage in STAGES.items()
        )
        return await asyncio.gather(*plays, return_exceptions=True)

    try:
        found = dict(zip(STAGES, asyncio.run(run()), strict=True))
    finally:
        patch.undo()
    jobs = [job for one in found.values() if isinstance(one, Seen) for job in one.jobs]
    slurm_lab.admin("scancel", "--quiet", *jobs, check=bool(jobs))
    return found


@pytest.fixture(params=list(STAGES))
def played(
    request: pytest.FixtureRequest, seen: dict[str, Seen | BaseException]
) -> tuple[Stage, Seen]:
    one = seen[request.param]
    if isinstance(one, BaseException):
        raise one
    return STAGES[request.param], one


@pytest.mark.journey
def test_what_is_said_is_what_slurm_has_and_nothing_is_sent_twice(
    played: tuple[Stage, Seen],
) -> None:
    stage, one = played
    assert len(one.jobs) <= 1, one
    assert one.calls in stage.calls, one
    assert one.outcome.done is stage.done, one
    if stage.done:
        assert one.outcome.text == f"job {one.jobs[0]}"
    elif stage.done is False:
        assert one.jobs == []
        assert one.outcome.text.startswith("never received")
    else:
        assert "may or may not have been submitted" in one.outcome.text
        assert "hpcdash:" in one.outcome.text


def test_nothing_of_ours_is_left_on_the_login_node(played: tuple[Stage, Seen]) -> None:
    _, one = played
    assert one.left == []


def test_the_journal_has_what_was_found_out(played: tuple[Stage, Seen]) -> None:
    stage, one = played
    assert one.before.state in ("unknown", "refused")
    assert one.after.state == {True: "done", False: "refused", None: "unknown"}[stage.done]
    assert one.after.outcomes == (one.outcome,)
    assert one.after.action_id == one.before.action_id


@pytest.mark.parametrize(
    "name", ["before connecting", "before the command", "in the command", "in the staging"]
)
def test_what_was_surely_not_sent_is_not_looked_for(
    seen: dict[str, Seen | BaseException], name: str
) -> None:
    one = seen[name]
    assert isinstance(one, Seen)
    assert one.report.outcomes == (one.outcome,)
    assert one.told == []


@dataclass(frozen=True, slots=True)
class Ran:
    """`hpcdash submit` of a person, the mark it had, and the jobs with it; `later` is `hpcdash
    journal --settle`.
    """

    run: Run
    jobs: list[str]
    mark: str
    later: Run | None = None


async def submit_over(
    lab: SlurmLab, folder: Path, name: str, act: Acts, stop: str, *, again: bool = False
) -> Ran:
    line = CutLine(lab.ssh_port)
    await line.start()
    config = ssh_config_through(lab.ssh_config.read_text(), lab.ssh_port, line.port, folder / "ssh")
    with gate() as there:
        program = Program(home_with(folder / "home", config.read_text()), ("--cluster", "lab"))
        program.config.parent.mkdir(parents=True)
        program.config.write_text(f'[clusters.lab]\nssh = "lab-alice"\npath = "{there.path}"\n')
        script = folder / f"{name}.sh"
        script.write_bytes(SCRIPT)
        there.stop_at(stop)
        try:
            acting = asyncio.create_task(act(line, there, asyncio.Event()))
            run = await asyncio.to_thread(program, "submit", "--hold", str(script))
            await acting
            (call,) = there.calls
            mark = call.partition("--comment=")[2].split()[0]
            later = None
            if again:
                await line.start()
                later = await asyncio.to_thread(program, "journal", "--settle")
            assert len(there.calls) == 1
            return Ran(run, await asyncio.to_thread(jobs_with, lab, mark), mark, later)
        finally:
            await line.stop()


async def test_a_person_is_told_what_became_of_it_and_what_is_not_known(
    slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    found, never, unknown = await asyncio.gather(
        submit_over(slurm_lab, tmp_path / "found", "found", cut_at("answered"), "answered"),
        submit_over(slurm_lab, tmp_path / "never", "never", cut_at("called"), "called"),
        submit_over(
            slurm_lab, tmp_path / "unknown", "unknown", cut_and_gone, "answered", again=True
        ),
    )
    try:
        assert (found.run.status, found.run.text.split()) == (0, found.jobs)
        assert f"searching for the job by mark {found.mark}" in found.run.stderr
        assert f"found: job {found.jobs[0]}" in found.run.stderr
        assert (never.run.status, never.run.stdout, never.jobs) == (1, b"", [])
        assert "hpcdash: never received" in never.run.stderr
        assert (unknown.run.status, unknown.run.stdout) == (3, b"")
        assert "may not have been submitted: cannot query the queue: " in unknown.run.stderr
        assert f"search for {unknown.mark} in the queue" in unknown.run.stderr
        assert unknown.later is not None
        assert f"unknown.sh: job {unknown.jobs[0]}" in unknown.later.stderr
        assert f"done: job {unknown.jobs[0]}" in unknown.later.text
    finally:
        await asyncio.to_thread(slurm_lab.admin, "scancel", *found.jobs, *unknown.jobs)


# The stand-ins take a script and forget it: this one puts the job into the queue, as a copy of one
# that is held.
QSUB = """\
#!/bin/sh
taken=$({real} "$@") || exit
mark=$(printf '%s\\n' "$@" | grep -o 'HPCDASH_MARK=[^,]*')
sed -n "s/^Job Id: 6\\.pbs01/Job Id: $taken/; T; s/Variable_List=/&$mark,/; p" {jobs} >>{added}
cat {added} >>{jobs}
echo "$taken"
"""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_answers, "_RETRY_SECONDS", 0.5)


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
    """What is said of a submission whose line is cut at a point, the ids of the jobs with its mark,
    and its mark.
    """
    line = CutLine(port)
    await line.start()
    path = folder / "cut_config"
    path.write_text(config.replace(f"Port {port}", f"Port {line.port}"))
    known_hosts = next(
        Path(text.split()[1]) for text in config.splitlines() if "UserKnownHostsFile" in text
    )
    known = folder / "cut_known_hosts"
    known.write_text(known_hosts.read_text().replace(f":{port} ", f":{line.port} "))
    transport = SshTransport(
        "login1", Person(), config_path=path, known_hosts=known, path=there.path
    )
    store = ClusterStore(
        "lab", transport, (backend,), clock=SystemClock(), budget=CommandBudget(100_000)
    )
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
        table = (await store.run_query(store.backend.queue.jobs(JobScope(ended=True)))).table
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
        assert outcome.text == f"job {jobs[0]}"
    else:
        assert jobs == []
        assert outcome.done is False
        assert outcome.text.startswith("never received")


@pytest.mark.usefixtures("soon")
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
    port = next(
        int(text.split()[1]) for text in pbs_login_node.ssh_config.splitlines() if "Port" in text
    )
    with gate("qsub", "", real="$0-that-queues") as there:
        real = Path(there.path) / "qsub-that-queues"
        text = QSUB.format(
            real=pbs_login_node.stand_ins.path / "qsub",
            jobs=jobs_file,
            added=there.folder / "added",
        )
        real.write_text(text)
        real.chmod(0o755)
        outcome, jobs, mark = await submit(
            there, port, pbs_login_node.ssh_config, PBS, tmp_path, point
        )
        judge(there, outcome, jobs, point)
        assert f"HPCDASH_MARK={mark}" in there.calls[0]
    taken.unlink()
    pbs_login_node.stand_ins.play("everyday")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("point", ["called", "answered"])
async def test_on_an_embedded_queue_of_a_login_node_it_is_found_by_its_mark(
    own_login: Sshd, tmp_path: Path, point: str
) -> None:
    queue = QueueLab(tmp_path / "queue", tmp_path / "work", cpus=2, grace_seconds=1)
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{own_login.port} {own_login.host_key_line}\n")
    config = (
        f"Host login1\n  HostName 127.0.0.1\n  Port {own_login.port}\n  User "
        f"{pwd.getpwuid(os.getuid()).pw_name}\n"
        f"  IdentityFile {own_login.key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
    )
    try:
        with gate(
            "queue", "", real=shlex.join(queue_program(queue.folder)), only='" submit "'
        ) as there:
            backend = embedded_backend((f"{there.path}/queue",))
            outcome, jobs, _ = await submit(there, own_login.port, config, backend, tmp_path, point)
            judge(there, outcome, jobs, point)
    finally:
        queue.end()
