"""qdel, qhold, qrls, qrerun, qsig, qalter and qmove: how each is asked, and what it says of the
jobs it acted on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import (
    ACCOUNT,
    CUT_OFF,
    ActionCommand,
    ActionRequest,
    Job,
    Outcome,
    Verb,
    message_lines,
    parse_integer,
    parse_jobs,
    parse_signal,
    require_alterable,
)
from hpcdash.backends.base import ActionsPart
from hpcdash.backends.pbs.dialects import Dialect, DialectPart, pbs
from hpcdash.backends.pbs.errors import is_answer_lost
from hpcdash.backends.pbs.values import format_walltime
from hpcdash.backends.queries import Answer
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import BadJobId, JobId, covers, pbs_job_id
from hpcdash.domain.units import MINUTE, parse_duration
from hpcdash.errors import UsageError, excerpt

_JOB_WITHIN = re.compile(r"Job (\S+) (has finished.*)")
_WORDS_THEN_JOB = re.compile(r"(.*\S)\s+(\S+)")
# A number after these words is the error's.
_NO_JOB = re.compile(r"Error [0-9]+|.*\bstatus [0-9]+")
_NOT_CONNECTED = re.compile(
    r"cannot connect to|Couldn't connect to|Unable to (connect|contact)", re.IGNORECASE
)
_STOPPED_EARLY = re.compile(
    r"(?i)usage:|illegal -|illegally formed destination|unable to initialize"
)
# qmove says so, and ends well.
_FAILED_ANYWAY = re.compile(r"Queue type not set")
_NOT_FOUND = (126, 127)
# -1: of a command that lost the server, or of a line to the host that broke.
_NO_STATUS = 255


# A job that a line names, and the message on it.
JobMessage = tuple[JobId, str]


class Target(Struct, frozen=True):
    """A job as it was asked for, the argument that stands for it or a part of it, and what that
    argument means.
    """

    job_id: str
    argument: str
    job: JobId


class RefusalHint(Struct, frozen=True):
    """Advice that is added to PBS's messages of a pattern: why, or what to do instead; `{array}` is
    the job's array.

    `for_tasks`: only where tasks of an array were asked for. `is_noted`: it was done as far as the
    server goes. `can_force`: as an outcome has it.
    """

    pattern: re.Pattern[str]
    advice: str
    for_tasks: bool = False
    is_noted: bool = False
    can_force: bool = False


def read_answer(
    answer: Answer,
    *,
    program: str,
    targets: Sequence[Target],
    hints: Sequence[RefusalHint] = (),
    one_connection: bool = False,
) -> tuple[Outcome, ...]:
    """One outcome for each of the targets' jobs.

    `one_connection`: the program asks for all its jobs at once.
    """
    reported: dict[str, list[JobMessage]] = {}
    general: list[str] = []
    numbers = {target.job.number for target in targets}
    for line in message_lines(answer):
        own = line.removeprefix(f"{program}: ")
        message = _parse_line(own) if own != line else None
        if message is not None and message[0].number in numbers:
            reported.setdefault(message[0].number, []).append(message)
        else:
            general.append(own)
    about = {target: _about(target, reported.get(target.job.number, ())) for target in targets}
    unnamed = {target.argument for target, message in about.items() if message is None}
    done, ending = _general_outcome(
        answer.status,
        general,
        is_any_reported=bool(reported),
        unnamed=1 if one_connection else len(unnamed),
    )
    rest = _general_message(answer, general, program)
    if done:
        rest = ""
    elif answer.status not in _NOT_FOUND:
        rest = _hinted(rest, _hint_for(rest, hints)) + ending
    each: dict[str, list[Outcome]] = {}
    for target in targets:
        message = about[target]
        outcome = (
            Outcome(target.job_id, done, rest)
            if message is None
            else _reported_outcome(target, message, hints)
        )
        each.setdefault(target.job_id, []).append(outcome)
    return tuple(map(_together, each.values()))


def _together(parts: Sequence[Outcome]) -> Outcome:
    """The outcome of a job of whose parts each has its own: the first that did not go well, and how
    many did.
    """
    worst = next((part for part in parts if part.done is not True), parts[0])
    done = sum(part.done is True for part in parts)
    if worst.done is True or not done:
        return worst
    return replace(worst, text=f"{worst.text}; done for {done} of {len(parts)}")


def _about(target: Target, reported: Sequence[JobMessage]) -> JobMessage | None:
    """Return the message on the very job, else on a part of it or on what it is a part of."""
    near = None
    for message in reported:
        job = message[0]
        if str(job) == target.argument:
            return message
        if near is None and (covers(target.job, job) or covers(job, target.job)):
            near = message
    return near


def _reported_outcome(target: Target, message: JobMessage, hints: Sequence[RefusalHint]) -> Outcome:
    job, text = message
    requested = _read(target.job_id) or target.job
    is_part = job.tasks is not None and job.tasks != requested.tasks
    hint = _hint_for(text, hints, target.job)
    is_open = is_answer_lost(text) or (hint is not None and hint.is_noted)
    shown = f"{job}: {text}" if is_part else text
    return Outcome(
        target.job_id,
        None if is_open else False,
        _hinted(shown, _hint_for(shown, hints, target.job), target.job),
        can_force=hint is not None and hint.can_force,
    )


def _general_message(answer: Answer, general: Sequence[str], program: str) -> str:
    """Return the message that concerns no job in particular, else one on the status."""
    if answer.status in _NOT_FOUND:
        return f"{program}: command not found"
    patterns = (_FAILED_ANYWAY,) if answer.status == 0 else (_NOT_CONNECTED, _STOPPED_EARLY)
    best = (line for pattern in patterns for line in general if pattern.search(line))
    if general:
        return excerpt(next(best, general[-1]).encode(), 300)
    if answer.status in (*CUT_OFF, _NO_STATUS):
        return "stopped before it answered"
    return f"{program} exited with status {answer.status}"


def _general_outcome(
    status: int, general: Sequence[str], *, is_any_reported: bool, unnamed: int
) -> tuple[bool | None, str]:
    """(done, ending of the message) for jobs that no line names; `unnamed` is how many arguments
    stand for them, or connections.
    """
    if status == 0:
        return not any(map(_FAILED_ANYWAY.search, general)), ""
    if status in _NOT_FOUND:
        return False, ""
    unconnected = sum(bool(_NOT_CONNECTED.search(line)) for line in general)
    if status not in CUT_OFF and unconnected:
        if unconnected >= unnamed:
            return False, ""
        return None, f" (for {unconnected} of {unnamed} jobs; PBS does not say which)"
    if status in CUT_OFF or any(map(is_answer_lost, general)):
        return None, ""
    if is_any_reported and not any(map(_STOPPED_EARLY.search, general)):
        return True, ""
    return (None if status == _NO_STATUS and not general else False), ""


def _hint_for(
    text: str, hints: Sequence[RefusalHint], selected: JobId | None = None
) -> RefusalHint | None:
    has_tasks = selected is not None and selected.tasks is not None
    for hint in hints:
        if hint.pattern.search(text) and (has_tasks or not hint.for_tasks):
            return hint
    return None


def _hinted(text: str, hint: RefusalHint | None, selected: JobId | None = None) -> str:
    if hint is None:
        return text
    array = "" if selected is None else str(dataclasses.replace(selected, tasks=None))
    return f"{text} ({hint.advice.format(array=array)})"


def _parse_line(text: str) -> JobMessage | None:
    """The job a line is about, and what it says of it."""
    if found := _JOB_WITHIN.fullmatch(text):
        job = _read(found[1])
        return None if job is None else (job, f"Job {found[2]}")
    found = _WORDS_THEN_JOB.fullmatch(text)
    if found is None or _NO_JOB.fullmatch(text) or (job := _read(found[2])) is None:
        return None
    return job, " ".join(found[1].removesuffix(" for job").removesuffix(":").split())


def _read(text: str) -> JobId | None:
    try:
        return pbs_job_id(text)
    except BadJobId:
        return None


# No QoS. max_run_subjobs came with OpenPBS 20.
ALTERABLE_OF = {
    Dialect.OPENPBS: ("time", "queue", "nice", "throttle"),
    Dialect.PBS_TEXT: ("time", "queue", "nice"),
    Dialect.TORQUE: ("time", "queue", "nice", "throttle"),
}
# -p of qalter(1B) takes these; more starts sooner, where a nice that is higher waits longer.
_MIN_PRIORITY = -1024
_MAX_PRIORITY = 1023
_LONGEST_SECONDS = 2**31 - 1
_MAX_TASKS = 4_000_001
_ACCOUNT = re.compile(r"[^\s,\"'\x00-\x1f\x7f]+")
_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(@[A-Za-z0-9][A-Za-z0-9_.:-]*)?")


def _time(value: str) -> str:
    """`36:00:00`: hours, minutes and seconds, without days. Bare: minutes."""
    if value[:1] in ("+", "-"):
        raise UsageError(
            f"time: PBS does not accept relative changes ({value})",
            "Pass the full limit: 90 (minutes), 2h, 1-12:00:00.",
        )
    try:
        seconds = parse_duration(value, bare_unit_seconds=MINUTE)
    except ValueError as error:
        raise UsageError(f"time: {error}", "A bare number is minutes.") from None
    if seconds is None:
        raise UsageError(
            "time: PBS does not support unlimited", "Pass the queue's maximum: 48h, 7-00:00:00."
        )
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise UsageError(f"time: {value!r} is not a limit", "Use 90 (minutes), 2h or 1-12:00:00.")
    return format_walltime(seconds)


def _priority(value: str) -> int:
    priority = -parse_integer("nice", value)
    if not _MIN_PRIORITY <= priority <= _MAX_PRIORITY:
        raise UsageError(
            f"nice: {value} is out of range for PBS",
            f"{-_MAX_PRIORITY} to {-_MIN_PRIORITY}; nice is the negated PBS priority.",
        )
    return priority


def _queue(value: str) -> str:
    if "," in value:
        raise UsageError("queue: a PBS job has exactly one queue", "Use one.")
    if not _QUEUE.fullmatch(value):
        raise UsageError(f"queue: {value!r} is not a valid name")
    return value


def _account(value: str) -> str:
    if not _ACCOUNT.fullmatch(value):
        raise UsageError(f"account: {value!r} is not a name")
    return value


def _throttle(value: str) -> int:
    tasks = parse_integer("throttle", value)
    if not 0 < tasks <= _MAX_TASKS:
        raise UsageError(
            f"throttle: {value!r} is not a number of tasks",
            "PBS cannot remove an array's limit; set it to the number of tasks.",
        )
    return tasks


# PBS's commands open a connection a job, from a port below 1024: about 510 of them, each shut for
# 60 s after its use. A thousand in a row kept everyone on a login node from PBS for two minutes.
# qdel has one connection for all.
_JOBS_A_COMMAND = 50
_JOBS_WITHOUT_PAUSE = 200
_PAUSE_SECONDS = 13.0
_DELETED_A_COMMAND = 200
# qdel before 2021 has a connection a job as well.
_OLD_QDEL_WAITS = (
    'case $(qdel --version 2>&1) in *"= 1"[0-9].*|*"= 20."*|*"= 2020."*) sleep 50;; '
    'esac; exec qdel "$@"'
)
_OLD_QDEL_SECONDS = 60.0
_LIMIT_SECONDS = 60.0
_SECONDS_A_JOB = 0.5
_MAX_EXPANDED = 1000
_SIGNALS = (
    "ABRT",
    "ALRM",
    "BUS",
    "CHLD",
    "CONT",
    "FPE",
    "HUP",
    "ILL",
    "INT",
    "IO",
    "KILL",
    "PIPE",
    "PROF",
    "PWR",
    "QUIT",
    "SEGV",
    "STOP",
    "SYS",
    "TERM",
    "TRAP",
    "TSTP",
    "TTIN",
    "TTOU",
    "URG",
    "USR1",
    "USR2",
    "VTALRM",
    "WINCH",
    "XCPU",
    "XFSZ",
)
_WORDS = {
    Verb.HOLD: ("qhold",),
    Verb.RELEASE: ("qrls",),
    Verb.REQUEUE: ("qrerun",),
    Verb.SUSPEND: ("qsig", "-s", "suspend"),
    Verb.RESUME: ("qsig", "-s", "resume"),
}
# Of Torque's, these take some tasks of an array in one request.
_TAKES_TASKS_OPTION = frozenset({"qdel", "qhold", "qrls", "qalter"})
_UNAUTHORIZED = re.compile(r"Unauthorized Request|not authorized")
_ARRAYS_ONLY = "PBS supports this only for whole arrays: use {array}"
_TASK_OF_ARRAY = RefusalHint(re.compile(r"Invalid request"), _ARRAYS_ONLY, for_tasks=True)
_NO_MOM = re.compile(r"could not connect to MOM")
# Seen on 23.06: what it says it could not do on the node it has noted, and does it to a job that is
# put back.
_NOTED = RefusalHint(
    _NO_MOM, "the node does not respond; the server recorded the change", is_noted=True
)
_LOST_NODE = RefusalHint(
    _NO_MOM, "the node does not respond; cancel --force removes it from the queue", can_force=True
)
_NO_NODE = RefusalHint(_NO_MOM, "the node does not respond")
_HINTS = {
    Verb.HOLD: (_TASK_OF_ARRAY, _NOTED),
    Verb.RELEASE: (
        _TASK_OF_ARRAY,
        _NOTED,
        RefusalHint(_UNAUTHORIZED, "not your job or not your hold; ask the site's operators"),
    ),
    Verb.REQUEUE: (RefusalHint(_UNAUTHORIZED, "only operators can requeue jobs"),),
    Verb.SUSPEND: (RefusalHint(_UNAUTHORIZED, "only operators can suspend jobs"), _NO_NODE),
    Verb.RESUME: (RefusalHint(_UNAUTHORIZED, "only operators can resume jobs"), _NO_NODE),
}
_ALTER_HINTS = (
    _TASK_OF_ARRAY,
    _NOTED,
    RefusalHint(
        _UNAUTHORIZED, "only operators can raise a running job's limit or change other users' jobs"
    ),
)
_MOVE_HINTS = (
    _TASK_OF_ARRAY,
    RefusalHint(
        re.compile("Request invalid for state"), "the job has started and cannot change queue"
    ),
)


class _Step(Struct, frozen=True):
    """The words of a command up to the ids, what it is for, and what is added to its answer."""

    command: tuple[str, ...]
    targets: Sequence[Target]
    hints: tuple[RefusalHint, ...] = ()


# -- changes


def _alter(dialect: Dialect, jobs: Sequence[Job], changes: Mapping[str, str]) -> Iterator[_Step]:
    """Steps for changes by the names of ALTERABLE and ACCOUNT; raises UsageError naming the field
    and what it takes.
    """
    require_alterable(changes, ALTERABLE_OF[dialect], (ACCOUNT,))
    options: list[str] = []
    queue = ""
    array_options: tuple[str, ...] = ()
    for name, text in changes.items():
        value = text.strip()
        match name:
            case "time":
                options += ["-l", f"walltime={_time(value)}"]
            case "nice":
                options += ["-p", str(_priority(value))]
            case "account":
                options += ["-A", _account(value)]
            case "queue":
                queue = _queue(value)
            case _:
                tasks = _throttle(value)
                is_torque = dialect is Dialect.TORQUE
                array_options = (
                    ("-t", f"%{tasks}") if is_torque else (f"-Wmax_run_subjobs={tasks}",)
                )
    if options:
        targets = _targets(dialect, "qalter", jobs)
        yield _Step(("qalter", *options), targets, _ALTER_HINTS)
    if queue:
        yield _Step(("qmove", queue), _targets(dialect, "qmove", jobs), _MOVE_HINTS)
    if array_options:
        yield _Step(("qalter", *array_options), _throttled(dialect, jobs), _ALTER_HINTS)


# -- IDs for PBS commands


def _parse_id(text: str) -> JobId:
    job = pbs_job_id(text)
    if job.component is not None:
        raise UsageError(f"{text!r} is not a PBS job ID", "Use 12, 12[3] or 12[3-5].")
    return dataclasses.replace(job, has_brackets=job.has_brackets or job.tasks is not None)


def _targets(dialect: Dialect, program: str, jobs: Sequence[Job]) -> list[Target]:
    """Return the target of each job: itself, or an argument for each range of its tasks."""
    whole = {job.number for _, job in jobs if job.has_brackets and job.tasks is None}
    targets: list[Target] = []
    for job_id, job in jobs:
        if job.tasks is None:
            targets.append(Target(job_id, str(job), job))
        elif job.number in whole:
            # Asked for twice, a task would be refused the second time.
            array = dataclasses.replace(job, tasks=None, has_brackets=True)
            targets.append(Target(job_id, str(array), array))
        elif dialect is Dialect.TORQUE and program in _TAKES_TASKS_OPTION and job.tasks.count > 1:
            targets.append(Target(job_id, str(dataclasses.replace(job, tasks=None)), job))
        else:
            # PBS's own programs take no comma: 12[1,3] is 12[1] and 12[3].
            targets += [_range_target(job_id, job, tasks) for tasks in job.tasks.ranges]
    takes_one_task = (
        program == "qsig" if dialect is not Dialect.TORQUE else program not in _TAKES_TASKS_OPTION
    )
    return list(_single_tasks(targets)) if takes_one_task else targets


def _throttled(dialect: Dialect, jobs: Sequence[Job]) -> list[Target]:
    """A throttle is an array's: 12 is 12[]. Torque's qalter would read a task as the array."""
    for job_id, job in jobs:
        if job.tasks is not None and dialect is Dialect.TORQUE:
            raise UsageError(
                f"throttle: {job_id} is an array task",
                f"Use its array: {dataclasses.replace(job, tasks=None)}",
            )
    arrays = [
        (job_id, job if job.tasks else dataclasses.replace(job, has_brackets=True))
        for job_id, job in jobs
    ]
    return _targets(dialect, "qalter", arrays)


def _range_target(job_id: str, job: JobId, tasks: range) -> Target:
    selected = dataclasses.replace(job, tasks=ArrayTasks((tasks,)))
    return Target(job_id, str(selected), selected)


def _single_tasks(targets: Iterable[Target]) -> Iterator[Target]:
    """A target for each task. Torque's qsig, qrerun and qmove take no more.

    OpenPBS 23.06 never answers a qsig of a range in which no task runs.
    """
    for target in targets:
        tasks = target.job.tasks
        if tasks is None:
            yield target
            continue
        if tasks.count > _MAX_EXPANDED:
            raise UsageError(
                f"{target.job_id} has {tasks.count} tasks", f"At most {_MAX_EXPANDED} at a time."
            )
        for task in tasks:
            yield _range_target(target.job_id, target.job, range(task, task + 1))


# -- commands


def _commands(dialect: Dialect, steps: Iterable[_Step]) -> Iterator[ActionCommand]:
    """Few enough connections a minute: with many jobs there is a pause before each command but the
    first.
    """
    portions: list[tuple[_Step, tuple[Target, ...]]] = []
    for step in steps:
        portions += [(step, portion) for portion in _portions(dialect, step)]
    has_pauses = (
        sum(_connections(dialect, step, targets) for step, targets in portions)
        > _JOBS_WITHOUT_PAUSE
    )
    for position, (step, targets) in enumerate(portions):
        pause = (
            _PAUSE_SECONDS
            if has_pauses and position and _connections(dialect, step, targets)
            else 0.0
        )
        yield _command(dialect, step, targets, pause_seconds=pause, is_first=position == 0)


def _has_one_connection(dialect: Dialect, step: _Step) -> bool:
    return dialect is Dialect.OPENPBS and step.command[0] == "qdel"


def _connections(dialect: Dialect, step: _Step, targets: Sequence[Target]) -> int:
    if _has_one_connection(dialect, step):
        return 0
    return len(_arguments(targets))


def _portions(dialect: Dialect, step: _Step) -> Iterator[tuple[Target, ...]]:
    """The targets of one command each; those that share an argument stay together."""
    most = _DELETED_A_COMMAND if _has_one_connection(dialect, step) else _JOBS_A_COMMAND
    by_argument: dict[tuple[str, ArrayTasks | None], list[Target]] = {}
    for target in step.targets:
        by_argument.setdefault((target.argument, _tasks_option(target)), []).append(target)
    portion: list[Target] = []
    arguments = 0
    for (_, tasks), members in by_argument.items():
        if portion and (arguments >= most or tasks is not None):
            yield tuple(portion)
            portion = []
            arguments = 0
        portion += members
        arguments += 1
        if tasks is not None:
            yield tuple(portion)
            portion = []
            arguments = 0
    if portion:
        yield tuple(portion)


def _tasks_option(target: Target) -> ArrayTasks | None:
    """The tasks that Torque's -t names, where the argument is their array."""
    return (
        target.job.tasks
        if target.job.tasks is not None and target.argument != str(target.job)
        else None
    )


