"""Preview of the form: script, errors and warnings, estimated use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.script.call import format_call
from hpcdash.backends.submissions import Submission
from hpcdash.config.request import read_request, request_text
from hpcdash.domain.checkpoints import CheckpointPlan
from hpcdash.domain.demand import LintFinding
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
EVERY, TAKES = "saves_every", "save_takes"
# Unit of a number without a unit, as for `hpcdash checkpoints`.
_UNITS = {EVERY: HOUR, TAKES: 1}


class FormPreview(Struct, frozen=True):
    """Summary of a submission, with the faults that would refuse it.

    `problems` prevent it, `warnings` do not: text by field, '' for the whole. `saving` is the cost
    of its checkpoints in `run_seconds`: its time and that of all that come one after another, None
    where that is unknown. `script` is what would be submitted, '' where that is unknown; `text` is
    what is stored of it: the request as TOML, or the script. `called`: the function that is called,
    with the number of items, '' for none.
    """

    problems: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
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
    # Its queue: the named one, or the default where none is named.
    queue: str = ""
    saving: str = ""
    run_seconds: int | None = None
    called: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it could be submitted."""
        return not self.problems


class BatchFile:
    """The batch script that is to be submitted as it is.

    `content` is a complaint where it cannot be read, None: none.

    One on the cluster is read once, until it is forgotten.
    """

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._of = ("", "")
        self.content: bytes | str | None = None

    def forget(self) -> None:
        self._of = ("", "")

    def needs_reading(self, texts: Mapping[str, str]) -> bool:
        """Whether it has to be read from the cluster."""
        file, where = _named(texts)
        return bool(file) and where != HERE and self._of != (file, where)

    async def read(self, texts: Mapping[str, str]) -> bytes | str | None:
        """Read the file that the form names."""
        file, where = _named(texts)
        if where != HERE and file and self._of == (file, where):
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
        self._of = (file, where)
        return self.content


def _read_here(path: str) -> bytes:
    """A script of this machine, `~` for the home. Raises UsageError."""
    try:
        file = Path(path).expanduser()
        if not file.is_file():
            what = "a folder" if file.is_dir() else "no such file on this machine"
            raise UsageError(f"{path}: {what}")
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (RuntimeError, ValueError) as error:
        # The home of nobody, or a NUL.
        raise UsageError(f"{path}: no path") from error
    if len(content) > _MAX_BYTES:
        raise UsageError(
            f"{path}: more than {_MAX_BYTES >> 20} MiB: check that it is a batch script"
        )
    return content


async def _read_there(store: ClusterStore, path: str) -> bytes:
    """A script of the cluster.

    Raises UsageError where it cannot be read, and what keeps the cluster from answering.
    """
    await store.open()
    try:
        return await store.run_query(whole_file_query(_path_there(path), _MAX_BYTES))
    except UnreadableOutput as error:
        raise UsageError(f"{path}: {error.message} (on the cluster)") from error


def _path_there(path: str) -> str:
    """A path as commands on the cluster take it, which run in the home."""
    return "." if path == "~" else path.removeprefix("~/")


class LastSubmitted:
    """The last submission of each name on one cluster; the files are read once for a name, until
    one more is made.
    """

    def __init__(self, recents: Recents, cluster: str) -> None:
        self._recents = recents
        self._cluster = cluster
        self._known: dict[str, Recent | None] = {}

    def of(self, name: str) -> Recent | None:
        if name not in self._known:
            self._known[name] = self._recents.newest_recent(self._cluster, name)
        return self._known[name]

    def forget(self) -> None:
        self._known.clear()


