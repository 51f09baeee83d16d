"""Functions that run as jobs of an embedded queue: results, failures, chains, maps, callbacks, and
a killed program.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

import hpcdash
from hpcdash.client.job import Launched, SubmittedJob
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.errors import HpcdashError, UsageError
from tests.support.program import Program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system
SECONDS = 120.0


@pytest.mark.journey
def test_results_failures_and_chains(queue: hpcdash.Cluster, calls: ModuleType) -> None:
    first = calls.add.submit(1, second=2)
    assert calls.add(1, 2) == 3
    odd = calls.odd_alone.map([1, 2, 3], at_most=2)
    last = calls.total.submit([first, odd[2], 10])
    context = calls.where.submit()
    failed = calls.unreadable.submit()
    described = calls.described.submit(lr=0.5)
    with pytest.raises(TimeoutError):
        calls.add.with_options(begin="+1h").submit(1).result(0.1)
    after_failure = calls.add.after(odd, "afternotok").submit(40)
    never = calls.add.submit(odd[1])

    assert first.result(SECONDS) == 3
    assert first.result(0) == 3
    assert last.result(SECONDS) == 16
    assert first.logs() == "adding 1 and 2\n"
    assert list(first.logs(follow=True)) == ["adding 1 and 2"]
    assert context.result(SECONDS) == (context.id, context.folder, os.getcwd())
    assert Path(context.folder).parent.name == "where"
    assert described.result(SECONDS) == {"values": {"lr": 0.5}, "python": 3}
    assert after_failure.result(SECONDS) == 41

    assert odd.wait() == {"completed": 2, "failed": 1}
    one, even, three = odd.results(return_exceptions=True)
    assert (one, three) == (1, 3)
    with pytest.raises(ValueError, match="2 is even") as raised:
        odd[1].result()
    assert type(even) is ValueError
    assert "in odd_alone" in str(raised.value.__cause__)
    with pytest.raises(hpcdash.JobFailed, match="Unreadable: one and two") as unreadable:
        failed.result(SECONDS)
    assert unreadable.value.exception_type == "Unreadable"
    with pytest.raises(hpcdash.JobFailed, match="will not start"):
        never.result(SECONDS)
    never.cancel()
    with pytest.raises(hpcdash.JobFailed, match="has no result: cancelled"):
        never.result(SECONDS)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(first)

    # Another program finds them by their numbers.
    text = (
        f"import hpcdash; c = hpcdash.connect('local'); a = c.attach('{odd.id}'); j = "
        f"c.attach('{odd.id}_0')"
    )
    text += (
        "; print(len(a), a[2].result(60), j.result(60), c.attach('"
        + described.id
        + "').result(60)['python'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False
    )
    assert found.stdout == "3 3 1 3\n", found.stderr
    assert set(queue.history("1d")["id"]) >= {first.id, context.id}
    assert list(queue.jobs("state=pending")["name"]) == ["add"]


def test_what_a_request_cannot_have_is_logged_once(
    queue: hpcdash.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    request = hpcdash.Request(command="true", place="excl", slots=0)
    for job in (queue.submit(request), queue.submit(request)):
        job.wait()
    assert [one.getMessage() for one in caplog.records if one.name == "hpcdash"] == [
        "hpcdash: place: not supported by Slurm, ignored"
    ]


def test_results_come_before_their_jobs_end(queue: hpcdash.Cluster, calls: ModuleType) -> None:
    jobs = calls.lingering.map([7, None])
    found = jobs[0].result(SECONDS)
    with pytest.raises(ValueError, match="no value") as raised:
        jobs.results(SECONDS)
    assert "in lingering" in str(raised.value.__cause__)
    assert found == 7
    assert jobs.status == {"running": 2}
    with pytest.raises(TimeoutError):
        jobs.wait(0.1)
    # What may be started again has not failed yet.
    again = hpcdash.Job(SubmittedJob(queue, jobs.id, Launched(jobs.folder), (1,)), 1)
    with pytest.raises(TimeoutError):
        again.exception(1)
    jobs.cancel()
    assert jobs.wait() == {"cancelled": 2}
    assert (jobs[0].result(), type(again.exception(SECONDS))) == (7, ValueError)
    executor = hpcdash.Executor(queue, time="10m")
    assert executor.submit(calls.lingering, 8).result(SECONDS) == 8
    executor.shutdown(cancel_futures=True)


def test_a_training_is_charted_and_told_to_end(
    queue: hpcdash.Cluster, calls: ModuleType, tmp_path: Path
) -> None:
    job = calls.train.with_options(kill_switch=str(tmp_path / "KILL")).submit()
    array = queue.submit(
        hpcdash.Request(command="exit $SLURM_ARRAY_TASK_ID", slots=1, array=parse_tasks("0,3-4"))
    )
    with pytest.raises(UsageError, match="kill_switch"):
        calls.add.with_options(begin="+1h").submit(1).kill_switch()
    lines = job.logs(follow=True)
    assert next(line for line in lines if line.startswith("step 40 "))
    metrics = job.metrics("loss")
    assert (metrics.index.name, metrics["loss"].loc[4]) == ("step", 0.25)
    job.kill_switch()
    assert job.result(SECONDS) > 40
    # A request's tasks, which need not begin at 0, and again by their number.
    assert isinstance(array, hpcdash.JobArray)
    for one in (array, queue.attach(array.id)):
        assert ([job.id for job in one], one.wait()) == (
            [f"{array.id}_{task}" for task in (0, 3, 4)],
            {"completed": 1, "failed": 2},
        )
    with pytest.raises(UsageError, match="not submitted from here as a function call"):
        array[0].result(SECONDS)
    assert queue.nodes()["state"].notna().all()


def test_a_followed_log_that_was_truncated_is_read_from_its_start(
    queue: hpcdash.Cluster, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    job = queue.submit(
        hpcdash.Request(
            command=f"echo a long first line; until [ -e {seen} ]; do sleep 0.1; done; "
            "truncate -s 0 /proc/self/fd/1; echo second",
            slots=1,
        )
    )
    lines = job.logs(follow=True)
    assert next(iter(lines)) == "a long first line"
    seen.touch()
    assert [line.strip("\0") for line in lines] == ["second"]


def test_tasks_that_leave_nothing_are_looked_for_together(
    queue: hpcdash.Cluster, calls: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.client.job._RETRY_PAUSES", (0.05, 0.05))
    jobs = calls.vanishing.map([1, 2, 3, 4, 5])
    assert jobs.wait() == {"failed": 5}
    before = queue.session.store.budget.sent
    found = jobs.results(SECONDS, return_exceptions=True)
    assert [str(error).partition("\n")[0] for error in found] == [
        f"job {jobs.id}_{task} has no result: failed" for task in range(5)
    ]
    assert queue.session.store.budget.sent - before <= 4


class Planted:
    """Makes a file as it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> object:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_pickle_that_was_not_asked_for_is_never_read(
    queue: hpcdash.Cluster,
    calls: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_recorded: bool,
) -> None:
    monkeypatch.setattr("hpcdash.client.job._RETRY_PAUSES", ())
    job, array, described = (
        calls.add.submit(1),
        calls.odd_alone.map([1, 3]),
        calls.described.submit(),
    )
    for one in (job, array, described):
        one.wait()
    marker = tmp_path / "ran"
    for path in (job.result_path, array[1].result_path, f"{described.folder}/result.pkl"):
        Path(path).write_bytes(pickle.dumps(Planted(marker)))
    if not is_recorded:
        monkeypatch.setenv("HPCDASH_STATE", str(tmp_path / "another"))
    with hpcdash.connect("local", result_format="json") as cluster:
        for one in (cluster.attach(job.id), cluster.attach(array.id)[1]):
            with pytest.raises(
                UsageError, match="stored its result as pickle, but json was requested"
            ):
                one.result(SECONDS)
        assert cluster.attach(described.id).result(SECONDS)["python"] == 3
    assert not marker.exists()


