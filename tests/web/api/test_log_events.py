"""What a program is sent that follows the log of a launch."""

from __future__ import annotations

import json
import os
from contextlib import aclosing
from pathlib import Path
from typing import cast

from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.logs.file import LogFile
from hpcdash.services.submit.launch_service import LaunchState
from hpcdash.transport.local import LocalTransport
from hpcdash.web.api.logs import LogReader, follow


class _Running:
    has_ended = False


async def running() -> LaunchState:
    return cast("LaunchState", _Running())


async def test_a_log_that_another_longer_file_replaced_is_sent_from_its_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    path.write_text("first\n")
    reader = LogReader(LogFile(LocalTransport(), str(path)), "stdout")
    first = await reader.read_last(10)
    async with aclosing(follow(reader, first, CommandBudget(1000), running)) as events:
        assert b'"text":"first\\n"' in await anext(events)
        (tmp_path / "next").write_text("second, and longer\n")
        os.replace(tmp_path / "next", path)
        assert (await anext(events)).startswith(b"event: restart\n")
        event = (await anext(events)).decode()
    sent = json.loads(event.partition("data: ")[2])
    assert (sent["offset"], sent["text"]) == (0, "second, and longer\n")
