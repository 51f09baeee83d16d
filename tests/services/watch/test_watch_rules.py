"""What watchdogs find in snapshots: each rule finds its trouble, and is silent where there is
none.
"""

from __future__ import annotations

from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from hpcdash.backends.base import ReasonsPart
from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.config.watch_settings import (
    ChainRule,
    FailuresRule,
    HangingRule,
    LossesRule,
    NodesRule,
    PoolsRule,
    SavesRule,
)
from hpcdash.domain.alerts import Finding, Severity, finding_key
from hpcdash.domain.chains import find_chain
from hpcdash.domain.schema import NODES
from hpcdash.services.share.state import Pool, Run, Task
from hpcdash.services.submit.launch_records import LaunchedCheckpoints, LaunchRecord, LaunchRecords
from hpcdash.services.watch.alerts import rule_title
from hpcdash.services.watch.judge import ALL_RULES
from hpcdash.services.watch.rules.jobs import (
    HANGING,
    find_ending_allocations,
    find_hanging,
    find_never_starting,
    find_not_running,
    find_unfollowed,
    format_pulse,
    living_rows,
)
from hpcdash.services.watch.rules.losses import find_losses
from hpcdash.services.watch.rules.nodes import (
    find_failing_nodes,
    find_few_spares,
    find_out_of_use,
)
from hpcdash.services.watch.rules.places import unseen_log
from hpcdash.services.watch.rules.pools import find_silent_pool, find_stuck, is_selected
from hpcdash.services.watch.rules.saves import (
    Saves,
    find_end_before_save,
    find_no_save,
    find_short_grace,
)
from hpcdash.services.watch.state import LogState, LogTail, Moment, QosState, WatchedMetric
from tests.support.job_rows import BEGIN, at, build_table, job_row, task_row
from tests.support.records import for_each

NOW = at(600)
HOUR = 3600.0


def nodes(**states: int) -> pa.Table:
    """Nodes by state and count, in queue gpu."""
    rows = [
        {"name": f"{state}{number}", "state": state, "queues": ["gpu"], "flags": []}
        for state, count in states.items()
        for number in range(count)
    ]
    return build_table(*rows, schema=NODES)


class _Either(ReasonsPart):
    """Reasons of Slurm and of PBS, in no more words than the scheduler's own."""

    def never_starts(self, state: str, reason: str | None) -> str:
        return SLURM.reasons.never_starts(state, reason) or PBS.reasons.never_starts(state, reason)


EITHER = _Either()


class TestIsRunning:
    def test_neither_running_nor_pending_is_told(self) -> None:
        (found,) = find_not_running(
            build_table(job_row("1", "completed"), job_row("2", "failed")), "train"
        )
        assert found.severity is Severity.CRITICAL
        assert found.text == "no job train is running or pending"

    @for_each("state", ["running", "pending", "completing", "suspended", "requeued", "unknown"])
    def test_any_that_lives_is_enough(self, state: str) -> None:
        assert find_not_running(build_table(job_row("1", state)), "train", ("bob", "alice")) == []

    @for_each("name", ["train-2", "Train", "train ", "trai", "*"])
    def test_the_name_is_exact(self, name: str) -> None:
        assert find_not_running(build_table(job_row("1", "running", name=name)), "train")

    def test_another_users_job_of_that_name_does_not_count(self) -> None:
        (found,) = find_not_running(build_table(job_row("1", "running")), "train", ("bob",))
        assert (found.subject, found.text) == (
            "train of bob",
            "no job train of bob is running or pending",
        )

    def test_one_that_is_held_will_not_run(self) -> None:
        (found,) = find_not_running(build_table(job_row("1", "held")), "train")
        assert (found.severity, found.next_step) == (Severity.WARNING, "hpcdash release 1")
        assert (
            find_not_running(build_table(job_row("1", "held"), job_row("2", "running")), "train")
            == []
        )

    def test_a_hostile_name_is_made_visible(self) -> None:
        (found,) = find_not_running(build_table(), "a\n\x1b]0;b")
        assert found.text.isprintable()


