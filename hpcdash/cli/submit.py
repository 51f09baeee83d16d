"""`hpcdash submit`: submits a batch script or a request, shows the commands first, prints the new
job's number.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.script.allocation import Waiting
from hpcdash.backends.script.body import has_interpreter
from hpcdash.backends.submissions import Submission
from hpcdash.cli.build import chosen_site
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_json, print_text
from hpcdash.config.document import decode, shown_path
from hpcdash.config.locate import find_line, key_lines
from hpcdash.config.problems import ConfigProblems, Problem
from hpcdash.config.read import load_settings
from hpcdash.config.request import RequestProblems, read_request, request_text
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
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.checks import missing_log_folders
from hpcdash.services.submit.launches import Launches, LaunchPlan
from hpcdash.services.submit.plan import (
    RequestPlan,
    SubmissionPlan,
    after_in_full,
    plan_request,
    plan_submission,
    refuse_large_array,
)
from hpcdash.services.submit.recovery import reconcile

# A command may be a whole script, and sbatch takes one of 4 MiB.
MAX_REQUEST_BYTES = 4 << 20
_STDIN = "-"
# Start of the message on an unsupported request, `name: …`, or on a person's own option, `--nodes
# is not for extra_args`.
_KEY_IN_WORDS = re.compile(r"([a-z_]+): ")
_ARGUMENTS_IN_WORDS = re.compile(r" (extra_args)\b")
# Slurm's own limit for a batch script (SchedulerParameters=max_script_size).
MAX_SCRIPT_BYTES = 4 << 20
REQUEST_ENDING = ".toml"


class RequestSource(Struct, frozen=True):
    """A request, its text as it was written, and its script on this machine where it names one by a
    relative path.
    """

    request: Request
    text: str
    script: Path | None = None
    file: str = ""
    folder: Path = field(default_factory=Path.cwd)

    def placed(self, error: UsageError) -> HpcdashError:
        """The same error at the file's line of the key that it names; as it is where the file does
        not have that.
        """
        word = _KEY_IN_WORDS.match(error.message) or _ARGUMENTS_IN_WORDS.search(error.message)
        key = word[1] if word else ""
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


def read_source(path: str, *, site: Site, user: str | None) -> RequestSource:
    """Read the request in a file, '-' for stdin; raises ConfigError with file, line and key.

    A relative `script` is searched beside the file (with stdin: in the current folder) and has to
    exist there; an absolute one is on the cluster.
    """
    named = "stdin" if path == _STDIN else shown_path(Path(path))
    try:
        text = decode(_bytes(path, named), named)
    except ConfigProblems as error:
        raise RequestProblems(named, error.problems) from None
    request = read_request(text, named, site=site, user=user)
    folder = Path.cwd() if path == _STDIN else Path(path).absolute().parent
    if not request.script or request.script.startswith("/"):
        return RequestSource(request, text, file=named, folder=folder)
    script = Path(os.path.abspath(folder / request.script))
    if not script.is_file():
        what = "is a folder" if script.is_dir() else "does not exist"
        message = f"{shown_path(script)} {what}; the path is relative to this file's folder"
        raise RequestProblems(
            named, [Problem(find_line(key_lines(text), ("script",)), "script", message)]
        )
    return RequestSource(request, text, script, named, folder)


def _bytes(path: str, named: str) -> bytes:
    try:
        if path == _STDIN:
            content = sys.stdin.buffer.read(MAX_REQUEST_BYTES + 1)
        else:
            with Path(path).open("rb") as stream:
                content = stream.read(MAX_REQUEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", "Check the path.", file=named
        ) from error
    if len(content) > MAX_REQUEST_BYTES:
        raise ConfigError(
            f"more than {MAX_REQUEST_BYTES >> 20} MiB: check that it is a request file", file=named
        )
    return content


class RequestSubmitting(Struct):
    """Implement hpcdash.cli.submit.Submitting.

    `files` (name → content) are staged, `notes` printed.
    """

    request: Request
    text: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # None where the command line gives some of it.
    source: RequestSource | None = None
    # Set for an allocation, which waits for runs.
    waiting: Waiting | None = None
    # Base folder of its `files`.
    folder: Path | None = None
    planned: LaunchPlan | RequestPlan | None = None

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
    ) -> RequestSubmitting:
        """Read a submission from a *.toml file.

        Raises ConfigError and UsageError for errors in it.
        """
        site = chosen_site(common)
        try:
            source = read_source(path, site=site.launch.site, user=site.cluster.user)
        except RequestProblems as error:
            error.next_step += " Nothing was submitted."
            raise
        request, files = source.request, {}
        notes: tuple[str, ...] = ()
        script = source.script or (Path(request.script) if request.script else None)
        if script is not None and script.is_file():
            files[script.name] = read_script(str(script), is_program=not has_interpreter(request))
        elif script is not None:
            notes = (f"{script} is not on this machine: using the cluster's file",)
        changes: dict[str, Any] = {}
        if array:
            changes["array"] = parse_tasks(array)
        if after:
            changes["after"] = after
        if held:
            changes["hold"] = True
        if options:
            changes["extra_args"] = (*request.extra_args, *_one_each(options))
        text = source.text
        if changes:
            request = replace(request, **changes, said=request.said | changes.keys())
            text = request_text(request, site=site.launch.site)
        return cls(request, text, files, notes, None if options else source, folder=source.folder)

    async def plan(self, session: ClusterSession, after: tuple[str, ...]) -> SubmissionPlan:
        # A submission that is not planned after all must not count as the one before it.
        before, self.planned = self.planned, None
        request, text = self.request, self.text
        try:
            if session.store.backend.submit.takes_requests and self.waiting is None:
                requested = replace(request, after=after or request.after)
                most_bytes = require_launches(session).settings.files_limit
                self.planned = await plan_request(
                    session.store, requested, self.folder, most_bytes=most_bytes
                )
                return replace(self.planned, notes=(*self.notes, *self.planned.notes))
            if after:
                # The links of a chain have one name, by which it is found whole.
                name = request.name or (
                    ""
                    if before is None or isinstance(before, RequestPlan)
                    else before.script.job_name
                )
                request = replace(request, after=after, name=name)
                text = request_text(request, site=require_launches(session).settings.site)
            self.planned = await require_launches(session).plan(
                request, text, self.files, self.folder, waiting=self.waiting
            )
        except UsageError as error:
            raise error if self.source is None else self.source.placed(error) from None
        found = await require_launches(session).findings(self.planned)
        return replace(
            self.planned, notes=(*self.notes, *map(format_finding, found), *self.planned.notes)
        )

    async def conclude(self, session: ClusterSession, outcome: Outcome) -> str:
        if not isinstance(self.planned, LaunchPlan):
            return ""
        return await require_launches(session).conclude(self.planned, outcome)

    def shown(self) -> dict[str, Any]:
        if isinstance(self.planned, LaunchPlan):
            return {"script": self.planned.script.text, "folder": self.planned.place.folder}
        return {"script": self.planned.shown, "folder": None} if self.planned is not None else {}

    def recent(self) -> tuple[str, str, Literal["request", "script"]] | None:
        return self.request.name, self.text, "request"


def require_launches(session: ClusterSession) -> Launches:
    """Raises UsageError where there are none."""
    if session.launches is None:
        raise UsageError(
            "no cluster given to launch the request on",
            "Name a cluster: --cluster NAME or --ssh HOST",
        )
    return session.launches


def _one_each(parts: Sequence[str]) -> list[str]:
    """Options with the values that follow them: `--nice 3` is one."""
    options: list[list[str]] = []
    for word in parts:
        if word.startswith("-") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    return [shlex.join(option) for option in options]


class Submitting(Protocol):
    """Protocol of a submission, made once or as the links of a chain."""

    async def plan(self, session: ClusterSession, after: tuple[str, ...]) -> SubmissionPlan:
        """Plan one more submission, which waits for `after` unless dependencies were given."""
        ...

    async def conclude(self, session: ClusterSession, outcome: Outcome) -> str:
        """Conclude the last planned submission with its outcome; return a further message."""
        ...

    def shown(self) -> dict[str, Any]:
        """The last planned one for machines, besides its commands: its script, and its folder where
        it has one.
        """
        ...

    def recent(self) -> tuple[str, str, Literal["request", "script"]] | None:
        """(name, text, kind) among the recent submissions: of a request, or the path and text of a
        script.

        None for what could not be found again.
        """
        ...


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
) -> None:
    """Submit a script, or the request in a file *.toml.

    Ends the process with 1 where it was refused, with 3 where the scheduler did not respond, or the
    outcome is unknown.
    """
    settings = load_settings(common.config)
    if (common.read_only or settings.read_only) and not dry_run:
        raise UsageError("submit is refused: hpcdash is read-only", "--dry-run shows the command.")
    options, own = _parted(arguments)
    requested: dict[str, Any] = {"array": _array(array), "after": _after(after), "held": hold}
    submitting: Submitting
    is_request = script.endswith(REQUEST_ENDING)
    if is_request:
        if own:
            raise UsageError(
                "a request's script takes no arguments", "Put them in the request's command."
            )
        submitting = RequestSubmitting.read(common, script, options=options, **requested)
        if chain > 1 and submitting.request.is_task:
            raise UsageError(
                "--chain: a task of a shared pool goes on by itself until it ends",
                "Leave --chain out.",
            )
    else:
        name = Path(script).name if script != "-" else "stdin"
        path = "" if script == "-" else str(Path(script).absolute())
        content = read_script(script, is_program=False)
        submitting = _ScriptSubmitting(Submission(content, name, options, own, **requested), path)

    async def work(session: ClusterSession) -> tuple[tuple[Outcome, ...], ClusterSession]:
        await session.store.open(force=True)
        print_sentences(_format_unsettled(session))
        if dry_run:
            planned = await submitting.plan(session, ())
            print_sentences(*planned.notes)
            if chain > 1:
                print_sentences(
                    f"the first of a chain of {chain}: each of the others would wait for the end "
                    f"of the one before it"
                )
            _print_dry(
                planned,
                submitting.shown(),
                session,
                form=form,
                is_request=is_request,
                in_full=common.debug,
            )
            return (), session
        return await SubmissionRun(submitting, session, prints=form != "json").outcomes(
            chain
        ), session

    outcomes, session = with_session(common, work)
    if dry_run:
        return
    if form == "json":
        _print_json(session, _answer(outcomes, submitting.shown(), chain))
    sys.stdout.flush()
    last = outcomes[-1]
    if not last.done:
        sys.exit(EXIT_UNREACHABLE if last.done is None or last.is_unreachable else EXIT_REFUSED)


def _format_unsettled(session: ClusterSession) -> str:
    """Return a warning on submissions with an unknown outcome; '' for none.

    The next submission could repeat one of them.
    """
    from hpcdash.services.submit.recovery import unsettled_today

    entries = unsettled_today(session.store, session.actions.journal)
    names = [name for one in entries for name in one.job_ids]
    if not names:
        return ""
    return (
        f"the outcome of submitting {', '.join(names[:3])} is unknown; hpcdash journal "
        f"--settle looks for it"
    )


class _ScriptSubmitting:
    """A script of this machine; `path` '' for one from stdin."""

    def __init__(self, requested: Submission, path: str) -> None:
        self._requested = requested
        self._path = path

    async def plan(self, session: ClusterSession, after: tuple[str, ...]) -> SubmissionPlan:
        requested = replace(self._requested, after=after) if after else self._requested
        await refuse_large_array(session.store, requested)
        if not requested.script.startswith(b"#!"):
            self._require_shell_script(session)
        full = replace(requested, after=await after_in_full(session.store, requested.after))
        planned = plan_submission(session.store, full, await _known_offers(session))
        missing = await missing_log_folders(session.store, full)
        return replace(planned, notes=(*map(format_finding, missing), *planned.notes))

    def _require_shell_script(self, session: ClusterSession) -> None:
        """Raises UsageError for a file without #! that is no text of a shell's, and where the
        scheduler takes none.
        """
        name = self._path or self._requested.name
        for one in session.store.backend.scripts.reader().lint_script(
            self._requested.script, Offers()
        ):
            if one.severity == "error" and one.field in ("", "line 1"):
                is_plain = one.words.startswith("its first line")
                raise (
                    _no_interpreter(name, one.next_step)
                    if is_plain
                    else UsageError(f"{name}: {one.words}", one.next_step)
                )

    async def conclude(self, session: ClusterSession, outcome: Outcome) -> str:
        return ""

    def shown(self) -> dict[str, Any]:
        return {"script": self._requested.script.decode("utf-8", "replace")}

    def recent(self) -> tuple[str, str, Literal["request", "script"]] | None:
        text = self._requested.script.decode("utf-8", "surrogateescape")
        return (self._path, text, "script") if self._path else None


async def _known_offers(session: ClusterSession) -> Offers:
    """Return the resources that the queues offer, as far as they are known."""
    if session.launches is None or session.store.backend.scripts.writer() is None:
        return Offers()
    await session.launches.queues.learn()
    return await session.launches.queues.offers()


class SubmissionRun:
    """Submitter that prints each command before it runs and each outcome as it comes."""

    def __init__(self, submitting: Submitting, session: ClusterSession, *, prints: bool) -> None:
        self._submitting = submitting
        self._session = session
        self._prints = prints
        self._last: Outcome | None = None
        self._notes: set[str] = set()
        self._is_remembered = False

    async def outcomes(self, count: int) -> tuple[Outcome, ...]:
        """One for each that was tried."""
        try:
            return await self._outcomes(count)
        except asyncio.CancelledError:
            if folder := self._submitting.shown().get("folder"):
                print_sentences(
                    f"interrupted; staged files are in {folder}, and the journal shows what was "
                    f"sent"
                )
            raise

    async def _outcomes(self, count: int) -> tuple[Outcome, ...]:
        if count == 1:
            planned = await self._plan(())
            report = await self._session.actions.run(planned.plan, on_message=print_sentences)
            print_sentences(report.journal_problem)
            found = await reconcile(self._session.store, planned, report, print_sentences)
            self._report_outcome(0, found[-1])
        else:
            from hpcdash.services.chains import format_chain, submit_chain

            found = await submit_chain(
                self._plan,
                self._session.actions,
                self._session.store,
                count,
                self._report_outcome,
                print_sentences,
            )
            print_sentences(format_chain(found, count))
        await self._conclude()
        return found

    async def _plan(self, after: tuple[str, ...]) -> SubmissionPlan:
        await self._conclude()
        planned = await self._submitting.plan(self._session, after)
        # What is odd about each link of a chain is said once.
        print_sentences(*(note for note in planned.notes if note not in self._notes))
        self._notes.update(planned.notes)
        for command in planned.plan.commands:
            print(
                f"submit on {visible(self._session.name)}: {visible(command.words)}",
                file=sys.stderr,
            )
        return planned

    def _report_outcome(self, _link: int, outcome: Outcome) -> None:
        self._last = outcome
        number, message = _parts(outcome)
        if number and self._prints:
            print(visible(number), flush=True)
        print_sentences(message)

    async def _conclude(self) -> None:
        if self._last is not None:
            outcome, self._last = self._last, None
            print_sentences(await self._submitting.conclude(self._session, outcome))
            if outcome.done and not self._is_remembered:
                self._is_remembered = True
                print_sentences(await self._remember())

    async def _remember(self) -> str:
        """Store it among the templates of the form, as it was submitted.

        Return an error message.
        """
        from hpcdash.services.state.database import StateUnusable
        from hpcdash.services.state.recents import Recents

        launches, recent = self._session.launches, self._submitting.recent()
        if launches is None or launches.state_folder is None or recent is None:
            return ""
        recents, store = Recents(launches.state_folder), self._session.store
        try:
            await asyncio.to_thread(recents.remember, store.name, *recent, store.clock.now())
        except StateUnusable as error:
            return f"it was not saved as a recent submission: {error.message}"
        return ""


def _parts(outcome: Outcome) -> tuple[str, str]:
    """Return (the new job's ID or '', the other messages)."""
    if not outcome.done:
        return "", outcome.words
    return outcome.new_job, outcome.words.partition("; ")[2] if outcome.new_job else outcome.words


def print_sentences(*sentences: str) -> None:
    """Each on a line of stderr; '' is none."""
    for text in sentences:
        if text:
            print(f"hpcdash: {visible(text)}", file=sys.stderr)


def _answer(outcomes: Sequence[Outcome], shown: dict[str, Any], chain: int) -> dict[str, Any]:
    first = outcomes[0]
    answer: dict[str, Any] = {
        "job_id": _parts(first)[0] or None,
        "done": first.done,
        "words": first.words,
    }
    if "folder" in shown:
        answer["folder"] = shown["folder"] if first.done is not False else None
    if chain > 1:
        answer["jobs"] = [
            {"job_id": _parts(one)[0] or None, "done": one.done, "words": one.words}
            for one in outcomes
        ]
        answer.pop("folder", None)
    return answer


def _print_json(session: ClusterSession, answer: dict[str, Any]) -> None:
    print_json({"schema": 1, **session.envelope(time.time()), **answer})


def _print_dry(
    planned: SubmissionPlan,
    shown: dict[str, Any],
    session: ClusterSession,
    *,
    form: str,
    is_request: bool,
    in_full: bool,
) -> None:
    """Print what would be run: of a request its script, then the commands as bash comments.

    For people a script around commands is shortened to its description, unless `in_full`.
    """
    commands = [without_env(command.argv) for command in planned.plan.commands]
    if form == "json":
        answer = {
            "job_id": None,
            "done": None,
            "words": "nothing was submitted",
            **shown,
            "commands": commands,
        }
        _print_json(session, answer)
    elif is_request:
        print_text(shown["script"] + "\n")
        for command, parts in zip(planned.plan.commands, commands, strict=True):
            shown_command = shlex.join(parts) if in_full else command.words
            print(f"# {visible(shown_command)}")
    else:
        print(visible(shlex.join(commands[0]) if in_full else planned.plan.commands[0].words))
    sys.stdout.flush()


def _parted(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the scheduler's options, the script's own arguments): options first, the rest after another
    `--`.
    """
    parts = list(arguments)
    if "--" in parts:
        at = parts.index("--")
        return tuple(parts[:at]), tuple(parts[at + 1 :])
    return tuple(parts), ()


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
    """Read a script's bytes, '-' from stdin; raises UsageError for content that is no script.

    A script that is no program is read by another program, and needs no first line of its own.
    """
    try:
        content = sys.stdin.buffer.read(MAX_SCRIPT_BYTES + 1) if path == "-" else _file(Path(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Check the path.") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise UsageError(
            f"{path}: more than {MAX_SCRIPT_BYTES >> 20} MiB: check that it is a batch script"
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


def _file(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(MAX_SCRIPT_BYTES + 1)
