"""Asks commands that stand in for a cluster's, and keeps each different command once, as a case
wants them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hpcdash.backends.queries import Query
from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.errors import HpcdashError
from hpcdash.recorded import find_token, normalised_argv
from hpcdash.transport.base import CommandResult
from tests.support.record_case import Recorded


class Asker:
    """`run` answers a command; of `folder`, where the stand-ins are, a case says `site`."""

    def __init__(
        self, run: Callable[[tuple[str, ...]], CommandResult], folder: str, site: str
    ) -> None:
        self.commands: dict[tuple[str, ...], Recorded] = {}
        self._run = run
        self._folder, self._site = folder.encode(), site.encode()
        # Where a script of sh is kept that several questions share.
        self._files: dict[str, str] = {}

    def ask(self, stem: str, word_file: str, query: Query[Any]) -> Any:
        """What is read from the answer; None where it is an error, which is kept all the same."""
        answer = self._run(query.argv)
        argv = normalised_argv(query.argv)
        if argv not in self.commands:
            names = {command.name for command in self.commands.values()}
            name = next(
                name
                for name in (stem, *(f"{stem}-{number}" for number in range(2, 99)))
                if name not in names
            )
            file = self._files.setdefault(max(argv, key=len), word_file)
            token = find_token(query.argv)
            stdout = (
                answer.stdout.replace(token.encode(), RECORDED_TOKEN.encode())
                if token
                else answer.stdout
            )
            stdout = stdout.replace(self._folder, self._site)
            self.commands[argv] = Recorded(
                name, argv, answer.status, stdout, answer.stderr, answer.seconds, file
            )
        try:
            return query.parse(answer)
        except HpcdashError as error:
            print(f"{stem}: {type(error).__name__}: {error.message}", file=sys.stderr)
            return None
