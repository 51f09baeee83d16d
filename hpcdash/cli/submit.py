"""`hpcdash submit`: submits a batch script or a request."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.assembly import chosen_site
from hpcdash.backends.actions import Outcome
from hpcdash.backends.base import ScriptReader
from hpcdash.backends.script.allocation import Waiting
from hpcdash.backends.script.body import has_interpreter
from hpcdash.backends.submissions import Submission
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import confirm, print_json, print_notes, print_text, require_prompt
from hpcdash.config.document import decode, shown_path
from hpcdash.config.locate import find_line, key_lines
from hpcdash.config.problems import ConfigProblems, Problem
from hpcdash.config.read import load_settings
from hpcdash.config.request import RequestProblems, read_request, request_text, require_plain
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.demand import format_finding
from hpcdash.domain.dependencies import parse_after
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import Request, Site
from hpcdash.domain.text import visible
from hpcdash.errors import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    ConfigError,
    HpcdashError,
    UsageError,
    without_env,
)
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import state_root
from hpcdash.services.state.templates import SCRIPT_END, Templates
from hpcdash.services.submit.launches import format_chain
from hpcdash.services.submit.ready_templates import (
    ReadyTemplate,
    parse_settings,
    read_ready_template,
)
from hpcdash.services.submit.submission import SubmissionPlan, SubmissionResult, plan_script

# A command may be a whole script, and sbatch takes one of 4 MiB.
MAX_REQUEST_BYTES = 4 << 20
_STDIN = "-"
# The key in a message on an unsupported request, `name: …`, or on a person's own option, `--nodes
# is not allowed in extra_args`.
_MESSAGE_KEY = re.compile(r"([a-z_]+): ")
_ARGUMENTS_KEY = re.compile(r" (extra_args)\b")
# Slurm's own limit for a batch script (SchedulerParameters=max_script_size).
MAX_SCRIPT_BYTES = 4 << 20
REQUEST_ENDING = ".toml"


class RequestSource(Struct, frozen=True):
    """A request, its original text, and its local script if it names one by a relative path."""

    request: Request
    text: str
    script: Path | None = None
    file: str = ""
    folder: Path = field(default_factory=Path.cwd)

    def with_file_line(self, error: UsageError) -> HpcdashError:
        """Return the error with the file's line of the key that it names, or unchanged."""
        found = _MESSAGE_KEY.match(error.message) or _ARGUMENTS_KEY.search(error.message)
        key = found[1] if found else ""
        line = key_lines(self.text).get((key,))
        if line is None:
            return error
        return ConfigError(
            error.message.removeprefix(f"{key}: "),
            error.next_step,
            file=self.file,
            line=line,
            key=key,
        )


def read_source(
    path: str, *, site: Site, user: str | None, plain: bool = False, content: bytes | None = None
) -> RequestSource:
    """Read the request in a file, '-' for stdin; `plain` requires a plain script.

    `content` is that of a template, named `path`.

    A relative `script` must exist in the file's folder (with stdin: in the current folder); an
    absolute one is on the cluster. Raises ConfigError with file, line and key.
    """
    named = "stdin" if path == _STDIN else shown_path(Path(path))
    try:
        text = decode(_bytes(path, named) if content is None else content, named)
    except ConfigProblems as error:
        raise RequestProblems(named, error.problems) from None
    request = read_request(text, named, site=site, user=user)
    if plain and not request.plain:
        request = replace(request, plain=True)
        require_plain(request, text, named, "Fix the file, or remove --plain.")
    folder = Path.cwd() if path == _STDIN else Path(path).absolute().parent
    if not request.script or request.script.startswith("/"):
        return RequestSource(request, text, file=named, folder=folder)
    script = Path(os.path.abspath(folder / request.script))
    if not script.is_file():
        problem = "is a folder" if script.is_dir() else "does not exist"
        message = f"{shown_path(script)} {problem}; the path is relative to this file's folder"
        line = find_line(key_lines(text), ("script",))
        raise RequestProblems(named, [Problem(line, "script", message)])
    return RequestSource(request, text, script, file=named, folder=folder)


def _bytes(path: str, named: str) -> bytes:
    try:
        content = _read_start(path, MAX_REQUEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", "Check the path.", file=named
        ) from error
    if len(content) > MAX_REQUEST_BYTES:
        raise ConfigError(
            f"more than {MAX_REQUEST_BYTES >> 20} MiB; check that it is a request file", file=named
        )
    return content


