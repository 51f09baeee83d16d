"""Paths of a PBS job's output: from Output_Path, Keep_Files, Join_Path and the node it runs on.

Reads no file.

The rules are those of pbs_mom, OpenPBS's and Torque's: std_file_name() in src/resmom/start_exec.c.
"""

from __future__ import annotations

import re

from msgspec import Struct

from hpcdash.backends.base import LogsPart
from hpcdash.backends.job_detail import JobDetail, LogFiles, Script
from hpcdash.backends.pbs.dialects import Dialect, DialectPart
from hpcdash.backends.queries import Native, Row
from hpcdash.domain.job_ids import parse_job_number
from hpcdash.domain.states import ENDED, WAITING, JobState

# PBS_HOME/spool, where a site has not moved it (PBS Professional had its own until 14).
_SPOOLS = {Dialect.PBS_TEXT: "/var/spool/PBS/spool", Dialect.TORQUE: "/var/spool/torque/spool"}
_SPOOL = "/var/spool/pbs/spool"
_ARRAY_INDEX = "^array_index^"
_HOST = re.compile(r"^([^/:]*):(?=.)")
# A comma within a value has a backslash before it.
_VARIABLE = re.compile(r"(?:\\.|[^,\\])+", re.DOTALL)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# What Torque fills in itself, where a path has it.
_TORQUE_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_INTERACTIVE_NOTE = "an interactive job: its output goes to the terminal that it was started in"
# Options of qsub without a value, PBS's and Torque's.
_FLAGS = "fhInVXxz"
# -w of Torque: PBS_O_WORKDIR is not where qsub was called.
_MOVES_SUBMIT_FOLDER = "w"


class _Stream(Struct, frozen=True):
    """stdout (`key` o) or stderr (e): where pbs_mom writes it while the job runs, and what becomes
    of it.
    """

    key: str
    suffix: str
    attribute: str


_STDOUT = _Stream("o", ".OU", "Output_Path")
_STDERR = _Stream("e", ".ER", "Error_Path")


class _Place(Struct, frozen=True):
    """A file: `host` is the node whose own disk it is on, '' where the login node is to have it."""

    path: str
    host: str = ""
    note: str = ""


def _job_log_files(dialect: Dialect, native: Native, row: Row) -> LogFiles:
    if native.get("interactive", "").lower() in ("true", "1") or _native_path(
        native, _STDOUT
    ).startswith("/dev/pts/"):
        return LogFiles(None, None, _INTERACTIVE_NOTE)
    job = _Job(dialect, native, row)
    joined = native.get("Join_Path", "n")
    if joined.startswith("eo"):
        only = job.place(_STDERR)
        return _files(only, None)
    out = job.place(_STDOUT)
    return _files(out, None if joined.startswith("oe") else job.place(_STDERR))


def last_files(row: Row, native: Native, dialect: Dialect) -> tuple[str | None, str | None]:
    """Return the paths of stdout and stderr of a row of domain.schema.JOBS once its job has ended,
    the same path where they are joined; None where it is unknown, or there is no file.
    """
    ended = {**row, "state": JobState.COMPLETED}
    files = _job_log_files(dialect, native, ended)
    return files.stdout, files.stdout if files.stderr is None else files.stderr


def _files(out: _Place | None, err: _Place | None) -> LogFiles:
    if out is None:
        return LogFiles(None, None, "PBS does not report where the job writes")
    places = [place for place in (out, err) if place is not None]
    notes = dict.fromkeys(place.note for place in places if place.note)
    # A node has the files that are written through to their folder as well.
    host = next((place.host for place in places if place.host), "")
    stderr = err.path if err is not None and err.path != out.path else None
    return LogFiles(out.path, stderr, "; ".join(notes), host)


