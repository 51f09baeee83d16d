"""What scancel and scontrol say of the jobs they acted on, as one outcome a job. Pure; runs nothing.

The phrases are those of Slurm 22.05.8, with a controller that was up, stopped and hung.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.queries import Answer
from hpcdash.backends.slurm.detail import no_requeue_words
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.job_ids import BadJobId, JobId, covers, parse_job_id
from hpcdash.errors import excerpt, program_name

_KILL_ERROR = re.compile(r"scancel: error: Kill job error on job (?:step )?id (\S+): (.*)")
_TERMINATING = re.compile(r"scancel: Terminating job (\S+)")
_SIGNALLED = re.compile(r"scancel: Signal [0-9]+ to (?:batch |full )?(?:job|step) (\S+)")
_FOR_JOB = re.compile(r"(.+) for job (\S+?)(?:: (.*))?")
_OF_TASKS = re.compile(r"([0-9]+)_([0-9][0-9,:-]*[.]*): (.*)")
_TRANSITION = "Job is in transitional state, retrying"
# What goes before Slurm's own words, and lines that say nothing of how it went.
_PREFIX = re.compile(r"(?:scancel|scontrol): (?:error: )?|(?:slurm_\w+ )?error: ")
_NOISE = re.compile(r"scancel: (?:[a-z_]+/[a-z_]+: |Job is in transitional)")
_OF_A_JOB = (_KILL_ERROR, _TERMINATING, _SIGNALLED, _NOISE)
_SUMMARY = re.compile(r"slurm_\w+ error: ")
# The request may have arrived, or not: scontrol says "Unexpected message" for a controller that is down or hangs.
_MAY_BE_DONE = (
    "Socket timed out on send/recv",
    "Zero Bytes were transmitted or received",
    "Unexpected message received",
    "send failure",
    "receive failure",
    "Communication connection failure",
)
_NO_ERROR = "No error"
_DISABLED = "Requested operation is presently disabled"
_WAITING_TASKS = "Job is in transitional state (as tasks of the array still wait)"
_INVALID = "Invalid job id specified"
_NOT_FOUND_STATUS = 127
# timeout(1)'s own status, and a shell's of a command that was killed or terminated. scancel's own are Slurm's error
# numbers modulo 256.
_CUT_OFF = (124, 137, 143)


@dataclass(frozen=True, slots=True)
class Target:
    """A job as it was asked for and the argument that stands for it, or for a part of it.

    `is_shared`: the argument stands for other jobs too.
    """

    job_id: str
    argument: str
    is_shared: bool = False


def read_scancel(answer: Answer, targets: Sequence[Target]) -> tuple[Outcome, ...]:
    """Outcomes of `scancel -v ID…`, which says what it begins and what fails, and ends well for ids nobody knows."""
    lines = _lines(answer)
    errors: dict[str, str] = {}
    begun: set[str] = set()
    for line in lines:
        if found := _KILL_ERROR.fullmatch(line):
            errors.setdefault(found[1], found[2])
        elif found := _TERMINATING.fullmatch(line):
            begun.add(found[1])
    general = _general_words(answer, lines)

    def outcome(target: Target) -> Outcome:
        words = errors.get(target.argument)
        if words is not None:
            if "[" in target.argument and _INVALID in words:
                # It says so when one of the tasks is not there, and ends the others.
                return Outcome(target.job_id, None, f"{words} (of one of several tasks; the others may be cancelled)")
            return Outcome(target.job_id, _done(words), words)
        if answer.status in _CUT_OFF and not errors:
            return Outcome(target.job_id, None, general)
        if target.argument in begun or answer.status == 0:
            return Outcome(target.job_id, True)
        return Outcome(target.job_id, _done(general), general)

    return _each(targets, outcome)


def read_signal(answer: Answer, targets: Sequence[Target], *, is_step: bool) -> tuple[Outcome, ...]:
    """Outcomes of `timeout … scancel -v --state=RUNNING --signal=…`: it names each job or task it sends to.

    A task of an array of which others wait gets the signal, and scancel hears that the job is in transition: that comes
    from the record of those that wait. Of a job that is no array it means that the signal was not sent yet. Which job
    is in transition is not said, only how many are.
    """
    lines = _lines(answer)
    errors = [(found[1], found[2]) for line in lines if (found := _KILL_ERROR.fullmatch(line))]
    sent = [found[1] for line in lines if (found := _SIGNALLED.fullmatch(line))]
    in_transition = sum(_TRANSITION in line for line in lines)
    is_of_arrays = in_transition <= sum("_" in known for known in sent)
    general = _general_words(answer, lines)

    def outcome(target: Target) -> Outcome:
        is_only = is_step and len(targets) == 1
        words = next((said for known, said in errors if is_only or _is_of(target.job_id, known)), None)
        if words is not None:
            return Outcome(target.job_id, _done(words), words)
        its_own = sent if is_only else [known for known in sent if _is_of(target.job_id, known)]
        if not its_own:
            if answer.status in _CUT_OFF and not sent:
                return Outcome(target.job_id, False, "not sent: the controller did not answer in time")
            if answer.status and not errors and not sent:
                return Outcome(target.job_id, _done(general), general)
            return Outcome(target.job_id, False, "not sent: it does not run")
        if answer.status not in _CUT_OFF:
            return Outcome(target.job_id, True)
        if not in_transition:
            return Outcome(target.job_id, None, general)
        if not is_of_arrays:
            return Outcome(target.job_id, None, "Job is in transitional state")
        is_array = any("_" in known for known in its_own)
        return Outcome(target.job_id, True, _WAITING_TASKS if is_array else "")

    return _each(targets, outcome)


def read_scontrol(answer: Answer, targets: Sequence[Target]) -> tuple[Outcome, ...]:
    """Outcomes of `scontrol hold ID,ID…` and the like: a line for each job that failed, none for the others.

    Of an array's tasks it says `88_0,4-5: No error` and `88_1-3: Job is pending execution` where only some failed.
    """
    if answer.status == 0:
        return _each(targets, lambda target: Outcome(target.job_id, True))
    lines = _lines(answer)
    said: dict[str, list[tuple[JobId, str]]] = {}
    unclear: list[str] = []
    for line in lines:
        if (found := _OF_TASKS.fullmatch(line)) and (job := _told_tasks(found[1], found[2])):
            said.setdefault(job.number, []).append((job, found[3]))
        elif (found := _FOR_JOB.fullmatch(line)) and (job := _read(found[2])):
            said.setdefault(job.number, []).append((job, found[3] or _own_words(found[1])))
        elif not _SUMMARY.match(line):
            unclear.append(line)
    general = _general_words(answer, lines)

    def outcome(target: Target) -> Outcome:
        asked = parse_job_id(target.job_id if target.is_shared else target.argument)
        named = said.get(asked.number, ())
        about = [(job, words) for job, words in named if covers(asked, job) or covers(job, asked)]
        failed = [(job, words) for job, words in about if words != _NO_ERROR]
        if failed:
            others = [str(job) for job, words in about if words == _NO_ERROR]
            if _is_one(asked) or (not others and all(job == asked for job, _ in failed)):
                words = failed[0][1]
            else:
                words = "; ".join(f"{job}: {words}" for job, words in failed)
                words += f" (done: {', '.join(others)})" if others else ""
            return Outcome(target.job_id, _done(words), words)
        if about:
            return Outcome(target.job_id, True)
        # Slurm cuts a long list of tasks short: this task may be in the rest of any.
        rest = list(dict.fromkeys(words for job, words in named if job.tasks is not None and job.tasks.is_incomplete))
        if rest == [_NO_ERROR]:
            return Outcome(target.job_id, True)
        if rest:
            done = _done(rest[0]) if len(rest) == 1 else None
            return Outcome(target.job_id, done, " or ".join(rest))
        if answer.status in _CUT_OFF:
            return Outcome(target.job_id, None, general)
        if said and not unclear:
            return Outcome(target.job_id, True)
        return Outcome(target.job_id, _done(general), general)

    return _each(targets, outcome)


def read_requeue(answer: Answer, targets: Sequence[Target]) -> tuple[Outcome, ...]:
    """As read_scontrol; what Slurm says of a job that is not to be requeued does not say why."""

    def explained(outcome: Outcome) -> Outcome:
        if outcome.done is True or _DISABLED not in outcome.words:
            return outcome
        why = no_requeue_words(parse_job_id(outcome.job_id).number)
        return replace(outcome, words=f"{outcome.words}: {why}")

    return tuple(map(explained, read_scontrol(answer, targets)))


def _is_one(job: JobId) -> bool:
    return job.component is not None or (job.tasks is not None and job.tasks.count == 1)


def _is_of(asked: str, known: str) -> bool:
    """Whether what scancel names (88_3, 29, 29.0) is the job asked for, or a task of it."""
    job = _read(known.partition(".")[0])
    return job is not None and covers(parse_job_id(asked), job)


def _read(text: str) -> JobId | None:
    try:
        return parse_job_id(text)
    except BadJobId:
        return None


def _told_tasks(number: str, tasks: str) -> JobId | None:
    try:
        return JobId(number, parse_tasks(tasks))
    except ValueError:
        return None


def _done(words: str) -> bool | None:
    """False where it was certainly not done, None where it may have been."""
    return None if any(phrase in words for phrase in _MAY_BE_DONE) else False


def _lines(answer: Answer) -> list[str]:
    text = (answer.stderr + b"\n" + answer.stdout).decode("utf-8", "replace")
    return [line.strip() for line in text.split("\n") if line.strip()]


def _own_words(line: str) -> str:
    found = _PREFIX.match(line)
    return line[found.end() :] if found else line


def _general_words(answer: Answer, lines: Sequence[str]) -> str:
    """What was said of no job in particular: Slurm's last words of that kind, or else the status."""
    if answer.status == _NOT_FOUND_STATUS:
        return f"{program_name(answer.argv)}: command not found"
    words = [_own_words(line) for line in lines if not any(known.match(line) for known in _OF_A_JOB)]
    if words:
        return excerpt(words[-1].encode(), 300)
    if answer.status in _CUT_OFF:
        return "it was ended before it answered"
    return f"{program_name(answer.argv)} ended with status {answer.status}"


def _each(targets: Sequence[Target], outcome: Callable[[Target], Outcome]) -> tuple[Outcome, ...]:
    """One outcome a job: done when all that stands for it was; else how the first of these that was not fared."""
    result: dict[str, Outcome] = {}
    for target in targets:
        one = outcome(target)
        before = result.get(target.job_id)
        if before is None or before.done is True:
            result[target.job_id] = one
    return tuple(result.values())
