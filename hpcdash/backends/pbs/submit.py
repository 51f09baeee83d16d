"""qsub for a script that is handed in, for the first time or once more.

Builds commands, runs nothing.

qsub runs in the environment it finds, where every other command has LC_ALL and TZ set: it reads the
time of -a in that zone, and sends TZ with the job (PBS_O_TZ), and with -V all there is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from hpcdash.backends.actions import CUT_OFF, ActionCommand, Outcome
from hpcdash.backends.base import SubmitPart
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.options import ParsedCommandLine
from hpcdash.backends.pbs.dialects import Dialect, DialectPart
from hpcdash.backends.pbs.errors import failure, is_answer_lost
from hpcdash.backends.pbs.listing import MARK_VARIABLE, REPLACES_VARIABLE
from hpcdash.backends.pbs.options import (
    MAGIC,
    Settings,
    attributes,
    format_task_range,
    is_closed,
    read_command_line,
    read_directives,
    settings,
)
from hpcdash.backends.pbs.recorded_options import (
    Recorded,
    read_record,
    to_arguments,
    unlike_directives,
    with_limits,
)
from hpcdash.backends.queries import Answer, Native
from hpcdash.backends.submissions import (
    AS_IT_WAS,
    Copy,
    NewLimits,
    Submission,
    SubmitCommand,
)
from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks, stepped_ranges
from hpcdash.domain.columns import digits
from hpcdash.domain.dependencies import split_after
from hpcdash.domain.job_ids import BadJobId, pbs_job_id, with_tasks
from hpcdash.errors import EXIT_UNREACHABLE, UsageError, excerpt

_JOB_ID = re.compile(rb"[0-9]+(?:\[\])?\.[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?")
# Torque with display_job_server_suffix off.
_BARE_ID = re.compile(rb"[0-9]+(?:\[\])?")
_PREFIX = re.compile(r"^ *qsub: *")
_NOT_DONE = "cannot connect to server"


def read_answer(answer: Answer, job_id: str, *, has_bare_ids: bool) -> tuple[Outcome, ...]:
    """The id stands in a line of its own, perhaps after what a site's qsub prints.

    Without one it is unknown whether there is a job: it is looked for then.
    """
    if answer.status == 0:
        lines = [line.strip() for line in answer.stdout.splitlines()]
        found = [line for line in lines if _JOB_ID.fullmatch(line)]
        found = found or [line for line in lines if has_bare_ids and _BARE_ID.fullmatch(line)]
        if not found:
            return (Outcome(job_id, None, "qsub returned no job ID"),)
        return (Outcome(job_id, True, f"job {found[-1].decode()}"),)
    text = _refusal(answer)
    spoken = text.lower()
    is_lost = answer.status in CUT_OFF or is_answer_lost(text)
    text = text or f"qsub exited with status {answer.status}"
    if is_lost and _NOT_DONE not in spoken:
        return (Outcome(job_id, None, text),)
    return (Outcome(job_id, False, text, failure(answer).exit_status == EXIT_UNREACHABLE),)


def _refusal(answer: Answer) -> str:
    """Return the message of qsub, or of a hook, on a refusal; without its usage."""
    reported = re.split(
        rb"^usage: ", answer.stderr or answer.stdout, maxsplit=1, flags=re.MULTILINE
    )[0]
    lines = [_PREFIX.sub("", line).strip() for line in excerpt(reported).splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines)))


# Runs qsub in the folder the job was first submitted from.
_IN_FOLDER = 'cd "$1" && shift && exec "$@"'

# A prefix that begins no line of any script. Of an empty one, which says the same, nothing is left
# in Submit_arguments: what follows would be read as its value.
_NO_DIRECTIVES = "#no-directives"
# What any PBS takes after -N; releases before 20 want a letter first.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9+._-]+")
_NAME_LETTERS = {Dialect.TORQUE: 15}
_MAX_NAME_LETTERS = 230

_LIMIT_SECONDS = 120.0


def _qsub(dialect: Dialect) -> tuple[str, ...]:
    # Without -f qsub leaves a process behind that waits for more; Torque's -f is something else.
    return ("qsub", "-f") if dialect is Dialect.OPENPBS else ("qsub",)


def _refuse_long(options: Sequence[str]) -> None:
    """Raises UsageError for an option in Slurm's manner, with what PBS has in its place."""
    for word in options:
        if re.match(r"--[A-Za-z]", word):
            is_signal = word.startswith("--signal")
            raise UsageError(
                f"{word} is not a qsub option"
                + (": PBS sends no signal ahead of the time limit" if is_signal else ""),
                "A timer in the script can send it: (sleep 3000; kill -USR1 $$) & with a trap on "
                "USR1."
                if is_signal
                else "qsub options have a single dash: see man qsub.",
            )