class _Job:
    """Facts of a job that the places of both streams follow from; `row` is one of
    domain.schema.JOBS.
    """

    def __init__(self, dialect: Dialect, native: Native, row: Row) -> None:
        self._dialect = dialect
        self._native = native
        self._id = str(row["id"])
        self._name = str(native.get("Job_Name") or row["name"] or "")
        self._state = str(row["state"])
        task = str(row["array_task"] or "")
        self._task = task if task.isdigit() else ""
        self._is_array = row["array_id"] is not None
        # A row of several tasks, or of an array.
        self._is_many = self._is_array and not self._task
        self._is_private = native.get("sandbox", "").upper() == "PRIVATE"
        self._job_dir = native.get("jobdir", "")

    def place(self, stream: _Stream) -> _Place | None:
        """Return the present place of a stream; None where it is unknown."""
        stored = self._native.get("Keep_Files", "n")
        is_direct = stream.key in stored and "d" in stored
        if stream.key in stored and not is_direct:
            return self._node_place(stream)
        last = self._last_place(stream)
        if last is not None and last.path == "/dev/null":
            return last
        if self._state in ENDED:
            return self._noted(last, self._format_removed(stream), self._format_far(stream))
        if self._state in WAITING or self._is_many:
            return self._noted(last, "" if is_direct else self._format_copied)
        if is_direct:
            return last
        return self._spooled(stream, last)

    # -- places

    def _last_place(self, stream: _Stream) -> _Place | None:
        """Return the place of a stream once the job has ended."""
        path = _native_path(self._native, stream)
        if not path:
            return None
        note = ""
        if self._is_many:
            note = "each task writes to another file"
        elif self._is_array:
            path = path.replace(_ARRAY_INDEX, self._task)
        if self._dialect is Dialect.TORQUE and "$" in path:
            path = self._filled(path)
            note = "a guess: Torque expands the variables in the path itself"
        if path.endswith("/"):
            path += self._id + stream.suffix
        if not path.startswith("/"):
            folder = submit_variable(self._native, "PBS_O_WORKDIR")
            path = f"{folder.rstrip('/')}/{path}" if folder else path
        return _Place(path, "", note)

    def _node_place(self, stream: _Stream) -> _Place | None:
        """-k without d: NAME.oNUMBER in the home folder (of a private sandbox: in the job's own),
        never anywhere else.

        A node writes it there itself: the login node has it where the home folder is shared.
        """
        home = self._job_dir if self._is_private else submit_variable(self._native, "PBS_O_HOME")
        if not home:
            return None
        index = f".{self._task or _ARRAY_INDEX}" if self._is_array else ""
        node = self._node
        where = f"of {node}" if node else "of the node it runs on"
        text = "its own folder" if self._is_private else "the home folder"
        path = f"{home.rstrip('/')}/{self._name}.{stream.key}{parse_job_number(self._id)}{index}"
        note = (
            f"kept in {text} {where} (-k {self._native.get('Keep_Files', '')}), whatever path "
            "was asked for"
        )
        return _Place(path, "", "; ".join((note, *filter(None, [self._format_removed(stream)]))))

    def _spooled(self, stream: _Stream, last: _Place | None) -> _Place | None:
        """The file that pbs_mom writes and copies to its last place when the job ends."""
        node = self._node
        removed = self._format_removed(stream)
        if self._is_private and self._job_dir:
            # The home folder is shared as a rule; another folder is one of the node's.
            home = submit_variable(self._native, "PBS_O_HOME")
            is_shared = bool(home) and self._job_dir.startswith(f"{home.rstrip('/')}/")
            note = (
                f"in the job's own folder{f' on {node}' if node else ''} until it ends "
                "(sandbox=PRIVATE)"
            )
            path = f"{self._job_dir.rstrip('/')}/{self._id}{stream.suffix}"
            return self._noted(_Place(path, "" if is_shared else node, note), removed)
        if not node:
            return self._noted(
                last, f"{self._keeper} keeps it on the node the job runs on until it ends", removed
            )
        path = f"{_SPOOLS.get(self._dialect, _SPOOL)}/{self._id}{stream.suffix}"
        advice = "; submit with -k oed to read it here meanwhile" if self._writes_directly else ""
        return self._noted(
            _Place(path, node, f"{self._keeper} keeps it on {node} until the job ends{advice}"),
            removed,
        )

    # -- parts of a place

    @property
    def _keeper(self) -> str:
        return "Torque" if self._dialect is Dialect.TORQUE else "PBS"

    @property
    def _writes_directly(self) -> bool:
        """Whether -k knows d: Torque's does not, nor that of every PBS Professional before 18."""
        return self._dialect is Dialect.OPENPBS

    @property
    def _node(self) -> str:
        """The first node, which writes the files; '' where none is told, or none that a command may
        be given.
        """
        first = re.split(r"[/+:]", self._native.get("exec_host", "").strip(), maxsplit=1)[0]
        return first if _NODE.fullmatch(first) else ""

    @property
    def _format_copied(self) -> str:
        advice = ", with -k oed as it runs" if self._writes_directly else ""
        return f"{self._keeper} brings it there when the job ends{advice}"

    def _format_removed(self, stream: _Stream) -> str:
        requested = self._native.get("Remove_Files", "n")
        return (
            f"{self._keeper} was asked to remove it when the job ends (-R {requested})"
            if stream.key in requested
            else ""
        )

    def _format_far(self, stream: _Stream) -> str:
        """Name the machine that has it, if that is not the one the job was submitted from."""
        found = _HOST.match(self._native.get(stream.attribute, ""))
        host = found[1] if found else ""
        submitted = self._native.get("Submit_Host") or submit_variable(self._native, "PBS_O_HOST")
        if not host or not submitted or _short(host) == _short(submitted):
            return ""
        return f"{self._keeper} copied it to {host}"

    def _noted(self, place: _Place | None, *notes: str) -> _Place | None:
        if place is None:
            return None
        return _Place(place.path, place.host, "; ".join(filter(None, (place.note, *notes))))

    def _filled(self, path: str) -> str:
        def fill(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            known = {"PBS_JOBID": self._id, "PBS_ARRAYID": self._task, "PBS_JOBNAME": self._name}
            return (
                known.get(name)
                or submit_variable(self._native, name)
                or submit_variable(self._native, f"PBS_O_{name}")
                or found[0]
            )

        return _TORQUE_VARIABLE.sub(fill, path)


def _native_path(native: Native, stream: _Stream) -> str:
    """A path without the machine before it; a file's own name may hold a colon."""
    return _HOST.sub("", native.get(stream.attribute, ""), count=1)


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def submit_variable(native: Native, name: str) -> str:
    """A variable of Variable_List, '' where it is not in it.

    PBS puts its own, PBS_O_…, before a person's.
    """
    for one in _VARIABLE.finditer(native.get("Variable_List", "")):
        found, _, value = one[0].partition("=")
        if found == name:
            return variable_value(value)
    return ""


def variable_value(listed: str) -> str:
    """A value as it stands in Variable_List, which escapes commas and backslashes."""
    return re.sub(r"\\(.)", r"\1", listed, flags=re.DOTALL)


def submitted_file(detail: JobDetail) -> str | None:
    """Return the file that a job's script was read from, where its path is certain.

    PBS records the arguments of qsub without their quotes: a doubtful name is none.
    """
    parts = (
        detail.native.get("Submit_arguments") or detail.native.get("submit_args") or ""
    ).split()
    position = 0
    while position < len(parts) and parts[position].startswith("-"):
        option = parts[position]
        valued = option[1:].lstrip(_FLAGS)
        # After -- comes a command; - is qsub's own stdin, -I has no script.
        if (
            option in ("--", "-")
            or "I" in option[: len(option) - len(valued)]
            or valued[:1] == _MOVES_SUBMIT_FOLDER
        ):
            return None
        # Its value stands behind it, or is the next word.
        position += 2 if len(valued) == 1 else 1
    rest = parts[position:]
    if len(rest) != 1 or not rest[0].isprintable() or re.search(r"""["'\\]""", rest[0]):
        return None
    if rest[0].startswith("/"):
        return rest[0]
    folder = submit_variable(detail.native, "PBS_O_WORKDIR")
    return f"{folder.rstrip('/')}/{rest[0]}" if folder else None


class PbsLogs(DialectPart, LogsPart):
    """Logs of PBS, which reports their paths."""

    def files(self, detail: JobDetail, script: Script | None = None) -> LogFiles:
        return _job_log_files(self.dialect, detail.native, detail.job.to_pylist()[0])
