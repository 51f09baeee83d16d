"""scancel and scontrol on jobs: their command lines, and the outcomes in their output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import (
    ACCOUNT,
    ALTERABLE,
    COMMENT,
    CUT_OFF,
    NODES,
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
from hpcdash.backends.queries import Answer
from hpcdash.backends.slurm.clusters import ClusterPart, on_cluster
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.detail import format_no_requeue
from hpcdash.backends.slurm.errors import is_answer_lost
from hpcdash.domain.array_tasks import ArrayTasks, joined_tasks, parse_tasks
from hpcdash.domain.job_ids import (
    JobId,
    covers,
    parse_job_id,
    read_job_id,
    slurm_job_id,
    with_cluster,
)
from hpcdash.domain.units import MINUTE, format_clock, parse_duration
from hpcdash.errors import UsageError, excerpt, program_name

_KILL_ERROR = re.compile(r"scancel: error: Kill job error on job (?:step )?id (\S+): (.*)")
_TERMINATING = re.compile(r"scancel: Terminating job (\S+)")
_SIGNALLED = re.compile(r"scancel: Signal [0-9]+ to (?:batch |full )?(?:job|step) (\S+)")
_FOR_JOB = re.compile(r"(.+) for job (\S+?)(?:: (.*))?")
# Since 26.05 the tasks are in brackets.
_OF_TASKS = re.compile(r"([0-9]+)_\[?([0-9][0-9,:-]*[.]*)\]?: (.*)")
_TRANSITION = "Job is in transitional state, retrying"
# Prefix of Slurm's own messages, and lines without a result.
_PREFIX = re.compile(r"(?:scancel|scontrol): (?:error: )?|(?:slurm_\w+ )?error: ?")
_NOISE = re.compile(r"scancel: (?:[a-z_]+/[a-z_]+: |Job is in transitional)")
_OF_A_JOB = (_KILL_ERROR, _TERMINATING, _SIGNALLED, _NOISE)
# 26.05 leaves out the space after the colon.
_SUMMARY = re.compile(r"slurm_\w+ error:")
_NO_ERROR = "No error"
_DISABLED = "Requested operation is presently disabled"
_WAITING_TASKS = "Job is in transitional state (as tasks of the array still wait)"
_INVALID = "Invalid job id specified"
_NOT_FOUND_STATUS = 127


# Whether a target was done, and Slurm's message on it.
Result = tuple[bool | None, str]
_DONE: Result = (True, "")
# A job, or tasks of one, and Slurm's message on it.
JobMessage = tuple[JobId, str]


class Target(Struct, frozen=True):
    """Requested job, and the argument of the command for it, or for a part of it.

    `is_shared`: the argument covers other jobs too.
    """

    job_id: str
    argument: str
    is_shared: bool = False


def read_scancel(answer: Answer, targets: Sequence[Target]) -> tuple[Outcome, ...]:
    """Read outcomes of `scancel -v ID…`, which prints what it begins and what fails.

    It succeeds for unknown IDs.
    """
    lines = message_lines(answer)
    errors: dict[str, str] = {}
    for found in filter(None, map(_KILL_ERROR.fullmatch, lines)):
        errors.setdefault(found[1], found[2])
    begun = {found[1] for found in map(_TERMINATING.fullmatch, lines) if found}
    general = _general_message(answer, lines)

    def outcome(target: Target) -> Result:
        text = errors.get(target.argument)
        if text is not None and "[" in target.argument and _INVALID in text:
            # It reports a missing task, and ends the others.
            return None, f"{text} (for one of several tasks; the others may be cancelled)"
        if text is not None:
            return _done(text), text
        if answer.status in CUT_OFF and not errors:
            return None, general
        if target.argument in begun or answer.status == 0:
            return _DONE
        return _done(general), general

    return _each(targets, outcome)


def read_signal(answer: Answer, targets: Sequence[Target], *, is_step: bool) -> tuple[Outcome, ...]:
    """Read outcomes of `timeout … scancel -v --state=RUNNING --signal=…`.

    scancel names each job or task that it signals. A task of an array with pending tasks gets the
    signal, and scancel reports that the job is in transition: that comes from the record of the
    pending tasks. For a job that is no array it means that the signal was not sent yet. It reports
    how many jobs are in transition, not which.
    """
    lines = message_lines(answer)
    errors = [(found[1], found[2]) for line in lines if (found := _KILL_ERROR.fullmatch(line))]
    sent = [found[1] for line in lines if (found := _SIGNALLED.fullmatch(line))]
    in_transition = sum(_TRANSITION in line for line in lines)
    has_all_arrays = in_transition <= sum("_" in known for known in sent)
    general = _general_message(answer, lines)

    def outcome(target: Target) -> Result:
        def is_own(known: str) -> bool:
            """Whether an ID of scancel's (88_3, 29, 29.0) is the target's job, or a task of it."""
            job = read_job_id(known.partition(".")[0])
            is_covered = job is not None and covers(parse_job_id(target.job_id), job)
            return is_covered or (is_step and len(targets) == 1)

        text = next((reported for known, reported in errors if is_own(known)), None)
        if text is not None:
            return _done(text), text
        own = [known for known in sent if is_own(known)]
        if not own:
            if answer.status in CUT_OFF and not sent:
                return False, "not sent: the controller timed out"
            if answer.status and not errors and not sent:
                return _done(general), general
            return False, "not sent: the job is not running"
        if answer.status not in CUT_OFF:
            return _DONE
        if not in_transition:
            return None, general
        if not has_all_arrays:
            return None, "Job is in transitional state"
        return True, _WAITING_TASKS if any("_" in known for known in own) else ""

    return _each(targets, outcome)


def read_scontrol(answer: Answer, targets: Sequence[Target]) -> tuple[Outcome, ...]:
    """Read outcomes of `scontrol hold ID,ID…` and the like: a line for each failed job only."""
    if answer.status == 0:
        return _each(targets, lambda target: _DONE)
    lines = message_lines(answer)
    reported: dict[str, list[JobMessage]] = {}
    is_unclear = False
    for line in lines:
        if message := _parse_line(line):
            reported.setdefault(message[0].number, []).append(message)
        elif not _SUMMARY.match(line):
            is_unclear = True
    general = _general_message(answer, lines)

    def outcome(target: Target) -> Result:
        requested = parse_job_id(target.job_id if target.is_shared else target.argument)
        if result := _reported_result(requested, reported.get(requested.number, ())):
            return result
        if answer.status in CUT_OFF:
            return None, general
        if reported and not is_unclear:
            return _DONE
        return _done(general), general

    return _each(targets, outcome)


def _parse_line(line: str) -> JobMessage | None:
    """Return the job or tasks that a line of scontrol concerns, and its message."""
    if found := _OF_TASKS.fullmatch(line):
        # A list of tasks that was cut short is no ID.
        with suppress(ValueError):
            return JobId(found[1], parse_tasks(found[2])), found[3]
    if (found := _FOR_JOB.fullmatch(line)) and (job := read_job_id(found[2])):
        return job, found[3] or _own_message(found[1])
    return None


def _reported_result(requested: JobId, named: Sequence[JobMessage]) -> Result | None:
    """Return the result for a job by the messages with its number; None where none concerns it.

    For an array scontrol prints `88_0,4-5: No error` and `88_1-3: Job is pending execution` where
    only some tasks failed.
    """
    about = [(job, text) for job, text in named if covers(requested, job) or covers(job, requested)]
    failed = [(job, text) for job, text in about if text != _NO_ERROR]
    if failed:
        others = [str(job) for job, text in about if text == _NO_ERROR]
        is_one = requested.component is not None or (
            requested.tasks is not None and requested.tasks.count == 1
        )
        text = failed[0][1]
        if not is_one and (others or any(job != requested for job, _ in failed)):
            text = "; ".join(f"{job}: {text}" for job, text in failed)
            text += f" (done: {', '.join(others)})" if others else ""
        return _done(text), text
    if about:
        return _DONE
    # Slurm cuts a long list of tasks short: this task may be in the rest of any.
    rest = list(
        dict.fromkeys(
            text for job, text in named if job.tasks is not None and job.tasks.is_incomplete
        )
    )
    if not rest:
        return None
    if rest == [_NO_ERROR]:
        return _DONE
    return _done(rest[0]) if len(rest) == 1 else None, " or ".join(rest)


def read_requeue(answer: Answer, targets: Sequence[Target]) -> tuple[Outcome, ...]:
    """Read outcomes with `read_scontrol`, and explain refusals of jobs that must not be requeued.

    Slurm's message on such a job does not give the reason.
    """

    def explained(outcome: Outcome) -> Outcome:
        if outcome.done is True or _DISABLED not in outcome.text:
            return outcome
        why = format_no_requeue(parse_job_id(outcome.job_id).number)
        return replace(outcome, text=f"{outcome.text}: {why}")

    return tuple(map(explained, read_scontrol(answer, targets)))


def _done(text: str) -> bool | None:
    """False where it was certainly not done, None where it may have been."""
    return None if is_answer_lost(text) else False


def _own_message(line: str) -> str:
    found = _PREFIX.match(line)
    return line[found.end() :] if found else line


def _general_message(answer: Answer, lines: Sequence[str]) -> str:
    """Return Slurm's last message that concerns no single job, else one on the exit status."""
    if answer.status == _NOT_FOUND_STATUS:
        return f"{program_name(answer.argv)}: command not found"
    parts = [
        _own_message(line) for line in lines if not any(known.match(line) for known in _OF_A_JOB)
    ]
    if parts:
        return excerpt(parts[-1].encode(), 300)
    if answer.status in CUT_OFF:
        return "stopped before it answered"
    return f"{program_name(answer.argv)} exited with status {answer.status}"