class RequestSubmission(Struct):
    """A request from a file or options; `files` (name → content) are staged, `notes` printed."""

    request: Request
    text: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # None if options of the command line change the request.
    source: RequestSource | None = None
    # For an allocation, which waits for runs.
    waiting: Waiting | None = None
    # Base folder of the request's `files`.
    folder: Path | None = None

    @classmethod
    def read(
        cls,
        common: CommonOptions,
        path: str,
        *,
        options: Sequence[str],
        array: str,
        after: tuple[str, ...],
        held: bool,
        plain: bool = False,
        content: bytes | None = None,
    ) -> RequestSubmission:
        """Read a submission from a *.toml file; with `plain` its script is plain.

        `content` is that of a template, named `path`.

        Raises ConfigError and UsageError for errors in it.
        """
        site = chosen_site(common)
        try:
            source = read_source(
                path,
                site=site.launch.site,
                user=site.cluster.user,
                plain=plain,
                content=content,
            )
        except RequestProblems as error:
            error.next_step += " Nothing was submitted."
            raise
        request = source.request
        files = {}
        notes: tuple[str, ...] = ()
        script = source.script or (Path(request.script) if request.script else None)
        if script is not None and script.is_file():
            files[script.name] = read_script(str(script), is_program=not has_interpreter(request))
        elif script is not None:
            notes = (f"{script} is not on this machine: using the cluster's file",)
        given = {
            "array": parse_tasks(array) if array else None,
            "after": after,
            "hold": held,
            "plain": plain,
            "extra_args": (*request.extra_args, *_group_options(options)) if options else (),
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value}
        text = source.text
        if changes:
            request = replace(request, **changes, said=request.said | changes.keys())
            text = request_text(request, site=site.launch.site)
        return cls(
            request,
            text,
            files,
            notes,
            source=None if options else source,
            folder=source.folder,
        )

    async def plan(
        self, session: ClusterSession, after: tuple[str, ...], before: SubmissionPlan | None
    ) -> SubmissionPlan:
        """Plan one more submission; `after` replaces its dependencies unless it is ().

        `before` is the plan of the previous link. Raises UsageError, with the request's file.
        """
        request = self.request
        text = self.text
        if after:
            # All links of a chain have the same name.
            name = request.name or (before.name if before is not None else "")
            request = replace(request, after=after, name=name)
            text = request_text(request, site=session.launches.settings.site)
        try:
            planned = await session.launches.plan(
                request, text, self.files, self.folder, waiting=self.waiting
            )
        except UsageError as error:
            raise error if self.source is None else self.source.with_file_line(error) from None
        found = map(format_finding, await session.launches.findings(planned))
        return replace(planned, notes=(*self.notes, *found, *planned.notes))

    @property
    def recent(self) -> tuple[str, str, Literal["request", "script"]]:
        """(name, text, kind) among the recent submissions."""
        return self.request.name, self.text, "request"


def _group_options(parts: Sequence[str]) -> list[str]:
    """Group options with their values: `--nice 3` is one."""
    options: list[list[str]] = []
    for part in parts:
        if part.startswith("-") or not options:
            options.append([part])
        else:
            options[-1].append(part)
    return [shlex.join(option) for option in options]


