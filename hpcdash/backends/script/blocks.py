"""Blocks of lines that all schedulers' scripts share, by which they are recognised.

Each is made of what its writer returns, so it is what this version writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpcdash.backends.script.body import (
    BEFORE_COMMAND,
    FOR_SHELLCHECK,
    START,
    UNTIL_ITS_END,
    heredoc,
    library_line,
)
from hpcdash.backends.script.containers.words import Word
from hpcdash.backends.script.launchers import GOES_ON, IGNORED, SIGNALS, pass_on_trap
from hpcdash.backends.script.resume import HINT, resume_lines
from hpcdash.domain.request import NODE_LAUNCHERS, EarlySignal
from hpcdash.domain.scripts import ScriptBlock
from hpcdash.shell_files import shell_text

# Stand for what differs between scripts, in texts that writers return.
FOLDER = "/hpcdash.folder"
NUMBER = 977_001
SIGNAL = "@SIGNAL"
_HOLES = {
    re.escape(FOLDER): r"(?P<folder>/[A-Za-z0-9_./@+-]+)",
    re.escape(str(NUMBER)): "[0-9]+",
    re.escape(SIGNAL): f"(?:{'|'.join(SIGNALS)})",
}
EARLY = tuple(EarlySignal(name, NUMBER, batch_only=True) for name in SIGNALS)
_COMMAND = Word('"$command"', is_shell=True)
# What starts the command of a heredoc, as it is and in a container.
STARTED: tuple[tuple[str | Word, ...], ...] = (
    ("bash", "-c", _COMMAND),
    ("bash", "-c", Word('"$in_container"', is_shell=True), "in_container", _COMMAND),
)


def pattern(*texts: str) -> str:
    """Return the pattern of any of these texts, with holes for what differs between scripts."""
    escaped = []
    for text in texts:
        one = re.escape(text.strip("\n"))
        for stand_in, hole in _HOLES.items():
            # A group has its name once.
            one = one.replace(stand_in, hole, 1)
            one = one.replace(stand_in, "(?P=folder)" if "(?P<" in hole else hole)
        escaped.append(one)
    return "|".join(escaped)


def pattern_block(title: str, source: str) -> ScriptBlock:
    """Return a block titled `NAME: EXPLANATION`; the name may be ''."""
    name, _, explanation = title.partition(": ")
    return ScriptBlock(name, explanation, re.compile(rf"(?:{source})(?![^\n])"))


def text_block(title: str, *texts: str) -> ScriptBlock:
    """Return the block of any of these texts, titled as in `pattern_block`."""
    return pattern_block(title, pattern(*texts))


def file_blocks(files: Mapping[str, str]) -> Iterator[ScriptBlock]:
    """Return the blocks of .sh files, by their titles."""
    for title, name in files.items():
        yield text_block(title, shell_text(f"backends/{name}.sh"))


def _heredoc_block(name: str, message: str, explanation: str, text: str = "") -> ScriptBlock:
    """Return the block that opens the heredoc of a text, with its first lines if they are ours."""
    opened = heredoc(name, f"{text}@COMMAND", message).partition("@COMMAND")[0]
    end = f"END_OF_{name.upper()}"
    source = pattern(opened).replace(end, f"(?P<end>{end}_*)", 1)
    return pattern_block(f"start on the nodes: {explanation}", source)


_FILES = {
    "steps before: runs a step on a node with a time limit, and labels its output": (
        "script/node_step"
    ),
    "ranks: the first node's address, where other nodes reach it": "script/node_ranks",
    "venv: builds the job's own venv": "script/venv",
    "checked copies: runs copies of the launch's files, which others could replace": (
        "script/copies"
    ),
    "allocation: waits for runs and starts them": "script/wait_for_runs",
    "allocation: ends when idle": "script/end_if_idle",
    "allocation: finds other processes on its nodes": "script/beside",
}
_HEREDOCS = {
    "Command for each node:": ("command", "the command for each node, as text"),
    "Command for each task:": ("command", "the command for each task, as text"),
    "Command that runs once, on the first node:": ("command", "the command, as text"),
    "Container for the command, $1:": ("in_container", "the container, as text"),
}
END_TIME = "end time: passes the end of the time limit to hpcdash.job"
SIGNALLED = "early signal: passes the early signal on to the command on all nodes"


def shared_blocks() -> Iterator[ScriptBlock]:
    """Return the blocks that any scheduler's script may have."""
    yield from file_blocks(_FILES)
    for message, (name, text) in _HEREDOCS.items():
        yield _heredoc_block(name, message, text, UNTIL_ITS_END)
    yield _heredoc_block(
        "in_container", "Launcher inside the container:", "starts the command inside the container"
    )
    for name in ("probe", "hook"):
        yield _heredoc_block(name, BEFORE_COMMAND, "bash for each node, before the command")
    yield text_block(": for shellcheck: quoted text is expanded on the nodes", FOR_SHELLCHECK)
    yield text_block("early signal: it does not end this shell", GOES_ON.format(SIGNAL))
    ignored = (IGNORED.format(SIGNAL, launcher=one) for one in NODE_LAUNCHERS)
    yield text_block("early signal: it does not end the launcher", *ignored)
    yield text_block(SIGNALLED, *map(pass_on_trap, EARLY))
    library = library_line(FOLDER)
    yield text_block("job library: lets the command import hpcdash.job", library)
    head, _, resume = resume_lines("/", "TASK").partition("export HPCDASH_CHECKPOINTS=/ ")
    newest = resume.partition("\n")[2]
    yield text_block("resume: how a command resumes from a checkpoint", HINT, head)
    yield text_block("resume: finds the newest complete checkpoint at each start", newest)
    packages = shell_text("backends/script/packages.sh")
    packages += f"note_packages {FOLDER} '' python python3"
    yield text_block("packages: saves a list of installed packages in the launch folder", packages)
    requeue = r"(?:trap (?:-|'') [A-Z0-9]+\nrequeue_preempted [0-9]+ ''\n)?"
    source = pattern(START).replace(r"exit\ ", rf"{requeue}exit\ ")
    yield pattern_block("start: starts the command and exits with its status", source)
