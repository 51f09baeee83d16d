"""The three lines of a loop: what stops it, what saves, and that all ranks do the same at the same
step.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hpcdash.domain.switch_text import best_log_line
from hpcdash.domain.switches import SwitchKind
from hpcdash.job import Checkpoints, MetricsWriter, Preemption, Switches, TrainingGuard
from hpcdash.job.memory import MemoryGuard

ROOT = Path(__file__).resolve().parents[2]
Ranks = list["subprocess.Popen[str]"]


@pytest.fixture
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    """Two ranks that train, with switches KILL and SAVE in tmp_path; the environment is the
    fixture's parameter.
    """
    environment = {
        **os.environ,
        **getattr(request, "param", {}),
        "PYTHONPATH": str(ROOT),
        "HPCDASH_KILL_SWITCH": str(tmp_path / "KILL"),
        "HPCDASH_SAVE_SWITCH": str(tmp_path / "SAVE"),
    }
    program = str(Path(__file__).with_name("two_ranks.py"))
    (in_0, out_1), (in_1, out_0) = os.pipe(), os.pipe()
    started = [
        subprocess.Popen(
            [sys.executable, program, *map(str, words)],
            env=environment,
            pass_fds=words[1:],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in ((0, out_0, in_0), (1, out_1, in_1))
    ]
    for end in (in_0, out_1, in_1, out_0):
        os.close(end)
    for training in started:
        assert training.stdout is not None
        assert training.stdout.readline() == "ready\n"
    yield started
    for training in started:
        training.kill()
        training.wait()


def ends(ranks: Ranks) -> tuple[list[list[str]], str]:
    """The last lines of each rank, after both have ended by themselves with exit status 0; what
    they said besides.
    """
    said = [training.communicate() for training in ranks]
    assert [training.returncode for training in ranks] == [0, 0], said
    return [out.splitlines() for out, _ in said], "".join(log for _, log in said)


@pytest.mark.system
def test_a_kill_switch_stops_both_ranks_after_the_same_step(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "KILL").touch()
    (first, second), log = ends(ranks)
    assert first[-1] == second[-1]
    assert first[-1].startswith("ended ")
    assert first[-2].startswith("saved ")
    assert second[-2].endswith(" kill switch")
    assert log.count("stopping after step") == 1
    assert (tmp_path / "KILL").exists()


@pytest.mark.system
def test_a_save_switch_has_both_ranks_save_at_the_same_step_and_go_on(
    ranks: Ranks, tmp_path: Path
) -> None:
    (tmp_path / "SAVE").touch()
    saved = [training.stdout.readline() for training in ranks if training.stdout]
    assert saved[0] == saved[1]
    assert saved[0].endswith(" save switch\n")
    assert not (tmp_path / "SAVE").exists()
    (tmp_path / "KILL").touch()
    (first, second), _ = ends(ranks)
    assert first[-1] == second[-1]
    assert len(first) == len(second) == 2


@pytest.mark.system
@pytest.mark.parametrize("to", [0, 1])
def test_a_signal_to_one_rank_stops_both(ranks: Ranks, to: int) -> None:
    ranks[to].send_signal(signal.SIGUSR1)
    (first, second), log = ends(ranks)
    assert first[-1] == second[-1]
    assert "received SIGUSR1 at step" in log


@pytest.mark.system
@pytest.mark.parametrize("ranks", [{"FULL_ON": "1"}], indirect=True)
def test_the_rank_whose_memory_is_full_stops_both(ranks: Ranks) -> None:
    (first, second), log = ends(ranks)
    assert first[-1] == second[-1] == "ended 20"
    assert first[-2] == "saved 20 another rank is almost out of memory"
    assert "99.0% of host memory used" in log


def test_steps_and_minutes_save_and_the_first_step_does_not(tmp_path: Path) -> None:
    with TrainingGuard(kill="", save="", save_every_steps=3, memory=None) as guard:
        saved = []
        for step in range(10):
            guard.step(step)
            if guard.should_save(step):
                saved.append(step)
                assert not guard.should_save(step)
            assert not guard.should_stop()
    assert saved == [3, 6, 9]
    with TrainingGuard(kill="", save="", save_every_minutes=0) as guard:
        guard.step(1)
        assert guard.should_save()
        assert guard.save_reason.endswith("minutes since the last save")


def test_what_follows_should_save_is_timed_as_the_save_and_not_as_an_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("hpcdash.job.guard.monotonic", lambda: clock[0])
    guard = TrainingGuard(kill="", save="", signals=(), save_every_steps=2, memory=None)
    for step in range(1, 5):
        clock[0] += 3
        guard.step(step)
        if guard.should_save():
            clock[0] += 40
        guard.should_stop()
    assert guard.preemption.grace_seconds() == 2 * (3 + 40)


def test_after_it_said_stop_it_asks_for_one_save_alone() -> None:
    memory = MemoryGuard(host_used=lambda: 99.0)
    with TrainingGuard(kill="", save="", memory=memory) as guard:
        asked = []
        for step in range(3):
            guard.step(step)
            asked.append((guard.should_save(), bool(guard.should_stop())))
    assert asked == [(True, True), (False, True), (False, True)]


def test_with_checks_every_tenth_step_ranks_talk_at_those_alone() -> None:
    said = []
    with TrainingGuard(
        kill="", save="", check_every_steps=10, all_reduce_max=lambda n: said.append(n) or n
    ) as guard:
        for step in range(100):
            guard.step(step)
    assert len(said) == 10


def test_the_end_is_seen_as_many_iterations_earlier_as_are_between_two_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("hpcdash.job.guard.monotonic", lambda: clock[0])
    ends_at = Preemption(signals=(), walltime=100_000, now=lambda: clock[0])
    ends_at.ends_at = 2000.0
    guard = TrainingGuard(kill="", save="", memory=None, preemption=ends_at, check_every_steps=10)
    for step in range(1, 100):
        clock[0] += 12
        guard.step(step)
        if guard.should_save():
            guard.saved(20)
        if guard.should_stop():
            break
    # At 60 there are 280 s left: enough for two iterations and saves, but not for those up to the
    # next look.
    assert (step, guard.stop_reason) == (
        60,
        "280 s left at step 60, less than the 360 s of 2 × (10 iterations + save)",
    )


def test_several_processes_that_cannot_talk_are_warned_once_and_each_sees_the_kill_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    kill = tmp_path / "KILL"
    guards = [
        TrainingGuard(kill=str(kill), save="", rank=rank, look_every_seconds=0, signals=())
        for rank in (0, 3)
    ]
    kill.touch()
    for guard in guards:
        guard.step(1)
        assert guard.should_stop() == f"the kill switch {kill} is set"
    assert caplog.text.count("4 processes without torch.distributed") == 1
    assert caplog.text.count("only rank 0 saves for the save switch and at timed intervals") == 1


@pytest.fixture
def torch_of_two_ranks() -> Iterator[list[int]]:
    """A stand-in for torch.distributed in which the other rank says what the list holds."""
    others = [0]

    class Tensor:
        def __init__(self, numbers: list[int], dtype: object, device: str) -> None:
            self.number, self.device = numbers[0], device

        def item(self) -> int:
            return self.number

    def all_reduce(tensor: Tensor, op: str) -> None:
        assert (tensor.device, op) == ("cuda", "max")
        tensor.number = max(tensor.number, others[0])

    distributed = ModuleType("torch.distributed")
    vars(distributed).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: 2,
        get_rank=lambda: 1,
        get_backend=lambda: "nccl",
        ReduceOp=type("ReduceOp", (), {"MAX": "max"}),
        all_reduce=all_reduce,
    )
    torch = ModuleType("torch")
    vars(torch).update(distributed=distributed, tensor=Tensor, int64="int64")
    sys.modules["torch"] = torch
    yield others
    del sys.modules["torch"]


def test_torch_distributed_is_used_where_it_runs(
    torch_of_two_ranks: list[int], tmp_path: Path
) -> None:
    (tmp_path / "KILL").touch()
    # Rank 1 does not look for itself.
    with TrainingGuard(kill=str(tmp_path / "KILL"), save="", rank=1, look_every_seconds=0) as guard:
        guard.step(1)
        assert not guard.should_stop()
        torch_of_two_ranks[0] = 5
        guard.step(2)
        assert guard.should_stop() == "kill switch"
    with pytest.raises(SystemExit) as ended:
        TrainingGuard(kill=str(tmp_path / "KILL"), save="", rank=1)
    assert ended.value.code == 0


def test_the_rank_is_that_of_torch_from_when_it_runs_and_as_given_where_it_is(
    torch_of_two_ranks: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = sys.modules["torch"].distributed
    save = tmp_path / "SAVE"
    with monkeypatch.context() as before:
        before.setattr(distributed, "is_initialized", lambda: False)
        guard = TrainingGuard(
            kill="", save=str(save), look_every_seconds=0, metrics=tmp_path / "m", signals=()
        )
        switches, writer = Switches(save=str(save), every_seconds=0), MetricsWriter(tmp_path / "n")
        checkpoints = Checkpoints(tmp_path)
        assert guard.rank == 0
    save.touch()
    guard.step(1, loss=1.0)
    writer.write(1, loss=1.0)
    assert (guard.rank, guard.should_save(), switches.save_wanted()) == (1, False, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SAVE"]
    with (
        pytest.raises(RuntimeError, match="rank 1 would save in parallel with rank 0"),
        checkpoints.saving(1),
    ):
        pass
    assert TrainingGuard(kill="", save="", rank=0, signals=()).rank == 0
    monkeypatch.setattr(distributed, "get_world_size", lambda: 1)
    assert TrainingGuard(kill="", save="", signals=()).rank == 0


def test_one_rank_that_is_told_has_all_stop(torch_of_two_ranks: list[int]) -> None:
    preemption = Preemption(signals=())
    assert preemption.should_stop(1) == ""
    torch_of_two_ranks[0] = 1
    assert preemption.should_stop(2) == "another rank was notified that the job is ending at step 2"
    said: list[int] = []
    own = Preemption(
        signals=(),
        exit_duration_in_mins=0,
        all_reduce_max=lambda number: said.append(number) or number,
    )
    assert own.should_stop(3).startswith("0 s left at step 3")
    assert said == [1]


def run_example(folder: Path, **environment: str) -> "subprocess.Popen[str]":
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, str(ROOT / "examples" / "plain.py"), str(folder)]
    return subprocess.Popen(
        command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.system
def test_the_example_survives_a_night_of_signals_and_kills(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    training = run_example(tmp_path)
    while not metrics.exists() or metrics.stat().st_size < 5000:
        assert training.poll() is None
    training.send_signal(signal.SIGUSR1)
    out, _ = training.communicate()
    assert "received SIGUSR1" in out
    kill = tmp_path / "KILL"
    kill.touch()
    burnt = run_example(tmp_path, HPCDASH_KILL_SWITCH=str(kill))
    assert (burnt.communicate()[0], burnt.returncode) == ("", 0)
    kill.unlink()
    last = run_example(tmp_path, HPCDASH_KILL_SWITCH=str(kill))
    out, _ = last.communicate()
    assert out.startswith("resumed from ")
    assert out.endswith("ended after step 2000: done\n")
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(1, 2001))


def test_the_log_tells_who_dropped_the_save_switch_what_came_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = TrainingGuard(
        save=str(tmp_path / "SAVE"), signals=(), look_every_seconds=0, save_every_steps=4
    )
    for step in range(1, 6):
        if step == 2:
            (tmp_path / "SAVE").touch()
        guard.step(step)
        guard.should_save()
        guard.should_stop()
    told = [
        "hpcdash: save switch set: saving after step 2",
        "hpcdash: checkpoint saved after step 2, in 0 s, for the save switch",
    ]
    assert caplog.messages == told
    guard.step(6, loss=1.0, lr=0.1)
    guard.step(7, loss=1.0)
    assert caplog.messages[2:] == [
        "hpcdash: the steps' loss, lr are not recorded: pass metrics=, or set HPCDASH_METRICS to a file"
    ]
    # The dialog of a switch quotes the one that says that it was saved.
    assert best_log_line(SwitchKind.SAVE, "\n".join(told)) == told[1]