def run_submit(
    common: CommonOptions,
    *,
    script: str,
    arguments: Sequence[str],
    array: str | None,
    after: str | None,
    hold: bool,
    dry_run: bool,
    form: str,
    chain: int = 1,
    plain: bool = False,
    best: bool = False,
    template: str = "",
    changes: Sequence[str] = (),
) -> None:
    """Submit a script, or the request in a file *.toml; `best`: to the place it starts first.

    `template` is the name of a saved or ready one, with `changes` of its fields.

    Exits with 1 if it was refused, with 3 if the scheduler did not respond or the outcome is
    unknown.
    """
    settings = load_settings(common.config)
    if (common.read_only or settings.read_only) and not dry_run:
        raise UsageError("submit is disabled: hpcdash is read-only", "--dry-run shows the command.")
    content = None
    if template:
        # The first argument is an option of the scheduler.
        arguments = (*filter(None, (script,)), *arguments)
        script, content = _find_template(common, template, changes)
    elif changes:
        raise UsageError("--set requires --template", "Edit the file instead.")
    # Options of the scheduler, then the script's own arguments after another `--`.
    options = tuple(arguments)
    own_arguments: tuple[str, ...] = ()
    if "--" in options:
        at = options.index("--")
        own_arguments = options[at + 1 :]
        options = options[:at]
    if best and not (common.yes or dry_run):
        require_prompt("submit --best")
    requested: dict[str, Any] = {"array": _array(array), "after": _after(after), "held": hold}
    submission: RequestSubmission | ScriptSubmission
    if script.endswith(REQUEST_ENDING):
        if own_arguments:
            raise UsageError(
                "a request's script takes no arguments", "Put them in the request's command."
            )
        submission = RequestSubmission.read(
            common, script, options=options, plain=plain, content=content, **requested
        )
        if chain > 1 and submission.request.is_task:
            raise UsageError(
                "--chain: a shared-pool task already continues until it is done",
                "Remove --chain.",
            )
    elif plain:
        raise UsageError(
            "--plain is for requests: a batch script is submitted unchanged", "Remove --plain."
        )
    else:
        name = Path(script).name if script != "-" else "stdin"
        path = "" if script == "-" else str(Path(script).absolute())
        batch_script = read_script(script, is_program=False)
        submission = ScriptSubmission(
            Submission(batch_script, name, options=options, arguments=own_arguments, **requested),
            path,
        )

    async def work(session: ClusterSession) -> tuple[Outcome, ...]:
        await session.store.open(force=True)
        _warn_unsettled(session)
        chosen = submission
        if best:
            chosen = await _with_best_place(session, submission, is_agreed_to=common.yes or dry_run)
        if dry_run:
            await _run_dry(session, chosen, chain, form, in_full=common.debug)
            return ()
        run = SubmissionRun(chosen, session, prints=form != "json")
        outcomes = await run.outcomes(chain)
        if form == "json" and run.planned is not None:
            _print_json(session, submission_json(outcomes, run.planned, chain))
        return outcomes

    outcomes = with_session(common, work)
    sys.stdout.flush()
    if not dry_run and not outcomes[-1].done:
        sys.exit(exit_status(outcomes[-1]))


def _find_template(
    common: CommonOptions, name: str, changes: Sequence[str]
) -> tuple[str, bytes | None]:
    """Return the file of a saved script, or a template's name and content.

    A saved template comes before a site's, and that before hpcdash's own. Raises UsageError.
    """
    saved = Templates(state_root() / "templates")
    values = parse_settings(changes)
    if name not in saved.names():
        ready = read_ready_template(name, chosen_site(common).launch.templates)
        return f"{name}{REQUEST_ENDING}", ready.text_with(values).encode()
    if (script := saved.folder / f"{name}{SCRIPT_END}").exists():
        if values:
            raise UsageError(f"template {name} is a batch script, which has no fields")
        return str(script), None
    own = ReadyTemplate(name, saved.read(name))
    return f"{name}{REQUEST_ENDING}", own.text_with(values).encode("utf-8", "surrogateescape")


async def _with_best_place(
    session: ClusterSession,
    submission: RequestSubmission | ScriptSubmission,
    *,
    is_agreed_to: bool,
) -> RequestSubmission | ScriptSubmission:
    """Return a submission with the queue, account and QoS where it starts first.

    Raises UsageError if no place takes it, Declined if the person does not agree.
    """
    from hpcdash.services.submit.places import search_places
    from hpcdash.services.submit.shapes import JobShape

    if isinstance(submission, RequestSubmission):
        shape = JobShape(submission.request)
    else:
        requested = submission.requested
        shape = JobShape(None, requested.script, requested.name, requested.options)
    answer = await search_places(shape, [session])
    if (error := answer.errors.get(session.name)) is not None:
        raise error
    place = answer.places[0] if answer.places else None
    if place is None or place.accepts is False:
        reason = place.reason if place is not None else "no known queues"
        raise UsageError(
            f"no place accepts it: {reason}", "`hpcdash where FILE --all` shows every place."
        )
    is_known = place.starts_in(session.store.clock.now()) is not None
    start = place.format_start(session.store.clock.now()) if is_known else "at an unknown time"
    parts = [f"queue {place.queue}"]
    parts += [f"account {place.account}"] if place.account else []
    parts += [f"QoS {place.qos}"] if place.qos else []
    estimate = f" (estimate: {place.estimated_by})" if place.estimated_by else ""
    print_notes(f"{', '.join(parts)}: starts {start}{estimate}; {place.reason}")
    if not is_agreed_to:
        await confirm()
    if isinstance(submission, RequestSubmission):
        request = shape.request_at(place, None)
        text = request_text(request, site=session.launches.settings.site)
        return replace(submission, request=request, text=text, source=None)
    options = session.store.backend.scripts.reader().place_options(
        place.queue, None, place.account, place.qos
    )
    requested = replace(requested, options=(*requested.options, *options))
    return replace(submission, requested=requested)


def exit_status(outcome: Outcome) -> int:
    """Return the exit status for a submission that was refused, or has an unknown outcome."""
    is_unknown = outcome.done is None or outcome.is_unreachable
    return EXIT_UNREACHABLE if is_unknown else EXIT_REFUSED


