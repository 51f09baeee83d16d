"""Preview of the form: script, errors and warnings, estimated use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.script.call import format_call
from hpcdash.backends.submissions import Submission
from hpcdash.config.request import read_request, request_text
from hpcdash.domain.checkpoints import CheckpointPlan
from hpcdash.domain.demand import LintFinding, format_finding, join_sentences
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import Request
from hpcdash.domain.scripts import (
    Fold,
    ScriptLine,
    difference_lines,
    script_folds,
    script_lines,
    unified,
)
from hpcdash.domain.text import visible
from hpcdash.domain.units import DAY, HOUR, parse_duration
from hpcdash.errors import HpcdashError, UnreadableOutput, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import whole_file_query
from hpcdash.services.state.recents import Recent, Recents
from hpcdash.services.submit.form import (
    MISSING,
    Draft,
    ScriptReading,
    read_form,
    read_script_form,
    split_error,
)
from hpcdash.services.submit.form_fields import FIELDS, HERE, THERE
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.request_lint import format_resources, lint_request
from hpcdash.services.submit.submission import build_request

if TYPE_CHECKING:
    from hpcdash.config.watch_settings import SavesRule


# Slurm's own limit for a batch script (SchedulerParameters=max_script_size).
_MAX_BYTES = 4 << 20
# Placeholder of the uid that a launch gets when it is submitted.
_UID = "new"
_NO_COMMAND_YET = "# your command goes here"
EVERY = "saves_every"
TAKES = "save_takes"
# Unit of a number without a unit, as for `hpcdash checkpoints`.
_UNITS = {EVERY: HOUR, TAKES: 1}


class FormPreview(Struct, frozen=True):
    """Summary of a submission, with the faults that would refuse it.

    `problems` prevent it, `warnings` do not: text by field, '' for the whole. `saving` is the cost
    of its checkpoints in `run_seconds`, the time of all its consecutive jobs, None if unknown.
    `script` is what would be submitted, '' if unknown; `text` is what is stored: the request as
    TOML, or the script. `called` is the called function with its number of items, '' for none.
    """

    problems: Mapping[str, str] = {}
    warnings: Mapping[str, str] = {}
    asides: tuple[str, ...] = ()
    summary: str = ""
    script: str = ""
    lines: Sequence[ScriptLine] = ()
    folds: Sequence[Fold] = ()
    difference: Sequence[ScriptLine] = ()
    before: Recent | None = None
    text: str = ""
    request: Request | None = None
    as_it_is: ScriptReading | None = None
    links: int = 1
    # The requested queue, or the default.
    queue: str = ""
    saving: str = ""
    run_seconds: int | None = None
    called: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it could be submitted."""
        return not self.problems


class BatchFile:
    """The batch script that will be submitted unchanged.

    `content` is an error message if it is unreadable, None if no file is named. A file on the
    cluster is read once, until `forget`.
    """

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._location = ("", "")
        self.content: bytes | str | None = None

    def forget(self) -> None:
        self._location = ("", "")

    def needs_reading(self, texts: Mapping[str, str]) -> bool:
        """Whether it has to be read from the cluster."""
        file, where = _location(texts)
        return bool(file) and where != HERE and self._location != (file, where)

    async def read(self, texts: Mapping[str, str]) -> bytes | str | None:
        """Read the file that the form names."""
        file, where = _location(texts)
        if where != HERE and file and self._location == (file, where):
            return self.content
        try:
            if not file:
                self.content = None
            elif where == HERE:
                self.content = await asyncio.to_thread(_read_here, file)
            else:
                self.content = await _read_there(self._store, file)
        except HpcdashError as error:
            self.content = visible(error.message)
        self._location = (file, where)
        return self.content


def _read_here(path: str) -> bytes:
    """Read a script on this machine; `~` is the home. Raises UsageError."""
    try:
        file = Path(path).expanduser()
        if not file.is_file():
            problem = "is a folder" if file.is_dir() else "no such file on this machine"
            raise UsageError(f"{path}: {problem}")
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (RuntimeError, ValueError) as error:
        # The home of an unknown user, or a NUL.
        raise UsageError(f"{path}: not a valid path") from error
    if len(content) > _MAX_BYTES:
        raise UsageError(
            f"{path}: more than {_MAX_BYTES >> 20} MiB: check that it is a batch script"
        )
    return content


async def _read_there(store: ClusterStore, path: str) -> bytes:
    """Read a script on the cluster.

    Raises UsageError if it is unreadable, and the errors of an unreachable cluster.
    """
    await store.open()
    try:
        return await store.run_query(whole_file_query(_cluster_path(path), _MAX_BYTES))
    except UnreadableOutput as error:
        raise UsageError(f"{path}: {error.message} (on the cluster)") from error


def _cluster_path(path: str) -> str:
    """Return a path relative to the home, where commands on the cluster run."""
    return "." if path == "~" else path.removeprefix("~/")


