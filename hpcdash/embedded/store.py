"""The embedded queue's jobs: what was submitted, what waits and for what, runs and ended.

Runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdash.backends.output_patterns import PathFacts, default_pattern, output_path
from hpcdash.embedded.database import Database, damaged
from hpcdash.embedded.job import ACTIVE, IS_ACTIVE, JOB_COLUMNS, Job, JobDependency, QueueRequest
from hpcdash.errors import UsageError

MET, NOT_YET, NEVER = 1, 0, -1
_UNFINISHED = ("pending", *ACTIVE)
_ENDED_BADLY = ("failed", "timeout", "cancelled", "gone")
_MAY_START = "state = 'pending' AND held = 0 AND ready = 1"
_SUBMISSION_COLUMNS = (
    "number, name, work_dir, submit_dir, umask, request, arguments, command, submitted_at, "
    "throttle, ignored"
)
_ANSWERS_KEPT = 1000


def judge(database: Database, number: int, request: QueueRequest, name: bytes) -> None:
    """Note, inside `writing`, whether a submission's pending jobs may start now, or never may."""
    verdicts = [_verdict(database, number, name, one) for one in request.dependencies]
    kinds = {verdict for verdict, _ in verdicts}
    # The verdict that decides alone, that which decides if no other is left, and else it waits.
    decisive, last = (MET, NEVER) if request.any_dependency else (NEVER, MET)
    if decisive in kinds:
        verdict = decisive
    else:
        verdict = NOT_YET if NOT_YET in kinds else last
    if verdict == NOT_YET:
        return
    database.change(
        "UPDATE jobs SET ready = ? WHERE number = ? AND state = 'pending'", (verdict, number)
    )
    not_before = max((at for _, at in verdicts if at is not None), default=None)
    if verdict == MET and not_before is not None:
        database.change(
            "UPDATE jobs SET begin_at = max(coalesce(begin_at, 0), ?) WHERE number = ?",
            (not_before, number),
        )


def _verdict(
    database: Database, number: int, name: bytes, one: JobDependency
) -> tuple[int, float | None]:
    """(the verdict; not before this time) on one condition."""
    if one.kind == "singleton":
        earlier = database.rows(
            "SELECT 1 FROM submissions JOIN jobs USING (number) WHERE submissions.name = ? AND "
            "number < ? AND state IN (?, ?, ?, ?) LIMIT 1",
            (name, number, *_UNFINISHED),
        )
        return NOT_YET if earlier else MET, None
    assert one.number is not None
    if one.kind == "after":
        if _any(database, one, ("pending",)):
            return NOT_YET, None
        # One that was cancelled before it began counts from then.
        begun = database.number(
            f"SELECT max(coalesce(started_at, ended_at)) FROM jobs WHERE {_which(one)}",
            _values(one),
        )
        return MET, None if not one.minutes or begun is None else begun + 60 * one.minutes
    if one.kind == "afterok" and _any(database, one, _ENDED_BADLY):
        return NEVER, None
    if _any(database, one, _UNFINISHED):
        return NOT_YET, None
    if one.kind == "afternotok":
        return MET if _any(database, one, _ENDED_BADLY) else NEVER, None
    return MET, None


def _any(database: Database, one: JobDependency, states: tuple[str, ...]) -> bool:
    """Whether a job that is depended on is in one of some states."""
    marks = ",".join("?" * len(states))
    condition = f"SELECT 1 FROM jobs WHERE {_which(one)} AND state IN ({marks}) LIMIT 1"
    return bool(database.rows(condition, (*_values(one), *states)))


def _which(one: JobDependency) -> str:
    return "number = ?" if one.task is None else "number = ? AND task = ?"


def _values(one: JobDependency) -> tuple[int | None, ...]:
    return (one.number,) if one.task is None else (one.number, one.task)


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """One row of `submissions` without its script and environment; `command` is the file it was
    read from.
    """

    number: int
    name: str
    work_dir: str
    submit_dir: str
    umask: int
    request: QueueRequest
    arguments: tuple[str, ...]
    command: str
    submitted_at: float
    throttle: int | None
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HandedIn:
    """Parts of a submission: the request with its final folder and name, and its circumstances.

    They are place, way and time of the submission.
    """

    request: QueueRequest
    script: bytes
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    command: str
    submit_dir: str
    umask: int
    ignored: tuple[str, ...]
    now: float
    token: str | None = None


