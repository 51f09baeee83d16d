"""One job on the screen: what is shown at once, what comes later, what stays where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot

from hpcdash.backends.slurm.usage import ENDED_FIELDS
from hpcdash.domain.tables import Kind
from hpcdash.errors import ControllerDown
from hpcdash.services.jobs.tracker import JobEvent
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.job import JobView
from hpcdash.ui.widgets.cells import signs
from tests.support.scripted_transport import PROBED, Command, ScriptedTransport
from tests.support.slurm_text import Fields
from tests.ui.stage import NOW, PROBE, answering, press, screen_text, settled, shown_rows, until

SIZE, WIDE, SMALL = (120, 60), (170, 40), (80, 24)
STARTED = str(int(NOW) - 4000)
RUNNING: Fields = {
    "username": "user000",
    "timeused": "1:06:40",
    "numcpus": "64",
    "starttime": STARTED,
    "endtime": str(int(NOW) + 39200),
    "tres-alloc": "cpu=64,mem=256G,node=1,billing=64,gres/gpu=2",
}
WAITING: Fields = {
    "username": "user000",
    "state": "PENDING",
    "reason": "Priority",
    "timeused": "0:00",
    "starttime": str(int(NOW) + 3600),
    "endtime": "N/A",
    "nodelist": "",
    "qos": "low",
}
FAILED: Fields = {**RUNNING, "state": "FAILED", "exit_code": "256", "endtime": str(int(NOW))}
NATIVE = """JobId=88 JobName=train
   UserId=user000(1001) GroupId=user000(1001) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   NumNodes=1 NumCPUs=64 NumTasks=1 CPUs/Task=64
   StdOut=/home/user000/slurm-88.out
