"""What qdel, qhold, qrls, qrerun, qsig, qalter and qmove say of the jobs they acted on, as one outcome a job. Pure.

They print a line for each job that failed, nothing for the others, and end with one status for all of them.
Sources: recordings of OpenPBS 23.06, and the commands' own programs in OpenPBS, Torque and Slurm's contribs/torque.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.queries import Answer
from hpcdash.domain.job_ids import BadJobId, JobId, covers, parse_job_id
from hpcdash.errors import excerpt

# Slurm's wrappers put the reason after the job, PBS the job after the reason.
_JOB_THEN_WORDS = re.compile(r"(?:(?:Kill job error|Error) on job id|Job id) (\S+?)(?: rerun error)?: (.*)")
_JOB_WITHIN = re.compile(r"Job (\S+) (has finished.*)")
_WORDS_THEN_JOB = re.compile(r"(.*\S)\s+(\S+)")
# A number after these words is the error's.
_NO_JOB = re.compile(r"Error [0-9]+|.*\bstatus [0-9]+")
_NOT_CONNECTED = re.compile(r"cannot connect to|Couldn't connect to|Unable to (connect|contact)", re.IGNORECASE)
_STOPPED_EARLY = re.compile(r"(?i)usage:|illegal -|illegally formed destination|unable to initialize")
# qmove says so, and ends well.
_FAILED_ANYWAY = re.compile(r"Queue type not set")
# The request may have arrived: the line broke, or nobody answered, once it was sent. 15031 is PBSE_PROTOCOL.
_MAY_BE_DONE = re.compile(
    r"[Ee]nd of [Ff]ile|Premature end|[Pp]rotocol error|Communication failure|timed out|Connection reset"
    r"|Server returned error 15031"
)
_NOT_FOUND = (126, 127)
# timeout(1)'s own status, and a shell's of a command that was killed, interrupted or terminated.
_CUT_OFF = (124, 130, 137, 143)
# -1: of a command that lost the server, or of a line to the host that broke.
_NO_STATUS = 255


@dataclass(frozen=True, slots=True)
class Target:
    """A job as it was asked for, the argument that stands for it or a part of it, and what that argument means."""

    job_id: str
    argument: str
    meant: JobId


@dataclass(frozen=True, slots=True)
class Hint:
    """What is added to PBS's words where they match: why, or what to do instead; `{array}` is the job's array.

    `for_tasks`: only where tasks of an array were asked for. `is_noted`: it was done as far as the server goes.
    `can_force`: as an outcome has it.
    """

    pattern: re.Pattern[str]
    words: str
    for_tasks: bool = False
    is_noted: bool = False
    can_force: bool = False


def read_answer(
    answer: Answer, *, program: str, targets: Sequence[Target], hints: Sequence[Hint] = (), one_connection: bool = False
) -> tuple[Outcome, ...]:
    """One outcome for each of the targets' jobs. `one_connection`: the program asks for all its jobs at once."""
    told: dict[str, list[tuple[JobId, str]]] = {}
    general: list[str] = []
    numbers = {target.meant.number for target in targets}
    for line in _lines(answer):
        own = line.removeprefix(f"{program}: ")
        found = _told(own) if own != line or _JOB_THEN_WORDS.fullmatch(own) else None
        if found is not None and found[0].number in numbers:
            told.setdefault(found[0].number, []).append(found)
        else:
            general.append(own if own != line else line)
    about = {target: _about(target, told.get(target.meant.number, ())) for target in dict.fromkeys(targets)}
    unnamed = len({target.argument for target, said in about.items() if not said})
    rest = _Rest(answer.status, general, bool(told), unnamed, program, one_connection)
    each: dict[str, list[Outcome]] = {}
    for target in targets:
        one = _outcome(target, about[target], hints) or rest.outcome(target.job_id, hints)
        each.setdefault(target.job_id, []).append(one)
    return tuple(map(_together, each.values()))


def _together(parts: Sequence[Outcome]) -> Outcome:
    """The outcome of a job of whose parts each has its own: the first that did not go well, and how many did."""
    worst = next((part for part in parts if part.done is not True), parts[0])
    done = sum(part.done is True for part in parts)
    if worst.done is True or not done:
        return worst
    return replace(worst, words=f"{worst.words}; done for {done} of {len(parts)}")


