"""Records what the command line prints and runs on recorded clusters: what no change of the code's
structure may alter.

`python -m tests.contract.record` writes the recordings anew; look at their diff and list each
intended change in the commit. It replaces `cli.jobs.connection_pool` and the clock of `assembly`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from hpcdash import assembly
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.cli.main import main
from hpcdash.errors import NotRecorded
from hpcdash.recorded import find_token, load_case, normalised_argv
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.logs.file import file_readers
from hpcdash.transport.base import DEFAULT_CAP_BYTES, DEFAULT_LIMIT_SECONDS, CommandResult, OnOutput
from hpcdash.transport.local import run_process
from hpcdash.transport.pool import ConnectionPool
from hpcdash.transport.replay import ReplayTransport

RECORDINGS = Path(__file__).parent / "recorded"
ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"

# Longer words are the scripts that list and stage; they have tests of their own.
_LONGEST_WORD = 500
# What differs from run to run: marks of submissions, names of launches, the time, this folder.
_RANDOM = (
    (re.compile(r"hpcdash:[0-9A-Za-z]{8,}"), "hpcdash:MARK"),
    (re.compile(r"(launches/[a-z0-9_-]+-)[0-9a-f]{8}\b"), r"\1LAUNCH"),
    (re.compile(r"((?:sweep|hpcdash_allocation)-)[0-9a-f]{8}\b"), r"\1LAUNCH"),
    (re.compile(r"^(\s*)\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]", re.MULTILINE), r"\1[NOW]"),
    (re.compile(r"(\\u001eT{10})[0-9a-f]{6}\b"), r"\1"),
    (re.compile(r"files \([0-9.]+K\)"), "files (SIZE)"),
    (re.compile(r'"taken_at": "[^"]*"'), '"taken_at": "NOW"'),
)
_RANDOM_KEYS = ("id", "at", "host", "pid", "pid_started_ticks")


@dataclass(frozen=True)
class Recording:
    """Command lines, each with its files, that are run on one recorded cluster ('' for none).

    `only` is what the lines of stdout that are recorded match. With `program`, the lines are
    arguments of this module.
    """

    name: str
    case: str
    lines: tuple[tuple[str, ...], ...]
    files: tuple[tuple[str, str], ...] = ()
    only: str = ""
    program: str = ""


class RecordedClock(FrozenClock):
    """Stands still, whatever a cluster's own clock says."""

    ahead_seconds = 0.0

    def measured(self, *_: float) -> None:
        """It is not moved."""


class RecordedCluster(ReplayTransport):
    """A recorded case that also takes commands it holds no answer to.

    What is written in sh, without the separator of a poll, runs here; all else is noted, prints
    nothing, ends with 0.
    """

    def __init__(self, case: Path) -> None:
        super().__init__(case, name="recorded", file_readers=file_readers())
        self.changes: list[tuple[tuple[str, ...], bytes | None]] = []

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        on_output: OnOutput | None = None,
    ) -> CommandResult:
        try:
            return await super().run(
                argv, stdin=stdin, limit_seconds=limit_seconds, cap_bytes=cap_bytes
            )
        except NotRecorded:
            if normalised_argv(argv)[:2] == ("sh", "-c") and {"named", "whole"} & set(argv):
                # A query by ID: the recorded answer for all jobs holds these.
                start = argv.index("named" if "named" in argv else "whole")
                wanted = normalised_argv(argv[:start])[3:]
                for held in self.case.answers:
                    if held[:2] == ("sh", "-c") and held[3:] == (*wanted, "recent", "3600", "*"):
                        token = find_token(argv) or ""
                        return await super().run(
                            tuple(word.replace(RECORDED_TOKEN, token) for word in held),
                            limit_seconds=limit_seconds,
                        )
            if argv[0] == "sh" and find_token(argv) is None:
                return await run_process(argv, stdin=stdin, limit_seconds=limit_seconds)
            self.changes.append((argv, stdin))
            return CommandResult(argv, 0, b"", b"", 0.0)


@contextlib.contextmanager
def recorded_cluster(case: str) -> Iterator[RecordedCluster | None]:
    """Have this machine's scheduler be the recorded one, at the recording's time."""
    if not case:
        yield None
        return
    cluster = RecordedCluster(FIXTURES / case)

    def pool(*_: object, **__: object) -> ConnectionPool:
        return ConnectionPool({"local": lambda _destination, _path: cluster})

    with (
        mock.patch("hpcdash.cli.jobs.connection_pool", pool),
        mock.patch.object(assembly, "ClusterClock", return_value=RecordedClock(cluster.clock)),
        mock.patch("time.time", return_value=cluster.clock),
    ):
        yield cluster