async def _run_dry(
    session: ClusterSession,
    submission: RequestSubmission | ScriptSubmission,
    chain: int,
    form: str,
    *,
    in_full: bool,
) -> None:
    """Print a plan without running it."""
    planned = await submission.plan(session, (), None)
    print_notes(*planned.notes)
    if chain > 1:
        print_notes(f"first of a chain of {chain}: each job waits for the previous one to end")
    if form != "json":
        print_dry(planned, in_full=in_full)
        return
    answer = {
        "job_id": None,
        "done": None,
        "words": "nothing was submitted",
        "script": planned.shown,
    }
    if planned.request is not None:
        answer["folder"] = planned.folder or None
    commands = [without_env(command.argv) for command in planned.plan.commands]
    _print_json(session, {**answer, "commands": commands})


def _warn_unsettled(session: ClusterSession) -> None:
    """Warn about submissions with an unknown outcome: the next one could repeat them."""
    from hpcdash.services.submit.moves import interrupted_moves
    from hpcdash.services.submit.recovery import unsettled_today

    entries = unsettled_today(session.store, session.actions.journal)
    names = [name for entry in entries for name in entry.job_ids]
    if names:
        print_notes(
            f"the outcome of submitting {', '.join(names[:3])} is unknown; hpcdash journal "
            "--settle searches for it"
        )
    if moves := interrupted_moves(session.actions.journal, session.name):
        jobs = ", ".join(entry.job_ids[0] for entry, _ in moves[:3])
        print_notes(
            f"the move of {jobs} was interrupted; hpcdash journal --settle finishes or undoes it"
        )


class ScriptSubmission(Struct, frozen=True):
    """A script on this machine; `path` is '' for one from stdin."""

    requested: Submission
    path: str

    async def plan(
        self, session: ClusterSession, after: tuple[str, ...], before: SubmissionPlan | None
    ) -> SubmissionPlan:
        """Plan one more submission; `after` replaces its dependencies unless it is ()."""
        requested = replace(self.requested, after=after) if after else self.requested
        scripts = session.store.backend.scripts
        if not requested.script.startswith(b"#!"):
            self._require_shell_script(scripts.reader())
        offers = Offers()
        if scripts.writer() is not None:
            await session.launches.queues.fetch()
            offers = await session.launches.queues.offers()
        planned = await plan_script(session.store, requested, offers)
        return replace(planned, shown=requested.script.decode("utf-8", "replace"))

    def _require_shell_script(self, reader: ScriptReader) -> None:
        """Raise UsageError for a file without #! that the scheduler or a shell would not accept."""
        name = self.path or self.requested.name
        for finding in reader.lint_script(self.requested.script, Offers()):
            if finding.severity == "error" and finding.field in ("", "line 1"):
                if finding.text.startswith("its first line"):
                    raise _no_interpreter(name, finding.next_step)
                raise UsageError(f"{name}: {finding.text}", finding.next_step)

    @property
    def recent(self) -> tuple[str, str, Literal["request", "script"]] | None:
        """(path, text, kind) among the recent submissions; None without a path."""
        text = self.requested.script.decode("utf-8", "surrogateescape")
        return (self.path, text, "script") if self.path else None


class SubmissionRun:
    """Submitter that prints each command before it runs and each outcome as it comes.

    `planned` is the last plan.
    """

    def __init__(
        self,
        submission: RequestSubmission | ScriptSubmission,
        session: ClusterSession,
        *,
        prints: bool,
    ) -> None:
        self._submission = submission
        self._session = session
        self._prints = prints
        self._notes: set[str] = set()
        self._is_remembered = False
        self.planned: SubmissionPlan | None = None

    async def outcomes(self, count: int) -> tuple[Outcome, ...]:
        """Submit `count` jobs; return the outcome of each attempt."""
        launches = self._session.launches
        actions = self._session.actions
        try:
            if count > 1:
                outcomes = await launches.submit_chain(
                    self._plan, actions, count, self._report_result, print_notes
                )
                print_notes(format_chain(outcomes, count))
                return outcomes
            result = await launches.submit(await self._plan(()), actions, print_notes)
            print_notes(result.journal_problem)
            await self._report_result(0, result)
        except asyncio.CancelledError:
            if self.planned is not None and self.planned.folder:
                print_notes(
                    f"interrupted; staged files are in {self.planned.folder}, and the journal "
                    "shows what was sent"
                )
            raise
        return (result.outcome,)

    async def _plan(self, after: tuple[str, ...]) -> SubmissionPlan:
        planned = await self._submission.plan(self._session, after, self.planned)
        self.planned = planned
        # Notes that all links of a chain share are printed once.
        print_notes(*(note for note in planned.notes if note not in self._notes))
        self._notes.update(planned.notes)
        print_commands("submit", self._session.name, planned.plan)
        return planned

    async def _report_result(self, _link: int, result: SubmissionResult) -> None:
        number, message = _parts(result.outcome)
        if number and self._prints:
            print(visible(number), flush=True)
        print_notes(message, result.message)
        if result.outcome.done and not self._is_remembered:
            self._is_remembered = True
            await self._remember()

    async def _remember(self) -> None:
        """Store it among the recent submissions of the form."""
        from hpcdash.services.state.database import StateUnusable
        from hpcdash.services.state.recents import Recents

        folder = self._session.launches.state_folder
        recent = self._submission.recent
        if folder is None or recent is None:
            return
        store = self._session.store
        try:
            await asyncio.to_thread(
                Recents(folder).remember, store.name, *recent, store.clock.now()
            )
        except StateUnusable as error:
            print_notes(f"not saved as a recent submission: {error.message}")


