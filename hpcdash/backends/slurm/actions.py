"""Slurm commands that act on jobs: as few as Slurm allows. What each of them says of every job is read elsewhere.

Each trait named here was seen on Slurm 22.05.8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import Answer
from hpcdash.backends.slurm.action_answers import Target, read_requeue, read_scancel, read_scontrol, read_signal
from hpcdash.backends.slurm.alterations import Alteration, alteration
from hpcdash.backends.slurm.commands import slurm
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import BadJobId, JobId, joined_tasks, slurm_job_id
from hpcdash.errors import UsageError

# What of scancel(1)'s environment would choose other jobs, ask, or signal someone else.
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
_MOST_BYTES = 60_000
# Slurm's controller takes the jobs of one command one after the other.
_MOST_JOBS = 1000
_LIMIT_SECONDS = 60.0
_SECONDS_A_JOB = 0.1
_LONGEST_ARGUMENT = 8000
# scancel sends one request a task it is given, or one a list of tasks; a list's answer does not say which task it is.
_JOINED_FROM_TASKS = 50
# Names scancel knows; any other signal has a number.
_SIGNALS = (
    *("ABRT", "ALRM", "CONT", "HUP", "INT", "KILL", "QUIT", "STOP"),
    *("TERM", "TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2", "XCPU"),
)
_LAST_SIGNAL = 64
# scancel sends the signal again after 5 s, then 6, 7, …, to a job that "can not be altered now": one that waits, and
# any task of an array of which others wait, though it gets the signal each time.
_SIGNAL_SECONDS = 4
_SCONTROL_WORDS = {
    Verb.HOLD: "hold",
    Verb.RELEASE: "release",
    Verb.REQUEUE: "requeue",
    Verb.SUSPEND: "suspend",
    Verb.RESUME: "resume",
}


def action_commands(request: ActionRequest) -> tuple[ActionCommand, ...]:
    """The commands for a request; raises UsageError for what cannot be asked, naming it."""
    jobs = [(job_id, _read_id(job_id)) for job_id in dict.fromkeys(request.job_ids)]
    if not jobs:
        raise UsageError("no job is named")
    if request.force:
        raise UsageError("force: Slurm cancels a job whose node does not answer without it")
    match request.verb:
        case Verb.CANCEL:
            return tuple(_cancel(jobs))
        case Verb.SIGNAL:
            return tuple(_signal(jobs, _signal_word(request.signal), _recipient(request.recipient)))
        case Verb.ALTER:
            return tuple(_alter(jobs, alteration(request.changes)))
        case Verb.HOLD | Verb.RELEASE | Verb.REQUEUE | Verb.SUSPEND | Verb.RESUME:
            word = _SCONTROL_WORDS[request.verb]
            read = read_requeue if request.verb is Verb.REQUEUE else read_scontrol
            return tuple(_scontrol(_scontrol_targets(jobs), lambda ids: ("scontrol", word, ids), read))
        case _:
            raise UsageError(f"{request.verb} is no action on jobs")


Job = tuple[str, JobId]


def _read_id(text: str) -> JobId:
    try:
        return slurm_job_id(text)
    except BadJobId as error:
        raise UsageError(f"{text!r} is no job id: {error.why}\n  {text}\n  {' ' * error.position}^") from None


# -- cancel


def _cancel(jobs: Sequence[Job]) -> Iterator[ActionCommand]:
    for targets in _portions(_targets(jobs, joined_from=_JOINED_FROM_TASKS)):
        yield _command(_scancel("-v", *_arguments(targets)), targets, partial(read_scancel, targets=targets))


def _scancel(*words: str) -> tuple[str, ...]:
    return ("env", *_WITHOUT_SCANCEL_ENVIRONMENT, *slurm("scancel", *words)[1:])


# -- signal


def _signal(jobs: Sequence[Job], signal: str, recipient: str) -> Iterator[ActionCommand]:
    """One command; a step of an array's task has one of its own, as the answer names it in another way."""
    options = (f"--{recipient}",) if recipient in ("batch", "full") else ()
    step = f".{recipient}" if recipient.isdecimal() else ""
    together: list[Job] = []
    alone: list[Job] = []
    for job_id, job in jobs:
        if step and job.tasks is not None and job.tasks.count > 1:
            raise UsageError(f"a step belongs to one task, not to {job_id}", f"Name the task: {job.number}_3")
        (alone if step and job.tasks is not None else together).append((job_id, job))
    for group in (together, *([job] for job in alone)):
        for targets in _portions(_targets(group, joined_from=_JOINED_FROM_TASKS, after=step)):
            words = ("-v", "--state=RUNNING", f"--signal={signal}", *options, *_arguments(targets))
            timed = slurm("timeout", str(_SIGNAL_SECONDS), "scancel", *words)
            argv = ("env", *_WITHOUT_SCANCEL_ENVIRONMENT, *timed[1:])
            yield _command(argv, targets, partial(read_signal, targets=targets, is_step=bool(step)))