def preview_request(
    draft: Draft, launches: Launches, offers: Offers, root: str, last: LastSubmitted
) -> FormPreview:
    """The request that a draft makes, and its script."""
    store = launches.store
    site = launches.settings.site
    packs_nodes = launches.packs_nodes
    reading = read_form(draft, site)
    problems = dict(reading.problems)
    request = reading.request
    if request is None and set(problems) == {"command"} and problems["command"].startswith(MISSING):
        # The rest of the request is still shown.
        request = read_form(
            replace(draft, texts={**draft.texts, "command": _NO_COMMAND_YET}), site
        ).request
    if request is None:
        _report_rest(draft, problems, launches, offers)
        return FormPreview(problems, text=reading.text, links=reading.links)
    if store.backend.submit.takes_requests:
        requested = request
        summary = ""
        called = ""
    else:
        requested = in_its_queue(request, launches)
        summary = format_resources(requested, offers, packs_nodes=packs_nodes)
        called = format_call(request.call, request.array) if request.call is not None else ""
    try:
        shown, script_warnings = _render(request, launches, root)
    except UsageError as error:
        _complain(problems, error)
        return FormPreview(
            problems, summary=summary, text=reading.text, links=reading.links, called=called
        )
    if store.backend.submit.takes_requests:
        summary = request.name or "a job"
        findings = store.backend.submit.request_findings(request, offers)
        queue = ""
        run_seconds = None
    else:
        findings = lint_request(requested, offers, script_warnings, packs_nodes=packs_nodes)
        queue = requested.queue
        run_seconds = _run_seconds(requested, reading.links)
    problems, warnings, asides = sorted_findings(findings, problems)
    before = last.of(request.name)
    difference: Sequence[ScriptLine] = ()
    if before is not None and before.kind == "request":
        try:
            old, _ = _render(read_request(before.text, site=site), launches, root)
            difference = _difference(old, shown)
        except HpcdashError:
            before = None
    lines = script_lines(shown, store.backend.scripts.explain)
    return FormPreview(
        problems,
        warnings,
        asides,
        summary,
        shown,
        lines,
        script_folds(shown, lines, store.backend.scripts.blocks()),
        difference,
        before,
        request_text(request, site=site) or reading.text,
        request if reading.request is not None else None,
        links=reading.links,
        queue=queue,
        run_seconds=run_seconds,
        called=called,
    )


def _render(request: Request, launches: Launches, root: str) -> tuple[str, tuple[str, ...]]:
    """Return what a scheduler is handed for a request, as text, and warnings about it.

    Raises UsageError.
    """
    if launches.store.backend.submit.takes_requests:
        return build_request(launches.store, request).shown, ()
    script = launches.render(request, uid=_UID, root=root)
    return script.text, script.warnings


def _difference(old: str, new: str) -> Sequence[ScriptLine]:
    return difference_lines(unified(old, new, ("last submission", "now")))


def _run_seconds(request: Request, links: int) -> int | None:
    """A job's time, of a chain or of an array one at a time that of all together."""
    array = request.array
    tasks = array.count if array is not None and array.throttle == 1 else 1
    return None if request.limit_seconds is None else request.limit_seconds * links * tasks


def _named(texts: Mapping[str, str]) -> tuple[str, str]:
    return texts.get("file", "").strip(), texts.get("file_where", "").strip() or HERE


def in_its_queue(request: Request, launches: Launches) -> Request:
    """Return the request as it will be submitted: in a queue, with the site's values for that."""
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
    """Preview a batch script as it is, with its options; `content` is text if it is unreadable."""
    backend = launches.store.backend
    reader = backend.scripts.reader()
    reading = read_script_form(draft, reader)
    problems = dict(reading.problems)
    if isinstance(content, str):
        problems.setdefault("file", content)
    if content is None or isinstance(content, str):
        return FormPreview(problems, as_it_is=reading, links=reading.links)
    try:
        handover = backend.submit.submission(script_submission(reading, content))
        messages = handover.notes
    except UsageError as error:
        _complain(problems, error, "extra_args")
        messages = ()
    findings = reader.lint_script(content, offers, reading.options)
    queues = reader.script_demand(content, reading.options).queues
    if reading.options:
        # An option over a line of the script may fix the error: the scheduler decides.
        findings = tuple(
            replace(one, severity="warning") if _has_line(one) or one.field == "extra_args" else one
            for one in findings
        )
    problems, warnings, asides = sorted_findings(findings, problems, "file")
    text = content.decode("utf-8", "surrogateescape")
    lines = _with_notes(script_lines(text, backend.scripts.explain), findings)
    before = last.of(reading.file if reading.is_here else f"{THERE}:{reading.file}")
    difference: Sequence[ScriptLine] = ()
    if before is not None:
        difference = _difference(before.text, text)
    over = " ".join((*reading.options, *([f"array {reading.array}"] if reading.array else [])))
    message = f"the unchanged script{', over it ' + over if over else ''}"
    return FormPreview(
        problems,
        warnings,
        (*asides, *messages),
        message,
        text,
        lines,
        script_folds(text, lines, backend.scripts.blocks()),
        difference,
        before,
        text,
        None,
        reading,
        reading.links,
        queues[0] if queues else "",
    )