class TestPulse:
    def text(self, *rows: dict[str, Any]) -> str:
        return format_pulse("train", living_rows(build_table(*rows), "train"), NOW, EITHER)

    def test_a_task_behind_its_array(self) -> None:
        assert self.text(task_row("88", "2", reason="JobArrayTaskLimit")) == (
            "train (88_2) waits for the running task of its array to end"
        )

    def test_one_that_depends_on_another(self) -> None:
        assert self.text(
            job_row("9", "pending", "afterany:8(unfulfilled)", reason="Dependency")
        ) == ("train (9) waits for its dependency to end (afterany:8(unfulfilled))")
        assert "never start" in self.text(job_row("9", reason="DependencyNeverSatisfied"))

    def test_an_estimated_start(self) -> None:
        words = self.text(job_row("9", reason="Priority", _expected_start_at=at(690)))
        assert words == (
            "train (9) should start in 1 h 30 min (scheduler's estimate), at 2026-11-20 "
            "11:30:00 (Priority)"
        )
        assert "without an estimated start" in self.text(job_row("9", reason="Resources"))
        assert "the scheduler estimated its start at 2026-11-20 09:00:00" in self.text(
            job_row("9", _expected_start_at=at(540))
        )

    def test_the_one_that_runs_counts(self) -> None:
        words = self.text(
            job_row("9", reason="Priority"),
            job_row("8", "running", started=540, ended=660, node_list="n[1-2]"),
        )
        assert words == "train (8) has been running for 1 h on n[1-2], 1 h left"

    def test_nothing_left(self) -> None:
        assert self.text(job_row("8", "completed")) == "train is neither running nor pending"


def test_every_rule_has_a_title_in_words() -> None:
    for key in (*ALL_RULES, "unreachable/"):
        rule = key.rstrip("/")
        assert rule_title(rule) != rule
    assert rule_title("loss", "nan loss") == "Loss is NaN"
    assert rule_title("loss", "spike train_loss@300") == "Loss spike"


class TestIsHanging:
    rule = HangingRule(limit_seconds=1800)

    def found(self, grown: float, row: dict[str, Any]) -> list[Finding]:
        """Those of a job whose log has 10 bytes since the minute `grown`."""
        log = LogState(10, at(grown).timestamp())
        return find_hanging(row, "/w/8.out", log, self.rule, NOW.timestamp())

    def test_a_log_that_has_not_grown_for_longer_than_the_limit(self) -> None:
        (found,) = self.found(569, job_row("8", "running", started=0))
        assert found.text == "job 8 (train): the log has not grown for 31 min: /w/8.out"
        assert self.found(571, job_row("8", "running", started=0)) == []

    def test_a_job_that_has_just_begun_with_an_old_log_does_not_hang(self) -> None:
        assert self.found(0, job_row("8", "running", started=590)) == []

    def test_a_log_that_nobody_can_look_at_is_no_silence_and_wakes_nobody(self) -> None:
        row = job_row("8", "running", name=None)
        found = unseen_log(HANGING, row, "the log is on n7 until the job ends")
        assert found.text == "cannot check whether job 8 hangs: the log is on n7 until the job ends"
        assert (found.severity, found.key) == (Severity.INFO, "is-hanging/cannot be seen/8")

    def test_growth_and_truncation_count_as_writing(self) -> None:
        log = LogState(None, 0.0)
        for now, size in ((10.0, None), (20.0, 5), (30.0, 5), (40.0, 3), (50.0, 3)):
            log.note(size, now)
        assert (log.size_bytes, log.same_since) == (3, 40.0)
        log.note(3, 60.0, 5.0, 55.0)
        log.note(3, 70.0, 1.0, 69.0)
        assert log.same_since == 70.0

    def test_what_a_log_got_since_the_last_look_is_of_now_unless_that_look_is_long_past(
        self,
    ) -> None:
        day = 86_400.0
        log = LogState(None, 0.0)
        log.note(5, day, 7200.0, 0.0)
        assert log.same_since == day - 7200
        log.note(6, day + 600, 2400.0, 1.0)
        assert log.same_since == day + 600
        for now, same_since in ((2 * day, 2 * day - 5 * 3600), (day + 1200, day + 600)):
            later = replace(log)
            later.note(7, now, 5 * 3600.0, 2.0)
            assert later.same_since == same_since