def _signal_word(text: str) -> str:
    """USR1 of 'USR1', 'SIGUSR1', 'usr1'; a number as it is."""
    wanted = text.strip().upper().removeprefix("SIG")
    if wanted in _SIGNALS or (wanted.isdecimal() and wanted.isascii() and 1 <= int(wanted[:6]) <= _LAST_SIGNAL):
        return wanted
    raise UsageError(f"{text!r} is no signal Slurm sends", f"A number up to {_LAST_SIGNAL}, or: {' '.join(_SIGNALS)}.")


def _recipient(text: str) -> str:
    if text in ("", "batch", "full") or re.fullmatch(r"[0-9]{1,9}", text):
        return text
    raise UsageError(f"{text!r} is nobody to signal", "batch, full, or a step's number; left out, the steps.")


# -- hold, release, requeue, suspend, resume, alter


def _scontrol(
    targets: Sequence[Target],
    words: Callable[[str], tuple[str, ...]],
    read: Callable[..., tuple[Outcome, ...]] = read_scontrol,
) -> Iterator[ActionCommand]:
    """Commands that take a list of ids; one that fails keeps none of the others from being done."""
    for portion in _portions(targets):
        argv = slurm(*words(",".join(_arguments(portion))))
        yield _command(argv, portion, partial(read, targets=portion))


def _scontrol_targets(jobs: Sequence[Job]) -> list[Target]:
    # Of an array it says what became of which tasks.
    return _targets(jobs, joined_from=2)


def _alter(jobs: Sequence[Job], change: Alteration) -> Iterator[ActionCommand]:
    if change.fields:
        yield from _update(_scontrol_targets(jobs), change.fields)
    for field in change.one_job_fields:
        # "+30" is added to the limit of one job or one task.
        for target in _single_tasks(jobs):
            yield from _update([target], (field,))
    if change.array_fields:
        # Slurm would change it for the whole array.
        for job_id, job in jobs:
            if job.tasks is not None and job.tasks.count == 1:
                raise UsageError(f"throttle: {job_id} is a task", f"Name its array: {job.number}")
        yield from _update([Target(job_id, job.number) for job_id, job in jobs], change.array_fields)


def _update(targets: Sequence[Target], fields: tuple[str, ...]) -> Iterator[ActionCommand]:
    return _scontrol(targets, lambda ids: ("scontrol", "update", f"jobid={ids}", *fields))


def _single_tasks(jobs: Iterable[Job]) -> Iterator[Target]:
    for job_id, job in jobs:
        if job.tasks is None or job.tasks.count == 1:
            yield Target(job_id, str(job))
            continue
        if job.tasks.count > _MOST_JOBS:
            raise UsageError(
                f"{job_id} has {job.tasks.count} tasks", "A limit can be raised by an amount task by task."
            )
        for task in job.tasks:
            yield Target(job_id, f"{job.number}_{task}")


# -- ids as Slurm's commands take them


def _targets(jobs: Sequence[Job], *, joined_from: int, after: str = "") -> list[Target]:
    """What stands for each job: itself, or with `joined_from` single tasks of one array or more, one list of them."""
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
            # Asked for twice, a task would be refused the second time.
            targets.append(Target(job_id, job.number, is_shared=True))
        elif job.tasks.count == 1:
            task = job.tasks.first or 0
            text = shared.get((job.number, task), "")
            targets.append(Target(job_id, text or f"{job}{after}", is_shared=bool(text)))
        else:
            targets += [Target(job_id, text) for text, _ in _task_lists(job.number, job.tasks)]
    return targets


def _task_lists(number: str, tasks: ArrayTasks) -> list[tuple[str, ArrayTasks]]:
    """`88_[3,5-9]` and its tasks, in several where it is long; Slurm's commands take no `0-15:4`."""
    ordered = sorted(tasks.ranges, key=lambda one: one.start)
    lists: list[list[range]] = [[]]
    length = 0
    for part in (part for one in ordered for part in _stepless(one)):
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
    return [(str(JobId(number, held)), held) for held in (ArrayTasks(tuple(one)) for one in lists)]


def _stepless(tasks: range) -> Iterable[range]:
    return (tasks,) if tasks.step == 1 else (range(task, task + 1) for task in tasks)


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
        if portion and (size + grown > _MOST_BYTES or arguments >= _MOST_JOBS):
            yield tuple(portion)
            portion, size, arguments = [], 0, 0
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
