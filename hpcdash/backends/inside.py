"""Running a command on every node of a running job: the script for one node, and how its frames are
read.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.queries import Answer, decoded
from hpcdash.errors import HpcdashError
from hpcdash.shell_files import shell_text

# Of what a command writes on one node, or for one GPU, so much is sent.
CAP_BYTES = 256 << 10
# Beyond the time that a command has on its node, what a step may take to start there and to be
# ended.
GRACE_SECONDS = 45
_NODE_ARGUMENTS = """
token=$1 seconds=$2 each=$3 folder=$4 inherits=$5 cap=$6
shift 6
"""


def node_start() -> str:
    """Return the beginning of a script on a node, which has set `token` before it."""
    return shell_text("backends/node_start.sh", "backends/job_processes.sh", "backends/frames.sh")


class InsideCommand(Struct, frozen=True):
    """Command for each node of a job, and its time limit there.

    `each_gpu`: once for each GPU that the job has on the node, which is then the only one it sees.
    A `sampler` writes its frames itself, for as long as somebody reads them. `title` stands for
    argv in the journal.
    """

    argv: tuple[str, ...]
    seconds: int = 60
    each_gpu: bool = False
    is_sampler: bool = False
    title: str = ""

    def arguments(self, token: str, folder: str, *, as_job: bool) -> tuple[str, ...]:
        """Arguments of a shell on a node after `-c`: the script and its own arguments."""
        if self.is_sampler:
            script, *arguments = self.argv
            return (script, "sh", token, *arguments)
        each = "gpu" if self.each_gpu else "node"
        inherits = "job" if as_job else ""
        script = f"{_NODE_ARGUMENTS}{node_start()}{shell_text('backends/node_command.sh')}"
        where = (each, folder or "/", inherits, str(CAP_BYTES))
        return (script, "sh", token, str(self.seconds), *where, *self.argv)


class InsideStep(Struct, frozen=True):
    """The one command of the login node that runs an InsideCommand on each of a job's nodes.

    `nodes` are those it should hear from, () where that is not known; `command` is what a person
    would have called, `skipped` are nodes it does not go to. `failure` makes an error of an answer
    without a frame.
    """

    argv: tuple[str, ...]
    token: str
    limit_seconds: float
    failure: Callable[[Answer], HpcdashError]
    nodes: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def fresh_frame_token() -> str:
    """Return the token that begins each frame of one step."""
    return f"hpcdash-{secrets.token_hex(8)}"


def held(seconds: float, *argv: str) -> tuple[str, ...]:
    """A command of the login node whose stdin is open as long as somebody reads its stdout."""
    return ("sh", "-c", shell_text("backends/held.sh"), "sh", str(int(seconds)), *argv)


def exactly(text: str) -> str:
    """A regular expression of grep -E for this text."""
    return re.sub(r"([][\\.^$*+?(){}|])", r"\\\1", text)


class NodeOutput(Struct, frozen=True):
    """Output of a command on a node (for a GPU, '' where it ran once for all), and its end.

    `status` is None where that is not known: the node did not answer, or not to the end. `problem`
    is in its own words, or what stayed of a command that has ended.
    """

    node: str
    gpu: str = ""
    output: bytes = b""
    status: int | None = None
    problem: str = ""

    @property
    def is_cut(self) -> bool:
        return len(self.output) >= CAP_BYTES


class Frames:
    """Reads the frames of a step, chunk by chunk; what else stands on its stdout is dropped."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._rest = b""
        self.outputs: dict[tuple[str, str], NodeOutput] = {}

    def feed(self, chunk: bytes) -> list[NodeOutput]:
        """Read a chunk, and return the outputs that ended with it."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > CAP_BYTES:
            self._rest = b""
        return [ended for line in lines if (ended := self._take(line)) is not None]

    def _take(self, line: bytes) -> NodeOutput | None:
        parts = line.split(b" ", 3)
        if len(parts) != 4 or parts[0] != self._token or not parts[3]:
            return None
        node, gpu = map(decoded, parts[1:3])
        key = (node, "" if gpu == "-" else gpu)
        known = self.outputs.get(key, NodeOutput(*key))
        kind = parts[3][:1]
        content = parts[3][1:]
        match kind:
            case b".":
                try:
                    more = base64.b64decode(content, validate=True)
                except binascii.Error:
                    return None
                self.outputs[key] = replace(known, output=(known.output + more)[:CAP_BYTES])
                return None
            case b"=":
                status, _, problem = decoded(content).partition(" ")
                number = int(status) if status.isascii() and status.isdecimal() else None
                ended = replace(known, status=number, problem=problem)
            case b"!":
                ended = replace(known, status=None, problem=decoded(content))
            case _:
                return None
        self.outputs[key] = ended
        return ended

    def take_ended(self, ended: Iterable[NodeOutput]) -> None:
        """Forget what is read, so that the same nodes may write again."""
        for output in ended:
            self.outputs.pop((output.node, output.gpu), None)