def _about(target: Target, told: Sequence[tuple[JobId, str]]) -> tuple[JobId, str] | None:
    """What was said of the very job, else of a part of it or of what it is a part of."""
    exact = (one for one in told if str(one[0]) == target.argument)
    near = (one for one in told if covers(target.meant, one[0]) or covers(one[0], target.meant))
    return next(exact, None) or next(near, None)


def _outcome(target: Target, said: tuple[JobId, str] | None, hints: Sequence[Hint]) -> Outcome | None:
    if said is None:
        return None
    job, words = said
    asked = _read(target.job_id) or target.meant
    is_part = job.tasks is not None and job.tasks != asked.tasks
    hint = _hint_for(words, hints, target.meant)
    done = None if _MAY_BE_DONE.search(words) or (hint is not None and hint.is_noted) else False
    said_words = _hinted(f"{job}: {words}" if is_part else words, hints, target.meant)
    return Outcome(target.job_id, done, said_words, can_force=hint is not None and hint.can_force)


@dataclass(frozen=True, slots=True)
class _Rest:
    """How jobs fared of which nothing was said; `unnamed` arguments stand for them."""

    status: int
    general: Sequence[str]
    is_any_told: bool
    unnamed: int
    program: str
    one_connection: bool

    def outcome(self, job_id: str, hints: Sequence[Hint]) -> Outcome:
        if self.status in _NOT_FOUND:
            return Outcome(job_id, False, f"{self.program}: command not found")
        words = _hinted(self._words(), hints)
        if self.status in _CUT_OFF:
            return Outcome(job_id, None, words)
        if self.status == 0:
            failed = next((line for line in self.general if _FAILED_ANYWAY.search(line)), "")
            return Outcome(job_id, not failed, failed)
        unconnected = sum(bool(_NOT_CONNECTED.search(line)) for line in self.general)
        if unconnected:
            if self.one_connection or unconnected >= self.unnamed:
                return Outcome(job_id, False, words)
            return Outcome(job_id, None, f"{words} (so for {unconnected} of {self.unnamed} jobs, which is not said)")
        if any(_MAY_BE_DONE.search(line) for line in self.general):
            return Outcome(job_id, None, words)
        if self.is_any_told and not any(_STOPPED_EARLY.search(line) for line in self.general):
            return Outcome(job_id, True)
        if self.status == _NO_STATUS and not self.general:
            return Outcome(job_id, None, words)
        return Outcome(job_id, False, words)

    def _words(self) -> str:
        """What was said of no job in particular, else the status."""
        best = next((line for line in self.general if _NOT_CONNECTED.search(line)), "")
        best = best or next((line for line in self.general if _STOPPED_EARLY.search(line)), "")
        if best or self.general:
            return excerpt((best or self.general[-1]).encode(), 300)
        if self.status in _CUT_OFF or self.status == _NO_STATUS:
            return "it was ended before it answered"
        return f"{self.program} ended with status {self.status}"


def _hint_for(words: str, hints: Sequence[Hint], meant: JobId | None) -> Hint | None:
    has_tasks = meant is not None and meant.tasks is not None
    return next((one for one in hints if one.pattern.search(words) and (has_tasks or not one.for_tasks)), None)


def _hinted(words: str, hints: Sequence[Hint], meant: JobId | None = None) -> str:
    hint = _hint_for(words, hints, meant)
    if hint is None:
        return words
    array = "" if meant is None else str(replace(meant, tasks=None))
    return f"{words} ({hint.words.format(array=array)})"


def _told(words: str) -> tuple[JobId, str] | None:
    """The job a line is about, and what it says of it."""
    if (found := _JOB_THEN_WORDS.fullmatch(words)) or (found := _JOB_WITHIN.fullmatch(words)):
        job, said = _read(found[1]), found[2]
        return None if job is None else (job, f"Job {said}" if said.startswith("has ") else said)
    found = _WORDS_THEN_JOB.fullmatch(words)
    if found is None or _NO_JOB.fullmatch(words) or (job := _read(found[2])) is None:
        return None
    return job, " ".join(found[1].removesuffix(" for job").removesuffix(":").split())


def _read(text: str) -> JobId | None:
    try:
        return parse_job_id(text)
    except BadJobId:
        return None


def _lines(answer: Answer) -> list[str]:
    # Slurm's wrappers say it on stdout.
    text = (answer.stdout + b"\n" + answer.stderr).decode("utf-8", "replace")
    return [line.strip() for line in text.split("\n") if line.strip()]