class LastSubmitted:
    """The last submission of each name on one cluster, read once until the next submission."""

    def __init__(self, recents: Recents, cluster: str) -> None:
        self._recents = recents
        self._cluster = cluster
        self._known: dict[str, Recent | None] = {}

    def find(self, name: str) -> Recent | None:
        if name not in self._known:
            self._known[name] = self._recents.newest_recent(self._cluster, name)
        return self._known[name]

    def forget(self) -> None:
        self._known.clear()


def preview_request(
    draft: Draft, launches: Launches, offers: Offers, root: str, last: LastSubmitted
) -> FormPreview:
    """Preview the request that a draft makes, and its script."""
    backend = launches.store.backend
    site = launches.settings.site
    packs_nodes = launches.packs_nodes
    reading = read_form(draft, site)
    preview = FormPreview(dict(reading.problems), text=reading.text, links=reading.links)
    request = reading.request
    command_problem = reading.problems.get("command", "")
    if request is None and len(reading.problems) == 1 and command_problem.startswith(MISSING):
        # The rest of the request is shown with a placeholder.
        texts = {**draft.texts, "command": _NO_COMMAND_YET}
        request = read_form(replace(draft, texts=texts), site).request
    if request is None:
        problems = dict(reading.problems)
        _report_rest(draft, problems, launches, offers)
        return replace(preview, problems=problems)
    requested = request
    if not backend.submit.takes_requests:
        requested = add_queue_values(request, launches)
        preview = replace(
            preview, summary=format_resources(requested, offers, packs_nodes=packs_nodes)
        )
        if request.call is not None:
            preview = replace(preview, called=format_call(request.call, request.array))
    try:
        shown, script_warnings = _render(request, launches, root)
    except UsageError as error:
        return replace(preview, problems=_add_error(reading.problems, error))
    if backend.submit.takes_requests:
        preview = replace(preview, summary=request.name or "a job")
        findings = backend.submit.request_findings(request, offers)
    else:
        findings = lint_request(requested, offers, script_warnings, packs_nodes=packs_nodes)
        run_seconds = None
        if requested.limit_seconds is not None:
            # The time of a chain, or of an array of one task at a time, is that of all its jobs.
            array = requested.array
            tasks = array.count if array is not None and array.throttle == 1 else 1
            run_seconds = requested.limit_seconds * reading.links * tasks
        preview = replace(preview, queue=requested.queue, run_seconds=run_seconds)
    problems, warnings, asides = sorted_findings(findings, reading.problems)
    before = last.find(request.name)
    difference: Sequence[ScriptLine] = ()
    if before is not None and before.kind == "request":
        try:
            old, _ = _render(read_request(before.text, site=site), launches, root)
            difference = _difference(old, shown)
        except HpcdashError:
            before = None
    lines = script_lines(shown, backend.scripts.explain)
    return replace(
        preview,
        problems=problems,
        warnings=warnings,
        asides=asides,
        script=shown,
        lines=lines,
        folds=script_folds(shown, lines, backend.scripts.blocks()),
        difference=difference,
        before=before,
        text=request_text(request, site=site) or reading.text,
        request=reading.request,
    )


def _render(request: Request, launches: Launches, root: str) -> tuple[str, tuple[str, ...]]:
    """Return the script or other text that is submitted for a request, and warnings about it.

    Raises UsageError.
    """
    if launches.store.backend.submit.takes_requests:
        return build_request(launches.store, request).shown, ()
    script = launches.render(request, uid=_UID, root=root)
    return script.text, script.warnings


def _difference(old: str, new: str) -> Sequence[ScriptLine]:
    return difference_lines(unified(old, new, ("last submission", "now")))


def _location(texts: Mapping[str, str]) -> tuple[str, str]:
    return texts.get("file", "").strip(), texts.get("file_where", "").strip() or HERE


def add_queue_values(request: Request, launches: Launches) -> Request:
    """Return the request with its queue, and the site's values for that queue."""
    from hpcdash.config.queue_defaults import with_queue_defaults

    if request.is_task:
        from hpcdash.services.share.submission import with_pool

        # Its errors are shown for the script.
        with suppress(UsageError):
            request = with_pool(request, launches.pools)
    return with_queue_defaults(request, launches.settings.queues, launches.queues.pools())