class TestNodes:
    def test_drained_nodes_with_reason_and_since_when(self) -> None:
        table = nodes(idle=1, drained=1, allocated=1).to_pylist()
        table[1] |= {"reason": "GPU 3\x07 fell off", "reason_by": "root", "reason_since": at(5)}
        (found,) = find_out_of_use(build_table(*table, schema=NODES), NodesRule())
        assert (
            found.text
            == "node drained0 is drained, since 2026-11-20 00:05 UTC: GPU 3␇ fell off (by root)"
        )

    def test_only_the_queues_that_are_meant(self) -> None:
        assert (
            find_out_of_use(nodes(drained=1, down=1, draining=1), NodesRule(queues=("cpu",))) == []
        )
        assert (
            len(
                find_out_of_use(
                    nodes(drained=1, down=1, draining=1), NodesRule(queues=("cpu", "gpu"))
                )
            )
            == 3
        )

    @for_each(
        ("idle", "in_use", "told"), [(23, 47, False), (5, 100, False), (4, 100, True), (0, 1, True)]
    )
    def test_spares_are_a_share_of_those_in_use(self, idle: int, in_use: int, told: bool) -> None:
        assert (
            bool(
                find_few_spares(
                    nodes(idle=idle, allocated=in_use - in_use // 2, mixed=in_use // 2),
                    NodesRule(),
                )
            )
            is told
        )

    def test_nothing_in_use_needs_no_spares_and_a_node_in_maintenance_is_none(self) -> None:
        assert find_few_spares(nodes(idle=0, down=3), NodesRule()) == []
        table = nodes(idle=1, allocated=1).to_pylist()
        table[0]["flags"] = ["maint"]
        (found,) = find_few_spares(build_table(*table, schema=NODES), NodesRule())
        assert found.text == "0 idle and 1 busy nodes: 0.0% spare, below 5%"


class TestSuccessors:
    def found(self, *rows: dict[str, Any], rule: ChainRule | None = None) -> list[Finding]:
        train = find_chain(rows[0]["id"], rows)
        assert train is not None
        return find_unfollowed(train, EITHER, rule or ChainRule())

    def test_the_last_of_a_train(self) -> None:
        (found,) = self.found(task_row("88", "9", "completed"), task_row("88", "10", "running"))
        assert found.text == "train (88_10) is running with no successor queued"
        assert found.next_step.endswith("--after 88_10")

    def test_a_task_or_a_job_behind_it(self) -> None:
        assert self.found(task_row("88", "1", "running"), task_row("88", "3-10%1")) == []
        assert (
            self.found(job_row("8", "running"), job_row("9", "pending", "afterany:8(unfulfilled)"))
            == []
        )

    def test_fewer_than_wanted(self) -> None:
        rows = (job_row("8", "running"), job_row("9", "pending", "afterany:8(unfulfilled)"))
        (found,) = self.found(*rows, rule=ChainRule(fewest_waiting=2))
        assert found.text == "train (8) is running with 1 successor queued"

    def test_those_that_are_held_or_never_start_do_not_count(self) -> None:
        behind = (
            job_row("9", "held", "afterany:8(unfulfilled)", reason="JobHeldUser"),
            job_row("10", "pending", "afterok:8(failed)", reason="DependencyNeverSatisfied"),
        )
        (found,) = self.found(job_row("8", "running"), *behind)
        assert found.text == (
            "train (8) is running with no successor queued, plus 1 held and 1 that will never start"
        )

    def test_a_held_job_that_never_starts_counts_once(self) -> None:
        behind = job_row("9", "held", "afterok:8(failed)", reason="DependencyNeverSatisfied")
        (found,) = self.found(job_row("8", "running"), behind)
        assert found.text == (
            "train (8) is running with no successor queued, plus 1 that will never start"
        )

    def test_a_train_that_does_not_run_is_not_for_this_rule(self) -> None:
        assert self.found(job_row("8")) == []


class TestDeadlines:
    plan = SavesRule(interval_seconds=3 * HOUR, save_seconds=40)

    def ending(self, ends: float, saved: float | None, started: float = 0) -> list[Finding]:
        row = job_row("8", "running", started=started, ended=ends)
        last = None if saved is None else at(saved).timestamp()
        return find_end_before_save(Saves(row, self.plan, last), NOW.timestamp())

    def test_the_limit_comes_before_the_next_save(self) -> None:
        (found,) = self.ending(ends=660, saved=500)
        assert found.severity is Severity.WARNING
        assert (
            found.text == "job 8 (train) ends in 1 h but finishes its next save in 1 h 20 min: "
            "2 h 40 min of training would be lost"
        )
        assert "save-switch 8" in found.next_step

    def test_there_is_time_for_the_next_save(self) -> None:
        assert self.ending(ends=690, saved=500) == []

    def test_too_late_even_for_a_save_now(self) -> None:
        (found,) = self.ending(ends=601, saved=500)
        assert found.severity is Severity.CRITICAL

    def test_a_job_that_never_saved_counts_from_its_start_not_from_the_last_jobs_save(self) -> None:
        (found,) = self.ending(ends=660, saved=None, started=500)
        assert self.ending(ends=660, saved=10, started=500) == [found]

    def silent(self, saved: float | None, started: float = 0, **given: Any) -> list[Finding]:
        row = job_row("8", "running", started=started, ended=2000)
        last = None if saved is None else at(saved).timestamp()
        rule = given.pop("rule", self.plan)
        known = Saves(row, rule, last, **({"place": "/scratch/ck"} | given))
        pending = Saves(job_row("9", qos="high"), self.plan, place="/scratch/ck")
        assert find_no_save(pending, NOW.timestamp()) == []
        return find_no_save(known, NOW.timestamp())

    def test_a_job_that_does_not_save_is_told_after_three_intervals_and_the_time_of_a_save(
        self,
    ) -> None:
        assert self.silent(saved=60) == []
        (found,) = self.silent(saved=50, newest="step-00000012")
        assert (found.severity, found.subject) == (Severity.WARNING, "8")
        assert found.text == (
            "job 8 (train): no save in 3 intervals of 3 h; "
            "the newest complete checkpoint, step-00000012, is 9 h 10 min old: /scratch/ck"
        )
        assert found.next_step == "hpcdash log 8 -f; hpcdash save-switch 8"
        pattern = replace(self.plan, saved="/scratch/*.pt")
        (found,) = self.silent(saved=None, place="/scratch/*.pt", rule=pattern)
        assert (
            found.text == "job 8 (train): no save in 3 intervals of 3 h; no file yet: /scratch/*.pt"
        )
        assert "no complete checkpoint yet: /scratch/ck" in self.silent(saved=None)[0].text

    def test_a_job_that_has_just_begun_with_an_old_checkpoint_or_whose_saves_nobody_looks_for_is_not_told(
        self,
    ) -> None:
        assert self.silent(saved=10, started=300) == []
        assert self.silent(saved=None, place="") == []

    def test_before_its_end_nothing_is_said_of_a_save_that_does_not_come(self) -> None:
        row = job_row("8", "running", started=0, ended=690)

        def ending(**given: Any) -> list[Finding]:
            return find_end_before_save(Saves(row, self.plan, **given), NOW.timestamp())

        # There is time for one that is late, but not where it has missed three.
        assert ending(last_saved_at=at(400).timestamp(), place="/scratch/ck") == []
        (found,) = ending(place="/scratch/ck")
        assert found.severity is Severity.WARNING
        assert found.text == (
            "job 8 (train) ends in 1 h 30 min and has not saved for 10 h: 11 h 30 min of "
            "training would be lost"
        )
        row = job_row("8", "running", started=0, ended=600.8)
        (found,) = ending()
        assert found.text == (
            "job 8 (train) ends in 48 s and its last save is unknown: up to 10 h of training would "
            "be lost"
        )

    def test_less_lost_than_a_save_takes_is_not_worth_one(self) -> None:
        assert self.ending(ends=600.5, saved=599.8) == []

    @for_each(
        ("mode", "grace", "told"),
        [
            ("REQUEUE", 30, True),
            ("cancel", 30, True),
            ("SUSPEND,REQUEUE", 1, True),
            ("REQUEUE", 40, False),
            ("REQUEUE", None, False),
            ("OFF", 0, False),
            ("SUSPEND,GANG", 0, False),
        ],
    )
    def test_a_preemption_shorter_than_a_save(
        self, mode: str, grace: float | None, told: bool
    ) -> None:
        def found(*rows: dict[str, Any]) -> list[str]:
            qos = {"low": QosState(0.0, mode, grace)}
            keys = {one.key for row in rows for one in find_short_grace(row, self.plan, qos, {})}
            return [key.rpartition("/")[2] for key in keys]

        assert found(job_row("8", "running", qos="low")) == (["8"] if told else [])
        assert found(job_row("9", qos="high")) == []
        tasks = [job_row(job_id, array_id="9", qos="low") for job_id in ("9_1", "9_[2-5%1]")]
        assert found(*tasks) == (["9"] if told else [])

    def test_a_partition_preempts_where_the_qos_does_not_and_says_how_where_the_qos_only_says_that(
        self,
    ) -> None:
        row = job_row("8", "running", qos="normal", queue="low,other")
        queues = {"low": QosState(0.0, "cancel", 10)}
        qos = {"normal": QosState(0.0, is_preempted=False)}
        (found,) = find_short_grace(row, self.plan, qos, queues)
        assert found.text == (
            "job 8 (train): its partition low is preemptible (cancel) with 10 s of grace; a "
            "save takes 40 s"
        )
        assert find_short_grace(row, self.plan, {"normal": QosState(0.0, "", 60)}, queues) == []
        (found,) = find_short_grace(row, self.plan, {"normal": QosState(0.0, "", 0)}, queues)
        assert "its QoS normal is preemptible (cancel)" in found.text
        safe = {"low": QosState(0.0, "cancel", 10, is_preempted=False)}
        assert find_short_grace(row, self.plan, qos, safe) == []


class TestWaiting:
    @for_each(
        "reason",
        [
            "DependencyNeverSatisfied",
            "QOSMaxWallDurationPerJobLimit",
            "AssocMaxCpuPerJobLimit",
            "QOSMaxGRESPerNode",
            "QOSMinCpuNotSatisfied",
            "PartitionTimeLimit",
            "PartitionNodeLimit",
            "BadConstraints",
            "Job's QOS not permitted to use this partition (gpu allows a not b)",
            "Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 96 T: 96)",
            "Insufficient amount of resource: mem (R: 4tb A: 100gb T: 1tb)",
            "Not enough total nodes available",
        ],
    )
    def test_reasons_that_never_resolve(self, reason: str) -> None:
        (found,) = find_never_starting(
            build_table(job_row("9", reason=reason), job_row("10", "running", reason=reason)),
            EITHER,
        )
        assert reason in found.text
        assert found.next_step
        assert "{" not in found.next_step

    @for_each(
        "reason",
        [
            None,
            "Priority",
            "Resources",
            "Dependency",
            "QOSMaxJobsPerUserLimit",
            "AssocGrpCpuLimit",
            "QOSMaxGRESPerUser",
            "ReqNodeNotAvail, UnavailableNodes:g[1-2]",
            "Insufficient amount of resource: ncpus (R: 64 A: 4 T: 96)",
            "JobHeldUser",
        ],
    )
    def test_reasons_that_pass(self, reason: str | None) -> None:
        assert (
            find_never_starting(
                build_table(job_row("9", reason=reason), job_row("10", "held", reason=reason)),
                EITHER,
            )
            == []
        )

    @pytest.mark.parametrize(
        ("reason", "words"),
        [
            ("PartitionConfig", "the partition does not allow this request (PartitionConfig)"),
            (
                "DependencyNeverSatisfied",
                "a dependency can no longer be met (DependencyNeverSatisfied)",
            ),
        ],
    )
    def test_a_reason_is_told_in_words_with_its_code(self, reason: str, words: str) -> None:
        table = build_table(job_row("9", reason=reason))
        (found,) = find_never_starting(table, SLURM.reasons)
        assert found.text == f"job 9 (train) will never start: {words}"
        waits = format_pulse("train", table.to_pylist(), NOW, SLURM.reasons)
        assert waits == f"train (9) will never start: {words}"

    def test_time_limits_have_their_own_step(self) -> None:
        assert "--time" in SLURM.reasons.never_starts("pending", "QOSMaxWallDurationPerJobLimit")
        assert "--time" in SLURM.reasons.never_starts("pending", "PartitionTimeLimit")


class TestPools:
    def task(
        self, *hows: str, state: str = "running", user: str = "ada", name: str = "train"
    ) -> Task:
        runs = tuple(
            Run(at_run, "NORMAL", at(at_run), at(at_run + 1), how)
            for at_run, how in enumerate(hows, 1)
        )
        why = "quota: ada has 2 of 2 nodes at NORMAL"
        return Task(
            "7",
            user,
            name,
            1,
            "NORMAL",
            None,
            state,
            why,
            None,
            at(0),
            None,
            None,
            False,
            len(hows),
            runs,
        )

    def found(self, *tasks: Task, users: tuple[str, ...] = ("ada",), name: str = "") -> list[str]:
        rules = {
            "grace_seconds": 5.0,
            "demote_after_seconds": 1800.0,
            "least_gpus": 0,
            "choosers": (),
            "quotas": (),
        }
        pool = Pool("lab", "", NOW, 4, 4, 4, tasks=tasks, tasks_left_out=0, **rules)  # type: ignore[arg-type]
        assert find_silent_pool(pool, NOW + timedelta(seconds=10)) == []
        (silent,) = find_silent_pool(pool, NOW + timedelta(hours=1))
        assert silent.text.startswith("pool lab: no update from the coordinator for 1 h")
        rule = PoolsRule(no_turn_seconds=HOUR, unsaved_in_a_row=2)
        selected = [task for task in tasks if is_selected(task, users, name) and task.is_unfinished]
        found = [one for task in selected for one in find_stuck(pool, task, rule, NOW)]
        return [f"{one.rule}: {one.text}" for one in found]

    def test_a_task_that_gets_no_turn_is_told_with_why(self) -> None:
        assert self.found(self.task(state="waiting")) == [
            "no-turn: job 7 (train) of ada has waited 10 h for its turn in pool lab:"
            " quota: ada has 2 of 2 nodes at NORMAL"
        ]
        # It ran a minute ago; its owner paused it; it runs.
        just = Run(1, "NORMAL", at(598), at(599), "suspended")
        assert self.found(replace(self.task(state="waiting"), runs=(just,))) == []
        assert self.found(self.task(state="paused"), self.task()) == []

    @for_each(
        "hows", [(), ("ignored",), ("ignored", "ignored", "suspended"), ("ignored", "paused")]
    )
    def test_one_that_saves_or_was_hardly_interrupted_is_well(self, hows: tuple[str, ...]) -> None:
        assert self.found(self.task(*hows)) == []

    def test_interruptions_without_a_save_and_slow_saves_are_told(self) -> None:
        lost, slow = self.found(self.task("suspended", "ignored", "paused", "slow"))
        assert lost == (
            "interrupted-unsaved: job 7 (train) of ada lost its work:"
            " it was interrupted 2 times in a row and did not save"
        )
        assert slow == (
            "slow-save: job 7 (train) of ada takes longer to save than the 5 s that pool lab gives"
        )
        [lost] = self.found(self.task("ignored", "suspended", "ignored"))
        assert lost.endswith("lost its work: it was interrupted 3 times and saved 1")
        assert self.found(self.task("suspended", "ignored", "suspended", "ignored")) == []

    def test_only_tasks_that_are_meant_and_have_not_ended_are_told(self) -> None:
        hows = ("slow", "slow")
        assert self.found(self.task(*hows, state="failed")) == []
        assert self.found(self.task(*hows, user="bob")) == []
        assert len(self.found(self.task(*hows, user="bob"), users=())) == 2
        assert self.found(self.task(*hows), name="trai") == []


class TestFailures:
    def found(self, history: pa.Table, rule: FailuresRule | None = None) -> list[Finding]:
        return find_failing_nodes(history, rule or FailuresRule())

    def history(self, *runs: tuple[str, str], name: str = "train") -> pa.Table:
        """(state, nodes), the oldest first."""
        return build_table(
            *(
                job_row(
                    str(number),
                    state,
                    started=number,
                    ended=number + 1,
                    node_list=there,
                    name=name,
                    _number=number,
                )
                for number, (state, there) in enumerate(runs, 1)
            )
        )

    def test_three_in_a_row_on_one_node(self) -> None:
        (found,) = self.found(
            self.history(
                ("completed", "n2"),
                *[("failed", "n[1,3]"), ("failed", "n1"), ("node_failed", "n[1,4]")],
            )
        )
        assert found.text == "train of alice failed 3 times in a row on n1"
        assert "--exclude=n1" in found.next_step

    def test_one_that_worked_there_ends_the_row(self) -> None:
        assert (
            self.found(
                self.history(
                    ("failed", "n1"), ("failed", "n1"), ("timeout", "n1"), ("failed", "n1")
                )
            )
            == []
        )

    def test_a_cancelled_run_says_nothing(self) -> None:
        assert self.found(
            self.history(("failed", "n1"), ("cancelled", "n1"), ("failed", "n1"), ("failed", "n1"))
        )

    def test_failures_elsewhere_before_put_the_job_in_doubt(self) -> None:
        (found,) = self.found(self.history(("failed", "n7"), *[("failed", "n1")] * 3))
        assert "the job may be at fault" in found.text
        assert self.found(self.history(("failed", "n1"), ("failed", "n2"), ("failed", "n1"))) == []

    def test_of_many_common_nodes_none_can_be_named(self) -> None:
        assert self.found(self.history(*[("failed", "n[1-64]")] * 4)) == []
        assert self.found(self.history(*[("failed", "n[1-4]")] * 4), FailuresRule(most_nodes=4))


def test_losses_are_told_by_metric_and_kind_and_moments_by_their_step() -> None:
    x = np.arange(10.0)
    broken = WatchedMetric(x.tobytes(), np.where(x < 9, 2.0, np.nan).tobytes())
    moments = [Moment("loss", "spike", step, step, f"spike at {step}") for step in (5, 7, 12, 19)]
    tail = LogTail(metrics={"loss": WatchedMetric(), "train/loss": broken}, moments=moments)
    row = job_row("8", name=None)
    nan, *spikes = find_losses(row, tail, NOW.timestamp(), LossesRule())
    assert (nan.severity, nan.text, nan.is_moment) == (
        Severity.CRITICAL,
        "job 8: train/loss: nan first at 9 (once); no finite value since",
        False,
    )
    assert nan.key == "loss/nan train|loss/8"
    assert [one.key for one in spikes] == [f"loss/spike loss@{step}/8" for step in (7, 12, 19)]
    assert {(one.severity, one.is_moment) for one in spikes} == {(Severity.WARNING, True)}


def test_a_key_stays_when_words_and_severity_change() -> None:
    one = Finding("storage", "/work", Severity.WARNING, "90%", aspect="bytes")
    assert one.key == Finding("storage", "/work", Severity.CRITICAL, "99%", aspect="bytes").key
    assert (
        one.key
        == finding_key("storage", "/work", "bytes")
        != finding_key("storage", "/work", "inodes")
    )
    assert BEGIN.tzinfo is UTC


def test_an_allocation_is_warned_of_once_its_time_is_nearly_over(tmp_path: Path) -> None:
    def launch(job: str, kind: str) -> LaunchRecord:
        return LaunchRecord(
            f"/l/{job}", "", job, "work", "always", "", 1, 1.0, f'kind = "{kind}"\ncommand = ":"\n'
        )

    records = LaunchRecords(tmp_path, "c")
    for record in (
        launch("1", "allocation"),
        launch("2", "allocation"),
        launch("3", "exp"),
        launch("5", "allocation"),
    ):
        records.launched(record)
    jobs = build_table(
        job_row("1", name="work", state="running", ends_at=NOW + timedelta(minutes=14)),
        job_row("2", name="work", state="running", ends_at=NOW + timedelta(minutes=16)),
        job_row("3", name="work", state="running", ends_at=NOW + timedelta(minutes=1)),
        # Another job that has the number of an allocation that is forgotten; and one whose end
        # nobody knows.
        job_row("4", name="other", state="running", ends_at=NOW + timedelta(minutes=1)),
        job_row("5", name="work", state="running", ends_at=None),
    )
    known = LaunchedCheckpoints(tmp_path, "c").allocations(jobs)
    assert known == ("1", "2", "5")
    (found,) = find_ending_allocations(jobs, known, NOW.timestamp())
    assert found.text == "the allocation job 1 (work) ends in 14 min"
    assert (found.key, found.severity) == (finding_key("allocation-ends", "1"), Severity.WARNING)
    assert find_ending_allocations(jobs, (), NOW.timestamp()) == []
