"""Every kind of generated script: bash reads it, and shellcheck has nothing to say."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcdash.backends.script.allocation import KIND, Waiting
from hpcdash.backends.script.body import Place
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import (
    LONE_LAUNCHERS,
    NODE_LAUNCHERS,
    Call,
    Container,
    EarlySignal,
    Launcher,
    Request,
    Runtime,
)
from tests.support.scripts import Scheduler, batch_script

pytestmark = pytest.mark.system
SIGNALS = {
    None: "",
    EarlySignal("USR1", 600): "signal",
    EarlySignal("USR1", 600, batch_only=True): "batch-signal",
}
SHAPES = {(1, None): "one", (8, 4): "nodes", (8, None): "spread"}
PLACE = Place("1a2b", "/home/ann/launches/x-1a2b", login="/home/ann/.login")
COPIES = dict.fromkeys(
    ("hpcdash-job.zip", "secrets.sh", "files/train.py", "code.tar.gz", "call-args.b64"),
    hashlib.sha256().hexdigest(),
)
CALLS: dict[str, dict[str, Any]] = {
    "wheel": {
        "call": Call(
            "lab.train",
            "main",
            items=(1, 2),
            sys_path=("/home/ann/it's",),
            wheel="/home/ann/my dist/x.whl",
        ),
        "array": parse_tasks("0-1%1"),
        "slots": 8,
        "slots_per_node": 4,
    },
    "source": {
        "call": Call("lab.train", "main", source="/home/ann/my code"),
        "slots": 8,
        "slots_per_node": 4,
    },
    "container": {
        "call": Call("lab.train", "main", kwargs={"lr": 1}, python="/opt/my env/bin/python"),
        "container": Container(Runtime.APPTAINER, "lab/net:1"),
    },
}
_IS_OF_PATHS = re.compile("no enroot container|--container-mounts=")
_TEXTS = re.compile(r"^IFS= read -r -d '' \w+ << '(\w+)'\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


def scripts(scheduler: Scheduler) -> Iterator[tuple[str, str]]:
    """(name, script) of each runtime × launcher × signal × shape."""
    # No script starts docker.
    runtimes = [runtime for runtime in Runtime if runtime is not Runtime.DOCKER]
    for runtime, launcher, signal, shape in product(runtimes, Launcher, SIGNALS, SHAPES):
        is_lone, is_contained = launcher in LONE_LAUNCHERS, runtime is not Runtime.NONE
        if scheduler is Scheduler.PBS and (launcher is Launcher.SRUN or runtime is Runtime.PYXIS):
            continue
        if is_lone and (is_contained or (launcher is Launcher.HOROVODRUN and shape == (8, None))):
            continue
        request = Request(
            command="train.py --name 'a b'\nsync",
            slots=shape[0],
            slots_per_node=shape[1],
            launcher=launcher,
            signal=signal,
            limit_seconds=7200,
            work_dir="/home/ann/work" if runtime is Runtime.ENROOT else "/home/ann/my work",
            environment={"NOTE": "it's $HOME\nline two", "DATA": "/data"},
            container=None
            if runtime is Runtime.NONE
            else Container(runtime, "lab/net:1", ("/data:/d:ro",)),
        )
        name = "-".join(filter(None, (runtime, launcher, SIGNALS[signal], SHAPES[shape])))
        yield name, batch_script(scheduler, request, PLACE).text
    for launcher in NODE_LAUNCHERS:
        fields = {
            **CALLS["source"],
            "launcher": launcher,
            "startup_hook": "module load 'a b'",
            "files": (".",),
        }
        fields["rank_logs"] = launcher is Launcher.TORCHRUN
        yield (
            f"call-{launcher}",
            batch_script(scheduler, Request(limit_seconds=7200, **fields), PLACE).text,
        )
    for name, fields in CALLS.items():
        yield (
            f"call-{name}",
            batch_script(scheduler, Request(limit_seconds=7200, **fields), PLACE).text,
        )
    for container in (
        None,
        Container(Runtime.APPTAINER, "lab/net:1"),
        Container(Runtime.ENROOT, "/i.sqsh"),
    ):
        fields = {
            "container": container,
            "slots": 8,
            "slots_per_node": 4,
            "environment": {"API_TOKEN": "it's"},
        }
        fields |= {
            "files": (".",),
            "startup_hook": "module load a",
            "limit_seconds": 7200,
            "work_dir": "/work",
        }
        for name, work in (
            ("script", {"script": "train.py"}),
            ("call", {"call": Call("m", "f", args=(1,))}),
        ):
            request = Request(**fields, **work, signal=EarlySignal("USR1", 600))
            copied = replace(
                PLACE, script=f"{PLACE.folder}/files/train.py", copies=COPIES, code_folder="code"
            )
            text = batch_script(scheduler, request, copied).text
            # Nothing that others could replace is run.
            assert not [copy for copy in COPIES if f"{PLACE.folder}/{copy}" in text]
            yield f"copied-{name}-{container.runtime if container else 'none'}", text
    allocation = Request(
        kind=KIND, command=":", slots=8, work_dir="/home/ann/my work", job_library=False
    )
    for name, seconds in (("kept", None), ("idle", 1800)):
        waits = replace(PLACE, waiting=Waiting(seconds))
        yield f"allocation-{name}", batch_script(scheduler, allocation, waits).text
    run = replace(PLACE, folder=f"{PLACE.folder}/runs/1.a", is_run=True)
    yield (
        "run",
        batch_script(
            scheduler,
            Request(command="train.py", slots=8, slots_per_node=4, limit_seconds=7200),
            run,
        ).text,
    )


@pytest.fixture(params=Scheduler)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Each script as a file, and beside it the texts that bash is given on the nodes."""
    written: dict[str, str] = {}
    for name, script in scripts(request.param):
        written[name] = script
        for number, (_, text) in enumerate(_TEXTS.findall(script)):
            if "trap" in text or "enroot" in text:
                written[f"{name}-{number}"] = f"#!/bin/bash\n# shellcheck disable=SC2016\n{text}"
    for text, names in _by_text(written).items():
        (tmp_path / names[0]).write_text(text)
    return tmp_path


def _by_text(written: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, text in written.items():
        found.setdefault(text, []).append(name)
    return found


def test_bash_reads_every_kind_of_script(folder: Path) -> None:
    files = sorted(folder.iterdir())
    assert len(files) > 80
    loop = 'for file; do bash -n "$file" || exit 1; done'
    checked = subprocess.run(["bash", "-c", loop, "bash", *files], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def covering(files: Iterable[Path]) -> Iterator[Path]:
    """As few files as have every line of them all, and what follows it."""
    seen: set[tuple[str, str]] = set()
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        pairs = set(pairwise(file.read_text().splitlines()))
        if pairs - seen:
            seen |= pairs
            yield file


@pytest.mark.parametrize(
    "some", [pytest.param(covering, id="each line"), pytest.param(sorted, marks=pytest.mark.long)]
)
@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say_of_any_kind_of_script(
    folder: Path, some: Callable[[Iterable[Path]], Iterable[Path]]
) -> None:
    # SC1091: a login file is not there to be followed.
    words = ["shellcheck", "-e", "SC1091", *map(str, some(folder.iterdir()))]
    assert subprocess.run(words, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize("scheduler", Scheduler)
def test_no_line_of_ours_is_longer_than_a_screen(scheduler: Scheduler) -> None:
    for name, script in scripts(scheduler):
        long = [
            line
            for line in script.splitlines()
            if len(line) > 120 and not _IS_OF_PATHS.search(line)
        ]
        assert not long, (name, long)
