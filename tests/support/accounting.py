"""A sacct that tells of runs, for a ScriptedTransport: `transport.answers[RUNS_ASKED] =
Accounting(runs)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain.spans import Span
from tests.support.scripted_transport import Command, Reply
from tests.support.slurm_text import TOKEN, Fields, runs_text

RUNS_ASKED = "sacct -n -D"


@dataclass
class Accounting:
    """A sacct that tells of some runs: with states of those that ended in its times, else of those
    there then.
    """

    runs: list[Fields] = field(default_factory=list)
    asked: list[Span] = field(default_factory=list)
    before: Callable[[int], Reply] = lambda _turn: None

    def __call__(self, command: Command) -> Reply:
        words = command.words
        since, last = (
            int(words[words.index(option) + 1].removeprefix("uts")) for option in ("-S", "-E")
        )
        if (reply := self.before(len(self.asked))) is not None:
            self.asked.append(Span(since, last + 1))
            return reply
        rows: Iterable[Fields] = self.runs
        if "-u" in words:
            user = words[words.index("-u") + 1]
            rows = [row for row in rows if row.get("user", "alice") == user]
        if "-s" in words:
            self.asked.append(Span(since, last + 1))
            rows = [row for row in rows if since <= int(str(row["end"])) <= last]
        else:
            rows = [row for row in rows if int(str(row["start"])) <= since < int(str(row["end"]))]
        return runs_text(*rows, token=TOKEN).replace(TOKEN.encode(), RECORDED_TOKEN.encode())