def _refuse(line: ParsedCommandLine, own: Settings, in_script: Settings) -> None:
    """Raises UsageError for what qsub does not know, and what would have it wait or talk."""
    for option in line.problems:
        raise UsageError(f"{option.written} is {option.problem}", "See man qsub for its options.")
    if line.script:
        raise UsageError(
            f"{line.script[0]!r} is not a qsub option",
            "The script comes first, its options after --.",
        )
    for where, reported, letters in (
        ("", own, "IX"),
        (" of the script's #PBS lines", in_script, "I"),
    ):
        if found := next((letter for letter in letters if letter in reported), ""):
            raise UsageError(
                f"-{found}{where} needs a terminal, which hpcdash jobs do not have",
                "Remove it.",
            )
        for attribute in ("block", "interactive"):
            if reported.get(f"W.{attribute}", "").lower() == "true":
                raise UsageError(
                    f"-W {attribute}=true{where} makes qsub wait for the job to end, which "
                    "hpcdash does not support",
                    "Remove it.",
                )


def _require_rerunable(own: Settings, in_script: Settings) -> None:
    """Raises UsageError for an array that is not to be run again, of the script or else `own`."""
    if own.get("r", in_script.get("r")) == "n":
        where = "" if "r" in own else " in the script"
        raise UsageError(
            f"PBS arrays must be rerunable, and -r n{where} forbids that",
            "Remove -r n: a task may then start again after a node failure.",
        )


def _given_arguments(line: ParsedCommandLine, *, without_depend: bool) -> list[str]:
    """The options as given, without -v and, if `without_depend`, without depend: these are written
    again.
    """
    parts: list[str] = []
    for option in line.given:
        if option.name == "v":
            continue
        if option.name == "W" and without_depend:
            for name, value in attributes(option.value or ""):
                parts += [] if name == "depend" else ["-W", f"{name}={value}"]
        else:
            parts += option.arguments
    return parts


def _arguments(dialect: Dialect, arguments: Sequence[str]) -> list[str]:
    if dialect is not Dialect.TORQUE:
        raise UsageError(
            "PBS does not pass arguments to scripts",
            "Pass them as variables: -v NAME=VALUE.",
        )
    if odd := [word for word in arguments if not word or re.search(r"[\s\"'\\]", word)]:
        raise UsageError(
            f"Torque's -F splits script arguments at spaces: {odd[0]!r} cannot be passed"
        )
    return ["-F", " ".join(arguments)]


