"""Who runs in a shared pool: priorities, quotas, first come first served, and who is interrupted
for whom.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcdash.domain.share import EVERYONE, LEVELS, Priority
from hpcdash.services.share.scheduling import (
    Decision,
    PoolRules,
    PoolTask,
    Quotas,
    RunningTask,
    decide,
    queue_up,
)
from tests.support.records import for_each

NORMAL, ABOVE, HIGH, AUTO = Priority.NORMAL, Priority.ABOVE_NORMAL, Priority.HIGH, Priority.AUTO
PLENTY = Quotas({(EVERYONE, level): 100 for level in LEVELS})


@dataclass
class Pool:
    """A pool; what is suspended is `leaving` for a while, and is paused then where its name is in
    `pausing`.
    """

    nodes: int
    quotas: Quotas = PLENTY
    demote_after: float = 1800.0
    now: float = 0.0
    waiting: dict[str, PoolTask] = field(default_factory=dict)
    running: dict[str, RunningTask] = field(default_factory=dict)
    leaving: dict[str, RunningTask] = field(default_factory=dict)
    paused: dict[str, PoolTask] = field(default_factory=dict)
    pausing: set[str] = field(default_factory=set)
    count: int = 0

    def submit(self, user: str, nodes: int = 1, priority: Priority = NORMAL) -> str:
        self.count += 1
        task = PoolTask(f"{user}{self.count}", user, nodes, priority, (self.now, self.count))
        self.waiting[task.id] = task
        return task.id

    def free(self) -> int:
        return self.nodes - sum(
            one.task.nodes for one in (*self.running.values(), *self.leaving.values())
        )

    def held(self, user: str, level: Priority) -> int:
        """How many nodes a user has at a level, those being freed among them."""
        some = (*self.running.values(), *self.leaving.values())
        return sum(one.task.nodes for one in some if (one.task.user, one.level) == (user, level))

    def decide(self) -> Decision:
        return decide(
            list(self.running.values()),
            queue_up(self.waiting.values()),
            self.quotas,
            capacity=self.nodes,
            free=max(0, self.free()),
            leaving=list(self.leaving.values()),
        )

    def settle(self) -> list[Decision]:
        """Decide until nothing changes any more."""
        decisions = []
        for _ in range(4 * self.count + 3):
            decision = self.decide()
            raised = [
                name for name, level in decision.levels.items() if level > self.running[name].level
            ]
            for name, level in decision.levels.items():
                one = self.running[name]
                self.running[name] = (
                    one if one.level == level else one.moved(level, self.now, since=one.since)
                )
            for one in map(self.running.__getitem__, raised):
                assert self.held(one.task.user, one.level) <= self.quotas.limit(
                    one.task.user, one.level
                )
            if decision.suspend or decision.start:
                decisions.append(decision)
            elif not self.leaving:
                return decisions
            for task, level in decision.start:
                self.running[task.id] = RunningTask(self.waiting.pop(task.id), level, self.now)
                # At no moment more than its quota, nor than the pool.
                assert self.held(task.user, level) <= self.quotas.limit(task.user, level)
                assert self.free() >= 0
            if not decision.suspend and not decision.start:
                self.leave()
            for task in decision.suspend:
                self.leaving[task.id] = self.running.pop(task.id)
        raise AssertionError("the rules never come to rest")

    def leave(self) -> None:
        """What is being suspended gives up its nodes."""
        for name, one in self.leaving.items():
            (self.paused if name in self.pausing else self.waiting)[name] = self._counted(one)
        self.leaving, self.pausing = {}, set()

    def pause(self, name: str) -> None:
        if name in self.running:
            self.leaving[name] = self.running.pop(name)
            self.pausing.add(name)
        else:
            self.paused[name] = self.waiting.pop(name)

    def resume(self) -> None:
        self.waiting |= self.paused
        self.paused = {}
        self.pausing = set()

    def stop(self, name: str) -> PoolTask:
        """It ends; as it would go on."""
        return self._counted(self.running.pop(name))

    def _counted(self, one: RunningTask) -> PoolTask:
        return replace(one.task, above_normal_seconds=one.above_normal_seconds(self.now))

    def demote(self) -> None:
        for name, one in self.running.items():
            due = one.demotion_at(self.demote_after)
            if due is not None and due <= self.now:
                one = one.moved(NORMAL, self.now, since=self.now)
                self.running[name] = replace(one, task=replace(one.task, demoted=True))

    def runs(self) -> list[str]:
        self.settle()
        return sorted(self.running)


def test_who_runs() -> None:
    pool = Pool(4)
    first, second = pool.submit("ann", 2), pool.submit("bob", 2)
    large = pool.submit("cy", 3)
    pool.submit("dan", 1)
    assert pool.runs() == [first, second]
    # No backfill: dan's one node waits behind cy's three.
    pool.stop(first)
    assert pool.runs() == [second]
    assert pool.decide().blocker == (pool.waiting[large], NORMAL)
    urgent = pool.submit("eve", 3, HIGH)
    decision = pool.decide()
    # It may have bob's nodes once they are free, and nothing starts before.
    assert ([task.id for task in decision.suspend], decision.start) == ([second], ())
    assert [task.id for task, _ in decision.next] == [urgent]
    assert pool.runs() == [urgent]
    # bob came before cy and dan, and goes on first.
    pool.stop(urgent)
    assert pool.runs() == [second]


def test_a_task_is_not_interrupted_for_another_of_its_user_and_priority() -> None:
    quotas = Quotas({(EVERYONE, level): 100 for level in LEVELS} | {("ann", NORMAL): 2})
    pool = Pool(3, quotas)
    early, late = pool.submit("ann", 2), pool.submit("ann", 2)
    assert pool.runs() == [early]
    assert pool.decide().out_of_quota == {("ann", NORMAL)}
    hot = pool.submit("bob", 3, HIGH)
    assert pool.runs() == [hot]
    pool.stop(hot)
    pool.waiting.pop(early)
    assert pool.runs() == [late]
    # The first comes back, ahead of the other in the queue: it waits all the same, and another
    # user's does not pass it.
    pool.waiting[early] = PoolTask(early, "ann", 2, NORMAL, (0.0, 1))
    assert pool.runs() == [late]
    # It holds the place of its user's first, also against those that came between the two.
    pool = Pool(1)
    first, between, last = pool.submit("ann"), pool.submit("bob"), pool.submit("ann")
    held = {name: pool.waiting.pop(name) for name in (first, between)}
    assert pool.runs() == [last]
    pool.waiting |= held
    assert pool.runs() == [last]
    # Of another user the one that came first takes its nodes back.
    pool = Pool(1)
    mine, theirs = pool.submit("ann"), pool.submit("bob")
    again = pool.waiting.pop(mine)
    assert pool.runs() == [theirs]
    pool.waiting[mine] = again
    assert pool.runs() == [mine]


def test_quota_that_is_being_freed_is_not_given_again_before() -> None:
    pool = Pool(4, Quotas({("ann", NORMAL): 2, ("bob", NORMAL): 2}))
    mine, after = pool.submit("ann", 2), pool.submit("ann", 2)
    assert pool.runs() == [mine]
    pool.pause(mine)
    other = pool.submit("bob", 2)
    decision = pool.decide()
    # Two nodes are free: they are kept for whose turn it is.
    assert (decision.start, [task.id for task, _ in decision.next]) == ((), [after, other])
    pool.leave()
    assert pool.runs() == [after, other]


def test_auto_is_the_highest_priority_with_quota_left() -> None:
    pool = Pool(10, Quotas({("ann", HIGH): 2, ("ann", NORMAL): 3}))
    tasks = [pool.submit("ann", 2, AUTO) for _ in range(3)]
    pool.settle()
    assert [pool.running[name].level for name in tasks[:2]] == [HIGH, NORMAL]
    assert tasks[2] in pool.waiting
    pool.stop(tasks[0])
    pool.settle()
    # The one that runs moves up into the quota left, which makes room for the next.
    assert {name: one.level for name, one in pool.running.items()} == {
        tasks[1]: HIGH,
        tasks[2]: NORMAL,
    }


def test_above_normal_becomes_normal_after_half_an_hour_of_running_in_all() -> None:
    pool = Pool(1)
    urgent = pool.submit("ann", 1, ABOVE)
    other = pool.submit("bob", 1, ABOVE)
    pool.settle()
    pool.now = 1000.0
    top = pool.submit("cy", 1, HIGH)
    assert pool.runs() == [top]
    pool.now = 5000.0
    pool.stop(top)
    assert pool.runs() == [urgent]
    assert pool.running[urgent].demotion_at(1800.0) == 5800.0
    pool.now = 5800.0
    pool.demote()
    assert pool.runs() == [other]


def test_only_what_an_auto_task_runs_at_above_normal_counts() -> None:
    pool = Pool(4, Quotas({("ann", ABOVE): 1, ("ann", NORMAL): 1}))
    first, task = pool.submit("ann", 1, ABOVE), pool.submit("ann", 1, AUTO)
    pool.settle()
    assert pool.running[task].level == NORMAL
    pool.now = 2400.0
    pool.stop(first)
    pool.settle()
    # It has moved up after 40 minutes, and has half an hour there.
    assert (pool.running[task].level, pool.running[task].demotion_at(1800.0)) == (ABOVE, 4200.0)
    pool.now = 3000.0
    moved = pool.running[task].moved(NORMAL, pool.now, since=pool.running[task].since)
    pool.now = 9000.0
    assert moved.above_normal_seconds(pool.now) == 600.0
    again = moved.moved(ABOVE, pool.now, since=moved.since)
    assert again.demotion_at(1800.0) == 10_200.0
    assert again.above_normal_seconds(9100.0) == 700.0


@for_each(
    ("nodes", "priority", "gpus", "words"),
    [
        (4, NORMAL, None, ""),
        (9, NORMAL, None, "requests 9 nodes, but the pool has 8"),
        (5, NORMAL, None, "requests 5 nodes, but ann's quota at NORMAL is 4"),
        (1, HIGH, None, "requests 1 node, but ann's quota at HIGH is 0"),
        (
            6,
            AUTO,
            None,
            "requests 6 nodes: ABOVE_NORMAL becomes NORMAL after 30 min, where ann's quota is 4",
        ),
        (7, AUTO, None, "requests 7 nodes, but ann's quota at any priority is 6"),
        (1, NORMAL, 4, "requests 4 GPUs, but a task in this pool needs at least 8"),
    ],
)
def test_what_could_never_run_is_refused(
    nodes: int, priority: Priority, gpus: int | None, words: str
) -> None:
    rules = PoolRules(
        Quotas({("ann", NORMAL): 4, ("ann", ABOVE): 6}), frozenset({"ann"}), least_gpus=8
    )
    assert (
        rules.refusal(PoolTask("1", "ann", nodes, priority, (0.0, 1)), capacity=8, gpus=gpus)
        == words
    )
    assert [rules.allowed_priority(user, HIGH) for user in ("ann", "bob")] == [HIGH, AUTO]


USERS = ("ann", "bob", "cy")
PRIORITIES = (AUTO, Priority.LOW, NORMAL, ABOVE, HIGH)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    nodes = draw(st.integers(1, 6))
    quotas = {
        (user, level): draw(st.integers(0, nodes))
        for user in USERS
        for level in PRIORITIES
        if level != AUTO
    }
    return Pool(nodes, Quotas(quotas), demote_after=4.0)


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.sampled_from(USERS),
            st.integers(1, 4),
            st.sampled_from(PRIORITIES),
        ),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("pass"), st.integers(1, 6)),
        st.tuples(st.just("nodes"), st.integers(0, 6)),
        st.tuples(st.just("hold"), st.integers(0, 5)),
        st.tuples(st.just("release")),
    ),
    max_size=30,
)


def check(pool: Pool, decisions: list[Decision]) -> None:
    changes = Counter(
        task.id for one in decisions for task in (*one.suspend, *(task for task, _ in one.start))
    )
    assert set(changes.values()) <= {1}, "a task was started and suspended again for nothing"
    for decision in decisions:
        starting = {(task.user, level) for task, level in (*decision.start, *decision.next)}
        interrupted = {(task.user, task.level) for task in decision.suspend if task.level != AUTO}
        # Where the pool or a quota has become smaller somebody has to give way.
        assert not starting & interrupted or decision.out_of_quota
    assert pool.free() >= 0
    used: Counter[tuple[str, Priority]] = Counter()
    for one in pool.running.values():
        used[one.task.user, one.level] += one.task.nodes
    assert all(nodes <= pool.quotas.limit(*key) for key, nodes in used.items())
    # Where something with quota waits, the first of it would not fit if all of lower priorities
    # were gone.
    heads = [line[0] for key, line in queue_up(pool.waiting.values()).items() if key[1] != AUTO]
    ready = [
        task
        for task in heads
        if used[task.user, task.level] + task.nodes <= pool.quotas.limit(task.user, task.level)
    ]
    if ready:
        blocker = pool.decide().blocker
        assert blocker is not None
        task, level = blocker
        assert level >= max(one.level for one in ready)
        assert (
            pool.free() + sum(one.task.nodes for one in pool.running.values() if one.level < level)
            < task.nodes
        )


@given(pools(), EVENTS, st.lists(st.integers(1, 5), min_size=30, max_size=30))
def test_the_rules_hold_whatever_happens(
    pool: Pool, events: list[tuple[object, ...]], work: list[int]
) -> None:
    most, rules = pool.nodes, PoolRules(pool.quotas)
    for kind, *given_values in events:
        if kind == "submit":
            user, nodes, priority = given_values
            name = pool.submit(user, nodes, priority)
            if rules.refusal(pool.waiting[name], capacity=most):
                del pool.waiting[name]
        elif kind == "end" and pool.running:
            names = sorted(pool.running)
            pool.stop(names[given_values[0] % len(names)])
        elif kind == "pass":
            pool.now += given_values[0]
            pool.demote()
        elif kind == "nodes":
            pool.nodes = min(most, given_values[0])
        elif kind == "hold" and (names := sorted((*pool.waiting, *pool.running))):
            pool.pause(names[given_values[0] % len(names)])
        elif kind == "release":
            pool.resume()
        order = {task.id: task.place for task in pool.waiting.values()}
        decisions = pool.settle()
        check(pool, decisions)
        for decision in decisions:
            for task, _ in decision.start:
                passed = [
                    one
                    for one in pool.waiting.values()
                    if one.id in order and one.level == task.level and one.place < task.place
                ]
                assert task.user not in {one.user for one in passed}
                # Of other users only those that it passes who have no quota, or hold an earlier
                # place by what runs.
                for one in passed if task.level != AUTO else ():
                    assert pool.held(one.user, one.level) or one.nodes > pool.quotas.limit(
                        one.user, one.level
                    )
    # Nothing comes any more: all that was not refused runs to its end.
    pool.nodes = most
    pool.resume()
    left = {name: work[int(name.lstrip("abcnoy")) - 1] for name in (*pool.waiting, *pool.running)}
    for _ in range(sum(left.values()) + 5 * len(left)):
        check(pool, pool.settle())
        pool.now += 1
        for name in list(pool.running):
            left[name] -= 1
            if left[name] <= 0:
                pool.stop(name)
        pool.demote()
    assert pool.waiting == {}
    assert pool.running == {}
