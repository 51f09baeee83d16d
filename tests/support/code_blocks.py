"""The code in the documentation's pages, and the folder it runs in: jobs, a training, a request, on
an embedded queue.

In a page, a block whose fence has a title is a file of that name. Other blocks of sh and python
run, unless the line above says <!-- not run: WHY -->.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdash.embedded.store import QueueStore
from tests.embedded.queue_lab import QueueLab
from tests.support.warm_start import warm_start

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/howto/*.md")), ROOT / "README.md")
_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n+)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<file>[^\"\n]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Of one block, on a machine that does other things as well.


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code; `file` is its title, `not_run` why it cannot run here, `line` where its
    text begins.
    """

    page: str
    line: int
    language: str
    text: str
    file: str = ""
    not_run: str = ""

    @property
    def is_run(self) -> bool:
        return self.language in ("sh", "python") and not self.file and not self.not_run

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def page_blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(
            name,
            text.count("\n", 0, found.start("text")) + 1,
            found["language"],
            found["text"],
            found["file"] or "",
            found["why"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


def commands_of(block: Block) -> Iterator[list[str]]:
    """The words of each hpcdash command in a block of sh, without what a shell does around them."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("();<>|&"):
                if command and command[0] == "hpcdash":
                    yield command[1:]
                command = []
            else:
                command.append(word)


# What follows something goes on until somebody presses ctrl+c.
_HPCDASH = """\
case " $* " in
*" -f "*) timeout --foreground -s INT 2 hpcdash-itself "$@" || [ $? = 124 ] ;;
*) exec hpcdash-itself "$@" ;;
esac
"""
# What the pages speak of: job 4711 trains, in job 88 tasks 3 and 5 have failed, job 120 waits.
_FILES = {
    "train.py": """\
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("saved", flush=True))
for step in range(1, 60 if "SLURM_JOB_ID" in os.environ else 3):
    print(f"step {step} loss: {9 / (step + 2):.4f}", flush=True)
    time.sleep(0.02)
while "--long" in sys.argv and not os.path.exists("KILL"):
    time.sleep(0.05)
""",
    "train.sh": """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --time=10:00
python3 train.py
""",
    "long.sh": """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --time=4:00:00
#SBATCH --gpus=1
export HPCDASH_KILL_SWITCH=$PWD/KILL HPCDASH_SAVE_SWITCH=$PWD/SAVE
trap : USR1
python3 train.py --long
""",
    "sweep.sh": """\
#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --time=10:00
#SBATCH --array=1-6
for step in 1 2 3; do echo "step $step loss: $SLURM_ARRAY_TASK_ID.$step"; done
case $SLURM_ARRAY_TASK_ID in 3 | 5) echo "CUDA out of memory" >&2; exit 1 ;; esac
""",
    "later.sh": """\
#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --time=10:00
#SBATCH --array=1-8
#SBATCH --begin=now+1day
true
""",
    "REQUEST.toml": 'name = "train"\ncommand = "python3 train.py"\nslots = 1\ntime = "10:00"\n',
    "train.log": "".join(f"step {step} loss: {9 / (step + 2):.4f}\n" for step in range(1, 40)),
}


class PageFolder:
    """A home with an embedded queue, which is the cluster juno; commands are typed at a terminal
    there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.queue = QueueLab(folder / "queue", self.home, cpus=64, gpus=16, grace_seconds=0.5)
        for name, text in _FILES.items():
            (self.home / name).write_text(text)
        config = self.home / ".config" / "hpcdash" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            '[clusters.juno]\ntransport = "local"\nbackend = "local"\n[poll]\nmine_seconds = 3\n'
        )
        programs = self.home / ".local" / "bin"
        programs.mkdir(parents=True)
        warm_start().write_command(programs / "hpcdash-itself")
        for name, words in {
            "hpcdash": _HPCDASH,
            "python3": f'exec {shlex.quote(sys.executable)} "$@"',
            "python": f'exec {shlex.quote(sys.executable)} "$@"',
            # A node's GPUs, as far as the pages look at them.
            "nvidia-smi": "echo 'GPU 0: NVIDIA A100'",
        }.items():
            (programs / name).write_text(f"#!/bin/sh\n{words}\n")
            (programs / name).chmod(0o700)
        self.environment: Mapping[str, str] = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "COLUMNS": "120",
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HPCDASH_QUEUE": str(self.queue.folder),
            "HPCDASH_STATE": str(folder / "state"),
            "HPCDASH_CACHE": str(folder / "cache"),
        }
        QueueStore(self.queue.folder).close()
        for number, script in ((88, "sweep.sh"), (120, "later.sh"), (4711, "long.sh")):
            self._next_number(number)
            done = self.queue.run("submit", script, env=self.environment)
            assert done.returncode == 0, done.stderr
        self.queue.wait("4711", "running")
        for task in range(1, 7):
            self.queue.ended(f"88_{task}")
        self.queue.wait_for_output("4711", "step 59")

    def _next_number(self, number: int) -> None:
        with sqlite3.connect(self.queue.folder / "queue.db", timeout=20) as database:
            database.execute(
                "INSERT OR REPLACE INTO facts VALUES ('last_number', ?)", (number - 1,)
            )
        database.close()

    def write(self, block: Block) -> None:
        """Write a block that has a file's name; config.toml is read by other tests."""
        if block.file != "config.toml":
            (self.home / block.file).write_text(block.text)

    def run_shell(self, block: Block) -> None:
        """Run a block as a person types it; fails with what it wrote."""
        self._run(block.place, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", block.text)

    def run_python(self, blocks: Sequence[Block]) -> None:
        """Run blocks that go on from one another, as one program."""
        if blocks:
            (self.home / "page.py").write_text("\n".join(block.text for block in blocks))
            self._run(blocks[0].page, sys.executable, "page.py")

    def _run(self, place: str, *argv: str) -> None:
        ours, theirs = os.openpty()
        process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.home,
            env=self.environment,
            process_group=0,
        )
        os.close(theirs)
        written = bytearray()
        reader = threading.Thread(target=_answer, args=(ours, written), daemon=True)
        reader.start()
        try:
            status = process.wait()
        finally:
            process.kill()
            process.wait()
        reader.join(1.0)
        assert status == 0, (
            f"{place}: {argv[-1]}\nended with {status}:\n{written.decode(errors='replace')}"
        )


def _answer(terminal: int, written: bytearray) -> None:
    """Read a terminal to its end; say yes to questions, and leave the dashboard."""
    is_asked, seen = 0, 0
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not chunk:
            break
        written += chunk
        if written.count(b"[y/N]") > is_asked:
            is_asked += 1
            os.write(terminal, b"y\n")
        if written.count(b"\x1b[?1049h") > written.count(b"\x1b[?1049l") and len(written) > seen:
            seen = len(written)
            os.write(terminal, b"\x11")
    os.close(terminal)