def _command(
    dialect: Dialect,
    step: _Step,
    targets: tuple[Target, ...],
    *,
    pause_seconds: float,
    is_first: bool,
) -> ActionCommand:
    program, *options = step.command
    if tasks := _tasks_option(targets[0]):
        options += ["-t", str(tasks)]
    arguments = _arguments(targets)
    one_connection = _has_one_connection(dialect, step)
    limit_seconds = _LIMIT_SECONDS + _SECONDS_A_JOB * len(arguments)
    argv: tuple[str, ...] = (program, *options, *arguments)
    if one_connection and not is_first:
        argv = ("sh", "-c", _OLD_QDEL_WAITS, "qdel", *options, *arguments)
        limit_seconds += _OLD_QDEL_SECONDS
    read = partial(
        read_answer,
        program=program,
        targets=targets,
        hints=step.hints,
        one_connection=one_connection,
    )
    job_ids = tuple(dict.fromkeys(target.job_id for target in targets))
    return ActionCommand(
        pbs(*argv), job_ids, read, limit_seconds=limit_seconds, pause_seconds=pause_seconds
    )


def _arguments(targets: Iterable[Target]) -> list[str]:
    return list(dict.fromkeys(target.argument for target in targets))


class PbsActions(DialectPart, ActionsPart):
    """Actions by PBS's commands."""

    movable = frozenset({"queue", "account"})

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.alterable = ALTERABLE_OF[dialect]
        if dialect is not Dialect.TORQUE:
            self.whole_array_verbs = frozenset({Verb.HOLD, Verb.RELEASE, Verb.ALTER})

    def commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        """Build the commands for the jobs as they are named: PBS itself refuses tasks for which it
        has no verb.
        """
        jobs = parse_jobs(request.job_ids, _parse_id)
        verb = request.verb
        match verb:
            case Verb.CANCEL:
                hints = () if request.force else (_LOST_NODE,)
                force = ("-p",) if self.dialect is Dialect.TORQUE else ("-W", "force")
                options = force if request.force else ()
                steps = [_Step(("qdel", *options), _targets(self.dialect, "qdel", jobs), hints)]
            case Verb.SIGNAL:
                if request.recipient:
                    raise UsageError(
                        f"{request.recipient!r}: PBS can only signal all processes of a job"
                    )
                parts = ("qsig", "-s", parse_signal(request.signal, _SIGNALS, "PBS"))
                steps = [_Step(parts, _targets(self.dialect, "qsig", jobs), (_NO_NODE,))]
            case Verb.ALTER:
                steps = list(_alter(self.dialect, jobs, request.changes))
            case Verb.HOLD | Verb.RELEASE | Verb.REQUEUE | Verb.SUSPEND | Verb.RESUME:
                targets = _targets(self.dialect, _WORDS[verb][0], jobs)
                steps = [_Step(_WORDS[verb], targets, _HINTS[verb])]
            case _:
                raise UsageError(f"{verb} is not a job action")
        return tuple(_commands(self.dialect, steps))