def preview_script(
    draft: Draft,
    launches: Launches,
    offers: Offers,
    content: bytes | str | None,
    last: LastSubmitted,
) -> FormPreview:
    """Preview an unchanged batch script with its options; `content` is as in BatchFile."""
    backend = launches.store.backend
    reader = backend.scripts.reader()
    reading = read_script_form(draft, reader)
    problems = dict(reading.problems)
    if isinstance(content, str):
        problems.setdefault("file", content)
    if content is None or isinstance(content, str):
        return FormPreview(problems, as_it_is=reading, links=reading.links)
    notes: tuple[str, ...] = ()
    try:
        notes = backend.submit.submission(script_submission(reading, content)).notes
    except UsageError as error:
        problems = _add_error(problems, error, "extra_args")
    findings = list(reader.lint_script(content, offers, reading.options))
    if reading.options:
        # An option may override a line with an error: the scheduler decides.
        for place, finding in enumerate(findings):
            if finding.field == "extra_args" or finding.field.startswith("line "):
                findings[place] = replace(finding, severity="warning")
    problems, warnings, asides = sorted_findings(findings, problems, "file")
    text = content.decode("utf-8", "surrogateescape")
    lines = script_lines(text, backend.scripts.explain)
    line_notes = {finding.field: finding.text for finding in findings}
    for place, line in enumerate(lines):
        if note := line_notes.get(f"line {line.number}"):
            lines[place] = replace(line, note=f"! {visible(note)}")
    before = last.find(reading.file if reading.is_here else f"{THERE}:{reading.file}")
    overrides = list(reading.options)
    if reading.array:
        overrides.append(f"array {reading.array}")
    summary = "the unchanged script"
    if overrides:
        summary += f", with {' '.join(overrides)}"
    queues = reader.script_demand(content, reading.options).queues
    return FormPreview(
        problems=problems,
        warnings=warnings,
        asides=(*asides, *notes),
        summary=summary,
        script=text,
        lines=lines,
        folds=script_folds(text, lines, backend.scripts.blocks()),
        difference=() if before is None else _difference(before.text, text),
        before=before,
        text=text,
        as_it_is=reading,
        links=reading.links,
        queue=queues[0] if queues else "",
    )


def script_submission(
    reading: ScriptReading, content: bytes, after: tuple[str, ...] | None = None
) -> Submission:
    """Return the submission of a script; `after` replaces the form's dependencies."""
    return Submission(
        script=content,
        name=reading.file.rpartition("/")[2] or reading.file,
        options=reading.options,
        arguments=reading.arguments,
        array=reading.array,
        after=reading.after if after is None else after,
        held=reading.held,
        file="" if reading.is_here else _cluster_path(reading.file),
    )


def sorted_findings(
    findings: Sequence[LintFinding], problems: Mapping[str, str], home: str = ""
) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """Return problems and warnings by field, and other warnings as sentences.

    An error without a field of the form is a problem of the field `home`.
    """
    errors = dict(problems)
    warnings: dict[str, str] = {}
    asides: list[str] = []
    for finding in findings:
        name = finding.field if finding.field in FIELDS else ""
        text = join_sentences(finding.text, finding.next_step) if name else format_finding(finding)
        if finding.severity == "error":
            errors.setdefault(name or home, text)
        elif name:
            warnings.setdefault(name, text)
        else:
            asides.append(text)
    return errors, warnings, tuple(asides)


def _add_error(problems: Mapping[str, str], error: UsageError, home: str = "") -> dict[str, str]:
    name, text = split_error(error.message)
    name = name or home
    return {**problems, name: problems.get(name) or join_sentences(text, error.next_step)}


def _report_rest(
    draft: Draft, problems: dict[str, str], launches: Launches, offers: Offers
) -> None:
    """Add conflicts with the cluster for the readable fields while others are not readable."""
    tables = {name.partition(".")[0] for name in problems}
    texts = {}
    for name, text in draft.texts.items():
        if name.partition(".")[0] not in tables:
            texts[name] = text
    if not texts.get("script", "").strip():
        texts["command"] = _NO_COMMAND_YET
    request = read_form(Draft(texts), launches.settings.site).request
    if request is None:
        return
    request = add_queue_values(request, launches)
    for finding in lint_request(request, offers, packs_nodes=launches.packs_nodes):
        if finding.severity == "error" and texts.get(finding.field, "").strip():
            text = join_sentences(finding.text, finding.next_step)
            problems.setdefault(finding.field, text)


def with_saving(
    preview: FormPreview, texts: Mapping[str, str], rules: Iterable[SavesRule] = ()
) -> FormPreview:
    """Return the preview with a sentence on the cost of saving in the requested time.

    Interval and duration of saves are the typed ones, else those of [[watch.saves]] for the job's
    name. An invalid value is only a warning beside its field, as it is not submitted.
    """
    warnings = dict(preview.warnings)
    figures: dict[str, float] = {}
    for name, unit in _UNITS.items():
        if not (text := texts.get(name, "").strip()):
            continue
        try:
            seconds = parse_duration(text, bare_unit_seconds=unit)
        except ValueError as error:
            warnings[name] = str(error)
            continue
        if seconds is None:
            warnings[name] = f"{text} is not a finite duration"
        else:
            figures[name] = float(seconds)
    title = texts.get("name", "").strip()
    is_typed = any(texts.get(name, "").strip() for name in _UNITS)
    if title and not is_typed:
        for rule in rules:
            if rule.selector.name in ("", title):
                figures = {EVERY: rule.interval_seconds, TAKES: rule.save_seconds}
                break
    saving = ""
    if preview.run_seconds and figures.keys() == _UNITS.keys():
        try:
            saving = CheckpointPlan(preview.run_seconds / DAY, figures[EVERY], figures[TAKES]).text
        except UsageError as error:
            warnings[TAKES] = error.message
    return replace(preview, warnings=warnings, saving=saving)
