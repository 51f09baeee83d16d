"""Asks a live Slurm all that hpcdash asks, and keeps it as a case of fixtures/: see
hpcdash.recorded for the format.

    python -m tests.support.record_case --case everyday --user alice --lab /path/of/a/lab --rename alice=maya
    python -m tests.support.record_case --expect fixtures/slurm/22.05/everyday

The second writes expected.json anew from what is recorded. Read its difference before keeping it.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.base import Backend
from hpcdash.backends.queries import JobScope, Query
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.errors import HpcdashError, without_env
from hpcdash.recorded import CASE_FILE, find_token, normalised_argv
from hpcdash.transport.base import CommandResult
from tests.support.play_case import HISTORY_SECONDS, expected_of
from tests.support.slurm import SlurmLab
from tests.support.slurm.programs import inside
from tests.support.stretch_time import stretched

ROOT = Path(__file__).resolve().parents[2]
# Words longer than this go to a file of their own, shared by the cases of a version.
LONGEST_WORD_IN_PLACE = 100
_COMMAND_LIMIT_SECONDS = 120


class Recorded(Struct, frozen=True):
    """One command's answer as it goes into a case; `name` is the stem of its files."""

    name: str
    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    word_file: str = ""


def probe_question() -> tuple[str, str, Query[Any]]:
    """What is asked first; the answer says which backend asks the rest."""
    return "probe", "probe.sh", BACKEND.probe.query()


def case_questions(user: str, backend: Backend = BACKEND) -> Iterator[tuple[str, str, Query[Any]]]:
    """(file stem, name of the file for a long word, query) of everything else a screen asks for."""
    for stem, scope in (
        ("jobs-me", JobScope("")),
        ("jobs-me-ended", JobScope("", ended=True)),
        ("jobs-mine", JobScope(user)),
        ("jobs-mine-ended", JobScope(user, ended=True)),
        ("jobs-all", JobScope()),
        ("jobs-all-ended", JobScope(ended=True)),
    ):
        yield stem, "squeue-fields", backend.queue.jobs(scope)
    yield "nodes", "sinfo-node-fields", backend.queue.nodes()
    yield "queues", "sinfo-queue-fields", backend.queue.queues()
    yield "history-me", "sacct-fields", backend.history.jobs("", HISTORY_SECONDS)
    yield "history-mine", "sacct-fields", backend.history.jobs(user, HISTORY_SECONDS)
    yield "history-all", "sacct-fields", backend.history.jobs(None, HISTORY_SECONDS)


def job_questions(
    job_id: str, *, in_queue: bool, backend: Backend = BACKEND
) -> Iterator[tuple[str, str, Query[Any]]]:
    """The same for one job: from the queue where it still is, else from the history."""
    stem = "jobs/" + re.sub(r"[^0-9A-Za-z]+", "-", re.sub(r"_\[.*", "_rest", job_id))
    if in_queue:
        yield f"{stem}-squeue", "squeue-fields", backend.queue.jobs(JobScope(job_ids=(job_id,)))
        yield f"{stem}-scontrol", "", backend.detail.native(job_id)
    else:
        yield (
            f"{stem}-sacct",
            "sacct-fields",
            backend.history.jobs(None, HISTORY_SECONDS, (job_id,)),
        )
        yield f"{stem}-sacct-all", "", backend.history.native(job_id)


