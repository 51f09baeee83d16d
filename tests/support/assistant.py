"""An assistant that calls the tools of `hpcdash mcp`, with the client of the protocol's own SDK."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client, StdioServerParameters

import hpcdash
from tests.support.program import Program

LEGACY, MODERN = "legacy", "auto"


class Assistant:
    """A connected client; `questions` are the dialogs that its person saw."""

    def __init__(self, client: Client, questions: list[str]) -> None:
        self.client = client
        self.questions = questions

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a call that went well."""
        failed, answer = await self.result(tool, **arguments)
        assert not failed, answer
        return answer

    async def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The error of a call that was refused."""
        failed, answer = await self.result(tool, **arguments)
        assert failed, answer
        error: dict[str, Any] = answer["error"]
        return error

    async def result(self, tool: str, **arguments: Any) -> tuple[bool, dict[str, Any]]:
        result = await self.client.call_tool(tool, arguments)
        [content] = result.content
        assert isinstance(content, types.TextContent)
        return bool(result.is_error), json.loads(content.text)


@asynccontextmanager
async def assistant(
    program: Program,
    *options: str,
    before: Sequence[str] = (),
    answer: str | None = None,
    protocol: str = MODERN,
) -> AsyncIterator[Assistant]:
    """Connect to `hpcdash BEFORE mcp OPTIONS`. `answer` is the person's: accept, decline, cancel,
    or unticked; None: the client has no dialogs.
    """
    questions: list[str] = []

    async def ask(_context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        questions.append(params.message)
        ticked = {"run": answer == "accept"}
        if answer in ("accept", "unticked"):
            return types.ElicitResult(action="accept", content=ticked)
        return types.ElicitResult(action="decline" if answer == "decline" else "cancel")

    command, *argv = program.argv(*before, "mcp", *options)
    # The same code as that of the test.
    source = {"PYTHONPATH": str(Path(hpcdash.__file__).parents[1])}
    parameters = StdioServerParameters(
        command=command,
        args=argv,
        env={**program.environment, **source, "PATH": os.environ["PATH"]},
        cwd=program.home,
    )
    callback = ask if answer is not None else None
    async with Client(parameters, mode=protocol, elicitation_callback=callback) as client:
        yield Assistant(client, questions)
