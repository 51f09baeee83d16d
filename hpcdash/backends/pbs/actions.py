"""What can be done to jobs: qdel qhold qrls qrerun qsig qalter qmove. Builds commands, runs nothing.

What each of them says of every job is read elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
from hpcdash.backends.pbs.action_answers import Hint, Target, read_answer
from hpcdash.backends.pbs.alterations import ALTERABLE_OF, alteration
from hpcdash.backends.pbs.commands import pbs
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import BadJobId, JobId, parse_job_id
from hpcdash.errors import UsageError

# PBS's commands open a connection a job, from a port below 1024: about 510 of them, each shut for 60 s after its use.
# A thousand in a row kept everyone on a login node from PBS for two minutes. qdel has one connection for all.
_JOBS_A_COMMAND = 50
_JOBS_WITHOUT_PAUSE = 200
_PAUSE_SECONDS = 13.0
_DELETED_A_COMMAND = 200
# qdel before 2021 has a connection a job as well.
_OLD_QDEL_WAITS = 'case $(qdel --version 2>&1) in *"= 1"[0-9].*|*"= 20."*|*"= 2020."*) sleep 50;; esac; exec qdel "$@"'
_OLD_QDEL_SECONDS = 60.0
_LIMIT_SECONDS = 60.0
_SECONDS_A_JOB = 0.5
# Slurm's qdel says nothing of a job that has ended, or that nobody knows; its status is how many failed.
_EACH_QDEL = (
    'all=0; for id do qdel "$id" || { all=1; echo "qdel: ended already, or unknown $id" >&2; }; done; exit $all'
)
_MOST_EXPANDED = 1000
_SIGNALS = (
    *("ABRT", "ALRM", "BUS", "CHLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "KILL", "PIPE", "PROF", "PWR", "QUIT"),
    *("SEGV", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU"),
    "XFSZ",
)
_LAST_SIGNAL = 64
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
_ARRAYS_ONLY = "PBS does this to whole arrays only: name {array}"
_TASK_OF_ARRAY = Hint(re.compile(r"Invalid request"), _ARRAYS_ONLY, for_tasks=True)
_NO_MOM = re.compile(r"could not connect to MOM")
# Seen on 23.06: what it says it could not do on the node it has noted, and does it to a job that is put back.
_NOTED = Hint(_NO_MOM, "its node does not answer; the server has noted it all the same", is_noted=True)
_LOST_NODE = Hint(_NO_MOM, "its node does not answer; cancel --force removes it from the queue", can_force=True)
_NO_NODE = Hint(_NO_MOM, "its node does not answer")
_SILENT_QDEL = Hint(re.compile(r"ended with status"), "it has ended already, or nobody knows it")
# Its Perl program gives Slurm's function fewer arguments than that wants.
_BROKEN_QRERUN = Hint(re.compile(r"Usage: Slurm::requeue"), "Slurm's qrerun does not work here; scontrol requeue does")
_HINTS = {
    Verb.HOLD: (_TASK_OF_ARRAY, _NOTED),
    Verb.RELEASE: (
        _TASK_OF_ARRAY,
        _NOTED,
        Hint(_UNAUTHORIZED, "not yours, or not your hold: ask the site's operators"),
    ),
    Verb.REQUEUE: (Hint(_UNAUTHORIZED, "PBS lets only operators requeue jobs"), _BROKEN_QRERUN),
    Verb.SUSPEND: (Hint(_UNAUTHORIZED, "PBS lets only operators suspend jobs"), _NO_NODE),
    Verb.RESUME: (Hint(_UNAUTHORIZED, "PBS lets only operators resume jobs"), _NO_NODE),
}
_ALTER_HINTS = (
    _TASK_OF_ARRAY,
    _NOTED,
    Hint(_UNAUTHORIZED, "PBS lets only operators raise the limit of a job that runs, or change another's job"),
)
_MOVE_HINTS = (_TASK_OF_ARRAY, Hint(re.compile("Request invalid for state"), "it has begun, and stays in its queue"))
_AS_SLURM = 'Set backend = "slurm" for this cluster: its own commands can.'

Job = tuple[str, JobId]


def whole_array_verbs(dialect: Dialect) -> frozenset[Verb]:
    """As Backend.whole_array_verbs."""
    return frozenset() if dialect is Dialect.TORQUE else frozenset({Verb.HOLD, Verb.RELEASE, Verb.ALTER})


def alterable(dialect: Dialect) -> tuple[str, ...]:
    """As Backend.alterable."""
    return ALTERABLE_OF[dialect]


def action_commands(dialect: Dialect, request: ActionRequest) -> tuple[ActionCommand, ...]:
    """As Backend.action_commands. What is named is what is asked for: PBS itself refuses tasks it takes no verb for."""
    jobs = [(job_id, _read_id(dialect, job_id)) for job_id in dict.fromkeys(request.job_ids)]
    if not jobs:
        raise UsageError("no job is named")
    verb = request.verb
    match verb:
        case Verb.CANCEL:
            hints = (_SILENT_QDEL,) if dialect is Dialect.SLURM_WRAPPERS else () if request.force else (_LOST_NODE,)
            words = _cancel_words(dialect, force=request.force)
            return tuple(_commands(dialect, [_Step(words, _targets(dialect, "qdel", jobs), hints)]))
        case Verb.SIGNAL:
            words = ("qsig", "-s", _signal_word(dialect, request.signal, request.recipient))
            return tuple(_commands(dialect, [_Step(words, _targets(dialect, "qsig", jobs), (_NO_NODE,))]))
        case Verb.ALTER:
            return tuple(_commands(dialect, _alter(dialect, jobs, request)))
        case Verb.SUSPEND | Verb.RESUME if dialect is Dialect.SLURM_WRAPPERS:
            raise UsageError(f"{verb}: Slurm's commands by Torque's names have no qsig", _AS_SLURM)
        case Verb.HOLD | Verb.RELEASE:
            targets = _targets(dialect, _WORDS[verb][0], jobs)
            return tuple(_commands(dialect, [_Step(_hold_words(dialect, verb), targets, _HINTS[verb])]))
        case Verb.REQUEUE | Verb.SUSPEND | Verb.RESUME:
            targets = _targets(dialect, _WORDS[verb][0], jobs)
            return tuple(_commands(dialect, [_Step(_WORDS[verb], targets, _HINTS[verb])]))
        case _:
            raise UsageError(f"{verb} is no action on jobs")


@dataclass(frozen=True, slots=True)
class _Step:
    """The words of a command up to the ids, what it is for, and what is added to its answer."""

    words: tuple[str, ...]
    targets: Sequence[Target]
    hints: tuple[Hint, ...] = ()


# -- what is asked


def _cancel_words(dialect: Dialect, *, force: bool) -> tuple[str, ...]:
    if not force:
        return ("qdel",)
    if dialect is Dialect.SLURM_WRAPPERS:
        raise UsageError("force: Slurm's qdel has no such thing", _AS_SLURM)
    return ("qdel", "-p") if dialect is Dialect.TORQUE else ("qdel", "-W", "force")


def _hold_words(dialect: Dialect, verb: Verb) -> tuple[str, ...]:
    # Without -h Slurm's qhold complains of its own program first.
    is_wrapped = dialect is Dialect.SLURM_WRAPPERS and verb is Verb.HOLD
    return ("qhold", "-h", "u") if is_wrapped else _WORDS[verb]


def _signal_word(dialect: Dialect, signal: str, recipient: str) -> str:
    """USR1 of 'USR1', 'SIGUSR1', 'usr1'; a number as it is."""
    if dialect is Dialect.SLURM_WRAPPERS:
        raise UsageError("signal: Slurm's commands by Torque's names have no qsig", _AS_SLURM)
    if recipient:
        raise UsageError(f"{recipient!r}: PBS signals all processes of a job, no part of it")
    wanted = signal.strip().upper().removeprefix("SIG")
    if wanted in _SIGNALS or (wanted.isdecimal() and wanted.isascii() and 1 <= int(wanted[:6]) <= _LAST_SIGNAL):
        return wanted
    raise UsageError(f"{signal!r} is no signal PBS sends", f"A number up to {_LAST_SIGNAL}, or: {' '.join(_SIGNALS)}.")


def _alter(dialect: Dialect, jobs: Sequence[Job], request: ActionRequest) -> Iterator[_Step]:
    change = alteration(dialect, request.changes)
    if change.options or change.queue:
        targets = _targets(dialect, "qalter", jobs)
        if change.options:
            yield _Step(("qalter", *change.options), targets, _ALTER_HINTS)
        if change.queue:
            yield _Step(("qmove", change.queue), _targets(dialect, "qmove", jobs), _MOVE_HINTS)
    if change.array_options:
        yield _Step(("qalter", *change.array_options), _throttled(dialect, jobs), _ALTER_HINTS)


# -- ids as PBS's commands take them


def _read_id(dialect: Dialect, text: str) -> JobId:
    try:
        job = parse_job_id(text)
    except BadJobId as error:
        raise UsageError(f"{text!r} is no job id: {error.why}\n  {text}\n  {' ' * error.position}^") from None
    if job.component is not None:
        raise UsageError(f"{text!r} is no job id of PBS", "Write 12, 12[3] or 12[3-5].")
    if dialect.has_array_brackets:
        return replace(job, has_brackets=job.has_brackets or job.tasks is not None)
    if job.tasks is not None or job.has_brackets:
        # They would read 12_3 as the number 12, and do it to the whole array.
        raise UsageError(f"{text!r}: Slurm's commands by Torque's names take whole jobs only", _AS_SLURM)
    return JobId(job.number)


def _array_target(job_id: str, job: JobId) -> Target:
    whole = replace(job, tasks=None, has_brackets=True)
    return Target(job_id, str(whole), whole)


def _targets(dialect: Dialect, program: str, jobs: Sequence[Job]) -> list[Target]:
    """What stands for each job: itself, or an argument a range of its tasks."""
    whole = {job.number for _, job in jobs if job.has_brackets and job.tasks is None}
    targets: list[Target] = []
    for job_id, job in jobs:
        if job.tasks is None:
            targets.append(Target(job_id, str(job), job))
        elif job.number in whole:
            # Asked for twice, a task would be refused the second time.
            targets.append(_array_target(job_id, job))
        elif dialect is Dialect.TORQUE and program in _TAKES_TASKS_OPTION and job.tasks.count > 1:
            targets.append(Target(job_id, str(replace(job, tasks=None)), job))
        else:
            # PBS's own programs take no comma: 12[1,3] is 12[1] and 12[3].
            targets += [_range_target(job_id, job, tasks) for tasks in job.tasks.ranges]
    takes_one_task = program == "qsig" if dialect is not Dialect.TORQUE else program not in _TAKES_TASKS_OPTION
    return list(_single_tasks(targets)) if takes_one_task else targets


def _throttled(dialect: Dialect, jobs: Sequence[Job]) -> list[Target]:
    """A throttle is an array's: 12 is 12[]. Torque's qalter would read a task as the array."""
    for job_id, job in jobs:
        if job.tasks is not None and dialect is Dialect.TORQUE:
            raise UsageError(f"throttle: {job_id} is a task", f"Name its array: {replace(job, tasks=None)}")
    arrays = [(job_id, job if job.tasks else replace(job, has_brackets=True)) for job_id, job in jobs]
    return _targets(dialect, "qalter", arrays)


def _range_target(job_id: str, job: JobId, tasks: range) -> Target:
    meant = replace(job, tasks=ArrayTasks((tasks,)))
    return Target(job_id, str(meant), meant)


def _single_tasks(targets: Iterable[Target]) -> Iterator[Target]:
    """A target for each task. Torque's qsig, qrerun and qmove take no more.

    OpenPBS 23.06 never answers a qsig of a range in which no task runs.
    """
    for target in targets:
        tasks = target.meant.tasks
        if tasks is None:
            yield target
            continue
        if tasks.count > _MOST_EXPANDED:
            raise UsageError(f"{target.job_id} has {tasks.count} tasks", f"At most {_MOST_EXPANDED} at a time.")
        for task in tasks:
            yield _range_target(target.job_id, target.meant, range(task, task + 1))


# -- commands


def _commands(dialect: Dialect, steps: Iterable[_Step]) -> Iterator[ActionCommand]:
    """Few enough connections a minute: with many jobs there is a pause before each command but the first."""
    portions: list[tuple[_Step, tuple[Target, ...]]] = []
    for step in steps:
        portions += [(step, portion) for portion in _portions(dialect, step)]
    has_pauses = sum(_connections(dialect, step, targets) for step, targets in portions) > _JOBS_WITHOUT_PAUSE
    for position, (step, targets) in enumerate(portions):
        pause = _PAUSE_SECONDS if has_pauses and position and _connections(dialect, step, targets) else 0.0
        yield _command(dialect, step, targets, pause_seconds=pause, is_first=position == 0)


def _has_one_connection(dialect: Dialect, step: _Step) -> bool:
    return dialect is Dialect.OPENPBS and step.words[0] == "qdel"


def _connections(dialect: Dialect, step: _Step, targets: Sequence[Target]) -> int:
    if dialect is Dialect.SLURM_WRAPPERS or _has_one_connection(dialect, step):
        return 0
    return len(_arguments(targets))


def _portions(dialect: Dialect, step: _Step) -> Iterator[tuple[Target, ...]]:
    """The targets of one command each; those that share an argument stay together."""
    most = _DELETED_A_COMMAND if _has_one_connection(dialect, step) else _JOBS_A_COMMAND
    if dialect is Dialect.SLURM_WRAPPERS and step.words[0] == "qrerun":
        most = 1
    by_argument: dict[tuple[str, ArrayTasks | None], list[Target]] = {}
    for target in step.targets:
        by_argument.setdefault((target.argument, _tasks_option(target)), []).append(target)
    portion: list[Target] = []
    arguments = 0
    for (_, tasks), members in by_argument.items():
        if portion and (arguments >= most or tasks is not None):
            yield tuple(portion)
            portion, arguments = [], 0
        portion += members
        arguments += 1
        if tasks is not None:
            yield tuple(portion)
            portion, arguments = [], 0
    if portion:
        yield tuple(portion)


def _tasks_option(target: Target) -> ArrayTasks | None:
    """The tasks that Torque's -t names, where the argument is their array."""
    return target.meant.tasks if target.meant.tasks is not None and target.argument != str(target.meant) else None


