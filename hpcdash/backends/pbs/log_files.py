"""Paths of a PBS job's output: from Output_Path, Keep_Files, Join_Path and the node it runs on.

Reads no file.

The rules are those of pbs_mom, OpenPBS's and Torque's: std_file_name() in src/resmom/start_exec.c.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

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
_VARIABLE = re.compile(r"(?:\\.|[^,\\]|\\\Z)+", re.DOTALL)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# What Torque fills in itself, where a path has it.
_TORQUE_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_INTERACTIVE_NOTE = "interactive job: the output goes to the terminal it was started in"
# Options of qsub without a value, PBS's and Torque's.
_FLAGS = "fhInVXxz"
# -w of Torque: PBS_O_WORKDIR is not where qsub was called.
_MOVES_SUBMIT_FOLDER = "w"


# stdout and stderr as -k names them: the ending of their file in the spool, and their attribute.
_STREAMS = {"o": (".OU", "Output_Path"), "e": (".ER", "Error_Path")}


class _Place(Struct, frozen=True):
    """A file: `host` is the node whose own disk it is on, '' where the login node is to have it."""

    path: str
    host: str = ""
    notes: tuple[str, ...] = ()

    def noted(self, *notes: str) -> _Place:
        """Return the place with what is more to say of it."""
        return replace(self, notes=(*self.notes, *filter(None, notes)))


def last_files(row: Row, native: Native, dialect: Dialect) -> tuple[str | None, str | None]:
    """Return the paths of stdout and stderr of a row of domain.schema.JOBS once its job has ended,
    the same path where they are joined; None where it is unknown, or there is no file.
    """
    files = _Job(dialect, native, {**row, "state": JobState.COMPLETED}).files()
    return files.stdout, files.stdout if files.stderr is None else files.stderr


class _Job:
    """Facts of a job that the places of both streams, `o` and `e`, follow from; `row` is one of
    domain.schema.JOBS.
    """

    def __init__(self, dialect: Dialect, native: Native, row: Row) -> None:
        self._native = native
        self._id = str(row["id"])
        self._name = str(native.get("Job_Name") or row["name"] or "")
        self._state = str(row["state"])
        task = str(row["array_task"] or "")
        self._task = task if task.isdigit() else ""
        self._is_array = row["array_id"] is not None
        self._is_private = native.get("sandbox", "").upper() == "PRIVATE"
        self._job_dir = native.get("jobdir", "")
        self._home = submit_variable(native, "PBS_O_HOME")
        self._keep_files = native.get("Keep_Files", "n")
        self._is_torque = dialect is Dialect.TORQUE
        self._keeper = "Torque" if self._is_torque else "PBS"
        self._spool = _SPOOLS.get(dialect, _SPOOL)
        # -k of Torque knows no d, nor does that of every PBS Professional before 18.
        self._writes_directly = dialect is Dialect.OPENPBS
        # The first node, which writes the files; '' for none that a command may be given.
        node = re.split(r"[/+:]", native.get("exec_host", "").strip(), maxsplit=1)[0]
        self._node = node if _NODE.fullmatch(node) else ""

    def files(self) -> LogFiles:
        """Return the files that have the job's output at present."""
        is_interactive = self._native.get("interactive", "").lower() in ("true", "1")
        if is_interactive or self._native_path("o").startswith("/dev/pts/"):
            return LogFiles(None, None, _INTERACTIVE_NOTE)
        joined = self._native.get("Join_Path", "n")
        out = self._place("e" if joined.startswith("eo") else "o")
        err = None if joined.startswith(("oe", "eo")) else self._place("e")
        if out is None:
            return LogFiles(None, None, "PBS does not report where the job writes")
        places = [place for place in (out, err) if place is not None]
        notes = dict.fromkeys("; ".join(place.notes) for place in places if place.notes)
        # A node has the files that are written through to their folder as well.
        host = next((place.host for place in places if place.host), "")
        stderr = err.path if err is not None and err.path != out.path else None
        return LogFiles(out.path, stderr, "; ".join(notes), host)

    def _place(self, key: str) -> _Place | None:
        """Return the present place of a stream; None where it is unknown."""
        is_direct = "d" in self._keep_files
        if key in self._keep_files and not is_direct:
            return self._home_place(key)
        last = self._last_place(key)
        if last is not None and last.path == "/dev/null":
            return last
        is_direct = key in self._keep_files
        if self._state in ENDED:
            return last and last.noted(self._format_removed(key), self._format_far(key))
        if self._state in WAITING or (self._is_array and not self._task):
            advice = ", or while it runs with -k oed" if self._writes_directly else ""
            copied = f"{self._keeper} copies the log there when the job ends{advice}"
            return last and last.noted("" if is_direct else copied)
        return last if is_direct else self._spooled(key, last)

    def _native_path(self, key: str) -> str:
        """A path without the machine before it; a file's own name may hold a colon."""
        return _HOST.sub("", self._native.get(_STREAMS[key][1], ""), count=1)

    def _last_place(self, key: str) -> _Place | None:
        """Return the place of a stream once the job has ended."""
        path = self._native_path(key)
        if not path:
            return None
        note = ""
        if self._is_array and not self._task:
            note = "each task writes to its own file"
        elif self._is_array:
            path = path.replace(_ARRAY_INDEX, self._task)
        if self._is_torque and "$" in path:
            path = _TORQUE_VARIABLE.sub(self._variable, path)
            note = "a guess: Torque itself expands the variables in the path"
        if path.endswith("/"):
            path += self._id + _STREAMS[key][0]
        folder = submit_variable(self._native, "PBS_O_WORKDIR")
        if folder and not path.startswith("/"):
            path = f"{folder.rstrip('/')}/{path}"
        return _Place(path).noted(note)

    def _variable(self, found: re.Match[str]) -> str:
        """Return what Torque fills in for a variable."""
        name = found[1] or found[2]
        known = {"PBS_JOBID": self._id, "PBS_ARRAYID": self._task, "PBS_JOBNAME": self._name}
        return (
            known.get(name)
            or submit_variable(self._native, name)
            or submit_variable(self._native, f"PBS_O_{name}")
            or found[0]
        )

    def _home_place(self, key: str) -> _Place | None:
        """-k without d: NAME.oNUMBER in the home folder (of a private sandbox: in the job's own),
        never anywhere else.

        A node writes it there itself: the login node has it where the home folder is shared.
        """
        home = self._job_dir if self._is_private else self._home
        if not home:
            return None
        index = f".{self._task or _ARRAY_INDEX}" if self._is_array else ""
        folder = "the job's own folder" if self._is_private else "the home folder"
        return _Place(
            f"{home.rstrip('/')}/{self._name}.{key}{parse_job_number(self._id)}{index}"
        ).noted(
            f"kept in {folder} on {self._node or 'the node of the job'} (-k {self._keep_files}), "
            "regardless of the requested path",
            self._format_removed(key),
        )

    def _spooled(self, key: str, last: _Place | None) -> _Place | None:
        """The file that pbs_mom writes and copies to its last place when the job ends."""
        node = self._node
        removed = self._format_removed(key)
        name = f"{self._id}{_STREAMS[key][0]}"
        if self._is_private and self._job_dir:
            # The home folder is shared as a rule; another folder is one of the node's.
            home = self._home.rstrip("/")
            is_shared = bool(self._home) and self._job_dir.startswith(f"{home}/")
            place = _Place(f"{self._job_dir.rstrip('/')}/{name}", "" if is_shared else node)
            where = f" on {node}" if node else ""
            return place.noted(
                f"in the job's own folder{where} until the job ends (sandbox=PRIVATE)", removed
            )
        if not node:
            note = f"{self._keeper} keeps the log on the job's node until the job ends"
            return last and last.noted(note, removed)
        advice = (
            "; submit with -k oed to read the log here while the job runs"
            if self._writes_directly
            else ""
        )
        note = f"{self._keeper} keeps the log on {node} until the job ends{advice}"
        return _Place(f"{self._spool}/{name}", node).noted(note, removed)

    def _format_removed(self, key: str) -> str:
        requested = self._native.get("Remove_Files", "n")
        if key not in requested:
            return ""
        return f"{self._keeper} removes the log when the job ends (-R {requested})"

    def _format_far(self, key: str) -> str:
        """Name the machine that has it, if that is not the one the job was submitted from."""
        found = _HOST.match(self._native.get(_STREAMS[key][1], ""))
        submitted = self._native.get("Submit_Host") or submit_variable(self._native, "PBS_O_HOST")
        if found is None or not found[1] or not submitted:
            return ""
        is_same = found[1].partition(".")[0].lower() == submitted.partition(".")[0].lower()
        return "" if is_same else f"{self._keeper} copied the log to {found[1]}"


def submit_variable(native: Native, name: str) -> str:
    """A variable of Variable_List, '' where it is not in it.

    PBS puts its own, PBS_O_…, before a person's.
    """
    for variable in split_variables(native.get("Variable_List", "")):
        found, _, value = variable.partition("=")
        if found == name:
            return variable_value(value)
    return ""


def split_variables(listed: str) -> list[str]:
    """Return the NAME=VALUE of a Variable_List, as they stand there."""
    return _VARIABLE.findall(listed)


def submit_arguments(native: Native) -> str:
    """Return the arguments of qsub that PBS has on record, without their quotes; '' for none."""
    return native.get("Submit_arguments") or native.get("submit_args") or ""


def variable_value(listed: str) -> str:
    """A value as it stands in Variable_List, which escapes commas and backslashes."""
    return re.sub(r"\\(.)", r"\1", listed, flags=re.DOTALL)


def submitted_file(detail: JobDetail) -> str | None:
    """Return the file that a job's script was read from, where its path is certain.

    PBS records the arguments of qsub without their quotes: a doubtful name is none.
    """
    parts = submit_arguments(detail.native).split()
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
        return _Job(self.dialect, detail.native, detail.row).files()
