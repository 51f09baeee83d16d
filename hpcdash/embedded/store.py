"""The embedded queue's submissions and jobs, in its database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcdash.backends.output_patterns import PathFacts, default_pattern, output_path
from hpcdash.embedded.database import Database, damaged
from hpcdash.embedded.job import ACTIVE, IS_ACTIVE, JOB_COLUMNS, Job, JobDependency, QueueRequest
from hpcdash.errors import UsageError

# Values of `jobs.ready`.
MET = 1
NOT_YET = 0
NEVER = -1
_UNFINISHED = ("pending", *ACTIVE)
_FAILED = ("failed", "timeout", "cancelled", "gone")
_MAY_START = "state = 'pending' AND held = 0 AND ready = 1"
_SUBMISSION_COLUMNS = (
    "number, name, work_dir, submit_dir, umask, request, arguments, command, submitted_at, "
    "throttle, ignored"
)
_MAX_CALL_ANSWERS = 1000


def _update_readiness(database: Database, number: int, request: QueueRequest, name: bytes) -> None:
    """Record whether a submission's pending jobs may start now, or never may.

    For callers in `writing`.
    """
    states: set[int] = set()
    not_before: list[float] = []
    for dependency in request.dependencies:
        state, time = _dependency_state(database, number, name, dependency)
        states.add(state)
        if time is not None:
            not_before.append(time)
    # One state decides on its own; its opposite decides once no other state is left.
    decisive = MET if request.any_dependency else NEVER
    if decisive in states:
        ready = decisive
    elif NOT_YET in states:
        return
    else:
        ready = -decisive
    database.change(
        "UPDATE jobs SET ready = ? WHERE number = ? AND state = 'pending'", (ready, number)
    )
    if ready == MET and not_before:
        database.change(
            "UPDATE jobs SET begin_at = max(coalesce(begin_at, 0), ?) WHERE number = ?",
            (max(not_before), number),
        )


def _dependency_state(
    database: Database, number: int, name: bytes, dependency: JobDependency
) -> tuple[int, float | None]:
    """Return the state of a dependency, and the earliest start that it permits if there is one."""
    if dependency.kind == "singleton":
        earlier = database.rows(
            "SELECT 1 FROM submissions JOIN jobs USING (number) WHERE submissions.name = ? AND "
            "number < ? AND state IN (?, ?, ?, ?) LIMIT 1",
            (name, number, *_UNFINISHED),
        )
        return NOT_YET if earlier else MET, None
    assert dependency.number is not None
    target = "number = ?"
    values: tuple[object, ...] = (dependency.number,)
    if dependency.task is not None:
        target += " AND task = ?"
        values += (dependency.task,)

    def has_job_in(states: tuple[str, ...]) -> bool:
        marks = ",".join("?" * len(states))
        query = f"SELECT 1 FROM jobs WHERE {target} AND state IN ({marks}) LIMIT 1"
        return bool(database.rows(query, (*values, *states)))

    if dependency.kind == "after":
        if has_job_in(("pending",)):
            return NOT_YET, None
        # For a job that was cancelled before its start, the cancellation counts.
        started_at = database.number(
            f"SELECT max(coalesce(started_at, ended_at)) FROM jobs WHERE {target}", values
        )
        if started_at is None or not dependency.minutes:
            return MET, None
        return MET, started_at + 60 * dependency.minutes
    if dependency.kind == "afterok" and has_job_in(_FAILED):
        return NEVER, None
    if has_job_in(_UNFINISHED):
        return NOT_YET, None
    if dependency.kind == "afternotok" and not has_job_in(_FAILED):
        return NEVER, None
    return MET, None


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """A row of `submissions` without its script and environment; `command` is the script's file."""

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