def _command(
    dialect: Dialect, step: _Step, targets: tuple[Target, ...], *, pause_seconds: float, is_first: bool
) -> ActionCommand:
    program, *options = step.words
    if tasks := _tasks_option(targets[0]):
        options += ["-t", str(tasks)]
    arguments = _arguments(targets)
    one_connection = _has_one_connection(dialect, step)
    limit_seconds = _LIMIT_SECONDS + _SECONDS_A_JOB * len(arguments)
    argv: tuple[str, ...] = (program, *options, *arguments)
    if one_connection and not is_first:
        argv = ("sh", "-c", _OLD_QDEL_WAITS, "qdel", *options, *arguments)
        limit_seconds += _OLD_QDEL_SECONDS
    elif dialect is Dialect.SLURM_WRAPPERS and program == "qdel" and len(arguments) > 1:
        argv = ("sh", "-c", _EACH_QDEL, "qdel", *arguments)
    read = partial(read_answer, program=program, targets=targets, hints=step.hints, one_connection=one_connection)
    job_ids = tuple(dict.fromkeys(target.job_id for target in targets))
    return ActionCommand(pbs(*argv), job_ids, read, limit_seconds=limit_seconds, pause_seconds=pause_seconds)


def _arguments(targets: Iterable[Target]) -> list[str]:
    return list(dict.fromkeys(target.argument for target in targets))