def run_as(
    user: str, environment: Mapping[str, str], root: str, argv: tuple[str, ...]
) -> CommandResult:
    """Run a command as somebody here, in a login's bare environment; `root` as of SlurmLab."""
    home = pwd.getpwnam(user).pw_dir
    settings = {
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        **environment,
    }
    become = ("runuser", "-u", user, "--") if pwd.getpwuid(os.getuid()).pw_name != user else ()
    bare = ("env", "-i", "-C", home, *(f"{name}={value}" for name, value in settings.items()))
    started = time.monotonic()
    done = subprocess.run(
        [*inside(root), *become, *bare, *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_COMMAND_LIMIT_SECONDS,
    )
    return CommandResult(
        argv, done.returncode, done.stdout, done.stderr, time.monotonic() - started
    )


def record(
    stem: str, word_file: str, query: Query[Any], ask: Callable[[tuple[str, ...]], CommandResult]
) -> tuple[Recorded, Any]:
    """The answer to one query, RECORDED_TOKEN in place of its own token, and what is read from it
    (None: nothing).
    """
    answer = ask(query.argv)
    try:
        parsed = query.parse(answer)
    except HpcdashError as error:
        print(f"{stem}: {type(error).__name__}: {error.message}", file=sys.stderr)
        parsed = None
    token = find_token(query.argv)
    stdout = (
        answer.stdout.replace(token.encode(), RECORDED_TOKEN.encode()) if token else answer.stdout
    )
    argv = normalised_argv(query.argv)
    return Recorded(
        stem, argv, answer.status, stdout, answer.stderr, answer.seconds, word_file
    ), parsed


def renamed(recorded: Recorded, renames: Iterable[tuple[str, str]]) -> Recorded:
    """With words replaced in argv and output; a word is not part of a longer one, nor of the token
    before it.
    """
    for old, new in renames:
        pattern = re.compile(rb"(?<![A-Za-z0-9_])" + re.escape(old.encode()) + rb"(?![A-Za-z0-9_])")

        def change(raw: bytes, pattern: re.Pattern[bytes] = pattern, new: str = new) -> bytes:
            token = RECORDED_TOKEN.encode()
            return token.join(pattern.sub(new.encode(), piece) for piece in raw.split(token))

        recorded = replace(
            recorded,
            argv=tuple(change(word.encode()).decode() for word in recorded.argv),
            stdout=change(recorded.stdout),
            stderr=change(recorded.stderr),
        )
    return recorded


def toml_string(text: str) -> str:
    """A TOML basic string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_case(
    directory: Path,
    about: str,
    user: str,
    clock: int,
    commands: Iterable[Recorded],
    *,
    backend: str = BACKEND.name,
) -> None:
    """The folder of a case: case.toml and the files it names."""
    words = directory.parent / "words"
    lines = [
        f"backend = {toml_string(backend)}",
        f"about = {toml_string(about)}",
        f"user = {toml_string(user)}",
        f"clock = {datetime.fromtimestamp(clock, UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}",
    ]
    for command in commands:
        shown = []
        longest = max(command.argv, key=len)
        for word in without_env(command.argv):
            if word == longest and len(word) > LONGEST_WORD_IN_PLACE and command.word_file:
                words.mkdir(parents=True, exist_ok=True)
                (words / command.word_file).write_bytes(word.encode())
                shown.append(f"{{ file = {toml_string(f'../words/{command.word_file}')} }}")
            else:
                shown.append(toml_string(word))
        lines += ["", "[[command]]", f"argv = [{', '.join(shown)}]"]
        if command.status:
            lines.append(f"exit = {command.status}")
        for key, suffix, raw in (
            ("stdout", "out", command.stdout),
            ("stderr", "err", command.stderr),
        ):
            if raw:
                file = directory / f"{command.name}.{suffix}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(raw)
                lines.append(f"{key} = {toml_string(f'{command.name}.{suffix}')}")
        lines.append(f"seconds = {command.seconds:.3f}")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CASE_FILE).write_text("\n".join(lines) + "\n", "utf-8")


def write_expected(directory: Path) -> None:
    """expected.json from what is recorded."""
    text = json.dumps(expected_of(directory), ensure_ascii=False, indent=1)
    (directory / "expected.json").write_text(text + "\n", "utf-8")


def record_case(
    directory: Path,
    about: str,
    user: str,
    environment: Mapping[str, str],
    renames: list[tuple[str, str]],
    *,
    root: str = "",
    whose_details: str = "mine",
    stretch: float = 1.0,
) -> None:
    """Ask everything, and write the case and what is read from it.

    `whose_details`: of whose jobs each one's own answers are kept, "mine", "all" or "none".
    """
    ask = partial(run_as, user, environment, root)
    tables: dict[str, Any] = {}
    clock = int(time.time())
    recorded, found = record(*probe_question(), ask)
    commands = [recorded]
    backend, cluster = BACKEND, ""
    if found is not None:
        backend, cluster = BACKEND.for_probe(found), found.cluster
        clock = int(found.clock_epoch_seconds or clock)
    for stem, word_file, query in case_questions(user, backend):
        recorded, tables[stem] = record(stem, word_file, query, ask)
        commands.append(recorded)
    for stem, word_file, asked in (
        ("associations", "", backend.policy.associations(user, cluster)),
        ("qos", "", backend.policy.qos_offers()),
        ("shares", "", backend.policy.shares(user)),
        ("shares-me", "", backend.policy.shares("")),
        ("limits", "limits.sh", backend.policy.limits(user, cluster)),
        ("reservations", "reservations.sh", backend.policy.reservations(user)),
        ("reservations-me", "reservations.sh", backend.policy.reservations("")),
    ):
        commands.append(record(stem, word_file, asked, ask)[0])
    wanted: dict[str, bool] = {}
    if whose_details != "none":
        for stem, in_queue in (
            (f"jobs-{whose_details}-ended", True),
            (f"history-{whose_details}", False),
        ):
            for job_id in tables[stem].table["id"].to_pylist() if tables.get(stem) else ():
                wanted.setdefault(job_id, in_queue)
    seen = {command.argv for command in commands}
    for job_id, in_queue in wanted.items():
        for stem, word_file, query in job_questions(job_id, in_queue=in_queue, backend=backend):
            if normalised_argv(query.argv) not in seen:
                recorded, _ = record(stem, word_file, query, ask)
                seen.add(recorded.argv)
                commands.append(recorded)
    if stretch != 1.0:
        commands = [
            replace(command, stdout=stretched(command.argv, command.stdout, clock, stretch))
            for command in commands
        ]
    shown_user = dict(renames).get(user, user)
    write_case(
        directory, about, shown_user, clock, [renamed(command, renames) for command in commands]
    )
    write_expected(directory)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.record_case", description=__doc__
    )
    parser.add_argument(
        "--expect",
        type=Path,
        metavar="CASE_DIR",
        help="only write expected.json of a recorded case",
    )
    parser.add_argument("--case", help="its name")
    parser.add_argument("--about", default="", help="one sentence")
    parser.add_argument("--version", default="22.05")
    parser.add_argument("--user", default=pwd.getpwuid(os.getuid()).pw_name)
    parser.add_argument(
        "--lab", type=Path, help="folder of a throw-away Slurm; else the Slurm of this machine"
    )
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument(
        "--details", choices=("mine", "all", "none"), default="mine", help="whose jobs one by one"
    )
    parser.add_argument(
        "--stretch", type=float, default=1.0, metavar="FACTOR", help="make the past longer"
    )
    asked = parser.parse_args()
    if asked.expect:
        write_expected(asked.expect)
        return
    environment, root = dict(word.split("=", 1) for word in asked.env), ""
    if asked.lab:
        lab = SlurmLab.attach(asked.lab)
        environment, root = {**lab.env, **environment}, lab.settings.root
    elif "SLURM_CONF" in os.environ:
        environment.setdefault("SLURM_CONF", os.environ["SLURM_CONF"])
    renames = [(old, new) for old, _, new in (word.partition("=") for word in asked.rename)]
    directory = ROOT / "fixtures" / "slurm" / asked.version / asked.case
    record_case(
        directory,
        asked.about,
        asked.user,
        environment,
        renames,
        root=root,
        whose_details=asked.details,
        stretch=asked.stretch,
    )
    print(directory)


if __name__ == "__main__":
    main()
