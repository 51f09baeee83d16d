"""Gives every reader of bytes and texts changed ones: it reads them or refuses them with an error
of ours, in time.

    python -m tests.support.fuzz [--seed 1] [--count 200000] [--first 0] [--workers 2] [--reader 'torque jobs']
    python -m tests.support.fuzz --long-runs [--megabytes 10]

The first changes recorded answers, logs, requests, configurations and filters at random: mutant N
of a seed is the same on any machine, however many workers there are. The second puts a long run of
one pattern into each. Both print what goes wrong, with seed, number and a file of its bytes, and
exit 1; how long the slowest took is a remark.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import heapq
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Backend, Capability
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.job_detail import Script
from hpcdash.backends.output_patterns import PathFacts, finish_shown, output_path, paths_as_shown
from hpcdash.backends.pbs import options as qsub
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import JobScope, ParsedTable, Query
from hpcdash.backends.ray.backend import BACKEND as RAY
from hpcdash.backends.ray.responses import read_responses
from hpcdash.backends.script.body import Place
from hpcdash.backends.slurm import options as sbatch
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.backends.submissions import Submission
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.config.document import decode, example_text
from hpcdash.config.read import settings_from_text
from hpcdash.config.request import read_request, request_text
from hpcdash.config.toml_text import format_toml
from hpcdash.domain import nodelist, schema
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.job_ids import parse_job_id, split_ids
from hpcdash.domain.query import apply, completions
from hpcdash.domain.query import parse as parse_filter
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.domain.root_cause import root_cause
from hpcdash.errors import HpcdashError
from hpcdash.recorded import find_token
from hpcdash.services.logs.lines import shown_line
from hpcdash.services.logs.pieces import pieces
from hpcdash.services.logs.search import read_stamp
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.watch import disks
from hpcdash.transport.base import CommandResult
from tests.config.test_request_file import FULL as FULL_REQUEST
from tests.support.job_rows import job_row
from tests.support.slurm_text import PAST_JOB

_TOKEN = RECORDED_TOKEN.encode()
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
EMBEDDED = embedded_backend(("queue",))
BACKENDS: Mapping[str, tuple[Backend, Sequence[str]]] = {
    "slurm": (SLURM, ("slurm",)),
    "openpbs": (pbs_backend(Dialect.OPENPBS), ("pbs/23.06",)),
    "pbs-text": (pbs_backend(Dialect.PBS_TEXT), ("pbs/23.06/older",)),
    "torque": (pbs_backend(Dialect.TORQUE), ("pbs/torque-6.1",)),
    "embedded": (EMBEDDED, ()),
    "ray": (RAY, ("ray",)),
}
# What a reader may take of the processor, whatever it is given; measured ones take a tenth of it.
# On a slower machine it is more by as much as _yardstick() takes more there.
SECONDS_AT_REST = 0.5
SECONDS_A_BYTE = 5e-6
_YARDSTICK_SECONDS = 0.005
# One that takes so much of the processor does not end.
_HANGING_SECONDS = 120
_BLOCK = 500
_RUN_BYTES = 60_000
_NUMBER = re.compile(rb"[0-9]+")
_NUMBERS = (
    *(
        b"",
        b"0",
        b"00",
        b"-1",
        b"-0",
        b"1.5",
        b"1e999",
        b"nan",
        b"inf",
        b"1-",
        b"0-9223372036854775806",
        b"4294967294",
    ),
    *(
        b"9223372036854775807",
        b"9223372036854775808",
        b"18446744073709551615",
        b"9" * 18,
        b"9" * 30,
        b"9" * 400,
        b"9" * 5000,
    ),
    *("\u0663\u00b2".encode(), b"999999999", b"2147483648", b"253402300800"),
)
# What stands between two of the separators that any scheduler has.
_FIELD = re.compile(rb"[\x1e\x1f =:;|,/\n\t<>()@-]([^\x1e\x1f =:;|,/\n\t<>()@-]+)")
_LETTERS = b"\x00\t\n\r\x1b\x1e\x1f !\"#$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~\x7f\x80\x9b\xc3\xff"
# What a run is made of: what readers look for, begun and never ended, or ended and never begun.
PATTERNS: tuple[bytes, ...] = (
    *(bytes((letter,)) for letter in _LETTERS),
    *(
        b"\n\n ",
        b" \n",
        b"\r\n",
        b"\n\t",
        b"\n=",
        b"=\n",
        b"a\n",
        b"\n    a = b",
        b"\n\n    a = b\n\nn1",
        b"\n\tA = b",
    ),
    *(
        b"\nJob Id: 1.s\n",
        b"\nJob Id:\t1\n",
        b"\nJob Id: 1.s\n    Job_Name = a\n",
        b"\nName=n1\n",
        b"\nQueue: a\n",
    ),
    *(
        b"\n\n\nJob Id:\t1\n\tJob_Name = a\n",
        b"^\n",
        b"^\xca",
        b"\\\\",
        b"\\n",
        b",\\,",
        b"A=",
        b",A=b",
        b" A=b",
    ),
    *(
        b"<Job>",
        b"</Job>",
        b"<a>",
        b"</a>",
        b"<a></a>",
        b"<Job><Job_Id>1</Job_Id></Job>",
        b"&lt;",
        b"&#",
        b"&#1;",
    ),
    *(
        b"<a b='",
        b"<!--",
        b"<![CDATA[",
        b"<?a ",
        b"<!DOCTYPE a [<!ENTITY a 'b'>",
        b"&a;",
        b"</",
        b"<Data>",
    ),
    *(
        b"1,",
        b"1-",
        b"1-2,",
        b"0-9/1.s,",
        b"n[1-",
        b"n[1],",
        b"[[",
        b"]]",
        b"1+",
        b"+1:ncpus=1",
        b":a",
        b"1:",
        b"0:",
    ),
    *(
        b"gpu:",
        b",gpu:a:1",
        b"(IDX:0",
        b"mem=",
        b",mem=1G",
        b"gres/gpu:",
        b"%j",
        b"%1",
        b"%%",
        b"k\x08",
        b"\x1b[",
    ),
    *(
        b"\x1b[31m",
        b"\x1b]",
        b"\xc2\x9b",
        b"\x1b[1;",
        b"{'",
        b"{'a': 1, ",
        b'{"a":',
        b'{"',
        b"[",
        b"loss: 1 ",
        b"step 1",
    ),
    *(
        b"loss=",
        b"1/2 ",
        b"\r10%|",
        b"Epoch 1/",
        b"iter ",
        b"a 1 ",
        b"1.5e",
        b"12:",
        b"2026-",
        b"JobId=1 ",
        b" JobName=",
    ),
    *(
        b"\nJobId=1 UserId=a\n   UserId=b",
        b"\n\nJobId=1 a\n",
        b"PartitionName=",
        b"\n   NumNodes=",
        b"-" * 80,
    ),
    *(
        b"Batch Script for 1\n" + b"-" * 80 + b"\n",
        b"scancel: Terminating job 1\n",
        b" for job 1",
        b"qdel: a 1.s\n",
    ),
    *(
        b"#SBATCH --a=b\n",
        b"#PBS -l a=b\n",
        b"#SBATCH ",
        b"'",
        b'" ',
        b"afterok:1:",
        b"after:1,",
        b"?",
        b"\xe2\x80\xa6",
    ),
)


@dataclass(frozen=True, slots=True)
class Reader:
    """`read` takes what a command printed and its exit status; `samples` are answers it reads as a
    rule.
    """

    name: str
    read: Callable[[bytes, int], object]
    samples: Sequence[bytes]


class Broken(Exception):
    """A reader that raised something else, or took too long."""


def _row(**fields: Any) -> dict[str, Any]:
    return job_row("2", **{"_number": 2, "nodes": 1, "queue": "q", **fields})


def _questions(backend: Backend) -> Iterator[tuple[str, Query[Any] | None]]:
    dot = ".s" if backend.name == "pbs" else ""
    job = f"{_JOB}{dot}"
    running = _row(id=job, state="running", started_at=datetime(2026, 3, 4))
    yield "probe", backend.probe.query()
    yield "jobs", backend.queue.jobs(JobScope())
    yield "jobs of one", backend.queue.jobs(JobScope("alice", ended=True))
    yield "jobs by id", backend.queue.jobs(JobScope(job_ids=(job,)))
    yield "nodes", backend.queue.nodes()
    yield "queues", backend.queue.queues()
    yield "history", backend.history.jobs(None, 604800)
    yield "history by id", backend.history.jobs(None, 0, (job,))
    yield "native", backend.detail.native(job)
    yield "past native", backend.history.native(job)
    yield "script", backend.scripts.query(job)
    yield "past script", backend.scripts.history_query(job)
    yield "usage", backend.detail.usage(running)
    yield "past usage", backend.detail.usage({**running, "state": "completed"})
    yield "priority", backend.detail.priority(job)
    yield "qos", backend.policy.qos("normal")
    yield "queue rules", backend.policy.queue_rules("q")
    yield "preemption", backend.policy.preemption("q")
    yield "accounts", backend.policy.associations("alice")
    yield "qos offers", backend.policy.qos_offers()
    for name in (Capability.SHARES, Capability.RESERVATIONS):
        if name in backend.capabilities:
            yield str(name), getattr(backend.policy, name)("alice")
    if Capability.LIMITS in backend.capabilities:
        yield "limits", backend.policy.limits("alice", "")
    yield "steps", backend.detail.steps(running)
    if backend.inside.measures_use:
        yield "activity", backend.detail.activity(running, _RAY_JOB)
        yield "use nodes", backend.inside.use_nodes(_RAY_JOB)
        yield "use", backend.inside.use(_RAY_JOB, ("n1", "n2"))
    yield "start estimate", backend.submit.start_estimate(Submission(b"#!/bin/sh\n", "a.sh"))


def _answer(
    backend: Backend, argv: tuple[str, ...], status: int, stdout: bytes, stderr: bytes
) -> CommandResult:
    """Return what the transport does; of HTTP it is a frame for each path, so that these are
    whole.
    """
    if backend is not RAY:
        return CommandResult(argv, status, stdout, stderr, 0.0)
    paths = len(argv) - 1 if argv[0] == "GET" else 1
    bodies = stdout.split(_BETWEEN_BODIES, paths - 1)
    bodies += [b"{}"] * (paths - len(bodies))
    frames = [
        b"%d %d -\n%b" % (_HTTP_STATUSES.get(status, 200), len(body), body) for body in bodies
    ]
    return CommandResult(argv, 0, b"".join(frames), b"", 0.0)


def _bodies(raw: bytes) -> bytes:
    """Return the bodies of recorded frames; '' of what has none."""
    try:
        return _BETWEEN_BODIES.join(
            one.body for one in read_responses(CommandResult(("GET",), 0, raw, b"", 0.0))
        )
    except HpcdashError:
        return b""


def _read_answer(
    query: Query[Any], backend: Backend, on_stderr: bool, raw: bytes, status: int
) -> object:
    token = (find_token(query.argv) or "").encode()
    raw = raw.replace(_TOKEN, token)
    stdout, stderr = (b"", raw) if on_stderr else (raw, b"")
    found = query.parse(_answer(backend, query.argv, status, stdout, stderr))
    if isinstance(found, ParsedTable):
        return _shown(found, backend)
    if isinstance(found, Mapping) and query.argv and _ROW is not None:
        detail = backend.detail.join(_ROW, {str(key): str(value) for key, value in found.items()})
        script = Script("#!/bin/sh\n#SBATCH -o %x.out\n#PBS -o a\n", "here")
        return detail, backend.logs.files(detail, script), backend.scripts.submitted_file(detail)
    return found


_ROW = pa.Table.from_pylist(
    [_row(id="2", state="running", name="a", work_dir="/home/alice")], schema=schema.JOBS
)


def _shown(found: ParsedTable, backend: Backend) -> object:
    """What is done with every row: it is written as JSON, and its reason said in plain words."""
    table = found.table
    table.validate(full=True)
    rows = table_to_json_rows(table, schema.public_names(table.schema))
    if "reason" in table.column_names and "exit_code" in table.column_names:
        for state, reason in {(row["state"], row["reason"]) for row in rows}:
            backend.reasons.hint(state, reason)
    for text in {row["node_list"] for row in rows if row.get("node_list")}:
        _refusing(ValueError, nodelist.count, text)
    for text in {row["dependency"] for row in rows if row.get("dependency")}:
        parse_dependency(text)
    return rows


def _refusing(
    error: type[Exception] | tuple[()], read: Callable[[str], object], text: str
) -> object:
    try:
        return read(text)
    except error:
        return None


def _actions(backend: Backend) -> Iterator[tuple[str, Callable[[bytes, int], object]]]:
    ids = (
        ("2.s", "12[3].s", "14[6-10].s", "12[].s")
        if backend.name == "pbs"
        else ("2", "12_3", "14_[6-10]", "12")
    )
    if backend is RAY:
        ids = ("2", "3")
    for verb in (Verb.CANCEL, Verb.HOLD, Verb.REQUEUE, Verb.SUSPEND, Verb.SIGNAL, Verb.ALTER):
        request = ActionRequest(
            verb, ids, signal="USR1", changes={"time": "2h"} if verb is Verb.ALTER else {}
        )
        try:
            commands = backend.actions.commands(request)
        except HpcdashError:
            continue
        for number, command in enumerate(commands):

            def read(
                raw: bytes, status: int, read: Any = command.read, argv: Any = command.argv
            ) -> object:
                half = len(raw) // 2
                return read(_answer(backend, argv, status, raw[:half], raw[half:]))

            yield f"{verb} {number}" if number else str(verb), read
    handover = backend.submit.submission(
        Submission(b"#!/bin/sh\n", "a.sh", array="" if len(ids) == 2 else "1-3")
    )
    submit = handover.command
    yield (
        "submit",
        lambda raw, status: submit.read(_answer(backend, submit.argv, status, raw, raw[:100])),
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _each_line(read: Callable[[str], object], text: str) -> list[object]:
    return [read(line) for line in text.split("\n")]


def _of_text() -> Iterator[tuple[str, Callable[[bytes, int], object]]]:
    """Readers that take a text out of an answer, a script or a log."""
    facts = PathFacts("12", "/home/a", "alice", "na%me", "n1", "11", "1", True)
    about = datetime(2026, 3, 4)
    for name, error, read in (
        ("tasks", ValueError, parse_tasks),
        ("job id", ValueError, parse_job_id),
        ("job ids", ValueError, split_ids),
        ("node list", ValueError, nodelist.expand),
        ("dependency", (), parse_dependency),
        ("#SBATCH lines", (), sbatch.read_directives),
        ("#PBS lines", (), qsub.read_directives),
        ("explained #SBATCH lines", (), partial(_each_line, SLURM.scripts.explain)),
        ("explained #PBS lines", (), partial(_each_line, BACKENDS["openpbs"][0].scripts.explain)),
        ("reason", (), partial(SLURM.reasons.hint, "pending")),
        ("comment", (), partial(BACKENDS["openpbs"][0].reasons.hint, "pending")),
        ("comment of the past", (), partial(BACKENDS["openpbs"][0].reasons.hint, "failed")),
        ("path", (), partial(output_path, facts=facts)),
        ("shown path", (), partial(finish_shown, facts=facts)),
        ("paths as shown", (), partial(paths_as_shown, facts=facts)),
        ("stamp", (), partial(read_stamp, about=about)),
    ):
        yield name, lambda raw, _, error=error, read=read: _refusing(error, read, _text(raw))  # type: ignore[misc]
    yield "root cause", lambda raw, _: root_cause(_text(raw).split("\n"))
    yield "log line", lambda raw, _: shown_line(raw)
    yield "log pieces", lambda raw, _: pieces(raw, 0, at_end=True).rows()
    yield "log metrics", lambda raw, _: MetricReader().feed(raw, is_end=True)
    yield "log stretch", lambda raw, _: MetricReader(at=7).feed(raw, is_end=True)


def _of_disks() -> Iterator[tuple[str, Callable[[bytes, int], object], Sequence[bytes]]]:
    """Readers of what df, du and the quota tools print."""
    yield "df", _of_bytes(partial(disks.parse_df, path="/data/a")), _DF
    yield "df -i", _of_bytes(disks.parse_df_inodes), _DF
    yield "du", _of_bytes(partial(disks.parse_du, path="/data/a")), _DF
    for name, read in disks.PARSERS.items():
        yield name, _of_bytes(read), _QUOTAS


def _of_bytes(read: Callable[[bytes], object]) -> Callable[[bytes, int], object]:
    return lambda raw, _: read(raw)


def _read_request(text: str) -> None:
    """Read a request, write it and read it back, and write its script for each scheduler that has
    scripts.
    """
    request = read_request(text)
    written = request_text(request)
    # nan is not equal to itself.
    assert "nan" in written or read_request(written) == request, f"not what is read from {written}"
    for backend, _ in BACKENDS.values():
        if writer := backend.scripts.writer():
            with contextlib.suppress(HpcdashError):
                writer.batch_script(request, Place("u-1", "/home/a/launches/u-1"))


def _read_config(text: str) -> None:
    settings_from_text(text, _CONFIG_FILE)


def _with_value(read: Callable[[str], None], document: Mapping[str, Any], raw: bytes) -> None:
    """Read a document one of whose values is this one, as TOML has it or else as a text."""
    try:
        value = tomllib.loads(f"value = {_text(raw)}")["value"]
    except ValueError:
        value = _text(raw)
    places = list(_places(document))
    read(format_toml(_put(document, places[zlib.crc32(raw) % len(places)], value)))


def _places(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in document.items():
        yield (key,)
        if isinstance(value, Mapping):
            yield from ((key, *place) for place in _places(value))


def _put(document: Mapping[str, Any], place: tuple[str, ...], value: object) -> Mapping[str, Any]:
    key, *rest = place
    return {**document, key: _put(document[key], tuple(rest), value) if rest else value}


def _filter_rows(kind: pa.Schema, raw: bytes) -> None:
    text = _text(raw)
    rows = pa.Table.from_pylist(
        [{}, {"id": "12_3", "name": "a b", "state": "running", "gpus": 2, "cpus": 1}], kind
    )
    completions(text, kind, rows)
    apply(rows, parse_filter(text, kind), 1.8e9)


def _of_people() -> Iterator[tuple[str, Callable[[bytes, int], object], Sequence[bytes]]]:
    """Readers of what people write, and what they write."""
    example = re.sub(r"(?m)^#(?! )", "", example_text())
    for name, read, texts in (
        ("request", _read_request, _REQUESTS),
        ("config", _read_config, (example,)),
    ):
        samples = [
            part.encode() for text in texts for part in (text, *re.split(r"(?m)^(?=\[)", text))
        ]
        yield name, _of_bytes(lambda raw, read=read: read(decode(raw, "a.toml"))), samples
        yield (
            f"{name} value",
            _of_bytes(partial(_with_value, read, tomllib.loads(texts[0]))),
            _VALUES,
        )
    for name, kind in (("jobs", schema.JOBS), ("nodes", schema.NODES), ("queues", schema.QUEUES)):
        yield f"filter of {name}", _of_bytes(partial(_filter_rows, kind)), _FILTERS


# Which recorded files, by the ends of their names, answer a question.
_ANSWERED_BY = {
    "shares": r"shares",
    "limits": r"limits",
    "reservations": r"reservations",
    "probe": r"probe",
    "jobs": r"jobs[a-z-]*|squeue|row",
    "nodes": r"nodes",
    "queues": r"queues",
    "history": r"history[a-z-]*|sacct|row",
    "native": r"scontrol|native",
    "past native": r"past|native",
    "usage": r"native",
    "past usage": r"past|native",
    "priority": r"priority",
    "queue rules": r"rules",
}


_BETWEEN_BODIES = b"\x1e"
_HTTP_STATUSES = {1: 404, 35: 409, 124: 429, 153: 500}
_JSON_VALUES = (
    *(
        "null",
        "true",
        "0",
        "-1",
        "1.5",
        "NaN",
        "Infinity",
        "1e308",
        "9223372036854775808",
        "1" + "0" * 400,
    ),
    *(
        '""',
        '"x"',
        '"12"',
        '"nan"',
        '"\\u001b[31m"',
        '"\\ud800"',
        '"' + "9" * 5000 + '"',
        "[]",
        "[null]",
        "[[]]",
    ),
    *("{}", '{"a": null}', '[{"a": 1}]', '["x", 1]', "253402300800000", '"2026-11-21T10:22:33Z"'),
)
_RAY_JOB = {"job_id": "01000000"}
# What is asked of one job is asked of this one; a task of an array is one too.
_JOB = "2"
_OF_ONE_JOB = frozenset(
    {"jobs by id", "history by id", "native", "past native", "usage", "past usage", "priority"}
)
_JOB_ID = re.compile(rb"(Job Id: |<Job_Id>)[0-9]+(?:\[\d*\])?(?:\.[A-Za-z0-9.-]+)?(?=[\x1e\n<])")


@cache
def _recorded(folder: str, ending: str) -> tuple[bytes, ...]:
    """The different recorded answers below a folder of fixtures/, the shorter first."""
    wanted = re.compile(rf"(?:.*[-/])?(?:{ending})")
    files = (file for kind in ("*.out", "*.log") for file in (FIXTURES / folder).rglob(kind))
    found = {file.read_bytes() for file in files if wanted.fullmatch(file.stem)}
    return tuple(sorted(found, key=lambda raw: (len(raw), raw)))


@cache
def readers() -> tuple[Reader, ...]:
    """All of them."""
    found: list[Reader] = []
    for title, (backend, folders) in BACKENDS.items():
        reads: list[tuple[str, Callable[[bytes, int], object]]] = []
        for name, query in _questions(backend):
            if query is not None:
                reads.append(
                    (name, partial(_read_answer, query, backend, name == "start estimate"))
                )
        for name, read in (*reads, *_actions(backend)):
            made_up = _MADE_UP.get(f"{title} {name}", ())
            ending = _ANSWERED_BY.get(name) or _ANSWERED_BY.get(name.partition(" ")[0], ".*")
            recorded = [
                raw
                for folder in folders
                for raw in _recorded(folder, ending) or _recorded(folder, ".*")
            ]
            if backend is RAY:
                recorded = list(filter(None, map(_bodies, recorded)))
            if name in _OF_ONE_JOB:
                recorded = [_JOB_ID.sub(rb"\g<1>2.s", raw) for raw in recorded]
            found.append(Reader(f"{title} {name}", read, made_up or recorded or _EMBEDDED_ANSWERS))
    for name, read in _of_text():
        samples = (
            _recorded("metrics", ".*") if name.startswith(("log", "root")) else (_SCRIPT, *_TEXTS)
        )
        found.append(Reader(name, read, samples))
    found += [Reader(name, read, samples) for name, read, samples in (*_of_disks(), *_of_people())]
    return tuple(found)


_SCRIPT = (
    b"#!/bin/bash -l\n#SBATCH -J a --gres=gpu:a100:2 -t 1-02:00:00\n"
    b"#PBS -l select=2:ncpus=4:mem=8gb\n#PBS -N a\nsrun a\n"
)
_TEXTS = (
    b"3-10%1",
    b"1,3,5-7:2,...",
    b"12_[3-5,9%1]",
    b"12[3-5].srv-1",
    b"n[1-3,07-09],g1,rack[1-2]n[01-03]",
    b"afterok:12_3(unfulfilled),afterany:13:14?after:5+10",
    b"ReqNodeNotAvail, UnavailableNodes:g[1-2]",
    b"Not Running: Insufficient amount of resource: ncpus (R: 4 A: 2 T: 8)",
    b"Can Never Run: would exceed queue workq's per-user limit",
    b"/home/%u/%x-%A_%4a.%N.out",
    b"[rank 0] 2026-11-21T10:22:33.5+01:00 loss 1.2",
)
_CONFIG_FILE = Path("/home/a/.config/hpcdash/config.toml")
_REQUESTS = (
    FULL_REQUEST,
    'command = "python train.py"\nslots = 8\ntime = "2h"\n',
    'script = "run.sh"\narray = "1-10%2"\n[environment]\nA = 1\n[site]\nstorage_root = '
    '"/scratch/a"\n',
    'slots = 2\n[call]\nfunction = "train:main"\nitems = [1, "x", 2.5]\n[call.kwargs]\nlr = 1e-4\n',
)
_DF = (
    b"Filesystem     1024-blocks      Used Available Capacity Mounted on\n/dev/vda 264212084 "
    b"24716876 81674036 24% /\n"
    b"//server/my share 9 9 9 99% /x 1000 900 100 90% /data/a 5 6 7 8% /real\nproc 0 0 0 - /proc\n",
    b"Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/a 65536 100 65436 1% /data\n/dev/b 0 0 "
    b"0 - /data/a\n",
    b"1234567\t/data/a\n",
)
_QUOTAS = (
    b"Disk quotas for usr alice (uid 500):\n     Filesystem  kbytes   quota   limit   grace   "
    b"files   quota   limit   "
    b"grace\n   /mnt/lustre 30720* 30000 30920 6d23h56m44s 10101* 10000 11000 "
    b"6d23h59m50s\n/lus/lfs1\n"
    b"                78173842908       0 214748364800       - 4044325       0 51200000       -\n",
    b"Disk quotas for user alice (uid 1001): \n     Filesystem   space   quota   limit   grace   "
    b"files   quota\n"
    b"10.1.1.1:/home 116M*   100M    200M   6days      12  0   0\n/dev/a\n        7876M      0K  "
    b"10240M  105k  0  0\n",
    b"Quota information for storage pool Default (ID: 1):\n      user/group     ||           size  "
    b"        ||\n"
    b"       support|  1000|| 325.48 GiB |   2.00 TiB ||   119758|unlimited\n",
    b"name,id,size,hard,files,hard\nalice,1000,1234,99999,12,unlimited\n",
    b"mmlsquota::HEADER:version:reserved:reserved:filesystemName:quotaType:id:name:blockUsage:blockQuota:blockLimit:"
    b"filesUsage:filesQuota:filesLimit:filesetname:\nmmlsquota::0:1:::gpfs%3A1:USR:500:alice:1024:2048:4096:7:8:9:home:\n",
)
_VALUES = (
    *(
        b"1",
        b"-1.5",
        b"true",
        b"nan",
        b"2026-11-21T10:22:33Z",
        b"[1, 2]",
        b"['a', 'b:ro']",
        b"{a = 1, b = {c = 'x'}}",
    ),
    *(
        b"2h",
        b"1-02:00:00",
        b"480G",
        b"1-10%2",
        b"B:USR1@600",
        b"12_3",
        b"n[01-03]",
        b"gpu:a100:2",
        b"/a/b/%x",
        b"~/a",
    ),
    *(
        b"train:main",
        b"docker://a/b:1",
        b"user@host:22",
        b"http://localhost:8265",
        b"srun",
        b"--nice=3",
        b"A=b c",
    ),
)
_FILTERS = (
    b"state:running limit>2h (train or eval) !debug",
    b"gpus>=4 and not user:ada,ben",
    b'name:"lr=0.1 (new)" or name~^train_[0-9]+$',
    b"submitted_at<2h ago memory_bytes>=16G",
    b"started_at:today or started_at>2026-11-21 10:30",
    b"id:12_[1-3] queue!:gpu* reason:none",
    b"state:idle features:a100 flags:maint",
    b"priority=-5 elapsed<90s node_list:n[1-3]",
)
# Integers and null are right for columns of any kind but a list.
_EMBEDDED_COLUMNS = {
    field.name: [None, None]
    for kind in (schema.JOBS, schema.NODES, schema.QUEUES)
    for field in kind
}
_EMBEDDED_ANSWERS = (
    json.dumps(
        {"columns": {**_EMBEDDED_COLUMNS, "id": ["1", "2_3"], "cpus": [4, 8], "name": ["a", "b"]}}
    ).encode(),
    b'{"user": "a", "version": "1", "node": "n", "now": 1.5}',
    b'{"id": 3, "ignored": ["--x"]}',
    b'{"job_id": "2", "done": true, "words": ""}\n{"job_id": "12_3", "done": false, "words": "no '
    b'such job"}\n',
    b'{"cpu_seconds": 1.5, "memory_peak_bytes": 100}',
)
# Answers of which no case keeps any.
_MADE_UP: Mapping[str, Sequence[bytes]] = {
    "slurm script": (_SCRIPT,),
    "slurm past script": (b"Batch Script for 12\n" + b"-" * 80 + b"\n" + _SCRIPT,),
    "slurm usage": (
        b"12.batch|1|n1|cpu=00:00:27,fs/disk=48616,mem=367864K|cpu=00:00:27,mem=1G|fs/disk=4|1.00M\n",
    ),
    "slurm past native": (
        b"\n".join(
            _TOKEN.join(text.encode() for text in row) for row in (PAST_JOB, PAST_JOB.values())
        )
        + b"\n",
    ),
    "slurm past usage": (
        b"12|||1771200000|1771203600|3600|4|billing=4,cpu=4,mem=8G,node=1|00:10.909||||\n"
        b"12.batch|1|1|1771200000|1771203600|3600|4|cpu=4,mem=8G,node=1|1-02:03:04|cpu=00:00:27|mem=1G|fs/disk=4|1.00M\n",
    ),
    "slurm priority": (b"4294901758|0|cpu=1|0|1|0.5|0|0|2|0.1|3|0.2|4|1|5|0\n",),
    "slurm qos": (
        b"normal|||00:00:00|1-00:00:00|cpu=4|2|3|cpu=10|4|gres/gpu=2\nhigh|normal|requeue|00:05:00|||||||\n",
    ),
    "slurm queue rules": (
        b"PartitionName=q\n   AllowGroups=ALL PreemptMode=REQUEUE GraceTime=120\n",
    ),
    "slurm preemption": (
        b"PreemptType             = preempt/partition_prio\nPartitionName=q\n   PriorityTier=1 "
        b"PreemptMode=REQUEUE\n\n"
        b"PartitionName=r\n   PriorityTier=9\n",
    ),
    "slurm accounts": (
        b"alice|physics|physics||normal,high|normal\nalice|physics|bio|gpu|normal|\n",
    ),
    "slurm qos offers": (b"normal|1-00:00:00|4|cpu=4,gres/gpu=2|cpu=8|5|cpu=100|9|low\n",),
    "slurm start estimate": (
        b"sbatch: Job 12 to start at 1771200000 using 4 processors on nodes n[1-2] in "
        b"partition q\n",
    ),
    "slurm submit": (b"Submitted batch job 12\n", b"12;cluster\n"),
    "slurm cancel": (
        b"scancel: Terminating job 2\nscancel: error: Kill job error on job id 12_3: Invalid job "
        b"id specified\n",
    ),
    "slurm hold": (
        b"12_0,4-5: No error\n12_1-3: Job is pending execution\nAccess denied for job 2\n",
    ),
    **dict.fromkeys(
        ("pbs-text native", "pbs-text past native", "pbs-text usage", "pbs-text past usage"),
        (
            b"Clock: 1795233995\nJob Id: 2.s\n    Job_Name = train\n    Job_Owner = alice@login1\n"
            b"    resources_used.cput = 00:10:00\n    resources_used.mem = 18874368kb\n    "
            b"job_state = R\n"
            b"    Resource_List.select = 2:ncpus=4\n    Output_Path = login1:/home/alice/train.o2\n"
            b"    Variable_List = PBS_O_HOME=/home/alice,PBS_O_WORKDIR=/home/al\n\tice\n\n",
        ),
    ),
    "openpbs submit": (b"12.s\n",),
    "openpbs cancel": (b"qdel: Unknown Job Id 2.s\nqdel: Unauthorized Request  12[3].s\n",),
}


def _with_other_values(choose: random.Random, raw: bytes) -> bytes:
    """JSON some of whose values are others, or are missing; as it is what is none."""
    bodies = raw.split(_BETWEEN_BODIES)
    at = choose.randrange(len(bodies))
    try:
        document = json.loads(bodies[at])
    except ValueError:
        return raw
    for _ in range(choose.choice((1, 1, 2, 3, 8))):
        within, key = choose.choice(list(_json_places({"": document})))
        if choose.random() < 0.1 and key != "":
            del within[key]
        elif key != "":
            within[key] = json.loads(choose.choice(_JSON_VALUES))
    bodies[at] = json.dumps(document).encode()
    return _BETWEEN_BODIES.join(bodies)


def _json_places(container: Any) -> Iterator[tuple[Any, Any]]:
    items = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in list(items):
        yield container, key
        if isinstance(value, dict | list):
            yield from _json_places(value)


def mutant(choose: random.Random, samples: Sequence[bytes]) -> bytes:
    """A recorded answer with lines lost, moved and repeated, bytes changed, runs put in; often
    cut.
    """
    raw = choose.choice(samples)
    if raw[:1] in (b"{", b"[") and choose.random() < 0.5:
        return _with_other_values(choose, raw)
    if len(raw) > 20_000 and choose.random() < 0.8:
        start = choose.randrange(len(raw) - 10_000)
        raw = raw[:200] + raw[start : start + 10_000]
    if choose.random() < 0.3 and (lines := raw.splitlines(keepends=True)):
        raw = b"".join(choose.choice(lines) for _ in range(choose.randrange(1, 9)))
    changed = bytearray(raw)
    for _ in range(choose.choice((0, 1, 1, 2, 3, 8, 30))):
        at = choose.randrange(len(changed) + 1)
        match choose.randrange(9):
            case 0:
                changed[at : at + 1] = bytes((choose.choice(_LETTERS),))
            case 1:
                changed[at : at + choose.choice((1, 1, 5, 50))] = b""
            case 2:
                changed[at:at] = choose.choice(PATTERNS) * choose.choice((1, 1, 2, 3, 20))
            case 3:
                changed[at:at] = _TOKEN * choose.choice((1, 1, 2, 9))
            case 4:
                changed[at:at] = choose.choice(_NUMBERS)
            case 7:
                if number := _NUMBER.search(changed, at):
                    changed[slice(*number.span())] = choose.choice(_NUMBERS)
            case 8:
                if field := _FIELD.search(changed, at):
                    changed[slice(*field.span(1))] = choose.choice(
                        (b"", b"", b"None", b"(null)", b"N/A", b" ")
                    )
            case 5:
                other = choose.choice(samples)
                start = choose.randrange(len(other) + 1)
                changed[at:at] = other[start : start + choose.choice((10, 100, 1000))]
            case _:
                end = at + choose.choice((1, 3, 12, 80))
                changed[at:at] = changed[at:end]
    if choose.random() < 0.01:
        at = choose.randrange(len(changed) + 1)
        pattern = choose.choice(PATTERNS)
        changed[at:at] = pattern * (_RUN_BYTES // len(pattern))
    if choose.random() < 0.2:
        del changed[choose.randrange(len(changed) + 1) :]
    return bytes(changed)


def try_reader(reader: Reader, raw: bytes, status: int = 0) -> float:
    """The processor's seconds it takes to read an answer, or to refuse it; raises Broken for what
    it must not do.
    """
    began = time.thread_time()
    try:
        with _ended_if_it_hangs():
            reader.read(raw, status)
    except HpcdashError as error:
        str(error)
    except Exception as error:
        raise Broken(f"{reader.name} raised {type(error).__name__}: {str(error)[:300]}") from error
    seconds = time.thread_time() - began
    limit = SECONDS_AT_REST + SECONDS_A_BYTE * len(raw)
    if seconds > limit and seconds > limit * _yardstick() / _YARDSTICK_SECONDS:
        raise Broken(f"{reader.name} took {seconds:.1f} s for {len(raw)} bytes")
    return seconds


def _yardstick() -> float:
    """The processor's seconds that a fixed piece of work takes here and now."""
    began = time.thread_time()
    for _ in range(20):
        re.findall(rb"(\w+)=(\d+)", b"name=12 " * 1000)
        sum(number * number for number in range(10_000))
    return time.thread_time() - began