class QueueStore(Database):
    """Jobs and submissions in the queue's file; changes are made inside `writing`, unless noted."""

    # -- submission

    def submit(self, one: HandedIn) -> int:
        """Keep a submission with all of its jobs, in a transaction of its own; its number is on the
        disk on return.

        A token that was used already gives the number it had. Raises UsageError for a dependency on
        an unknown job.
        """
        request = one.request
        array = request.array
        tasks: Sequence[int | None] = [None] if array is None else sorted(array)
        with self.writing():
            if one.token is not None and (known := self.token_number(one.token)) is not None:
                return known
            for dependency in request.dependencies:
                if dependency.number is not None and not self._is_known(dependency):
                    raise UsageError(
                        f"{dependency}: no such job in this queue",
                        "`hpcdash jobs` and `hpcdash history` list them.",
                    )
            # Each task has a number of its own, as in Slurm: the next submission's comes after
            # them.
            number = int(self.number("SELECT value FROM facts WHERE name = 'last_number'") or 0) + 1
            self.change(
                "INSERT OR REPLACE INTO facts VALUES ('last_number', ?)", (number + len(tasks) - 1,)
            )
            self.change(
                f"INSERT INTO submissions ({_SUBMISSION_COLUMNS}, environment, token, script)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    number,
                    _packed(request.name),
                    _packed(request.work_dir),
                    _packed(one.submit_dir),
                    one.umask,
                    json.dumps(request.to_json()),
                    json.dumps(one.arguments),
                    _packed(one.command),
                    one.now,
                    array.throttle if array else None,
                    json.dumps(one.ignored),
                    json.dumps(dict(one.environment)),
                    None if one.token is None else _packed(one.token),
                    one.script,
                ),
            )
            self.change_each(
                "INSERT INTO jobs (id, number, task, state, held, ready, begin_at, cpus, gpus, "
                "limit_seconds) VALUES (?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?)",
                (
                    (
                        number + place,
                        number,
                        task,
                        int(request.held),
                        0 if request.dependencies else 1,
                        request.begin_at,
                        request.cpus,
                        request.gpus,
                        request.limit_seconds,
                    )
                    for place, task in enumerate(tasks)
                ),
            )
            for dependency in request.dependencies:
                self.change(
                    "INSERT INTO edges VALUES (?, ?, ?)",
                    (number, dependency.number, _packed(request.name)),
                )
            if request.dependencies:
                judge(self, number, request, _packed(request.name))
        return number

    def _is_known(self, one: JobDependency) -> bool:
        if one.task is None:
            return bool(self.rows("SELECT 1 FROM submissions WHERE number = ?", (one.number,)))
        return bool(
            self.rows("SELECT 1 FROM jobs WHERE number = ? AND task = ?", (one.number, one.task))
        )

    # -- reading

    def jobs(
        self, where: str = "1", values: Sequence[object] = (), *, order: str = "id", limit: int = -1
    ) -> list[Job]:
        """Jobs by a condition on the columns of `jobs`."""
        rows = self.rows(
            f"SELECT {JOB_COLUMNS} FROM jobs WHERE {where} ORDER BY {order} LIMIT {limit}", values
        )
        return [Job(*row) for row in rows]  # type: ignore[arg-type]

    def active_jobs(self) -> list[Job]:
        return self.jobs(IS_ACTIVE, ACTIVE)

    def pending_count(self) -> int:
        return int(self.number("SELECT count(*) FROM jobs WHERE state = 'pending'") or 0)

    def job(self, job_id: int) -> Job | None:
        return next(iter(self.jobs("id = ?", (job_id,))), None)

    def find(self, number: int, tasks: Iterable[int] | None = None) -> list[Job]:
        """The jobs of a submission (by its number, or the number of one of its tasks), or some
        tasks of it.
        """
        found = self.jobs("number = ?", (number,)) or self.jobs("id = ?", (number,))
        if tasks is None:
            return found
        requested = set(tasks)
        return [job for job in found if job.task in requested]

    def submission(self, number: int) -> StoredSubmission:
        """A submission that is known to exist."""
        return self.submissions([number])[number]

    def submissions(self, numbers: Iterable[int]) -> dict[int, StoredSubmission]:
        """Some submissions, by number."""
        requested = sorted(set(numbers))
        found: dict[int, StoredSubmission] = {}
        for start in range(0, len(requested), 500):
            some = requested[start : start + 500]
            marks = ",".join("?" * len(some))
            for row in self.rows(
                f"SELECT {_SUBMISSION_COLUMNS} FROM submissions WHERE number IN ({marks})", some
            ):
                try:
                    one = _submission(row)
                except (AssertionError, AttributeError, TypeError, ValueError) as error:
                    raise damaged(
                        self.path, f"submission {readable(str(row[0]))} cannot be read ({error})"
                    ) from error
                found[one.number] = one
        return found

    def script(self, number: int) -> bytes:
        """The script of a submission, as it was handed in."""
        ((script,),) = self.rows("SELECT script FROM submissions WHERE number = ?", (number,))
        assert isinstance(script, bytes)
        return script

    def environment(self, number: int) -> dict[str, str]:
        """The environment a submission was handed in from."""
        ((environment,),) = self.rows(
            "SELECT environment FROM submissions WHERE number = ?", (number,)
        )
        found: dict[str, str] = json.loads(str(environment))
        return found

    def token_number(self, token: str) -> int | None:
        """The number a submission with this token has."""
        found = self.number("SELECT number FROM submissions WHERE token = ?", (_packed(token),))
        return None if found is None else int(found)

    def find_token(self, number: int) -> str | None:
        """The token of a submission that is known to exist."""
        ((token,),) = self.rows("SELECT token FROM submissions WHERE number = ?", (number,))
        return None if token is None else _unpacked(token)

    # -- scheduling

    def next_waiting_number(self, after: int, now: float) -> int | None:
        """The next submission that has a job free to start, but for its throttle."""
        found = self.number(
            f"SELECT number FROM jobs WHERE {_MAY_START} AND number > ? AND (begin_at IS NULL OR "
            "begin_at <= ?) ORDER BY number LIMIT 1",
            (after, now),
        )
        return None if found is None else int(found)

    def waiting_jobs(self, number: int, now: float, limit: int) -> list[Job]:
        """Jobs of a submission that are free to start, but for its throttle."""
        return self.jobs(
            f"number = ? AND {_MAY_START} AND (begin_at IS NULL OR begin_at <= ?)",
            (number, now),
            limit=limit,
        )

    def throttle(self, number: int) -> int | None:
        """Return how many tasks of an array may run at once; None: as many as fit."""
        found = self.number("SELECT throttle FROM submissions WHERE number = ?", (number,))
        return None if found is None else int(found)

    def active_tasks(self, number: int) -> int:
        return int(
            self.number(
                f"SELECT count(*) FROM jobs WHERE number = ? AND {IS_ACTIVE}", (number, *ACTIVE)
            )
            or 0
        )

    def next_begin(self, now: float) -> float | None:
        """Return the time of the next begin; None for none."""
        return self.number(
            f"SELECT min(begin_at) FROM jobs INDEXED BY jobs_begin WHERE {_MAY_START} AND "
            "begin_at > ?",
            (now,),
        )

    def has_work(self) -> bool:
        """Whether anything runs, may start without a person, or was requested."""
        return bool(
            self.rows(f"SELECT 1 FROM jobs WHERE {IS_ACTIVE} LIMIT 1", ACTIVE)
            or self.rows(f"SELECT 1 FROM jobs WHERE {_MAY_START} LIMIT 1")
            or self.rows("SELECT 1 FROM calls WHERE done IS NULL LIMIT 1")
        )

    def begin(
        self, job: Job, *, gpu_ids: Sequence[str], now: float, clock: float, boot: str
    ) -> Job | None:
        """Note that a job is started; None where it is not free to start any more."""
        changed = self.change(
            "UPDATE jobs SET state = 'running', attempt = attempt + 1, gpu_ids = ?, started_at = "
            f"?, started_clock = ?, boot = ?, wanted = NULL WHERE id = ? AND {_MAY_START}",
            (",".join(gpu_ids), now, clock, boot, job.id),
        )
        if not changed:
            return None
        return replace(
            job,
            state="running",
            attempt=job.attempt + 1,
            gpu_ids=",".join(gpu_ids),
            started_at=now,
            started_clock=clock,
            boot=boot,
        )

    def put_back(self, job_id: int, *, restarted: bool, held: bool = False) -> None:
        """Note that a job waits again: it never started (same restarts), or is to run once more, when
        released.
        """
        self.change(
            "UPDATE jobs SET state = 'pending', gpu_ids = '', started_at = NULL, started_clock = "
            "NULL, boot = NULL, wanted = NULL, ended_at = NULL, elapsed = NULL, exit_code = NULL, "
            "exit_signal = NULL, reason = NULL, cpu_seconds = NULL, peak_bytes = NULL, restarts = "
            "restarts + ?, held = max(held, ?) WHERE id = ?",
            (int(restarted), int(held), job_id),
        )

    def end(
        self,
        job_id: int,
        state: str,
        *,
        now: float,
        elapsed: float | None = None,
        exit_code: int | None = None,
        exit_signal: int | None = None,
        reason: str | None = None,
        cpu_seconds: float | None = None,
        peak_bytes: int | None = None,
    ) -> None:
        """Record how a job ended; never before it started, whatever the clock shows."""
        self.change(
            "UPDATE jobs SET state = ?, ended_at = max(?, coalesce(started_at, 0)), elapsed = ?, "
            "exit_code = ?, exit_signal = ?, reason = ?, cpu_seconds = ?, peak_bytes = ?, wanted = "
            "NULL, gpu_ids = '' WHERE id = ?",
            (
                state,
                now,
                elapsed,
                exit_code,
                exit_signal,
                None if reason is None else readable(reason),
                cpu_seconds,
                peak_bytes,
                job_id,
            ),
        )

    def set_state(self, job_id: int, state: str, requested: str | None = None) -> None:
        """Record that a running job is suspended, continues, or is completing at a request."""
        self.change(
            "UPDATE jobs SET state = ?, wanted = coalesce(?, wanted) WHERE id = ?",
            (state, requested, job_id),
        )

    def set_held(self, job_id: int, held: bool) -> None:
        self.change("UPDATE jobs SET held = ? WHERE id = ?", (int(held), job_id))

    def set_limit(self, job_id: int, limit_seconds: int | None) -> None:
        self.change("UPDATE jobs SET limit_seconds = ? WHERE id = ?", (limit_seconds, job_id))

    def set_throttle(self, number: int, throttle: int | None) -> None:
        self.change("UPDATE submissions SET throttle = ? WHERE number = ?", (throttle, number))

    def set_comment(self, number: int, comment: str) -> None:
        request = replace(self.submission(number).request, comment=comment)
        self.change(
            "UPDATE submissions SET request = ? WHERE number = ?",
            (json.dumps(request.to_json()), number),
        )

    def run_again(self, job: Job) -> None:
        """Note that a job that ended is to run once more; who could never start because of it waits
        again.
        """
        self.put_back(job.id, restarted=True)
        self.change(
            "UPDATE jobs SET ready = 0 WHERE state = 'pending' AND ready = -1 AND number IN "
            "(SELECT number FROM edges WHERE on_number = ?)",
            (job.number,),
        )
        self.judge_dependents(job.number)

    def judge_dependents(self, number: int) -> None:
        """Re-evaluate the dependents of a submission of which a job started or ended."""
        ((name,),) = self.rows("SELECT name FROM submissions WHERE number = ?", (number,))
        waiting = self.rows(
            "SELECT DISTINCT number FROM edges WHERE (on_number = ? OR (on_number IS NULL AND name "
            "= ?)) AND EXISTS (SELECT 1 FROM jobs WHERE jobs.number = edges.number AND state = "
            "'pending' AND ready = 0)",
            (number, name),
        )
        for one in self.submissions(int(str(dependent)) for (dependent,) in waiting).values():
            judge(self, one.number, one.request, _packed(one.name))

    # -- calls to the supervisor

    def call(self, job_id: int, verb: str, argument: str = "") -> int:
        """Request an action on a running job from the supervisor; return the call's ID."""
        return self.insert(
            "INSERT INTO calls (job_id, verb, argument) VALUES (?, ?, ?)", (job_id, verb, argument)
        )

    def open_calls(self) -> list[tuple[int, int, str, str]]:
        """Return (ID, job ID, verb, argument) of unanswered calls."""
        rows = self.rows(
            "SELECT id, job_id, verb, argument FROM calls WHERE done IS NULL ORDER BY id"
        )
        return [(int(str(a)), int(str(b)), str(c), str(d)) for a, b, c, d in rows]

    def answer_call(self, call_id: int, done: bool, text: str = "") -> None:
        """Answer a call; answers are stored for a while, for the caller."""
        self.change("UPDATE calls SET done = ?, words = ? WHERE id = ?", (int(done), text, call_id))
        self.change(
            "DELETE FROM calls WHERE done IS NOT NULL AND id < ?", (call_id - _ANSWERS_KEPT,)
        )

    def call_answers(self, first: int, last: int) -> dict[int, tuple[bool, str]]:
        """Return the answers of calls so far: whether each was done, and the message if not."""
        rows = self.rows(
            "SELECT id, done, words FROM calls WHERE done IS NOT NULL AND id BETWEEN ? AND ?",
            (first, last),
        )
        return {int(str(call)): (bool(done), str(text)) for call, done, text in rows}

    # -- removal of ended jobs

    def forget_before(self, ended_before: float) -> list[int]:
        """Drop, in a transaction of its own, submissions all of whose jobs ended before a time;
        their numbers.
        """
        with self.writing():
            rows = self.rows(
                "SELECT number FROM jobs GROUP BY number HAVING max(coalesce(ended_at, 1e300)) < ? "
                "LIMIT 1000",
                (ended_before,),
            )
            numbers = [int(str(row[0])) for row in rows]
            for number in numbers:
                for table in ("jobs", "submissions", "edges"):
                    self.change(f"DELETE FROM {table} WHERE number = ?", (number,))
        return numbers