def _tasks(text: str) -> ArrayTasks:
    try:
        return parse_tasks(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _array_arguments(dialect: Dialect, tasks: ArrayTasks) -> list[str]:
    """One range after -J; Torque's -t takes lists."""
    if dialect is Dialect.TORQUE:
        return ["-t", str(tasks)]
    if tasks.throttle and dialect is Dialect.PBS_TEXT:
        raise UsageError(
            "this PBS release cannot limit an array's running tasks",
            f"Remove %{tasks.throttle}.",
        )
    return ["-J", format_task_range(tasks)]


def _depend(dialect: Dialect, after: Sequence[str], earlier: str) -> str:
    """The conditions, besides what the options or the script wait for already."""
    conditions: dict[str, list[str]] = {}
    for kind, text in map(split_after, after):
        try:
            job = pbs_job_id(text)
        except BadJobId as error:
            raise UsageError(str(error)) from error
        if job.tasks is not None:
            raise UsageError(
                f"PBS jobs cannot depend on a single array task: {text}",
                "Use the whole array: 12[].",
            )
        array = "array" if dialect is Dialect.TORQUE and job.has_brackets else ""
        conditions.setdefault(f"{kind}{array}", []).append(text)
    before = earlier.split(",") if earlier else []
    added = (":".join((kind, *ids)) for kind, ids in sorted(conditions.items()))
    return ",".join((*before, *(one for one in added if one not in before)))


def _placed(record: Recorded, native: Native, copy: Copy) -> Recorded:
    """Return the record of a copy, with its place in that of the job's own.

    Raises UsageError for a job whose environment or hold a copy would not have.
    """
    job = f"job {copy.replaces}"
    if set(native.get("Hold_Types", "n")) - {"n", "u"}:
        raise UsageError(f"{job} is held by an operator", "Ask the site to release it.")
    if record.has_environment and not copy.is_ours:
        raise UsageError(
            f"the environment of {job} is unknown: it was submitted with -V",
            "Cancel it and submit its script there yourself.",
        )
    chosen = {"q": copy.queue, "A": copy.account}
    settings = {**record.settings, **{key: value for key, value in chosen.items() if value}}
    if copy.is_elsewhere and not copy.queue:
        settings.pop("q", None)
    return replace(record, settings=settings)


def _advice(dialect: Dialect, reported: Settings) -> list[str]:
    if dialect is not Dialect.OPENPBS:
        return []
    notes = []
    if "d" not in reported.get("k", ""):
        notes.append(
            "the output stays on the execution host until the job ends; use -k oed to read the "
            "output while the job runs"
        )
    if "V" in reported:
        notes.append("-V passes nothing in some PBS releases (23.06): pass variables with -v")
    return notes


class PbsSubmit(DialectPart, SubmitPart):
    """Submission by qsub."""

    program = "qsub"
    copies = True
    new_limits = frozenset({"time_seconds", "memory_bytes"})

    def submission(self, submission: Submission) -> SubmitCommand:
        """qsub for a script on stdin or in a file there; options given beat the script's #PBS
        lines, one by one.

        Raises UsageError for what qsub does not know, what would have it wait or talk, script
        arguments (Torque takes them), and an array or a dependency that PBS has no such thing as.
        """
        _refuse_long(submission.options)
        line = read_command_line(submission.options)
        own = settings(line.options, in_script=False)
        text = submission.script.decode("utf-8", "surrogateescape")
        directives = read_directives(text, own.get("C", MAGIC))
        in_script = settings(directives.options, in_script=True)
        _refuse(line, own, in_script)
        reported = {**in_script, **own}
        is_torque = self.dialect is Dialect.TORQUE
        if not is_torque and (submission.array or "J" in reported):
            _require_rerunable(own, in_script)
        parts = _given_arguments(line, without_depend=bool(submission.after))
        notes: list[str] = []
        if submission.arguments:
            parts += _arguments(self.dialect, submission.arguments)
        if submission.array:
            parts += _array_arguments(self.dialect, _tasks(submission.array))
        if submission.after:
            depend = _depend(self.dialect, submission.after, reported.get("W.depend", ""))
            parts += ["-W", f"depend={depend}"]
            notes.append(
                "a job with a dependency that PBS no longer knows ends at once without running"
            )
        if submission.held and "h" not in reported:
            parts.append("-h")
        name = reported.get("N") or self._job_name(submission.name)
        if "N" not in reported:
            parts += ["-N", name]
        if "N" not in reported and name != submission.name:
            notes.append(f"the job is named {name}: PBS limits the characters and length of names")
        # One on the command line takes the place of the script's; Torque joins them.
        variables = own.get("v", in_script.get("v", ""))
        if is_torque:
            variables = ",".join(filter(None, (in_script.get("v"), own.get("v"))))
        mark = submission.mark
        if not is_closed(variables):
            notes.append(
                "the -v option has an unclosed quote: hpcdash cannot mark the job, and qsub may "
                "reject it"
            )
            mark = ""
        if mark or "v" in own:
            marked = f"{MARK_VARIABLE}={mark}" if mark else ""
            parts += ["-v", ",".join(filter(None, (marked, variables)))]
        notes += _advice(self.dialect, reported)
        if submission.file:
            parts.append(submission.file)
        argv = (*submission.as_account(*_qsub(self.dialect)), *parts)
        command = self._command(argv, submission.name, submission.script)
        return SubmitCommand(command, tuple(notes), mark, name)

    def _job_name(self, file_name: str) -> str:
        """A script's name as a job's: from stdin qsub would call each STDIN."""
        name = _NOT_IN_NAMES.sub("_", file_name)
        if not re.match("[A-Za-z]", name):
            name = f"job_{name.lstrip('_.-+')}"
        return name[: _NAME_LETTERS.get(self.dialect, _MAX_NAME_LETTERS)]

    def resubmission(
        self,
        detail: JobDetail,
        past: Native,
        script: Script,
        tasks: ArrayTasks | None,
        mark: str,
        limits: NewLimits = AS_IT_WAS,
        copy: Copy | None = None,
    ) -> SubmitCommand:
        """qsub with the options PBS has on record, from the folder the job was submitted from.

        What the script's #PBS lines say as well stays unsaid; where they ask for what the job had
        not, qsub is told to read none of them. Raises UsageError for a job without a script, and
        for tasks that are no one range.
        """
        row = detail.row
        job_id = requested = row["array_id"] or row["id"]
        native = {**past, **detail.native}
        directives = read_directives(script.text)
        in_script = settings(directives.options, in_script=True)
        record = read_record(native, row, in_script)
        if copy is not None:
            record = _placed(record, native, copy)
        unlike = [option.written for option in directives.problems] or unlike_directives(
            record, in_script, is_array=row["array_id"] is not None
        )
        record = with_limits(record, limits, row["nodes"] or 1)
        notes = [f"options are from the PBS record of job {job_id}", *record.notes]
        if unlike:
            notes.append(
                f"#PBS lines are ignored, because the job did not have: {', '.join(unlike)}"
            )
            parts = ["-C", _NO_DIRECTIVES, *to_arguments(record, {})]
        else:
            parts = to_arguments(record, in_script)
        throttle = None
        if row["array_id"]:
            array = native.get("array_indices_submitted") or native.get("job_array_request") or ""
            if tasks is None and not array:
                raise UsageError(f"the tasks of array {job_id} are unknown", "Specify the tasks.")
            again = _tasks(array) if tasks is None else tasks
            throttle = digits(native.get("max_run_subjobs")) or again.throttle
            parts += _array_arguments(self.dialect, ArrayTasks(again.ranges, throttle))
            requested = job_id if tasks is None else with_tasks(job_id, tasks)
        own = [f"{MARK_VARIABLE}={mark}"]
        if copy is not None:
            parts.append("-h")
            own.append(f"{REPLACES_VARIABLE}={copy.replaces}")
            requested = copy.job_id
        parts += ["-v", ",".join((*own, *record.variables))]
        argv = (*_qsub(self.dialect), *parts)
        if row["work_dir"]:
            argv = ("sh", "-c", _IN_FOLDER, "sh", row["work_dir"], *argv)
        if any("\ufffd" in word for word in argv):
            notes.append("bytes that are not UTF-8 were lost: some options may differ")
        stdin = script.text.encode("utf-8", "surrogateescape")
        command = self._command(argv, requested, stdin)
        return SubmitCommand(command, tuple(notes), mark, row["name"] or "", throttle)

    def _command(self, argv: tuple[str, ...], job_id: str, stdin: bytes) -> ActionCommand:
        is_torque = self.dialect is Dialect.TORQUE
        read = partial(read_answer, job_id=job_id, has_bare_ids=is_torque)
        return ActionCommand(argv, (job_id,), read, stdin, _LIMIT_SECONDS)

    def array_parts(self, tasks: ArrayTasks) -> tuple[ArrayTasks, ...]:
        """A range with a step for each qsub; Torque takes lists."""
        if self.dialect is Dialect.TORQUE:
            return (tasks,)
        return tuple(ArrayTasks((part,), tasks.throttle) for part in stepped_ranges(tasks))