@contextlib.contextmanager
def _ended_if_it_hangs() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TimeoutError(f"does not end in {_HANGING_SECONDS} s of the processor")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANGING_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def mutant_at(seed: int, number: int, some: Sequence[Reader]) -> tuple[Reader, bytes, int]:
    """Return the mutant with this number: its reader, its bytes and an exit status."""
    choose = random.Random(f"{seed} {number}")
    reader = some[number % len(some)]
    return reader, mutant(choose, reader.samples), choose.choice((0, 0, 0, 0, 1, 35, 124, 153, 255))


def mutants(seed: int, some: Sequence[Reader]) -> Iterator[tuple[Reader, bytes, int]]:
    """One after another, for ever."""
    return (mutant_at(seed, number, some) for number in itertools.count())


def with_runs(
    choose: random.Random, reader: Reader, run_bytes: int, patterns: Iterable[bytes] = PATTERNS
) -> Iterator[tuple[str, bytes]]:
    """Answers of one pattern alone, and recorded ones with a run of it in the middle of
    something.
    """
    for pattern in (*patterns, _TOKEN, b"\x1f\x1e" + b"T" * 10):
        run = pattern * (run_bytes // len(pattern))
        yield f"{pattern!r}", run
        sample = choose.choice(reader.samples)
        at = choose.randrange(len(sample) + 1)
        yield f"{pattern!r} at {at}", sample[:at] + run + sample[at:]


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class _Tried:
    """What came of some attempts; `slowest` has microseconds a byte."""

    count: int
    digest: bytes
    faults: tuple[_Fault, ...]
    slowest: tuple[tuple[float, str], ...]


def _try_all(attempts: Iterable[tuple[str, Reader, bytes, int]]) -> _Tried:
    digest, count = hashlib.sha256(), 0
    faults: list[_Fault] = []
    slowest: list[tuple[float, str]] = []
    for place, reader, raw, status in attempts:
        count += 1
        digest.update(b"%d %d " % (status, len(raw)) + raw)
        try:
            seconds = try_reader(reader, raw, status)
        except Broken as error:
            faults.append(_fault(place, reader, raw, status, error))
        else:
            slowest = heapq.nlargest(
                10,
                [
                    *slowest,
                    (
                        seconds / (len(raw) + 10_000) * 1e6,
                        f"{reader.name}, {place}: {seconds:.2f} s",
                    ),
                ],
            )
    return _Tried(count, digest.digest(), tuple(faults), tuple(slowest))


def _fault(place: str, reader: Reader, raw: bytes, status: int, error: Broken) -> _Fault:
    with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=".out", delete=False) as file:
        file.write(raw)
    words = f"{place}: {error} (exit status {status}): {file.name}"
    if error.__cause__ is not None:
        words += "\n" + "".join(traceback.format_exception(error.__cause__, limit=-4))
    return _Fault(f"{reader.name} {type(error.__cause__ or error).__name__}", words)