def print_commands(verb: str, cluster: str, plan: Plan) -> None:
    """Print the commands of a plan to stderr before they run."""
    for command in plan.commands:
        print(f"{verb} on {visible(cluster)}: {visible(command.text)}", file=sys.stderr)


def _parts(outcome: Outcome) -> tuple[str, str]:
    """Return (the new job's ID or '', the other messages)."""
    if not outcome.done:
        return "", outcome.text
    return outcome.new_job, outcome.text.partition("; ")[2] if outcome.new_job else outcome.text


def submission_json(
    outcomes: Sequence[Outcome], planned: SubmissionPlan, chain: int
) -> dict[str, Any]:
    """Return the JSON of finished submissions, without the envelope."""
    jobs = [
        {"job_id": _parts(one)[0] or None, "done": one.done, "words": one.text} for one in outcomes
    ]
    answer: dict[str, Any] = dict(jobs[0])
    if chain > 1:
        answer["jobs"] = jobs
    elif planned.request is not None:
        is_refused = outcomes[0].done is False
        answer["folder"] = None if is_refused else planned.folder or None
    return answer


def _print_json(session: ClusterSession, answer: dict[str, Any]) -> None:
    print_json({**session.envelope(time.time()), **answer})


def print_dry(planned: SubmissionPlan, *, in_full: bool = False) -> None:
    """Print the commands of a plan, for a request as bash comments after its script.

    A script around commands is shortened to its description, unless `in_full`.
    """
    prefix = ""
    if planned.request is not None:
        print_text(f"{planned.shown}\n")
        prefix = "# "
    for command in planned.plan.commands:
        shown = shlex.join(without_env(command.argv)) if in_full else command.text
        print(f"{prefix}{visible(shown)}")
    sys.stdout.flush()


def _array(text: str | None) -> str:
    if not text:
        return ""
    try:
        return str(parse_tasks(text))
    except ValueError as error:
        raise UsageError(f"--array: {error}") from error


def _after(text: str | None) -> tuple[str, ...]:
    try:
        return parse_after(text or "")
    except ValueError as error:
        raise UsageError(f"--after: {error}") from error


def read_script(path: str, *, is_program: bool = True) -> bytes:
    """Read a script's bytes, '-' from stdin. Raises UsageError for content that is not a script.

    A program needs a first line with #!; another script is read by an interpreter.
    """
    try:
        content = _read_start(path, MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Check the path.") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise UsageError(
            f"{path}: more than {MAX_SCRIPT_BYTES >> 20} MiB; check that it is a batch script"
        )
    if is_program and not content.startswith(b"#!"):
        raise _no_interpreter(path)
    if content.startswith(b"#!") and b"\r\n" in content:
        line = content[: content.index(b"\r\n")].count(b"\n") + 1
        raise UsageError(
            f"{path}:{line}: DOS line endings (CRLF)", "Convert it: sed -i 's/\\r$//' SCRIPT"
        )
    return content


def _no_interpreter(path: str, next_step: str = "Start it with #!/bin/bash.") -> UsageError:
    return UsageError(f"{path}:1: the first line does not begin with #!", next_step)


def _read_start(path: str, most_bytes: int) -> bytes:
    """Read up to so many bytes of a file, '-' for stdin."""
    if path == _STDIN:
        return sys.stdin.buffer.read(most_bytes)
    with Path(path).open("rb") as stream:
        return stream.read(most_bytes)