def run_line(case: str, words: tuple[str, ...], folder: Path, only: str = "") -> str:
    """What one command line ran on the cluster, printed and ended with, as text."""
    argv = ["hpcdash", *words]
    if case:
        argv[1:1] = ["--local", "--backend", load_case(FIXTURES / case).backend]
    out, err = folder / ".stdout", folder / ".stderr"
    journal = folder / "state" / "journal.jsonl"
    earlier = len(_journal_lines(journal))
    with (
        recorded_cluster(case) as cluster,
        open(out, "w", encoding="utf-8") as stdout,
        open(err, "w", encoding="utf-8") as stderr,
        open(os.devnull, encoding="utf-8") as stdin,
        mock.patch.object(sys.modules["__main__"], "__package__", None),
        mock.patch.multiple(sys, argv=argv, stdout=stdout, stderr=stderr, stdin=stdin),
        contextlib.chdir(folder),
    ):
        try:
            main()
            status: object = 0
        except SystemExit as ended:
            status = ended.code or 0
    parts = [f"$ hpcdash {shlex.join(words)}", f"status {status}"]
    for change, sent in cluster.changes if cluster else ():
        parts.append(f"ran {json.dumps([_short(word) for word in normalised_argv(change)])}")
        if sent is not None:
            parts.append(_indented("stdin", sent.decode("utf-8", "replace")))
    printed = "\n".join(line for line in _stable(out).splitlines() if re.search(only, line))
    parts += [_indented("stdout", printed), _indented("stderr", _stable(err))]
    parts.append(_indented("journal", "\n".join(_journal_lines(journal)[earlier:])))
    text = "\n".join(part for part in parts if part)
    for pattern, name in _RANDOM:
        text = pattern.sub(name, text)
    return text.replace(str(folder.resolve()), "/FOLDER")


def _short(word: str) -> str:
    return word if len(word) <= _LONGEST_WORD else f"a script of {len(word.splitlines())} lines"


def _stable(file: Path) -> str:
    """What was printed; JSON is laid out over lines, so that a diff shows what changed."""
    text = file.read_text("utf-8", "replace")
    try:
        answer = json.loads(text)
    except ValueError:
        return text
    return json.dumps(answer, indent=1, ensure_ascii=False, sort_keys=True)


def _journal_lines(file: Path) -> list[str]:
    """Lines of the journal, without what differs from run to run."""
    if not file.exists():
        return []
    entries = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [
        json.dumps({key: value for key, value in entry.items() if key not in _RANDOM_KEYS})
        for entry in entries
    ]


def _indented(title: str, text: str) -> str:
    return (
        f"{title}:\n" + "\n".join(f"  {line}".rstrip() for line in text.splitlines())
        if text
        else ""
    )


def record(recording: Recording) -> str:
    """All that a recording's command lines did, in their order; each starts from its own empty
    state folder.
    """
    parts = []
    for words in recording.lines:
        with tempfile.TemporaryDirectory(prefix="hpcdash-recording-") as named:
            folder = Path(named)
            for name, text in recording.files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, "utf-8")
            places = {
                "HOME": str(folder),
                "HPCDASH_STATE": str(folder / "state"),
                "HPCDASH_CACHE": str(folder / "cache"),
                "HPCDASH_QUEUE": str(folder / "queue"),
                "XDG_CONFIG_HOME": str(folder / "config"),
                "TZ": "UTC",
                "COLUMNS": "160",
            }
            with mock.patch.dict(os.environ, places):
                time.tzset()
                if recording.program:
                    parts.append(
                        f"$ {shlex.join(words)}\n" + run_module(recording.program, *words).rstrip()
                    )
                    continue
                parts.append(run_line(recording.case, words, folder, recording.only))
    return "\n\n".join(parts) + "\n"


def recorded_apart(name: str) -> str:
    """What `record` gives of the recording of this name, in a process of its own: nothing that ran
    before counts.
    """
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HPCDASH_", "SLURM_", "PBS_"))
    }
    return run_module("tests.contract.record", name, env=outside)


def run_module(*argv: str, env: Mapping[str, str] | None = None) -> str:
    """Return the stdout of `python -m ARGV` in the project's folder."""
    child = (sys.executable, "-m", *argv)
    return subprocess.run(
        child, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, encoding="utf-8"
    ).stdout


if __name__ == "__main__":
    from tests.contract.lines import recordings

    by_name = {recording.name: recording for recording in recordings()}
    if sys.argv[1:]:
        sys.stdout.write("".join(record(by_name[name]) for name in sys.argv[1:]))
    else:
        RECORDINGS.mkdir(exist_ok=True)
        for name in by_name:
            (RECORDINGS / f"{name}.txt").write_text(recorded_apart(name), "utf-8")