def test_results_of_another_programs_launch_are_read_as_asked_for(
    queue: hpcdash.Cluster, calls: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.client.job._RETRY_PAUSES", ())
    array, described = calls.odd_alone.map([1, 3]), calls.described.submit()
    for one in (array, described):
        one.wait()
    monkeypatch.setenv("HPCDASH_STATE", str(tmp_path / "another"))
    with hpcdash.connect("local") as cluster:
        assert cluster.attach(array.id).results(SECONDS) == [1, 3]
        with pytest.raises(UsageError, match="stored its result as json, but pickle was requested"):
            cluster.attach(described.id).result(SECONDS)


def test_callbacks_there_and_here(
    queue: hpcdash.Cluster, calls: ModuleType, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    job = calls.odd_alone.with_options(callbacks=[calls.Notes(str(notes))]).submit(2)
    assert type(job.exception(SECONDS)) is ValueError
    expected = [f"begin {job.id}", "end failure ValueError"]
    expected += [f"completed {where} failure {job.id}" for where in ("runner", "client")]
    found = wait_until(
        "all that is told", lambda: len(notes.read_text().splitlines()) == 4 and notes.read_text()
    )
    assert found.splitlines() == expected


async def test_in_an_event_loop_and_as_an_executor(
    queue: hpcdash.Cluster, calls: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "site.toml").write_text('time = "5m"\nmemory = "1G"\n')
    job = await calls.add.asubmit(2)
    assert await job == 3
    assert await job.await_end() == "completed"
    odd = await calls.odd_alone.amap([1, 2])
    assert await odd.await_end(SECONDS) == {"completed": 1, "failed": 1}
    assert type(await odd[1].aexception()) is ValueError
    async with await hpcdash.aconnect("local", file=tmp_path / "site.toml", memory="2G") as cluster:
        assert (cluster.defaults["time"], cluster.defaults["memory"]) == ("5m", "2G")
        assert set((await cluster.ahistory("1d"))["id"]) >= {job.id}
        assert (await (await cluster.aattach(odd.id)).astatus()) == {"completed": 1, "failed": 1}
        assert (await cluster.anodes())["state"].notna().all()
    with hpcdash.Executor(queue, time="10m") as executor:
        assert list(executor.map(calls.square, range(4), chunksize=3)) == [0, 1, 4, 9]
        even = executor.submit(calls.odd_alone, 2)
        by_value = executor.submit(lambda number: number + 1, 41)
        assert type(even.exception(SECONDS)) is ValueError
        assert by_value.result(SECONDS) == 42
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(calls.square, 1)
    with hpcdash.Executor("local"):
        # An executor's own connection is not where tasks go.
        assert (await calls.add.asubmit(3)).cluster is queue


def test_a_result_that_others_may_have_written_is_not_read(
    queue: hpcdash.Cluster, calls: ModuleType, tmp_path: Path
) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "attacked"),)

    job = calls.add.submit(1)
    assert job.wait() == "completed"
    Path(job.result_path).write_bytes(pickle.dumps(Attack()))
    Path(job.folder).chmod(0o770)
    with pytest.raises(UsageError, match="not your own folder with mode 0700"):
        job.result()
    follower = calls.add.submit(job.cluster.attach(job.id), 1)
    assert "others may have written" in str(follower.exception(SECONDS))
    assert not (tmp_path / "attacked").exists()


