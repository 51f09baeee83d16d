"""What a cluster, a job or a file says cannot act on the terminal of a person who looks; pipes get
it as it is.
"""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from tests.support.program import Program, home_with, together
from tests.support.screen import dashboard

# Writes the clipboard; sets the title; erases the screen; an eight-bit CSI; reversed, isolated and
# invisible letters.
HOSTILE = (
    "\x1b]52;c;cm0gLXJmIH4=\a\x1b]0;owned\x1b\\\x1b[2J\x9b2J"
    "\u202eevil\u202c\u2066x\u2069\u200b\u200f\u061c\ufeff."
)
REQUEST = (
    "name = 'odd'\nslots = 1\nslot_type = 'cpu'\ntime = '5m'\ncommand = "
    f"{json.dumps('echo ' + HOSTILE)}\n"
)
# What hpcdash itself writes there: colours, and a line written once more.
_OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[K")
_INVISIBLE = re.compile("[\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_ACTS = re.compile(f"[^\t\n\r -~\u00a0-\U0010ffff]|{_INVISIBLE.pattern}")


def acting_on_a_terminal(raw: bytes) -> list[str]:
    """What of some output a terminal obeys or does not show, with what stands before it."""
    text = _OURS.sub("", raw.decode("utf-8", "surrogateescape"))
    return [repr(text[max(0, found.start() - 40) : found.end()]) for found in _ACTS.finditer(text)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """On an embedded queue where job 1, whose name, script and log are hostile, has ended."""
    folder = tmp_path_factory.mktemp("hostile")
    variables = {"HPCDASH_QUEUE": str(folder / "queue"), "HPCDASH_STATE": str(folder / "state")}
    made = Program(home_with(folder / "home"), ("--local", "--backend", "local"), variables)
    words = HOSTILE.replace("\x9b2J", "")
    log = made.home / f"log-{words.replace('/', '')}.out"
    script = (
        f"#!/bin/sh\n#SBATCH --job-name={words}\n# {HOSTILE}\nprintf 'step 1: loss "
        f"2.5\\n{words}\\n'\n"
    )
    (made.home / "odd.sh").write_text(script)
    (made.home / "other.sh").write_text(script.replace("step 1", f"step 2 {HOSTILE}"))
    (made.home / "odd.toml").write_text(REQUEST)
    (made.home / f"arg{words.replace('/', '')}").touch()
    for name in ("odd.sh", "other.sh"):
        submitted = made("submit", name, "--", f"--output={log}", f"--comment={words}")
        assert submitted.status == 0, submitted
    assert made("log", "1", "-f").status == 0
    assert made("log", "2", "-f").status == 0
    return made


COMMANDS = {
    "script": ("script", "1"),
    "script explained": ("script", "1", "--explain"),
    "difference": ("script", "1", "--diff", "2"),
    "log": ("log", "1"),
    "path of a log": ("log", "1", "--path"),
    "show": ("show", "1"),
    "show as JSON": ("show", "1", "--format", "json"),
    "history": ("history",),
    "history as JSON": ("history", "--format", "json"),
    "history as CSV": ("history", "--format", "csv"),
    "journal": ("journal",),
    "journal as JSON": ("journal", "--format", "json"),
    "chain": ("chain", "1"),
    "render": ("render", "odd.toml", "--for", "slurm"),
    "dry run": ("submit", "odd.toml", "--dry-run"),
    "dry run of a script": ("submit", "odd.sh", "--dry-run", "--debug"),
    "stub": ("stub", "odd.sh"),
    "metrics": ("metrics", "1"),
    "metrics as CSV": ("metrics", "1", "--format", "csv"),
    "metrics as JSON": ("metrics", "1", "--format", "json"),
    "cron": ("cron", "--option", HOSTILE.replace("\x1b", "")),
    "no such job": ("show", HOSTILE),
    "too many words": ("show", "1", HOSTILE),
    "no such option": ("show", f"--{HOSTILE}"),
    "no such command": (HOSTILE,),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
async def test_nothing_hostile_reaches_a_terminal(program: Program, words: tuple[str, ...]) -> None:
    async with dashboard(program, *words) as screen:
        raw = await screen.all_output()
    assert raw.strip(), words
    assert acting_on_a_terminal(raw) == []


_NOT_UTF8 = {
    "ISO-8859-1": {"PYTHONIOENCODING": "iso-8859-1"},
    "ASCII": {"PYTHONIOENCODING": "ascii"},
    "POSIX locale": {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


@pytest.mark.parametrize("variables", _NOT_UTF8.values(), ids=_NOT_UTF8)
def test_what_is_not_in_the_encoding_of_a_terminal_ends_no_command(
    program: Program, variables: dict[str, str]
) -> None:
    there = replace(program, variables={**program.variables, **variables})
    statuses = {
        ("jobs", "--help"): 0,
        ("--help",): 0,
        ("help", "keys"): 0,
        ("help", "config"): 0,
        ("replay",): 0,
        ("history",): 0,
        ("show", "1"): 0,
        ("doctor",): 0,
        ("journal",): 0,
        ("show", "\u2026"): 2,
        ("\u2026",): 2,
    }
    for words, done in zip(statuses, together(there, *statuses), strict=True):
        assert done.status == statuses[words], done
        assert "something went wrong" not in done.stderr, done
        if words[0] == "help" and "iso-8859-1" not in variables.values():
            assert done.stdout.isascii(), done


def test_a_pipe_gets_a_script_byte_by_byte(program: Program) -> None:
    assert program("script", "1").stdout == (program.home / "odd.sh").read_bytes()
    assert f"\n# {HOSTILE}\n".encode() in program("script", "1", "--explain").stdout


async def test_json_on_a_terminal_says_the_same_as_in_a_pipe(program: Program) -> None:
    async with dashboard(program, "show", "1", "--format", "json") as screen:
        raw = await screen.all_output()
    piped = program("show", "1", "--format", "json").json
    assert json.loads(raw)["job"]["comment"] == piped["job"]["comment"]
    assert "\u202e" in piped["job"]["comment"]


async def test_nothing_invisible_reaches_the_terminal_of_the_dashboard(program: Program) -> None:
    shown = [
        ("4", "‹202E›"),
        ("\r", "‹202E›"),
        ("b", "‹2066›"),
        ("q", "‹202E›"),
        ("l", "loss 2.5"),
        ("s", "stderr"),
    ]
    async with dashboard(program) as screen:
        await screen.until("1/6")
        for keys, words in (*shown, ("q", "‹202E›"), ("J", "‹202E›"), ("n", "train.py")):
            screen.type(keys)
            await screen.until(words)
        screen.type("\x11")
        raw = await screen.all_output()
    text = raw.decode("utf-8", "replace")
    assert _INVISIBLE.findall(text) == []
    assert "\x1b]52" not in text
    assert "\x9b" not in text
    assert "]0;owned\x1b\\" not in text
