"""Watchdogs at work on a real embedded queue: what they find, tell once, and take back, by webhook
and e-mail.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcdash.backends.base import LogsPart
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.config.read import settings_from_text
from hpcdash.config.settings import PoolSettings
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.alerts import Finding, Severity
from hpcdash.domain.tables import Kind
from hpcdash.errors import ConnectionFailed, HpcdashError
from hpcdash.job.checkpoint import Checkpoints
from hpcdash.services.cluster.clock import FrozenClock, SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.state.database import StateDatabase
from hpcdash.services.state.folders import queue_program
from hpcdash.services.state.submitted_scripts import ScriptStore
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.services.watch.board import WatchBoard
from hpcdash.services.watch.cluster import Watching, read_qos
from hpcdash.services.watch.endings import find_ending
from hpcdash.services.watch.facts import MAX_TAIL_BYTES
from hpcdash.services.watch.notifiers.base import Notifier
from hpcdash.services.watch.round import RoundReport, watch_round
from hpcdash.services.watch.secrets import build_notifiers
from hpcdash.services.watch.state import (
    MAX_SAMPLES,
    SAMPLE_EVERY_SECONDS,
    QosState,
    WatchFiles,
    WatchState,
    add_sample,
)
from hpcdash.transport.local import LocalTransport
from tests.embedded.conftest import queue as queue
from tests.embedded.queue_lab import QueueLab
from tests.support.node_disk import REACHES, REFUSES, Node
from tests.support.receivers import answer, hook_receiver, mail_receiver
from tests.support.scripted_transport import ScriptedTransport
from tests.support.waiting import deadline

pytestmark = pytest.mark.system
SILENT_UNTIL_TOLD = """#!/bin/sh
echo step 1
while [ ! -f go ]; do sleep 0.05; done
while :; do echo step 2; sleep 0.05; done
"""
TRAINING = """#!/bin/sh
while :; do [ -f more ] && { cat more; rm more; }; sleep 0.05; done
"""


class Watched:
    """A queue with a store and the watchdogs' files; every round begins with what the one before
    has kept.
    """

    def __init__(
        self, lab: QueueLab, text: str, folder: Path, logs: LogsPart | None = None
    ) -> None:
        self.lab = lab
        self.transport = ScriptedTransport(behind=LocalTransport())
        backend = embedded_backend(queue_program(lab.folder))
        self.store = ClusterStore(
            "here",
            self.transport,
            (replace(backend, logs=logs or backend.logs),),
            clock=SystemClock(),
            budget=CommandBudget(100_000),
        )
        self.settings = settings_from_text(text, folder / "config.toml").watch
        self.files = WatchFiles(folder / "state", "here")
        self.notifiers: list[Notifier] = build_notifiers(self.settings.notices, "config.toml")[0]

    async def round(self, **given: Any) -> RoundReport:
        settings: WatchSettings = given.pop("settings", self.settings)
        return await watch_round(
            self.store, settings, self.files, self.notifiers, sleep=_no_pause, **given
        )

    async def until(self, holds: Callable[[RoundReport], object]) -> RoundReport:
        over = deadline()
        while True:
            report = await self.round()
            if holds(report):
                return report
            assert time.monotonic() < over, report


async def _no_pause(seconds: float) -> None:
    return None


@contextlib.asynccontextmanager
async def watched(
    lab: QueueLab, text: str, folder: Path, logs: LogsPart | None = None
) -> AsyncIterator[Watched]:
    found = Watched(lab, text, folder, logs)
    try:
        yield found
    finally:
        await found.store.close()


def kinds(report: RoundReport) -> list[tuple[str, str]]:
    return [(str(event.kind), event.finding.rule) for event in report.events]


def submit(lab: QueueLab, script: str, *words: str) -> str:
    return str(json.loads(lab.run("submit", *words, "-", stdin=script.encode()).stdout)["id"])


async def test_a_job_that_hangs_is_told_once_by_webhook_and_mail_and_once_that_it_goes_on(
    queue: QueueLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hook_receiver() as hook, mail_receiver() as mail:
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{hook.port}/T00SECRET")
        text = f"""
            [[watch.hanging]]
            name = "train"
            limit_seconds = 1
            [[watch.webhook]]
            url = "http://127.0.0.1:1/NOBODYHERE"
            [[watch.webhook]]
            url_env = "HOOK"
            [[watch.mail]]
            recipients = ["ada@example.org"]
            sender = "hpcdash@example.org"
            host = "127.0.0.1"
            port = {mail.port}
            security = "none"
        """
        async with watched(queue, text, tmp_path) as here:
            job = submit(queue, SILENT_UNTIL_TOLD, "-J", "train")
            report = await here.until(lambda report: report.events)
            assert kinds(report) == [("raised", "is-hanging")]
            assert [delivery.reached for delivery in report.deliveries] == [
                True,
                False,
                True,
            ]
            assert "NOBODYHERE" not in report.deliveries[1].summary
            for _ in range(3):
                assert kinds(await here.round()) == []
            assert (len(hook.requests), len(mail.taken)) == (1, 1)
            (alert,) = json.loads(hook.requests[0].body)["alerts"]
            assert (alert["kind"], alert["subject"], alert["severity"]) == (
                "raised",
                job,
                "critical",
            )
            assert f"job {job} (train): the log" in mail.taken[0].message["Subject"]

            (queue.work / "go").touch()
            report = await here.until(lambda report: report.events)
            assert kinds(report) == [("recovered", "is-hanging")]
            assert report.events[0].text == f"job {job} (train): the log is growing again"
            assert kinds(await here.round()) == []
            assert (len(hook.requests), len(mail.taken)) == (2, 2)
            assert json.loads(hook.requests[1].body)["alerts"][0]["kind"] == "recovered"


async def test_a_round_is_one_look_at_the_queue_and_one_more_command(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = f"""
        [[watch.running]]
        name = "train"
        [[watch.hanging]]
        [[watch.chains]]
        [[watch.storage]]
        path = "{tmp_path}"
    """
    async with watched(queue, text, tmp_path) as here:
        submit(queue, SILENT_UNTIL_TOLD, "-J", "train")
        await here.until(lambda report: ("raised", "no-successor") in kinds(report))
        here.transport.argvs.clear()
        await here.round()
        assert [argv[:2] == ("sh", "-c") for argv in here.transport.argvs] == [False, True]


async def test_a_log_on_a_nodes_own_disk_is_looked_at_there_and_where_that_fails_it_cannot_be_seen(
    queue: QueueLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node")
    monkeypatch.setenv("PATH", f"{tmp_path / 'node' / 'bin'}:{os.environ['PATH']}")
    text = '[[watch.hanging]]\nlimit_seconds = 1\n[[watch.losses]]\nkinds = ["nan"]'
    async with watched(queue, text, tmp_path, node) as here:
        job = submit(queue, SILENT_UNTIL_TOLD, "-J", "train")
        node.log.write_text("step 1 loss 2.5\n")
        assert kinds(await here.until(lambda report: report.events)) == [("raised", "is-hanging")]
        node.log.write_text("step 1 loss 2.5\nstep 2 loss nan\nstep 3 loss nan\n")
        report = await here.until(lambda report: report.events)
        assert set(kinds(report)) == {("recovered", "is-hanging"), ("raised", "loss")}

        node.ssh_does(REFUSES)
        report = await here.round()
        assert kinds(report) == []
        (found,) = (one for one in report.check.findings if one.rule == "is-hanging")
        assert found.text.startswith(
            f"cannot check whether job {job} (train) hangs: the log stays on cn01 until the job "
            "ends, and "
        )
        assert "Permission denied" in found.text
        assert [words for words in report.check.problems if "cannot check" in words] == [found.text]
        # Nothing is over because it is not seen.
        assert {key for key in report.alerts.states if not key.startswith("is-hanging/cannot")} >= {
            f"loss/nan loss/{job}"
        }
        node.ssh_does(REACHES)
        report = await here.round()
        assert not [one for one in report.check.findings if "cannot be seen" in one.text]


async def test_a_long_table_on_a_nodes_own_disk_is_read_under_its_header(
    queue: QueueLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node")
    monkeypatch.setenv("PATH", f"{tmp_path / 'node' / 'bin'}:{os.environ['PATH']}")
    text = '[[watch.losses]]\nkinds = ["nan"]'
    async with watched(queue, text, tmp_path, node) as here:
        submit(queue, SILENT_UNTIL_TOLD, "-J", "train")
        node.log.write_text(
            "step,loss\n" + "".join(f"{step},2.5\n" for step in range(40_000)) + "40000,nan\n"
        )
        assert node.log.stat().st_size > MAX_TAIL_BYTES
        assert kinds(await here.until(lambda report: report.events)) == [("raised", "loss")]


async def test_a_nan_loss_is_told_until_there_are_numbers_and_a_spike_once(
    queue: QueueLab, tmp_path: Path
) -> None:
    def more(first: int, last: int, loss: Callable[[int], float]) -> None:
        written = [
            f"iteration {step}/9000 | loss: {loss(step):.4f} | ms/step: 100000\n"
            for step in range(first, last)
        ]
        (queue.work / "new").write_text("".join(written))
        (queue.work / "new").rename(queue.work / "more")

    def told(report: RoundReport) -> list[tuple[str, str]]:
        return [(str(event.kind), event.finding.aspect) for event in report.events]

    async with watched(queue, '[[watch.losses]]\nname = "train"', tmp_path) as here:
        submit(queue, TRAINING, "-J", "train", "--time=60")
        more(1, 800, lambda step: 2 + step % 7 / 100 + (5 if 300 <= step < 305 else 0))
        report = await here.until(lambda report: report.events)
        assert sorted(told(report)) == [("raised", ""), ("raised", "spike loss@300")]
        assert "to reach its last step, 9000, but its time limit is in" in next(
            one.finding.text for one in report.events if one.finding.rule == "ends-late"
        )
        more(800, 900, lambda step: float("nan"))
        assert told(await here.until(lambda report: report.events)) == [("raised", "nan loss")]
        here.transport.argvs.clear()
        assert told(await here.round()) == []
        assert [argv[:2] == ("sh", "-c") for argv in here.transport.argvs] == [False, True]
        more(900, 1000, lambda step: 2 + step % 7 / 100)
        assert told(await here.until(lambda report: report.events)) == [("recovered", "nan loss")]
        # What another run of the watchdogs, or the dashboard, begins with.
        board = WatchBoard(here.store, here.settings, here.files)
        await board.judge()
        assert {state.finding.aspect for state in board.states} == {"", "spike loss@300"}


async def test_a_path_or_log_that_is_not_there_is_told_after_some_rounds(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = f"""
        [watch]
        unreachable_rounds = 2
        [[watch.losses]]
        name = "train"
        log = "{tmp_path}/{{id}}.log"
        [[watch.storage]]
        path = "{tmp_path}/scrach"
    """
    async with watched(queue, text, tmp_path) as here:
        job = submit(queue, TRAINING, "-J", "train")
        report = await here.until(lambda report: report.events)
        not_seen = "could not be checked 2 times in a row"
        if len(report.events) == 1:
            # The first round came before the job began.
            report = replace(report, events=report.events + (await here.round()).events)
        assert sorted(event.text for event in report.events) == [
            f"{tmp_path}/{job}.log {not_seen}: no such file, or no permission",
            f"{tmp_path}/scrach {not_seen}: no tool reports its usage",
        ]
        (tmp_path / f"{job}.log").touch()
        (tmp_path / "scrach").mkdir()
        over = (await here.round()).events
        assert sorted(event.text for event in over) == [
            f"{tmp_path}/{job}.log can be checked again",
            f"{tmp_path}/scrach can be checked again",
        ]


async def test_a_job_that_neither_runs_nor_waits_is_told_until_it_is_back(
    queue: QueueLab, tmp_path: Path
) -> None:
    async with watched(queue, '[[watch.running]]\nname = "train"', tmp_path) as here:
        submit(queue, "#!/bin/sh\nsleep 60\n", "-J", "train-2")
        report = await here.round()
        assert kinds(report) == [("raised", "is-running")]
        assert report.check.pulses == ["train is neither running nor pending"]
        submit(queue, "#!/bin/sh\nsleep 60\n", "-J", "train", "--hold")
        report = await here.round()
        assert sorted(kinds(report)) == [("raised", "is-running"), ("recovered", "is-running")]
        assert report.check.pulses[0].endswith("is held and will not start until it is released")
        assert "job train is in the queue again as 2" in [event.text for event in report.events]


async def test_what_is_no_longer_configured_did_not_recover(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = (
        '[[watch.hanging]]\nname = "train"\nlimit_seconds = 1\n[[watch.running]]\nname = "gone"\n'
    )
    async with watched(queue, text, tmp_path) as here:
        submit(queue, SILENT_UNTIL_TOLD, "-J", "train")
        await here.until(lambda report: ("raised", "is-hanging") in kinds(report))
        renamed = settings_from_text(
            text.replace("train", "other").replace("gone", "there"), tmp_path / "c.toml"
        ).watch
        report = await here.round(settings=renamed)
        ended = [event for event in report.events if event.kind.is_end]
        assert {(str(event.kind), event.finding.rule) for event in ended} == {
            ("unwatched", "is-running"),
            ("unwatched", "is-hanging"),
        }
        assert "no job gone" in next(
            event.text for event in ended if event.finding.rule == "is-running"
        )
        assert kinds(await here.round(settings=renamed)) == []
        await here.until(lambda report: ("raised", "is-hanging") in kinds(report))
        queue.run("cancel", "1")
        # Of a job that is over nothing is left to be watched.
        report = await here.until(lambda report: any(event.kind.is_end for event in report.events))
        assert [event.text for event in report.events if event.kind.is_end] == [
            "job 1 (train) has ended"
        ]


async def test_a_cluster_that_cannot_be_reached_is_told_after_some_rounds_and_nothing_else_is_over(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = '[watch]\nunreachable_rounds = 3\n[[watch.running]]\nname = "train"'
    async with watched(queue, text, tmp_path) as here:
        assert kinds(await here.round()) == [("raised", "is-running")]
        here.transport.connect_error = ConnectionFailed("no route to here", "Is the network up?")
        for _ in range(2):
            report = await here.round()
            assert (kinds(report), report.check.is_reached) == ([], False)
        report = await here.round()
        assert kinds(report) == [("raised", "unreachable")]
        assert "no route to here" in report.events[0].finding.text
        assert kinds(await here.round()) == []
        here.transport.connect_error = None
        assert kinds(await here.round()) == [("recovered", "unreachable")]
        submit(queue, "#!/bin/sh\nsleep 60\n", "-J", "train")
        assert kinds(await here.round()) == [("recovered", "is-running")]


async def test_a_train_with_nothing_behind_it_is_told_and_one_that_goes_on_is_not(
    queue: QueueLab, tmp_path: Path
) -> None:
    async with watched(queue, '[[watch.chains]]\nname = "train"', tmp_path) as here:
        first = submit(queue, SILENT_UNTIL_TOLD, "-J", "train")
        report = await here.until(lambda report: report.events)
        assert kinds(report) == [("raised", "no-successor")]
        submit(queue, SILENT_UNTIL_TOLD, "-J", "train", f"--dependency=afterany:{first}")
        assert kinds(await here.round()) == [("recovered", "no-successor")]


async def test_a_job_that_ends_before_its_next_save_is_told_by_what_a_pattern_says(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = f"""
        [[watch.saves]]
        name = "train"
        interval_seconds = "1h"
        save_seconds = 40
        spare_seconds = 0
        saved = "{tmp_path}/{{id}}/*.pt"
    """
    async with watched(queue, text, tmp_path) as here:
        job = submit(queue, SILENT_UNTIL_TOLD, "-J", "train", "--time=30")
        (tmp_path / job).mkdir()
        (tmp_path / job / "1.pt").touch()
        report = await here.until(lambda report: report.events)
        assert kinds(report) == [("raised", "end-before-save")]
        short = text.replace('"1h"', '"10m"')
        settings = settings_from_text(short, tmp_path / "config.toml").watch
        assert kinds(await here.round(settings=settings)) == [("recovered", "end-before-save")]


async def test_a_job_that_does_not_save_where_its_launch_says_is_told_once_and_that_it_saves_again(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = """
        [[watch.saves]]
        name = "train"
        interval_seconds = 10
        save_seconds = 5
    """
    async with watched(queue, text, tmp_path) as here:
        here.store.scripts = ScriptStore(tmp_path / "scripts")
        task = f"{submit(queue, SILENT_UNTIL_TOLD, '-J', 'train', '--array=4')}_4"
        records = LaunchRecords(tmp_path, "here")
        request = f'checkpoints = "saved/%a%%"\nwork_dir = "{tmp_path}"'
        await here.until(
            lambda report: here.store.snapshots[Kind.MINE].table["state"].to_pylist() == ["running"]
        )
        here.store.clock = FrozenClock(here.store.clock.now() + 60)
        # Where nobody says where it saves, nobody knows that it does not.
        assert kinds(await here.round()) == []
        records.launched(
            LaunchRecord("", "", task.partition("_")[0], "train", "", "", 1, 0.0, request)
        )
        here.transport.argvs.clear()
        report = await here.round()
        assert kinds(report) == [("raised", "no-save")]
        assert len(here.transport.argvs) == 2
        words = report.events[0].text
        assert f"job {task} (train): no save in " in words
        assert words.endswith(f"no complete checkpoint yet: {tmp_path}/saved/4%")
        assert kinds(await here.round()) == []
        with Checkpoints(tmp_path / "saved" / "4%").saving(1) as inside:
            (inside / "model").write_text("x")
        report = await here.round()
        assert kinds(report) == [("recovered", "no-save")]
        assert (
            report.events[0].text
            == f"job {task} (train): the job saved again, or the next save is not overdue"
        )


async def test_a_dry_run_tells_nobody_and_changes_nothing(queue: QueueLab, tmp_path: Path) -> None:
    async with hook_receiver() as hook:
        text = (
            '[[watch.running]]\nname = "t"\n[[watch.webhook]]\nurl = '
            f'"http://127.0.0.1:{hook.port}/"'
        )
        async with watched(queue, text, tmp_path) as here:
            for _ in range(2):
                report = await here.round(dry_run=True)
                assert kinds(report) == [("raised", "is-running")]
                assert (len(report.alerts.states), (tmp_path / "state").exists()) == (1, False)
                assert report.deliveries[0].summary.startswith("would be sent: json webhook")
            assert hook.requests == []
            assert (await here.round()).alerts.states
            assert len(hook.requests) == 1
            with here.files.alone():
                assert kinds(await here.round(dry_run=True)) == []


async def test_what_reached_nobody_is_told_by_the_next_round(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = '[[watch.running]]\nname = "t"\n[[watch.command]]\nargv = ["PROGRAM"]'
    program = tmp_path / "tell"
    async with watched(queue, text.replace("PROGRAM", str(program)), tmp_path) as here:
        assert (await here.round()).deliveries[0].summary.startswith("not sent")
        program.write_text(f"#!/bin/sh\ncat > {tmp_path}/told\n")
        program.chmod(0o755)
        assert kinds(await here.round()) == [("raised", "is-running")]
        assert json.loads((tmp_path / "told").read_bytes())["alerts"][0]["rule"] == "is-running"
        assert kinds(await here.round()) == []


async def test_a_channel_that_was_down_is_told_alone_once_it_is_up(
    queue: QueueLab, tmp_path: Path
) -> None:
    async with hook_receiver() as up, hook_receiver() as down:
        text = "".join(
            f'[[watch.webhook]]\nurl = "http://127.0.0.1:{hook.port}/"\n' for hook in (up, down)
        )
        async with watched(queue, '[[watch.running]]\nname = "t"\n' + text, tmp_path) as here:
            down.answers = [answer("503 Service Unavailable")] * 4
            report = await here.round()
            assert [(one.reached, one.attempts) for one in report.deliveries] == [
                (True, 1),
                (False, 3),
            ]
            report = await here.round()
            (again,) = report.again
            assert again[0] == f"json webhook at http://127.0.0.1:{down.port}"
            assert [(one.reached, one.attempts) for one in report.deliveries] == [(False, 1)]
            assert (len(up.requests), len(down.requests)) == (1, 4)
            report = await here.round()
            assert (kinds(report), [one.reached for one in report.deliveries]) == (
                [],
                [True],
            )
            assert json.loads(down.requests[-1].body)["alerts"][0]["kind"] == "raised"
            report = await here.round()
            assert (report.again, report.deliveries) == ((), ())
            assert (len(up.requests), len(down.requests)) == (1, 5)


async def test_where_the_state_cannot_be_written_all_is_told_once_and_that_is_said_once(
    queue: QueueLab, tmp_path: Path, small_disk: Path
) -> None:
    told = tmp_path / "told"
    tell = f'[[watch.command]]\nargv = ["sh", "-c", "cat >> {told}"]\n'
    async with watched(queue, '[[watch.running]]\nname = "t"\n' + tell, tmp_path) as here:
        here.files = WatchFiles(small_disk, "here")
        with contextlib.suppress(OSError):
            (small_disk / "full").write_bytes(b"x" * 262144)
        report = await here.round()
        assert (kinds(report), report.is_saved) == ([("raised", "is-running")], False)
        (problem,) = report.problems
        assert "No space left on device; until then another run may send them again" in problem
        report = await here.round()
        assert (kinds(report), report.problems, report.is_saved) == ([], (), False)

        # Another run, which remembers nothing.
        here.files = WatchFiles(small_disk, "here")
        report = await here.round()
        assert (report.deliveries, report.is_saved, len(report.problems)) == ((), False, 2)
        assert "this could not be saved" in report.problems[1]
        assert told.read_text().count('"raised"') == 1

        (small_disk / "full").unlink()
        here.files = WatchFiles(small_disk, "here")
        report = await here.round()
        assert (report.deliveries, report.is_saved) == ((), True)
        submit(queue, "#!/bin/sh\nsleep 60\n", "-J", "t")
        assert kinds(await here.round()) == [("recovered", "is-running")]
        assert told.read_text().count('"recovered"') == 1
        queue.run("cancel", "1")
        await here.until(lambda report: kinds(report) == [("raised", "is-running")])
        assert told.read_text().count('"raised"') == 2


async def test_two_do_not_watch_one_cluster_at_a_time(queue: QueueLab, tmp_path: Path) -> None:
    async with watched(queue, "[watch]", tmp_path) as here:
        with (
            here.files.alone(),
            pytest.raises(
                HpcdashError, match="another hpcdash watch is already watching this cluster"
            ),
        ):
            await here.round()
        await here.round()


async def test_a_state_that_cannot_be_read_is_said_and_begun_anew(
    queue: QueueLab, tmp_path: Path
) -> None:
    async with watched(queue, "[watch]", tmp_path) as here:
        await here.round()
        database = StateDatabase(tmp_path / "state")
        database.write(("UPDATE alerts SET content = ?", (b'{"schema": 1, "logs": 3',)))
        (problem,) = (await here.round()).problems
        assert "alerts will be sent again" in problem
        assert (await here.round()).problems == ()
        assert database.path.stat().st_mode & 0o077 == 0


async def test_the_dashboard_begins_with_what_is_known_asks_nothing_and_tells_once(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = (
        '[watch]\nsnooze_seconds = "1h"\n[[watch.running]]\nname = '
        '"a"\n[[watch.running]]\nname = "b"'
    )
    async with watched(queue, text, tmp_path) as here:
        only_a = replace(here.settings, running=here.settings.running[:1])
        await here.round(settings=only_a)
        board = WatchBoard(here.store, here.settings, here.files)
        here.transport.argvs.clear()
        (event,) = await board.judge()
        assert event.finding.text.startswith("no job b")
        assert await board.judge() == ()
        assert (board.count, len(board.states), here.transport.argvs) == (2, 2, [])

        board.toggle_snooze(event.key)
        assert board.count == 1
        # The watchdogs in the background hear of it.
        assert kinds(await here.round()) == []
        board.toggle_snooze(event.key)
        assert kinds(await here.round()) == [("raised", "is-running")]


async def test_what_was_seen_long_ago_is_no_sign_that_a_job_hangs_now(
    queue: QueueLab, tmp_path: Path
) -> None:
    async with watched(queue, '[[watch.hanging]]\nlimit_seconds = "30m"', tmp_path) as here:
        job = submit(queue, SILENT_UNTIL_TOLD, "-J", "train")
        board = WatchBoard(here.store, here.settings, here.files)
        await here.until(
            lambda report: here.store.snapshots[Kind.MINE].table["state"].to_pylist() == ["running"]
        )
        assert await board.check() == ()
        now = here.store.clock.now()
        here.store.clock = FrozenClock(now + 3600)
        (row,) = here.store.snapshots[Kind.MINE].table.to_pylist()
        assert (row["id"], await board.judge()) == (job, ())


async def test_of_what_is_found_no_more_it_says_what_is_true_now(
    queue: QueueLab, tmp_path: Path
) -> None:
    text = f"""
        [[watch.losses]]
        kinds = ["nan", "limit"]
        [[watch.chains]]
        [[watch.saves]]
        name = "train"
        interval_seconds = "1h"
        save_seconds = 40
        [watch.nodes]
        [[watch.storage]]
        path = "{tmp_path}"
    """

    def found(rule: str, subject: str, aspect: str = "") -> Finding:
        return Finding(rule, subject, Severity.WARNING, "x", aspect=aspect, name="train")

    async with watched(queue, text, tmp_path) as here:
        job = submit(queue, SILENT_UNTIL_TOLD, "-J", "train")
        waits = submit(queue, SILENT_UNTIL_TOLD, "-J", "next", "--hold")
        await here.until(
            lambda report: "running" in here.store.snapshots[Kind.MINE].table["state"].to_pylist()
        )
        watching = Watching(here.store, here.settings)
        await watching.check()
        (node,) = here.store.snapshots[Kind.NODES].table["name"].to_pylist()
        who = f"job {job} (train)"
        said = {
            found("loss", job, "nan loss"): f"{who}: loss is no longer NaN",
            found("loss", job, "plateau loss"): None,
            found("loss", waits, "nan loss"): f"job {waits} (train) is no longer running: held",
            found(
                "ends-late", job
            ): f"{who}: the job will finish in time, or enough successors are queued",
            found("is-hanging", job): None,
            found("end-before-save", job): f"{who}: the job will save before it ends",
            found("grace-too-short", job): f"{who}: there is enough time to save before preemption",
            found("grace-too-short", waits): None,
            found("no-save", job): None,
            found("end-before-save", "99"): "job 99 (train) has ended",
            found("no-successor", job): f"{who}: enough successors are queued",
            found("never-starts", job): f"{who} has started",
            found("never-starts", "99"): "job 99 (train) is no longer in the queue",
            found("storage", str(tmp_path), "bytes"): f"{tmp_path}: enough free space again",
            found("storage", "/elsewhere", "bytes"): None,
            found("drained-nodes", "n99"): "node n99 is no longer listed",
            found("spare-nodes", "all nodes"): "enough spare nodes again",
            found("spare-nodes", "gpu"): None,
            found("fails-on-a-node", "train of me"): None,
            found("unreachable", "here"): f"{here.store.title} is responding again",
        }
        for finding, words in said.items():
            ending = find_ending(watching, finding)
            assert ending == words, finding
        assert (find_ending(watching, found("drained-nodes", node)) or "").startswith(
            f"node {node} is back: "
        )


async def test_tasks_of_a_shared_pool_are_judged_by_what_its_coordinator_published(
    queue: QueueLab, tmp_path: Path
) -> None:
    file = tmp_path / "pool.json"
    run = {
        "run": 1,
        "level": "NORMAL",
        "started_at": "2026-11-21T06:00:00Z",
        "ended_at": "2026-11-21T07:00:00Z",
    }
    task = {
        "id": "7",
        "user": "ada",
        "name": "t",
        "nodes": 1,
        "priority": "NORMAL",
        "level": None,
        "why": "behind",
    }
    task |= {
        "state": "waiting",
        "place": 1,
        "submitted_at": run["started_at"],
        "since": None,
        "demotion_at": None,
    }
    task |= {"is_demoted": False, "suspended": 1, "runs": [{**run, "how": "slow"}]}
    pool = {
        "schema": 1,
        "pool": "lab",
        "coordinator": "c",
        "nodes": 1,
        "nodes_usable": 1,
        "nodes_used": 0,
    }
    pool |= {
        "grace_seconds": 5.0,
        "demote_after_seconds": 1800.0,
        "least_gpus": 0,
        "choosers": [],
        "quotas": [],
    }

    def published(*tasks: dict[str, Any], taken_at: float) -> None:
        moment = datetime.fromtimestamp(int(taken_at), UTC).isoformat()
        file.write_text(
            json.dumps({**pool, "taken_at": moment, "tasks": tasks, "tasks_left_out": 0})
        )

    lab = PoolSettings("lab", 1, state_file=str(file))
    async with watched(queue, '[watch.pools]\nusers = ["ada"]', tmp_path) as here:
        report = await here.round(shared=(lab,))
        assert kinds(report) == []
        assert "pool lab has no published state" in report.check.problems[0]
        now = here.store.clock.now()
        published(task, taken_at=now)
        assert kinds(await here.round(shared=(lab,))) == [
            ("raised", "no-turn"),
            ("raised", "slow-save"),
        ]
        # A file that cannot be read ends nothing.
        file.write_text("{")
        assert kinds(await here.round(shared=(lab,))) == []
        published(
            {**task, "state": "running", "runs": [{**run, "how": "suspended"}]}, taken_at=now - 3600
        )
        report = await here.round(shared=(lab,))
        assert kinds(report) == [
            ("raised", "pool-silent"),
            ("recovered", "no-turn"),
            ("recovered", "slow-save"),
        ]
        assert [event.text for event in report.events[1:]] == [
            "job 7 (t): got its turn",
            "job 7 (t) saved when it was interrupted",
        ]
        report = await here.round(shared=(lab,), settings=replace(here.settings, pools=()))
        assert kinds(report) == [("unwatched", "pool-silent")]


async def test_others_jobs_are_asked_for_only_where_a_rule_is_about_them(
    queue: QueueLab, tmp_path: Path
) -> None:
    async with watched(queue, '[[watch.running]]\nname = "a"', tmp_path) as here:
        await here.store.open()
        own = Watching(here.store, here.settings)
        assert own.kinds == {Kind.MINE}
        (rule,) = here.settings.running
        others = replace(rule, selector=replace(rule.selector, users=("bob",)))
        assert Watching(here.store, replace(here.settings, running=(others,))).kinds == {
            Kind.EVERYONE
        }
        elsewhere = replace(others, selector=replace(others.selector, clusters=("juno",)))
        assert Watching(here.store, replace(here.settings, running=(elsewhere,))).kinds == {
            Kind.MINE
        }


def test_what_a_qos_or_a_queue_does_is_read_from_its_words() -> None:
    words = {
        "a preempted job": "is cancelled and takes turns with others",
        "grace time": "2:00",
    }
    assert read_qos(words, 0.0) == QosState(0.0, "cancel", 120.0, is_preempted=False)
    none = {"a preempted job": "is put back into the queue", "grace time": "none"}
    assert read_qos({**none, "may be preempted by": "high"}, 0.0) == QosState(
        0.0, "requeue", 0.0, is_preempted=True
    )
    assert read_qos({}, 0.0) == QosState(0.0, "", None, is_preempted=False)


def test_two_days_of_figures_are_kept_and_no_more() -> None:
    samples: list[tuple[float, int]] = []
    for minute in range(4 * 24 * 60):
        add_sample(samples, minute * 60.0, minute)
    assert len(samples) == MAX_SAMPLES
    assert samples[-1] == ((4 * 24 * 60 - 1) * 60.0, 4 * 24 * 60 - 1)
    assert samples[-2][0] - samples[0][0] == pytest.approx(
        (MAX_SAMPLES - 2) * SAMPLE_EVERY_SECONDS, rel=0.1
    )
    assert WatchState().disks == {}