# $1 is what is killed: before the answer of the submission is noted, or after it.
KILLED = """\
import os, signal, sys
import hpcdash, client_calls
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.submit.launches import Launches
def end(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "before":
    Actions._note_after = end
else:
    Launches.record_outcome = end
hpcdash.connect("local")
client_calls.once.submit(int(sys.argv[2]))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_killed_program_submitted_is_not_submitted_twice(
    person: Program, calls: ModuleType, moment: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(calls.__file__ or "").parent)}
    argv = [sys.executable, "-c", KILLED, moment, "7"]
    killed = subprocess.run(argv, env=environment, capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    with hpcdash.connect("local") as cluster:
        job = calls.once.submit(7)
        assert (job.id, job.result(SECONDS)) == ("1", 7)
        assert calls.once.submit(7).id == "1"
        other = calls.once.submit(8)
        assert (other.id, other.result(SECONDS)) == ("2", 8)
        assert cluster.attach("1").result() == 7


# A job imports the program that its function is of, but for what stands below `if __name__ ==
# "__main__":`.
PROGRAM = """\
import hpcdash
@hpcdash.task
def one():
    return 1
@hpcdash.task
def two():
    with hpcdash.connect("local"):
        return one.submit().result(60) + 1
"""
SUBMITTING = {
    'if __name__ == "__main__":\n    hpcdash.connect("local")\n    '
    "print(two.submit().result(60))\n": "2",
    'hpcdash.connect("local")\none.submit()\n': "submits one when careful.py is imported, and "
    "the job imports it too",
    'if True:\n    hpcdash.connect("local")\n    print(one.submit().exception(60))\n': "submits "
    "one when careful.py",
}


def test_a_program_that_its_jobs_would_submit_again_is_told_so(person: Program) -> None:
    running = []
    for number, submitting in enumerate(SUBMITTING):
        file = person.home / str(number) / "careful.py"
        file.parent.mkdir()
        file.write_text(PROGRAM + submitting)
        running.append(
            subprocess.Popen(
                [sys.executable, file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    said = [process.communicate()[0] for process in running]
    assert [expected in text for expected, text in zip(SUBMITTING.values(), said, strict=True)] == [
        True
    ] * 3, said
    # The first submits two, the last one.
    assert len([*person.rows("jobs"), *person.rows("history")]) == 3


def test_what_cannot_be_submitted_is_refused_before_anything_is(
    queue: hpcdash.Cluster, calls: ModuleType
) -> None:
    with pytest.raises(HpcdashError, match="memroy"):
        calls.add.with_options(memroy="4G").submit(1)
    with pytest.raises(UsageError, match="cannot be sent"):
        calls.add.submit(threading.Lock())
    with pytest.raises(UsageError, match="1 to"):
        calls.add.map([])
    with pytest.raises(UsageError, match="not one of auto"):
        calls.add.with_options(packaging="box").submit(1)
    assert queue.jobs().empty


@pytest.mark.long
def test_a_map_of_a_thousand_with_thirty_failures(
    queue: hpcdash.Cluster, calls: ModuleType
) -> None:
    numbers = [2 * at if at % 34 == 0 else 2 * at + 1 for at in range(1000)]
    jobs = calls.odd_alone.map(numbers)
    found = jobs.results(return_exceptions=True)
    failed = [number for number in numbers if number % 2 == 0]
    assert len(failed) == 30
    assert [
        number
        for number, result in zip(numbers, found, strict=True)
        if isinstance(result, ValueError)
    ] == failed
    assert [result for result in found if isinstance(result, int)] == [
        number for number in numbers if number % 2
    ]


# Runs a notebook's cells as a kernel does: a cell may await, and its last expression is shown.
NOTEBOOK = """\
import ast, asyncio, inspect, json, sys
async def run(cells):
    for cell in cells:
        body = ast.parse("".join(cell["source"]).replace("juno", "local"))
        if isinstance(body.body[-1], ast.Expr):
            body.body[-1].value = ast.Call(ast.Name("print", ast.Load()), [body.body[-1].value], [])
        code = compile(ast.fix_missing_locations(body), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if inspect.iscoroutine(found := eval(code, globals())):
            await found
asyncio.run(run([one for one in json.load(open(sys.argv[1]))["cells"] if one["cell_type"] == "code"]))
"""


def test_the_examples_run(person: Program, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("two words")
    folder = Path(__file__).parent.parent.parent / "examples"
    expected = {
        ("sweep.py", "local"): "best: lr 0.01, width 256",
        ("chain.py", "local", str(tmp_path / "run")): "300 steps, in",
        ("map_files.py", "local", str(texts)): f"{texts / 'a.txt'}: 2",
        ("executor.py", "local"): "168 primes below 1000",
        ("callbacks.py", "local"): "client: job",
        ("-c", NOTEBOOK, str(folder / "notebook.ipynb")): ", 0.0, ",
    }
    running = {
        words: subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True, cwd=folder
        )
        for words in expected
    }
    said = {words: process.communicate()[0] for words, process in running.items()}
    assert {words: expected[words] in text for words, text in said.items()} == dict.fromkeys(
        expected, True
    ), said
