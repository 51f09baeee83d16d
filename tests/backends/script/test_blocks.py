"""Lines of generated scripts that a page folds: those that a writer adds, and no others."""

from __future__ import annotations

import pytest

from hpcdash.backends.base import Backend
from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.domain.request import Request
from hpcdash.domain.scripts import Fold, LineKind, script_folds, script_lines
from tests.backends.script.golden_text import PLACE, REQUESTS, assert_golden
from tests.backends.script.test_plain import FULL
from tests.support.scripts import Scheduler, batch_script

BACKENDS = {Scheduler.SLURM: SLURM, Scheduler.PBS: PBS}
LINES = "\n".join(("#!/bin/bash", "#SBATCH --output=/home/ann/launches/x/%j.out", "", "{}", ""))
LIBRARY = (
    "# The command can `import hpcdash.job` from this zip; job_library = false leaves it out.\n"
    'export PYTHONPATH={}/hpcdash-job.zip"${{PYTHONPATH:+:$PYTHONPATH}}"'
)
START = 'interrupted=\nstart_nodes\nwait_nodes\nexit "$status"'


def folds_of(text: str, backend: Backend = SLURM) -> list[Fold]:
    lines = script_lines(text, backend.scripts.explain)
    return script_folds(text, lines, backend.scripts.blocks())


def folded(text: str, backend: Backend) -> str:
    """The script as a page shows it."""
    shown, raw = [], text.splitlines()
    folds = {fold.first: fold for fold in folds_of(text, backend)}
    at = 0
    while at < len(raw):
        shown.append(f"▸ {folds[at].title}" if at in folds else raw[at])
        at = folds[at].last if at in folds else at + 1
    return "\n".join(shown) + "\n"


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize("name", ["torchrun", "array", "probe", "container"])
def test_a_folded_script_has_the_lines_of_the_person(scheduler: Scheduler, name: str) -> None:
    text = batch_script(scheduler, REQUESTS[name], PLACE).text
    assert_golden(f"folded-{scheduler}-{name}.txt", folded(text, BACKENDS[scheduler]))


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize("name", REQUESTS)
def test_no_directive_and_no_line_of_the_command_is_folded(scheduler: Scheduler, name: str) -> None:
    request = REQUESTS[name]
    text = batch_script(scheduler, request, PLACE).text
    backend = BACKENDS[scheduler]
    lines = script_lines(text, backend.scripts.explain)
    hidden = {at for fold in folds_of(text, backend) for at in range(fold.first, fold.last)}
    assert len(hidden) > len(lines) / 4
    assert not [
        line for at, line in enumerate(lines) if at in hidden and line.kind is LineKind.DIRECTIVE
    ]
    shown = [line.text for at, line in enumerate(lines) if at not in hidden]
    commands = (request.command, request.startup_hook, *request.environment.values())
    for line in "\n".join(commands).splitlines():
        assert any(line.split("'")[0] in one for one in shown) or line == "hunter2"


@pytest.mark.parametrize("scheduler", Scheduler)
def test_a_plain_script_has_nothing_to_fold(scheduler: Scheduler) -> None:
    assert folds_of(batch_script(scheduler, FULL, PLACE).text, BACKENDS[scheduler]) == []


def test_each_block_of_a_fold_has_its_line_and_a_sentence() -> None:
    text = batch_script(Scheduler.SLURM, Request(command="python train.py"), PLACE).text
    _, last = folds_of(text)
    assert last.title == "25 lines by hpcdash: job library, end time, start"
    raw = text.splitlines()
    library = next(at for at, block in last.blocks if block.name == "job library")
    assert raw[library].startswith("# The command can `import hpcdash.job`")
    assert all(block.explanation for _, block in last.blocks)


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        (START, 1),
        (LIBRARY.format("/home/ann/launches/x"), 1),
        # Another folder than that of the logs, or a part of it.
        (LIBRARY.format("/home/mallory/x"), 0),
        (LIBRARY.format("/launches/x"), 0),
        (LIBRARY.format("/home/ann/launches"), 0),
        (LIBRARY.format("/home/ann/launches/x/$(reboot)"), 0),
        # One letter more, a line within, a command behind.
        (START.replace("start_nodes", "start_nodes2"), 0),
        (START.replace("wait_nodes", "rm -rf ~\nwait_nodes"), 0),
        (f"{START}; rm -rf ~", 0),
        (f"rm -rf ~; {START}", 0),
        (f"  {START}", 0),
        (START.replace("\n", "\r\n"), 0),
        ("END_OF_COMMAND\nEND_OF_COMMAND", 0),
        ("#SBATCH --mem=1G\n#SBATCH --nodes=2", 0),
    ],
)
def test_what_differs_from_a_block_in_a_letter_stands(lines: str, count: int) -> None:
    text = LINES.format(lines)
    assert len(folds_of(text)) == count


def test_a_line_between_blocks_stands_between_two_folds() -> None:
    text = LINES.format(f"{START}\n\n{START}\nrm -rf ~\n{START}\n\n# END\n")
    folds = folds_of(text)
    raw = text.split("\n")
    assert [(fold.first, fold.last) for fold in folds] == [(3, 12), (13, 17)]
    assert raw[12] == "rm -rf ~"
    assert raw[18] == "# END"