class QueueStore(Database):
    """Submissions and jobs in the queue's database; changes need `writing`, unless noted."""

    # -- submission

    def submit(
        self,
        request: QueueRequest,
        *,
        script: bytes,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        command: str,
        submit_dir: str,
        umask: int,
        ignored: Sequence[str],
        now: float,
        token: str | None = None,
    ) -> int:
        """Store a submission and its jobs in a transaction, and return its number.

        The request has the final folder and name. If the token was used before, returns that
        submission's number. Raises UsageError for a dependency on an unknown job.
        """
        array = request.array
        tasks: Sequence[int | None] = [None] if array is None else sorted(array)
        name = _packed(request.name)
        with self.writing():
            if token is not None and (known := self.token_number(token)) is not None:
                return known
            self._check_dependencies(request)
            # Each task has a number of its own, as in Slurm, so the next submission's follows them.
            number = int(self.number("SELECT value FROM facts WHERE name = 'last_number'") or 0) + 1
            self.change(
                "INSERT OR REPLACE INTO facts VALUES ('last_number', ?)", (number + len(tasks) - 1,)
            )
            self.change(
                f"INSERT INTO submissions ({_SUBMISSION_COLUMNS}, environment, token, script)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    number,
                    name,
                    _packed(request.work_dir),
                    _packed(submit_dir),
                    umask,
                    json.dumps(request.to_json()),
                    json.dumps(arguments),
                    _packed(command),
                    now,
                    array.throttle if array else None,
                    json.dumps(ignored),
                    json.dumps(dict(environment)),
                    None if token is None else _packed(token),
                    script,
                ),
            )
            common = (
                int(request.held),
                NOT_YET if request.dependencies else MET,
                request.begin_at,
                request.cpus,
                request.gpus,
                request.limit_seconds,
            )
            self.change_each(
                "INSERT INTO jobs (id, number, task, state, held, ready, begin_at, cpus, gpus, "
                "limit_seconds) VALUES (?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?)",
                ((job_id, number, task, *common) for job_id, task in enumerate(tasks, number)),
            )
            for dependency in request.dependencies:
                self.change("INSERT INTO edges VALUES (?, ?, ?)", (number, dependency.number, name))
            if request.dependencies:
                _update_readiness(self, number, request, name)
        return number

    def _check_dependencies(self, request: QueueRequest) -> None:
        for dependency in request.dependencies:
            if dependency.number is None:
                continue
            query = "SELECT 1 FROM submissions WHERE number = ?"
            values: tuple[object, ...] = (dependency.number,)
            if dependency.task is not None:
                query = "SELECT 1 FROM jobs WHERE number = ? AND task = ?"
                values = (dependency.number, dependency.task)
            if not self.rows(query, values):
                raise UsageError(
                    f"{dependency}: no such job in this queue",
                    "`hpcdash jobs` and `hpcdash history` list them.",
                )

    # -- reading

    def jobs(
        self, where: str = "1", values: Sequence[object] = (), *, order: str = "id", limit: int = -1
    ) -> list[Job]:
        """Return the jobs that meet a condition on the columns of `jobs`."""
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
        """Return the jobs, or some tasks, of a submission by its number or that of one task."""
        found = self.jobs("number = ?", (number,)) or self.jobs("id = ?", (number,))
        if tasks is None:
            return found
        requested = set(tasks)
        return [job for job in found if job.task in requested]

    def submission(self, number: int) -> StoredSubmission:
        """Return a submission that is known to exist."""
        return self.submissions([number])[number]

    def submissions(self, numbers: Iterable[int]) -> dict[int, StoredSubmission]:
        """Return submissions by number."""
        requested = sorted(set(numbers))
        found: dict[int, StoredSubmission] = {}
        for start in range(0, len(requested), 500):
            some = requested[start : start + 500]
            marks = ",".join("?" * len(some))
            for row in self.rows(
                f"SELECT {_SUBMISSION_COLUMNS} FROM submissions WHERE number IN ({marks})", some
            ):
                try:
                    submission = _submission(row)
                except (AssertionError, AttributeError, TypeError, ValueError) as error:
                    raise damaged(
                        self.path, f"submission {readable(str(row[0]))} cannot be read ({error})"
                    ) from error
                found[submission.number] = submission
        return found

    def script(self, number: int) -> bytes:
        """Return a submission's script, unchanged."""
        ((script,),) = self.rows("SELECT script FROM submissions WHERE number = ?", (number,))
        assert isinstance(script, bytes)
        return script

    def environment(self, number: int) -> dict[str, str]:
        """Return the environment of the submitting program."""
        ((environment,),) = self.rows(
            "SELECT environment FROM submissions WHERE number = ?", (number,)
        )
        found: dict[str, str] = json.loads(str(environment))
        return found

    def token_number(self, token: str) -> int | None:
        """Return the number of the submission with a token; None if there is none."""
        found = self.number("SELECT number FROM submissions WHERE token = ?", (_packed(token),))
        return None if found is None else int(found)

    def find_token(self, number: int) -> str | None:
        """Return the token of a submission that is known to exist."""
        ((token,),) = self.rows("SELECT token FROM submissions WHERE number = ?", (number,))
        return None if token is None else _unpacked(token)

    # -- scheduling

    def next_waiting_number(self, after: int, now: float) -> int | None:
        """Return the next submission with a job that may start, its throttle aside."""
        found = self.number(
            f"SELECT number FROM jobs WHERE {_MAY_START} AND number > ? AND (begin_at IS NULL OR "
            "begin_at <= ?) ORDER BY number LIMIT 1",
            (after, now),
        )
        return None if found is None else int(found)

    def waiting_jobs(self, number: int, now: float, limit: int) -> list[Job]:
        """Return a submission's jobs that may start, its throttle aside."""
        return self.jobs(
            f"number = ? AND {_MAY_START} AND (begin_at IS NULL OR begin_at <= ?)",
            (number, now),
            limit=limit,
        )

    def throttle(self, number: int) -> int | None:
        """Return the limit of an array's running tasks; None: as many as fit."""
        found = self.number("SELECT throttle FROM submissions WHERE number = ?", (number,))
        return None if found is None else int(found)

    def active_tasks(self, number: int) -> int:
        query = f"SELECT count(*) FROM jobs WHERE number = ? AND {IS_ACTIVE}"
        return int(self.number(query, (number, *ACTIVE)) or 0)

    def next_begin(self, now: float) -> float | None:
        """Return the next start time that a job requests; None if there is none."""
        return self.number(
            f"SELECT min(begin_at) FROM jobs INDEXED BY jobs_begin WHERE {_MAY_START} AND "
            "begin_at > ?",
            (now,),
        )

    def has_work(self) -> bool:
        """Whether a job runs or may start without a person, or a call is open."""
        return bool(
            self.rows(f"SELECT 1 FROM jobs WHERE {IS_ACTIVE} LIMIT 1", ACTIVE)
            or self.rows(f"SELECT 1 FROM jobs WHERE {_MAY_START} LIMIT 1")
            or self.rows("SELECT 1 FROM calls WHERE done IS NULL LIMIT 1")
        )

    def begin(
        self, job: Job, *, gpu_ids: Sequence[str], now: float, clock: float, boot: str
    ) -> Job | None:
        """Record the start of a job; None if it may not start any more."""
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
        """Record that a job waits again, as it never started or must run again (`restarted`)."""
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
        """Record the end of a job; it is never before the start, even if the clock was set back."""
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
        """Record that an active job is suspended, running, or completing because of a request."""
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
        """Record that a finished job must run again, so that its dependents may start again."""
        self.put_back(job.id, restarted=True)
        self.change(
            "UPDATE jobs SET ready = 0 WHERE state = 'pending' AND ready = -1 AND number IN "
            "(SELECT number FROM edges WHERE on_number = ?)",
            (job.number,),
        )
        self.update_dependents(job.number)

    def update_dependents(self, number: int) -> None:
        """Evaluate the dependents of a submission again, after a job of it started or ended."""
        ((name,),) = self.rows("SELECT name FROM submissions WHERE number = ?", (number,))
        waiting = self.rows(
            "SELECT DISTINCT number FROM edges WHERE (on_number = ? OR (on_number IS NULL AND name "
            "= ?)) AND EXISTS (SELECT 1 FROM jobs WHERE jobs.number = edges.number AND state = "
            "'pending' AND ready = 0)",
            (number, name),
        )
        dependents = self.submissions(int(str(dependent)) for (dependent,) in waiting)
        for dependent_number, one in dependents.items():
            _update_readiness(self, dependent_number, one.request, _packed(one.name))

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
        """Answer a call; the latest answers are stored for the callers."""
        self.change("UPDATE calls SET done = ?, words = ? WHERE id = ?", (int(done), text, call_id))
        self.change(
            "DELETE FROM calls WHERE done IS NOT NULL AND id < ?", (call_id - _MAX_CALL_ANSWERS,)
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
        """Remove submissions whose jobs all ended before a time, in a transaction.

        Returns their numbers.
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
    """Return text that can be encoded as UTF-8."""
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
    """Return the file of a submission's script, which its jobs run."""
    return folder / "scripts" / str(number)


def output_paths(
    job: Job, submission: StoredSubmission, node: str, user: str
) -> tuple[str, str | None]:
    """Return a job's absolute (stdout, stderr); stderr is None if it goes into stdout's file.

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