"""
SSTAT = "88.batch|1|g1|cpu=13:46:40,mem=41G,gres/gpuutil=174|mem=41G|fs/disk=1048576|41G\n"
SPRIO = "2318|0||0|2|0.0020|0|0.0|2000|0.2|167|0.16|100|0.1|50|0.01\n"
QOS = "low||requeue|00:05:00|||||||\nhigh|low|cluster|00:00:00|||||||\n"
PARTITION = "PartitionName=gpu\n   GraceTime=0 Hidden=NO\n   PreemptMode=REQUEUE\n"


NATIVE_FAILED = NATIVE.replace("RUNNING", "FAILED") + "   StdErr=/home/user000/slurm-88.out\n"
RANKS = b"""[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 30, in <module>
[rank0]: torch.distributed.DistBackendError: NCCL error, remote process exited
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 12, in <module>
[rank3]: \x1b[31mValueError\x1b[0m: batch 41 has no labels
srun: error: g1: task 3: Exited with exit code 1
"""


LOG = "sh*tail -c"


def speaking(*queue: Fields, past: Sequence[Fields] = ()) -> ScriptedTransport:
    """A cluster with these jobs, all of whose programs answer."""
    transport = ScriptedTransport(*queue)
    transport.health.state = "idle"
    transport.recent = transport.mine
    transport.history = list(past)
    transport.answers = {
        PROBED: PROBE,
        LOG: write_log(b""),
        "sinfo": "",
        "sstat": SSTAT,
        "sprio": SPRIO,
        "sacctmgr": QOS,
        "scontrol*show": NATIVE,
        "scontrol*partition": PARTITION,
        f"sacct*{','.join(ENDED_FIELDS)}": "",
    }
    return transport


def write_log(content: bytes) -> Callable[[Command], bytes]:
    """What a look at the log says that stdout and stderr share."""

    def told(command: Command) -> bytes:
        token = command.words[4]
        # Of a pair of paths that are one, neither is stderr.
        missing = f"{token} missing\n" * 3
        return (
            f"{missing}{token} there 1:1 {len(content)} 0 0\n".encode() + content + token.encode()
        )

    return told


def app_on(transport: ScriptedTransport) -> HpcdashApp:
    return HpcdashApp([answering(transport)])


def current_view(app: HpcdashApp) -> JobView:
    view = app.main.view
    assert isinstance(view, JobView)
    return view


async def opened(pilot: Pilot[Any], job_id: str = "88") -> JobView:
    """The page of a job of the list, with all that there is of it."""
    await settled(pilot)
    assert shown_rows(pilot.app).move_to(job_id)
    await press(pilot, "d")
    return current_view(pilot.app)


def line_with(app: HpcdashApp, words: str) -> str:
    found = [line for line in screen_text(app).splitlines() if words in line]
    assert found, f"no {words!r} in\n{screen_text(app)}"
    return found[0]


def has(app: HpcdashApp, words: str) -> Callable[[], bool]:
    return lambda: words in screen_text(app)


async def test_a_running_job_shows_what_it_uses_of_what_it_asked_for() -> None:
    app = app_on(speaking(RUNNING))
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert "12.4/64 cores (19%)" in line_with(app, "uses CPU")
        assert "━━" in line_with(app, "uses CPU")
        assert "peak 41G of 256G (16%)" in line_with(app, "uses memory")
        assert "87% busy (2 GPUs)" in line_with(app, "uses GPU")
        assert "keeps 12.4 of 64 cores busy" in line_with(app, "→")
        assert "2 times" in line_with(app, "requeued")


async def test_a_waiting_job_shows_its_rank_and_who_may_take_its_place() -> None:
    transport = speaking(WAITING)
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert "2000 (20% of max)" in line_with(app, "fair share")
        used = {
            name: line_with(app, name).count(signs().bar_used)
            for name in ("fair share", "job size", " age ")
        }
        assert used == {"fair share": 2, "job size": 2, " age ": 1}, (
            "bars of ten cells, for 20, 16 and 0.2%"
        )
        assert "high" in line_with(app, "may be preempted by")
        assert "put back into the queue" in line_with(app, "a preempted job")
        assert "5:00" in line_with(app, "grace time")
        assert "2026-11-21 07:59:14  (in 1 h)" in screen_text(app)
        assert (transport.count("sprio"), transport.count("sstat")) == (1, 0)


async def test_ranks_are_asked_for_once_and_again_when_a_person_asks() -> None:
    transport = speaking(WAITING)
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        for _ in range(3):
            await app.main.session.store.fetch(Kind.MINE)
            await settled(pilot)
        assert transport.count("sprio") == 1
        await press(pilot, "ctrl+r")
        assert transport.count("sprio") == 2


async def test_what_the_list_knows_is_shown_before_anything_is_answered() -> None:
    transport = speaking(RUNNING)
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        transport.hangs["scontrol"] = asyncio.Event()
        await pilot.press("d")
        await until(pilot, has(app, "on g1"))
        assert "▸ running" in screen_text(app)
        assert "JobState" not in screen_text(app)
        transport.hangs["scontrol"].set()
        await until(pilot, has(app, "JobState"))


async def test_each_part_may_fail_alone_and_says_why() -> None:
    transport = speaking(WAITING)
    transport.fails = {
        "sacctmgr": ControllerDown("the database is away"),
        "sprio": ControllerDown("no ranks today"),
    }
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert "priority: no ranks today" in screen_text(app)
        assert "QoS: the database is away" in screen_text(app)
        # What the queue itself says is shown where the QoS is not known.
        assert "put back into the queue" in line_with(app, "a preempted job")
        assert "JobState" in screen_text(app)


async def test_a_job_it_can_never_start_after_is_said_to_be_so() -> None:
    transport = speaking(
        {
            **WAITING,
            "reason": "DependencyNeverSatisfied",
            "dependency": "afterok:70(failed),afterany:6_*(unfulfilled)",
        },
        {
            "jobarrayid": "6_1",
            "arrayjobid": "6",
            "arraytaskid": "1",
            "name": "sweep",
            "username": "user001",
        },
        {
            "jobarrayid": "90",
            "state": "PENDING",
            "name": "report",
            "dependency": "afterany:88",
            "username": "user000",
        },
        past=({"jobid": "70", "jobname": "prep", "state": "FAILED", "exitcode": "3:0"},),
    )
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert "prep  ✗ failed  after success" in line_with(app, "  70")
        assert "after all tasks end" in line_with(app, "sweep")
        assert "can never start: 70 did not end as required" in screen_text(app)
        assert "after it ends" in line_with(app, "report")


async def test_an_array_is_shown_in_task_order_with_its_throttle() -> None:
    def task(number: str, state: str) -> Fields:
        name = f"7_[{number}]" if "-" in number else f"7_{number}"
        known = {"jobarrayid": name, "arrayjobid": "7", "arraytaskid": number, "state": state}
        return {**RUNNING, **known, "nodelist": "g1" if state == "RUNNING" else ""}

    transport = speaking(
        task("3", "RUNNING"),
        task("4-6%1", "PENDING"),
        past=(
            {"jobid": "7_1", "state": "COMPLETED", "user": "user000"},
            {"jobid": "7_2", "state": "FAILED", "exitcode": "1:0", "user": "user000"},
        ),
    )
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        view = await opened(pilot, "7[]")
        assert view.crumbs() == ("array", "7")
        assert "✓✗▸◦◦◦" in line_with(app, "in order")
        assert "6, 1 at once" in line_with(app, "tasks")
        assert "1: 2" in line_with(app, "✗ failed")
        assert view.pointed_job() == "7"
        assert view.targets().job_ids == ("7",)
        assert {row["id"] for row in view.targets().rows} == {"7_3", "7_[4-6%1]"}
        assert transport.count("sstat") == 0


async def test_an_array_some_of_whose_tasks_ended_is_told_as_those_that_live() -> None:
    living: Fields = {
        **WAITING,
        "jobarrayid": "7_[2-4]",
        "arrayjobid": "7",
        "arraytaskid": "2-4",
        "reason": "JobHeldUser",
    }
    failed: Fields = {"jobid": "7_1", "state": "FAILED", "exitcode": "1:0", "user": "user000"}
    app = app_on(speaking({**living, "priority": "0"}, past=(failed,)))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await app.main.push("job", job_id="7")
        await until(pilot, has(app, "✗ failed"), "its ended task is known")
        assert "held" in line_with(app, "state  ")
        assert "exit 1" not in screen_text(app)


async def test_a_job_that_ended_says_how_and_by_whom() -> None:
    transport = speaking(
        past=({"jobid": "88", "state": "CANCELLED by 0", "exitcode": "0:15", "user": "user000"},)
    )
    transport.answers["scontrol*show"] = ""
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await app.main.push("job", job_id="88")
        await settled(pilot)
        assert "root" in line_with(app, "cancelled by")


async def test_one_stays_where_one_has_scrolled_to_and_the_page_repaints_in_place() -> None:
    app = app_on(speaking(RUNNING))
    async with app.run_test(size=SMALL) as pilot:
        view = await opened(pilot)
        page = view.query_one(VerticalScroll)
        await press(pilot, *["down"] * 7)
        assert page.scroll_offset.y == 7
        await press(pilot, "ctrl+r")
        await app.main.session.store.fetch(Kind.MINE)
        await settled(pilot)
        assert page.scroll_offset.y == 7
        # d goes to the scheduler's words from the top, and back to the top from anywhere.
        await press(pilot, "d", "d")
        await until(pilot, has(app, "JobState"))
        assert screen_text(app).splitlines()[1].strip().startswith("Raw scheduler output")


async def test_no_line_is_lost_of_a_key_that_is_held() -> None:
    app = app_on(speaking(RUNNING))
    async with app.run_test(size=SMALL) as pilot:
        view = await opened(pilot)
        for _ in range(5):
            view.action_scroll(1)
        assert view.query_one(VerticalScroll).scroll_offset.y == 5


async def test_what_was_seen_to_happen_is_listed_with_its_time() -> None:
    app = app_on(speaking(RUNNING))
    async with app.run_test(size=SIZE) as pilot:
        events = app.main.session.store.events
        events.append(JobEvent(NOW - 60, "88", "train", "pending", "running"))
        events.append(JobEvent(NOW - 60, "89", "other", "pending", "running"))
        await opened(pilot)
        assert "pending → running  (1:00 ago)" in screen_text(app)
        assert screen_text(app).count("pending → running") == 1


async def test_why_it_waits_is_listed_each_time_that_changed() -> None:
    app = app_on(speaking(WAITING))
    async with app.run_test(size=SIZE) as pilot:
        reasons = app.main.session.store.reason_events
        reasons.append(JobEvent(NOW - 60, "88", "train", "held", "pending", "Priority"))
        reasons.append(JobEvent(NOW - 30, "88", "train", "pending", "pending", "Resources"))
        await opened(pilot)
        assert "held → pending: Priority, queued behind jobs" in screen_text(app)
        assert " pending: Resources, next in line" in screen_text(app)


def failed_transport(row: Fields = FAILED) -> ScriptedTransport:
    transport = speaking(row)
    transport.answers["scontrol*show"] = NATIVE_FAILED
    transport.answers[LOG] = write_log(RANKS)
    return transport


async def test_a_failed_job_shows_the_line_of_its_log_that_says_why() -> None:
    transport = failed_transport()
    app = app_on(transport)
    async with app.run_test(size=(120, 26)) as pilot:
        await opened(pilot)
        await until(pilot, has(app, "log says"))
        assert "rank 3: ValueError: batch 41 has no labels" in line_with(app, "log says")
        await press(pilot, "ctrl+r")
        await settled(pilot)
        assert transport.count(LOG) == 1


async def test_while_the_log_is_read_keys_act_and_the_rest_is_shown() -> None:
    transport = failed_transport()
    transport.hangs[LOG] = asyncio.Event()
    app = app_on(transport)
    async with app.run_test(size=(120, 26)) as pilot:
        await settled(pilot)
        assert shown_rows(app).move_to("88")
        await pilot.press("d")
        await until(pilot, has(app, "end of log: loading …"))
        assert "ended with" in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.main.view, JobView))
        transport.hangs[LOG].set()


async def test_a_log_that_cannot_be_read_is_said_in_its_place() -> None:
    transport = failed_transport()
    transport.fails[LOG] = ControllerDown("no answer from the login node")
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await until(pilot, has(app, "end of log: no answer from the login node"))


async def test_where_there_is_room_what_it_uses_stands_beside() -> None:
    app = app_on(speaking(RUNNING))
    async with app.run_test(size=(150, 40)) as pilot:
        await opened(pilot)
        assert [word for word in line_with(app, "Resources").split() if "─" not in word] == [
            "Job",
            "Resources",
        ]
        beside_a_title = next(
            line
            for line in current_view(app)._format_page().split("\n")
            if line.plain.startswith("Files")
        )
        bold = [
            beside_a_title.plain[span.start : span.end]
            for span in beside_a_title.spans
            if span.style.bold
        ]
        assert bold == ["Files"]
        await pilot.resize_terminal(*SIZE)
        await settled(pilot)
        assert line_with(app, "Resources").split()[0] == "Resources"


async def test_a_job_nobody_knows_is_said_to_be_unknown() -> None:
    transport = speaking()
    transport.answers["scontrol*show"] = ""
    app = app_on(transport)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await app.main.push("job", job_id="88")
        await settled(pilot)
        assert "no data for this job" in screen_text(app)
        assert current_view(app).targets().missing == ("88",)


@pytest.mark.parametrize("size", [SMALL, SIZE])
async def test_hostile_words_are_shown_as_words(size: tuple[int, int]) -> None:
    evil = "\x1b[2J[bold]x\n   JobState=FORGED"
    transport = speaking(
        {**WAITING, "name": evil, "comment": evil, "dependency": "afterok:70"},
        {**WAITING, "jobarrayid": "70", "name": evil, "dependency": f"{evil}"},
    )
    app = app_on(transport)
    async with app.run_test(size=size) as pilot:
        await opened(pilot)
        assert "\x1b" not in screen_text(app)
        assert "␛[2J[bold]x␊" in screen_text(app)


SCENES: dict[str, tuple[tuple[Fields, ...], str]] = {
    "running": ((RUNNING,), "88"),
    "waiting": (
        (
            {
                **WAITING,
                "reason": "Dependency",
                "dependency": "afterok:70(unfulfilled),afterany:71(unfulfilled)",
            },
            {**RUNNING, "jobarrayid": "70", "name": "prepare data"},
            {**WAITING, "jobarrayid": "71", "name": "tokenise"},
            {
                **WAITING,
                "jobarrayid": "90",
                "name": "evaluate",
                "dependency": "afterok:88(unfulfilled)",
            },
            {
                **WAITING,
                "jobarrayid": "91",
                "name": "report",
                "dependency": "afterany:90(unfulfilled)",
            },
        ),
        "88",
    ),
}


SHOWN = [*((name, (120, 40)) for name in SCENES), ("running", WIDE)]


@pytest.mark.parametrize(
    ("scene", "size"), SHOWN, ids=[f"{name}-{size[0]}x{size[1]}" for name, size in SHOWN]
)
def test_a_job_looks_as_it_did(snap_compare: Any, scene: str, size: tuple[int, int]) -> None:
    rows, job_id = SCENES[scene]

    async def go_there(pilot: Pilot[Any]) -> None:
        await opened(pilot, job_id)

    assert snap_compare(app_on(speaking(*rows)), terminal_size=size, run_before=go_there)