def script_submission(
    reading: ScriptReading, content: bytes, after: tuple[str, ...] | None = None
) -> Submission:
    """Return the submission of a script; `after` replaces the jobs that it was to wait for."""
    return Submission(
        script=content,
        name=reading.file.rpartition("/")[2] or reading.file,
        options=reading.options,
        arguments=reading.arguments,
        array=reading.array,
        after=reading.after if after is None else after,
        held=reading.held,
        file="" if reading.is_here else _path_there(reading.file),
    )


def sorted_findings(
    findings: Sequence[LintFinding], problems: Mapping[str, str], home: str = ""
) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """(problems, warnings, asides): those of a field beside it, errors of none at `home`, the rest
    as sentences.
    """
    wrong = dict(problems)
    odd = dict[str, str]()
    asides: list[str] = []
    for finding in findings:
        text = ". ".join(part.rstrip(".") for part in (finding.text, finding.next_step) if part)
        name = finding.field if finding.field in FIELDS else ""
        if not name and finding.field:
            text = f"{finding.field}: {text}"
        if finding.severity == "error":
            wrong.setdefault(name or home, text)
        elif name:
            odd.setdefault(name, text)
        else:
            asides.append(text)
    return wrong, odd, tuple(asides)


def _complain(problems: dict[str, str], error: UsageError, home: str = "") -> None:
    name, text = split_error(error.message)
    problems.setdefault(
        name or home, ". ".join(part.rstrip(".") for part in (text, error.next_step) if part)
    )


def _report_rest(
    draft: Draft, problems: dict[str, str], launches: Launches, offers: Offers
) -> None:
    """Report what the cluster lacks for the fields that can be read while others cannot."""
    tables = {name.partition(".")[0] for name in problems}
    texts = {
        name: text for name, text in draft.texts.items() if name.partition(".")[0] not in tables
    }
    if not texts.get("script", "").strip():
        texts["command"] = _NO_COMMAND_YET
    request = read_form(Draft(texts), launches.settings.site).request
    if request is None:
        return
    for finding in lint_request(
        in_its_queue(request, launches), offers, packs_nodes=launches.packs_nodes
    ):
        if finding.severity == "error" and texts.get(finding.field, "").strip():
            message = ". ".join(
                part.rstrip(".") for part in (finding.text, finding.next_step) if part
            )
            problems.setdefault(finding.field, message)


def _has_line(finding: LintFinding) -> bool:
    return finding.field.startswith("line ")


def _with_notes(lines: Sequence[ScriptLine], findings: Sequence[LintFinding]) -> list[ScriptLine]:
    """The lines, with what was found in one beside it."""
    notes = {finding.field: finding.text for finding in findings if _has_line(finding)}
    return [
        replace(line, note=f"! {visible(notes[key])}")
        if (key := f"line {line.number}") in notes
        else line
        for line in lines
    ]


def with_saving(
    looked: FormPreview, texts: Mapping[str, str], rules: Iterable[SavesRule] = ()
) -> FormPreview:
    """Return the preview with a sentence on the cost of saving in the requested time.

    Interval and duration of saves are the typed ones, else those of [[watch.saves]] for a job of
    its name. An unreadable value is a warning beside its field: it is not submitted.
    """
    warnings = dict(looked.warnings)
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
            warnings[name] = f"{text} never ends"
        else:
            figures[name] = float(seconds)
    title = texts.get("name", "").strip()
    rule = next((rule for rule in rules if title and rule.selector.name in ("", title)), None)
    if rule is not None and not any(texts.get(name, "").strip() for name in _UNITS):
        figures = {EVERY: rule.interval_seconds, TAKES: rule.save_seconds}
    message = ""
    if looked.run_seconds and figures.keys() == _UNITS.keys():
        try:
            message = CheckpointPlan(looked.run_seconds / DAY, figures[EVERY], figures[TAKES]).text
        except UsageError as error:
            warnings[TAKES] = error.message
    return replace(looked, warnings=warnings, saving=message)