def _each(targets: Sequence[Target], outcome: Callable[[Target], Result]) -> tuple[Outcome, ...]:
    """One outcome a job: done when all that stands for it was; else how the first of these that was
    not fared.
    """
    found: dict[str, Result] = {}
    for target in targets:
        if found.get(target.job_id, _DONE)[0] is True:
            found[target.job_id] = outcome(target)
    return tuple(Outcome(job_id, done, text) for job_id, (done, text) in found.items())


# Limits of Slurm's own counters.
_LONGEST_SECONDS = 2**31 * MINUTE
_MAX_TASKS = 4_000_001
_NAME = re.compile(r"[^\s,=\x00-\x1f\x7f]+")


def _time(value: str) -> str:
    """`02:00:00`, `1-12:00:00`, `UNLIMITED`; `+00:30:00` and `-01:00:00` are added to the limit.

    Bare: minutes.
    """
    sign = value[:1] if value[:1] in ("+", "-") else ""
    try:
        seconds = parse_duration(value.removeprefix(sign), bare_unit_seconds=MINUTE)
    except ValueError as error:
        raise UsageError(
            f"time: {error}", "A bare number is minutes; +30m and -1h adjust the limit."
        ) from None
    if seconds is None:
        if sign:
            raise UsageError(f"time: {value!r} is not a duration")
        return "UNLIMITED"
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise UsageError(
            f"time: {value!r} is not a limit", "Use 90 (minutes), 2h, 1-12:00:00, or unlimited."
        )
    return sign + format_clock(seconds)