def readable(text: str) -> str:
    """Text that can be written as UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _packed(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _unpacked(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode("utf-8", "surrogateescape")


def _submission(row: tuple[object, ...]) -> StoredSubmission:
    (
        number,
        name,
        work_dir,
        submit_dir,
        umask,
        request,
        arguments,
        command,
        submitted_at,
        throttle,
        ignored,
    ) = row
    return StoredSubmission(
        number=int(str(number)),
        name=_unpacked(name),
        work_dir=_unpacked(work_dir),
        submit_dir=_unpacked(submit_dir),
        umask=int(str(umask)),
        request=QueueRequest.from_json(json.loads(str(request))),
        arguments=tuple(json.loads(str(arguments))),
        command=_unpacked(command),
        submitted_at=float(str(submitted_at)),
        throttle=None if throttle is None else int(str(throttle)),
        ignored=tuple(json.loads(str(ignored))),
    )


def script_path(folder: Path, number: int) -> Path:
    """The copy of a submission's script that its jobs run."""
    return folder / "scripts" / str(number)


def output_paths(
    job: Job, submission: StoredSubmission, node: str, user: str
) -> tuple[str, str | None]:
    """(stdout, stderr) of a job, absolute; stderr None where it goes into stdout's file.

    Patterns are Slurm's.
    """
    is_array = job.task is not None
    facts = PathFacts(
        job_number=str(job.id),
        work_dir=submission.work_dir,
        user=user,
        name=submission.name,
        node=node,
        array_id=str(job.number) if is_array else "",
        task=str(job.task) if is_array else "",
        is_array=is_array,
    )
    stdout = output_path(submission.request.stdout or default_pattern(facts), facts)
    stderr = output_path(submission.request.stderr, facts) if submission.request.stderr else None
    return stdout, None if stderr == stdout else stderr
