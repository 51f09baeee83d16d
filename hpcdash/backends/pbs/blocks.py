"""Blocks of lines of qsub's generated scripts, by which they are recognised."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from hpcdash.backends.pbs import script
from hpcdash.backends.script.blocks import (
    EARLY,
    END_TIME,
    FOLDER,
    NUMBER,
    STARTED,
    file_blocks,
    pattern,
    pattern_block,
    shared_blocks,
    text_block,
)
from hpcdash.backends.script.body import END_TIME_NAMES
from hpcdash.backends.script.containers.words import Word
from hpcdash.backends.script.launchers import pass_on_trap
from hpcdash.backends.script.resume import RESUME_NAMES
from hpcdash.domain.request import Launcher
from hpcdash.domain.scripts import ScriptBlock
from hpcdash.shell_files import shell_text

_PASSED_ON = ("PYTHONPATH", "PY_EXEC", *END_TIME_NAMES, *RESUME_NAMES)
_LOGS = tuple(
    (f"{FOLDER}/{name}.out", f"{FOLDER}/{name}.err") for name in ("job", '"job.$PBS_ARRAY_INDEX"')
)

_FILES = {"steps before: runs a step on all hosts before the command": "pbs/prepare_nodes"}


def _hosts(arguments: tuple[str | Word, ...], logs: tuple[str, str] | None) -> str:
    """Return the pattern of what starts the command on each host, whatever is passed on; the
    variables of a person stand before it.
    """
    made = pattern(
        script.fanout(
            arguments,
            {},
            passed_on=("NAME",),
            slots_a_chunk=NUMBER,
            lines_a_chunk=NUMBER,
            logs=logs,
        )
    )
    head, _, rest = made.partition(pattern('passed_on=(\n  "NAME=$NAME"\n)'))
    one = rf'  "({"|".join(_PASSED_ON)})=\$({"|".join(_PASSED_ON)})"\n'
    return rf"(?:{head})?passed_on=\((?:\n(?:{one})+)?\){rest}"


@cache
def script_blocks() -> tuple[ScriptBlock, ...]:
    """Return all blocks that such a script may have."""
    return (*shared_blocks(), *_own_blocks())


def _own_blocks() -> Iterator[ScriptBlock]:
    yield from file_blocks(_FILES)
    yield text_block(END_TIME, script.end_time(NUMBER), script.end_time(None))
    for arguments, logs in product(STARTED, (None, *_LOGS)):
        source = _hosts(arguments, logs)
        yield pattern_block("hosts: starts, signals and ends the command on all hosts", source)
    even = map(script.preamble, (Launcher.ACCELERATE, Launcher.DEEPSPEED))
    yield text_block("even slots: ends a job whose hosts have different numbers of slots", *even)
    for signal in EARLY:
        timer = pass_on_trap(signal) + shell_text("backends/pbs/timer.sh")
        timer += f"start_timer {signal.name} {NUMBER}"
        yield text_block("early signal: sends the early signal, which PBS does not", timer)