def _numbered(seed: int, beginning: str, numbers: range) -> _Tried:
    some = [reader for reader in readers() if reader.name.startswith(beginning)]
    return _try_all(
        (f"seed {seed}, number {number}", *mutant_at(seed, number, some)) for number in numbers
    )


def _in_workers(seed: int, beginning: str, numbers: range, workers: int) -> Iterator[_Tried]:
    """In order; a block is the same whatever worker has it."""
    blocks = [numbers[at : at + _BLOCK] for at in range(0, len(numbers), _BLOCK)]
    block = partial(_numbered, seed, beginning)
    if workers == 1:
        yield from map(block, blocks)
        return
    finished = 0
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), faulthandler.enable
    ) as pool:
        try:
            for tried in pool.map(block, blocks):
                yield tried
                finished += 1
        except BrokenProcessPool:
            first = blocks[finished][0]
            words = (
                f"a worker was ended: seed {seed}, from number {first} on; see --first "
                f"{first} --workers 1"
            )
            yield _Tried(0, b"", (_Fault("worker", words),), ())


def _long_runs(seed: int, beginning: str, run_bytes: int) -> Iterator[_Tried]:
    for reader in readers():
        if reader.name.startswith(beginning):
            runs = with_runs(random.Random(seed), reader, run_bytes)
            yield _try_all((f"seed {seed} {words}", reader, raw, 0) for words, raw in runs)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--reader", default="", help="those whose names begin so, which have numbers of their own"
    )
    parser.add_argument("--long-runs", action="store_true")
    parser.add_argument("--megabytes", type=float, default=1)
    asked = parser.parse_args(words)
    numbers = range(asked.first, asked.first + asked.count)
    if not any(reader.name.startswith(asked.reader) for reader in readers()):
        parser.error(f"no reader's name begins with {asked.reader!r}")
    if asked.long_runs:
        parts = _long_runs(asked.seed, asked.reader, int(asked.megabytes * 1e6))
    else:
        parts = _in_workers(asked.seed, asked.reader, numbers, asked.workers)
    digest, count = hashlib.sha256(), 0
    broken: Counter[str] = Counter()
    slowest: list[tuple[float, str]] = []
    for tried in parts:
        count += tried.count
        digest.update(tried.digest)
        slowest = heapq.nlargest(10, [*slowest, *tried.slowest])
        for fault in tried.faults:
            broken[fault.kind] += 1
            if broken[fault.kind] <= 2:
                print(fault.text, flush=True)
    print(
        f"seed {asked.seed}: {count} mutants {digest.hexdigest()[:16]}; {broken.total()} broke "
        "their readers"
    )
    print(
        "the slowest, in µs a byte:",
        *(f"  {rate:.2f} {line[:160]}" for rate, line in slowest),
        sep="\n",
    )
    for kind, times in broken.items():
        print(f"broken {times} times: {kind}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