def _names(field: str, value: str) -> str:
    return ",".join(_name(field, name) for name in value.split(","))


def _name(field: str, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise UsageError(f"{field}: {value!r} is not a valid name")
    return value


# Variables of scancel(1) that would select other jobs, prompt, or signal another recipient.
_SCANCEL_ENVIRONMENT = (
    "SCANCEL_ACCOUNT",
    "SCANCEL_BATCH",
    "SCANCEL_CRON",
    "SCANCEL_CTLD",
    "SCANCEL_FULL",
    "SCANCEL_HURRY",
    "SCANCEL_INTERACTIVE",
    "SCANCEL_NAME",
    "SCANCEL_PARTITION",
    "SCANCEL_QOS",
    "SCANCEL_STATE",
    "SCANCEL_USER",
    "SCANCEL_VERBOSE",
    "SCANCEL_WCKEY",
)
_WITHOUT_SCANCEL_ENVIRONMENT = tuple(word for name in _SCANCEL_ENVIRONMENT for word in ("-u", name))
# A login node takes 120 000 bytes in one command, and brackets grow on their way.
_MAX_BYTES = 60_000
# Slurm's controller takes the jobs of one command one after the other.
_MAX_JOBS = 1000
_LIMIT_SECONDS = 60.0
_SECONDS_A_JOB = 0.1
_LONGEST_ARGUMENT = 8000
# scancel sends one request per task, or one per list of tasks; a list's answer does not name the
# task.
_JOINED_FROM_TASKS = 50
# Names scancel knows; any other signal has a number.
_SIGNALS = (
    "ABRT",
    "ALRM",
    "CONT",
    "HUP",
    "INT",
    "KILL",
    "QUIT",
    "STOP",
    "TERM",
    "TSTP",
    "TTIN",
    "TTOU",
    "URG",
    "USR1",
    "USR2",
    "XCPU",
)
# scancel sends the signal again after 5 s, then 6, 7, …, to a job that "can not be altered now":
# one that waits, and any task of an array of which others wait, though it gets the signal each
# time.
_SIGNAL_SECONDS = 4
_SCONTROL_WORDS = {
    Verb.HOLD: "hold",
    Verb.RELEASE: "release",
    Verb.REQUEUE: "requeue",
    Verb.SUSPEND: "suspend",
    Verb.RESUME: "resume",
}


def action_commands(request: ActionRequest) -> tuple[ActionCommand, ...]:
    """Return the commands for a request; raises UsageError that names an unsupported part."""
    jobs = parse_jobs(request.job_ids, slurm_job_id)
    if request.force:
        raise UsageError("force: Slurm cancels jobs on unresponsive nodes without it")
    match request.verb:
        case Verb.CANCEL:
            return tuple(_cancel(jobs))
        case Verb.SIGNAL:
            signal = parse_signal(request.signal, _SIGNALS, "Slurm")
            return tuple(_signal(jobs, signal, request.recipient))
        case Verb.ALTER:
            return tuple(_alter(jobs, request.changes))
        case Verb.HOLD | Verb.RELEASE | Verb.REQUEUE | Verb.SUSPEND | Verb.RESUME:
            # Finished jobs are not requeued then.
            parts = (
                ("requeuehold", "incomplete") if request.hold else (_SCONTROL_WORDS[request.verb],)
            )
            read = read_requeue if request.verb is Verb.REQUEUE else read_scontrol
            targets = _scontrol_targets(jobs)
            # A requeued job may start in two minutes at the earliest.
            before = tuple(_update(targets, ("starttime=now",))) if request.at_once else ()
            return (*before, *_scontrol(targets, lambda ids: ("scontrol", *parts, ids), read))
        case _:
            raise UsageError(f"{request.verb} is not a job action")


# -- cancel


def _cancel(jobs: Sequence[Job]) -> Iterator[ActionCommand]:
    for targets in _portions(_targets(jobs, joined_from=_JOINED_FROM_TASKS)):
        argv = slurm("scancel", "-v", *_arguments(targets))
        clean = ("env", *_WITHOUT_SCANCEL_ENVIRONMENT, *argv[1:])
        yield _command(clean, targets, partial(read_scancel, targets=targets))


# -- signal


def _signal(jobs: Sequence[Job], signal: str, recipient: str) -> Iterator[ActionCommand]:
    """One command; a step of an array's task has one of its own, as the answer names it in another
    way.
    """
    if not re.fullmatch(r"|batch|full|[0-9]{1,9}", recipient):
        raise UsageError(
            f"{recipient!r} is not a signal target",
            "Use batch, full or a step number; default: all steps.",
        )
    options = (f"--{recipient}",) if recipient in ("batch", "full") else ()
    step = f".{recipient}" if recipient.isdecimal() else ""
    together: list[Job] = []
    alone: list[Job] = []
    for job_id, job in jobs:
        if step and job.tasks is not None and job.tasks.count > 1:
            raise UsageError(
                f"a step belongs to one task, not to {job_id}", f"Specify the task: {job.number}_3"
            )
        (alone if step and job.tasks is not None else together).append((job_id, job))
    for group in (together, *([job] for job in alone)):
        for targets in _portions(_targets(group, joined_from=_JOINED_FROM_TASKS, after=step)):
            parts = ("-v", "--state=RUNNING", f"--signal={signal}", *options, *_arguments(targets))
            timed = slurm("timeout", str(_SIGNAL_SECONDS), "scancel", *parts)
            argv = ("env", *_WITHOUT_SCANCEL_ENVIRONMENT, *timed[1:])
            yield _command(argv, targets, partial(read_signal, targets=targets, is_step=bool(step)))


# -- hold, release, requeue, suspend, resume, alter


def _scontrol(
    targets: Sequence[Target],
    formatter: Callable[[str], tuple[str, ...]],
    read: Callable[..., tuple[Outcome, ...]] = read_scontrol,
) -> Iterator[ActionCommand]:
    """Commands that take a list of ids; one that fails keeps none of the others from being done."""
    for portion in _portions(targets):
        argv = slurm(*formatter(",".join(_arguments(portion))))
        yield _command(argv, portion, partial(read, targets=portion))


def _scontrol_targets(jobs: Sequence[Job]) -> list[Target]:
    # For an array it reports the result by task.
    return _targets(jobs, joined_from=2)


def _alter(jobs: Sequence[Job], changes: Mapping[str, str]) -> Iterator[ActionCommand]:
    """Commands for changes by the names of ALTERABLE, COMMENT, NODES and ACCOUNT; raises UsageError
    naming the field and what it takes.
    """
    require_alterable(changes, ALTERABLE, (COMMENT, NODES, ACCOUNT))
    fields: list[str] = []
    one_job_fields: list[str] = []
    throttles: list[str] = []
    for name, text in changes.items():
        value = text.strip()
        match name:
            case "time":
                limit = f"timelimit={_time(value)}"
                (one_job_fields if value[:1] in ("+", "-") else fields).append(limit)
            case "queue":
                # Several, joined with commas, let the job start in whichever is first.
                fields.append(f"partition={_names('queue', value)}")
            case "qos":
                fields.append(f"qos={_name('qos', value)}")
            case "account":
                fields.append(f"account={_name('account', value)}")
            case "nice":
                fields.append(f"nice={parse_integer('nice', value)}")
            case "comment":
                fields.append(f"comment={value}")
            case "nodes":
                fields.append(f"reqnodelist={_names('nodes', value)}")
            case _:
                throttle = parse_integer("throttle", value)
                if not 0 <= throttle <= _MAX_TASKS:
                    raise UsageError(
                        f"throttle: {value!r} is not a number of tasks",
                        "0 means no limit.",
                    )
                throttles.append(f"arraytaskthrottle={throttle}")
    if fields:
        yield from _update(_scontrol_targets(jobs), fields)
    for field in one_job_fields:
        # "+30" is added to the limit of one job or one task.
        for target in _single_tasks(jobs):
            yield from _update([target], (field,))
    if throttles:
        # Slurm would change it for the whole array.
        for job_id, job in jobs:
            if job.tasks is not None and job.tasks.count == 1:
                raise UsageError(
                    f"throttle: {job_id} is an array task", f"Use its array: {job.number}"
                )
        yield from _update([Target(job_id, job.number) for job_id, job in jobs], throttles)


def _update(targets: Sequence[Target], fields: Sequence[str]) -> Iterator[ActionCommand]:
    return _scontrol(targets, lambda ids: ("scontrol", "update", f"jobid={ids}", *fields))


def _single_tasks(jobs: Iterable[Job]) -> Iterator[Target]:
    for job_id, job in jobs:
        if job.tasks is None or job.tasks.count == 1:
            yield Target(job_id, str(job))
            continue
        if job.tasks.count > _MAX_JOBS:
            raise UsageError(
                f"{job_id} has {job.tasks.count} tasks",
                "Relative changes work only on individual tasks.",
            )
        for task in job.tasks:
            yield Target(job_id, f"{job.number}_{task}")


# -- IDs for Slurm commands


def _targets(jobs: Sequence[Job], *, joined_from: int, after: str = "") -> list[Target]:
    """Return the target of each job: itself, or lists of tasks of one array.

    Lists are used for `joined_from` single tasks of one array or more.
    """
    single: dict[str, list[int]] = {}
    for _, job in jobs:
        if job.tasks is not None and job.tasks.count == 1 and job.tasks.first is not None:
            single.setdefault(job.number, []).append(job.tasks.first)
    shared: dict[tuple[str, int], str] = {}
    for number, tasks in single.items():
        if len(tasks) >= joined_from and (joined := joined_tasks(tasks)) is not None:
            for text, held in _task_lists(number, joined):
                shared.update(((number, task), text) for task in held)
    whole = {job.number for _, job in jobs if job.tasks is None and job.component is None}
    targets: list[Target] = []
    for job_id, job in jobs:
        if job.tasks is None:
            targets.append(Target(job_id, f"{job}{after}"))
        elif job.number in whole and not after:
            # A task requested twice would be refused the second time.
            targets.append(Target(job_id, job.number, is_shared=True))
        elif job.tasks.count == 1:
            task = job.tasks.first or 0
            text = shared.get((job.number, task), "")
            targets.append(Target(job_id, text or f"{job}{after}", is_shared=bool(text)))
        else:
            targets += [Target(job_id, text) for text, _ in _task_lists(job.number, job.tasks)]
    return targets


def _task_lists(number: str, tasks: ArrayTasks) -> list[tuple[str, ArrayTasks]]:
    """`88_[3,5-9]` and its tasks, in several where it is long; Slurm's commands take no
    `0-15:4`.
    """
    ordered = sorted(tasks.ranges, key=lambda part: part.start)
    lists: list[list[range]] = [[]]
    length = 0
    parts: list[range] = []
    for tasks_range in ordered:
        is_whole = tasks_range.step == 1
        parts += [tasks_range] if is_whole else [range(task, task + 1) for task in tasks_range]
    for part in parts:
        if lists[-1] and lists[-1][-1].stop == part.start:
            # scancel names [3,4] as [3-4].
            lists[-1][-1] = range(lists[-1][-1].start, part.stop)
            continue
        item = len(f"{part.start}-{part.stop},")
        if length + item > _LONGEST_ARGUMENT:
            lists.append([])
            length = 0
        lists[-1].append(part)
        length += item
    held = [ArrayTasks(tuple(ranges)) for ranges in lists]
    return [(str(JobId(number, tasks)), tasks) for tasks in held]


def _arguments(targets: Iterable[Target]) -> list[str]:
    return list(dict.fromkeys(target.argument for target in targets))


def _portions(targets: Sequence[Target]) -> Iterator[tuple[Target, ...]]:
    """The targets of one command each; those that share an argument stay together."""
    by_argument: dict[str, list[Target]] = {}
    for target in targets:
        by_argument.setdefault(target.argument, []).append(target)
    portion: list[Target] = []
    size = arguments = 0
    for argument, members in by_argument.items():
        # Each bracket is quoted on its way, and each quote takes five bytes.
        grown = len(argument) + (30 if "[" in argument else 1)
        if portion and (size + grown > _MAX_BYTES or arguments >= _MAX_JOBS):
            yield tuple(portion)
            portion = []
            size = 0
            arguments = 0
        portion += members
        size += grown
        arguments += 1
    if portion:
        yield tuple(portion)


def _command(
    argv: tuple[str, ...], targets: Sequence[Target], read: Callable[[Answer], tuple[Outcome, ...]]
) -> ActionCommand:
    job_ids = tuple(dict.fromkeys(target.job_id for target in targets))
    limit_seconds = _LIMIT_SECONDS + _SECONDS_A_JOB * len(targets)
    return ActionCommand(argv, job_ids, read, limit_seconds=limit_seconds)


class SlurmActions(ClusterPart, ActionsPart):
    """Actions by Slurm's commands."""

    alterable = ALTERABLE
    movable = frozenset({"queue", "account", "qos"})

    def commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        """Build the commands cluster by cluster; outcomes are for the ids as they were named."""
        by_cluster: dict[str, dict[str, str]] = {}
        for job_id in request.job_ids:
            plain, cluster = self.clusters.split_cluster(job_id)
            by_cluster.setdefault(cluster, {})[plain] = job_id
        if not by_cluster:
            return action_commands(request)
        return tuple(
            _named(command, cluster, named)
            for cluster, named in by_cluster.items()
            for command in action_commands(replace(request, job_ids=tuple(named)))
        )


def _named(command: ActionCommand, cluster: str, named: Mapping[str, str]) -> ActionCommand:
    """Return a command for a cluster, with the ids as they were `named`."""
    if not cluster and all(plain == job_id for plain, job_id in named.items()):
        return command

    def name(job_id: str) -> str:
        return named.get(job_id, with_cluster(job_id, cluster))

    def read(answer: Answer) -> tuple[Outcome, ...]:
        return tuple(
            replace(outcome, job_id=name(outcome.job_id)) for outcome in command.read(answer)
        )

    job_ids = tuple(map(name, command.job_ids))
    return replace(command, argv=on_cluster(command.argv, cluster), job_ids=job_ids, read=read)
