"""A trace of tasks under the rules of a shared pool, on a simulated clock."""

from __future__ import annotations

import pytest

from hpcdash.domain.share import EVERYONE, LEVELS, Priority
from hpcdash.services.share.scheduling import Quotas
from hpcdash.services.share.simulation import (
    BadTrace,
    PoolModel,
    TracedTask,
    format_trace,
    generate_trace,
    parse_trace,
    simulate,
    simulate_fifo,
    simulate_own_nodes,
)
from tests.support.records import for_each

NORMAL, HIGH = Priority.NORMAL, Priority.HIGH


def model(nodes: int) -> PoolModel:
    quotas = Quotas({(EVERYONE, level): nodes for level in LEVELS})
    return PoolModel(nodes, quotas, grace_seconds=5.0, load_seconds=60.0)


def test_an_interruption_costs_a_save_and_a_load_and_what_was_not_saved_in_time() -> None:
    urgent = TracedTask(1000.0, "bob", 2, 500.0, HIGH)
    in_time = simulate(
        [TracedTask(0.0, "ann", 2, 4000.0, NORMAL, save_seconds=2.0), urgent], model(2)
    )
    assert in_time.waits == {NORMAL: [0.0], HIGH: [2.0]}
    # Its 4000 s, the 2 s of its save, bob's 500 s and the 60 s until it works again.
    assert (in_time.interruptions, in_time.ended_at) == (1, 4562.0)
    assert (in_time.worked, in_time.lost, in_time.idled) == (9000.0, 0.0, 2 * 62.0)
    slow = TracedTask(0.0, "ann", 2, 4000.0, NORMAL, save_seconds=20.0, checkpoint_seconds=300.0)
    forced = simulate([slow, urgent], model(2))
    # Of 1000 s the last 100 were in no checkpoint, and it had 5 s.
    assert (forced.forced, forced.lost, forced.waits[HIGH]) == (1, 200.0, [5.0])
    assert forced.ended_at == 4000 + 100 + 5 + 500 + 60
    fifo = simulate_fifo([slow, urgent], model(2))
    assert (fifo.interruptions, fifo.waits) == (0, {NORMAL: [0.0], HIGH: [3000.0]})
    # ann's share of the nodes is one: her task is too large for it, and bob's too.
    own = simulate_own_nodes([slow, urgent], model(2))
    assert (own.tasks, own.never_run) == (1, 1)
    assert forced.utilisation() == fifo.utilisation() == 1.0


def test_a_generated_trace_is_read_back_and_every_task_of_it_runs_whole() -> None:
    trace = generate_trace(300, 40, seed=7)
    assert parse_trace(format_trace(trace).splitlines()) == trace
    assert generate_trace(300, 40, seed=8) != trace
    outcome = simulate(trace, model(40))
    work = sum(one.nodes * one.work_seconds for one in trace)
    assert outcome.worked == pytest.approx(work)
    assert outcome.interruptions > 0
    assert sum(map(len, outcome.waits.values())) == outcome.tasks == 300
    assert max(busy for _, busy in outcome.busy) <= 40
    assert outcome.busy[-1][1] == 0


def test_who_may_not_choose_a_priority_has_auto() -> None:
    tasks = [TracedTask(0.0, "ann", 1, 100.0, NORMAL), TracedTask(1.0, "bob", 1, 100.0, HIGH)]
    quotas = Quotas({(EVERYONE, NORMAL): 1})
    outcome = simulate(tasks, PoolModel(1, quotas, choosers=frozenset({"ann"})))
    # At HIGH bob has no quota, and AUTO is NORMAL.
    assert (outcome.never_run, outcome.waits) == (0, {NORMAL: [0.0], HIGH: [99.0]})
    assert simulate(tasks, PoolModel(1, quotas)).never_run == 1


@pytest.mark.long
def test_ten_thousand_tasks_run_whole_on_a_thousand_nodes() -> None:
    trace = generate_trace(10_000, 1000, seed=1)
    outcome = simulate(trace, model(1000))
    assert outcome.worked == pytest.approx(sum(one.nodes * one.work_seconds for one in trace))
    assert max(busy for _, busy in outcome.busy) <= 1000


@for_each(
    ("text", "words"),
    [
        ("user,nodes\n", "line 1: no column submitted_at, seconds"),
        ("submitted_at,user,nodes,seconds,color\n", "line 1: unknown column 'color'"),
        (
            "submitted_at,user,nodes,seconds\n0,a,many,5\n",
            "line 2: 'many' is not a valid value of nodes",
        ),
        ("submitted_at,user,nodes,seconds\n0,a,1,nan\n", "line 2: seconds = nan is not a time"),
        (
            "submitted_at,user,nodes,seconds\n0,a,0,5\n",
            "line 2: nodes, seconds and checkpoint_seconds must be above 0",
        ),
        ("submitted_at,user,nodes,seconds\n0,a,1\n", "line 2: seconds is empty"),
        ("submitted_at,user,nodes,seconds\n0,a,1,5,6\n", "line 2: more values than columns"),
    ],
)
def test_a_trace_that_cannot_be_read_names_the_line(text: str, words: str) -> None:
    with pytest.raises(BadTrace) as caught:
        parse_trace(text.splitlines())
    assert str(caught.value).startswith(words)
